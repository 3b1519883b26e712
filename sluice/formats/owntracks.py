"""Decodes OwnTracks (the Booklet, "JSON" and "HTTP"): one object per request, `"_type":"location"`."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec.structs import astuple

from sluice.streams.body import Budget
from sluice.streams.message import Message, field, parameter
from sluice.streams.position import KMH, Number, position
from sluice.streams.record import Gps, Invalid
from sluice.streams.times import Time


class Location(msgspec.Struct, rename={"kind": "_type"}):
    """A payload: speed in km/h, time in seconds since 1970."""

    kind: str
    tid: str | int | None = None
    topic: str | None = None
    lat: Number = None
    lon: Number = None
    tst: Time = None
    alt: Number = None
    vel: Number = None
    acc: Number = None
    cog: Number = None
    batt: Number = None


read = msgspec.json.Decoder(Location).decode


def decode(part: bytes, message: Message | None, budget: Budget) -> tuple[Gps]:
    """The position of a payload.

    The device is `user/device` of the fields X-Limit-U and X-Limit-D or of the parameters u and d, else the topic
    without `owntracks/`, else the tracker id of two letters.

    Raises: Invalid if it is not a valid position; msgspec's errors.
    """
    location = read(part)
    if location.kind != "location":
        raise Invalid(f"not a position: _type {location.kind!r:.40}")
    named = sender(message.fields, message.query) if message else ""
    budget.charge(len(named))
    device = named or (location.topic or "").removeprefix("owntracks/") or location.tid
    return (position(device, *astuple(location)[3:], speed_unit=KMH),)


@lru_cache(maxsize=1)  # a body may have many payloads
def sender(lines: bytes, query: bytes) -> str:
    """`user/device`, or only the one that was sent; "" if neither was. lines, query: of the message."""
    user = field(lines, "X-Limit-U") or parameter(query, "u")
    device = field(lines, "X-Limit-D") or parameter(query, "d")
    return "/".join(x for x in (user, device) if x)
