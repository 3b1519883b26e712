"""The PostgreSQL store: binary COPY, from many workers at once; a settled claim is as durable as a commit there.

With binary COPY neither side converts numbers and times to text: a row costs this process 0.8 µs, as text 2.0.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from sluice.base.override import override
from sluice.settings import Keep
from sluice.spool.claim import Claim
from sluice.store import bounds
from sluice.store.bookkeeping import FOLDED, HAS_LETTERS
from sluice.store.postgres import partitions
from sluice.store.postgres.table import BURIED, BURY, Table, letter
from sluice.store.postgres.tables import LOCK, SPAN, ensure, execute, layout_of, make_tables, one, span
from sluice.store.store import Elsewhere, Store, check_layout
from sluice.store.types import Entry, Outcome, Row, RowsRejected, Unavailable
from sluice.streams.record import Reject
from sluice.streams.registry import Stream

Connection = psycopg.Connection[Any]
CHORES = LOCK + 1  # held while batches are folded, or rows are deleted by age
TRY = "SELECT pg_try_advisory_xact_lock(%s)"
WAIT = "SELECT pg_advisory_xact_lock(%s) IS NOT NULL"
SWEEP_PAGES = 1_000  # pages of a table that are searched for old rows in one transaction
BRIEFLY = "SET LOCAL lock_timeout = '1s'"  # others that use the table wait behind one that waits for a lock on it
SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
EPOCH_OF = "split_part(claim, ':', 1)"
START = datetime(1970, 1, 1, tzinfo=timezone.utc)
# A transaction that may have a lower id than a batch that was stored at this time, and has not ended. It has locked
# `batches` before it took its id. Other roles' times are not shown, so they count as early.
EARLIER = """SELECT 1 FROM pg_locks LEFT JOIN pg_stat_activity AS a USING (pid)
WHERE locktype = 'relation' AND relation = 'batches'::regclass AND mode = 'RowExclusiveLock'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND pid IS DISTINCT FROM pg_backend_pid()
  AND coalesce(a.xact_start, '-infinity') <= %s::timestamptz + interval '1 s'"""

# Set for each transaction, so that it also works behind a connection pooler. lock_timeout limits the wait for another
# worker with the same claim. A settled claim must be on disk. A deferred constraint must fail at its row, not at the
# commit.
BEGIN = """SET LOCAL lock_timeout = '5s'; SET CONSTRAINTS ALL IMMEDIATE;
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"""
# Detects within half a minute that the server vanished without closing the connection.
CONNECTION: dict[str, Any] = {
    **{"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3},
    **{"tcp_user_timeout": 25_000, "fallback_application_name": "sluice", "client_encoding": "UTF8"},
}

# SQLSTATE classes of errors of the server, its roles or its tables. A value causes all other codes, also those that a
# trigger raises. 22P03: a column does not have the type that was sent.
SERVER_ERRORS = re.compile("08|0A|25|26|28|3D|3F|40|42|53|55|57|58|72|F0|XX|22P03")
VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, msgspec.MsgspecError)

logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings repeat the text of Unavailable


class Postgres(Store[Connection]):
    """A database of a PostgreSQL server."""

    EPOCH_OF = EPOCH_OF
    NOW = "clock_timestamp()"
    AGE = "greatest(0, extract(epoch FROM clock_timestamp() - seen))::float8"
    SKIP_LOCKED = "FOR UPDATE SKIP LOCKED"
    RECEIVED = "(extract(epoch FROM received_at) * 1000000)::bigint"

    def __init__(self, url: str, streams: dict[str, Stream], make: bool, keep: Keep, elsewhere: Elsewhere) -> None:
        """url: a connection string of libpq. make: create the tables if they are missing."""
        super().__init__({name: Table(stream) for name, stream in streams.items()}, keep, elsewhere)
        self.swept: dict[str, int] = {}  # table -> the page at which the search for old rows continues
        self.url = url
        self.make = make
        try:
            given = conninfo_to_dict(url)
            # with an unquoted @ or / in a password, libpq takes parts of the password for the host or the database
            clear = url.count("@") <= 1 and ("@" in url) <= ("user" in given)
        except psycopg.Error:
            clear = False
        if not clear:  # libpq's own error could quote the password
            raise Unavailable(
                "PostgreSQL: not a valid connection string; in the password, write each @ : / % as %40 %3A %2F %25"
            )
        self.name = f"PostgreSQL {given.get('host', '')}/{given.get('dbname', '')}"
        self.defaults = {name: value for name, value in CONNECTION.items() if name not in given}
        with self.transaction():
            pass

    def open(self) -> Connection:
        if self.db is None:
            self.checked.clear()
            db: Connection = psycopg.connect(self.url, autocommit=True, prepare_threshold=None, **self.defaults)
            try:
                with db.transaction():
                    db.execute(BEGIN)
                    if self.make:
                        make_tables(db, self.name, self.elsewhere.addresses())
                    elif not one(db.execute("SELECT to_regclass('batches')::text"))[0]:
                        raise Unavailable(f"{self.name}: there are no tables yet")
                    else:
                        check_layout(self.name, layout_of(db), make=False)
                if self.make:
                    for name in self.tables:
                        with contextlib.suppress(psycopg.Error, Unavailable), db.transaction():
                            db.execute(BEGIN)
                            self.table(db, name)  # a table that cannot be created stops its stream only
            except BaseException:
                db.close()
                raise
            self.db = db
        return self.db

    @override
    @contextlib.contextmanager
    def transaction(self, read: bool = False) -> Iterator[Connection]:
        # Unavailable: an error of the server, not of a value
        try:
            db = self.open()
            with db.transaction():
                if read:
                    db.execute(SNAPSHOT)
                db.execute(BEGIN)
                yield db
        except (psycopg.Error, Unavailable) as error:
            self.close()
            # neither the details of the server's error nor a traceback: they quote rows
            raise error if isinstance(error, Unavailable) else Unavailable(f"{self.name}: {message(error)}") from None

    @override
    def run(self, db: Connection, sql: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = db.execute(placeholders(sql), values)
        return cursor.fetchall() if cursor.description else []

    @override
    def time(self, microseconds: int) -> datetime:
        return START + timedelta(microseconds=microseconds)

    @override
    def exists(self, db: Connection, table: str) -> bool:
        return one(db.execute("SELECT to_regclass(%s)::text", (f'"{table}"',)))[0] is not None

    @override
    def create(self, db: Connection, table: Table) -> None:
        # a new table is partitioned if its rows are deleted by age
        age = self.keep.of(table.name)
        if age is None:
            ensure(db, table.name, table.columns)
        else:
            ensure(db, table.name, table.columns, partitions.rest(table.name), partitions.BY_ARRIVAL)
            if partitions.is_partitioned(db, table.name):
                partitions.make_ahead(db, table.name, age)

    @override
    def add_batch(self, db: Connection, claim: Claim) -> int | None:
        # waits for the end of another transaction that stores a body of this claim
        row = db.execute(
            "WITH free AS (INSERT INTO batches_ranges (stream, epoch, first, last) "
            "  SELECT %(stream)s, %(epoch)s, %(first)s, %(last)s "
            "  WHERE NOT EXISTS (SELECT FROM batches WHERE claim = %(id)s) ON CONFLICT DO NOTHING RETURNING 1) "
            "INSERT INTO batches (claim, stream, first, bodies, records) "
            "SELECT %(id)s, %(stream)s, %(first)s, %(bodies)s, 0 FROM free ON CONFLICT (claim) DO NOTHING RETURNING id",
            {
                "id": claim.id, "stream": claim.stream, "epoch": claim.epoch,
                "first": claim.first, "last": claim.end - 1, "bodies": claim.count,
            },
        ).fetchone()  # fmt: skip
        return row[0] if row else None

    @override
    def stored(self, db: Connection, claim: Claim) -> list[tuple[int, int]]:
        of = claim.stream, claim.epoch
        given = span("?::text", "?::text", "?::bigint", "?::bigint")
        overlap = f"SELECT first, last FROM batches_ranges WHERE {SPAN} && {given} ORDER BY 1"
        return [(first, last) for first, last in self.run(db, overlap, (*of, claim.first, *of, claim.end))]

    @override
    def add_change(self, db: Connection, stream: str, batch: int) -> None:
        self.run(db, "INSERT INTO view_changes (stream, batch) VALUES (?, ?)", (stream, batch))

    @override
    def insert(self, db: Connection, table: Table, batch: int, whole: bool, entries: Iterable[Entry]) -> Outcome:
        records = letters = 0
        remaining = iter(entries)
        try:
            with db.transaction():  # a savepoint
                while True:
                    rejects: list[Row] = []
                    count, more = self.copy(db, table, batch, whole, remaining, rejects)
                    records, letters = records + count, letters + len(rejects)
                    bury(db, rejects)
                    if not more:
                        return Outcome(records, letters)
        except psycopg.Error as error:
            if is_server_error(error):
                raise
            raise RowsRejected(message(error)) from None

    def copy(
        self, db: Connection, table: Table, batch: int, whole: bool, entries: Iterator[Entry], rejects: list[Row]
    ) -> tuple[int, bool]:
        """Stream rows into the table until the entries end, or until `rejects` has LETTER_BYTES and must be buried.

        Returns the number of rows, and whether there may be more entries. Raises: RowsRejected.
        """
        records = size = 0
        with db.cursor() as cursor, cursor.copy(table.copy) as copy:
            copy.set_types(table.sent)
            write, row = copy.write_row, table.row
            thing: Any
            for seq, received, _, thing in entries:
                if thing.__class__ is Reject:
                    rejects.append(letter(table.name, batch, whole, seq, received, thing))
                    size += len(thing.part)
                    if size >= bounds.LETTER_BYTES:
                        return records, True
                    continue
                try:
                    write(row(batch, seq, received, thing))
                except VALUE_ERRORS as error:
                    raise RowsRejected(str(error)) from None
                records += 1
        return records, False

    @override
    def savepoint(self, db: Connection) -> contextlib.AbstractContextManager[object]:
        return db.transaction()

    @override
    def bury(self, db: Connection, stream: str, batch: int, whole: bool, rejects: Iterable[Entry]) -> None:
        bury(db, [letter(stream, batch, whole, seq, received, thing) for seq, received, _, thing in rejects])

    @override
    def ask(self, where: str, question: str, values: tuple[int, ...]) -> Iterator[Row]:
        with self.transaction(read=True) as db:
            try:
                with db.cursor("letters") as cursor:
                    cursor.itersize = 10  # a dead letter may be large
                    # the newline ends a comment at the end of the condition; what is in it is no placeholder
                    table = f"(SELECT * FROM dead_letters WHERE ({where.replace('%', '%%')}\n)) AS found"
                    yield from cursor.execute(placeholders(question).format(table), values)
            except psycopg.Error as error:
                if is_server_error(error) and not (error.sqlstate or "").startswith(("42", "25006", "0A")):
                    raise
                raise ValueError(f"not a condition on dead letters: {message(error)}") from None

    @override
    def fold(self) -> bool:
        # The ids of folded rows are final: no transaction can add a lower one any more. Two connections never fold at
        # once. Ranges that meet become one. Rows that a replay has locked stay
        with self.transaction() as db:
            if not one(db.execute(TRY, (CHORES,)))[0]:
                return False
            rows = self.run(
                db,
                f"SELECT id, persisted_at, {FOLDED} FROM batches WHERE id > {FOLDED} "
                "AND id <= (SELECT max(id) FROM batches) - ? ORDER BY id LIMIT 1 OFFSET ?",
                (bounds.KEEP_BATCHES, bounds.FOLD_BATCHES - 1),
            )
            if not rows or db.execute(EARLIER, rows[0][1:2]).fetchone():
                return False
            last, _, folded = rows[0]
            for stream, epoch, lowest, highest, first, end in self.run(
                db,
                f"SELECT stream, {EPOCH_OF}, min(id), max(id), min(first), max(first + bodies) FROM batches "
                "WHERE id > ? AND id <= ? GROUP BY 1, 2",
                (folded, last),
            ):
                merge(db, stream, epoch, first, end)
                self.run(
                    db,
                    "INSERT INTO batches_folded AS f (stream, epoch, first_batch, last_batch) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (stream, epoch) "
                    "DO UPDATE SET last_batch = greatest(f.last_batch, excluded.last_batch)",
                    (stream, epoch, lowest, highest),
                )
            self.run(
                db,
                "DELETE FROM batches WHERE id IN (SELECT id FROM batches "
                f"WHERE id > ? AND id <= ? AND NOT {HAS_LETTERS} FOR UPDATE SKIP LOCKED)",
                (folded, last),
            )
        return True

    @override
    def expire_rows(self, stream: str, before: int) -> bool:
        # Drops a partition, after it has counted the rows. If there is none to drop, it searches the next pages of the
        # table, or of its default partition
        with self.transaction() as db:
            if not one(db.execute(TRY if self.make else WAIT, (CHORES,)))[0]:
                return False
            db.execute(BRIEFLY)
            at = self.time(before)
            table = f'"{stream}"'
            if partitions.is_partitioned(db, stream):
                partitions.make_ahead(db, stream, self.keep.of(stream) or 0)
                if overdue := partitions.overdue(db, stream, at):
                    first = overdue[0]
                    execute(db, f"LOCK TABLE {first} IN EXCLUSIVE MODE")  # a late row would not be counted
                    ((rows,),) = self.run(db, f"SELECT count(*) FROM {first}")
                    execute(db, f"DROP TABLE {first}")
                    self.count_deleted(db, stream, rows)
                    return True
                table = next((name for name, end in partitions.partitions(db, stream) if not end), "")
            size = "SELECT pg_relation_size(to_regclass(%s)) / current_setting('block_size')::int"
            pages = one(db.execute(size, (table,)))[0]
            start = self.swept.pop(table, 0)
            if not pages:
                return False
            deleted = len(self.run(
                db,
                f"DELETE FROM ONLY {table} WHERE ctid >= ?::tid AND ctid < ?::tid AND received_at < ? RETURNING 1",
                (f"({start},0)", f"({start + SWEEP_PAGES},0)", at),
            ))  # fmt: skip
            if deleted:
                self.count_deleted(db, stream, deleted)
        if start + SWEEP_PAGES < pages:
            self.swept[table] = start + SWEEP_PAGES
        return table in self.swept


@lru_cache(maxsize=256)
def placeholders(sql: str) -> Any:
    """A statement with psycopg's placeholders instead of `?`."""
    return sql.replace("?", "%s")


def bury(db: Connection, rejects: list[Row]) -> None:
    if rejects:
        with db.cursor() as cursor, cursor.copy(BURY) as copy:
            copy.set_types(BURIED)
            for reject in rejects:
                copy.write_row(reject)


def merge(db: Connection, stream: str, epoch: str, first: int, end: int) -> None:
    """Replace the stored ranges that have or touch a sequence number from `first` to `end` - 1: those that meet become
    one. A transaction that stores such a body waits for the end of this one.
    """
    given = span("%s::text", "%s::text", "%s::bigint", "%s::bigint")
    statement: Any = f"DELETE FROM batches_ranges WHERE {SPAN} && {given} RETURNING first, last"
    ranges: list[list[int]] = []
    for low, high in sorted(db.execute(statement, (stream, epoch, first - 1, stream, epoch, end + 1)).fetchall()):
        if ranges and low <= ranges[-1][1] + 1:
            ranges[-1][1] = high
        else:
            ranges.append([low, high])
    with db.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO batches_ranges (stream, epoch, first, last) VALUES (%s, %s, %s, %s)",
            [(stream, epoch, low, high) for low, high in ranges],
        )


def is_server_error(error: psycopg.Error) -> bool:
    """Whether the server caused an error, not a value."""
    if error.sqlstate is None:  # an error of the driver, or a lost connection
        return not isinstance(error, psycopg.DataError)
    return bool(SERVER_ERRORS.match(error.sqlstate))


def message(error: psycopg.Error) -> str:
    """The primary message of an error, on one line. It quotes neither rows nor the statement."""
    return " ".join((error.diag.message_primary or str(error)).split())
