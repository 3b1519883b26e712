"""A stream's table in PostgreSQL, and its rows as COPY sends them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import astuple

from sluice.store.tables import column_kind, escape_reason
from sluice.store.types import Row
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types, plain_records

STAMP = "timestamp with time zone"
KINDS = {float: "double precision", int: "bigint", bool: "boolean", str: "text", object: "jsonb"}
# The type that COPY gets for a column: its binary form is the same, but psycopg makes it from another Python type. A
# timestamp is microseconds since 2000; jsonb is a version byte and JSON.
SENT = {
    **{STAMP: "int8", "bigint": "int8", "smallint": "int2", "double precision": "float8", "boolean": "bool"},
    **{"text": "text", "numeric": "numeric", "jsonb": "bytea"},
}
Y2000 = 946_684_800_000_000  # microseconds from 1970
BURY = "COPY dead_letters (received_at, stream, body, reason, whole, batch, seq) FROM STDIN (FORMAT BINARY)"
BURIED = ("int8", "text", "bytea", "bytea", "bool", "int8", "int8")


class Table:
    """A stream's table: the columns are the arrival time, the fields of the record type, batch, seq and sender.

    A timestamp has microseconds only, so a stream with nanoseconds has their last three digits in `nanoseconds`. Of
    a typed one, `value` is an exact number or null, `text` a string or null.
    """

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.typed = stream.typed
        self.more = stream.typed and len(stream.record.__struct_fields__) > 6
        self.columns = {"received_at": f"{STAMP} NOT NULL", "time": f"{STAMP} NOT NULL"}
        self.plain = plain_records(stream.record)
        self.encoded: list[int] = []  # positions of values that are sent as jsonb
        for at, (name, kinds) in enumerate(field_types(stream.record).items(), 2):
            self.columns[name] = KINDS[column_kind(kinds)]
            if self.columns[name] == "jsonb":
                self.encoded.append(at)
        if self.typed:
            self.columns |= {"tags": "jsonb", "value": "numeric", "text": "text"}
        self.nanoseconds = stream.precision == "ns"
        if self.nanoseconds:
            self.columns["nanoseconds"] = "smallint"
        # no foreign key: it costs more than the row
        self.columns |= {"batch": "bigint NOT NULL", "seq": "bigint NOT NULL", "sender": "text NOT NULL DEFAULT ''"}
        self.sent = [SENT[kind.partition(" NOT NULL")[0]] for kind in self.columns.values()]
        names = ", ".join(f'"{name}"' for name in self.columns)
        self.copy = f'COPY "{self.name}" ({names}) FROM STDIN (FORMAT BINARY)'

    def row(self, batch: int, seq: int, received: int, record: Any, who: str = "") -> Row:
        """A record as a row for COPY. who: its sender."""
        arrived, time = received - Y2000, record.time
        at = arrived if time is None else time // 1000 - Y2000
        if self.typed:
            value = record.value
            text = value if record.type == "string" else None
            number = None if text is not None else Decimal(repr(value) if value.__class__ is float else value)
            tags = b"\1" + msgspec.json.encode(record.tags)
            # after those of a metric, JSON
            more = [value and b"\1" + msgspec.json.encode(value) for value in astuple(record)[6:]] if self.more else ()
            row = arrived, at, record.name, tags, record.field, number, record.type, *more, text
            return (*row, *self.below(time), batch, seq, who)
        fields = astuple(self.plain(record) if self.plain else record)[1:]
        if self.nanoseconds:
            fields += self.below(time)
        row = (arrived, at, *fields, batch, seq, who)
        if not self.encoded:
            return row
        values = list(row)
        for n in self.encoded:
            if values[n] is not None:
                values[n] = b"\1" + msgspec.json.encode(values[n])
        return tuple(values)

    def below(self, time: int | None) -> tuple[int, ...]:
        """The nanoseconds of a time below a microsecond, if the table has them."""
        return (0 if time is None else time % 1000,) if self.nanoseconds else ()


def letter_row(stream: str, batch: int, whole: bool, seq: int, received: int, thing: Any) -> Row:
    """A reject as a row for `bury`. whole: False if it comes from a partial dead letter."""
    return received - Y2000, stream, thing.part, escape_reason(thing.reason), thing.whole and whole, batch, seq
