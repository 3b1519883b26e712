"""From rows to the JSON of their records, for one key.

Rows may come from other programs than a worker. Whatever a view needs of a row is made and checked here, before the row
meets others: a row without a valid time, number, key and JSON is in no view, and stops no other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import msgspec

from sluice.contrib.views.rows.source import Row, RowSource, canonical, encode, text_of

log = logging.getLogger("sluice.rows")

Stamp = tuple[int, int, bytes]  # nanoseconds since 1970, sequence number, JSON
Rendered = tuple[str, Stamp, Row]  # the text of the key


class Renderer:
    """Makes the JSON of rows: the key, the time, then the other fields in their order; nulls are left out."""

    def __init__(self, source: RowSource, stream: str, key: str) -> None:
        names = source.streams[stream].record.__struct_fields__[1:]
        self.stream = stream
        self.at = {name: n for n, name in enumerate(names, 2)} | {"time": 0}
        others = [name for name in names if name != key]
        fields: list[Any] = [(key, Any), ("time", Any), *((name, Any, None) for name in others)]
        self.make = msgspec.defstruct("Item", fields, omit_defaults=True, gc=False)
        self.key = self.at[key]
        self.pick = itemgetter(self.key, 0, *(self.at[name] for name in others))
        self.converters = source.converters[stream]
        self.text = source.time_converter(stream)
        self.encode = encode
        self.nanoseconds = source.nanoseconds
        self.reason = ""  # why the last row that is in no view is in none

    def items(self, rows: list[Row]) -> list[Rendered]:
        """The rows that have a key. A row that was not written by a worker, and cannot be in a view, is left out."""
        try:
            return list(self.render(rows))
        except Exception:
            items: list[Rendered] = []
            for row in rows:
                try:
                    items += self.render([row])
                except Exception as error:
                    self.say(f"{type(error).__name__}: {error}")
            return items

    def say(self, reason: str) -> None:
        """Log why a row is in no view, unless it is for the same reason as the last one."""
        if reason != self.reason:
            self.reason = reason
            log.warning("%s: a row that no worker wrote is left out of the views: %s", self.stream, reason)

    def render(self, rows: list[Row]) -> Iterator[Rendered]:
        """`items`, as long as every row can be written."""
        make, pick, encode, at, text = self.make, self.pick, self.encode, self.key, self.text
        nanoseconds = self.nanoseconds
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
            number = row[1]
            if number.__class__ is not int or number < 0:
                raise ValueError("its sequence number is not a natural number")
            stamp = nanoseconds(row[0]), number, document
            yield key if key.__class__ is str else text_of(key), stamp, row

    def part(self, row: Row, at: list[int]) -> bytes:
        """Some values of a row, such that equal values are equal bytes."""
        values = [row[n] for n in at]
        return canonical([value if value.__class__ is not float else value + 0.0 for value in values])
