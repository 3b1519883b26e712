"""Deletion by age, by a clock that may be wrong.

No age is taken from a wall clock alone: one that jumps ahead would delete for good what is to be kept.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sluice.base.override import override
from sluice.base.screen import ago
from sluice.parsers import DEAD
from sluice.store import bounds
from sluice.store.bookkeeping import KEYS, LAST_KEY
from sluice.store.store import Store

log = logging.getLogger("sluice.worker")

CATCH_UP = 2  # deletion by age, after an outage or because a clock is ahead: times as fast as time passes
EXPIRE_PART, EXPIRE_SECONDS = 50, 3600.0  # between two looks for old rows: 1/50 of their age, at most an hour


def longest(store: Store[Any], kind: str, name: str, age: int) -> tuple[int | None, str]:
    """The longest that a cell keeps something, and which one; "": none keeps it longer than this one.

    kind: see `account.shared`. age: for which this one keeps it, in seconds. Raises: Unavailable.
    """
    longer = "", age
    for cell, ages in store.settings(kind):
        if name in ages:
            if ages[name] is None:
                return None, cell
            longer = max(longer, (cell, ages[name]), key=lambda each: each[1])
    return longer[1], longer[0]


class Expiry:
    """Deletes rows of a stream, or dead letters, of at least an age.

    Other cells may have rows in this table. Nothing is deleted that one of them keeps, also if it is gone: an operator
    says so (`status --forget`).

    A clock that jumps ahead must not delete what is kept. So the database has the time up to which was deleted, and
    that time moves on at most CATCH_UP times as fast as this process can tell by its monotonic clock.
    """

    def __init__(self, name: str, age: int) -> None:
        self.name, self.age, self.slack = name, age, age / EXPIRE_PART
        self.since: tuple[int, float] | None = None  # up to which time was deleted when this began; monotonic
        self.noted = 0  # the time that the database has
        self.keeper = ""  # a cell that keeps it longer

    def step(self, store: Store[Any]) -> bool:
        """Delete some; whether there may be more. Raises: Unavailable."""
        age, keeper = longest(store, "keep", self.name, self.age)
        if keeper != self.keeper:
            self.keeper = keeper
            if keeper:
                how = "for ever" if age is None else f"for {ago(age)}"
                log.warning("%s: kept %s, as the cell %s keeps it; `status --forget` ends that", self.name, how, keeper)
        if age is None:
            return False
        before, now = int((time.time() - age) * 1e6), time.monotonic()
        if self.since is None:
            self.noted = store.horizon(self.name)
            self.since = self.noted or before, now
        allowed = self.since[0] + int(CATCH_UP * (now - self.since[1]) * 1e6)
        if before > allowed + self.slack * 1e6:
            ahead = (before - allowed) / 1e6
            log.warning("%s: the clock is %s ahead of the last deletion by age; catching up", self.name, ago(ahead))
        before = min(before, allowed)
        if before > self.noted + 1e6 * self.pause() / 2:
            store.set_horizon(self.name, before)
            self.noted = before
        return self.delete(store, before)

    def delete(self, store: Store[Any], before: int) -> bool:
        """Delete some that are older than a time (microseconds since 1970); whether there may be more."""
        return store.expire_letters(before) if self.name == DEAD else store.expire(self.name, before)

    def pause(self) -> float:
        """Seconds between two looks."""
        return min(self.slack, EXPIRE_SECONDS)


class KeyExpiry(Expiry):
    """Deletes keys. At most MAX_KEYS of a stream are kept: if a pass has left more, the next one takes the oldest.

    Its age is 0, so that its horizon is a present: the same for all cells and streams, whatever age each has set, and
    no key is older when it is put.
    """

    def __init__(self, ages: Mapping[str, int]) -> None:
        """ages: stream -> seconds that its keys are kept."""
        super().__init__(KEYS, 0)
        self.own, self.ages = ages, ages
        self.slack = max(ages.values()) / EXPIRE_PART
        self.at = b""  # the last key that was looked at
        self.kept = Counter[str]()  # in this pass
        self.shares = dict.fromkeys(ages, 1.0)  # of their age to which keys are kept now

    @override
    def delete(self, store: Store[Any], before: int) -> bool:
        now = before // 1_000_000
        if not self.at:
            self.ages = dict(self.own)
            for _, theirs in store.settings("unique"):
                self.ages |= {name: max(age, self.ages.get(name, 0)) for name, age in theirs.items()}
            self.shares = {stream: self.shares.get(stream, 1.0) for stream in self.ages}
        old = {stream: now - int(age * self.shares[stream]) for stream, age in self.ages.items()}
        self.at, kept = store.expire_keys(self.at, old)
        self.kept += kept
        if self.at != LAST_KEY:
            return True
        for stream, share in self.shares.items():
            count = self.kept[stream]
            self.shares[stream] = share = min(1.0, share * bounds.MAX_KEYS / max(1, count))
            if share < 1:
                log.warning("%s: keys are kept for %.0f %% of INGEST_UNIQUE: there are %d", stream, 100 * share, count)
        self.at, self.kept = b"", Counter()
        return False
