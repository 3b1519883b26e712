"""Metrics: the plain JSON object or form, and which format a body is in otherwise."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from sluice.streams import body as bodies
from sluice.streams import influx, telegraf
from sluice.streams.body import Budget, Remainder
from sluice.streams.decoder import NUL, Decoder, Result, clean
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Metric, Record, Reject
from sluice.streams.telegraf import Value
from sluice.streams.times import Time, first

Name = Annotated[str, msgspec.Meta(min_length=1)]

# a line of line protocol has a space before its fields; a form writes its spaces as +
FORM = re.compile(rb"\s*(?:[^ \n]*&)?name=[^ \n]*+\s*")
INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class Plain(msgspec.Struct, gc=False):
    """A plain object."""

    name: Name
    value: Value
    field: Name = "value"
    tags: dict[str, str] | None = None
    time: Time = None
    ts: Time = None
    timestamp: Time = None


class Shape(msgspec.Struct):
    """What tells the formats apart."""

    metrics: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    fields: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


read_shape = msgspec.json.Decoder(Shape).decode


def build(wire: Plain) -> Metric:
    """The record of a plain object. Raises: Invalid."""
    value, kind = wire.value, "float"
    if type(value) is not float:
        value, kind = telegraf.typed(value)
    return Metric(
        time=first(wire.time, wire.ts, wire.timestamp),
        name=wire.name,
        tags=wire.tags or {},
        field=wire.field,
        value=value,
        type=kind,
    )


class MetricsDecoder(Decoder):
    """The decoder of metrics."""

    bounded = False  # tags and fields cost some 20 bytes of memory a byte

    def contents(self, body: bytes, message: Message | None, work: Budget) -> Iterator[Result]:
        """As ever, but what was written to an InfluxDB path is line protocol whatever it looks like."""
        if message and message.path.endswith("/write"):
            return lines(body.removeprefix(bodies.BOM), work, influx.scale(message.parameter("precision")))
        return super().contents(body, message, work)

    def object(self, part: bytes, message: Message | None, work: Budget, error: Exception) -> Iterable[Result]:
        """Telegraf's JSON."""
        shape = read_shape(part)
        if shape.metrics is not msgspec.UNSET:
            return self.metrics(bytes(shape.metrics), work)
        if shape.fields is not msgspec.UNSET:
            return point(part, work)
        raise error

    def metrics(self, array: bytes, work: Budget) -> Iterator[Result]:
        """The points of a batch of Telegraf's, each refused by itself."""
        if not array.startswith(b"["):
            raise Invalid("metrics is not an array")
        for element in bodies.elements(array, work):
            if isinstance(element, Remainder):
                yield Reject(b'{"metrics":[' + element + b"}", Remainder.reason, False)
                return
            try:
                yield from point(element, work)
            except Exception as error:  # each by itself
                yield Reject(b'{"metrics":[' + element + b"]}", bodies.why(error), False)

    def text(self, body: bytes, message: Message | None, work: Budget) -> Iterator[Result]:
        """A form, or line protocol."""
        if FORM.fullmatch(body):
            yield self.form(bodies.form(body, work.bounds))
            return
        yield from lines(body, work)

    def form(self, fields: dict[str, str]) -> Record:
        """A form, where a value that looks like a number or a boolean of JSON is one."""
        plain: dict[str, Value] = {**fields}
        text = fields.get("value", "")
        if INTEGER.fullmatch(text):
            plain["value"] = int(text)
        elif FLOAT.fullmatch(text):
            plain["value"] = float(text)
            if math.isinf(float(text)):
                raise Invalid("value out of range")
        elif text in ("true", "false"):
            plain["value"] = text == "true"
        return clean(self.build(msgspec.convert(plain, self.wire)))


def lines(body: bytes, work: Budget, unit: int = 1) -> Iterator[Result]:
    """The fields of line protocol; `work` and `unit` as there.

    A bad line that alone would look like something else is buried behind a comment.
    """
    for result in influx.decode(body, work, unit):
        if isinstance(result, Reject):
            part = result.part
            if part.startswith(bodies.BOM) or FORM.fullmatch(part) or part.lstrip()[:1] in b"{[":
                result = result._replace(part=b"#\n" + part)
        yield result


def point(part: bytes, work: Budget) -> list[Metric]:
    """The fields of one point of Telegraf's. Raises: Invalid, msgspec's errors."""
    if len(part) > work.bounds.record:
        raise Invalid(f"record larger than {work.bounds.record} bytes")
    metrics = telegraf.decode(part)
    if part.find(NUL) >= 0:
        for metric in metrics:
            clean(metric)
    return metrics
