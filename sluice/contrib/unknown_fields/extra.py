"""The column `extra`: what the record type of a stream does not name, as JSON.

    {"device":"a","lat":1,"lon":2,"fix":"3d"}      device a, lat 1, lon 2, extra {"fix":"3d"}

Kept are the members of plain objects and the fields of forms, also under other names that a decoder knows. An object
`extra` in a body is the beginning of it, so that a row, sent again, is the same row. A wire format is read by its own
decoder, whose rows have NULL here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from math import isfinite
from typing import Any

import msgspec

from sluice.base.override import override
from sluice.settings import SettingError, Settings
from sluice.streams.body import Budget
from sluice.streams.decoder import JsonDecoder
from sluice.streams.message import Message
from sluice.streams.record import Decoded, Record
from sluice.streams.registry import Stream

COLUMN = "extra"
read_object = msgspec.json.Decoder(dict[str, Any]).decode


class ExtraDecoder(JsonDecoder):
    """A decoder whose records have the column. It is mixed into the class of the stream's own."""

    bounded = False  # of an object, all members are in memory
    record: Any

    def start(self, record: type[Record]) -> None:
        """record: that of the stream, with the column."""
        self.record = record
        read, build = self.read, self.build
        self.read = lambda part: (read(part), part)

        def build_both(sent: Any) -> Record:
            if sent.__class__ is not tuple:  # of a form
                return build(sent)
            return self.complete(build(sent[0]), self.unknown(read_members(sent[1])))

        self.build = build_both

    def complete(self, record: Record, extra: dict[str, Any] | None) -> Record:
        made: Record = self.record(**{name: getattr(record, name) for name in record.__struct_fields__}, extra=extra)
        return made

    def unknown(self, sent: Mapping[str, Any]) -> dict[str, Any] | None:
        """The members of an object that no column has; None: there are none. A null says nothing."""
        named = self.named(sent)
        extra = {name: value for name, value in sent.items() if name not in named and value is not None}
        own = extra.get(COLUMN)
        if isinstance(own, dict) and own.keys().isdisjoint(extra):
            del extra[COLUMN]
            extra |= own
        return extra or None

    @override
    def read_plain(self, read: Any, body: bytes, budget: Budget) -> list[Record]:
        return []  # each object is looked at

    @override
    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Record:
        record = super().loose_object(part, message, budget, error)
        return self.complete(record, self.unknown(read_members(part)))

    @override
    def plain_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Record:
        sent = {**fields}
        return self.complete(super().plain_form(fields, message, budget), self.unknown(sent))

    @override
    def decode_body(self, body: bytes, message: Message | None, budget: Budget) -> Decoded:
        decoded = super().decode_body(body, message, budget)
        records: Sequence[Record] = [
            record if record.__class__ is self.record else self.complete(record, None) for record in decoded.records
        ]
        return msgspec.structs.replace(decoded, records=records)


def read_members(part: bytes) -> dict[str, Any]:
    """The members of an object; a number that no database holds is a text. Raises: any exception."""
    try:
        return read_object(part)
    except msgspec.ValidationError:
        sent: dict[str, Any] = json.loads(part, parse_float=real_or_text)
        msgspec.json.encode(sent)  # raises for half of a surrogate pair
        return sent


def real_or_text(text: str) -> float | str:
    number = float(text)
    return number if isfinite(number) else text


def keep_extra(stream: Stream) -> Stream:
    """The stream with the column. Raises: TypeError if its bodies are no JSON, or if it has such a column."""
    decoder, record = stream.decoder, stream.record
    if decoder is None:
        raise TypeError(f"extra=True: the bodies of the stream {stream.name!r} have a parser of their own")
    if COLUMN in map(str.lower, record.__struct_fields__):
        raise TypeError(f"extra=True: {record.__name__} has a field {COLUMN!r}")
    kept: Any = msgspec.defstruct(
        record.__name__,
        [(COLUMN, dict[str, Any] | None, None)],
        bases=(record,),
        module=record.__module__,
        namespace={"__post_init__": lambda self: None, "__doc__": record.__doc__},  # it was called
        kw_only=True,
    )
    kind = decoder.__class__
    extending: Any = copy(decoder)
    extending.__class__ = type(f"Extra{kind.__name__}", (ExtraDecoder, kind), {})
    extending.start(kept)
    return stream._replace(record=kept, decode=extending.fast_path(), decoder=extending)


def extend_streams(streams: Mapping[str, Stream], s: Settings) -> dict[str, Stream]:
    """The built-in streams, those of INGEST_EXTRA with the column. Raises: SettingError."""
    wanted: Iterable[str] = s.extra
    known = [name for name, stream in streams.items() if stream.decoder]
    for name in wanted:
        if name not in known:
            raise SettingError(
                f"INGEST_EXTRA={' '.join(s.extra)!r} is invalid: expected {', '.join(sorted(known))}; the other "
                "built-in streams keep all that they are sent, and one of your own has stream(…, extra=True)."
            )
    return {name: keep_extra(stream) if name in s.extra else stream for name, stream in streams.items()}
