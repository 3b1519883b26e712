"""Positions: plain JSON objects and forms. A contribution may know other names of the fields."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.streams.record import Gps
from sluice.streams.times import TIMES, Time, nanoseconds_of

FIELDS = [(field.name, field.type, msgspec.field(default=field.default)) for field in msgspec.structs.fields(Gps)[1:]]
FIELDS += [(name, Time, msgspec.field(default=None)) for name in TIMES]
# The types contain the ranges, so that msgspec checks them while it decodes
Plain = msgspec.defstruct("Plain", FIELDS, gc=False)


def build_position(wire: Any) -> Gps:
    return Gps(  # by each name: with ** it takes twice as long
        time=nanoseconds_of(wire.time, wire.ts, wire.timestamp),
        device=wire.device,
        lat=wire.lat,
        lon=wire.lon,
        altitude=wire.altitude,
        speed=wire.speed,
        accuracy=wire.accuracy,
        bearing=wire.bearing,
        battery=wire.battery,
    )
