"""SQLite, the default: WAL and synchronous=FULL, so that a settled claim is on disk.

The driver is apsw: it binds a row in a third of the time that the standard library takes (docs/DECISIONS.md, Store).
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import apsw
import msgspec

from sluice.base import disk
from sluice.base.override import override
from sluice.base.times import iso_instant
from sluice.spool.claim import Claim
from sluice.store import transaction_limits
from sluice.store.sqlite import file
from sluice.store.sqlite.table import Table
from sluice.store.store import Store, check_layout
from sluice.store.tables import IDENTIFY, INDEXES, LAYOUT, PRIMARY_KEYS, TABLES
from sluice.store.types import Body, Full, Origin, Outcome, Row, RowsRejected, Unavailable

SWEEP_PART = 10  # all rows are searched for old ones ten times in the age to which they are kept
BUSY_SECONDS = 5.0  # to wait for another writer
# Errors caused by a value; all others make the store unavailable.
VALUE_ERRORS = (
    *(apsw.ConstraintError, apsw.TooBigError, apsw.MismatchError),
    *(TypeError, ValueError, OverflowError, AttributeError, LookupError, msgspec.MsgspecError),
)
KINDS = {
    "serial": "INTEGER PRIMARY KEY",
    # no id is given again, so of two simultaneous replays neither takes a new letter for an old one
    "eternal": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "name": "TEXT NOT NULL UNIQUE",
    **{"text": "TEXT NOT NULL", "integer": "INTEGER NOT NULL", "boolean": "INTEGER NOT NULL"},
    **{"bytes": "BLOB NOT NULL", "json": "TEXT NOT NULL", "time": "TEXT NOT NULL"},
}
BY_FIRST = "CREATE UNIQUE INDEX IF NOT EXISTS batches_ranges_by_first ON batches_ranges (stream, epoch, first)"


class Sqlite(Store[apsw.Connection]):
    """A database file: sqlite:///PATH."""

    TIME_UNIT = 1_000_000
    TABLE = Table
    EPOCH_OF = "substr(claim, 1, instr(claim, ':') - 1)"
    NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
    AGE = "max(0.0, (julianday('now') - julianday({})) * 86400)"
    SKIP_LOCKED = WITH_ID = ""
    MICROS = "CAST(round(unixepoch({}, 'subsec') * 1000) AS INTEGER) * 1000"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.path = self.url.removeprefix("sqlite:///")
        self.file: file.Identity = ()
        self.schema = -1  # PRAGMA schema_version when the tables were checked
        self.room = 0  # bytes that the present transaction may write
        self.sweep_at: dict[str, float] = {}  # stream -> when all of its rows are searched again, monotonic
        with self.transaction(read=True):
            pass

    def open(self) -> apsw.Connection:
        if self.db is None:
            self.checked.clear()
            if self.make:
                if self.file and file.identity(self.path)[0] != self.file[0]:
                    raise self.replaced_error()
                file.check_place(os.path.dirname(os.path.abspath(self.path)))
            if self.make and not self.used:
                file.make_file(self.path)
            else:
                file.require_file(self.path)
            db = apsw.Connection(self.path, apsw.SQLITE_OPEN_READWRITE)
            try:
                db.set_busy_handler(busy_handler())
                db.execute("PRAGMA synchronous=FULL")
                if self.make:
                    file.start_log(db, self.path)
                    db.execute("BEGIN IMMEDIATE")  # another worker may make the tables at the same time
                    self.make_tables(db)
                    self.note_horizons(db, self.ages)
                    db.execute("COMMIT")
                    for name in self.tables:  # one that cannot be created stops its stream only
                        with contextlib.suppress(apsw.SQLError, Unavailable):
                            self.checked_table(db, name)
                else:
                    check_layout(self.path, layout_of(db))
                    if not self.table_exists(db, "batches"):
                        raise Unavailable(f"{self.path}: there are no tables yet")
            except BaseException:
                db.close()
                raise
            self.db, self.file = db, file.identity(self.path)
            self.cut_log()
        return self.db

    def cut_log(self) -> None:
        if self.make and self.db:
            file.cut_log(self.db, self.path)
            self.db.set_busy_handler(busy_handler())

    def make_tables(self, db: apsw.Connection) -> None:
        check_layout(self.path, layout_of(db))
        for name, columns in TABLES.items():
            listed = ", ".join(f"{column} {KINDS[kind]}" for column, kind in columns.items())
            key = f", PRIMARY KEY ({PRIMARY_KEYS[name]})) WITHOUT ROWID" if name in PRIMARY_KEYS else ")"
            db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({listed}{key}")
        for statement in (*INDEXES.values(), BY_FIRST):
            db.execute(statement)
        db.execute(IDENTIFY, (uuid.uuid4().hex,))
        db.execute(f"PRAGMA user_version={LAYOUT}")

    @override
    @contextlib.contextmanager
    def transaction(self, read: bool = False) -> Iterator[apsw.Connection]:
        # Unavailable: the database is locked, full, read-only or corrupt
        try:
            db = self.open()
            if not read:
                self.leave_reserve(db)
            db.execute("BEGIN" if read else "BEGIN IMMEDIATE")
            try:
                if not read:
                    self.compare_schema(db)
                yield db
                db.execute("COMMIT")
            except BaseException:
                self.checked.clear()  # what was created is undone
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            if file.identity(self.path) != self.file:
                if self.make:  # the former file stays open, as it may be put back; its log must not be another one's
                    file.empty_log(db)
                else:
                    self.close()
                raise self.replaced_error()
        except (apsw.Error, OSError) as error:
            with contextlib.suppress(apsw.Error):
                super().close()  # which file it was is not forgotten
            if isinstance(error, apsw.FullError):
                raise Full(f"{self.path}: {error}", self.room) from error
            raise Unavailable(f"{self.path}: {error}") from error

    def compare_schema(self, db: apsw.Connection) -> None:
        """Let all tables be checked again if another program has changed one. None can until the transaction ends."""
        schema: Any = db.execute("PRAGMA schema_version").get
        if schema != self.schema:
            self.schema = schema
            self.checked.clear()

    def replaced_error(self) -> Unavailable:
        return Unavailable(
            f"{self.path} was removed or replaced while it was in use, so nothing is stored: put it back, or "
            "restart the workers, which then use what is there"
        )

    @override
    def close(self) -> None:
        super().close()
        self.file = ()

    def leave_reserve(self, db: apsw.Connection) -> None:
        """Let the next transaction fail before half of the disk's reserve is used: Redis is mostly on the same disk.

        A page is written to the WAL, perhaps twice, and to the file.
        """
        self.room = max(0, disk.spare_bytes(os.path.dirname(os.path.abspath(self.path)), 2)) // 3
        pages, size = (self.run_sql(db, f"PRAGMA {name}")[0][0] for name in ("page_count", "page_size"))
        db.execute(f"PRAGMA max_page_count={max(1, pages + self.room // size)}")

    @override
    def run_sql(self, db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return db.execute(sql, tuple(values)).fetchall()

    @override
    def stored_time(self, microseconds: int) -> str:
        return iso_instant(microseconds)

    @override
    def table_exists(self, db: apsw.Connection, table: str) -> bool:
        return bool(self.run_sql(db, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)))

    @override
    def create_table(self, db: apsw.Connection, table: Table) -> None:
        table.create_table(db)

    @override
    def add_batch(self, db: apsw.Connection, claim: Claim) -> int | None:
        # No other connection writes during this transaction. Ranges that meet become one
        of = claim.stream, claim.epoch
        below = "SELECT first, last FROM batches_ranges WHERE stream=? AND epoch=? AND first<? ORDER BY 1 DESC LIMIT 1"
        start, last = db.execute(below, (*of, claim.end)).fetchone() or (0, -1)
        if last >= claim.first:
            return None
        db.execute(
            "INSERT OR IGNORE INTO batches (claim, stream, first, bodies, records, persisted_at) VALUES (?,?,?,?,0,?)",
            (claim.id, claim.stream, claim.first, claim.count, iso_instant(int(time.time() * 1e6))),
        )
        if not db.changes():
            return None
        batch = db.last_insert_rowid()
        above = "DELETE FROM batches_ranges WHERE stream = ? AND epoch = ? AND first = ? RETURNING last"
        end = db.execute(above, (*of, claim.end)).get or claim.end - 1
        db.execute(
            "INSERT OR REPLACE INTO batches_ranges (stream, epoch, first, last) VALUES (?,?,?,?)",
            (*of, start if last == claim.first - 1 else claim.first, end),
        )
        return batch

    @override
    def put_keys(self, db: apsw.Connection, stream: str, batch: int, at: int, pieces: Iterator[Sequence[bytes]]) -> int:
        keys = tuple(chain.from_iterable(pieces))
        if not keys:  # all of these bodies have come before, and carray takes no empty array
            return 0
        put = "INSERT OR IGNORE INTO batches_keys (key, stream, at, batch) SELECT value, ?, ?, ? FROM carray(?)"
        db.execute(put, (stream, at, batch, apsw.carray(keys)))  # a row for each takes three times as long
        return db.changes()

    @override
    def stored_ranges(self, db: apsw.Connection, claim: Claim) -> list[tuple[int, int]]:
        overlap = "stream = ? AND epoch = ? AND first < ? AND last >= ? ORDER BY 1"
        values = (claim.stream, claim.epoch, claim.end, claim.first)
        ranges: Any = self.run_sql(db, f"SELECT first, last FROM batches_ranges WHERE {overlap}", values)
        return list(ranges)

    @override
    def insert_bodies(self, db: apsw.Connection, table: Table, origin: Origin, bodies: Sequence[Body]) -> Outcome:
        try:
            with savepoint(db):
                db.executemany(table.insert, table.bound_rows(origin, bodies))
                rejected = [body for body in bodies if body.rejects]
                letters = self.bury_rejects(db, table.name, origin, rejected) if rejected else 0
        except VALUE_ERRORS as error:
            if not db.in_transaction:  # a trigger's RAISE(ROLLBACK)
                raise
            raise RowsRejected(str(error)) from error
        return Outcome(sum(len(body.records) for body in bodies), letters)

    @override
    def fold_batches(self) -> bool:
        self.cut_log()
        return super().fold_batches()

    @override
    def expire_rows(self, stream: str, before: int) -> bool:
        # Rows are almost in the order of their arrival, so mostly the first ones are looked at. But rows that came
        # while the clock was ahead may stand before older ones, so all are looked at now and then. The last row stays:
        # its rowid is the position of the follower, and must not be given to another row
        start, at = self.swept.pop(stream, 0), iso_instant(before)
        some = f'SELECT rowid AS id, received_at FROM "{stream}" WHERE rowid > ? ORDER BY 1 '
        some += f"LIMIT {transaction_limits.EXPIRE_ROWS}"
        looked = f"SELECT max(id), count(*), coalesce(sum(received_at < ?), 0) FROM ({some})"
        with self.transaction(read=True) as db:  # a writer would wait for the lock only to find nothing
            if not self.table_exists(db, stream):
                return False
            ((end, rows, old),) = self.run_sql(db, looked, (at, start))
        if old:
            last = f'SELECT max(rowid) FROM "{stream}"'
            with self.transaction() as db:
                db.execute(
                    f'DELETE FROM "{stream}" WHERE rowid > ? AND rowid <= ? AND rowid < ({last}) AND received_at < ?',
                    (start, end, at),
                )
                self.count_deleted(db, stream, db.changes())
        elif not start and time.monotonic() < self.sweep_at.get(stream, 0.0):
            return False
        if rows < transaction_limits.EXPIRE_ROWS:
            self.sweep_at[stream] = time.monotonic() + (self.keep.for_stream(stream) or 0) / SWEEP_PART
            return False
        self.swept[stream] = end
        return True


@contextlib.contextmanager
def savepoint(db: apsw.Connection) -> Iterator[None]:
    """A part of a transaction that is undone by an exception. apsw's own `with db` hides an error that has already
    rolled back the whole transaction.
    """
    db.execute("SAVEPOINT entries")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK TO entries")
            db.execute("RELEASE entries")
        raise
    db.execute("RELEASE entries")


def layout_of(db: apsw.Connection) -> int:
    """The layout of a database; that of a new one if it has no tables yet."""
    made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'batches'").fetchone()
    layout: Any = db.execute("PRAGMA user_version").get
    return int(layout) if made or layout else LAYOUT


def busy_handler() -> Callable[[int], bool]:
    """A busy handler that waits for another writer. SQLite's own delays signals until it returns."""
    start = 0.0

    def wait(times: int) -> bool:
        nonlocal start
        if not times:
            start = time.monotonic()
        time.sleep(0.005)
        return time.monotonic() - start < BUSY_SECONDS

    return wait
