"""Counters and histograms of one process, kept in its memory; `inlet` and `outlet` report them to Redis."""

from __future__ import annotations

import collections
from bisect import bisect_left
from collections.abc import Sequence

REPORT_SECONDS = 1.0  # between two reports of a gateway; a killed process loses the counts of this time

# Upper bounds of the buckets. Values above the last one are in +Inf.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counter:
    """One counter. Incrementing an attribute takes a quarter of the time of incrementing a dict's value."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Histogram:
    """The number of values in each bucket, and their sum. Sums of seconds are reported in microseconds."""

    __slots__ = ("bounds", "buckets", "scale", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.scale = 1e6 if bounds is SECONDS else 1
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counts:
    """All counts of a process. They only grow. The fields are those of the hash in Redis (docs/protocol/spool.md)."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.histograms: dict[str, Histogram] = {}
        self.confirmed: collections.Counter[str] = collections.Counter()
        self.due = 0.0  # monotonic: when the next report may be sent

    def counter(self, field: str) -> Counter:
        return self.counters.setdefault(field, Counter())

    def histogram(self, field: str, bounds: Sequence[float]) -> Histogram:
        return self.histograms.setdefault(field, Histogram(bounds))

    def totals(self) -> dict[str, int]:
        totals = {field: counter.n for field, counter in list(self.counters.items())}
        for field, histogram in list(self.histograms.items()):
            for bound, n in zip((*histogram.bounds, "+Inf"), histogram.buckets):
                totals[f"{field} {bound}"] = n
            totals[f"{field} sum"] = int(histogram.sum * histogram.scale)
        return totals

    def delta(self) -> dict[str, int]:
        """The increments that Redis has not confirmed: a report that fails is part of the next one."""
        return {field: n - self.confirmed[field] for field, n in self.totals().items() if n != self.confirmed[field]}

    def confirm(self, delta: dict[str, int]) -> None:
        """Redis has added these increments."""
        self.confirmed.update(delta)  # adds
