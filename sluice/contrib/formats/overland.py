"""Decodes Overland (its README, "API"): GeoJSON features (RFC 7946) in `{"locations":[…]}`.

An action of the app before its first position (GPSLogger/GLManager.m, logAction) is a feature without a geometry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import astuple

from sluice.contrib.formats.charges import charge_attempt
from sluice.contrib.formats.lenient_json import struct_reader
from sluice.contrib.formats.parts import decode_parts, json_array
from sluice.contrib.formats.position import Number, build_position, device_of, from_object
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Gps, Invalid
from sluice.streams.times import Time

MAX_COORDINATES = 512  # bytes: three numbers and ample white space


class Request(msgspec.Struct):
    """A request. Colota and others send the device here, once for all features."""

    locations: msgspec.Raw
    device_id: str | int | None = None


class Geometry(msgspec.Struct):
    type: str
    coordinates: msgspec.Raw = msgspec.Raw(b"[]")


class Properties(msgspec.Struct):
    """Metres, metres per second, degrees; the battery is 0 to 1."""

    device_id: str | int | None = None
    timestamp: Time = None
    altitude: Number = None
    speed: Number = None
    horizontal_accuracy: Number = None
    course: Number = None
    battery_level: Number = None
    type: Any = None


class Feature(msgspec.Struct):
    geometry: Geometry
    properties: Properties


class Unlocated(msgspec.Struct):
    geometry: msgspec.Raw = msgspec.Raw(b"")
    properties: dict[str, msgspec.Raw] = {}


read = struct_reader(Request)
read_feature = struct_reader(Feature)
read_unlocated = msgspec.json.Decoder(Unlocated).decode
read_coordinates = msgspec.json.Decoder(list[Any]).decode


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
    """The positions of a request, until the budget is used up. An invalid feature is rejected as a request of its own.

    Raises: Invalid, msgspec's errors.
    """
    request = read(part, budget)
    features = json_array(request.locations, "locations")
    owner = b"" if request.device_id is None else b'"device_id":' + msgspec.json.encode(request.device_id) + b","
    head = b"{" + owner + b'"locations":['

    def positions(part: bytes) -> tuple[Gps]:
        if request.device_id:
            budget.charge_bytes(len(owner))
        return (decode_feature(part, request.device_id or device_of(message, budget, "overland"), budget),)

    return decode_parts(bodies.split_elements(features, budget), positions, budget, head, b"]}")


def geometry_point(geometry: Geometry) -> tuple[Any, Any, Any]:
    """Longitude, latitude and altitude; None: not sent. Raises: Invalid, msgspec's errors."""
    if geometry.type != "Point":
        raise Invalid(f"not a position: geometry {geometry.type!r:.40}")
    coordinates = bytes(geometry.coordinates)
    if len(coordinates) > MAX_COORDINATES:
        raise Invalid("coordinates too long")
    lon, lat, altitude, *_ = *read_coordinates(coordinates), None, None, None
    return lon, lat, altitude


def decode_feature(element: bytes, device: str | int, budget: Budget) -> Gps:
    try:
        sent = read_feature(element, budget)
    except (Invalid, msgspec.ValidationError):
        action = read_unlocated(element)
        if bytes(action.geometry) in (b"", b"null") and "action" in action.properties:
            raise Empty("unlocated") from None
        with suppress(Invalid, msgspec.MsgspecError):  # Expo's and other libraries send plain objects
            charge_attempt(budget, len(element))
            return from_object(element, lambda: str(device))
        raise
    if sent.properties.type == "trip":  # its point is where the trip began; the positions are features of their own
        raise Empty("trip")
    lon, lat, _ = geometry_point(sent.geometry)
    own_device, *values, _ = astuple(sent.properties)
    return build_position(own_device or device, lat, lon, *values, battery_unit=100)
