"""Decodes the positions of Home Assistant's companion apps ("Sending data home", update_location).

An app that is set to send only its zone has `location_name` in the place of `gps` (home-assistant/iOS, pull 2015).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import astuple

from sluice.contrib.formats.lenient_json import struct_reader
from sluice.contrib.formats.position import Number, build_position, device_of
from sluice.streams.body import Budget, Empty
from sluice.streams.message import Message
from sluice.streams.record import Gps, Invalid


class Location(msgspec.Struct):
    """Degrees, metres, metres per second, percent. The apps send 0 or less for what they do not know."""

    gps: tuple[Number, Number] = (None, None)
    altitude: Number = None
    speed: Number = None
    gps_accuracy: Number = None
    course: Number = None
    battery: Number = None
    location_name: Any = None


class Request(msgspec.Struct):
    type: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")


# The other types of the apps (developers.home-assistant.io, "Sending data home"); `encrypted` may hide a position
OTHERS = {
    *("call_service", "conversation_process", "enable_cloudhook", "enable_encryption", "fire_event", "get_config"),
    *("get_zones", "register_sensor", "render_template", "scan_tag", "stream_camera", "update_registration"),
    "update_sensor_states",
}
read = msgspec.json.Decoder(Request).decode
read_location = struct_reader(Location)


def decode(part: bytes, message: Message, budget: Budget) -> tuple[Gps]:
    """The position of a message; the device is the parameter `device`. It has the time of arrival.

    Raises: Invalid if it is not a valid position; msgspec's errors.
    """
    request = read(part)
    if request.type in OTHERS:
        raise Empty(request.type)
    if request.type != "update_location":
        raise Invalid(f"not a position: type {request.type!r:.40}")
    about = read_location(bytes(request.data), budget)
    if about.location_name and about.gps == (None, None):
        raise Empty("unlocated")
    return (build_position(device_of(message, budget, "homeassistant"), *about.gps, None, *astuple(about)[1:-1]),)
