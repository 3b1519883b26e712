"""Rows as tables of Delta Lake in an object store: s3://BUCKET/PREFIX/STREAM, a commit for each claim.

The log of a Delta table says which objects it has, so readers see a claim's rows all at once, and small objects can be
merged without a moment in which a row is there twice or not at all. A commit is one conditional write (If-None-Match),
and it has the writer and the number of the claim's object (`txn` of the Delta protocol): the log refuses it when it
comes again. The client takes credentials and the endpoint from the environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.base.override import override
from sluice.contrib.destinations.columns import HOUR, MICROSECONDS, NANOSECONDS, Tables, hour_end, read_tables
from sluice.contrib.destinations.destination import InMemory, Rejected, Unwritable, writer_of
from sluice.streams.registry import Stream

SMALL_BYTES = 16 << 20  # a smaller object is merged
TARGET_BYTES = 128 << 20  # of a merged object
MANY_OBJECTS = 256  # small ones of the present hour, from which they are merged before the hour has ended
SETTLED_SECONDS = 60  # after the end of an hour, from which its objects are merged
READERS_HOURS = 24  # for which objects stay that were merged or deleted, for readers of an earlier version
SWEEP_SECONDS = 3600.0  # between two deletions of such objects
START = datetime(1970, 1, 1, tzinfo=timezone.utc)
KINDS = pa.types.is_integer, pa.types.is_string, pa.types.is_timestamp  # within which a value is the same, or rejected
WRITER = WriterProperties(compression="ZSTD")
NOISE = re.compile(r"\x1b\[[\d;]*m| in [\d.]+[mµ]?s")  # in errors: colours, and a duration, which differs each time
ENDPOINTS = "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"  # in the environment of its client
VIOLATED = "failed validation check"  # in the text of an error, which has no code
# A commit waits at most so long for a store that does not answer; a claim is taken by another worker after a while
OPTIONS = {"timeout": "10s", "connect_timeout": "3s", "max_retries": "2", "retry_timeout": "10s"}
KIND = 'Timestamp(Microsecond, Some("UTC"))'  # of `received_at`, for DataFusion, which compares no others with it


class Delta(Tables):
    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        self.table_url = f"{url.rstrip('/')}/{stream.name}"
        self.known: DeltaTable | None = None
        self.asked = False  # whether there is a table
        self.swept = time.monotonic()

    @override
    def address(self) -> str:
        # another store may have a bucket of this name
        endpoint = next(filter(None, (os.environ.get(name) for name in ENDPOINTS)), "")
        return f"{self.place()}#{endpoint}" if endpoint else self.place()

    @override
    def open(self, received: int) -> InMemory[pa.Table]:
        # rows that the table cannot have as they are wait in the spool, not in a note
        with self.storing():
            if not self.asked:
                self.present()
                self.asked = True
            if self.known is not None:
                check_types(delta_rows(self.columns.schema.empty_table()).schema, self.known)
        return super().open(received)

    @override
    def send(self, name: str, carried: bytes) -> None:
        writer, number = writer_of(name)
        given = read_tables(carried)
        if not given.num_rows:  # an object that an earlier version has noted
            return
        with self.storing():
            rows = delta_rows(given)
            table = self.table(rows.schema)
            rows = fit_schema(rows, check_types(rows.schema, table))
            if (table.transaction_version(writer) or 0) < number:
                commit = CommitProperties(app_transactions=[Transaction(writer, number)])
                write_deltalake(
                    table, rows, mode="append", schema_mode="merge", writer_properties=WRITER, commit_properties=commit
                )

    def table(self, schema: pa.Schema) -> DeltaTable:
        """The table as it is now, made if there is none."""
        table = self.present()
        if table is None:
            with contextlib.suppress(DeltaError):  # another worker makes it
                DeltaTable.create(self.table_url, schema, mode="ignore", partition_by=["hour"], storage_options=OPTIONS)
            table = self.known = DeltaTable(self.table_url, storage_options=OPTIONS)
        return table

    def present(self) -> DeltaTable | None:
        try:
            if self.known is None:
                self.known = DeltaTable(self.table_url, storage_options=OPTIONS)
            else:
                self.known.update_incremental()
        except TableNotFoundError:
            self.known = None
        return self.known

    @override
    def tidy(self, noted: Callable[[], set[str]]) -> bool:
        # merges the small objects of one hour
        with self.storing():
            table = self.present()
            if table is None:
                return False
            found: Counter[str] = Counter()
            for one in table.get_add_actions(flatten=True).to_struct_array().to_pylist():
                found[one["partition.hour"]] += one["size_bytes"] < SMALL_BYTES
            for hour, small in sorted(found.items()):
                if small >= (2 if hour_end(hour) + SETTLED_SECONDS < time.time() else MANY_OBJECTS):
                    table.optimize.compact([("hour", "=", hour)], target_size=TARGET_BYTES, writer_properties=WRITER)
                    return True
            if time.monotonic() - self.swept > SWEEP_SECONDS:
                self.swept = time.monotonic()
                # A commit that is a day late is refused, because another worker has published its rows
                table.vacuum(READERS_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        return False

    @override
    def expire(self, before: int, dry: bool) -> int:
        # rows go by the hour of their arrival
        limit = datetime.fromtimestamp(before // 3_600_000_000 * 3600, timezone.utc)
        with self.storing():
            table = self.present()
            if table is None:
                return 0
            old = pc.field("received_at") < pa.scalar(limit, MICROSECONDS)
            rows = table.to_pyarrow_dataset().count_rows(filter=old)
            if rows and not dry:
                done = table.delete(f"received_at < arrow_cast('{limit:%Y-%m-%dT%H:%M:%SZ}', '{KIND}')")
                rows = done["num_deleted_rows"]
        return int(rows)

    @contextlib.contextmanager
    def storing(self) -> Iterator[None]:
        """Raise Unwritable for an error of the store or of the table, which is then read anew."""
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            self.known = None
            if VIOLATED in str(error):
                raise Rejected(f"{self.table_url}: a constraint of the table is violated") from error
            text = NOISE.sub("", str(error))
            raise Unwritable(f"{self.table_url}: {' '.join(text.split())[:300]}") from error


def delta_rows(rows: pa.Table) -> pa.Table:
    """Rows as a Delta table has them: with the hour of the first arrival; and its times have microseconds, so those
    with nanoseconds have their other three digits in a column, as in PostgreSQL.
    """
    if rows.schema.field("time").type == NANOSECONDS:
        at = rows.schema.get_field_index("time")
        times = rows["time"].cast(pa.timestamp("ns"))
        short = pc.floor_temporal(times, unit="microsecond")  # also of times before 1970
        digits = pc.subtract(times.cast(pa.int64()), short.cast(pa.int64()))
        rows = rows.set_column(at, "time", short.cast(pa.timestamp("us")).cast(MICROSECONDS))
        rows = rows.add_column(at + 1, "nanoseconds", digits.cast(pa.int16()))
    first: Any = rows["received_at"][0].as_py() if rows.num_rows else START
    return rows.append_column("hour", pa.repeat(pa.scalar(first.strftime(HOUR)), rows.num_rows))


def check_types(ours: pa.Schema, table: DeltaTable) -> pa.Schema:
    """The columns of the table. Raises: Unwritable if one is of another kind than ours: nothing is converted."""
    theirs = pa.schema(table.schema().to_arrow())
    for field in ours:
        kind = theirs.field(field.name).type if field.name in theirs.names else field.type
        if kind != field.type and not any(of(kind) and of(field.type) for of in KINDS):
            raise Unwritable(
                f"{table.table_uri}: column {field.name} has the type {kind}, and the field {field.type}: give the "
                "field another name, or name another prefix in INGEST_ROWS"
            )
    return theirs


def fit_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the types of the columns that the table has. Raises: Rejected."""
    for at, name in enumerate(rows.column_names):
        kind = schema.field(name).type if name in schema.names else rows[name].type
        if kind != rows[name].type:
            try:
                rows = rows.set_column(at, name, rows[name].cast(kind))
            except pa.ArrowException:
                raise Rejected(f"column {name} has the type {kind}, and the field {rows[name].type}") from None
    return rows
