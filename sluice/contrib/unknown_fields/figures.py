"""The unknown fields by stream and name, as `Observer`, `bin/sluice status` and the status page show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypedDict

from sluice.base import terminal
from sluice.settings import Settings

SHOWN = 20  # fields of a stream
NAMED = 5  # in a line


class UnknownField(TypedDict):
    """bodies: in which the field was, of those that were `examined`."""

    stream: str
    field: str
    bodies: int
    examined: int


class UnknownFields:
    """What `Observer` reads of unknown fields."""

    def __init__(self, s: Settings) -> None:
        pass

    def read(self, counted: Mapping[str, int] | None, trouble: list[str]) -> list[UnknownField]:
        return unknown_fields(counted or {})


def unknown_fields(counted: Mapping[str, int]) -> list[UnknownField]:
    """The fields of each stream, the most frequent first."""
    fields: dict[str, Counter[str]] = {}
    for counter, n in counted.items():
        kind, _, rest = counter.partition(" ")
        if kind == "unknown":
            stream, _, field = rest.partition(" ")
            fields.setdefault(stream, Counter())[field] += n
    return [
        {"stream": stream, "field": field, "bodies": n, "examined": counted.get(f"examined {stream}", 0)}
        for stream, found in sorted(fields.items())
        for field, n in found.most_common(SHOWN)
    ]


def status_lines(counted: Mapping[str, int]) -> Iterator[str]:
    """A line for each stream that has some."""
    rows = unknown_fields(counted)
    for stream in dict.fromkeys(row["stream"] for row in rows):
        found = [row for row in rows if row["stream"] == stream]
        named = ", ".join(f"{terminal.printable(row['field'])} ({row['bodies']})" for row in found[:NAMED])
        more = f" and {len(found) - NAMED} others" if len(found) > NAMED else ""
        yield f"{stream}: of {found[0]['examined']} bodies examined, fields that no column has: {named}{more}."
