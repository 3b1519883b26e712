"""Which stream holds which records, and the decoder that makes them of list items: pure functions on the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import settings as _settings
from formats import custom, gps, metrics, votes
from formats.decoder import Decoder
from formats.record import Bad, Gps, Metric, Record, Reject, Vote

if TYPE_CHECKING:
    from settings import Settings

__all__ = ["STREAMS", "Bad", "Gps", "Metric", "Record", "Reject", "Stream", "Vote", "load", "stream"]


class Stream(NamedTuple):
    """A stream: its name, its records, and how an item becomes records.

    record: the type of all its records; the fields are the columns, `time` first.
    decode: `decode(item, most)` takes a list item, a body or a whole kept HTTP message, and inflates it to at most
        `most` bytes. It never raises. An item of which nothing can be stored is exactly one Reject with `whole`.
    """

    name: str
    record: type[Record]
    decode: Callable[[bytes, int], Iterable[Record | Reject]]


def stream(name: str, record_type: type[Record]) -> Stream:
    """A stream of one's own, from nothing but its record type.

        class Order(Record):
            sku: str
            count: int = 1

        STREAMS = {"orders": stream("orders", Order)}

    A body is what PROTOCOL.md, section 3 says: a JSON object, an array, NDJSON or a form with the fields of the type.
    Raises: TypeError if the type is not a subclass of Record.
    """
    record = custom.ordered(record_type)
    return Stream(name, record, Decoder(*custom.wire(record)).decode)


STREAMS: dict[str, Stream] = {
    "metrics": Stream("metrics", Metric, metrics.MetricsDecoder(metrics.Plain, metrics.build).decode),
    "gps": Stream("gps", Gps, gps.GpsDecoder(gps.Plain, gps.build).decode),
    "votes": Stream("votes", Vote, Decoder(votes.Plain, votes.build).decode),
}


def load(settings: Settings) -> dict[str, Stream]:
    """All streams: the built-in ones and those of the user's module, which may replace them.

    Raises: SettingError if the module cannot be imported or has no STREAMS.
    """
    if not settings.records:
        return dict(STREAMS)
    own = getattr(_settings.extension("INGEST_RECORDS", settings.records), "STREAMS", None)
    if not isinstance(own, dict) or not all(isinstance(x, Stream) for x in own.values()):
        raise _settings.SettingError(
            f"INGEST_RECORDS={settings.records!r} makes no sense here: it takes a module with STREAMS, "
            "a dict of the streams that records.stream makes."
        )
    return STREAMS | own
