"""What a stream is: name, record type, and the decoder that makes records of list items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sluice.settings import BATCH, Settings
from sluice.streams.decoder import JsonDecoder
from sluice.streams.record import Decoded, Limits, Record
from sluice.streams.unique import Rule

Decode = Callable[[bytes, Limits], Decoded]


class Stream(NamedTuple):
    """A stream: its name, its record type and its decoder.

    record: the type of all its records; the fields are the columns, `time` first.
    decode: `decode(item, limits)` returns what is `Decoded` of a list item, which is a body or a kept HTTP message,
        with a Reject for each part that cannot be stored. If nothing can be, it is exactly one Reject with `whole`. It
        never raises, and depends on nothing but its arguments.
    part: Decodes the fragment stored in a partial dead letter; defaults to `decode`.
    precision: "ms", or "ns" for times to the nanosecond.
    typed: its column `value` has values of several types, which `type` names, and `tags` is a map: see `Metric`.
    decoder: of which `decode` is the whole, if the bodies are JSON of which it may leave out fields.
    content, unique, key, recent: see `Rule`. rule: with INGEST_UNIQUE; None: nothing has a key.
    """

    name: str
    record: type[Record]
    decode: Decode
    part: Decode | None = None
    precision: str = "ms"
    content: bool = False
    unique: tuple[str, ...] | None = None
    key: Callable[[Sequence[Record]], bytes] | None = None
    recent: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None
    rule: Rule | None = None
    typed: bool = False
    decoder: JsonDecoder | None = None


def body_limits(config: Settings) -> Limits:
    return Limits(BATCH * config.max_body)
