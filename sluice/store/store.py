"""The worker's interface to a database: one transaction stores a claim with the range of its sequence numbers.

The database refuses a range that overlaps a stored one, so that each body is stored once, whatever claims it was in.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from sluice.elsewhere.destination import Destination, Object, Refused, Rows, Unwritable
from sluice.settings import Keep
from sluice.spool.claim import Claim, Window
from sluice.store import bounds
from sluice.store.fill import fill, gaps, within
from sluice.store.types import (
    DeadLetter,
    Decode,
    Entry,
    Ledger,
    Line,
    NewerTables,
    Outcome,
    Replayed,
    RowsRefused,
    Spool,
    SpoolCount,
    Unavailable,
)
from sluice.streams.record import Reject

# Of the tables; 0: without `batches_ranges`; 1: it lacks the claims of before, and `batches_spools`. A version of this
# program that changes their meaning raises it
LAYOUT = 2

log = logging.getLogger("sluice.stores")


class DryRun(Exception):
    """Rolls back the transaction of a dry run."""


Db = TypeVar("Db")


class Store(ABC, Generic[Db]):
    """One connection to a database, as the worker and the operator's commands use it; not thread-safe.

    A subclass has the SQL of its database. Db: the connection of its driver. A table is an object that it defines.
    """

    def __init__(self, tables: dict[str, Any], keep: Keep, elsewhere: Mapping[str, Destination]) -> None:
        """tables: the table of each stream. keep: how long their rows are kept.

        elsewhere: the destinations of the streams whose rows are in no table.
        """
        self.tables = {name: table for name, table in tables.items() if name not in elsewhere}
        self.keep = keep
        self.elsewhere = elsewhere
        self.published: list[str] = []  # names of objects with a note that may be deleted
        self.late: dict[str, str] = {}  # streams with an object that could not be published, and why
        self.seen: dict[str, float] = {}  # name of another worker's object -> when its note was first read, monotonic
        self.checked: set[str] = set()  # streams whose table this connection has created or checked
        self.db: Any = None

    def persist(self, claim: Claim, entries: Callable[[], Iterable[Entry]]) -> Outcome:
        """Store a claim's records and bury its rejects in one transaction; `entries` may be called several times.

        Raises: Unavailable; and any exception of `entries`, with nothing stored.
        """
        with self.storing({claim.stream}) as (db, objects):
            outcome = Outcome(0, 0, again=True)
            parts = [claim]
            while parts:
                part = parts.pop(0)
                batch = self.add_batch(db, part)
                if batch is None:
                    parts = [*gaps(part, self.stored(db, part)), *parts]
                    continue
                some = self.inserter(db, objects, claim.stream, batch, True)
                stored = fill(some, entries if part is claim else partial(within, part, entries))
                self.add_records(db, batch, stored.records)
                outcome = Outcome(outcome.records + stored.records, outcome.letters + stored.letters)
        return outcome

    @contextlib.contextmanager
    def storing(self, streams: set[str]) -> Iterator[tuple[Db, dict[str, Object]]]:
        """A transaction that may store rows, and the objects that it opens, by stream: they are published afterwards.

        A stream of which an object could not be published stores nothing more until it is: what waits stays in Redis,
        which is bounded, and the objects of a worker are published in their order.

        Raises: Unavailable.
        """
        if streams & self.late.keys():
            self.publish_noted()
            for stream in streams & self.late.keys():
                raise Unavailable(self.late[stream])
        objects: dict[str, Object] = {}
        noted = False
        try:
            done = self.published
            with self.transaction() as db:
                yield db, objects
                for stream, one in objects.items():
                    with destination_errors():
                        one.finish()
                    if self.elsewhere[stream].lasting:
                        self.note(db, stream, one.name, one.carried)
                if done:
                    self.delete_notes(db, done)
                noted = True  # if the commit fails, it may have succeeded
            self.published = self.published[len(done) :]
            while objects:
                stream, one = objects.popitem()
                try:
                    found = self.elsewhere[stream].publish(one.name, one.carried)
                    if found and self.elsewhere[stream].lasting:
                        self.published = [*self.published, one.name]
                except Unwritable as error:
                    self.late[stream] = str(error)
                finally:
                    one.close(delete=False)
        finally:
            for stream, one in objects.items():
                if noted:
                    self.late[stream] = "it is not known whether the database has committed"
                one.close(delete=not noted)

    def inserter(
        self, db: Db, objects: dict[str, Object], stream: str, batch: int, whole: bool
    ) -> Callable[[Iterable[Entry]], Outcome]:
        """`insert` for a stream, or `write` if its rows go elsewhere."""
        if stream not in self.elsewhere:
            return partial(self.insert, db, self.table(db, stream), batch, whole)
        return partial(self.write, db, objects, stream, batch, whole)

    def write(
        self, db: Db, objects: dict[str, Object], stream: str, batch: int, whole: bool, entries: Iterable[Entry]
    ) -> Outcome:
        """As `insert`, but the records go into the object of their stream, which is opened for the first one."""
        records = letters = 0
        groups = objects[stream].groups if stream in objects else 0
        rows, rejects = Rows(), list[Entry]()

        def flush() -> None:
            nonlocal records, letters, rows
            if rows.seqs:
                with destination_errors():
                    if stream not in objects:
                        objects[stream] = self.elsewhere[stream].open(rows.received[0])
                    objects[stream].add(batch, rows)
            self.bury(db, stream, batch, whole, rejects)
            records, letters = records + len(rows.seqs), letters + len(rejects)
            rows = Rows()
            rejects.clear()

        try:
            with self.savepoint(db):
                thing: Any
                for entry in entries:
                    seq, received, _, thing = entry
                    if thing.__class__ is Reject:
                        rejects.append(entry)
                    else:
                        rows.seqs.append(seq)
                        rows.received.append(received)
                        rows.records.append(thing)
                    if len(rows.seqs) >= bounds.GROUP[0] or len(rejects) >= bounds.GROUP[1]:
                        flush()
                flush()
        except Refused as error:
            if stream in objects:
                objects[stream].undo(groups)
            raise RowsRefused(str(error)) from None
        return Outcome(records, letters)

    def publish(self) -> bool:
        """Publish objects that a worker has left with a note; False. Raises: Unavailable."""
        if why := self.publish_noted():
            raise Unavailable(why)
        return False

    def publish_noted(self) -> str:
        """Publish objects with a note, those of a stream in the order of their names; why one could not be.

        Raises: Unavailable.
        """
        with self.transaction() as db:
            found = self.notes(db)
        now = time.monotonic()
        self.seen = {name: self.seen.get(name, now) for _, name in found}
        why = ""
        late: dict[str, str] = {}
        done: list[str] = []
        for stream, name in found:
            if stream not in self.elsewhere:
                why = f"rows of {stream} are not published, because INGEST_ROWS does not name their destination"
                continue
            destination = self.elsewhere[stream]
            if name in self.published:
                done.append(name)
            elif stream not in late and (destination.own(name) or self.seen[name] + destination.leave <= now):
                with self.transaction() as db:
                    carried = self.carried(db, name)
                try:
                    if not destination.publish(name, carried):
                        log.error("%s: %s is gone, or was published and merged before a restore", stream, name)
                    done.append(name)
                except Unwritable as error:
                    why = late[stream] = str(error)
        self.late = late
        with self.transaction() as db:
            self.delete_notes(db, done)
        self.published = [name for name in self.published if name not in done]
        return why

    def tidy(self, stream: str) -> bool:
        """`Destination.tidy` of a stream. Raises: Unavailable."""

        def noted() -> set[str]:
            with self.transaction() as db:
                return {name for of, name in self.notes(db) if of == stream}

        with destination_errors():
            return self.elsewhere[stream].tidy(noted)

    def replay(self, letters: list[DeadLetter], decode: Decode, dry: bool = False) -> Replayed:
        """Decode dead letters again, and replace each by its result, in one transaction.

        A letter that another replay has taken is skipped. A letter that is buried again has a new, higher id.
        dry: change nothing; only report the result.
        """
        stored = records = dead = 0
        reasons: Counter[str] = Counter()
        streams = {letter.stream for letter in letters}
        with contextlib.suppress(DryRun), self.storing(streams) as (db, objects):
            last = self.last_letter(db)
            for letter in letters:
                if not self.delete_letter(db, letter.id):
                    continue

                def entries(letter: DeadLetter = letter) -> Iterator[Entry]:
                    for result in decode(letter):
                        yield letter.seq, letter.received, letter.body, result

                outcome = fill(self.inserter(db, objects, letter.stream, letter.batch, letter.whole), entries)
                self.add_records(db, letter.batch, outcome.records)
                if outcome.records:
                    self.add_change(db, letter.stream, letter.batch)
                records += outcome.records
                stored, dead = stored + (not outcome.letters), dead + bool(outcome.letters)
            reasons.update(self.buried(db, last, {letter.batch for letter in letters}))
            self.fold_again(db, {letter.batch for letter in letters})
            if dry:
                raise DryRun
        return Replayed(stored, records, dead, reasons)

    def letters(
        self, where: str = "true", above: int = 0, below: int = 1 << 62, limit: int = 200, newest: bool = False
    ) -> list[DeadLetter]:
        """Dead letters with above < id < below for which the SQL condition `where` holds, oldest (or newest) first.

        There are fewer than `limit` if no more exist, or if they are large; the list is empty only if none exists.
        Raises: ValueError if `where` is not valid SQL.
        """
        found: list[DeadLetter] = []
        size = 0
        for letter in self.select_letters(where, above, below, limit, newest):
            found.append(letter)
            size += len(letter.body)
            if size >= bounds.LETTER_BYTES:
                break
        return found

    def reasons(self, where: str = "true") -> list[tuple[str, str, int]]:
        """(stream, reason, number of dead letters) for which `where` holds, most frequent first. Raises: ValueError."""
        return list(self.ask(where, "SELECT stream, reason, count(*) FROM {} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2", ()))

    def table(self, db: Db, stream: str) -> Any:
        """A stream's table, created or checked on first use."""
        table = self.tables[stream]
        if stream not in self.checked:
            self.create(db, table)
            self.checked.add(stream)
        return table

    def close(self) -> None:
        """Close the connection. The next transaction opens it again."""
        db, self.db = self.db, None
        if db is not None:
            db.close()

    @abstractmethod
    def ledger(
        self,
        stream: str,
        history: Sequence[Window] = (),
        cell: str | None = None,
        claims: dict[str, int] | None = None,
    ) -> Ledger:
        """The counts of a stream of a cell, and how much of `claims` is stored: one snapshot.

        history: of the cell's list. What was claimed after it was read is not counted.
        cell: None for all cells.
        claims: id -> number of bodies.
        """

    @abstractmethod
    def stored_in(self, stream: str, partitions: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """How many bodies of these partitions in Kafka are stored, and how many of them are not settled.

        partitions: spool without its leader epoch -> the last number that is settled, and the last one to count.
        """

    @abstractmethod
    def leave_line(self, cell: str, figures: dict[str, Any], spools: list[Spool]) -> None:
        """Replace the figures of a cell, and add the spools or bring their rows up to date."""

    @abstractmethod
    def lines(self) -> list[Line]:
        """The figures of all cells, by name."""

    @abstractmethod
    def forget(self, cell: str) -> bool:
        """Delete the figures of a cell; False if there are none."""

    @abstractmethod
    def fold(self) -> bool:
        """Delete the FOLD oldest rows of `batches`, if that leaves KEEP; whether there may be more to delete.

        Those with dead letters stay. `batches_ranges` has the sequence numbers of the others, and `batches_folded` the
        lowest and the highest id of the folded rows of each stream and spool. Raises: Unavailable.
        """

    @abstractmethod
    def fold_again(self, db: Db, batches: set[int]) -> None:
        """Delete those of these rows of `batches` that were kept for their dead letters, and have none any more."""

    def prune(self, stream: str, before: int) -> bool:
        """`prune_table`, or `Destination.prune` if the rows of the stream go elsewhere."""
        if stream not in self.elsewhere:
            return self.prune_table(stream, before)
        with destination_errors():
            rows = self.elsewhere[stream].prune(before)
        if rows:
            with self.transaction() as db:
                self.add_deleted(db, stream, rows)
        return False

    def overdue(self, table: str, before: int) -> int:
        """`overdue_in_table`, or the same of a destination."""
        if table not in self.elsewhere:
            return self.overdue_in_table(table, before)
        with destination_errors():
            return self.elsewhere[table].prune(before, dry=True)

    @abstractmethod
    def prune_table(self, stream: str, before: int) -> bool:
        """Delete some rows of a stream that arrived before a time, and count them; whether there may be more.

        One call takes a few milliseconds. before: microseconds since 1970. Raises: Unavailable.
        """

    @abstractmethod
    def prune_letters(self, before: int) -> bool:
        """Delete some of the oldest dead letters, and count the bodies that have none left, as `prune` does."""

    @abstractmethod
    def overdue_in_table(self, table: str, before: int) -> int:
        """The number of rows of a stream, or of `dead_letters`, that arrived before a time. Raises: Unavailable."""

    @abstractmethod
    def transaction(self) -> contextlib.AbstractContextManager[Db]:
        """A transaction, on a connection that is opened if there is none. Raises: Unavailable."""

    @abstractmethod
    def create(self, db: Db, table: Any) -> None:
        """Create a table, or add the columns that it lacks."""

    @abstractmethod
    def add_batch(self, db: Db, claim: Claim) -> int | None:
        """Insert a claim into `batches` and its range into `batches_ranges`; its id in `batches`.

        None, with nothing done, if its id is there already, or if a body of it is stored.
        """

    @abstractmethod
    def stored(self, db: Db, claim: Claim) -> list[tuple[int, int]]:
        """The stored ranges that overlap a claim, ascending: first and last sequence number of each."""

    @abstractmethod
    def add_records(self, db: Db, batch: int, records: int) -> None:
        """Add to the number of records of a batch."""

    def add_change(self, db: Db, stream: str, batch: int) -> None:  # noqa: B027  # a rowid shows it in SQLite
        """Note for the views that a batch got more rows after its claim was stored."""

    @abstractmethod
    def insert(self, db: Db, table: Any, batch: int, whole: bool, entries: Iterable[Entry]) -> Outcome:
        """Store the records among the entries and bury the rejects. Raises: RowsRejected, with nothing done.

        whole: False if the entries come from a partial dead letter.
        """

    @abstractmethod
    def savepoint(self, db: Db) -> contextlib.AbstractContextManager[object]:
        """A part of a transaction that is undone by an exception."""

    @abstractmethod
    def bury(self, db: Db, stream: str, batch: int, whole: bool, rejects: Iterable[Entry]) -> None:
        """Bury rejects. whole: see `insert`."""

    @abstractmethod
    def note(self, db: Db, stream: str, name: str, carried: bytes | None) -> None:
        """Note an object that is to be published when this transaction has committed. carried: `Object.carried`."""

    @abstractmethod
    def notes(self, db: Db) -> list[tuple[str, str]]:
        """The noted objects, by name: stream and name."""

    @abstractmethod
    def carried(self, db: Db, name: str) -> bytes | None:
        """What the note of an object carries; None also if there is no such note any more."""

    @abstractmethod
    def delete_notes(self, db: Db, names: list[str]) -> None:
        """Delete the notes of objects that are published."""

    @abstractmethod
    def add_deleted(self, db: Db, stream: str, rows: int) -> None:
        """Count rows that were deleted by age; see `prune`."""

    @abstractmethod
    def last_letter(self, db: Db) -> int:
        """The highest id that a dead letter has, or had."""

    @abstractmethod
    def delete_letter(self, db: Db, id: int) -> bool:
        """Delete a dead letter; False if it is not there."""

    @abstractmethod
    def buried(self, db: Db, above: int, batches: set[int]) -> dict[str, int]:
        """The reasons of the dead letters of these batches with an id above this one, and their number."""

    @abstractmethod
    def select_letters(self, where: str, above: int, below: int, limit: int, newest: bool) -> Iterator[DeadLetter]:
        """`letters` without the limit in bytes."""

    @abstractmethod
    def ask(self, where: str, question: str, bindings: tuple[int, ...]) -> Iterator[Any]:
        """The rows of a query on the dead letters for which `where` holds, in a read-only transaction.

        question: SQL, with {} where the table stands.
        Raises: ValueError if `where` is not valid SQL.
        """


@contextlib.contextmanager
def destination_errors() -> Iterator[None]:
    """Raise Unavailable if a destination cannot be written."""
    try:
        yield
    except Unwritable as error:
        raise Unavailable(str(error)) from error


def check_layout(where: str, found: int, make: bool) -> None:
    """Check the layout that a database has. make: the caller brings an earlier one up to date.

    Raises: Unavailable, NewerTables.
    """
    if found > LAYOUT:
        raise NewerTables(where, found, LAYOUT)
    if found < LAYOUT and not make:
        raise Unavailable(f"{where} has layout {found}; a worker of this version brings it up to date")


# Claims of layout 0 get their ranges, merged where they meet. {0} is the spool in a claim's id; later spools have a
# hyphen in their names.
RANGES_OF_CLAIMS = """
INSERT INTO batches_ranges (stream, spool, first, last)
SELECT stream, spool, min(first), max(last) FROM (
  SELECT stream, spool, first, last, sum(CASE WHEN first <= before + 1 THEN 0 ELSE 1 END) OVER
    (PARTITION BY stream, spool ORDER BY first) AS island FROM (
    SELECT stream, {0} AS spool, first, first + bodies - 1 AS last, max(first + bodies - 1) OVER
      (PARTITION BY stream, {0} ORDER BY first ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM batches WHERE bodies > 0 AND {0} NOT LIKE '%-%') AS a) AS b
WHERE true GROUP BY stream, spool, island ON CONFLICT DO NOTHING
"""
# What is not stored below the highest number was purged or is lost; which of them, this version cannot know.
SPOOLS_OF_RANGES = """
INSERT INTO batches_spools (stream, spool, cell, first, last, purged)
SELECT stream, spool, '', min(first), max(last), max(last) - min(first) + 1 - sum(last - first + 1)
FROM batches_ranges WHERE true GROUP BY stream, spool ON CONFLICT DO NOTHING
"""


def summed(
    counts: Iterable[SpoolCount], history: Sequence[Window], cell: str | None, persisted: dict[str, int]
) -> Ledger:
    """The ledger from the counts of the spools: those of the cell, and those of its list."""
    ends = {window.epoch: window.end for window in history}
    present = {window.epoch for window in history if window.taken is not None}
    bodies = dead = earlier = expired = deleted = 0
    purged = {}
    for one in counts:
        deleted += one.deleted
        if not (cell is None or one.cell == cell or one.spool in ends):
            continue
        bodies, dead, expired = bodies + one.bodies, dead + one.dead, expired + one.expired
        purged[one.spool] = one.purged or 0
        if not present & {one.spool, ""}:
            lost = max(one.highest, one.last or 0) + 1 - max(ends.get(one.spool, one.first or 1), ends.get("", 0))
            earlier += max(0, lost if one.spool in ends else lost - purged[one.spool])
    return Ledger(bodies, dead, persisted, earlier, purged, expired, deleted)


def limits(history: Sequence[Window]) -> tuple[dict[str, int], int]:
    """The highest number to count of each spool that has one, and of all others."""
    found = {window.epoch: window.taken for window in history if window.taken is not None}
    return found, found.pop("", 1 << 62)
