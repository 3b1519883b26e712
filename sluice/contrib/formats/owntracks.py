"""Decodes OwnTracks (the Booklet, "JSON" and "HTTP"): one object per request, `"_type":"location"`."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec.structs import astuple

from sluice.contrib.formats.lenient_json import struct_reader
from sluice.contrib.formats.position import KMH, Number, build_position, device_of
from sluice.streams.body import Budget, Empty
from sluice.streams.message import Message, field, query_parameter
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


# Of the Booklet's types, "JSON": those with a position, and those without one. `encrypted` may hide one: it is invalid
POSITIONS = "location", "transition"
OTHERS = frozenset(
    ("beacon", "card", "cmd", "configuration", "dump", "lwt", "request", "status", "steps", "waypoint", "waypoints")
)
read = struct_reader(Location)


def decode(part: bytes, message: Message | None, budget: Budget) -> tuple[Gps]:
    """The position of a payload.

    The device is `user/device` of the fields X-Limit-U and X-Limit-D or of the parameters u and d (or device), else the
    topic without `owntracks/`, else the tracker id of two letters, else the last part of the path.

    Raises: Invalid if it is not a valid position; msgspec's errors.
    """
    location = read(part, budget)
    if location.kind not in POSITIONS:
        raise (
            Empty(location.kind) if location.kind in OTHERS else Invalid(f"not a position: _type {location.kind!r:.40}")
        )
    named = sender_name(message.fields, message.query) if message else ""
    budget.charge_bytes(len(named))
    device = named or topic_name(location.topic or "") or location.tid or device_of(message, budget, "owntracks")
    return (build_position(device, *astuple(location)[3:], speed_unit=KMH),)


@lru_cache(maxsize=1)  # a body may have many payloads
def sender_name(lines: bytes, query: bytes) -> str:
    """`user/device`, or only the one that was sent; "" if neither was. lines, query: of the message."""
    name = field(lines, "X-Limit-U") or query_parameter(query, "u")
    device = field(lines, "X-Limit-D") or query_parameter(query, "d") or query_parameter(query, "device")
    return "/".join(x for x in (name, device) if x)


def topic_name(name: str) -> str:
    """The user and the device in a topic: `owntracks/USER/DEVICE`, or that and `/event`."""
    return name.removeprefix("owntracks/").removesuffix("/event")
