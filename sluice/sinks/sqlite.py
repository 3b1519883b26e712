"""SQLite, the embedded default: WAL and synchronous=FULL, so that what is settled is on disk.

Through apsw, which binds a row in a third of the time of the standard library's module: DECISIONS.md has the figures.
"""

from __future__ import annotations

import contextlib
import os
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from sluice.sinks import (
    DeadLetter,
    Decode,
    DryRun,
    Entry,
    Ledger,
    Outcome,
    Replayed,
    RowsRejected,
    Unavailable,
    fill,
    second,
)
from sluice.sinks.schema import kinds
from sluice.spool.contract import Claim
from sluice.streams.record import Metric, Reject
from sluice.streams.registry import Stream

BUSY = 5.0  # seconds to wait for another writer
PLAIN = {float: "REAL", int: "INTEGER", bool: "INTEGER", str: "TEXT"}
# What the database, its driver or the making of a row says of a value. Anything else is about the database, and passes.
POISON = (
    *(apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError),
    *(TypeError, ValueError, OverflowError, AttributeError, LookupError, msgspec.MsgspecError),
)
LETTERS = 4 << 20  # bytes of letters that are read at once
# AUTOINCREMENT: of two replays at once the slower one must not take a new letter for the old one of that id
TABLES = """
CREATE TABLE IF NOT EXISTS batches (
  id INTEGER PRIMARY KEY, claim TEXT NOT NULL UNIQUE, stream TEXT NOT NULL, first INTEGER NOT NULL,
  bodies INTEGER NOT NULL, records INTEGER NOT NULL, persisted_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS dead_letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT, received_at TEXT NOT NULL, stream TEXT NOT NULL, body BLOB NOT NULL,
  reason TEXT NOT NULL, whole INTEGER NOT NULL, batch INTEGER NOT NULL REFERENCES batches, seq INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS dead_letters_by_body ON dead_letters (stream, batch, seq);
"""
Row = tuple[Any, ...]
BURY = "INSERT INTO dead_letters (received_at, stream, body, reason, whole, batch, seq) VALUES (?,?,?,?,?,?,?)"


class Table:
    """A stream's table: its columns are the fields of the stream's records, between arrival and origin."""

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.columns = {"received_at": "TEXT NOT NULL", "time": "TEXT NOT NULL"}
        self.encoded: list[int] = []  # positions of values that `plain` has to look at
        for at, (name, some) in enumerate(kinds(stream.record).items(), 1):
            if not some <= PLAIN.keys():
                self.encoded.append(at)
            kind = some.pop() if len(some) == 1 else object
            self.columns[name] = PLAIN.get(kind, "TEXT" if typing.get_origin(kind) else "")  # dict[…] is JSON
        self.columns |= {"batch": "INTEGER NOT NULL REFERENCES batches", "seq": "INTEGER NOT NULL"}
        self.nanoseconds = stream.record is Metric
        # A row is bound as it is made: the record, whose own time is not used, and these
        bound = [*self.columns][2:-2] + ["received_at", "time", "batch", "seq"]
        self.slots = {name: f"?{at}" for at, name in enumerate(bound, 2)}
        self.insert = ""

    def create(self, db: apsw.Connection) -> None:
        """Make the table, or add the columns that the record type has gained, and see how rows get into it."""
        columns = ", ".join(f'"{name}" {kind}'.rstrip() for name, kind in self.columns.items())
        with db:
            db.execute(f'CREATE TABLE IF NOT EXISTS "{self.name}" ({columns})')
            present = [row[1] for row in db.execute(f'PRAGMA table_info("{self.name}")')]
            for name, kind in self.columns.items():
                if name not in present:
                    db.execute(f'ALTER TABLE "{self.name}" ADD COLUMN "{name}" {kind.partition(" ")[0]}')
                    present.append(name)
        # apsw reads the text once a row, so the names are left out unless there are more columns than ours
        ours = [name for name in present if name in self.slots]
        names = "" if ours == present else "(" + ",".join(f'"{name}"' for name in ours) + ")"
        self.insert = f'INSERT INTO "{self.name}"{names} VALUES({",".join(self.slots[name] for name in ours)})'  # noqa: S608

    def rows(
        self, db: apsw.Connection, batch: int, entries: Iterable[Entry], whole: bool, count: list[int]
    ) -> Iterator[Row]:
        """The rows of the records among the entries. The rejects are buried in passing; `count`: rows, letters.

        Everything passes one by one, so that a batch never lies in memory whole.
        whole: False if the entries are of a letter that is a part of a body.
        """
        encoded, nanoseconds = self.encoded, self.nanoseconds
        last, arrived, number = -1, "", 0
        thing: Any
        for seq, received, _, thing in entries:
            if received != last:
                last, arrived = received, instant(received)
            if thing.__class__ is Reject:
                db.execute(BURY, (arrived, self.name, thing.part, thing.reason, thing.whole and whole, batch, seq))
                count[1] += 1
                continue
            number += 1
            when = thing.time
            if when is None:
                at = arrived if not nanoseconds else arrived[:-1] + "000000Z"
            elif nanoseconds:
                at = f"{second(when // 1_000_000_000)}.{when % 1_000_000_000:09d}Z"
            elif when % 1_000_000_000:
                at = f"{second(when // 1_000_000_000)}.{when // 1_000_000 % 1000:03d}Z"
            else:
                at = instant(when // 1000)
            row = astuple(thing) + (arrived, at, batch, seq)
            yield self.encode(row) if encoded else row
        count[0] = number

    def encode(self, row: Row) -> Row:
        """A row with its compound values as the database can hold them."""
        values = list(row)
        for at in self.encoded:
            if values[at] is not None:
                values[at] = plain(values[at])
        return tuple(values)


class Sqlite:
    """See `sinks.Sink`. One connection; not for several threads."""

    def __init__(self, path: str, streams: dict[str, Stream], make: bool = True) -> None:
        """path: of the database file. make: make it, its folder and its tables if they are missing."""
        self.path = path
        self.make = make
        self.tables = {name: Table(stream) for name, stream in streams.items()}
        self.made: set[str] = set()  # the tables that are as they should be
        self.db: apsw.Connection | None = None
        with self.transaction("BEGIN"):
            pass

    def open(self) -> apsw.Connection:
        """The connection, opened again if it was closed."""
        if self.db is None:
            self.made.clear()
            flags = apsw.SQLITE_OPEN_READWRITE
            if self.make:
                os.makedirs(os.path.dirname(os.path.abspath(self.path)), mode=0o700, exist_ok=True)
                flags |= apsw.SQLITE_OPEN_CREATE
            elif not os.path.exists(self.path):
                raise Unavailable(f"{self.path}: there is no database yet")
            db = apsw.Connection(self.path, flags)
            try:
                db.set_busy_handler(patience())
                db.execute("PRAGMA synchronous=FULL")
                if self.make:
                    db.execute("PRAGMA journal_mode=WAL")
                    with db:
                        db.execute(TABLES)
                    for name in self.tables:
                        with contextlib.suppress(apsw.SQLError):  # one that cannot be made holds up nobody else
                            self.table(db, name)
            except BaseException:
                db.close()
                raise
            self.db = db
        return self.db

    def table(self, db: apsw.Connection, stream: str) -> Table:
        """A stream's table, made if it was not there."""
        table = self.tables[stream]
        if stream not in self.made:
            table.create(db)
            self.made.add(stream)
        return table

    def close(self) -> None:
        """Close the file."""
        db, self.db = self.db, None
        if db is not None:
            db.close()

    @contextlib.contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[apsw.Connection]:
        """All or nothing. Raises: Unavailable for what the database says of itself: locked, full, read-only, broken."""
        try:
            db = self.open()
            db.execute(begin)
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except (apsw.Error, OSError) as error:
            with contextlib.suppress(apsw.Error):
                self.close()
            raise Unavailable(f"{self.path}: {error}") from error

    def persist(self, claim: Claim, entries: Callable[[], Iterable[Entry]]) -> Outcome:
        """See `sinks.Sink`."""
        with self.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO batches (claim, stream, first, bodies, records, persisted_at) "
                "VALUES (?,?,?,?,0,?)",
                (claim.id, claim.stream, claim.first, claim.count, now()),
            )
            if not db.changes():
                return Outcome(0, 0, again=True)
            batch = db.last_insert_rowid()
            outcome = fill(partial(self.insert, db, self.table(db, claim.stream), batch, True), entries)
            db.execute("UPDATE batches SET records = ? WHERE id = ?", (outcome.records, batch))
        return outcome

    def insert(self, db: apsw.Connection, table: Table, batch: int, whole: bool, entries: Iterable[Entry]) -> Outcome:
        """Insert the records among the entries and bury the rejects. Raises: RowsRejected, with nothing done."""
        count = [0, 0]
        try:
            with savepoint(db):
                db.executemany(table.insert, table.rows(db, batch, entries, whole, count))
        except POISON as error:
            if not db.in_transaction:  # a trigger's RAISE(ROLLBACK)
                raise
            raise RowsRejected(str(error)) from error
        return Outcome(count[0], count[1])

    def replay(self, letters: list[DeadLetter], decode: Decode, dry: bool = False) -> Replayed:
        """See `sinks.Sink`."""
        passed = records = stay = 0
        reasons: Counter[str] = Counter()
        with contextlib.suppress(DryRun), self.transaction() as db:
            last = db.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'dead_letters'").get or 0
            for letter in letters:
                db.execute("DELETE FROM dead_letters WHERE id = ?", (letter.id,))
                if not db.changes():
                    continue  # somebody else has replayed it since it was read

                def entries(letter: DeadLetter = letter) -> Iterator[Entry]:
                    for thing in decode(letter):
                        yield letter.seq, letter.received, letter.body, thing

                table = self.table(db, letter.stream)
                outcome = fill(partial(self.insert, db, table, letter.batch, letter.whole), entries)
                db.execute("UPDATE batches SET records = records + ? WHERE id = ?", (outcome.records, letter.batch))
                records += outcome.records
                passed, stay = passed + (not outcome.letters), stay + bool(outcome.letters)
            reasons.update(
                dict(db.execute("SELECT reason, count(*) FROM dead_letters WHERE id > ? GROUP BY 1", (last,)))
            )
            if dry:
                raise DryRun
        return Replayed(passed, records, stay, reasons)

    def letters(
        self, where: str = "true", above: int = 0, below: int = 1 << 62, most: int = 200, newest: bool = False
    ) -> list[DeadLetter]:
        """See `sinks.Sink`."""
        found: list[DeadLetter] = []
        size = 0
        for row in self.ask(
            where,
            "SELECT id, stream, received_at, body, reason, whole, batch, seq FROM {} "  # noqa: S608  # DESC or nothing
            f"WHERE id > ? AND id < ? ORDER BY id {'DESC' if newest else ''} LIMIT ?",
            (above, below, most),
        ):
            found.append(DeadLetter(row[0], row[1], microseconds(row[2]), row[3], row[4], bool(row[5]), row[6], row[7]))
            size += len(row[3])
            if size >= LETTERS:
                break
        return found

    def reasons(self, where: str = "true") -> list[tuple[str, str, int]]:
        """See `sinks.Sink`."""
        return list(self.ask(where, "SELECT stream, reason, count(*) FROM {} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2", ()))

    def ask(self, where: str, question: str, bindings: tuple[int, ...]) -> Iterator[Row]:
        """Ask about the dead letters for which the operator's own condition holds. It can change nothing.

        Raises: ValueError if it is not a condition.
        """
        with self.transaction("BEGIN") as db:
            db.execute("PRAGMA query_only=1")
            try:
                # on a line of its own, for it may end with a comment
                held = f"(SELECT * FROM dead_letters WHERE ({where}\n))"  # noqa: S608  # so it is meant
                yield from db.execute(question.format(held), bindings)
            except (apsw.SQLError, apsw.BindingsError, apsw.ReadOnlyError, ValueError) as error:
                raise ValueError(f"not a condition on dead letters: {error}") from None
            finally:
                db.execute("PRAGMA query_only=0")

    def ledger(self, stream: str, last: int, claims: Iterable[str] = ()) -> Ledger:
        """See `sinks.Sink`."""
        with self.transaction("BEGIN") as db:
            bodies = db.execute(
                "SELECT coalesce(sum(bodies), 0) FROM batches WHERE stream = ? AND first <= ?", (stream, last)
            ).get
            dead = db.execute(
                "SELECT count(*) FROM (SELECT DISTINCT batch, seq FROM dead_letters WHERE stream = ? AND seq <= ?)",
                (stream, last),
            ).get
            there = {c for c in claims if db.execute("SELECT 1 FROM batches WHERE claim = ?", (c,)).fetchone()}
        return Ledger(bodies, dead, there)


def patience() -> Callable[[int], bool]:
    """What waits for another writer. SQLite's own waiting would keep a signal waiting too."""
    start = 0.0

    def wait(times: int) -> bool:
        nonlocal start
        if not times:
            start = time.monotonic()
        time.sleep(0.005)
        return time.monotonic() - start < BUSY

    return wait


@contextlib.contextmanager
def savepoint(db: apsw.Connection) -> Iterator[None]:
    """All or nothing within a transaction. `with db` would hide the error if it has ended the whole transaction."""
    db.execute("SAVEPOINT entries")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK TO entries")
            db.execute("RELEASE entries")
        raise
    db.execute("RELEASE entries")


def plain(value: Any) -> Any:
    """A compound value as the database can hold it: an object or a list as JSON, all else as its text or number."""
    if not isinstance(value, (dict, list)):
        value = msgspec.to_builtins(value, builtin_types=(bytes,))
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list)) else value


@lru_cache(maxsize=4096)
def instant(microseconds: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC with milliseconds."""
    return f"{second(microseconds // 1_000_000)}.{microseconds // 1000 % 1000:03d}Z"


def microseconds(text: str) -> int:
    """What `instant` was made of."""
    return int(datetime.fromisoformat(text).timestamp() * 1000 + 0.5) * 1000


def now() -> str:
    """This moment, as `instant` writes it."""
    return instant(int(datetime.now(timezone.utc).timestamp() * 1e6))
