"""Alternating rounds, and the ratios between the cases of a round."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rig.load import Stalled
from rig.parameters import Figures, progress

WIDEST = 0.15  # a ratio whose quartiles are farther apart, relative to the median, is not printed


def rounds(
    options: argparse.Namespace,
    cases: Mapping[str, Callable[[float], Figures]],
    reference: str = "",
    warm: Mapping[str, float] | None = None,
    pause: float = 0.3,
) -> dict[str, Figures]:
    """Run every case once per round, after one discarded run each. Every second round reverses the order of the
    one before, and then the order rotates by two: neighbours stay neighbours, and neither always precedes the other.

    reference: the case that the ratios refer to. warm: seconds of the discarded run, where they differ from
    options.warm. pause: seconds between two runs. A run during which the machine stalled is repeated.
    Returns: case -> the medians of its figures, `rates` of each round; with a reference also `ratio`, a Ratio.
    """
    names, began = list(cases), time.monotonic()
    warming = {name: (warm or {}).get(name, options.warm) for name in names}
    plan = [(0, name, warming[name]) for name in names if warming[name]]
    for n in range(options.rounds):
        first = n // 2 * 2 % max(len(names), 1)
        order = names[first:] + names[:first]
        plan += [(n + 1, name, options.seconds) for name in (reversed(order) if n % 2 else order)]
    results: dict[str, list[Figures]] = {name: [] for name in names}
    total = sum(seconds + pause + 0.5 for *_, seconds in plan)
    spent, stalls = 0.0, 0
    while plan:
        n, name, seconds = plan.pop(0)
        left = (time.monotonic() - began) / spent * (total - spent) if spent else total
        try:
            found = cases[name](seconds)
        except Stalled:
            stalls += 1
            if stalls > 5:
                raise
            # gunicorn replaces workers that missed their heartbeat; the new ones are cold
            progress(f"  the machine stalled during {name}; warming up again")
            plan = [(0, other, warming[other]) for other in names if warming[other]] + [(n, name, seconds), *plan]
            continue
        spent += seconds + pause + 0.5
        if n:
            results[name].append(found)
        kind = f"round {n}/{options.rounds}" if n else "warm-up  "
        errors = f"  {found['errors']:,} ERRORS" if found.get("errors") else ""
        progress(f"  {max(left, 0) / 60:4.1f} min left  {kind}  {name:<44} {found.get('rate', 0):>10,.0f}/s{errors}")
        time.sleep(pause)
    summary = {}
    for name, runs in results.items():
        summary[name] = {"case": name, **median(runs), "rates": [round(run["rate"], 1) for run in runs]}
    if reference:
        for name, figures in summary.items():
            figures["ratio"] = ratio(summary, name, reference)
    return summary


def median(runs: Sequence[Figures]) -> Figures:
    """The median of every number; errors are summed."""
    out: Figures = {}
    for key, value in runs[0].items():
        values = [run[key] for run in runs if key in run]
        if key == "errors":
            out[key] = sum(values)
        elif key == "errors by kind":
            out[key] = {kind: sum(v.get(kind, 0) for v in values) for kind in {kind for v in values for kind in v}}
        elif isinstance(value, dict):
            out[key] = median(values) if all(values) else value
        elif isinstance(value, (int, float)):
            out[key] = statistics.median(values)
        else:
            out[key] = value
    return out


class Ratio(NamedTuple):
    """The ratio of one case to another: median and quartiles over the rounds."""

    median: float
    low: float
    high: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Iterable[float]) -> Ratio:
        """From the ratio of each round."""
        each = [round(value, 3) for value in rounds] or [0.0]
        low, median, high = statistics.quantiles(each, method="inclusive") if len(each) > 1 else each * 3
        return cls(round(median, 3), round(low, 3), round(high, 3), tuple(each))

    @property
    def spread(self) -> float:
        """The distance of the quartiles, relative to the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @property
    def sure(self) -> bool:
        """Whether the next run can be expected to find the same: if not, the median is not printed."""
        return self.spread <= WIDEST

    def met(self, least: float) -> str:
        """The cell of a table of targets."""
        return ("yes" if self.median >= least else "NO") if self.sure else "unknown"

    def __str__(self) -> str:
        if not self.sure:
            return f"? ± {self.spread / 2:.0%}"
        return f"{self.median:.3g}" + (f" ({self.low:.3g} to {self.high:.3g})" if len(self.rounds) > 1 else "")


def ratio(found: Mapping[str, Figures], one: str, other: str) -> Ratio:
    """The ratio of one case to another."""
    return Ratio.of(a / b for a, b in zip(found[one]["rates"], found[other]["rates"]) if b)
