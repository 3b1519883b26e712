"""CloudEvents in JSON (cloudevents.io, JSON Event Format 1.0) for the streams of a user's own: `data` is the record.

A structured event is one object, a batch an array of them. In the binary mode the body is the record itself, and the
field `ce-time` has the time (HTTP Protocol Binding 1.0, 3.1).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable

import msgspec

from sluice.base.override import override
from sluice.contrib.formats.format_decoder import FormatDecoder
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import Result, check_text
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Reject
from sluice.streams.times import nanoseconds, nanoseconds_of


class Event(msgspec.Struct):
    """data_base64: instead of `data`, if the sender takes it for bytes. time: that of a record without its own."""

    specversion: str
    data: msgspec.Raw = msgspec.Raw(b"")
    data_base64: str = ""
    time: str | None = None


read_event = msgspec.json.Decoder(Event).decode


class EventDecoder(FormatDecoder):
    """Decodes plain objects and, if these are not of the stream's type, events."""

    @override
    def decode_contents(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        results = super().decode_contents(body, message, budget)
        time = nanoseconds_of(message.field("ce-time")) if message else None
        return results if time is None else (with_time(result, time) for result in results)

    @override
    def decode_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Iterable[Result]:
        try:
            event = read_event(part)
        except msgspec.MsgspecError:
            return super().decode_object(part, message, budget, error)
        data = bytes(event.data) or b64decode(event.data_base64)
        if data.startswith(b'"'):  # some senders encode the record twice
            data = msgspec.json.decode(data, type=str).encode()
        if not data:
            raise Invalid("CloudEvent without data")
        budget.count_nested(data)
        record = self.build(self.read(data))
        if record.time is None and event.time:
            record = msgspec.structs.replace(record, time=nanoseconds(event.time))
        return (check_text(record),)


def with_time(result: Result, time: int) -> Result:
    """A record with this time, unless it has its own."""
    if isinstance(result, (Reject, Empty)) or result.time is not None:
        return result
    return msgspec.structs.replace(result, time=time)
