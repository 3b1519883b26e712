"""Decodes logs: JSON objects, forms, and plain lines. A contribution may know other names of the fields."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from sluice.base.override import override
from sluice.streams import body as bodies
from sluice.streams.body import Budget
from sluice.streams.decoder import JsonDecoder, Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log
from sluice.streams.times import TIMES, nanoseconds_of

NO_MESSAGE = "missing: message"
FIELDS = "level", "service"
# Only what begins so must be JSON, because a plain line may begin with anything, often with `[`. A truncated object is
# more often a mistake of its sender than a message: it is buried, and can be repaired
OBJECTS = re.compile(rb"\{|\[\s*\{")


def build_log(wire: dict[str, Any]) -> Log:
    """The record of a JSON object. Whatever is not a field of the record becomes an attribute. Raises: Invalid."""
    attributes = {name: value for name, value in wire.items() if value is not None}
    message, own = attributes.pop("message", None), attributes.pop("attributes", None)
    if message is None:
        raise Invalid(NO_MESSAGE)
    time = None
    for name in TIMES:
        sent = attributes.get(name)
        if type(sent) in (int, float, str) and (time := nanoseconds_of(sent)) is not None:
            del attributes[name]
            break
    level, service = (attributes.pop(name) if type(attributes.get(name)) is str else None for name in FIELDS)
    if isinstance(own, dict) and own.keys().isdisjoint(attributes):
        attributes |= own
    elif own is not None:
        attributes["attributes"] = own
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    return Log(time=time, level=level and level.lower(), service=service, message=text, attributes=attributes)


class LogsDecoder(JsonDecoder):
    bounded = False  # attributes take about 20 bytes of memory per byte

    @override
    def decode_json(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        if not OBJECTS.match(body) and not bodies.is_json(body):  # a line may begin as JSON does: `[warn] disk full`
            return self.decode_text(body, message, budget)
        return super().decode_json(body, message, budget)

    @override
    def decode_text(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        if b"\n" in body:
            return self.walk_lines(body, message, budget)
        if bodies.is_form(body, b"message") or bodies.is_form(body, b"msg"):  # a line of a log has spaces
            return (self.decode_form(bodies.decode_form(body, budget.limits), message, budget),)
        if len(body) > budget.limits.record:
            raise Invalid(f"line longer than {budget.limits.record} bytes")
        if b"\0" in body:
            raise Invalid("text with a NUL")
        return (self.decode_line(body.decode()),)

    def decode_line(self, text: str) -> Log:
        return Log(message=text)
