"""A stream's table in SQLite, and its rows as they are bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import astuple

from sluice.base.times import iso_instant, iso_second
from sluice.store.tables import column_kind
from sluice.store.types import Body, Origin, Unavailable
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types, plain_records

encode = msgspec.json.Encoder().encode
KINDS = {float: "REAL", int: "INTEGER", bool: "INTEGER", str: "TEXT", object: "TEXT"}
# A type has the affinity of the first of these that it contains (datatype3.html); "": it converts nothing
AFFINITIES = {
    **{"INT": "INTEGER", "CHAR": "TEXT", "CLOB": "TEXT", "TEXT": "TEXT"},
    **{"BLOB": "", "REAL": "REAL", "FLOA": "REAL", "DOUB": "REAL"},
}


class Table:
    """A stream's table: the columns are the arrival time, the fields of the record type, batch, seq and sender."""

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.columns = {"received_at": "TEXT NOT NULL", "time": "TEXT NOT NULL"}
        self.plain = plain_records(stream.record)
        self.encoded: list[int] = []  # positions of values that are JSON
        for at, (name, kinds) in enumerate(field_types(stream.record).items(), 1):
            kind = column_kind(kinds)
            self.columns[name] = KINDS[kind]
            if stream.typed and name == "value":
                self.columns[name] = ""
            elif kind is object:
                self.encoded.append(at)
        self.columns |= {"batch": "INTEGER NOT NULL", "seq": "INTEGER NOT NULL", "sender": "TEXT NOT NULL DEFAULT ''"}
        self.nanoseconds = stream.precision == "ns"
        # A row is bound as msgspec gives it: the record, whose own `time` is not used, then these five values
        bound = [*self.columns][2:-3] + ["received_at", "time", "batch", "seq", "sender"]
        self.slots = {name: f"?{at}" for at, name in enumerate(bound, 2)}
        self.insert = ""

    def create_table(self, db: apsw.Connection) -> None:
        """Create the table, or add the columns that it lacks, and prepare the INSERT statement.

        Raises: Unavailable if a column would convert what is stored there.
        """
        columns = ", ".join(f'"{name}" {kind}'.rstrip() for name, kind in self.columns.items())
        with db:
            db.execute(f'CREATE TABLE IF NOT EXISTS "{self.name}" ({columns})')
            present = {row[1]: row[2] for row in db.execute(f'PRAGMA table_info("{self.name}")')}
            for name, kind in self.columns.items():
                if name not in present:
                    added = kind if "DEFAULT" in kind else kind.partition(" ")[0]
                    db.execute(f'ALTER TABLE "{self.name}" ADD COLUMN "{name}" {added}')
                    present[name] = kind
                elif not keeps_values(present[name], kind, name):
                    raise Unavailable(
                        f"SQLite: column {name} of table {self.name} has the type {present[name]}, expected "
                        f"{kind.partition(' ')[0] or 'none'}: rename it, and the worker adds a new one"
                    )
        # apsw hashes the text for each row, which takes a tenth of the time, so the column names are omitted unless the
        # table has other columns too. Whoever holds the transaction compares `schema_version`, so it has these in it
        ours = [name for name in present if name in self.slots]
        names = "" if ours == [*present] else "(" + ",".join(f'"{name}"' for name in ours) + ")"
        self.insert = f'INSERT INTO "{self.name}"{names} VALUES({",".join(self.slots[name] for name in ours)})'

    def bound_rows(self, origin: Origin, bodies: Sequence[Body]) -> Iterator[Sequence[Any]]:
        """The rows of the records of bodies, one at a time: they are never in memory together."""
        batch, senders = origin.batch, origin.senders
        plain, encoded, nanoseconds = self.plain, self.encoded, self.nanoseconds
        last, arrived, unsent, at = None, "", "", ""
        moment, second, date = None, None, ""  # of the last record
        column, text = None, ""  # the last value that is JSON, which rows share that one point or line has made
        for body in bodies:
            seq = body.seq
            if body.received != last:
                last = body.received
                arrived = iso_instant(last)
                unsent = arrived[:-1] + "000000Z" if nanoseconds else arrived
            who = senders.get(seq, "") if senders else ""
            for record in body.records:
                when = record.time
                if when is None:
                    at, moment = unsent, None
                elif when != moment:
                    moment = when
                    if when // 1_000_000_000 != second:
                        second = when // 1_000_000_000
                        date = iso_second(second)
                    below = f"{when % 1_000_000_000:09d}"
                    at = f"{date}.{below if nanoseconds else below[:3]}Z"
                row = astuple(plain(record) if plain else record) + (arrived, at, batch, seq, who)
                if not encoded:
                    yield row
                    continue
                values = [*row]
                for place in encoded:
                    if (value := values[place]) is not None:
                        if value is not column:
                            column, text = value, encode(value).decode()
                        values[place] = text
                yield values


def keeps_values(present: str, kind: str, name: str) -> bool:
    """Whether a column of the type `present` keeps values for which ours has the type `kind` as they are."""
    affinity = affinity_of(present)
    own = name in ("received_at", "time") and affinity == "NUMERIC"  # DATETIME: these texts are no numbers
    return own or affinity in ("", affinity_of(kind)) or {affinity, affinity_of(kind)} == {"INTEGER", "NUMERIC"}


def affinity_of(kind: str) -> str:
    if not kind:
        return ""
    return next((affinity for part, affinity in AFFINITIES.items() if part in kind.upper()), "NUMERIC")
