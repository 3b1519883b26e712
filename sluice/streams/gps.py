"""Decodes positions: plain JSON objects and forms. A contribution may know other names of the fields."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.base.override import override
from sluice.streams.body import Budget
from sluice.streams.decoder import JsonDecoder, check_text
from sluice.streams.lenient_json import struct_reader
from sluice.streams.message import Message
from sluice.streams.record import Gps
from sluice.streams.times import TIMES, Time, nanoseconds_of

FIELDS = [(field.name, field.type, msgspec.field(default=field.default)) for field in msgspec.structs.fields(Gps)[1:]]
FIELDS += [(name, Time, msgspec.field(default=None)) for name in TIMES]
# A valid plain object. The types contain the ranges, so that msgspec checks them while it decodes
Plain = msgspec.defstruct("Plain", FIELDS, gc=False, forbid_unknown_fields=True)
Loose = msgspec.defstruct("Loose", FIELDS, gc=False)  # any other one
read_loose = struct_reader(Loose)


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


class GpsDecoder(JsonDecoder):
    @override
    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Gps:
        return build_position(read_loose(part, budget))

    @override
    def plain_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Gps:
        made = build_position(msgspec.convert(fields, Loose, strict=False))
        check_text(made)
        return made
