"""Decodes metrics as programs send them: objects of numbers under one name, tags in a list, null for no number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from sluice.base.override import override
from sluice.contrib.formats.charges import charge_rows
from sluice.contrib.formats.format_decoder import FormatDecoder, formats_of, typed_form
from sluice.contrib.formats.lenient_json import struct_reader, text_values
from sluice.contrib.formats.parts import encoded_size
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty, Form
from sluice.streams.decoder import Result, check_text, load
from sluice.streams.message import Message
from sluice.streams.metrics import MetricsDecoder, Plain, Value, build_metric, from_text, typed_value
from sluice.streams.record import Invalid, Metric, Record
from sluice.streams.registry import Stream
from sluice.streams.times import TIMES, Time, nanoseconds_of


class Loose(Plain):
    """A null is what JavaScript writes for a number that is not finite, and for a sensor without a reading."""

    value: Value | None  # type: ignore[assignment]
    tags: dict[str, msgspec.Raw] | list[Any] | None = None  # type: ignore[assignment]
    labels: dict[str, msgspec.Raw] | list[Any] | None = None  # type: ignore[assignment]


REMEDY = "; for an object of numbers, name it: /metrics?name=NAME"
read_loose = struct_reader(Loose)
read_flat = msgspec.json.Decoder(dict[str, Any]).decode


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
    charge_rows(budget, len(values), encoded_size(tags, name))
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


class LooseMetricsDecoder(MetricsDecoder, FormatDecoder):
    @override
    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Record:
        return from_loose(read_loose(part, budget))

    @override
    def decode_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Iterable[Result]:
        try:
            return super().decode_object(part, message, budget, error)
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
    def decode_text(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        if bodies.is_form(body, b"name"):  # line protocol has a space before the fields of a line
            return self.form_records(bodies.decode_form(body, budget.limits), message, budget)
        if form := typed_form(body, message, budget, ("name",)):
            return self.form_records(form, message, budget)
        if message and message.parameter("name") and b"=" in body and not re.search(rb"\s", body):
            return self.form_records(bodies.decode_form(body, budget.limits), message, budget)
        if not self.texts:
            return super().decode_text(body, message, budget)
        return chain.from_iterable(load(decoder)(body, None, budget) for decoder in self.texts)


DECODER = LooseMetricsDecoder(Plain, build_metric, formats_of("metrics"))
METRICS = Stream("metrics", Metric, DECODER.fast_path(), precision="ns", content=True, typed=True, decoder=DECODER)
