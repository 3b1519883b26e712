"""The stream of spans."""

from __future__ import annotations

from sluice.streams import custom
from sluice.streams.decoder import JsonDecoder
from sluice.streams.record import Span
from sluice.streams.registry import built_in


class Unbounded(JsonDecoder):
    bounded = False  # as attributes of logs


SPANS = built_in("spans", Span, Unbounded, *custom.wire(Span))
