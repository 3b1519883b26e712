"""What a process counts, in plain numbers of its own; spool.py takes them to Redis with what is sent anyway."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

EVERY = 1.0  # seconds between two reports of one process: what a killed process takes with it

# upper bounds of the buckets; what is beyond the last counts under +Inf
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counter:
    """One count. Adding to an attribute is the cheapest there is: a quarter of adding to a dict's value."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Histogram:
    """How many values fell into which bucket, and their sum (of times, in microseconds)."""

    __slots__ = ("bounds", "buckets", "scale", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.scale = 1e6 if bounds is SECONDS else 1
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counts:
    """The counts of a process, by field of the hash that they are added up in (PROTOCOL.md, section 4).

    They only grow. `delta` is what Redis has not confirmed yet, so that a report that failed is part of the next.
    """

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.histograms: dict[str, Histogram] = {}
        self.confirmed: dict[str, int] = {}
        self.due = 0.0  # when (monotonic) the next report may be sent

    def counter(self, field: str) -> Counter:
        """The count of this field."""
        if field not in self.counters:
            self.counters[field] = Counter()
        return self.counters[field]

    def histogram(self, field: str, bounds: Sequence[float]) -> Histogram:
        """The histogram of this field."""
        if field not in self.histograms:
            self.histograms[field] = Histogram(bounds)
        return self.histograms[field]

    def now(self) -> dict[str, int]:
        """All counts as they stand."""
        found = {field: cell.n for field, cell in list(self.counters.items())}
        for field, histogram in list(self.histograms.items()):
            for bound, n in zip((*histogram.bounds, "+Inf"), histogram.buckets):
                found[f"{field} {bound}"] = n
            found[f"{field} sum"] = int(histogram.sum * histogram.scale)
        return found

    def delta(self) -> dict[str, int]:
        """What has been counted since the last `confirm`."""
        return {
            field: n - self.confirmed.get(field, 0)
            for field, n in self.now().items()
            if n != self.confirmed.get(field, 0)
        }

    def confirm(self, delta: dict[str, int]) -> None:
        """Redis has these."""
        for field, n in delta.items():
            self.confirmed[field] = self.confirmed.get(field, 0) + n
