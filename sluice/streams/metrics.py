"""Decodes metrics: plain JSON objects and forms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from sluice.base.override import override
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty, Form
from sluice.streams.decoder import JsonDecoder, Result, check_text, load, typed_form
from sluice.streams.lenient_json import struct_reader, text_values
from sluice.streams.message import Message
from sluice.streams.record import INT64, UINT64, Invalid, Metric, Record, Text
from sluice.streams.times import TIMES, Time, nanoseconds_of

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


class Loose(Plain):
    """A null is what JavaScript writes for a number that is not finite, and for a sensor without a reading."""

    value: Value | None  # type: ignore[assignment]
    tags: dict[str, msgspec.Raw] | list[Any] | None = None  # type: ignore[assignment]
    labels: dict[str, msgspec.Raw] | list[Any] | None = None  # type: ignore[assignment]


REMEDY = "; for an object of numbers, name it: /metrics?name=NAME"
read_loose = struct_reader(Loose)
read_flat = msgspec.json.Decoder(dict[str, Any]).decode


def from_text(text: str) -> Value:
    """The value of a text that is a JSON number or boolean; any other is a text. Raises: Invalid."""
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        if math.isinf(float(text)):
            raise Invalid("value out of range")
        return float(text)
    return text == "true" if text in ("true", "false") else text


def listed(tags: list[Any]) -> dict[str, str]:
    """Tags in an array: "NAME:VALUE" or "NAME=VALUE", a text alone, or an object with a name and a value."""
    found = {}
    for tag in tags:
        if isinstance(tag, str):
            name, _, value = tag.partition(":" if ":" in tag else "=")
            found[name] = value
        elif isinstance(tag, dict):
            names = [tag[key] for key in ("key", "name", "tag", "Name", "Key") if isinstance(tag.get(key), str)]
            if names:
                found[names[0]] = str(tag.get("value", tag.get("Value", "")))
    found.pop("", None)
    return found


def is_nameless(error: Exception) -> bool:
    return "missing" in str(error) and ("name" in str(error) or "value" in str(error))


def listed_values(sent: dict[str, Any]) -> dict[str, Value]:
    """The values of an array of objects with a name and a value, as sensor.community's sensors send them."""
    entries = [
        entry for value in sent.values() if isinstance(value, list) for entry in value if isinstance(entry, dict)
    ]
    found: dict[str, Value] = {}
    for entry in entries:
        name, value = entry.get("value_type", entry.get("name")), entry.get("value")
        value = from_text(value) if isinstance(value, str) else value
        if isinstance(name, str) and name and isinstance(value, int | float):
            found[name] = value
    return found


def flat(sent: dict[str, Any], name: str, budget: Budget) -> list[Record]:
    """A metric for each number or boolean of an object; its texts are tags, also those that are numbers if its values
    are in an array. Raises: Invalid if it has no number.
    """
    time = nanoseconds_of(*(scalar_time(sent.pop(key, None)) for key in TIMES))
    measured = scalar_time(sent.pop("dateutc", None))  # of weather stations, which may say "now"
    time = nanoseconds_of(measured) if time is None and measured != "now" else time
    values = listed_values(sent)
    is_listed = bool(values)
    tags: dict[str, str] = {}
    for key, value in sent.items():
        found = from_text(value) if isinstance(value, str) and not is_listed else value
        if key and isinstance(found, int | float):
            values[key] = found
        elif key and isinstance(value, str) and value:
            tags[key] = value
    if not values:
        raise Invalid("no number")
    budget.repeat(len(values), bodies.encoded_size(tags, name))
    made: list[Record] = []
    for key, value in values.items():
        stored, kind = typed_value(value)
        made.append(check_text(Metric(time=time, name=name, tags=tags, field=key, value=stored, type=kind)))
    return made


def scalar_time(value: Any) -> Time:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None


def from_loose(wire: Loose) -> Metric:
    """The record of an object that is not a plain one. Raises: Invalid, Empty."""
    if wire.value is None:
        raise Empty("null")
    tags: Any = wire.tags or wire.labels
    tags = listed(tags) if isinstance(tags, list) else text_values(tags)
    return build_metric(msgspec.structs.replace(wire, tags=tags, labels=None, itemid=None))


class MetricsDecoder(JsonDecoder):
    bounded = False  # tags and fields take about 20 bytes of memory per byte

    @override
    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Record:
        return from_loose(read_loose(part, budget))

    @override
    def object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Iterable[Result]:
        try:
            return super().object(part, message, budget, error)
        except (Invalid, msgspec.ValidationError) as wrong:
            name = message.parameter("name") if message else ""
            if not name:
                raise Invalid(f"{bodies.reject_reason(wrong)}{REMEDY}" if is_nameless(wrong) else str(wrong)) from None
            return flat(read_flat(part), name, budget)

    @override
    def form_records(self, fields: Form, message: Message | None, budget: Budget) -> Sequence[Record]:
        name = fields.get("name") or (message.parameter("name") if message else "")
        if name and "value" not in fields:
            return flat({key: value for key, value in fields.items() if key != "name"}, name, budget)
        return super().form_records(fields, message, budget)

    @override
    def text(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        if bodies.is_form(body, b"name"):  # line protocol has a space before the fields of a line
            return self.form_records(bodies.decode_form(body, budget.limits), message, budget)
        if form := typed_form(body, message, budget, ("name",)):
            return self.form_records(form, message, budget)
        if message and message.parameter("name") and b"=" in body and not re.search(rb"\s", body):
            return self.form_records(bodies.decode_form(body, budget.limits), message, budget)
        if not self.texts:
            return super().text(body, message, budget)
        return chain.from_iterable(load(decoder)(body, None, budget) for decoder in self.texts)

    @override
    def plain_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Record:
        plain: dict[str, Value] = {**fields}
        if "value" in fields:
            plain["value"] = from_text(fields["value"])
        return check_text(self.build(msgspec.convert(plain, self.wire)))
