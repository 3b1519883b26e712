"""Which row of one receiver is posted next, and when: no I/O, and no clock of its own.

A *lane* is rows that are posted one after the other. Without an order each row has a lane of its own. The first row of
a lane is posted when it is due; if it is not taken, it is due again after a wait that doubles up to ROW_SECONDS, and
only its lane waits for it.

A receiver that takes nothing is not asked for each of its rows. After as many failures in a row as it may have requests
at a time, or when it says Retry-After, it has a pause, and then gets one request at a time until it takes one.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

ROW_SECONDS = 1.0, 300.0  # between two attempts for a row: the first wait, and the longest
PAUSE_SECONDS = 0.5, 30.0  # of a receiver that takes nothing

Key = tuple[int, int, int]  # the place of a row in its lane


@dataclass
class Row:
    """A row that waits. since: seconds since 1970."""

    name: str
    lane: str
    key: Key
    since: float
    attempts: int = 0
    words: str = ""  # of the last answer


@dataclass
class Lane:
    """Rows, the first of which is posted first."""

    rows: list[tuple[Key, str]] = field(default_factory=list)  # a heap
    sent: str = ""  # the row that is posted now


class Schedule:
    def __init__(self, parallel: int, rng: random.Random | None = None) -> None:
        self.parallel = parallel
        self.rng = rng or random.Random()  # noqa: S311  # so that retries of several rows do not meet
        self.rows: dict[str, Row] = {}
        self.lanes: dict[str, Lane] = {}
        self.ready: deque[str] = deque()  # lanes
        self.due: list[tuple[float, str]] = []  # a heap: lanes that wait
        self.sent = 0
        self.failures = 0  # since the last row that was taken
        self.pause_until = 0.0
        self.tried: dict[str, None] = {}  # rows that were not taken, the last one at the end

    @property
    def width(self) -> int:
        """How many requests may be there now."""
        return 1 if self.failures >= self.parallel else self.parallel

    @property
    def words(self) -> str:
        """The last answer to a row that waits; "": none was refused."""
        return self.rows[next(reversed(self.tried))].words if self.tried else ""

    @property
    def oldest(self) -> float:
        """Since when the first row waits; 0 if none does."""
        return next(iter(self.rows.values())).since if self.rows else 0.0

    def add(self, row: Row) -> None:
        if row.name in self.rows:
            return
        self.rows[row.name] = row
        lane = self.lanes.get(row.lane)
        if lane is None:
            lane = self.lanes[row.lane] = Lane()
            self.ready.append(row.lane)
        heapq.heappush(lane.rows, (row.key, row.name))

    def take(self, now: float) -> Row | None:
        """The next row to post; None: there is none now. now: monotonic, as below."""
        while self.due and self.due[0][0] <= now:
            self.ready.append(heapq.heappop(self.due)[1])
        if now < self.pause_until or self.sent >= self.width:
            return None
        while self.ready:
            lane = self.lanes.get(self.ready.popleft())
            if lane is not None and not lane.sent:  # else its rows were dropped
                lane.sent = heapq.heappop(lane.rows)[1]
                self.sent += 1
                return self.rows[lane.sent]
        return None

    def end(self, row: Row, taken: bool) -> None:
        """A row that was posted has ended: its receiver has taken it, or never will."""
        self.leave(row)
        if taken:
            self.failures, self.pause_until = 0, 0.0
        del self.rows[row.name]
        self.tried.pop(row.name, None)
        if self.lanes[row.lane].rows:
            self.ready.append(row.lane)
        else:
            del self.lanes[row.lane]

    def fail(self, row: Row, now: float, words: str, after: float = 0.0) -> None:
        """A row was not taken, and is due later. after: seconds that the receiver asks for."""
        self.leave(row)
        row.attempts += 1
        row.words = words
        self.tried.pop(row.name, None)
        self.tried[row.name] = None
        self.failures += 1
        if after:
            self.failures = max(self.failures, self.parallel)
            self.pause_until = max(self.pause_until, now + after)
        elif self.failures >= self.parallel:
            wait = self.wait(PAUSE_SECONDS, self.failures - self.parallel)
            self.pause_until = max(self.pause_until, now + wait)
        heapq.heappush(self.lanes[row.lane].rows, (row.key, row.name))
        heapq.heappush(self.due, (now + max(after, self.wait(ROW_SECONDS, row.attempts - 1)), row.lane))

    def put_back(self, row: Row) -> None:
        """A row that was taken, and not posted."""
        self.leave(row)
        heapq.heappush(self.lanes[row.lane].rows, (row.key, row.name))
        self.ready.appendleft(row.lane)

    def leave(self, row: Row) -> None:
        self.lanes[row.lane].sent = ""
        self.sent -= 1

    def wait(self, bounds: tuple[float, float], doubled: int) -> float:
        """From half of a wait to all of it."""
        return min(bounds[0] * 2.0 ** min(doubled, 30), bounds[1]) * self.rng.uniform(0.5, 1.0)

    def expired(self, before: float) -> Iterator[Row]:
        """Rows that wait since a time before this one, and are not being posted. The first ones are the oldest."""
        for row in [*self.rows.values()]:
            if row.since >= before:
                return
            if self.lanes[row.lane].sent != row.name:
                yield row

    def drop(self, row: Row) -> None:
        """Forget a row that is not being posted."""
        lane = self.lanes[row.lane]
        if lane.rows[0][1] == row.name:
            heapq.heappop(lane.rows)
        else:
            lane.rows.remove((row.key, row.name))
            heapq.heapify(lane.rows)
        del self.rows[row.name]
        self.tried.pop(row.name, None)
        if not lane.rows and not lane.sent:
            del self.lanes[row.lane]  # `ready` and `due` may name it still

    def next_at(self, now: float) -> float:
        """When there may be another row to post, if no answer comes: monotonic."""
        if self.sent >= self.width:
            return float("inf")
        if self.ready:
            return max(self.pause_until, now)
        return max(self.pause_until, self.due[0][0]) if self.due else float("inf")
