"""From rows to the JSON of their records, for one key."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import msgspec

from sluice.views.rows.source import Row, RowSource, canonical

Stamp = tuple[Any, int, bytes]  # time as the source has it, sequence number, JSON
Rendered = tuple[str, Stamp, Row]  # the text of the key


class Renderer:
    """Makes the JSON of rows: the key, the time, then the other fields in their order; nulls are left out."""

    def __init__(self, source: RowSource, stream: str, key: str) -> None:
        names = source.streams[stream].record.__struct_fields__[1:]
        self.at = {name: n for n, name in enumerate(names, 2)} | {"time": 0}
        others = [name for name in names if name != key]
        fields: list[Any] = [(key, Any), ("time", Any), *((name, Any, None) for name in others)]
        self.make = msgspec.defstruct("Item", fields, omit_defaults=True, gc=False)
        self.key = self.at[key]
        self.pick = itemgetter(self.key, 0, *(self.at[name] for name in others))
        self.converters = source.converters[stream]
        self.text = source.time_converter(stream)
        self.encode = msgspec.json.Encoder(decimal_format="number").encode
        self.nanoseconds = source.nanoseconds

    def items(self, rows: list[Row]) -> list[Rendered]:
        """The rows that have a key. A row that cannot be written as JSON is left out."""
        try:
            return list(self.render(rows))
        except Exception:  # of a value that was not written by a worker
            items: list[Rendered] = []
            for row in rows:
                try:
                    items += self.render([row])
                except Exception:  # noqa: S112
                    continue
            return items

    def render(self, rows: list[Row]) -> Iterator[Rendered]:
        """`items`, as long as every row can be written."""
        make, pick, encode, at, text = self.make, self.pick, self.encode, self.key, self.text
        plain = not self.converters and text is None
        for row in rows:
            key = row[at]
            if key is None:
                continue
            if plain:
                document = encode(make(*pick(row)))
            else:
                values = list(row)
                for n, convert in self.converters:
                    values[n] = convert(values[n])
                row, key = tuple(values), values[at]
                document = encode(make(key, text(row[0]) if text else row[0], *pick(row)[2:]))
            yield key if key.__class__ is str else encode(key).decode(), (row[0], row[1], document), row

    def part(self, row: Row, at: list[int]) -> bytes:
        """Some values of a row, such that equal values are equal bytes."""
        values = [row[n] for n in at]
        return canonical([value if value.__class__ is not float else value + 0.0 for value in values])
