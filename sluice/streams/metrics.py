"""Decodes metrics: plain JSON objects and forms, and the recognition of Telegraf's JSON and line protocol."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from sluice.formats import influx, telegraf
from sluice.formats.telegraf import Value
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Remainder
from sluice.streams.decoder import NUL, JsonDecoder, Result, check_text
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Metric, Record, Reject
from sluice.streams.times import Time, first

Name = Annotated[str, msgspec.Meta(min_length=1)]

REMOTE_WRITE = "/api/v1/write"

# line protocol has a space before the fields of a line; a form encodes spaces as +
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
    """The fields by which the formats are recognised."""

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


class MetricsDecoder(JsonDecoder):
    """The decoder of metrics."""

    bounded = False  # tags and fields take about 20 bytes of memory per byte

    def contents(self, body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
        """See `Decoder.contents`. A body that was sent to a path of InfluxDB or Prometheus always has their format."""
        if message and message.path == REMOTE_WRITE:
            from sluice.formats import prometheus  # protobuf and snappy take 8 MB, which only its users need

            return prometheus.decode(body, message, budget)
        if message and message.path.endswith("/write"):
            return lines(body.removeprefix(bodies.BOM), budget, influx.scale(message.parameter("precision")))
        if message and message.path.endswith("/v1/metrics"):
            from sluice.formats import otlp, otlp_metrics  # 10 MB, and 0.1 s: only for those who send OTLP

            return otlp.decode(otlp_metrics.REQUEST, message, body, budget)
        return super().contents(body, message, budget)

    def object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Iterable[Result]:
        """Telegraf's JSON."""
        shape = read_shape(part)
        if shape.metrics is not msgspec.UNSET:
            return self.metrics(bytes(shape.metrics), budget)
        if shape.fields is not msgspec.UNSET:
            return point(part, budget)
        raise error

    def metrics(self, array: bytes, budget: Budget) -> Iterator[Result]:
        """The fields of a batch of Telegraf's points. Each invalid point is one reject."""
        if not array.startswith(b"["):
            raise Invalid("metrics is not an array")
        for element in bodies.elements(array, budget):
            if isinstance(element, Remainder):
                yield Reject(b'{"metrics":[' + element + b"}", Remainder.reason)
                return
            try:
                yield from point(element, budget)
            except Exception as error:
                yield Reject(b'{"metrics":[' + element + b"]}", bodies.reason(error))

    def text(self, body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
        """A form, or line protocol."""
        if FORM.fullmatch(body):
            yield self.form(bodies.form(body, budget.limits))
            return
        yield from lines(body, budget)

    def form(self, fields: dict[str, str]) -> Record:
        """The record of a form. A value written as a JSON number or JSON boolean is stored as one."""
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
        return check_text(self.build(msgspec.convert(plain, self.wire)))


def lines(body: bytes, budget: Budget, unit: int = 1) -> Iterator[Result]:
    """See `influx.decode`. Puts a comment before an invalid line that a replay would mistake for another format."""
    for result in influx.decode(body, budget, unit):
        if isinstance(result, Reject):
            part = result.part
            if part.startswith(bodies.BOM) or FORM.fullmatch(part) or part.lstrip()[:1] in b"{[":
                result = result._replace(part=b"#\n" + part)
        yield result


def point(part: bytes, budget: Budget) -> list[Metric]:
    """The fields of one of Telegraf's points. Raises: Invalid, msgspec's errors."""
    if len(part) > budget.limits.record:
        raise Invalid(f"record larger than {budget.limits.record} bytes")
    metrics = telegraf.decode(part)
    if NUL in part:
        for metric in metrics:
            check_text(metric)
    return metrics
