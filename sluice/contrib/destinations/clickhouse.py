"""Rows as tables of ClickHouse: clickhouse://USER:PASSWORD@HOST:8123/DATABASE, a table for each stream.

The rows of a claim that arrived on one day are one synchronous INSERT, into one partition, of one block; its token is
the name of the object and the day. ClickHouse refuses a token among the last WINDOW_INSERTS ones. A worker that does
not know whether an object was stored, which may be later than that, asks first: each row has the name of its object.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from datetime import date, datetime, timezone
from typing import Any
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from msgspec.structs import fields

from sluice.base.override import override
from sluice.contrib.destinations.columns import NANOSECONDS, TAGS, Tables, pack_tables, read_tables
from sluice.contrib.destinations.destination import Rejected, Unwritable, writer_of
from sluice.streams.record import Log, Metric, Record
from sluice.streams.registry import Stream

WINDOW_INSERTS = 10_000  # whose tokens a table remembers
TIMEOUT_SECONDS = 30  # for an answer
LEFT_SECONDS = 3600  # after which a worker has ended that has not dropped its table of deleted rows
# Texts that few rows differ in; a table of one's own may have other types
LOW: dict[type[Record], set[str]] = {Metric: {"name", "field", "type"}, Log: {"level", "service"}}
TYPES = {pa.float64(): "Float64", pa.int64(): "Int64", pa.bool_(): "Bool", pa.string(): "String"}
# Codes of errors that a value causes, or a column of another type, or a materialized view (ErrorCodes.cpp)
VALUE_ERRORS = {
    *(6, 27, 32, 33, 38, 41, 43, 44, 53, 69, 70, 72, 117, 131, 321),  # cannot be parsed, converted or compared
    *(190, 349, 395, 407, 469, 691),  # sizes, null, throwIf, decimals, constraints, enums
}
# What a column of a table of one's own may be, by the type that ours has; another one would convert values
KINDS = {
    "Float64": r"Float\d+", "Int64": r"U?Int\d+", "Bool": "Bool|UInt8", "Map": r"Map\(.*",
    "String": r"String|FixedString\(.*|Enum.*", "DateTime64": "DateTime.*",
}  # fmt: skip
WRAPPED = re.compile(r"(?:Nullable|LowCardinality)\((.*)\)")
SETTINGS = {"async_insert": 0, "insert_deduplicate": 1, "max_insert_threads": 1, "input_format_parallel_parsing": 0}


class ClickHouse(Tables):
    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        self.server = urlsplit(url)
        self.client: Client | None = None
        self.sure = False  # all objects of this writer before the one that was made last are stored

    @override
    def send(self, name: str, carried: bytes) -> None:
        own = writer_of(name)[0] == self.writer
        first = own and self.sure and writer_of(name)[1] == self.number
        if own:
            self.sure = False
        given = read_tables(carried)
        with self.storing() as client:
            self.missing(client)
            days = pc.cast(given["received_at"], pa.date32())
            rows = given.append_column("object", pa.repeat(pa.scalar(name), given.num_rows))
            for day in sorted(pc.unique(days).to_pylist()):
                if first or not self.has(client, name, day):
                    try:
                        self.insert(client, f"{name}-{day}", rows.filter(pc.equal(days, pa.scalar(day))))
                    except ClickHouseError as error:
                        if getattr(error, "code", 0) not in VALUE_ERRORS:
                            raise
                        if not self.has(client, name, day):  # else a materialized view of the table has failed
                            rest = given.filter(pc.greater_equal(days, pa.scalar(day)))
                            raise Rejected(in_one_line(error), pack_tables(rest.schema, [rest])) from error
        if own:
            self.sure = True

    def insert(self, client: Client, token: str, rows: pa.Table) -> None:
        settings = {**SETTINGS, "insert_deduplication_token": token}
        client.insert_arrow(self.stream.name, rows.combine_chunks(), settings=settings)  # combined: one block

    def has(self, client: Client, name: str, day: date) -> bool:
        """Whether the rows of an object that arrived on one day are stored: all or none of them are."""
        found = client.query(
            f"SELECT 1 FROM {quoted_name(self.stream.name)} "
            "WHERE toDate(received_at) = {day:Date} AND object = {name:String} LIMIT 1",
            parameters={"day": day, "name": name},
        )
        return bool(found.result_rows)

    @override
    def expire(self, before: int, dry: bool) -> int:
        # rows go by the day of their arrival: a partition is dropped as a whole
        limit = datetime.fromtimestamp(before / 1e6, timezone.utc).date()
        with self.storing() as client:
            found = client.query(
                "SELECT partition, sum(rows) FROM system.parts WHERE database = currentDatabase() "
                "AND table = {table:String} AND active AND partition < {day:String} GROUP BY partition",
                parameters={"table": self.stream.name, "day": str(limit)},
            ).result_rows
            if dry:
                return sum(rows for _, rows in found)
            # Moved, rows are counted by one worker only, and none comes to them
            prefix = f"{self.stream.name}_deleted_"
            away = self.left(client, prefix)
            if found:
                away.append(f"{prefix}{uuid.uuid4().hex}")
                client.command(f"CREATE TABLE {quoted_name(away[-1])} AS {quoted_name(self.stream.name)}")
            for day, _ in found:
                of, to = quoted_name(self.stream.name), quoted_name(away[-1])
                client.command(f"ALTER TABLE {of} MOVE PARTITION {{day:String}} TO TABLE {to}", parameters={"day": day})
            return sum(self.drop(client, name) for name in away)

    def left(self, client: Client, prefix: str) -> list[str]:
        """Tables that workers had no time to count and to drop, under new names: one worker succeeds in that."""
        found = client.query(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND startsWith(name, {prefix:String}) "
            "AND metadata_modification_time <= now() - {age:UInt32}",
            parameters={"prefix": prefix, "age": LEFT_SECONDS},
        ).result_rows
        names = []
        for (name,) in found:
            mine = f"{prefix}{uuid.uuid4().hex}"
            with contextlib.suppress(ClickHouseError):  # another worker has it
                client.command(f"RENAME TABLE {quoted_name(name)} TO {quoted_name(mine)}")
                names.append(mine)
        return names

    def drop(self, client: Client, name: str) -> int:
        """Drop a table; the number of its rows."""
        ((rows,),) = client.query(f"SELECT count() FROM {quoted_name(name)}").result_rows
        client.command(f"DROP TABLE {quoted_name(name)} SYNC")
        return int(rows)

    @contextlib.contextmanager
    def storing(self) -> Iterator[Client]:
        """A connection; the table is made, or gets the columns that it lacks. Raises: Unwritable."""
        try:
            if self.client is None:
                self.client = self.connect()
            yield self.client
        except (ClickHouseError, OSError, pa.ArrowException) as error:
            client, self.client = self.client, None
            if client is not None:
                client.close()
            raise Unwritable(f"ClickHouse: {in_one_line(error)}") from error

    def connect(self) -> Client:
        client = clickhouse_connect.get_client(
            host=self.server.hostname or "",
            port=self.server.port or 0,
            username=unquote(self.server.username or "default"),
            password=unquote(self.server.password or ""),
            database=self.server.path.strip("/"),
            interface="https" if self.server.query == "secure" else "http",
            connect_timeout=TIMEOUT_SECONDS,
            send_receive_timeout=TIMEOUT_SECONDS,
            query_retries=0,
            autogenerate_session_id=False,
        )
        try:
            self.make(client)
        except BaseException:
            client.close()
            raise
        return client

    def missing(self, client: Client) -> set[str]:
        """The columns that the table lacks now. Raises: Unwritable if one has another type: nothing is converted."""
        columns = self.types()
        found = client.query(
            "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {table:String}",
            parameters={"table": self.stream.name},
        )
        present: dict[str, str] = {name: kind for name, kind in found.result_rows}
        for name, kind in columns.items():
            if name in present and not re.fullmatch(KINDS[bare_type(kind).partition("(")[0]], bare_type(present[name])):
                raise Unwritable(
                    f"ClickHouse: column {name} of table {self.stream.name} has the type {present[name]}, expected "
                    f"{kind}: rename it, and the worker adds a new one"
                )
        return columns.keys() - present.keys()

    def make(self, client: Client) -> None:
        """Make the table, or add the columns that it lacks."""
        columns = self.types()
        if not self.missing(client):  # a user without CREATE and ALTER can use it
            return
        listed = ", ".join(f"{quoted_name(name)} {kind}" for name, kind in columns.items())
        key = quoted_name([*self.columns.types][0])
        client.command(
            f"CREATE TABLE IF NOT EXISTS {quoted_name(self.stream.name)} ({listed}) ENGINE = MergeTree "
            f"PARTITION BY toDate(received_at) ORDER BY ({key}, time) "
            f"SETTINGS non_replicated_deduplication_window = {WINDOW_INSERTS}, allow_nullable_key = 1, "
            "fsync_after_insert = 1, fsync_part_directory = 1"
        )
        added = ", ".join(f"ADD COLUMN IF NOT EXISTS {quoted_name(name)} {kind}" for name, kind in columns.items())
        client.command(f"ALTER TABLE {quoted_name(self.stream.name)} {added}")

    def types(self) -> dict[str, str]:
        """The columns of the table, with types of ClickHouse."""
        low = {name for kind, names in LOW.items() if issubclass(self.stream.record, kind) for name in names}
        required = {field.name for field in fields(self.stream.record) if field.required}
        if self.columns.typed:
            required.discard("value")  # null for a string
        found = {}
        for field in self.columns.schema:
            if field.name == "received_at":
                kind = "DateTime64(6, 'UTC')"
            elif field.name == "time":
                kind = f"DateTime64({9 if field.type == NANOSECONDS else 6}, 'UTC')"
            elif field.type == TAGS:
                kind = "Map(LowCardinality(String), String)"
            elif field.name in ("batch", "seq"):
                kind = "Int64"
            elif field.name == "sender":
                kind = "LowCardinality(String)"
            else:
                kind = TYPES[field.type] if field.name in required else f"Nullable({TYPES[field.type]})"
                kind = f"LowCardinality({kind})" if field.name in low else kind
            found[field.name] = kind
        return {**found, "object": "String"}


def bare_type(kind: str) -> str:
    """A type without what may be null, or is a dictionary."""
    while found := WRAPPED.fullmatch(kind):
        kind = found[1]
    return kind


def in_one_line(error: Exception) -> str:
    """Why: the error of the network, or the kind of the server's error and its text."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    text = str(error).rpartition("DB::Exception: ")[2]
    return " ".join(f"{getattr(error, 'name', None) or type(error).__name__}: {text}".split())[:300]


def quoted_name(name: Any) -> str:
    """A name in a statement. Names of streams and fields are identifiers."""
    return f"`{name}`"
