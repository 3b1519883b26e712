"""Decodes positions: plain JSON objects and forms, and the recognition of the clients' own formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from sluice.formats import gpslogger, homeassistant, overland, owntracks, traccar
from sluice.streams.body import Budget
from sluice.streams.decoder import JsonDecoder, Result
from sluice.streams.message import Message
from sluice.streams.position import Number, position
from sluice.streams.record import Gps
from sluice.streams.times import Time, first

HOME_ASSISTANT = "/homeassistant"

NotNegative = Annotated[float, msgspec.Meta(ge=0)] | None
Raw = msgspec.Raw | msgspec.UnsetType


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


class Shape(msgspec.Struct, rename={"kind": "_type"}):
    """The fields by which the formats are recognised."""

    kind: Raw = msgspec.UNSET
    locations: Raw = msgspec.UNSET
    location: Raw = msgspec.UNSET


read_loose = msgspec.json.Decoder(Loose).decode
read_shape = msgspec.json.Decoder(Shape).decode


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

    def object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Iterable[Result]:
        """OwnTracks, Overland, Traccar Client 9, Home Assistant, or a plain object that `Plain` does not accept."""
        shape = read_shape(part)
        if shape.kind is not msgspec.UNSET:
            return (owntracks.decode(part, message),)
        if shape.locations is not msgspec.UNSET:
            return overland.decode(part, budget)
        if shape.location is not msgspec.UNSET:
            return (traccar.decode(part),)
        if message and message.path == HOME_ASSISTANT:
            return (homeassistant.decode(part, message),)
        return (loose(read_loose(part)),)

    def form(self, fields: dict[str, str]) -> Gps:
        """Traccar's form if the device is `id` or `deviceid`, GPSLogger's if it has `longitude`, else a plain one."""
        if "device" not in fields and ("id" in fields or "deviceid" in fields):
            return traccar.form(fields)
        if "longitude" in fields:
            return gpslogger.form(fields)
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
