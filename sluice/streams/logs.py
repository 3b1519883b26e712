"""Decodes logs: JSON objects as common log libraries write them, forms, and plain lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from sluice.base.override import override
from sluice.streams import body as bodies
from sluice.streams.body import Budget
from sluice.streams.decoder import JsonDecoder, Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log
from sluice.streams.times import Time, first

# The names that a field has in the formats of log libraries, in the order in which they are tried: OpenTelemetry and
# Elastic's ECS, pino, slog, zap, structlog, Docker, Logstash
MESSAGES = "message", "msg", "log", "event"
LEVEL_FIELDS = "level", "severity", "log.level"
SERVICES = "service", "service.name"
TIMES = "time", "ts", "timestamp", "@timestamp"

# The levels are those of OpenTelemetry. Each has the names and numbers that mean the same elsewhere: of syslog (0 to
# 7), of pino and Bunyan (10 to 60), of Java's and Python's libraries, and of Serilog
LEVELS = {
    name: level
    for level, names in {
        "trace": "trace verbose finest finer silly 10",
        "debug": "debug fine 7 20",
        "info": "info information informational notice 5 6 30",
        "warn": "warn warning 4 40",
        "error": "error err severe 3 50",
        "fatal": "fatal critical crit alert emerg emergency panic 0 1 2 60",
    }.items()
    for name in names.split()
}

# Only what begins so must be JSON, because a plain line may begin with anything, often with `[`. A truncated object is
# more often a mistake of its sender than a message: it is buried, and can be repaired
OBJECTS = re.compile(rb"\{|\[\s*\{")


class Timed(msgspec.Struct):
    time: Time


def take(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Remove and return the first of these fields; None if there is none of them."""
    for name in names:
        if name in fields:
            return fields.pop(name)
    return None


def level(sent: object) -> tuple[str | None, object]:
    """The level that is stored for a level as it was sent, and the latter if it is not the same text in another case.

    A text or an integer that is not in LEVELS is stored as it was sent, in lower case.
    """
    if not isinstance(sent, str | int) or isinstance(sent, bool):
        return None, sent
    text = str(sent).strip().lower()
    stored = LEVELS.get(text, text)
    return stored or None, sent if stored != text or isinstance(sent, int) else None


def build(wire: dict[str, Any]) -> Log:
    """The record of a JSON object. Whatever is not a field of the record becomes an attribute. Raises: Invalid."""
    attributes = {name: value for name, value in wire.items() if value is not None}
    own = attributes.pop("attributes", None)
    message, sent, service, time = (take(attributes, names) for names in (MESSAGES, LEVEL_FIELDS, SERVICES, TIMES))
    if message is None:
        raise Invalid("missing: message")
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    if not isinstance(time, int | float | str | None) or isinstance(time, bool):
        msgspec.convert({"time": time}, Timed)  # raises the error that all streams have for it
    stored, sent = level(sent)
    if sent is not None:
        attributes["level"] = sent
    if service is not None and not isinstance(service, str):
        attributes["service"], service = service, None
    if isinstance(own, dict) and own.keys().isdisjoint(attributes):
        attributes |= own
    elif own is not None:
        attributes["attributes"] = own
    return Log(time=first(time), level=stored, service=service, message=message, attributes=attributes)


class LogsDecoder(JsonDecoder):
    bounded = False  # attributes take about 20 bytes of memory per byte

    @override
    def json(self, body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
        if not OBJECTS.match(body):  # a line may begin as JSON does: `[warn] disk full`
            try:
                bodies.check_json(body)
            except Invalid:
                return self.text(body, message, budget)
        return super().json(body, message, budget)

    @override
    def text(self, body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
        if b"\n" in body:
            yield from self.rows(body, message, budget)
        elif bodies.is_form(body, b"message"):  # a line of a log has spaces
            yield self.form(bodies.form(body, budget.limits))
        elif len(body) > budget.limits.record:
            raise Invalid(f"line longer than {budget.limits.record} bytes")
        elif b"\0" in body:
            raise Invalid("text with a NUL")
        else:
            yield Log(message=body.decode())
