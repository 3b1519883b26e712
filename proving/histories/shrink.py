"""Make a failing history shorter: drop steps of its plan while it still fails in the same way."""

from __future__ import annotations

from dataclasses import replace

from proving.histories.history import History
from proving.histories.plan import Plan


def shrink(plan: Plan) -> tuple[Plan, list[int]]:
    """The shorter plan, and the numbers of the steps that are left of the given one."""
    kept = [*range(len(plan.steps))]

    def wrong(some: list[int]) -> bool:
        return bool(History(replace(plan, steps=[plan.steps[n] for n in some])).run().wrong)

    if not wrong(kept):
        return plan, kept
    size = max(1, len(kept) // 2)
    while True:
        at, dropped = 0, False
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if wrong(fewer):
                kept, dropped = fewer, True
            else:
                at += size
        if size == 1 and not dropped:
            return replace(plan, steps=[plan.steps[n] for n in kept]), kept
        size = max(1, size // 2)
