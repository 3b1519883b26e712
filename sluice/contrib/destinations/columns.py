"""Rows as tables of Arrow: for files of Parquet, and for destinations that are sent whole tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from sluice.base.override import override
from sluice.base.times import iso_second
from sluice.contrib.destinations.destination import Carried, Rejected, Rows, single_body
from sluice.contrib.destinations.far_rows import FarRow
from sluice.store.tables import column_kind
from sluice.streams.record import Metric
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types, plain_records

HOUR = "%Y-%m-%dT%H"  # the partition of rows in files and objects
EXACT = 1 << 53  # integers up to this have an exact float
MICROSECONDS, NANOSECONDS = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")
KINDS = {float: pa.float64(), int: pa.int64(), bool: pa.bool_(), str: pa.string(), object: pa.string()}
TAGS = pa.map_(pa.string(), pa.string())
VALUE_ERRORS = (
    *(pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError),
    *(TypeError, ValueError, OverflowError, AttributeError, LookupError, msgspec.MsgspecError),
)
PART_ROWS = 1_000  # that are objects of Python at once
COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps what was freed: of a merge, 30 MB more


def hour_end(hour: str) -> float:
    """When an hour ends, seconds since 1970."""
    return datetime.strptime(hour, HOUR).replace(tzinfo=timezone.utc).timestamp() + 3600


class Columns:
    """The columns of a stream: those of its table, with types of Arrow.

    Of a typed stream, `value` is the number, null for a string; `metric_text` is a string, or the digits of an integer
    that has no exact float. Values of other compound types, also of unions, are JSON.
    """

    def __init__(self, stream: Stream) -> None:
        self.typed = stream.typed
        self.plain = plain_records(stream.record)
        kinds = {name: column_kind(kinds) for name, kinds in field_types(stream.record).items()}
        self.types: dict[str, pa.DataType] = {name: KINDS[kind] for name, kind in kinds.items()}
        self.encoded = {name for name, kind in kinds.items() if kind is object}
        if self.typed:
            self.types |= {"tags": TAGS, "value": pa.float64(), "text": pa.string()}
            self.encoded -= {"tags", "value"}
        fields = [("received_at", MICROSECONDS), ("time", NANOSECONDS if stream.precision == "ns" else MICROSECONDS)]
        ours = [("batch", pa.int64()), ("seq", pa.int64()), ("sender", pa.string())]
        self.schema = pa.schema([*fields, *self.types.items(), *ours])

    def table(self, batch: int, rows: Rows) -> pa.Table:
        """Rows as a table. Raises: Rejected."""
        try:
            return self.made(batch, rows)
        except VALUE_ERRORS as error:
            raise Rejected(str(error)) from None

    def made(self, batch: int, rows: Rows) -> pa.Table:
        """`table`, with any error."""
        records: list[Any] = [*map(self.plain, rows.records)] if self.plain else rows.records
        if self.schema.field("time").type == NANOSECONDS:
            when = [one.time if one.time is not None else at * 1000 for at, one in zip(rows.received, records)]
        else:
            when = [one.time // 1000 if one.time is not None else at for at, one in zip(rows.received, records)]
        columns: list[Any] = [rows.received, when]
        for name in self.types:
            if self.typed and name in METRIC:
                columns.append([METRIC[name](one) for one in records])
            elif name in self.encoded:
                columns.append([None if (value := getattr(one, name)) is None else json_text(value) for one in records])
            else:
                values = [*map(attrgetter(name), records)]
                columns.append(integer_array(values) if self.types[name] == pa.int64() else values)
        columns += [pa.repeat(pa.scalar(batch, pa.int64()), len(records)), rows.seqs]
        names = rows.senders
        columns.append([names.get(seq, "") for seq in rows.seqs] if names else pa.repeat("", len(records)))
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, self.schema)
        ]
        return pa.table(arrays, schema=self.schema)


def integer_array(values: list[Any]) -> pa.Array:
    """Integers. Given their type, Arrow would make 1 of 1.5. Raises: TypeError."""
    found = pa.array(values)
    if not (pa.types.is_integer(found.type) or pa.types.is_boolean(found.type) or pa.types.is_null(found.type)):
        raise TypeError(f"{found.type} in place of an integer")
    return found.cast(pa.int64())


def metric_number(one: Metric) -> float | None:
    return None if one.type == "string" else float(one.value)


def metric_text(one: Metric) -> str | None:
    """What `metric_number` cannot say of the value of a metric."""
    value = one.value
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and abs(value) > EXACT else None


METRIC: dict[str, Callable[[Metric], Any]] = {
    "tags": lambda one: [*one.tags.items()],
    "value": metric_number,
    "text": metric_text,
}


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class Tables(Carried[pa.Table]):
    """A destination that is sent whole tables. A note carries them as a stream of Arrow, compressed with zstd."""

    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        self.columns = Columns(stream)

    @override
    def encoded(self, batch: int, rows: Rows) -> pa.Table:
        return self.columns.table(batch, rows)

    @override
    def packed(self, groups: list[pa.Table]) -> bytes:
        return pack_tables(self.columns.schema, groups)

    @override
    def halves(self, carried: bytes) -> list[tuple[int, bytes]]:
        rows = read_tables(carried)
        middle = rows.num_rows // 2
        parts = (rows[:middle], rows[middle:]) if middle else ()
        return [
            (part.group_by(["batch", "seq"]).aggregate([]).num_rows, pack_tables(rows.schema, [part])) for part in parts
        ]

    @override
    def parts(self, carried: bytes) -> Iterator[FarRow]:
        rows = read_tables(carried)
        per_second = 1_000_000_000 if rows.schema.field("time").type == NANOSECONDS else 1_000_000
        for name in "received_at", "time":
            rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.int64()))
        for some in rows.to_batches(PART_ROWS):
            for row in some.to_pylist():
                at = row["time"]
                row["time"] = f"{iso_second(at // per_second)}.{at % per_second * (1_000_000_000 // per_second):09d}Z"
                for name in self.columns.encoded:
                    row[name] = None if row[name] is None else msgspec.Raw(row[name].encode())
                if self.columns.typed:
                    row["tags"] = dict(row["tags"])
                    value = row["value"] if row["text"] is None else row["text"]
                    row["value"] = int(value) if row["type"] == "integer" else value
                yield row["batch"], row["seq"], row["received_at"], single_body(self.stream, row)


def pack_tables(schema: pa.Schema, tables: list[pa.Table]) -> bytes:
    """Tables as what a note carries."""
    store = pa.BufferOutputStream()
    with pa.ipc.new_stream(store, schema, options=COMPRESSED) as stream:
        for table in tables:
            stream.write_table(table)
    return bytes(store.getvalue().to_pybytes())


def read_tables(carried: bytes) -> pa.Table:
    return pa.ipc.open_stream(carried).read_all()
