"""A stream's table in PostgreSQL, and its rows as COPY sends them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from msgspec.structs import astuple

from sluice.store.tables import column_kind, escape_reason
from sluice.store.types import Body, Origin, Row
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types, plain_records

encode = msgspec.json.Encoder().encode
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

    def rows(self, origin: Origin, bodies: Sequence[Body]) -> Iterator[Sequence[Any]]:
        """The records of bodies as rows for COPY, one at a time: they are never in memory together."""
        batch, senders = origin.batch, origin.senders
        plain, encoded, typed, nanoseconds = self.plain, self.encoded, self.typed, self.nanoseconds
        extended = self.more
        column, sent = None, b""  # the last value that is JSON, which rows share that one point or line has made
        for body in bodies:
            seq, arrived = body.seq, body.received - Y2000
            who = senders.get(seq, "") if senders else ""
            end = batch, seq, who
            record: Any
            for record in body.records:
                when = record.time
                at = arrived if when is None else when // 1000 - Y2000
                last = (0 if when is None else when % 1000, *end) if nanoseconds else end
                if typed:
                    value = record.value
                    text = value if record.type == "string" else None
                    number = None if text is not None else Decimal(repr(value) if value.__class__ is float else value)
                    if record.tags is not column:
                        column = record.tags
                        sent = b"\1" + encode(column)
                    # after those of a metric, JSON
                    more = [value and b"\1" + encode(value) for value in astuple(record)[6:]] if extended else ()
                    yield arrived, at, record.name, sent, record.field, number, record.type, *more, text, *last
                    continue
                row = (arrived, at, *astuple(plain(record) if plain else record)[1:], *last)
                if not encoded:
                    yield row
                    continue
                values = [*row]
                for place in encoded:
                    if (value := values[place]) is not None:
                        if value is not column:
                            column = value
                            sent = b"\1" + encode(value)
                        values[place] = sent
                yield values


def letter_row(stream: str, batch: int, whole: bool, seq: int, received: int, thing: Any) -> Row:
    """A reject as a row for `bury`. whole: False if it comes from a partial dead letter."""
    return received - Y2000, stream, thing.part, escape_reason(thing.reason), thing.whole and whole, batch, seq
