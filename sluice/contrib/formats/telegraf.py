"""Decodes Telegraf's JSON ("JSON output data format"): a point, or `{"metrics":[…]}`; one row per field."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sluice.contrib.formats.charges import charge_rows
from sluice.contrib.formats.lenient_json import struct_reader, text_or_json, text_values
from sluice.contrib.formats.parts import array_reader, decode_parts, encoded_size
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.metrics import Value, typed_value
from sluice.streams.record import Invalid, Metric
from sluice.streams.times import Time, nanoseconds_of


class Point(msgspec.Struct):
    """A point. A field that is null is not stored."""

    fields: dict[str, Value | None]
    name: str = ""
    measurement: str = ""  # as InfluxDB's clients name it
    tags: dict[str, str] | None = None
    time: Time = None
    ts: Time = None
    timestamp: Time = None


class LoosePoint(Point):
    fields: dict[str, msgspec.Raw]  # type: ignore[assignment]
    tags: dict[str, msgspec.Raw] | None = None  # type: ignore[assignment]


read_points = array_reader("metrics")
read_strict = msgspec.json.Decoder(Point).decode
read_loose = struct_reader(LoosePoint)
read_value = msgspec.json.Decoder(Value | None).decode


def read_point(part: bytes, budget: Budget) -> Point:
    """A point. A value that has no type of InfluxDB is stored as its JSON. Raises: Invalid, msgspec's errors."""
    try:
        return read_strict(part)
    except msgspec.ValidationError:
        return typed_point(read_loose(part, budget))


def typed_point(point: LoosePoint) -> Point:
    """A point with values of InfluxDB's types."""
    values: dict[str, Value | None] = {}
    for name, sent in point.fields.items():
        try:
            values[name] = read_value(sent)
        except msgspec.DecodeError:
            values[name] = text_or_json(sent)
    return Point(values, point.name, point.measurement, text_values(point.tags), point.time, point.ts, point.timestamp)


def decode_points(part: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
    """The fields of several points. Each invalid point is one reject. Raises: Invalid."""
    return decode_parts(
        bodies.split_elements(read_points(part), budget),
        lambda part: decode_point(part, message, budget),
        budget,
        b'{"metrics":[',
        b"]}",
    )


def decode_point(part: bytes, message: Message | None, budget: Budget) -> list[Metric]:
    """The fields of a point. An invalid field makes the point invalid. Raises: Invalid, msgspec's errors."""
    if len(part) > budget.limits.record:
        raise Invalid(f"record larger than {budget.limits.record} bytes")
    return [*point_records(read_point(part, budget), part, budget)]


def decode_loose_point(point: LoosePoint, part: bytes, budget: Budget) -> list[Result]:
    """The same of a point that was read already. part: as it was sent."""
    return [*point_records(typed_point(point), part, budget)]


def point_records(point: Point, part: bytes, budget: Budget) -> list[Metric]:
    name = point.name or point.measurement
    if not name:
        raise Invalid("missing: name")
    time = nanoseconds_of(point.time, point.ts, point.timestamp)
    tags = point.tags or {}
    metrics = []
    for key, value in point.fields.items():
        if not key:
            raise Invalid("field without a name")
        if value is not None:
            stored, kind = typed_value(value)
            metrics.append(Metric(time=time, name=name, tags=tags, field=key, value=stored, type=kind))
    if not metrics:
        if point.fields:
            raise Empty("null")
        raise Invalid("no field")
    if len(metrics) > 1:
        charge_rows(budget, len(metrics), encoded_size(tags, name))
    if NUL in part:
        for metric in metrics:
            check_text(metric)
    return metrics
