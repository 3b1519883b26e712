"""The stream of spans."""

from __future__ import annotations

from typing import Any

from sluice.contrib.formats.format_decoder import FormatDecoder, formats_of
from sluice.streams import custom
from sluice.streams.record import Record
from sluice.streams.registry import Stream


class Span(Record, kw_only=True, gc=False):
    """One span of a trace.

    trace_id, span_id, parent_id: hexadecimal. start: nanoseconds since 1970, which `time` has in milliseconds.
    duration: nanoseconds. status: ok or error. attributes: JSON values. events, links: JSON objects.
    """

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    kind: str | None = None
    service: str | None = None
    start: int | None = None
    duration: int | None = None
    status: str | None = None
    attributes: dict[str, Any] = {}
    events: list[dict[str, Any]] | None = None
    links: list[dict[str, Any]] | None = None


class Unbounded(FormatDecoder):
    bounded = False  # as attributes of logs


SPANS = Stream("spans", Span, Unbounded(*custom.wire_of(Span), formats_of("spans")).fast_path(), content=True)
