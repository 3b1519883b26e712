"""JSON objects of a body, for formats that are single objects, arrays of them, or one a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from sluice.contrib.formats.json_rows import walk_json
from sluice.streams import body as bodies
from sluice.streams.body import Budget
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Record

read = msgspec.json.Decoder(dict[str, Any]).decode


def object_records(
    body: bytes, budget: Budget, build: Callable[[dict[str, Any]], Iterable[Record]]
) -> Iterable[Result]:
    """The records of all objects; each invalid object is one reject.

    build: makes the records of one. Raises: any exception.
    Raises, before it yields: Invalid if the body is not JSON; what `build` raises for the only object.
    """

    def value(part: bytes, *_: object) -> Iterable[Result]:
        if len(part) > budget.limits.record:  # an object takes about 20 bytes of memory per byte
            raise Invalid(f"record larger than {budget.limits.record} bytes")
        made = build(read(part))
        return [check_text(record) for record in made] if NUL in part else made

    def alone(row: bytes, *_: object) -> Iterable[Result]:
        try:
            return value(row)
        except (msgspec.DecodeError, UnicodeDecodeError):  # not one object, but an array, several, or none
            return object_records(row, budget, build)

    return walk_json(body.removeprefix(bodies.BOM).strip(), None, budget, value, alone)


def object_decoder(row: Callable[[dict[str, Any]], Record]) -> Callable[[bytes, Message, Budget], Iterable[Result]]:
    """The decoder of a format of which each object is one record. row: makes it. Raises: any exception."""
    return lambda body, message, budget: object_records(body, budget, lambda sent: (row(sent),))
