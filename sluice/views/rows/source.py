"""Reads rows back for the views: those committed since a position, and their counts. Never writes rows.

A position is a text that only the reader understands. Rows that were committed up to it are never read again, rows
committed later are always read, whatever the order in which transactions commit. It also names the last row or batch
that was read: a database that does not have it is another database, or one restored from a backup (Diverged).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from sluice.base.times import second
from sluice.store.types import Unavailable
from sluice.streams.record import Metric
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types

log = logging.getLogger("sluice.reader")

Row = tuple[Any, ...]  # time (see Reader.nanoseconds), sequence number, and the fields of the record
SETTLE = 0.2  # seconds between two checks of PostgreSQL's transactions
SUMMARIZE = 10.0  # seconds between two updates of PostgreSQL's block range index
SCALE = [10**power for power in range(9, -1, -1)]  # nanoseconds of the last digit, by the number of digits
BATCHES = 5_000  # batches looked up at once
# PostgreSQL refuses a row whose part of an index has more than 2.7 kB, so a text is indexed by its hash
HASHED = 'hashtextextended("{}", 0)'
INDEXING = "%s: its tallies are slow; creating an index on %s"
canonical = msgspec.json.Encoder(order="deterministic").encode


class Diverged(Exception):
    """The database is not the one that was read up to the position, or is an older state of it."""


class Changes(NamedTuple):
    """Rows since a position, the position after them, and whether this snapshot has more."""

    pieces: Iterable[list[Row]]
    position: str
    more: bool


class Reader(ABC):
    """One connection for reading; not thread-safe. Every method raises Unavailable.

    times_are_text: the time of a row is its own `text`.
    """

    times_are_text = False

    def __init__(self, streams: dict[str, Stream]) -> None:
        self.streams = streams
        self.db: Any = None
        self.converters: dict[str, list[tuple[int, Callable[[Any], Any]]]] = {}
        for name, stream in streams.items():
            found = [(at, self.converter(kinds)) for at, kinds in enumerate(field_types(stream.record).values(), 2)]
            self.converters[name] = [(at, convert) for at, convert in found if convert]

    @abstractmethod
    def start(self) -> str:
        """The position before the first row."""

    @abstractmethod
    def news(self) -> bool:
        """Whether rows may have been committed since the last call. Do not call it within a snapshot."""

    @abstractmethod
    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """One snapshot for all calls of `changes` within: those that reach the end return the same position."""

    @abstractmethod
    def changes(self, stream: str, position: str, limit: int) -> Changes:
        """Rows that were committed since a position: about `limit`, or of one batch. Call it within a snapshot.

        Raises: Diverged.
        """

    @abstractmethod
    def count(self, stream: str, key: str, by: str, value: str) -> dict[str, int]:
        """The number of rows whose field `key` has the text `value`, by the text of the field `by` (if not null)."""

    @abstractmethod
    def make_countable(self, stream: str, key: str, by: str) -> None:
        """Create the index that makes `count` fast, unless it is there, and wait for its end.

        In SQLite and in a partitioned table, workers wait for it too. A key that is not a text gets none.
        """

    @abstractmethod
    def converter(self, kinds: set[Any]) -> Any:
        """A function from a field's value in a row to a value for JSON, or None if they are the same."""

    @staticmethod
    @abstractmethod
    def nanoseconds(time: Any) -> int:
        """The time of a row in nanoseconds since 1970. Raises: ValueError."""

    @abstractmethod
    def text(self, stream: str, time: Any) -> str:
        """The time of a row as ISO 8601 in UTC, as precise as the database has it."""

    def prepare(self, streams: Iterable[str]) -> None:  # noqa: B027  # SQLite needs nothing
        """Make reading by position fast, once at the start."""

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        db, self.db = self.db, None
        if db is not None:
            db.close()


def connect(url: str, streams: dict[str, Stream]) -> Reader:
    """The reader of a store's URL; it connects with the first call."""
    if url.startswith("sqlite:///"):
        return SqliteReader(url[len("sqlite:///") :], streams)
    return PostgresReader(url, streams)


@lru_cache(maxsize=4096)
def raw(text: str) -> msgspec.Raw:
    """JSON with sorted names, so that equal values are equal bytes."""
    return msgspec.Raw(canonical(msgspec.json.decode(text)))


def compound(value: Any) -> Any:
    """A value of a column that may hold JSON among plain texts."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with contextlib.suppress(msgspec.DecodeError):
            return raw(value)
    return value


@lru_cache(maxsize=4096)
def since_1970(text: str) -> int:
    """Nanoseconds of a second in ISO 8601 without an offset."""
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()) * 1_000_000_000


class SqliteReader(Reader):
    """A position is the last rowid with a checksum of that row, which detects VACUUM, deleted rows and a replaced file.
    SQLite has one writer at a time, so rows are committed in the order of their rowids.
    """

    times_are_text = True

    def __init__(self, path: str, streams: dict[str, Stream]) -> None:
        super().__init__(streams)
        self.path = path
        self.file: tuple[int, int] = (0, 0)  # device and inode
        self.version = -1
        self.schema = -1
        self.queries: dict[str, str] = {}

    def converter(self, kinds: set[Any]) -> Any:
        """See `Reader`."""
        if kinds == {bool}:
            return bool_of
        return None if kinds <= {float, int, bool, str} else compound

    @staticmethod
    def nanoseconds(time: str) -> int:
        """See `Reader`."""
        fraction = time[20:-1]
        return since_1970(time[:19]) + int(fraction) * SCALE[len(fraction)]

    def text(self, stream: str, time: Any) -> str:
        """See `Reader`."""
        return time

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """The connection, opened if it is closed."""
        import apsw

        try:
            if self.db is None:
                if not os.path.exists(self.path):
                    raise Unavailable(f"{self.path}: there is no database yet")
                self.version = self.schema = -1
                found = os.stat(self.path)
                self.file = found.st_dev, found.st_ino
                self.db = apsw.Connection(self.path, apsw.SQLITE_OPEN_READWRITE)  # a WAL needs its shared memory
                self.db.set_busy_timeout(5000)
                self.db.execute("PRAGMA query_only=1")
            yield self.db
        except (apsw.Error, OSError) as error:
            with contextlib.suppress(apsw.Error):
                self.close()
            raise Unavailable(f"{self.path}: {error}") from error

    def start(self) -> str:
        """See `Reader`."""
        return ""

    def leave(self) -> None:
        """Close the connection if the file has been replaced: it would read the old one for ever."""
        if self.db is not None:
            with contextlib.suppress(OSError):
                found = os.stat(self.path)
                if self.file != (found.st_dev, found.st_ino):
                    self.close()

    def news(self) -> bool:
        """See `Reader`."""
        self.leave()
        with self.open() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()
        changed, self.version = version != self.version, version
        return changed

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `Reader`."""
        with self.open() as db:
            db.execute("BEGIN")
            try:
                (schema,) = db.execute("PRAGMA schema_version").fetchone()
                if schema != self.schema:
                    self.schema = schema
                    self.queries = {name: self.query(db, name) for name in self.streams}
                yield
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def query(self, db: Any, stream: str) -> str:
        """The query for the rows of a stream after a rowid; "" if there is no table yet."""
        present = {row[1] for row in db.execute(f'PRAGMA table_info("{stream}")')}
        if not {"time", "batch", "seq"} <= present:
            return ""
        # a column that the worker has not added yet: its quoted name alone would be taken for a text
        names = field_types(self.streams[stream].record)
        columns = ", ".join(f'"{name}"' if name in present else "NULL" for name in names)
        return f'SELECT time, seq, {columns}, rowid FROM "{stream}" WHERE rowid > ? ORDER BY rowid LIMIT ?'  # noqa: S608

    def changes(self, stream: str, position: str, limit: int) -> Changes:
        """See `Reader`."""
        with self.open() as db:
            query = self.queries[stream]
            if not query:
                if position:
                    raise Diverged(f"there is no table {stream}")
                return Changes((), "", False)
            rowid = int(position.partition(" ")[0] or 0)
            if position and stitch(db.execute(query, (rowid - 1, 1)).fetchall()) != position:
                raise Diverged(f"row {rowid} of {stream} is missing or has changed")
            rows = db.execute(query, (rowid, limit)).fetchall()
        return Changes((rows,), stitch(rows) or position, len(rows) == limit)

    def count(self, stream: str, key: str, by: str, value: str) -> dict[str, int]:
        """See `Reader`."""
        kinds = field_types(self.streams[stream].record)
        where = f'"{key}" = ?' if kinds[key] == {str} else f'CAST("{key}" AS TEXT) = ?'
        query = (
            f'SELECT CAST("{by}" AS TEXT), count(*) FROM "{stream}" '  # noqa: S608
            f'WHERE {where} AND "{by}" IS NOT NULL GROUP BY 1'
        )
        self.leave()
        with self.open() as db:
            return dict(db.execute(query, (value,)).fetchall())

    def make_countable(self, stream: str, key: str, by: str) -> None:
        """See `Reader`."""
        import apsw

        if field_types(self.streams[stream].record)[key] != {str}:
            return
        try:
            with contextlib.closing(apsw.Connection(self.path, apsw.SQLITE_OPEN_READWRITE)) as db:
                db.set_busy_timeout(60_000)
                name = f"{stream}_by_{key}_{by}"
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone():
                    log.info(INDEXING, stream, key)
                    db.execute(f'CREATE INDEX IF NOT EXISTS "{name}" ON "{stream}" ("{key}", "{by}")')
        except apsw.Error as error:
            raise Unavailable(f"{self.path}: {error}") from error


def stitch(rows: list[Row]) -> str:
    """The position after rows of a stream in SQLite, or "" if there are none."""
    return f"{rows[-1][-1]} {crc32(repr(rows[-1]).encode(errors='surrogatepass')):08x}" if rows else ""


def bool_of(value: Any) -> Any:
    """A boolean, which SQLite holds as 0 or 1."""
    return bool(value) if value in (0, 1) else value


class PostgresReader(Reader):
    """A position is a batch id, below which no transaction can add a batch, and the batches above it that were read.

    PostgreSQL assigns ids of batches before their transactions commit, so a lower id may appear after a higher one. A
    transaction locks `batches` (RowExclusiveLock) before it takes an id, and keeps the lock until it ends. So when
    all transactions that held the lock *after* the highest id was read have ended, all ids up to it are settled: their
    batches are committed, or never will be. `view_changes` names batches that got rows later, from replayed dead
    letters; its ids are settled by the same rule.

    The oldest batches are not in `batches` any more (see `Store.fold`), but all of their ids are settled. Their rows
    are read by ranges of ids.

    Position: JSON [settled batch, batches above, settled change, changes above, last batch, its claim].
    """

    def __init__(self, url: str, streams: dict[str, Stream]) -> None:
        super().__init__(streams)
        self.url = url
        self.last: Row = ()
        self.settled = (0, 0)  # ids of batches and of changes
        self.claim = ""  # of the settled batch
        self.pending: tuple[tuple[int, int], set[str]] | None = None
        self.reading = contextlib.ExitStack()  # what the end of the snapshot closes
        self.due = 0.0  # monotonic: the next check of the transactions
        self.summarize = 0.0
        self.queries: dict[str, str] = {}
        self.steps: dict[str, int] = {}  # stream -> ids of the next range of batches that are not in `batches`
        self.indexes: list[int] = []

    def converter(self, kinds: set[Any]) -> Any:
        """See `Reader`."""
        return None if len(kinds) == 1 and kinds <= {float, int, bool, str} else raw_or_none

    @staticmethod
    def nanoseconds(time: int) -> int:
        """See `Reader`."""
        return time

    def text(self, stream: str, time: Any) -> str:
        """See `Reader`."""
        if self.streams[stream].record is Metric:
            return f"{second(time // 1_000_000_000)}.{time % 1_000_000_000:09d}Z"
        return f"{second(time // 1_000_000_000)}.{time // 1000 % 1_000_000:06d}Z"

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """The connection, opened if it is closed."""
        import psycopg

        from sluice.store.postgres.store import CONNECTION, message

        try:
            if self.db is None:
                self.last, self.settled, self.claim, self.pending, self.due = (), (0, 0), "", None, 0.0
                self.queries.clear()
                db = psycopg.connect(self.url, autocommit=True, prepare_threshold=None, **CONNECTION)
                if not db.execute(
                    "SELECT to_regclass('batches_folded') IS NOT NULL AND to_regclass('view_changes') IS NOT NULL"
                ).fetchone()[0]:  # type: ignore[index]
                    db.close()
                    raise Unavailable("PostgreSQL: there are no tables yet")
                self.db = db
            yield self.db
        except psycopg.Error as error:
            self.close()
            raise Unavailable(f"PostgreSQL: {message(error)}") from None

    def start(self) -> str:
        """See `Reader`."""
        return json.dumps([0, [], self.settled[1], [], 0, ""])

    def news(self) -> bool:
        """See `Reader`."""
        import psycopg

        with self.open() as db:
            batches, changes = self.settled
            # by libpq itself: the follower asks 40 times a second, and a cursor takes five times the CPU
            result = db.pgconn.exec_(
                b"SELECT (SELECT coalesce(max(id), 0) FROM batches), (SELECT coalesce(max(id), 0) FROM view_changes), "
                b"(SELECT count(*) FROM batches WHERE id > %d), (SELECT count(*) FROM view_changes WHERE id > %d)"
                % (batches, changes)
            )
            if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
            found: Row = tuple(int(result.get_value(0, at)) for at in range(4))
            changed, self.last = found != self.last, found
            now = time.monotonic()
            if now >= self.due and (found[2] or found[3] or found[0] < batches or found[1] < changes):
                self.due = now + SETTLE
                changed |= self.settle(db, (found[0], found[1]))
            if changed and now >= self.summarize and self.indexes:
                self.summarize = now + SUMMARIZE
                db.execute("SELECT brin_summarize_new_values(i) FROM unnest(%s::oid[]::regclass[]) i", (self.indexes,))
        return changed

    def settle(self, db: Any, highest: tuple[int, int]) -> bool:
        """Settle the ids up to the highest ones at an earlier call, once all transactions of that time have ended."""
        held = {
            row[0]
            for row in db.execute(
                "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' "
                "AND relation IN ('batches'::regclass, 'view_changes'::regclass) "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        }
        known, before = self.pending or (highest, held)
        left = held & before
        if left:
            self.pending = known, left
            return False
        found = db.execute("SELECT claim FROM batches WHERE id = %s", known[:1]).fetchone()
        self.settled, self.claim, self.pending = known, found[0] if found else "", None
        self.last = ()
        return True

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `Reader`."""
        with self.open() as db:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                # Rows that are not read to the end would leave their cursor to the garbage collector. It may run within
                # another query of this connection; closing the cursor then waits for that query for ever
                with contextlib.ExitStack() as self.reading:
                    yield
            finally:
                with contextlib.suppress(Exception):  # the connection may be gone
                    db.execute("ROLLBACK")

    def query(self, db: Any, stream: str) -> str:
        """The query for rows of a stream; "" while the table is not there or lacks a column."""
        if stream not in self.queries:
            found = db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                (f'"{stream}"',),
            )
            present = {row[0] for row in found}
            if not present:
                return ""
            metric = self.streams[stream].record is Metric
            below = " + coalesce(nanoseconds, 0)" if metric else ""
            columns = [f"(extract(epoch FROM time) * 1000000)::bigint * 1000{below}", "seq"]
            for name, kinds in field_types(self.streams[stream].record).items():
                if name not in present:
                    columns.append("NULL")
                elif metric and name == "value":
                    columns.append("CASE WHEN type = 'string' THEN to_json(text)::text ELSE value::text END")
                else:
                    columns.append(f'"{name}"' + ("::text" if self.converter(kinds) else ""))
            query = f'SELECT {", ".join(columns)} FROM "{stream}" WHERE '  # noqa: S608
            if "NULL" in columns:
                return query  # not cached: the worker may add the column
            self.queries[stream] = query
        return self.queries[stream]

    def changes(self, stream: str, position: str, limit: int) -> Changes:
        """See `Reader`."""
        settled, above, change, changes_above, last, claim = json.loads(position)
        with self.open() as db:
            (folded,) = db.execute("SELECT coalesce(max(last_batch), 0) FROM batches_folded").fetchone()
            if last and not has(db, last, claim, last <= folded):
                raise Diverged(f"batch {last} is missing or has changed")
            if settled < folded:
                if not last:
                    last, claim = self.settled[0], self.claim
                until = min(settled + self.steps.get(stream, BATCHES), folded)
                pieces = self.range(db, stream, settled, until, limit)
                self.reading.callback(pieces.close)
                above = [id for id in above if id > until]
                return Changes(pieces, json.dumps([until, above, change, changes_above, last, claim]), True)
            found = db.execute(
                "SELECT id, records, claim FROM batches WHERE stream = %s AND id > %s AND id <> ALL(%s) "
                "ORDER BY id LIMIT %s",
                (stream, settled, above, BATCHES),
            ).fetchall()
            taken, size = 0, 0
            while taken < len(found) and (not taken or size + found[taken][1] <= limit):
                size += found[taken][1]
                taken += 1
            more = taken < len(found) or taken == BATCHES
            batches = [row[0] for row in found[:taken]]
            if batches and batches[-1] > last:
                last, claim = batches[-1], found[taken - 1][2]
            replayed: list[Row] = []
            if not more:
                replayed = db.execute(
                    "SELECT id, batch FROM view_changes WHERE stream = %s AND id > %s AND id <> ALL(%s) "
                    "ORDER BY id LIMIT %s",
                    (stream, change, changes_above, BATCHES),
                ).fetchall()
                more = len(replayed) == BATCHES
            settled, above = behind(settled, above, batches, self.settled[0], taken < len(found) or taken == BATCHES)
            if self.claim and last < self.settled[0] <= settled:  # also if no batch is of this stream
                last, claim = self.settled[0], self.claim
            if not more or replayed:
                ids = [row[0] for row in replayed]
                change, changes_above = behind(change, changes_above, ids, self.settled[1], more)
            pieces = self.rows(db, self.query(db, stream), batches, size, sorted({row[1] for row in replayed}))
            self.reading.callback(pieces.close)
        return Changes(pieces, json.dumps([settled, above, change, changes_above, last, claim]), more)

    def range(self, db: Any, stream: str, above: int, until: int, limit: int) -> Generator[list[Row]]:
        """The rows of the batches above an id, up to another one. Sets how many ids the next range should have."""
        count = 0
        query = self.query(db, stream)
        if query:
            with self.open(), db.cursor("rows", binary=True) as cursor:
                cursor.execute(typing.cast("Any", query + "batch > %s AND batch <= %s"), (above, until))
                while rows := cursor.fetchmany(10_000):
                    count += len(rows)
                    yield rows
        size = until - above
        self.steps[stream] = size * 4 if count < limit // 4 else max(1, size * limit // max(count, limit))

    def rows(self, db: Any, query: str, batches: list[int], size: int, replayed: list[int]) -> Generator[list[Row]]:
        """The rows of `batches`, then all rows of the batches in `replayed`. size: rows in `batches`."""
        if not query:
            return
        asked: list[tuple[str, tuple]] = []
        if batches:
            # the block range index answers the range in one scan; for the list alone it would scan once per element
            asked.append(("batch BETWEEN %s AND %s AND batch + 0 = ANY(%s)", (batches[0], batches[-1], batches)))
        asked += [("batch = %s", (batch,)) for batch in replayed]
        with self.open():
            for where, values in asked:
                with db.cursor("rows" if size > 10_000 else "", binary=True) as cursor:
                    cursor.execute(typing.cast("Any", query + where), values)
                    while rows := cursor.fetchmany(10_000):
                        yield rows

    def count(self, stream: str, key: str, by: str, value: str) -> dict[str, int]:
        """See `Reader`."""
        kinds = field_types(self.streams[stream].record)
        where = f'"{key}" = %(value)s' if kinds[key] == {str} else f'"{key}"::text = %(value)s'
        if kinds[key] == {str}:  # the index has it
            where += f" AND {HASHED.format(key)} = hashtextextended(%(value)s, 0)"
        query = (
            f'SELECT "{by}"::text, count(*) FROM "{stream}" '  # noqa: S608
            f'WHERE {where} AND "{by}" IS NOT NULL GROUP BY 1'
        )
        with self.open() as db:
            return dict(db.execute(query, {"value": value}).fetchall())

    def make_countable(self, stream: str, key: str, by: str) -> None:
        """See `Reader`."""
        from sluice.store.postgres import partitions
        from sluice.store.postgres.store import execute

        if field_types(self.streams[stream].record)[key] != {str}:
            return
        name = partitions.named(stream, f"by_{key}")
        with self.open() as db:
            beside = "" if partitions.is_partitioned(db, stream) else "CONCURRENTLY"
            found = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
            valid = db.execute(found, (f'"{name}"',)).fetchone()
            if valid == (True,):
                return
            log.info(INDEXING, stream, key)
            if valid:  # its creation was interrupted
                execute(db, f'DROP INDEX {beside} "{name}"')
            execute(db, f'CREATE INDEX {beside} IF NOT EXISTS "{name}" ON "{stream}" ({HASHED.format(key)})')

    def prepare(self, streams: Iterable[str]) -> None:
        """A block range index on `batch` for each stream, which costs an insert next to nothing.

        It is created concurrently and by a thread: rows are stored and read meanwhile, and PostgreSQL first waits for
        the end of all transactions.
        """
        threading.Thread(target=self.index, args=(sorted(streams),), name="index", daemon=True).start()

    def index(self, streams: list[str]) -> None:
        """Create the indexes that are missing. One that was interrupted is invalid, and created again."""
        import psycopg

        from sluice.store.postgres import partitions
        from sluice.store.postgres.store import CONNECTION, execute, message

        try:
            with psycopg.connect(self.url, autocommit=True, prepare_threshold=None, **CONNECTION) as db:
                for stream in streams:
                    if partitions.is_partitioned(db, stream):
                        continue  # it has an index, which autovacuum keeps up to date
                    found = indexes(db, stream)
                    if not any(valid for _, _, valid in found):
                        for _, name, _ in found:
                            execute(db, f"DROP INDEX CONCURRENTLY {name}")
                        execute(
                            db,
                            f'CREATE INDEX CONCURRENTLY ON "{stream}" USING brin (batch) WITH (pages_per_range = 16)',
                        )
                    self.indexes += [number for number, _, valid in indexes(db, stream) if valid]
        except psycopg.Error as error:
            log.warning("no index on batch, so reading new rows of a large table is slow: %s", message(error))


def has(db: Any, batch: int, claim: str, folded: bool) -> bool:
    """Whether the database has a batch. folded: it is not in `batches` any more, but its first body is known."""
    if not folded:
        return bool(db.execute("SELECT 1 FROM batches WHERE id = %s AND claim = %s", (batch, claim)).fetchone())
    spool, first = claim.split(":")[:2]
    query = "SELECT 1 FROM batches_ranges WHERE spool = %s AND %s BETWEEN first AND last"
    return bool(db.execute(query, (spool, int(first))).fetchone())


def indexes(db: Any, stream: str) -> list[tuple[int, str, bool]]:
    """The block range indexes on `batch`: object id, name, whether they are valid."""
    return db.execute(
        "SELECT indexrelid::bigint, indexrelid::regclass::text, indisvalid FROM pg_index "
        "JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0] "
        "JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam "
        "WHERE indrelid = to_regclass(%s) AND attname = 'batch' AND amname = 'brin'",
        (f'"{stream}"',),
    ).fetchall()


def raw_or_none(value: Any) -> Any:
    """The JSON of a jsonb or a number."""
    return None if value is None else raw(value)


def behind(settled: int, above: list[int], taken: list[int], limit: int, cut: bool) -> tuple[int, list[int]]:
    """The settled id and the ids above it after reading `taken`; cut: there were higher ids that were not read."""
    if cut:
        limit = min(limit, taken[-1])
    settled = max(settled, limit)
    return settled, [id for id in sorted({*above, *taken}) if id > settled]
