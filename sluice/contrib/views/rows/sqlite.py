"""Rows of SQLite."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from zlib import crc32

import apsw
import msgspec

from sluice.base.override import override
from sluice.contrib.views.rows import source
from sluice.contrib.views.rows.source import (
    INDEXING,
    PIECE_BYTES,
    ROW_BYTES,
    Changes,
    Converter,
    Diverged,
    Row,
    RowSource,
    raw_json,
)
from sluice.store.sqlite.file import identity, require_file
from sluice.store.tables import PLAIN
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types

log = logging.getLogger("sluice.rows")

MAX_SECOND = 2**63 // 10**9  # of a time: 64 bits hold its nanoseconds
DIGIT_NANOSECONDS: list[int] = [10**power for power in range(9, -1, -1)]  # of the last digit, by the number of digits


class SqliteRows(RowSource):
    """Rows are committed in the order of their rowids: SQLite has one writer at a time. The position is the last rowid.

    A checksum of that row detects VACUUM, and another or an older database. Retention may have deleted the row: then
    the database must have the batch that was its last one, and no row before the position may be of a later batch.

    Position: rowid, checksum, batch of that row, last batch of the database, its claim.
    """

    def __init__(self, url: str, streams: dict[str, Stream]) -> None:
        super().__init__(streams)
        self.path = url[len("sqlite:///") :]
        self.file: tuple[int, int] | None = None  # device and inode
        self.version = -1
        self.schema = -1
        self.queries: dict[str, tuple[str, str]] = {}

    @override
    def converter(self, stream: str, field: str) -> Converter | None:
        return {bool: bool_of, object: json_of}.get(self.kind(stream, field))

    @override
    @staticmethod
    def nanoseconds(time: str) -> int:
        if time[-1] != "Z":
            raise ValueError("its time is not in UTC")
        fraction = time[20:-1]
        return since_1970(time[:19]) + (int(fraction) * DIGIT_NANOSECONDS[len(fraction)] if fraction else 0)

    @override
    def time_converter(self, stream: str) -> None:
        return None

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        try:
            if self.db is None:
                require_file(self.path)
                self.version = self.schema = -1
                self.file = identity(self.path)[0]
                self.db = apsw.Connection(self.path, apsw.SQLITE_OPEN_READWRITE)  # a WAL needs its shared memory
                self.db.set_busy_timeout(5000)
                self.db.execute("PRAGMA query_only=1")
                self.db.create_scalar_function("text_of", text_of, 2)
                self.db.create_scalar_function("json_text_of", json_text_of, 2)
            yield self.db
        except (apsw.Error, OSError) as error:
            with contextlib.suppress(apsw.Error):
                self.close()
            raise Unavailable(f"{self.path}: {error}") from error

    @override
    def start(self) -> str:
        return ""

    def leave(self) -> None:
        """Close the connection if the file has been replaced: it would read the old one for ever."""
        with contextlib.suppress(OSError):
            if self.db is not None and identity(self.path)[0] not in (self.file, None):
                self.close()

    @override
    def news(self) -> bool:
        self.leave()
        with self.open() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()
        changed, self.version = bool(version != self.version), version
        return changed

    @override
    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        with self.open() as db:
            db.execute("BEGIN")
            try:
                (schema,) = db.execute("PRAGMA schema_version").fetchone()
                if schema != self.schema:
                    self.schema = schema
                    self.queries.clear()
                yield
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def query(self, db: Any, stream: str) -> tuple[str, str]:
        """The queries for the rows of a stream after a rowid, for batch and bytes of one row; "" without a table."""
        present = {row[1] for row in db.execute(f'PRAGMA table_info("{stream}")')}
        if not {"time", "batch", "seq"} <= present:
            return "", ""
        # a column that the worker has not added yet: its quoted name alone would be taken for a text
        names = field_types(self.streams[stream].record)
        columns = ", ".join(f'"{name}"' if name in present else "NULL" for name in names)
        sizes = " + ".join(
            [str(ROW_BYTES), *(f'ifnull(octet_length("{name}"), 0)' for name in names if name in present)]
        )
        every = ", ".join(f'CAST("{name}" AS BLOB)' if name in present else "NULL" for name in ("time", "seq", *names))
        return (
            f'SELECT time, seq, {columns}, {sizes}, rowid FROM "{stream}" WHERE rowid > ? ORDER BY rowid LIMIT ?',
            f'SELECT batch, {every} FROM "{stream}" WHERE rowid = ?',
        )

    @override
    def changes(self, stream: str, position: str, limit: int) -> Changes:
        with self.open() as db:
            if stream not in self.queries:
                self.queries[stream] = self.query(db, stream)
            query, one = self.queries[stream]
            if not query:
                if position:
                    raise Diverged(f"there is no table {stream}")
                return Changes((), "", False)
            rowid = 0
            if position:
                try:
                    at, crc, batch, last, claim = position.split(" ")
                    rowid, row = int(at), db.execute(one, (int(at),)).fetchone()
                    follows = (
                        checksum(row) == crc if row else has_expired(db, stream, rowid, int(batch), int(last), claim)
                    )
                except ValueError:
                    raise Diverged(f"{position!r:.40} is no position in SQLite") from None
                if not follows:
                    raise Diverged(f"row {rowid} of {stream} is missing or has changed")
            found, size = [], 0
            for row in readable(db.execute(query, (rowid, limit))):
                found.append(row)
                size += row[-2] if row else ROW_BYTES
                if size >= PIECE_BYTES:
                    break
            rows = [row for row in found if row is not None]
            if odd := len(found) - len(rows):
                log.warning("%s: %d rows with a text that is not UTF-8 are left out of the views", stream, odd)
            if found:
                there = f'SELECT rowid FROM "{stream}" WHERE rowid > ? ORDER BY rowid LIMIT 1 OFFSET ?'
                rowid = found[-1][-1] if found[-1] else db.execute(there, (rowid, len(found) - 1)).get
                row = db.execute(one, (rowid,)).fetchone()
                newest = db.execute("SELECT id, claim FROM batches ORDER BY id DESC LIMIT 1").fetchone() or (0, "")
                own = row[0] if row[0].__class__ is int else 0  # else it is of another program
                position = " ".join(map(str, (rowid, checksum(row), own, *newest)))
        return Changes((rows,), position, len(found) == limit or size >= PIECE_BYTES)

    @override
    def groups(self, stream: str, key: str, by: str, value: str) -> Iterator[Row]:
        kind = self.kind(stream, key)
        if kind in PLAIN:
            found, where = source.typed_value(kind, value), f'"{key}" = ?'
            if found is None:
                return
        else:  # a text as bytes: one that is not UTF-8 would end the query
            found = value
            plain = f"""CASE typeof("{key}") WHEN 'text' THEN CAST("{key}" AS BLOB) ELSE "{key}" END"""
            where = f'{"json_text_of" if kind is object else "text_of"}(typeof("{key}"), {plain}) = ?'
        query = (
            f"SELECT CASE WHEN octet_length(value) <= {source.MAX_GROUP_BYTES} THEN value END, n, sum(n) OVER () FROM "
            f'(SELECT "{by}" AS value, count(*) AS n FROM "{stream}" WHERE {where} AND "{by}" IS NOT NULL GROUP BY 1) '
            f"ORDER BY n DESC, value LIMIT {source.MAX_GROUPS}"
        )
        self.leave()
        with self.open() as db:
            yield from [row for row in readable(db.execute(query, (found,))) if row]

    @override
    def make_countable(self, stream: str, key: str, by: str) -> None:
        if field_types(self.streams[stream].record)[key] != {str}:
            return
        try:
            with contextlib.closing(apsw.Connection(self.path, apsw.SQLITE_OPEN_READWRITE)) as db:
                db.set_busy_timeout(60_000)
                name = f"{stream}$by_{key}_{by}"  # no stream has a $ in its name
                former = name.replace("$", "_")
                known = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND name IN (?, ?)"
                if not db.execute(known, (stream, name, former)).fetchone():
                    log.info(INDEXING, stream, key)
                    db.execute(f'CREATE INDEX IF NOT EXISTS "{name}" ON "{stream}" ("{key}", "{by}")')
        except apsw.Error as error:
            raise Unavailable(f"{self.path}: {error}") from error


def readable(cursor: Any) -> Iterator[Row | None]:
    """The rows; None for one that another program wrote with a text that is not UTF-8."""
    while True:
        try:
            yield from cursor
            return
        except UnicodeDecodeError:
            yield None


def checksum(row: Row) -> str:
    return f"{crc32(repr(row).encode()):08x}"


def has_expired(db: Any, stream: str, rowid: int, batch: int, last: int, claim: str) -> bool:
    """Whether a row is missing only because of its age: see `SqliteRows`."""
    epoch, _, first = claim.partition(":")
    stored = db.execute(
        "SELECT 1 FROM batches WHERE id = ?1 AND claim = ?2 UNION ALL SELECT 1 FROM batches_ranges WHERE epoch = ?3 "
        "AND ?4 BETWEEN first AND last AND ?1 <= (SELECT coalesce(max(last_batch), 0) FROM batches_folded)",
        (last, claim, epoch, int(first.partition(":")[0])),
    ).fetchone()
    later = f'SELECT batch > ? FROM "{stream}" WHERE rowid < ? ORDER BY rowid DESC LIMIT 1'
    return bool(stored) and not db.execute(later, (batch, rowid)).get


def text_of(kind: str, value: Any) -> str | None:
    """For SQL: the text of a value of the type `kind`; a text comes as its bytes."""
    return None if value is None else source.text_of(value.decode(errors="replace") if kind == "text" else value)


def json_text_of(kind: str, value: Any) -> str | None:
    """`text_of` for a column of JSON."""
    text = value.decode(errors="replace") if kind == "text" else value
    return None if value is None else source.text_of(json_of(text))


def bool_of(value: Any) -> Any:
    """A boolean, which SQLite holds as 0 or 1."""
    return bool(value) if value in (0, 1) else value


def json_of(value: Any) -> Any:
    """A value of a column of JSON. Another program may have written anything else there."""
    if isinstance(value, str):
        with contextlib.suppress(msgspec.DecodeError):
            return raw_json(value)
    return value


@lru_cache(maxsize=4096)
def since_1970(text: str) -> int:
    """Nanoseconds of a second in ISO 8601 without an offset. Raises: ValueError, also if 64 bits do not hold them."""
    seconds = int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())
    if not -MAX_SECOND <= seconds < MAX_SECOND:
        raise ValueError("its time is out of range")
    return seconds * 1_000_000_000
