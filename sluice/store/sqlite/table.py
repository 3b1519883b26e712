"""A stream's table in SQLite, and its rows as they are bound."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from sluice.base.times import instant, second
from sluice.store.types import Body, Origin, Row
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types, plain_records

PLAIN = {float: "REAL", int: "INTEGER", bool: "INTEGER", str: "TEXT"}


class Table:
    """A stream's table: the columns are the arrival time, the fields of the record type, batch, seq and sender."""

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.columns = {"received_at": "TEXT NOT NULL", "time": "TEXT NOT NULL"}
        self.plain = plain_records(stream.record)
        self.encoded: list[int] = []  # positions of values that may need `as_json`
        for at, (name, kinds) in enumerate(field_types(stream.record).items(), 1):
            if not kinds <= PLAIN.keys():
                self.encoded.append(at)
            kind = kinds.pop() if len(kinds) == 1 else object
            self.columns[name] = PLAIN.get(kind, "TEXT" if typing.get_origin(kind) else "")  # dict[…] is JSON
        self.columns |= {"batch": "INTEGER NOT NULL", "seq": "INTEGER NOT NULL", "sender": "TEXT NOT NULL DEFAULT ''"}
        self.nanoseconds = stream.precision == "ns"
        # A row is bound as msgspec gives it: the record, whose own `time` is not used, then these five values
        bound = [*self.columns][2:-3] + ["received_at", "time", "batch", "seq", "sender"]
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
                    added = kind if "DEFAULT" in kind else kind.partition(" ")[0]
                    db.execute(f'ALTER TABLE "{self.name}" ADD COLUMN "{name}" {added}')
                    present.append(name)
        # apsw hashes the text for each row, so the column names are omitted unless the table has other columns too
        ours = [name for name in present if name in self.slots]
        names = "" if ours == present else "(" + ",".join(f'"{name}"' for name in ours) + ")"
        self.insert = f'INSERT INTO "{self.name}"{names} VALUES({",".join(self.slots[name] for name in ours)})'

    def rows(self, origin: Origin, bodies: Sequence[Body]) -> Iterator[Row]:
        """The rows of the records of bodies, one at a time: they are never in memory together."""
        batch, senders, _ = origin
        plain, encoded, nanoseconds = self.plain, self.encoded, self.nanoseconds
        last, arrived = None, ""
        for body in bodies:
            seq = body.seq
            if body.received != last:
                last = body.received
                arrived = instant(last)
            who = senders.get(seq, "") if senders else ""
            for record in body.records:
                when = record.time
                if when is None:
                    at = arrived if not nanoseconds else arrived[:-1] + "000000Z"
                elif nanoseconds:
                    at = f"{second(when // 1_000_000_000)}.{when % 1_000_000_000:09d}Z"
                elif when % 1_000_000_000:
                    at = f"{second(when // 1_000_000_000)}.{when // 1_000_000 % 1000:03d}Z"
                else:
                    at = instant(when // 1000)
                row = astuple(plain(record) if plain else record) + (arrived, at, batch, seq, who)
                yield self.encode(row) if encoded else row

    def encode(self, row: Row) -> Row:
        values = list(row)
        for at in self.encoded:
            if values[at] is not None:
                values[at] = as_json(values[at])
        return tuple(values)


def as_json(value: Any) -> Any:
    """A value as a type of SQLite: an object or a list becomes JSON, any other value a text or a number."""
    if not isinstance(value, (dict, list)):
        value = msgspec.to_builtins(value)
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list, tuple)) else value
