"""Deletion by age, by a clock that may be wrong.

No age is taken from a wall clock alone: one that jumps ahead would delete for good what is to be kept.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sluice.base import times
from sluice.base.override import override
from sluice.base.times import format_age
from sluice.parsers import DEAD
from sluice.store import transaction_limits
from sluice.store.bookkeeping import BOOTED, KEYS, LAST_KEY, PASS
from sluice.store.store import Store

log = logging.getLogger("sluice.worker")

CATCH_UP = 2  # deletion by age, if the clock has moved: times as fast as time passes
STEP_MICROS = 60_000_000  # a smaller difference between clock and uptime is no step
SETTLED_SECONDS = 3600.0  # after a boot, from when on the clock goes as the uptime does
RECENT_SECONDS = 600  # in which the rate of keys is counted
NOTE_SECONDS = 2.0  # between two notes of how far a pass over all keys is
COUNTED = "kept ", "recent "  # names of counts begin so
AT_BYTES = 7  # of a key; as a number they fit into 64 bits
EXPIRE_PART, EXPIRE_SECONDS = 50, 3600.0  # between two looks for old rows: 1/50 of their age, at most an hour


def longest_kept(store: Store[Any], kind: str, name: str, age: int) -> tuple[int | None, str]:
    """The longest that a cell keeps something, and which one; "": none keeps it longer than this one.

    kind: see `account.shared`. age: for which this one keeps it, in seconds. Raises: Unavailable.
    """
    longer = "", age
    for cell, ages in store.read_settings(kind):
        if name in ages:
            if ages[name] is None:
                return None, cell
            longer = max(longer, (cell, ages[name]), key=lambda each: each[1])
    return longer[1], longer[0]


class Expiry:
    """Deletes rows of a stream, or dead letters, of at least an age.

    Other cells may have rows in this table. Nothing is deleted that one of them keeps, also if it is gone: an operator
    says so (`status --forget`).

    A clock that jumps ahead must not delete what is kept. So the database has the time up to which was deleted. That
    time follows the clock as long as the clock goes as the uptime of the machine does, whichever process looks. If the
    clock has moved, or the machine was off for more than DAYS_BELIEVED, the time is moved on CATCH_UP times as fast as
    time passes.
    """

    def __init__(self, name: str, age: int) -> None:
        self.name, self.age, self.slack = name, age, age / EXPIRE_PART
        self.since: tuple[int, float] | None = None  # up to which time was deleted when this began; uptime
        self.booted: int | None = None  # see `Bookkeeping.latest_boot`
        self.noted = 0  # the time that the database has
        self.keeper = ""  # a cell that keeps it longer
        self.behind = False

    def step(self, store: Store[Any]) -> bool:
        """Delete some; whether there may be more. Raises: Unavailable."""
        age, keeper = longest_kept(store, "keep", self.name, self.age)
        if keeper != self.keeper:
            self.keeper = keeper
            if keeper:
                how = "for ever" if age is None else f"for {format_age(age)}"
                log.warning("%s: kept %s, as the cell %s keeps it; `status --forget` ends that", self.name, how, keeper)
        if age is None:
            return False
        present, now = int(time.time() * 1e6), times.uptime_seconds()
        before = present - int(age * 1e6)
        if self.since is None:
            self.noted, self.booted = store.read_horizon(self.name), store.latest_boot()
            self.since = self.noted or before, now
        allowed = self.since[0] + int(CATCH_UP * (now - self.since[1]) * 1e6)
        if self.booted is not None:
            allowed = max(allowed, self.booted + int((now - age) * 1e6))
        self.log_lag(before - allowed)
        noted: dict[str, int] = {}
        booted = present - int(now * 1e6)
        settled = self.booted is not None and now > SETTLED_SECONDS and not self.behind
        if settled and abs(booted - (self.booted or 0)) > STEP_MICROS:
            noted = {BOOTED.format(times.boot_id()): booted}
            self.booted = booted
        before = min(before, allowed)
        if before > self.noted + 1e6 * self.pause_seconds() / 2:
            noted[self.name] = self.noted = before
        if noted:
            store.set_horizons(noted)
        return self.delete_old(store, before)

    def log_lag(self, behind: int) -> None:
        """Log a line when catching up begins, and one when it ends. behind: microseconds."""
        if behind > max(self.slack * 1e6, STEP_MICROS) and not self.behind:
            self.behind = True
            text = "%s: the clock is %s ahead of what has passed since the last deletion by age; catching up"
            log.warning(text, self.name, format_age(behind / 1e6))
        elif behind <= 0 and self.behind:
            self.behind = False
            log.info("%s: deletion by age has caught up", self.name)

    def delete_old(self, store: Store[Any], before: int) -> bool:
        """Delete some that are older than a time (microseconds since 1970); whether there may be more."""
        return store.expire_letters(before) if self.name == DEAD else store.expire_stream(self.name, before)

    def pause_seconds(self) -> float:
        """Seconds between two looks."""
        return min(self.slack, EXPIRE_SECONDS)


class KeyExpiry(Expiry):
    """Deletes keys. At most MAX_KEYS of a stream are kept: if a pass has left more, the next one takes the oldest.

    Its age is 0, so that its horizon is a present: the same for all cells and streams, whatever age each has set, and
    no key is older when it is put.

    A pass over all keys may take longer than this process lives. So the database has where it is (`at`, the first bytes
    of a key), what it has counted (`kept STREAM`, `recent STREAM`), and what the last one has found: the millionths of
    their age for which keys are kept (`share STREAM`), and how many came in RECENT_SECONDS (`rate STREAM`). It also has
    when that one has ended (`ended`): lives of a moment do not look at all keys each.
    """

    def __init__(self, ages: Mapping[str, int]) -> None:
        """ages: stream -> seconds that its keys are kept."""
        super().__init__(KEYS, 0)
        self.own, self.ages = ages, ages
        self.slack = max(ages.values()) / EXPIRE_PART
        self.notes: dict[str, int] | None = None  # of the last pass, as the database has them; None: not read yet
        self.at = b""  # the last key that was looked at
        self.counted = Counter[str]()  # in this pass
        self.due = 0.0  # uptime: when to note how far the pass is
        self.looked = -math.inf  # uptime: when the last pass ended, as far as this process knows

    @override
    def step(self, store: Store[Any]) -> bool:
        """`Expiry.step`. A burst ends with each chore, however short before that the last pass has ended."""
        if times.uptime_seconds() < self.looked + self.pause_seconds() / 2:
            return False
        return super().step(store)

    @override
    def delete_old(self, store: Store[Any], before: int) -> bool:
        now = before // 1_000_000
        if self.notes is None:
            self.notes = store.read_horizons(PASS)
            self.counted = Counter({name: n for name, n in self.notes.items() if name.startswith(COUNTED)})
            self.at = self.notes.get("at", 0).to_bytes(AT_BYTES, "big").rstrip(b"\0")
            passed = now - self.notes.get("ended", 0)
            if not self.at and 0 <= passed < int(self.pause_seconds()):
                self.looked = times.uptime_seconds() - passed
                return False
        if not self.at or self.ages is self.own:
            self.ages = dict(self.own)
            for _, theirs in store.read_settings("unique"):
                self.ages |= {name: max(age, self.ages.get(name, 0)) for name, age in theirs.items()}
        shares = {stream: self.notes.get(f"share {stream}", 1_000_000) / 1e6 for stream in self.ages}
        old = {stream: now - int(age * shares[stream]) for stream, age in self.ages.items()}
        self.at, kept, recent = store.expire_keys(self.at, old, now - RECENT_SECONDS)
        for stream, count in kept.items():
            self.counted[f"kept {stream}"] += count
            self.counted[f"recent {stream}"] += recent[stream]
        if self.at != LAST_KEY:
            if times.uptime_seconds() >= self.due:
                self.note_pass(store)
            return True
        self.looked = times.uptime_seconds()
        found = {"ended": now}
        for stream, share in shares.items():
            count = self.counted[f"kept {stream}"]
            new = min(1.0, share * transaction_limits.MAX_KEYS / max(1, count))
            if new < 1 and share == 1:
                log.warning("%s: keys are kept for %.0f %% of INGEST_UNIQUE: there are %d", stream, 100 * new, count)
            found |= {f"share {stream}": max(1, int(new * 1e6)), f"rate {stream}": self.counted[f"recent {stream}"]}
        self.notes |= found
        self.at, self.counted = b"", Counter(dict.fromkeys(self.counted, 0))
        self.note_pass(store, found)
        return False

    def note_pass(self, store: Store[Any], found: Mapping[str, int] = MappingProxyType({})) -> None:
        """Note how far the pass is. found: by one that has ended."""
        self.due = times.uptime_seconds() + NOTE_SECONDS
        at = int.from_bytes(self.at[:AT_BYTES].ljust(AT_BYTES, b"\0"), "big")
        noted = {**self.counted, **found, "at": at}
        store.set_horizons({PASS + name: value for name, value in noted.items()})
