"""SQLite, the embedded default: WAL and synchronous=FULL, so that what is settled is on disk.

Through apsw, which binds a row in a third of the time of the standard library's module: DECISIONS.md has the figures.
"""

from __future__ import annotations

import contextlib
import os
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from functools import lru_cache
from itertools import groupby
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple, fields

from records import Record, Reject, Stream
from sinks import Away, Entry, Letter, Outcome, second
from spool import Claim

BUSY = 5.0  # seconds to wait for another writer
PLAIN = {float: "REAL", int: "INTEGER", bool: "INTEGER", str: "TEXT"}
# What the database or its driver says of a value. Anything else it says is about itself, and passes.
POISON = (apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError, TypeError, OverflowError, UnicodeError)
TABLES = """
CREATE TABLE IF NOT EXISTS batches (
  id INTEGER PRIMARY KEY, claim TEXT NOT NULL UNIQUE, stream TEXT NOT NULL, first INTEGER NOT NULL,
  bodies INTEGER NOT NULL, records INTEGER NOT NULL, persisted_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS dead_letters (
  id INTEGER PRIMARY KEY, received_at TEXT NOT NULL, stream TEXT NOT NULL, body BLOB NOT NULL, reason TEXT NOT NULL,
  whole INTEGER NOT NULL, batch INTEGER NOT NULL REFERENCES batches, seq INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS dead_letters_by_body ON dead_letters (stream, batch, seq);
"""
Row = tuple[Any, ...]
BURY = "INSERT INTO dead_letters (received_at, stream, body, reason, whole, batch, seq) VALUES (?,?,?,?,?,?,?)"


class Table:
    """A stream's table: its columns are the fields of the stream's records, between arrival and origin."""

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.columns = {"received_at": "TEXT NOT NULL", "time": "TEXT NOT NULL"}
        hints = typing.get_type_hints(stream.record)
        self.encoded: list[int] = []  # positions of values that go in as JSON
        for at, field in enumerate(fields(stream.record)[1:], 2):
            kinds = set(typing.get_args(hints[field.name])) or {hints[field.name]}
            kinds = {k for k in kinds if k is not types.NoneType}
            if not kinds <= PLAIN.keys():
                self.encoded.append(at)
            self.columns[field.name] = PLAIN.get(kinds.pop(), "TEXT") if len(kinds) == 1 else ""
        self.columns |= {"batch": "INTEGER NOT NULL REFERENCES batches", "seq": "INTEGER NOT NULL"}
        self.nanoseconds = stream.name == "metrics"
        self.insert = f'INSERT INTO "{self.name}" VALUES ({",".join("?" * len(self.columns))})'  # noqa: S608

    def create(self, db: apsw.Connection) -> None:
        """Make the table, or add the columns that the record type has gained; then insert by name."""
        columns = ", ".join(f'"{name}" {kind}'.rstrip() for name, kind in self.columns.items())
        db.execute(f'CREATE TABLE IF NOT EXISTS "{self.name}" ({columns})')
        present = {row[1] for row in db.execute(f'PRAGMA table_info("{self.name}")')}
        for name, kind in self.columns.items():
            if name not in present:
                db.execute(f'ALTER TABLE "{self.name}" ADD COLUMN "{name}" {kind.partition(" ")[0]}')
        names = ", ".join(f'"{name}"' for name in self.columns)
        self.insert = f'INSERT INTO "{self.name}" ({names}) VALUES ({",".join("?" * len(self.columns))})'  # noqa: S608

    def rows(self, batch: int, entries: Iterable[Entry], letters: list[Letter], count: list[int]) -> Iterator[Row]:
        """The rows of the records among the entries; rejects go to `letters`, and the number of rows to `count`.

        Records and rows pass one by one, so that a batch never lies in memory whole.
        """
        encoded, nanoseconds = self.encoded, self.nanoseconds
        last, arrived, number = -1, "", 0
        for seq, received, _, thing in entries:
            if received != last:
                last, arrived = received, instant(received)
            if thing.__class__ is Reject:
                letters.append(Letter(0, self.name, received, thing.part, thing.reason, thing.whole, batch, seq))
                continue
            number += 1
            time = thing.time
            if time is None:
                at = arrived if not nanoseconds else arrived[:-1] + "000000Z"
            elif nanoseconds:
                at = f"{second(time // 1_000_000_000)}.{time % 1_000_000_000:09d}Z"
            elif time % 1_000_000_000:
                at = f"{second(time // 1_000_000_000)}.{time // 1_000_000 % 1000:03d}Z"
            else:
                at = instant(time // 1000)
            row = (arrived, at, *astuple(thing)[1:], batch, seq)
            yield self.encode(row) if encoded else row
        count.append(number)

    def encode(self, row: Row) -> Row:
        """A row with its compound values as JSON."""
        values = list(row)
        for at in self.encoded:
            if values[at] is not None:
                values[at] = msgspec.json.encode(values[at]).decode()
        return tuple(values)


class Sqlite:
    """See `sinks.Sink`. One connection; not for several threads."""

    def __init__(self, path: str, streams: dict[str, Stream]) -> None:
        """path: of the database file, made with its folder if missing."""
        self.path = path
        self.tables = {name: Table(stream) for name, stream in streams.items()}
        self.db: apsw.Connection | None = None
        with self.transaction():
            pass

    def open(self) -> apsw.Connection:
        """The connection, opened again if it was closed; the tables are there afterwards."""
        if self.db is None:
            os.makedirs(os.path.dirname(os.path.abspath(self.path)), mode=0o700, exist_ok=True)
            db = apsw.Connection(self.path)
            try:
                db.set_busy_timeout(int(BUSY * 1000))
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
                with db:
                    db.execute(TABLES)
                    for table in self.tables.values():
                        table.create(db)
            except BaseException:
                db.close()
                raise
            self.db = db
        return self.db

    def close(self) -> None:
        """Close the file."""
        if self.db is not None:
            self.db.close()
            self.db = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """All or nothing. Raises: Away for what the database says of itself: locked, full, read-only, broken."""
        try:
            db = self.open()
            db.execute("BEGIN IMMEDIATE")
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
            raise Away(f"{self.path}: {error}") from error

    def persist(self, claim: Claim, entries: Callable[[], Iterable[Entry]]) -> Outcome:
        """See `sinks.Sink`."""
        with self.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO batches (claim, stream, first, bodies, records, persisted_at) VALUES (?,?,?,?,0,?)",
                (claim.id, claim.stream, claim.first, claim.count, now()),
            )
            if not db.changes():
                return Outcome(0, 0, again=True)
            batch = db.last_insert_rowid()
            records, letters = self.fill(db, self.tables[claim.stream], batch, entries)
            db.execute("UPDATE batches SET records = ? WHERE id = ?", (records, batch))
            self.bury(db, letters)
        return Outcome(records, len(letters))

    def fill(
        self, db: apsw.Connection, table: Table, batch: int, entries: Callable[[], Iterable[Entry]]
    ) -> tuple[int, list[Letter]]:
        """Insert the records among the entries; returns how many, and the letters to bury."""
        letters: list[Letter] = []
        count: list[int] = []
        with contextlib.suppress(*POISON), db:
            db.executemany(table.insert, table.rows(batch, entries(), letters, count))
            return count[0], letters
        # The database refuses a record. It is found by halving, and buried; the rest is stored.
        listed = list(entries())
        return self.halve(db, table, batch, listed, Counter(seq for seq, _, _, _ in listed))

    def halve(
        self, db: apsw.Connection, table: Table, batch: int, entries: list[Entry], holds: Counter[int]
    ) -> tuple[int, list[Letter]]:
        """`fill` for a batch with poison in it. holds: sequence number -> records in that body."""
        letters: list[Letter] = []
        count: list[int] = []
        try:
            with db:
                db.executemany(table.insert, table.rows(batch, entries, letters, count))
                return count[0], letters
        except POISON as error:
            if len(entries) == 1:
                seq, received, body, record = entries[0]
                whole = holds[seq] == 1
                part = body if whole else msgspec.json.encode(record)
                reason = f"refused by the database: {error}"[:200]
                return 0, [Letter(0, table.name, received, part, reason, whole, batch, seq)]
        middle = len(entries) // 2
        records, letters = self.halve(db, table, batch, entries[:middle], holds)
        more, others = self.halve(db, table, batch, entries[middle:], holds)
        return records + more, letters + others

    def bury(self, db: apsw.Connection, letters: list[Letter]) -> None:
        """Put letters into dead_letters."""
        db.executemany(
            BURY, [(instant(x.received), x.stream, x.body, x.reason, x.whole, x.batch, x.seq) for x in letters]
        )

    def replay(
        self, letters: list[Letter], decode: Callable[[Letter], Iterable[Record | Reject]], dry: bool = False
    ) -> Outcome:
        """See `sinks.Sink`."""
        records = dead = 0
        with contextlib.suppress(DryRun), self.transaction() as db:
            for (stream, batch), group in groupby(letters, lambda letter: (letter.stream, letter.batch)):
                found = [
                    letter
                    for letter in group
                    # somebody else may have replayed it since it was read
                    if db.execute("DELETE FROM dead_letters WHERE id = ?", (letter.id,)) and db.changes()
                ]

                def entries(found: list[Letter] = found) -> Iterator[Entry]:
                    for letter in found:
                        for thing in decode(letter):
                            yield letter.seq, letter.received, letter.body, thing

                stored, refused = self.fill(db, self.tables[stream], batch, entries)
                db.execute("UPDATE batches SET records = records + ? WHERE id = ?", (stored, batch))
                self.bury(db, refused)
                records, dead = records + stored, dead + len(refused)
            if dry:
                raise DryRun
        return Outcome(records, dead)

    def letters(self, where: str = "1", after: int = 0, most: int = 1000) -> list[Letter]:
        """See `sinks.Sink`. Raises: ValueError if the condition is not SQL."""
        with self.transaction() as db:
            try:
                found = db.execute(
                    "SELECT id, stream, received_at, body, reason, whole, batch, seq FROM dead_letters "
                    f"WHERE id > ? AND ({where}) ORDER BY id LIMIT ?",  # noqa: S608 - the operator's own condition
                    (after, most),
                ).fetchall()
            except (apsw.SQLError, apsw.BindingsError, ValueError) as error:
                raise ValueError(f"this is not a condition on dead_letters: {where!r}: {error}") from None
        return [Letter(x[0], x[1], microseconds(x[2]), x[3], x[4], bool(x[5]), x[6], x[7]) for x in found]

    def reasons(self) -> list[tuple[str, str, int]]:
        """See `sinks.Sink`."""
        with self.transaction() as db:
            return db.execute(
                "SELECT stream, reason, count(*) FROM dead_letters GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
            ).fetchall()

    def ledger(self, stream: str, last: int) -> tuple[int, int]:
        """See `sinks.Sink`."""
        with self.transaction() as db:
            bodies = db.execute(
                "SELECT coalesce(sum(bodies), 0) FROM batches WHERE stream = ? AND first <= ?", (stream, last)
            ).get
            dead = db.execute(
                "SELECT count(*) FROM (SELECT DISTINCT batch, seq FROM dead_letters WHERE stream = ? AND seq <= ?)",
                (stream, last),
            ).get
        return bodies, dead

    def persisted(self, claims: Iterable[str]) -> set[str]:
        """See `sinks.Sink`."""
        with self.transaction() as db:
            return {c for c in claims if db.execute("SELECT 1 FROM batches WHERE claim = ?", (c,)).fetchone()}


class DryRun(Exception):
    """Ends a transaction that was only to be tried."""


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
