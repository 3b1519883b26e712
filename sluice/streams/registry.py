"""Which stream holds which records, and the decoder that makes them of list items: pure functions on the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from sluice.settings import Settings
from sluice.streams import custom, gps, metrics, votes
from sluice.streams.decoder import Decoder
from sluice.streams.record import Gps, Limits, Metric, Record, Reject, Vote

# The limits of a body that are no settings (DECISIONS.md)
BYTES_PER_RECORD = 32  # gzip packs four million short lines into 8 KB, and rejecting one takes 3 µs
MIN_RECORDS = 100_000
RECORD_BYTES = 1 << 20  # a worker decodes one record at a time, and needs about 25 times its size in memory
FORM_FIELDS = 1_000  # the forms of the supported clients have far fewer


class Stream(NamedTuple):
    """A stream: its name, its records, and how an item becomes records.

    record: the type of all its records; the fields are the columns, `time` first.
    decode: `decode(item, bounds)` takes a list item, a body or a whole kept HTTP message, as far as `bounds` allow.
        It never raises. An item of which nothing can be stored is exactly one Reject with `whole`.
    part: `decode` for a part of an item that was let in once, which is a letter that is not whole; None: the same.
    """

    name: str
    record: type[Record]
    decode: Callable[[bytes, Limits], Iterable[Record | Reject]]
    part: Callable[[bytes, Limits], Iterable[Record | Reject]] | None = None


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


def limits(config: Settings) -> Limits:
    """What one body may cost."""
    records = max(MIN_RECORDS, config.max_inflated // BYTES_PER_RECORD)
    return Limits(config.max_inflated, records, RECORD_BYTES, FORM_FIELDS)
