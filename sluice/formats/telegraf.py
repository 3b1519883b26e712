"""Decodes Telegraf's JSON ("JSON output data format"): a point, or `{"metrics":[…]}`; one row per field."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.streams.record import INT64, UINT64, Invalid, Metric
from sluice.streams.times import Time, first

Value = float | int | str | bool


class Point(msgspec.Struct):
    """A point. A field that is null is not stored."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    fields: dict[str, Value | None]
    tags: dict[str, str] | None = None
    time: Time = None
    ts: Time = None
    timestamp: Time = None


read = msgspec.json.Decoder(Point).decode


def decode(part: bytes) -> list[Metric]:
    """The fields of a point. An invalid field makes the point invalid. Raises: Invalid, msgspec's errors."""
    point = read(part)
    time = first(point.time, point.ts, point.timestamp)
    tags = point.tags or {}
    metrics = []
    for key, value in point.fields.items():
        if not key:
            raise Invalid("field without a name")
        if value is not None:
            stored, kind = typed(value)
            metrics.append(Metric(time=time, name=point.name, tags=tags, field=key, value=stored, type=kind))
    if not metrics:
        raise Invalid("no field")
    return metrics


def typed(value: Value) -> tuple[float | int | str, str]:
    """A JSON value as it is stored, and its type.

    An integer beyond 64 bits is stored as a float: JavaScript writes 1e20 as 100000000000000000000. Raises: Invalid.
    """
    if isinstance(value, bool):
        return int(value), "boolean"
    if isinstance(value, float):
        return value, "float"
    if isinstance(value, str):
        return value, "string"
    if value in INT64:
        return value, "integer"
    if value in UINT64:
        return str(value), "unsigned"
    try:
        return float(value), "float"
    except OverflowError:
        raise Invalid("value out of range") from None
