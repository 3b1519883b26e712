"""Decodes Traccar ("OsmAnd protocol"): the form of Traccar Client to 8 and OsmAnd, and the JSON of Traccar Client 9.

Also what Traccar's server passes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec
from msgspec.structs import astuple

from sluice.contrib.formats.lenient_json import struct_reader
from sluice.contrib.formats.parts import decode_parts
from sluice.contrib.formats.position import KNOT, PATH, Number, build_position, device_of, from_object
from sluice.streams import body as bodies
from sluice.streams.body import ATTEMPT_COST, Budget, Empty
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Gps, Invalid
from sluice.streams.times import Time


class Coords(msgspec.Struct):
    """Degrees, metres, metres per second."""

    latitude: Number = None
    longitude: Number = None
    altitude: Number = None
    speed: Number = None
    accuracy: Number = None
    heading: Number = None


class Battery(msgspec.Struct):
    """The level is 0 to 1."""

    level: Number = None


class Location(msgspec.Struct):
    coords: Coords
    timestamp: Time = None
    battery: Battery | None = None


class Request(msgspec.Struct):
    location: Location
    device_id: str | int | None = None


class Batch(msgspec.Struct):
    """The requests of the client's library may have several (transistorsoft, "HTTP Guide", batchSync)."""

    location: msgspec.Raw
    device_id: msgspec.Raw = msgspec.Raw(b"null")


class Attributes(msgspec.Struct):
    batteryLevel: Number = None


class Position(msgspec.Struct):
    """Knots, percent. The order is that of `build_position`."""

    latitude: Number = None
    longitude: Number = None
    fixTime: Time = None
    altitude: Number = None
    speed: Number = None
    accuracy: Number = None
    course: Number = None
    attributes: Attributes | None = None


class Device(msgspec.Struct):
    uniqueId: str | int


class Flat(Position):
    """What Traccar's server passed on before version 5 (forward.json): the position, and its own number of a device."""

    deviceId: str | int | None = None


class Forward(msgspec.Struct):
    position: Position
    device: Device


read = struct_reader(Request)
read_batch = msgspec.json.Decoder(Batch).decode
read_forward = struct_reader(Forward)
read_flat = struct_reader(Flat)


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
    """The positions of a request of Traccar Client 9, or of its library. Raises: Invalid, msgspec's errors."""
    batch = read_batch(part)
    if not bytes(batch.location).startswith(b"["):
        return (decode_location(part, message, budget),)
    with suppress(Invalid, msgspec.MsgspecError):  # a position that has a field of this name
        return (from_object(part, lambda: device_of(message, budget, "traccar")),)
    head = b'{"device_id":%b,"location":' % bytes(batch.device_id)

    def one(element: bytes) -> tuple[Gps]:
        budget.charge_bytes(len(head))
        return (decode_location(head + element + b"}", message, budget),)

    return decode_parts(bodies.split_elements(bytes(batch.location), budget), one, budget, head + b"[", b"]}")


def decode_location(part: bytes, message: Message | None, budget: Budget) -> Gps:
    """The position of a request with one location. Raises: Invalid, msgspec's errors."""
    try:
        request = read(part, budget)
    except (Invalid, msgspec.MsgspecError):
        budget.left -= ATTEMPT_COST
        with suppress(Invalid, msgspec.MsgspecError):  # of another app
            return from_object(part, lambda: device_of(message, budget, "traccar"))
        raise
    location = request.location
    lat, lon, *values = *astuple(location.coords), location.battery.level if location.battery else None
    device = request.device_id or device_of(message, budget, "traccar")
    return build_position(device, lat, lon, location.timestamp, *values, battery_unit=100)


def forwarded(part: bytes, message: Message | None, budget: Budget) -> tuple[Gps]:
    """The position that Traccar's server passes on (traccar.org/forward, forward.type=json). Raises: as `decode`."""
    try:
        sent = read_forward(part, budget)
        position, device = sent.position, sent.device.uniqueId
    except (Invalid, msgspec.MsgspecError):
        position = read_flat(part, budget)
        if position.fixTime is None or position.latitude is None:
            with suppress(Invalid, msgspec.MsgspecError):
                return (from_object(part, lambda: device_of(message, budget, PATH)),)
            raise
        device = device_of(message, budget, "") if position.deviceId is None else position.deviceId
    *values, attributes = astuple(position)[:8]
    values.append(attributes.batteryLevel if attributes else None)
    return (build_position(device, *values, speed_unit=KNOT),)


# What clients of the protocol send beside its device (traccar.org/osmand): any other form may have an `id`
MARKS = frozenset(("timestamp", "batt", "hdop", "location", "cell", "wifi", "valid", "charge", "driverUniqueId"))


def decode_form(fields: dict[str, str]) -> Gps | None:
    """The position of a form whose device is `deviceid`, or `id` beside one of MARKS.

    The speed is in knots; `location` may replace lat and lon. A tracker without a fix sends the cells or networks that
    it sees (traccar.org/osmand). Raises: Invalid, Empty.
    """
    if "device" in fields or not ("deviceid" in fields or ("id" in fields and not MARKS.isdisjoint(fields))):
        return None
    lat, lon = fields.get("lat"), fields.get("lon")
    if lat is None and lon is None and "location" in fields:
        lat, comma, lon = fields["location"].partition(",")
        if not comma:
            raise Invalid("missing: longitude")
    if lat is None and lon is None and ("cell" in fields or "wifi" in fields):
        raise Empty("unlocated")
    return build_position(
        fields.get("id") or fields.get("deviceid") or "",
        lat,
        lon,
        fields.get("timestamp"),
        altitude=fields.get("altitude"),
        speed=fields.get("speed"),
        accuracy=fields.get("accuracy"),
        bearing=fields.get("bearing") or fields.get("heading"),
        battery=fields.get("batt"),
        speed_unit=KNOT,
    )
