"""The stream of spans."""

from __future__ import annotations

from sluice.streams import custom
from sluice.streams.decoder import JsonDecoder
from sluice.streams.record import Span
from sluice.streams.registry import Stream, formats_of


class Unbounded(JsonDecoder):
    bounded = False  # as attributes of logs


SPANS = Stream("spans", Span, Unbounded(*custom.wire_of(Span), formats_of("spans")).fast_path(), content=True)
