"""The record types of the built-in streams, the limits of a body, and rejects: parts that cannot be stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from sys import float_info
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec

# What 64 bits hold, to look up an int in: for a float, `in` would search the whole range
INT64, UINT64 = range(-(2**63), 2**63), range(2**64)
NOTHING: Mapping[str, int] = MappingProxyType({})
# the store's own columns, the system columns of every table in PostgreSQL, and SQLite's names of the number of a row
SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"} | {"rowid", "oid", "_rowid_"}
RESERVED_COLUMNS = {"received_at", "batch", "seq", "sender", *SYSTEM_COLUMNS}


Text = Annotated[str, msgspec.Meta(min_length=1)]
# What a position may have: the least and the greatest value
RANGES = {
    "lat": (-90, 90),
    "lon": (-180, 180),
    "altitude": (-float_info.max, float_info.max),
    "speed": (0, float_info.max),
    "accuracy": (0, float_info.max),
    "bearing": (0, 360),
    "battery": (0, 100),
}


def range_meta(field: str) -> msgspec.Meta:
    return msgspec.Meta(ge=RANGES[field][0], le=RANGES[field][1])


class Record(msgspec.Struct, kw_only=True):
    """The base of every record type. The fields are the columns of the stream's table, in this order.

    time: nanoseconds since 1970 UTC; None: the time of arrival is stored.
    """

    time: int | None = None


# gc=False: a record has no reference cycle, so the collector need not traverse a batch of 100,000
class Metric(Record, kw_only=True, gc=False):
    """One field of one point.

    value: a float is finite, an integer fits into 64 bits with sign, a boolean is 1 or 0;
        an unsigned integer above 2**63-1 is the text of its digits.
    type: float, integer, unsigned, string or boolean.
    tags: records may share the dictionary; do not change it.
    """

    name: str
    tags: dict[str, str]
    field: str
    value: float | int | str
    type: str


# Plain objects are decoded to these two directly; any other field may be another name of one of theirs
class Gps(Record, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One position: degrees, metres, metres per second, degrees from north, percent. None: unknown."""

    device: Text
    lat: Annotated[float, range_meta("lat")]
    lon: Annotated[float, range_meta("lon")]
    altitude: Annotated[float, range_meta("altitude")] | None = None
    speed: Annotated[float, range_meta("speed")] | None = None
    accuracy: Annotated[float, range_meta("accuracy")] | None = None
    bearing: Annotated[float, range_meta("bearing")] | None = None
    battery: Annotated[float, range_meta("battery")] | None = None


class Vote(Record, kw_only=True, gc=False, forbid_unknown_fields=True):
    poll: Text
    choice: Text
    voter: str | None = None


class Log(Record, kw_only=True, gc=False):
    """One line of a log. attributes: whatever else was sent with it, as JSON values."""

    level: str | None = None
    service: str | None = None
    message: str
    attributes: dict[str, Any] = {}


class Reject(NamedTuple):
    """A part of an item that cannot be stored. It becomes a dead letter.

    part: the bytes to bury: the whole item if `whole`, otherwise a body that holds the invalid record alone, so that
        the same decoder can decode it again.
    reason: one line of at most 200 characters; the kind of error comes first.
    whole: nothing of the item can be stored.
    """

    part: bytes
    reason: str
    whole: bool = False


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """What a list item is decoded to: all of it, so that it is decoded once, before a transaction begins.

    without_rows: how many parts were valid and have no row, by kind. A client's status message is one.
    size: bytes of the inflated body, and of what several records have of it; 0: those of the item.
    """

    records: Sequence[Record] = ()
    rejects: Sequence[Reject] = ()
    without_rows: Mapping[str, int] = NOTHING
    size: int = 0

    def __iter__(self) -> Iterator[Record | Reject]:
        return chain(self.records, self.rejects)


class Limits(NamedTuple):
    """The limits of one body (docs/protocol/http.md). The defaults are those of the default settings.

    inflated: bytes of its content after decompression.
    records: number of records: a list of as many metrics takes 26 MB. What else a body has counts, too: see `Budget`.
    record: bytes of one record whose type does not bound its memory; a line of line protocol may have a quarter. A
        worker decodes one record at a time, and needs about 25 times its size in memory.
    fields: fields of one form; the forms of the supported clients have far fewer.
    room: bytes that its rows and dead letters may have more than once, beside eight times its own. A histogram of OTLP
        with 300 bytes and 1 kB of attributes is 20 kB of rows, and an application sends some hundreds at once.
    repeated: the same for one line, point or series, which is stored complete or not at all.
    """

    inflated: int = 8 << 20
    records: int = 65_536
    record: int = 1 << 20
    fields: int = 1_000
    room: int = 16 << 20
    repeated: int = 4 << 20


class Invalid(ValueError):
    """Data that cannot be stored; the text is the reason."""
