"""Decodes series: objects with one name and several values, each of which is a row of `metrics`.

KairosDB ("Add Data Points"): `datapoints` are pairs of milliseconds and a value; or `timestamp` and `value`.
VictoriaMetrics ("JSON line format"): `metric` has the labels, with the name as `__name__`; `values` and `timestamps`,
in milliseconds, are as long as each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from sluice.contrib.formats.charges import charge_rows
from sluice.contrib.formats.lenient_json import text_values
from sluice.contrib.formats.parts import encoded_size
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.metrics import Value, from_text, typed_value
from sluice.streams.record import INT64, Invalid, Metric, Text

MILLISECOND = 1_000_000
NAME = "__name__"


class Points(msgspec.Struct):
    name: Text
    datapoints: list[tuple[int | str, Value | None]]
    tags: dict[str, msgspec.Raw] | None = None


class Arrays(msgspec.Struct):
    metric: dict[str, str]
    values: list[Value | None]
    timestamps: list[int]


read_points = msgspec.json.Decoder(Points).decode
read_arrays = msgspec.json.Decoder(Arrays).decode


def points(part: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
    """The rows of an object of KairosDB. Raises: Invalid, msgspec's errors."""
    check_size(part, budget)
    sent = read_points(part)
    return rows(sent.name, text_values(sent.tags), sent.datapoints, part, budget)


def arrays(part: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
    """The rows of a line of VictoriaMetrics. Raises: Invalid, msgspec's errors."""
    check_size(part, budget)
    sent = read_arrays(part)
    if len(sent.values) != len(sent.timestamps):
        raise Invalid("values and timestamps are not as long as each other")
    if not (name := sent.metric.pop(NAME, "")):
        raise Invalid(f"missing: metric.{NAME}")
    return rows(name, sent.metric, zip(sent.timestamps, sent.values), part, budget)


def check_size(part: bytes, budget: Budget) -> None:
    if len(part) > budget.limits.record:
        raise Invalid(f"record larger than {budget.limits.record} bytes")


def rows(
    name: str, tags: Mapping[str, str], given: Iterable[tuple[int | str, Any]], part: bytes, budget: Budget
) -> list[Result]:
    """A row for each value that is not null. Raises: Invalid, Empty."""
    pairs = [pair for pair in given if pair[1] is not None]
    if not pairs:
        raise Empty("null")
    charge_rows(budget, len(pairs), encoded_size(tags, name))
    made: list[Result] = []
    for at, sent in pairs:
        value, kind = typed_value(from_text(sent) if isinstance(sent, str) else sent)
        try:
            time = int(at) * MILLISECOND
        except ValueError:
            raise Invalid("a time is no number") from None
        if time not in INT64:
            raise Invalid("a time is out of range")
        metric = Metric(time=time, name=name, tags={**tags}, field="value", value=value, type=kind)
        made.append(check_text(metric) if NUL in part else metric)
    return made
