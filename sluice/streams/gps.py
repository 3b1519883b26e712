"""Decodes positions: plain JSON objects and forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from sluice.streams.decoder import JsonDecoder
from sluice.streams.format import Format
from sluice.streams.position import Number, position
from sluice.streams.record import Gps
from sluice.streams.times import Time, first

NotNegative = Annotated[float, msgspec.Meta(ge=0)] | None


class Plain(msgspec.Struct, gc=False):
    """A valid plain object. The types contain the ranges, so that msgspec checks them while it decodes."""

    device: Annotated[str, msgspec.Meta(min_length=1)]
    lat: Annotated[float, msgspec.Meta(ge=-90, le=90)]
    lon: Annotated[float, msgspec.Meta(ge=-180, le=180)]
    altitude: float | None = None
    speed: NotNegative = None
    accuracy: NotNegative = None
    bearing: Annotated[float, msgspec.Meta(ge=0, le=360)] | None = None
    battery: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    time: Time = None
    ts: Time = None
    timestamp: Time = None


class Loose(msgspec.Struct):
    """A plain object with numbers that are out of range or sent as strings."""

    device: str | int | None = None
    lat: Number = None
    lon: Number = None
    altitude: Number = None
    speed: Number = None
    accuracy: Number = None
    bearing: Number = None
    battery: Number = None
    time: Time = None
    ts: Time = None
    timestamp: Time = None


read_loose = msgspec.json.Decoder(Loose).decode


def build(wire: Plain) -> Gps:
    """The record of a plain object. Raises: Invalid if its time is invalid."""
    return Gps(
        time=first(wire.time, wire.ts, wire.timestamp),
        device=wire.device,
        lat=wire.lat,
        lon=wire.lon,
        altitude=wire.altitude,
        speed=wire.speed,
        accuracy=wire.accuracy,
        bearing=wire.bearing,
        battery=wire.battery,
    )


class GpsDecoder(JsonDecoder):
    """The decoder of positions."""

    def __init__(self, formats: Sequence[Format]) -> None:
        super().__init__(Plain, build, formats)

    def loose_object(self, part: bytes, error: Exception) -> Gps:
        """See `JsonDecoder.loose_object`."""
        return loose(read_loose(part))

    def plain_form(self, fields: dict[str, str]) -> Gps:
        """See `JsonDecoder.plain_form`."""
        return loose(msgspec.convert(fields, Loose))


def loose(wire: Loose) -> Gps:
    """The record of an object that `Plain` does not accept. Raises: Invalid."""
    return position(
        wire.device,
        wire.lat,
        wire.lon,
        wire.time,
        wire.ts,
        wire.timestamp,
        altitude=wire.altitude,
        speed=wire.speed,
        accuracy=wire.accuracy,
        bearing=wire.bearing,
        battery=wire.battery,
    )
