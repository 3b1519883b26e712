"""Decodes MessagePack (github.com/msgpack/msgpack, spec.md), the default of Fluent Bit's and Fluentd's HTTP outputs.

A body has one object after the other: a record, an array of records (Logtail's libraries), or an array of a time and a
record (Fluentd's "Forward Protocol", Entry; Fluent Bit has metadata beside the time). A record is a row of `logs`, as
the same in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from sluice.contrib.formats.charges import BRACKETS
from sluice.contrib.formats.log_fields import build_log, time_scalar
from sluice.contrib.formats.parts import decode_parts, finite_or_text
from sluice.contrib.formats.register import MSGPACK
from sluice.streams.body import Budget, Remainder
from sluice.streams.decoder import Result, check_text
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log
from sluice.streams.times import SECOND, nanoseconds_of

# By the first byte of an object: the bytes behind it; those of its length, and the bytes behind that; those of the
# number of its objects, and how many each is
FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
ARRAY = b"\x91"  # of one object: what makes a body of an object that does not show what it is
EVENT_TIME = 0  # the type of Fluentd's time: seconds and nanoseconds

read = msgspec.msgpack.Decoder().decode


BYTES_PER_OBJECT = 8  # of Limits.record: an object may have one byte, and takes 80 of memory


class Cut(bytes):
    """A truncated object."""


class Dense(bytes):
    """An object that has too many others in it."""


def decode(body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
    """The records of a body; each invalid object is one reject."""
    return decode_parts(split_objects(body, budget), lambda part: (object_log(part, budget.limits.record),), budget)


def split_objects(body: bytes, budget: Budget) -> Iterator[bytes]:
    """The objects of a body, and of its arrays of records; a Remainder once the budget is used up."""
    at, most = 0, budget.limits.record // BYTES_PER_OBJECT
    missing = 0  # records of arrays that have begun
    while at < len(body):
        left, start = budget.left, at
        width = 0 if 0x90 <= body[at] < 0xA0 else {0xDC: 2, 0xDD: 4}.get(body[at], -1)
        first = at + 1 + width
        if width >= 0 and first < len(body) and (0x80 <= body[first] < 0x90 or body[first] in (0xDE, 0xDF)):
            missing += int.from_bytes(body[at + 1 : first], "big") if width else body[at] & 15
            at = first
            continue
        at, count = object_end(body, start, budget)
        if budget.left <= 0:
            yield Remainder(body[start:])
            return
        part = body[start:at]
        if not MSGPACK.match(part):
            part = ARRAY + part
        yield Cut(part) if at > len(body) else part if count <= most else Dense(part)
        budget.charge_part(left)
        missing -= missing > 0
    if missing and at == len(body):
        yield Cut(b"\xdd" + missing.to_bytes(4, "big"))


def object_end(body: bytes, at: int, budget: Budget) -> tuple[int, int]:
    """The end of the object at an offset, and how many objects it is. That of a truncated one is behind the body."""
    missing, size, count = 1, len(body), 0
    while missing and at < size and budget.left > 0:
        kind = body[at]
        at += 1
        missing -= 1
        count += 1
        budget.left -= not count % BRACKETS
        if kind < 0x80 or kind >= 0xE0:
            continue
        if kind < 0xA0:
            missing += (kind & 15) * (2 if kind < 0x90 else 1)
        elif kind < 0xC0:
            at += kind & 31
        elif kind in SIZED:
            width, more = SIZED[kind]
            at += width + more + int.from_bytes(body[at : at + width], "big")
        elif kind in COUNTED:
            width, each = COUNTED[kind]
            missing += each * int.from_bytes(body[at : at + width], "big")
            at += width
        else:
            at += FIXED.get(kind, 0)
    return size + 1 if missing else at, count


def object_log(part: bytes, limit: int) -> Log:
    """The row of an object. Raises: Invalid, UnicodeDecodeError."""
    if isinstance(part, Cut):
        raise Invalid("msgpack: truncated")
    if len(part) > limit:
        raise Invalid(f"record larger than {limit} bytes")
    if isinstance(part, Dense):
        raise Invalid(f"msgpack: more than {limit // BYTES_PER_OBJECT} values in a record")
    try:
        sent = read(part)
    except msgspec.DecodeError as error:
        raise Invalid(f"msgpack: {error}") from None
    *before, record = sent if isinstance(sent, list) and 0 < len(sent) < 3 else [sent]
    if not isinstance(record, dict):
        raise Invalid("msgpack: neither a record nor a time and a record")
    made = build_log(json_value(record))
    if made.time is None:
        time = before[0] if before else None
        made.time = time_of(time[0] if isinstance(time, list) and time else time)
    return check_text(made) if b"\0" in part else made  # type: ignore[return-value]


def time_of(sent: Any) -> int | None:
    """The time of a record; None if it is not understood."""
    if isinstance(sent, msgspec.msgpack.Ext) and sent.code == EVENT_TIME and len(data := bytes(sent.data)) == 8:
        seconds, rest = (int.from_bytes(part, "big") for part in (data[:4], data[4:]))
        return seconds * SECOND + rest if seconds and rest < SECOND else None
    return nanoseconds_of(sent.isoformat() if isinstance(sent, datetime) else time_scalar(sent))


def json_value(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(json_value(key)): json_value(inner) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if isinstance(value, float):
        return finite_or_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, msgspec.msgpack.Ext):
        return bytes(value.data).hex()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
