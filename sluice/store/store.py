"""The worker's interface to a database: one transaction stores a claim with the range of its sequence numbers.

The database refuses a range that overlaps a stored one, so that each body is stored once, whatever claims it was in.
A backend implements `Store` in a folder of its own and has one line in `sluice.store.registry`.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sluice.parsers import DEAD, FOREVER, Keep
from sluice.registry import Database
from sluice.spool.claim import Claim
from sluice.spool.errors import EARLIER
from sluice.store import transaction_limits
from sluice.store.bisection import Bisection
from sluice.store.bookkeeping import FOLDED, HAS_LETTERS, KEYS, PUT_FOLDED, Bookkeeping, Db
from sluice.store.keys import Keys
from sluice.store.tables import BURY, LAYOUT, escape_reason
from sluice.store.types import Body, NewerTables, Origin, Outcome, RowsRejected, Unavailable
from sluice.streams.message import KEPT, NOBODY, sender_of
from sluice.streams.record import Limits
from sluice.streams.registry import Stream

DEFAULT_LIMITS = Limits()
MICROSECOND = 1_000


@dataclass(eq=False)
class Attempt:
    """A transaction that stores rows. db: the connection."""

    store: Store[Any]
    db: Any = None

    def store_bodies(self, stream: str, origin: Origin, bodies: Sequence[Body]) -> Outcome:
        """Store the records of bodies, and bury rejects and what is rejected."""
        try:
            return self.insert_bodies(stream, origin, bodies)
        except RowsRejected:
            return Bisection(partial(self.insert_bodies, stream, origin)).store_bodies(bodies)

    def insert_bodies(self, stream: str, origin: Origin, bodies: Sequence[Body]) -> Outcome:
        """Store the records of bodies and bury their rejects. Raises: RowsRejected, with nothing done."""
        return self.store.insert_bodies(self.db, self.store.checked_table(self.db, stream), origin, bodies)


class RowDestinations:
    """Where rows go that are in no table: those of no stream. A contribution has some.

    streams: whose rows are in no table.
    """

    streams: Collection[str] = ()

    def addresses(self) -> Mapping[str, str]:
        """Stream -> the address of its destination."""
        return {}

    @contextlib.contextmanager
    def begin_attempt(self, store: Store[Any], streams: set[str]) -> Iterator[Attempt]:
        """A transaction that stores rows of these streams. Raises: Unavailable."""
        attempt = Attempt(store)
        with store.transaction() as attempt.db:
            yield attempt

    def expire_rows(self, stream: str, before: int, dry: bool = False) -> int:
        """Delete rows that arrived before a time (microseconds since 1970); their number. dry: only count them."""
        raise NotImplementedError

    def end(self, store: Store[Any]) -> None:  # noqa: B027
        """The process ends. Raises: Unavailable."""


class Store(Bookkeeping[Db]):
    """A database, as the worker and the operator's commands use it. A table is an object that the backend defines.

    TIME_UNIT: nanoseconds of the last digit of a time in its tables, but of streams with nanoseconds.
    TABLE: the class of its tables.
    """

    TIME_UNIT: int
    TABLE: type[Any]
    database: Database

    def __init__(
        self,
        url: str,
        streams: Mapping[str, Stream],
        make: bool = True,
        keep: Keep = FOREVER,
        row_destinations: RowDestinations | None = None,
        used: bool = False,
    ) -> None:
        """make: create the database and its tables, or add missing columns.

        used: the cell has stored there, so a file that is missing is not made again.
        keep: INGEST_KEEP. row_destinations: see `open_destinations`; none: all rows are in tables.
        """
        self.url, self.make, self.used, self.keep = url, make, used, keep
        self.row_destinations = row_destinations or RowDestinations()
        elsewhere = self.row_destinations.streams
        self.tables = {name: self.TABLE(stream) for name, stream in streams.items() if name not in elsewhere}
        self.rules = {name: stream.rule for name, stream in streams.items()}
        # of the times in its own tables, and of those that are sent elsewhere
        units = {name: MICROSECOND if name in elsewhere else self.TIME_UNIT for name in streams}
        self.units = {name: 1 if streams[name].precision == "ns" else unit for name, unit in units.items()}
        kept = {name: keep.for_stream(name) for name in (*streams, DEAD)}
        self.ages = {KEYS: 0} | {name: age for name, age in kept.items() if age is not None}
        self.checked: set[str] = set()  # streams whose table this connection has created or checked
        self.db: Db | None = None
        self.swept = {}

    def persist(self, claim: Claim, bodies: Sequence[Body], limits: Limits = DEFAULT_LIMITS) -> Outcome:
        """Store the bodies of a claim, in one transaction: their records as rows, their rejects as dead letters.

        limits: with which they were decoded. Raises: Unavailable.
        """
        rule = self.rules.get(claim.stream)
        with self.row_destinations.begin_attempt(self, {claim.stream}) as attempt:
            db: Db = attempt.db
            outcome = Outcome(0, 0, again=True)
            parts = [claim]
            while parts:
                part = parts.pop(0)
                batch = self.add_batch(db, part)
                if batch is None:
                    ranges = self.stored_ranges(db, part)  # none: only its id is there
                    parts = [*unstored_parts(part, ranges), *parts] if ranges else parts
                    continue
                some = bodies if part is claim else [body for body in bodies if part.first <= body.seq < part.end]
                by_content = rule and (rule.content or rule.fields is not None)
                if rule and some and (by_content or any(body.item.startswith(KEPT) for body in some)):
                    keys = Keys(self, db, claim.stream, batch)
                    some = keys.keep_new(rule, some, limits)
                    keys.count_duplicates(claim.epoch)
                stored = attempt.store_bodies(claim.stream, Origin(batch, key_names(some)), some)
                self.add_records(db, batch, stored.records)
                outcome = stored if outcome.again else outcome.plus(stored)
        return outcome

    def expire_stream(self, stream: str, before: int) -> bool:
        """Delete some rows of a stream that arrived before a time, and count them; whether there may be more.

        One call takes a few milliseconds. before: microseconds since 1970. Raises: Unavailable.
        """
        if stream not in self.row_destinations.streams:
            return self.expire_rows(stream, before)
        if rows := self.row_destinations.expire_rows(stream, before):
            with self.transaction() as db:
                self.count_deleted(db, stream, rows)
        return False

    def fold_batches(self) -> bool:
        """Delete the FOLD_BATCHES oldest rows of `batches`, if that leaves KEEP_BATCHES; whether there may be more.

        Those with dead letters stay. `batches_ranges` has the sequence numbers of the others, and `batches_folded` the
        lowest and the highest id of the folded rows of each stream and epoch. Raises: Unavailable.
        """
        some = (
            f"SELECT id, (SELECT max(id) FROM batches), {FOLDED} FROM batches WHERE id > {FOLDED} "
            "AND id <= (SELECT max(id) FROM batches) - ? ORDER BY id LIMIT 1 OFFSET ?"
        )
        grouped = (
            f"SELECT stream, {self.EPOCH_OF}, min(id), max(id), min(first), max(first + bodies) FROM batches "
            "WHERE id > ? AND id <= ? GROUP BY 1, 2"
        )
        gone = f"SELECT id FROM batches WHERE id > ? AND id <= ? AND NOT {HAS_LETTERS} {self.SKIP_LOCKED}"
        with self.transaction(read=True) as db:  # a writer would wait for SQLite's lock only to find nothing
            found = self.run_sql(db, some, (transaction_limits.KEEP_BATCHES, transaction_limits.FOLD_BATCHES - 1))
        if not found:
            return False
        ((last, highest, folded),) = found
        with self.transaction() as db:
            if not self.is_alone(db) or not self.is_final(db, last, highest):
                return False
            for stream, epoch, low, high, first, end in self.run_sql(db, grouped, (folded, last)):
                self.merge_ranges(db, stream, epoch, first, end)
                self.run_sql(db, PUT_FOLDED, (stream, epoch, low, high))
            self.run_sql(db, f"DELETE FROM batches WHERE id IN ({gone})", (folded, last))
        return True

    def is_final(self, db: Db, batch: int, highest: int) -> bool:
        """Whether no transaction can add this or a lower id to `batches`. In SQLite, there is one writer at a time.

        highest: the last id when this one was read.
        """
        return True

    def merge_ranges(self, db: Db, stream: str, epoch: str, first: int, end: int) -> None:  # noqa: B027  # in SQLite they are
        """Make stored ranges that meet one, if they have or touch a number from `first` to `end` - 1."""

    def hold_lock(self, db: Db, name: str) -> bool:
        """Whether this connection has the lock of a name, until it ends: one program of all cells has it.

        A database that is a file belongs to one machine, whose programs exclude each other in the home.
        """
        return True

    def add_records(self, db: Db, batch: int, records: int) -> None:
        self.run_sql(db, "UPDATE batches SET records = records + ? WHERE id = ?", (records, batch))

    def checked_table(self, db: Db, stream: str) -> Any:
        """A stream's table, created or checked on first use."""
        table = self.tables[stream]
        if stream not in self.checked:
            self.create_table(db, table)
            self.checked.add(stream)
        return table

    def close(self) -> None:
        """Close the connection. The next transaction opens it again."""
        db: Any = self.db
        self.db = None
        if db is not None:
            db.close()

    def bury_rejects(self, db: Db, stream: str, origin: Origin, bodies: Iterable[Body]) -> int:
        """Bury the rejects of bodies; their number."""
        count = 0
        for body in bodies:
            for part, reason, whole in body.rejects:
                why, at = escape_reason(reason).decode(), self.stored_time(body.received)
                self.run_sql(db, BURY, (at, stream, part, why, whole and origin.whole, origin.batch, body.seq))
                count += 1
        return count

    @abstractmethod
    def create_table(self, db: Db, table: Any) -> None:
        """Create a table, or add the columns that it lacks."""

    @abstractmethod
    def add_batch(self, db: Db, claim: Claim) -> int | None:
        """Insert a claim into `batches` and its range into `batches_ranges`; its id in `batches`.

        None, with nothing done, if its id is there already, or if a body of it is stored.
        """

    @abstractmethod
    def insert_bodies(self, db: Db, table: Any, origin: Origin, bodies: Sequence[Body]) -> Outcome:
        """Store the records of bodies and bury their rejects. Raises: RowsRejected, with nothing done."""

    @abstractmethod
    def expire_rows(self, stream: str, before: int) -> bool:
        """`expire_stream` for a table."""

    def add_change(self, db: Db, stream: str, batch: int) -> None:  # noqa: B027  # a rowid shows it in SQLite
        """Note for the views that a batch got more rows after its claim was stored."""


def unstored_parts(claim: Claim, stored: Iterable[tuple[int, int]]) -> Iterator[Claim]:
    """The parts of a claim that are not in these ranges."""
    start = claim.first
    for first, last in stored:
        if first > start:
            yield claim.part(start, first)
        start = max(start, last + 1)
    if start < claim.end:
        yield claim.part(start, claim.end)


def key_names(bodies: Sequence[Body]) -> Mapping[int, str]:
    """The names of the API keys with which bodies were sent, by sequence number."""
    kept = [body for body in bodies if body.item.startswith(KEPT)]
    return {body.seq: name for body in kept if (name := sender_of(body.item))} if kept else NOBODY


def check_layout(where: str, layout: int) -> None:
    """Check the layout that a database has. Raises: Unavailable, NewerTables."""
    if layout > LAYOUT:
        raise NewerTables(where, layout, LAYOUT)
    if layout < LAYOUT:
        raise Unavailable(f"{where} has layout {layout}, and this version of Sluice knows only {LAYOUT}: {EARLIER}")
