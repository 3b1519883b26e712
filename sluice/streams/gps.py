"""Decodes positions: plain JSON objects and forms."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec.structs import astuple

from sluice.base.override import override
from sluice.streams.decoder import JsonDecoder
from sluice.streams.position import RANGES, Number, position
from sluice.streams.record import Gps
from sluice.streams.times import TIMES, Time, first


def within(least: float, most: float) -> Any:
    return Annotated[float, msgspec.Meta(ge=least, le=most)]


# A valid plain object. The types contain the ranges, so that msgspec checks them while it decodes
Plain = msgspec.defstruct(
    "Plain",
    [("device", Annotated[str, msgspec.Meta(min_length=1)]), ("lat", within(-90, 90)), ("lon", within(-180, 180))]
    + [(name, within(*RANGES[name]) | None, None) for name in RANGES]
    + [(name, Time, None) for name in TIMES],
    gc=False,
)
# A plain object with numbers that are out of range or sent as strings; its fields are in the order of `position`
Loose = msgspec.defstruct(
    "Loose",
    [("device", str | int | None, None)]
    + [(name, Number, None) for name in ("lat", "lon")]
    + [("time", Time, None)]
    + [(name, Number, None) for name in RANGES]
    + [(name, Time, None) for name in TIMES[1:]],
)
read_loose = msgspec.json.Decoder(Loose).decode


def build(wire: Any) -> Gps:
    return Gps(  # by each name: with ** it takes twice as long
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
    @override
    def loose_object(self, part: bytes, error: Exception) -> Gps:
        return position(*astuple(read_loose(part)))

    @override
    def plain_form(self, fields: dict[str, str]) -> Gps:
        return position(*astuple(msgspec.convert(fields, Loose)))
