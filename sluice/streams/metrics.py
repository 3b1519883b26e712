"""Decodes metrics: plain JSON objects and forms."""

from __future__ import annotations

import math
import re

import msgspec

from sluice.base.override import override
from sluice.streams.body import Budget
from sluice.streams.decoder import JsonDecoder, check_text
from sluice.streams.message import Message
from sluice.streams.record import INT64, UINT64, Invalid, Metric, Record, Text
from sluice.streams.times import Time, nanoseconds_of

Value = float | int | str | bool

INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


# How senders write a number that is none
NOT_FINITE = {"NaN": "NaN"} | dict.fromkeys(("Inf", "+Inf", "Infinity", "+Infinity"), "+Inf")
NOT_FINITE |= dict.fromkeys(("-Inf", "-Infinity"), "-Inf")


class Plain(msgspec.Struct, gc=False):
    name: Text
    value: Value
    field: Text = "value"
    tags: dict[str, str] | None = None
    labels: dict[str, str] | None = None  # as Prometheus, Loki and Google name them
    time: Time = None
    ts: Time = None
    timestamp: Time = None
    itemid: msgspec.Raw | None = None  # of Zabbix, whose time and host have other names


def build_metric(wire: Plain) -> Metric:
    value, kind, field = wire.value, "float", wire.field
    if wire.itemid is not None:
        raise Invalid("not a plain object")
    if type(value) is not float:
        value, kind = typed_value(value)
        if kind == "string" and (name := NOT_FINITE.get(str(value))):
            value, field = name, state_field(field)
    return Metric(
        time=nanoseconds_of(wire.time, wire.ts, wire.timestamp),
        name=wire.name,
        tags=wire.tags or wire.labels or {},
        field=field,
        value=value,
        type=kind,
    )


def typed_value(value: Value) -> tuple[float | int | str, str]:
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


def state_field(field: str) -> str:
    """The field of a number that is not finite, which is a text: so `value` has numbers only."""
    return "state" if field == "value" else field + "_state"


def from_text(text: str) -> Value:
    """The value of a text that is a JSON number or boolean; any other is a text. Raises: Invalid."""
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        if math.isinf(float(text)):
            raise Invalid("value out of range")
        return float(text)
    return text == "true" if text in ("true", "false") else text


class MetricsDecoder(JsonDecoder):
    bounded = False  # tags and fields take about 20 bytes of memory per byte

    @override
    def plain_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Record:
        plain: dict[str, Value] = {**fields}
        if "value" in fields:
            plain["value"] = from_text(fields["value"])
        return check_text(self.build(msgspec.convert(plain, self.wire)))
