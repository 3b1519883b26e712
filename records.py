"""Which stream holds which records, and the decoder that makes them of list items: pure functions on the worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import settings as _settings
from formats import custom, gps, metrics, signature, votes
from formats.decoder import Decoder
from formats.record import Bad, Bounds, Gps, Metric, Record, Reject, Vote

if TYPE_CHECKING:
    from settings import Settings

__all__ = ["STREAMS", "Bad", "Bounds", "Gps", "Metric", "Record", "Reject", "Stream", "Vote"]
__all__ += ["bounds", "load", "signed", "stream"]


LONGEST_NAME = 63  # bytes: PostgreSQL cuts longer names off
# the sink's own tables, their indexes, and what SQLite keeps for itself
TABLES = re.compile(r"(batches|dead_letters)(_.*)?|sqlite_.*", re.IGNORECASE)
# the sink's own columns, and those that PostgreSQL gives every table
COLUMNS = {"received_at", "batch", "seq", "tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}


class Stream(NamedTuple):
    """A stream: its name, its records, and how an item becomes records.

    record: the type of all its records; the fields are the columns, `time` first.
    decode: `decode(item, bounds)` takes a list item, a body or a whole kept HTTP message, as far as `bounds` allow.
        It never raises. An item of which nothing can be stored is exactly one Reject with `whole`.
    part: `decode` for a part of an item that was let in once, which is a letter that is not whole; None: the same.
    """

    name: str
    record: type[Record]
    decode: Callable[[bytes, Bounds], Iterable[Record | Reject]]
    part: Callable[[bytes, Bounds], Iterable[Record | Reject]] | None = None


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


def signed(stream: Stream, secrets: str, scheme: str) -> Stream:
    """The same stream, but a body that none of the secrets has signed is buried whole, with that reason.

    Its routes keep the head.

    secrets: the path of a file with one secret a line; the new one and the old one while they change.
    scheme: github, stripe or standard (standardwebhooks.com).
    Raises: SettingError if the file or the scheme makes no sense.
    """
    name = f"the secret of the stream {stream.name!r}"
    rules = signature.SCHEMES.get(scheme)
    if rules is None:
        raise _settings.SettingError(f"scheme={scheme!r} is none of {', '.join(signature.SCHEMES)}")
    text = _settings.secret(name, secrets)
    try:
        keys = [rules.key(line) for line in map(str.strip, text.splitlines()) if line]
    except ValueError:
        keys = []
    if not keys:
        raise _settings.SettingError(f"{name}: {secrets} has not one of {scheme} a line")

    def decode(item: bytes, bounds: Bounds) -> Iterable[Record | Reject]:
        try:
            signature.verify(item, rules, keys)
        except Bad as error:
            return (Reject(item, str(error), True),)
        return stream.decode(item, bounds)

    return stream._replace(decode=decode, part=stream.decode)


STREAMS: dict[str, Stream] = {
    "metrics": Stream("metrics", Metric, metrics.MetricsDecoder(metrics.Plain, metrics.build).decode),
    "gps": Stream("gps", Gps, gps.GpsDecoder(gps.Plain, gps.build).decode),
    "votes": Stream("votes", Vote, Decoder(votes.Plain, votes.build).decode),
}


def load(settings: Settings) -> dict[str, Stream]:
    """All streams: the built-in ones and those of the user's module, which may replace them.

    Raises: SettingError if the module cannot be imported, has no STREAMS, or one that no database could hold.
    """
    if not settings.records:
        return dict(STREAMS)
    own = getattr(_settings.extension("INGEST_RECORDS", settings.records), "STREAMS", None)
    if not isinstance(own, dict) or not all(isinstance(x, Stream) for x in own.values()):
        own, why = {}, "it takes a module with STREAMS, a dict of the streams that records.stream makes"
    else:
        why = next(filter(None, (unfit(name, each) for name, each in own.items())), "") or same(STREAMS | own)
    if why:
        raise _settings.SettingError(f"INGEST_RECORDS={settings.records!r} makes no sense here: {why}.")
    return STREAMS | own


def bounds(settings: Settings) -> Bounds:
    """What one body may cost."""
    return Bounds(settings.max_inflated, settings.max_records, settings.max_record_bytes, settings.max_fields)


def unfit(name: object, one: Stream) -> str:
    """Why a stream under this name of STREAMS cannot have a table, or ""."""
    if name != one.name:
        return f"the stream {one.name!r} stands in STREAMS as {name!r}"
    if not fit(one.name):
        return f"a stream's name is an identifier of up to {LONGEST_NAME} bytes, which {one.name!r:.80} is not"
    if TABLES.fullmatch(one.name):
        return f"a stream cannot be named {one.name!r}, for the database has tables of such names already"
    if not (isinstance(one.record, type) and issubclass(one.record, Record)):
        return f"the record type of the stream {one.name!r} is not a subclass of Record"
    names = one.record.__struct_fields__
    if names[0] != "time":
        return f"the record type of the stream {one.name!r} needs kw_only=True, for `time` comes first"
    for field in names:
        if not fit(field):
            return f"a field's name is an identifier of up to {LONGEST_NAME} bytes, which {field!r:.80} is not"
        if field.lower() in COLUMNS:
            return f"a field of the stream {one.name!r} cannot be named {field!r}, for every table has such a column"
    return same(names)


def fit(name: str) -> bool:
    """Whether every database can have a table or column of this name."""
    return name.isidentifier() and len(name.encode()) <= LONGEST_NAME


def same(names: Iterable[str]) -> str:
    """Which two of these names are one to a database that does not tell A from a; or ""."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            return f"{other!r} and {name!r} are one name to a database"
    return ""
