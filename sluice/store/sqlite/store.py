"""The SQLite store, the default: WAL and synchronous=FULL, so that a settled claim is on disk.

The driver is apsw: it binds a row in a third of the time that the standard library takes (docs/DECISIONS.md, Store).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from sluice.base.times import instant, microseconds, second
from sluice.elsewhere.destination import Destination
from sluice.settings import FOREVER, Keep
from sluice.spool.claim import Claim, Window
from sluice.store import bounds
from sluice.store.fill import gaps
from sluice.store.store import LAYOUT, RANGES_OF_CLAIMS, SPOOLS_OF_RANGES, Store, check_layout, limits, summed
from sluice.store.types import DeadLetter, Entry, Ledger, Line, Outcome, RowsRejected, Spool, SpoolCount, Unavailable
from sluice.streams.record import Metric, Reject
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types

BUSY = 5.0  # seconds to wait for another writer
PLAIN = {float: "REAL", int: "INTEGER", bool: "INTEGER", str: "TEXT"}
# Errors caused by a value; all others make the store unavailable.
VALUE_ERRORS = (
    *(apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError),
    *(TypeError, ValueError, OverflowError, AttributeError, LookupError, msgspec.MsgspecError),
)
# AUTOINCREMENT: no id is reused, so of two simultaneous replays neither takes a new letter for an old one
TABLES = """
CREATE TABLE IF NOT EXISTS batches (
  id INTEGER PRIMARY KEY, claim TEXT NOT NULL UNIQUE, stream TEXT NOT NULL, first INTEGER NOT NULL,
  bodies INTEGER NOT NULL, records INTEGER NOT NULL, persisted_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches_ranges (
  stream TEXT NOT NULL, spool TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS batches_ranges_by_first ON batches_ranges (stream, spool, first);
CREATE TABLE IF NOT EXISTS batches_folded (
  stream TEXT NOT NULL, spool TEXT NOT NULL, first_batch INTEGER NOT NULL, last_batch INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS batches_folded_by_spool ON batches_folded (stream, spool);
CREATE TABLE IF NOT EXISTS batches_spools (
  stream TEXT NOT NULL, spool TEXT NOT NULL, cell TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  purged INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS batches_spools_by_name ON batches_spools (stream, spool);
CREATE TABLE IF NOT EXISTS batches_cells (cell TEXT NOT NULL UNIQUE, seen TEXT NOT NULL, figures TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches_expired (
  stream TEXT NOT NULL, spool TEXT NOT NULL, deleted INTEGER NOT NULL, expired INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS batches_expired_by_spool ON batches_expired (stream, spool);
CREATE TABLE IF NOT EXISTS batches_objects (stream TEXT NOT NULL, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches_carried (name TEXT NOT NULL, rows BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS dead_letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT, received_at TEXT NOT NULL, stream TEXT NOT NULL, body BLOB NOT NULL,
  reason TEXT NOT NULL, whole INTEGER NOT NULL, batch INTEGER NOT NULL, seq INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS dead_letters_by_body ON dead_letters (stream, batch, seq);
"""
EXPIRED = """INSERT INTO batches_expired (stream, spool, deleted, expired) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET deleted = deleted + excluded.deleted, expired = expired + excluded.expired"""
Row = tuple[Any, ...]
BURY = "INSERT INTO dead_letters (received_at, stream, body, reason, whole, batch, seq) VALUES (?,?,?,?,?,?,?)"
FOLDED = "(SELECT coalesce(max(last_batch), 0) FROM batches_folded)"
HAS_LETTERS = "EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.stream = batches.stream AND d.batch = batches.id)"
SPOOL_OF = "substr(claim, 1, instr(claim, ':') - 1)"
# The counts of a stream's spools. limits: a JSON object, the highest number of a spool to count; rest: that of others
COUNTS = f"""
WITH stored AS (
  SELECT spool, sum(max(0, min(last, coalesce(l.value, :rest)) - first + 1)) AS bodies, max(last) AS highest
  FROM batches_ranges LEFT JOIN json_each(:limits) AS l ON l.key = spool WHERE stream = :stream GROUP BY 1),
dead AS (
  SELECT {SPOOL_OF} AS spool, count(*) AS letters
  FROM (SELECT DISTINCT batch, seq FROM dead_letters WHERE stream = :stream) AS d JOIN batches AS b ON b.id = batch
  LEFT JOIN json_each(:limits) AS l ON l.key = {SPOOL_OF} WHERE seq <= coalesce(l.value, :rest) GROUP BY 1),
known AS (SELECT spool, cell, first, last, purged FROM batches_spools WHERE stream = :stream)
SELECT coalesce(s.spool, k.spool, e.spool), coalesce(bodies, 0), coalesce(highest, 0), coalesce(letters, 0),
  cell, first, last, purged, coalesce(expired, 0), coalesce(deleted, 0)
FROM stored AS s FULL JOIN known AS k ON k.spool = s.spool LEFT JOIN dead AS d ON d.spool = s.spool
FULL JOIN (SELECT * FROM batches_expired WHERE stream = :stream) AS e ON e.spool = coalesce(s.spool, k.spool)
"""  # noqa: S608  # names of our own


class Table:
    """A stream's table: the columns are the arrival time, the fields of the record type, and batch and seq."""

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.columns = {"received_at": "TEXT NOT NULL", "time": "TEXT NOT NULL"}
        self.encoded: list[int] = []  # positions of values that may need `plain`
        for at, (name, kinds) in enumerate(field_types(stream.record).items(), 1):
            if not kinds <= PLAIN.keys():
                self.encoded.append(at)
            kind = kinds.pop() if len(kinds) == 1 else object
            self.columns[name] = PLAIN.get(kind, "TEXT" if typing.get_origin(kind) else "")  # dict[…] is JSON
        self.columns |= {"batch": "INTEGER NOT NULL", "seq": "INTEGER NOT NULL"}
        self.nanoseconds = stream.record is Metric
        # A row is bound as msgspec gives it: the record, whose own `time` is not used, then these four values
        bound = [*self.columns][2:-2] + ["received_at", "time", "batch", "seq"]
        self.slots = {name: f"?{at}" for at, name in enumerate(bound, 2)}
        self.insert = ""

    def create(self, db: apsw.Connection) -> None:
        """Create the table, or add the columns that it lacks, and prepare the INSERT statement."""
        columns = ", ".join(f'"{name}" {kind}'.rstrip() for name, kind in self.columns.items())
        with db:
            db.execute(f'CREATE TABLE IF NOT EXISTS "{self.name}" ({columns})')
            present = [row[1] for row in db.execute(f'PRAGMA table_info("{self.name}")')]
            for name, kind in self.columns.items():
                if name not in present:
                    db.execute(f'ALTER TABLE "{self.name}" ADD COLUMN "{name}" {kind.partition(" ")[0]}')
                    present.append(name)
        # apsw hashes the text for each row, so the column names are omitted unless the table has other columns too
        ours = [name for name in present if name in self.slots]
        names = "" if ours == present else "(" + ",".join(f'"{name}"' for name in ours) + ")"
        self.insert = f'INSERT INTO "{self.name}"{names} VALUES({",".join(self.slots[name] for name in ours)})'  # noqa: S608

    def rows(
        self, db: apsw.Connection, batch: int, entries: Iterable[Entry], whole: bool, count: list[int]
    ) -> Iterator[Row]:
        """The rows of the records among the entries, one at a time: a batch is never in memory as a whole.

        Buries each reject when it comes. count: set to the number of rows and of letters.
        whole: False if the entries come from a partial dead letter.
        """
        encoded, nanoseconds = self.encoded, self.nanoseconds
        last, arrived, number = None, "", 0
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
        """A row with its compound values as JSON."""
        values = list(row)
        for at in self.encoded:
            if values[at] is not None:
                values[at] = plain(values[at])
        return tuple(values)


class Sqlite(Store[apsw.Connection]):
    """See `Store`."""

    def __init__(
        self,
        path: str,
        streams: dict[str, Stream],
        make: bool = True,
        keep: Keep = FOREVER,
        elsewhere: Mapping[str, Destination] = {},
    ) -> None:
        """path: of the database file. make: create it, its directory and its tables if they are missing."""
        super().__init__({name: Table(stream) for name, stream in streams.items()}, keep, elsewhere)
        self.path = path
        self.make = make
        with self.transaction("BEGIN"):
            pass

    def open(self) -> apsw.Connection:
        """The connection, opened if it is closed."""
        if self.db is None:
            self.checked.clear()
            flags = apsw.SQLITE_OPEN_READWRITE
            if self.make:
                os.makedirs(os.path.dirname(os.path.abspath(self.path)), mode=0o700, exist_ok=True)
                flags |= apsw.SQLITE_OPEN_CREATE
            elif not os.path.exists(self.path):
                raise Unavailable(f"{self.path}: there is no database yet")
            db = apsw.Connection(self.path, flags)
            try:
                db.set_busy_handler(busy_handler())
                db.execute("PRAGMA synchronous=FULL")
                layout: Any = db.execute("PRAGMA user_version").get
                check_layout(self.path, layout, self.make)
                if self.make:
                    db.execute("PRAGMA journal_mode=WAL")
                    with db:
                        db.execute(TABLES)
                    if layout < LAYOUT:
                        upgrade(db)
                    for name in self.tables:
                        with contextlib.suppress(apsw.SQLError):  # a table that cannot be created stops its stream only
                            self.table(db, name)
            except BaseException:
                db.close()
                raise
            self.db = db
        return self.db

    @contextlib.contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[apsw.Connection]:
        """See `Store`. Unavailable: the database is locked, full, read-only or corrupt."""
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

    def create(self, db: apsw.Connection, table: Table) -> None:
        """See `Store`."""
        table.create(db)

    def add_batch(self, db: apsw.Connection, claim: Claim) -> int | None:
        """See `Store`. No other connection writes during this transaction. Ranges that meet become one."""
        of = claim.stream, claim.epoch
        below = "SELECT first, last FROM batches_ranges WHERE stream=? AND spool=? AND first<? ORDER BY 1 DESC LIMIT 1"
        start, last = db.execute(below, (*of, claim.end)).fetchone() or (0, -1)
        if last >= claim.first:
            return None
        db.execute(
            "INSERT OR IGNORE INTO batches (claim, stream, first, bodies, records, persisted_at) VALUES (?,?,?,?,0,?)",
            (claim.id, claim.stream, claim.first, claim.count, now()),
        )
        if not db.changes():
            return None
        batch = db.last_insert_rowid()
        above = "DELETE FROM batches_ranges WHERE stream = ? AND spool = ? AND first = ? RETURNING last"
        end = db.execute(above, (*of, claim.end)).get or claim.end - 1
        db.execute(
            "INSERT OR REPLACE INTO batches_ranges (stream, spool, first, last) VALUES (?,?,?,?)",
            (*of, start if last == claim.first - 1 else claim.first, end),
        )
        return batch

    def stored(self, db: apsw.Connection, claim: Claim) -> list[tuple[int, int]]:
        """See `Store`."""
        if db.execute("SELECT 1 FROM batches WHERE claim = ?", (claim.id,)).fetchone():
            return [(claim.first, claim.end - 1)]
        found: Any = db.execute(
            "SELECT first, last FROM batches_ranges WHERE stream = ? AND spool = ? AND first < ? AND last >= ?",
            (claim.stream, claim.epoch, claim.end, claim.first),
        )
        return list(found)

    def add_records(self, db: apsw.Connection, batch: int, records: int) -> None:
        """See `Store`."""
        db.execute("UPDATE batches SET records = records + ? WHERE id = ?", (records, batch))

    def insert(self, db: apsw.Connection, table: Table, batch: int, whole: bool, entries: Iterable[Entry]) -> Outcome:
        """See `Store`."""
        count = [0, 0]
        try:
            with savepoint(db):
                db.executemany(table.insert, table.rows(db, batch, entries, whole, count))
        except VALUE_ERRORS as error:
            if not db.in_transaction:  # a trigger's RAISE(ROLLBACK)
                raise
            raise RowsRejected(str(error)) from error
        return Outcome(count[0], count[1])

    def savepoint(self, db: apsw.Connection) -> contextlib.AbstractContextManager[None]:
        """See `Store`."""
        return savepoint(db)

    def bury(self, db: apsw.Connection, stream: str, batch: int, whole: bool, rejects: Iterable[Entry]) -> None:
        """See `Store`."""
        thing: Any
        for seq, received, _, thing in rejects:
            db.execute(BURY, (instant(received), stream, thing.part, thing.reason, thing.whole and whole, batch, seq))

    def note(self, db: apsw.Connection, stream: str, name: str, carried: bytes | None) -> None:
        """See `Store`."""
        db.execute("INSERT INTO batches_objects (stream, name) VALUES (?, ?)", (stream, name))
        if carried is not None:
            db.execute("INSERT INTO batches_carried (name, rows) VALUES (?, ?)", (name, carried))

    def notes(self, db: apsw.Connection) -> list[tuple[str, str]]:
        """See `Store`."""
        found: Any = db.execute("SELECT stream, name FROM batches_objects ORDER BY name")
        return list(found)

    def carried(self, db: apsw.Connection, name: str) -> bytes | None:
        """See `Store`."""
        found: Any = db.execute("SELECT rows FROM batches_carried WHERE name = ?", (name,)).get
        return found

    def delete_notes(self, db: apsw.Connection, names: list[str]) -> None:
        """See `Store`."""
        db.executemany("DELETE FROM batches_objects WHERE name = ?", [(name,) for name in names])
        db.executemany("DELETE FROM batches_carried WHERE name = ?", [(name,) for name in names])

    def last_letter(self, db: apsw.Connection) -> int:
        """See `Store`."""
        return db.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'dead_letters'").get

    def delete_letter(self, db: apsw.Connection, id: int) -> bool:
        """See `Store`."""
        db.execute("DELETE FROM dead_letters WHERE id = ?", (id,))
        return bool(db.changes())

    def buried(self, db: apsw.Connection, above: int, batches: set[int]) -> dict[str, int]:
        """See `Store`. No other connection writes during this transaction, so `batches` is not needed."""
        return dict(db.execute("SELECT reason, count(*) FROM dead_letters WHERE id > ? GROUP BY 1", (above,)))

    def select_letters(self, where: str, above: int, below: int, limit: int, newest: bool) -> Iterator[DeadLetter]:
        """See `Store`."""
        for row in self.ask(
            where,
            "SELECT id, stream, received_at, body, reason, whole, batch, seq FROM {} "  # noqa: S608  # DESC or nothing
            f"WHERE id > ? AND id < ? ORDER BY id {'DESC' if newest else ''} LIMIT ?",
            (above, below, limit),
        ):
            yield DeadLetter(row[0], row[1], microseconds(row[2]), row[3], row[4], bool(row[5]), row[6], row[7])

    def ask(self, where: str, question: str, bindings: tuple[int, ...]) -> Iterator[Row]:
        """See `Store`."""
        with self.transaction("BEGIN") as db:
            db.execute("PRAGMA query_only=1")
            try:
                # the newline ends a comment at the end of the condition
                table = f"(SELECT * FROM dead_letters WHERE ({where}\n))"  # noqa: S608  # the operator's own SQL
                yield from db.execute(question.format(table), bindings)
            except (apsw.SQLError, apsw.BindingsError, apsw.ReadOnlyError, ValueError) as error:
                raise ValueError(f"not a condition on dead letters: {error}") from None
            finally:
                db.execute("PRAGMA query_only=0")

    def ledger(
        self,
        stream: str,
        history: Sequence[Window] = (),
        cell: str | None = None,
        claims: dict[str, int] | None = None,
    ) -> Ledger:
        """See `Store`."""
        own, rest = limits(history)
        with self.transaction("BEGIN") as db:
            counts = db.execute(COUNTS, {"stream": stream, "limits": json.dumps(own), "rest": rest})
            found = [SpoolCount(*typing.cast("Any", row)) for row in counts]
            persisted = {id: self.bodies(db, Claim.of(stream, id, count)) for id, count in (claims or {}).items()}
        return summed(found, history, cell, persisted)

    def stored_in(self, stream: str, partitions: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """See `Store`."""
        bodies = ahead = 0
        with self.transaction("BEGIN") as db:
            found: Any = db.execute("SELECT spool, first, last FROM batches_ranges WHERE stream = ?", (stream,))
            for spool, first, last in found:
                settled, end = partitions.get(spool.rpartition(".")[0], (0, 0))
                bodies += max(0, min(last, end) - first + 1)
                ahead += max(0, min(last, end) - max(first, settled + 1) + 1)
        return bodies, ahead

    def leave_line(self, cell: str, figures: dict[str, Any], spools: list[Spool]) -> None:
        """See `Store`."""
        with self.transaction() as db:
            db.execute("UPDATE batches_spools SET cell = ? WHERE cell = ''", (cell,))
            db.executemany(
                "INSERT INTO batches_spools (stream, spool, cell, first, last, purged) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (stream, spool) DO UPDATE "
                "SET cell = excluded.cell, last = max(last, excluded.last), purged = excluded.purged",
                spools,
            )
            db.execute(
                "INSERT OR REPLACE INTO batches_cells (cell, seen, figures) VALUES (?, ?, ?)",
                (cell, now(), json.dumps(figures)),
            )

    def lines(self) -> list[Line]:
        """See `Store`."""
        with self.transaction("BEGIN") as db:
            found: Any = db.execute("SELECT cell, seen, figures FROM batches_cells ORDER BY 1").fetchall()
        at = time.time()
        return [
            Line(cell, max(0.0, at - microseconds(seen) / 1e6), json.loads(figures)) for cell, seen, figures in found
        ]

    def forget(self, cell: str) -> bool:
        """See `Store`."""
        with self.transaction() as db:
            db.execute("DELETE FROM batches_cells WHERE cell = ?", (cell,))
            return bool(db.changes())

    def fold(self) -> bool:
        """See `Store`."""
        with self.transaction("BEGIN") as db:
            found = db.execute(
                f"SELECT id, {FOLDED} FROM batches WHERE id > {FOLDED} AND id <= (SELECT max(id) FROM batches) - ? "  # noqa: S608
                "ORDER BY id LIMIT 1 OFFSET ?",
                (bounds.KEEP_BATCHES, bounds.FOLD_BATCHES - 1),
            ).fetchone()
        if not found:
            return False
        last, folded = typing.cast("tuple[int, int]", found)
        with self.transaction() as db:
            db.execute(
                "INSERT INTO batches_folded (stream, spool, first_batch, last_batch) "  # noqa: S608
                f"SELECT stream, {SPOOL_OF} AS spool, min(id), max(id) FROM batches WHERE id > ? AND id <= ? "
                "GROUP BY 1, 2 ON CONFLICT DO UPDATE SET last_batch = max(last_batch, excluded.last_batch)",
                (folded, last),
            )
            db.execute(f"DELETE FROM batches WHERE id > ? AND id <= ? AND NOT {HAS_LETTERS}", (folded, last))  # noqa: S608
        return True

    def fold_again(self, db: apsw.Connection, batches: set[int]) -> None:
        """See `Store`."""
        for batch in batches:
            db.execute(f"DELETE FROM batches WHERE id = ? AND id <= {FOLDED} AND NOT {HAS_LETTERS}", (batch,))  # noqa: S608

    def prune_table(self, stream: str, before: int) -> bool:
        """See `Store`. Rows are almost in the order of their arrival, so only the first ones are looked at.

        The last row stays: its rowid is the position of the follower, and must not be given to another row.
        """
        first = f'SELECT rowid FROM "{stream}" ORDER BY rowid LIMIT {bounds.EXPIRE_ROWS}'  # noqa: S608
        last = f'SELECT max(rowid) FROM "{stream}"'  # noqa: S608
        old = f'"{stream}" WHERE rowid IN ({first}) AND received_at < ? AND rowid < ({last})'
        with self.transaction("BEGIN") as db:
            found = f"SELECT 1 FROM {old} LIMIT 1"  # noqa: S608
            if not self.exists(db, stream) or not db.execute(found, (instant(before),)).fetchone():
                return False
        with self.transaction() as db:
            db.execute(f"DELETE FROM {old}", (instant(before),))  # noqa: S608
            deleted = db.changes()
            self.add_deleted(db, stream, deleted)
        return deleted == bounds.EXPIRE_ROWS

    def add_deleted(self, db: apsw.Connection, stream: str, rows: int) -> None:
        """See `Store`."""
        db.execute(EXPIRED, (stream, "", rows, 0))

    def prune_letters(self, before: int) -> bool:
        """See `Store`."""
        old = "id IN (SELECT id FROM dead_letters ORDER BY id LIMIT ?) AND received_at < ?"
        bindings = bounds.EXPIRE_LETTERS, instant(before)
        with self.transaction("BEGIN") as db:
            if not db.execute(f"SELECT EXISTS (SELECT 1 FROM dead_letters WHERE {old})", bindings).get:  # noqa: S608
                return False
        with self.transaction() as db:
            done = db.execute(f"DELETE FROM dead_letters WHERE {old} RETURNING stream, batch, seq", bindings)  # noqa: S608
            gone: list[Any] = done.fetchall()
            for stream, batch, seq in set(gone):
                left = "SELECT 1 FROM dead_letters WHERE (stream, batch, seq) = (?, ?, ?)"
                if not db.execute(left, (stream, batch, seq)).fetchone():
                    spool = db.execute(f"SELECT {SPOOL_OF} FROM batches WHERE id = ?", (batch,)).get  # noqa: S608
                    db.execute(EXPIRED, (stream, spool or "", 0, 1))
            self.fold_again(db, {batch for _, batch, _ in gone})
        return len(gone) == bounds.EXPIRE_LETTERS

    def overdue_in_table(self, table: str, before: int) -> int:
        """See `Store`."""
        with self.transaction("BEGIN") as db:
            if not self.exists(db, table):
                return 0
            return db.execute(f'SELECT count(*) FROM "{table}" WHERE received_at < ?', (instant(before),)).get  # noqa: S608

    @staticmethod
    def exists(db: apsw.Connection, table: str) -> bool:
        """Whether there is a table."""
        return bool(db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone())

    def bodies(self, db: apsw.Connection, claim: Claim) -> int:
        """How many bodies of a claim are stored."""
        return claim.count - sum(part.count for part in gaps(claim, self.stored(db, claim)))


def upgrade(db: apsw.Connection) -> None:
    """Bring tables of an earlier layout up to date. Another worker may do so at the same time."""
    db.execute("BEGIN IMMEDIATE")
    with db:
        if db.execute("PRAGMA user_version").get < LAYOUT:
            db.execute(RANGES_OF_CLAIMS.format(SPOOL_OF))
            db.execute(SPOOLS_OF_RANGES)
            db.execute(f"PRAGMA user_version={LAYOUT}")
    db.execute("COMMIT")


def busy_handler() -> Callable[[int], bool]:
    """A busy handler that waits for another writer. SQLite's own delays signals until it returns."""
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
    """A savepoint. apsw's own `with db` hides an error that has already rolled back the whole transaction."""
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
    """A value as a type of SQLite: an object or a list becomes JSON, any other value a text or a number."""
    if not isinstance(value, (dict, list)):
        value = msgspec.to_builtins(value, builtin_types=(bytes,))
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list)) else value


def now() -> str:
    """The current time, as `instant` writes it."""
    return instant(int(datetime.now(timezone.utc).timestamp() * 1e6))
