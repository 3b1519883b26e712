"""The books of the database, in SQL that both databases take: what is stored, dead, expired, and published by cells.

A placeholder is `?`. Every statement is of one table or a few rows of it, so that it takes the same time for ever.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from sluice.base.times import boot_id, uptime_seconds
from sluice.parsers import DAY
from sluice.spool.claim import Claim, Window
from sluice.store import transaction_limits
from sluice.store.types import Body, CellFigures, Epoch, Ledger, Row
from sluice.streams.record import Limits
from sluice.streams.unique import Rule

Db = TypeVar("Db")

FOLDED = "(SELECT coalesce(max(last_batch), 0) FROM batches_folded)"
HAS_LETTERS = "EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.stream = batches.stream AND d.batch = batches.id)"
PUT_RANGE = "INSERT INTO batches_ranges (stream, epoch, first, last) VALUES (?, ?, ?, ?)"
PUT_FOLDED = """
INSERT INTO batches_folded AS f (stream, epoch, first_batch, last_batch) VALUES (?, ?, ?, ?)
ON CONFLICT (stream, epoch) DO UPDATE SET
  last_batch = CASE WHEN f.last_batch > excluded.last_batch THEN f.last_batch ELSE excluded.last_batch END"""
COUNT_EXPIRED = """
INSERT INTO batches_expired AS e (stream, epoch, deleted, expired) VALUES (?, ?, ?, ?) ON CONFLICT (stream, epoch)
DO UPDATE SET deleted = e.deleted + excluded.deleted, expired = e.expired + excluded.expired"""
DUPLICATES = "SELECT epoch, bodies FROM batches_duplicates WHERE stream = ?"
PUT_EPOCH = """
INSERT INTO batches_epochs AS e (stream, epoch, cell, first, last, purged) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (stream, epoch) DO UPDATE SET cell = excluded.cell, purged = excluded.purged,
  last = CASE WHEN e.last > excluded.last THEN e.last ELSE excluded.last END"""


LAST_KEY = b"\xff" * 17
KEYS = "batches_keys"  # the horizon of keys has this name
# Names that no stream has: when a machine was booted; how far a pass over all keys is
BOOTED, PASS = "boot {}", "pass "
DAYS_BELIEVED = 2  # that a machine was off: a clock may be wrong
PUT_HORIZON = """
INSERT INTO batches_horizons (stream, until) VALUES (?, ?)
ON CONFLICT (stream) DO UPDATE SET until = excluded.until"""


class Bookkeeping(ABC, Generic[Db]):
    """One connection to a database; not thread-safe. Db: the connection of its driver.

    EPOCH_OF: SQL, the epoch in `claim`. NOW: SQL, the time. AGE: SQL, seconds since {}. MICROS: SQL, {} in
    microseconds since 1970. SKIP_LOCKED: the end of a SELECT whose rows are to be deleted, so that it leaves those that
    another transaction has locked. WITH_ID: in an INSERT that gives an id.
    """

    EPOCH_OF: str
    NOW: str
    AGE: str
    MICROS: str
    SKIP_LOCKED: str
    units: dict[str, int]  # stream -> nanoseconds of the last digit of its times
    swept: dict[str, int]  # table ("": dead letters) -> where the search for old rows continues
    WITH_ID: str

    @abstractmethod
    def transaction(self, read: bool = False) -> AbstractContextManager[Db]:
        """A transaction, on a connection that is opened if there is none. Raises: Unavailable.

        read: it only reads, and all of its statements see one snapshot.
        """

    @abstractmethod
    def run_sql(self, db: Db, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run a statement; the rows that it returns."""

    def is_alone(self, db: Db) -> bool:
        """Whether no other connection folds batches or deletes by age until the end of the transaction.

        In SQLite, there is one writer at a time.
        """
        return True

    @abstractmethod
    def stored_time(self, microseconds: int) -> object:
        """A time since 1970 as the database has it."""

    @abstractmethod
    def table_exists(self, db: Db, table: str) -> bool:
        """Whether there is a table of this name."""

    @abstractmethod
    def stored_ranges(self, db: Db, claim: Claim) -> list[tuple[int, int]]:
        """The stored ranges that overlap a claim, ascending: first and last sequence number of each."""

    @abstractmethod
    def put_keys(self, db: Db, stream: str, batch: int, at: int, pieces: Iterator[Sequence[bytes]]) -> int:
        """Insert those keys of a stream that are not there, with one statement; how many these were.

        at: seconds since 1970. pieces: none is empty. Each is made when it is asked for.
        """

    def order_keys(
        self, rule: Rule, bodies: Sequence[Body], limits: Limits, keys: list[bytes | None]
    ) -> Iterator[Sequence[bytes]]:
        """The keys of bodies for `put_keys`, each one once and in their order; a store may make some at a time.

        keys: gets the key of each body, and is complete when the iteration ends.
        """
        keys[:] = rule.body_keys(bodies, limits)
        found: Any = dict.fromkeys(keys)  # in their order as they came, they are sorted sooner
        found.pop(None, None)
        if found:
            yield sorted(found)

    def read_identity(self, db: Db) -> str:
        """What tells this database from others; "" if it is a copy of one that had no identity."""
        found = self.run_sql(db, "SELECT id FROM batches_identity")
        return str(found[0][0]) if found else ""

    def read_ledger(
        self,
        stream: str,
        history: Sequence[Window] = (),
        cell: str | None = None,
        claims: Mapping[str, int] | None = None,
    ) -> Ledger:
        """The counts of a stream of a cell, and how much of `claims` is stored: one snapshot.

        history: of the cell's list. What was claimed after it was read is not counted.
        cell: None for all cells.
        claims: id -> number of bodies.
        """
        taken = {window.epoch: window.taken for window in history if window.taken is not None}
        with self.transaction(read=True) as db:
            ranges = self.run_sql(db, "SELECT epoch, first, last FROM batches_ranges WHERE stream = ?", (stream,))
            dead = self.count_dead(db, stream, taken)
            epochs = "SELECT stream, epoch, cell, first, last, purged FROM batches_epochs WHERE stream = ?"
            known = {row[1]: Epoch(*row) for row in self.run_sql(db, epochs, (stream,))}
            again: dict[str, int] = dict(self.run_sql(db, DUPLICATES, (stream,)))
            aged = self.run_sql(db, "SELECT epoch, deleted, expired FROM batches_expired WHERE stream = ?", (stream,))
            persisted = {
                id: self.count_persisted(db, Claim.from_id(stream, id, bodies)) for id, bodies in (claims or {}).items()
            }
        bodies: Counter[str] = Counter()
        highest: dict[str, int] = {}
        for epoch, first, last in ranges:
            bodies[epoch] += max(0, min(last, taken.get(epoch, last)) - first + 1)
            highest[epoch] = max(last, highest.get(epoch, 0))
        expired = {epoch: count for epoch, _, count in aged}
        ends = {window.epoch: window.end for window in history}
        ours = {
            epoch
            for epoch in {*bodies, *known, *expired, *again}
            if cell is None or epoch in ends or (epoch in known and known[epoch].cell == cell)
        }
        earlier = 0
        for epoch in ours - taken.keys():
            row = known.get(epoch, Epoch(stream, epoch, "", first=1, last=0, purged=0))
            lost = max(highest.get(epoch, 0), row.last) + 1 - ends.get(epoch, row.first)
            earlier += max(0, lost - (0 if epoch in ends else row.purged))
        return Ledger(
            bodies=sum(bodies[epoch] for epoch in ours),
            dead=sum(dead[epoch] for epoch in ours),
            persisted=persisted,
            earlier=earlier,
            purged={epoch: known[epoch].purged if epoch in known else 0 for epoch in ours},
            expired=sum(expired.get(epoch, 0) for epoch in ours),
            duplicate=sum(again.get(epoch, 0) for epoch in ours),
            deleted=sum(deleted for _, deleted, _ in aged),  # rows do not name their epoch
        )

    def count_dead(self, db: Db, stream: str, taken: Mapping[str, int]) -> Counter[str]:
        """The bodies with dead letters, by epoch. taken: the highest number to count of each epoch that has one."""
        bodies = "(SELECT DISTINCT batch, seq FROM dead_letters WHERE stream = ? AND seq > ?) AS d"
        counted = (
            f"SELECT {self.EPOCH_OF}, count(*), max(seq) FROM {bodies} JOIN batches AS b ON b.id = batch GROUP BY 1"
        )
        dead: Counter[str] = Counter()
        for epoch, count, highest in self.run_sql(db, counted, (stream, -1)):
            dead[epoch] = count
            if highest > (most := taken.get(epoch, highest)):
                later = {row[0]: row[1] for row in self.run_sql(db, counted, (stream, most))}
                dead[epoch] -= later[epoch]
        return dead

    def count_persisted(self, db: Db, claim: Claim) -> int:
        return sum(min(last + 1, claim.end) - max(first, claim.first) for first, last in self.stored_ranges(db, claim))

    def publish_figures(self, cell: str, figures: Mapping[str, Any], epochs: Iterable[Epoch]) -> None:
        """Replace the figures of a cell, and add the epochs of its list or bring their rows up to date."""
        put = (
            f"INSERT INTO batches_cells (cell, seen, figures) VALUES (?, {self.NOW}, ?) ON CONFLICT (cell) "
            "DO UPDATE SET seen = excluded.seen, figures = excluded.figures"
        )
        with self.transaction() as db:
            for epoch in epochs:
                self.run_sql(db, PUT_EPOCH, epoch)
            self.run_sql(db, put, (cell, json.dumps(figures)))

    def read_cells(self) -> list[CellFigures]:
        """The figures of all cells, by name."""
        with self.transaction(read=True) as db:
            rows = self.run_sql(
                db, f"SELECT cell, {self.AGE.format('seen')}, CAST(figures AS text) FROM batches_cells ORDER BY 1"
            )
        return [CellFigures(cell, seconds, json.loads(figures)) for cell, seconds, figures in rows]

    def read_settings(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """A setting of each cell that has published it: the cell, and the values by stream. See `account.shared`."""
        for cell, _, figures in self.read_cells():
            if values := figures.get("settings", {}).get(kind):
                yield cell, values

    def fold_again(self, db: Db, batches: Iterable[int]) -> None:
        """Delete those of these rows of `batches` that were kept for their dead letters, and have none any more."""
        for batch in batches:
            self.run_sql(db, f"DELETE FROM batches WHERE id = ? AND id <= {FOLDED} AND NOT {HAS_LETTERS}", (batch,))

    def count_deleted(self, db: Db, stream: str, rows: int) -> None:
        """Count rows that were deleted by age. They do not name their epoch."""
        self.run_sql(db, COUNT_EXPIRED, (stream, "", rows, 0))

    def expire_letters(self, before: int) -> bool:
        """Delete some old dead letters, and count the bodies that have none left; whether there may be more.

        One call takes a few milliseconds, and looks at the letters behind those of the last call: letters of a replay,
        or of a clock that was ahead, may stand before older ones. before: microseconds since 1970. Raises: Unavailable.
        """
        start, at = self.swept.pop("", 0), self.stored_time(before)
        some = "SELECT id, received_at < ? FROM dead_letters WHERE id > ? ORDER BY id LIMIT ?"
        with self.transaction(read=True) as db:  # a writer would wait for SQLite's lock only to find nothing
            found = self.run_sql(db, some, (at, start, transaction_limits.EXPIRE_LETTERS))
        if old := [id for id, is_old in found if is_old]:
            self.delete_letters(old)
        if len(found) == transaction_limits.EXPIRE_LETTERS:
            self.swept[""] = found[-1][0]
        return "" in self.swept

    def delete_letters(self, letters: list[int]) -> int | None:
        """Delete dead letters, and count the bodies that have none left; how many there were. None: not now."""
        with self.transaction() as db:
            # two that delete letters of one body at once would each see the other's, and neither would count the body
            if not self.is_alone(db):
                return None
            numbers = ", ".join("?" * len(letters))
            present = f"SELECT id FROM dead_letters WHERE id IN ({numbers}) {self.SKIP_LOCKED}"
            gone = self.run_sql(
                db, f"DELETE FROM dead_letters WHERE id IN ({present}) RETURNING stream, batch, seq", letters
            )
            for stream, batch, seq in set(gone):
                body = (stream, batch, seq)
                if not self.run_sql(db, "SELECT 1 FROM dead_letters WHERE stream = ? AND batch = ? AND seq = ?", body):
                    epoch = self.run_sql(db, f"SELECT {self.EPOCH_OF} FROM batches WHERE id = ?", (batch,))
                    self.run_sql(db, COUNT_EXPIRED, (stream, epoch[0][0] if epoch else "", 0, 1))
            self.fold_again(db, {batch for _, batch, _ in gone})
        return len(gone)

    def expire_keys(
        self, above: bytes, before: Mapping[str, int], recent: int = 0
    ) -> tuple[bytes, Counter[str], Counter[str]]:
        """Look at the next keys, and delete the old ones.

        above: the key behind which to look. before: stream -> the time before which a key is old (seconds since 1970);
            keys of other streams are old before all of these. recent: such a time, too.
        Returns the last one of them (LAST_KEY behind all), how many are left of each stream, and how many of these are
        not older than `recent`.
        """
        is_old = "CASE stream {} ELSE at < ? END".format(" ".join("WHEN ? THEN at < ?" for _ in before))
        ages = [*(value for pair in before.items() for value in pair), min(before.values())]
        part = "FROM batches_keys WHERE key > ?"
        with self.transaction(read=True) as db:  # a writer would wait for SQLite's lock only to find nothing
            end = f"SELECT key {part} ORDER BY key LIMIT 1 OFFSET {transaction_limits.SEARCH_ROWS - 1}"
            (last,) = (self.run_sql(db, end, (above,)) or [(LAST_KEY,)])[0]
            counted = (
                f"SELECT stream, count(*), sum(CASE WHEN {is_old} THEN 1 ELSE 0 END), "
                f"sum(CASE WHEN at >= ? THEN 1 ELSE 0 END) {part} AND key <= ? GROUP BY 1"
            )
            found = self.run_sql(db, counted, (*ages, recent, above, last))
        if any(old for _, _, old, _ in found):
            with self.transaction() as db:
                self.run_sql(db, f"DELETE {part} AND key <= ? AND {is_old}", (above, last, *ages))
        left = Counter({stream: int(count - old) for stream, count, old, _ in found})
        return last, left, Counter({stream: int(new) for stream, _, _, new in found})

    def read_horizon(self, name: str) -> int:
        """Up to which time (microseconds since 1970) rows of a stream, or dead letters, were deleted by age; 0: never.

        Of KEYS: the latest time that their deletion has taken for the present.
        """
        with self.transaction(read=True) as db:
            return self.get_horizon(db, name)

    def get_horizon(self, db: Db, name: str) -> int:
        """`read_horizon` in a transaction."""
        found = self.run_sql(db, "SELECT until FROM batches_horizons WHERE stream = ?", (name,))
        return int(found[0][0]) if found else 0

    def note_horizons(self, db: Db, ages: Mapping[str, int]) -> None:
        """Before a process stores anything: a horizon where there is none, so that the first deletion has one, too.

        ages: name -> seconds.
        Also the latest time at which this machine may have been booted: DAYS_BELIEVED after the last time that the
        database knows. A machine without a clock of its own gets the time soon after.
        """
        known = dict[str, int](self.run_sql(db, "SELECT stream, until FROM batches_horizons"))
        new = {name: self.safe_present(db) - age * 1_000_000 for name, age in ages.items() if name not in known}
        if (booted := BOOTED.format(boot_id())) not in known:
            last = max(self.last_batch(db), known.get(KEYS, 0))
            until = last + DAYS_BELIEVED * DAY * 1_000_000 if last else int(time.time() * 1e6)
            new[booted] = until - int(uptime_seconds() * 1e6)
        self.put_horizons(db, new)

    def latest_boot(self) -> int | None:
        """The latest time at which this machine may have been booted (microseconds since 1970); None: unknown."""
        return (boot_id() and self.read_horizon(BOOTED.format(boot_id()))) or None

    def put_horizons(self, db: Db, horizons: Mapping[str, int]) -> None:
        for name, until in sorted(horizons.items()):  # of two transactions, one waits for the other
            self.run_sql(db, PUT_HORIZON, (name, until))

    def last_batch(self, db: Db) -> int:
        """When the last batch was stored (microseconds since 1970), or 0."""
        last = self.run_sql(db, f"SELECT {self.MICROS.format('persisted_at')} FROM batches ORDER BY id DESC LIMIT 1")
        return int(last[0][0] or 0) if last else 0

    def read_horizons(self, beginning: str) -> dict[str, int]:
        """What is noted with names that begin so, by the rest of the name. See `note_horizons` and `KeyExpiry`."""
        asked = "SELECT stream, until FROM batches_horizons WHERE substr(stream, 1, ?) = ?"
        with self.transaction(read=True) as db:
            found = self.run_sql(db, asked, (len(beginning), beginning))
        return {name.removeprefix(beginning): int(until) for name, until in found}

    def safe_present(self, db: Db) -> int:
        """The time (microseconds since 1970) by the clock, or of the last batch if that is earlier."""
        now = int(time.time() * 1e6)
        return min(now, self.last_batch(db) or now)

    def set_horizons(self, horizons: Mapping[str, int]) -> None:
        with self.transaction() as db:
            self.put_horizons(db, horizons)
