"""Decodes positions: plain JSON objects and forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sluice.base.override import override
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import JsonDecoder
from sluice.streams.lenient import scalar
from sluice.streams.message import Message
from sluice.streams.position import ALIASES, Number, from_names, sender
from sluice.streams.record import Gps
from sluice.streams.times import TIMES, Time, nanoseconds_of

NAMES_ONLY = {"u", "d", "device"}  # the parameters of a URL that say who sends
NESTED = "coords", "location", "position"  # objects that have some of the fields
OTHER_NAMES = *NESTED, "battery_level"  # the latter is 0 to 1 in GeoJSON, and percent elsewhere
PATH = "gps"  # the name of a device that has none, if the head of its request was not kept


# A valid plain object. The types contain the ranges, so that msgspec checks them while it decodes
Plain = msgspec.defstruct(
    "Plain",
    [(field.name, field.type, msgspec.field(default=field.default)) for field in msgspec.structs.fields(Gps)[1:]]
    + [(name, Time, None) for name in TIMES],
    gc=False,
    forbid_unknown_fields=True,  # it may be another name of one of these
)
# Any other one: its fields may have other names, and are read one by one. `coords` holds some of them in browsers
Loose = msgspec.defstruct(
    "Loose",
    [
        (name, Raw | UnsetType, UNSET)
        for name in (*OTHER_NAMES, *(name for names in ALIASES.values() for name in names))
    ],
)
read_loose: Callable[[Any], Any] = msgspec.json.Decoder(Loose).decode


def getter(*sent: Any) -> Callable[[str], Number]:
    """What gets a field of the first of these objects (`Loose`) that has it."""

    def get(name: str) -> Number:
        for fields in sent:
            value: Any = getattr(fields, name, UNSET)
            if value is not UNSET and (name not in ALIASES["device"] or bytes(value)[:1] not in b"tf[{"):
                return scalar(value)
        return None

    return get


def from_object(part: bytes, device: Callable[[], str]) -> Gps:
    """The position of an object with any names. device: called if it names none. Raises: Invalid, msgspec's errors."""
    sent = read_loose(part)
    inside = [bytes(found) for name in NESTED if (found := getattr(sent, name)) is not UNSET]
    return from_names(getter(sent, *(read_loose(found) for found in inside if found.startswith(b"{"))), device)


def build(wire: Any) -> Gps:
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
        return from_object(part, lambda: sender(message, budget, PATH))

    @override
    def plain_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Gps:
        if message and not message.body and fields.keys() <= NAMES_ONLY:  # as OwnTracks sends it
            raise Empty
        return from_names(fields.get, lambda: sender(message, budget, PATH))
