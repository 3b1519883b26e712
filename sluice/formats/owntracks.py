"""Decodes OwnTracks (the Booklet, "JSON" and "HTTP"): one object per request, `"_type":"location"`."""

from __future__ import annotations

import msgspec
from msgspec.structs import astuple

from sluice.streams.body import Budget
from sluice.streams.message import Message
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
    device = sender(message) or (location.topic or "").removeprefix("owntracks/") or location.tid
    return (position(device, *astuple(location)[3:], speed_unit=KMH),)


def sender(message: Message | None) -> str:
    """`user/device`, or only the one that was sent; "" if neither was."""
    if not message:
        return ""
    user = message.field("X-Limit-U") or message.parameter("u")
    device = message.field("X-Limit-D") or message.parameter("d")
    return "/".join(x for x in (user, device) if x)
