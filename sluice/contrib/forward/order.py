"""The order of rows whose bodies several workers store, or one that follows a killed one.

A claim may be stored before an earlier one. So where order was asked for, a row is held until all bodies before its own
are stored: the database has their ranges. A gap that stays, of bodies that were purged or lost, is passed over.
"""

from __future__ import annotations

import heapq
from typing import Any

from sluice.contrib.forward.destination import Place
from sluice.store.store import Store

GAP_SECONDS = 60.0  # after which a gap is passed over: a claim that a worker has left is claimed again before
RANGES = "SELECT first, last FROM batches_ranges WHERE stream = ? AND epoch = ? AND last > ? ORDER BY first LIMIT 1000"


class Order:
    """The rows of one stream that are held. now: monotonic."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.stored: dict[str, int] = {}  # epoch -> the last number up to which all are stored
        self.gaps: dict[str, float] = {}  # epoch -> when its gap was first seen
        self.held: dict[str, list[tuple[int, int, Place]]] = {}  # epoch -> a heap of its rows
        self.names: set[str] = set()

    def add(self, place: Place) -> None:
        if place.name not in self.names:
            self.names.add(place.name)
            heapq.heappush(self.held.setdefault(place.epoch, []), (place.seq, place.part, place))

    def release(self, store: Store[Any], db: object, now: float) -> list[Place]:
        """The rows of which all earlier bodies are stored, in their order."""
        free = []
        for epoch, rows in [*self.held.items()]:
            if rows[0][0] > self.stored.get(epoch, -1):
                self.read(store, db, epoch, now, rows[0][0])
            while rows and rows[0][0] <= self.stored[epoch]:
                free.append(heapq.heappop(rows)[2])
            if not rows:
                del self.held[epoch]
        self.names -= {place.name for place in free}
        return free

    def read(self, store: Store[Any], db: object, epoch: str, now: float, wanted: int) -> None:
        """Bring `stored` up to date. wanted: the number of a row that is held."""
        known = self.stored.get(epoch, -1)
        for first, last in store.run_sql(db, RANGES, (self.stream, epoch, known)):
            if known < 0 or first <= known + 1:  # the first range of an epoch is its beginning
                known = max(known, last)
                self.gaps.pop(epoch, None)
            elif known >= wanted:
                break
            elif now >= self.gaps.setdefault(epoch, now) + GAP_SECONDS:
                known = last
            else:
                break
        self.stored[epoch] = known
