"""Decodes positions that are GeoJSON (RFC 7946): a feature with a point, or a collection of them, on every path of gps.

The properties have the names that positions have elsewhere, or Overland's: Dawarich's own API and Colota's template
have such features. Overland sends its batches in `locations` (overland.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from sluice.contrib.formats.charges import charge_attempt
from sluice.contrib.formats.overland import Geometry, geometry_point
from sluice.contrib.formats.parts import array_reader, decode_parts
from sluice.contrib.formats.position import (
    PATH,
    device_of,
    field_getter,
    from_names,
    from_object,
    optional_number,
    read_loose,
)
from sluice.streams import body as bodies
from sluice.streams.body import ATTEMPT_COST, Budget
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Gps, Invalid


class Feature(msgspec.Struct):
    geometry: Geometry
    properties: msgspec.Raw = msgspec.Raw(b"{}")


read_features = array_reader("features")
read_feature = msgspec.json.Decoder(Feature).decode


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
    """The positions of a collection. An invalid feature is rejected as a collection of its own. Raises: Invalid."""
    with suppress(Invalid, msgspec.MsgspecError):  # a position that has a field of this name
        return iter((from_object(part, lambda: device_of(message, budget, PATH)),))
    features = bodies.split_elements(read_features(part), budget)
    return decode_parts(features, lambda one: decode_feature(one, message, budget), budget, b'{"features":[', b"]}")


def decode_feature(part: bytes, message: Message | None, budget: Budget) -> tuple[Gps]:
    """The position of a feature. Raises: Invalid, msgspec's errors."""
    try:
        sent = read_feature(part)
        lon, lat, altitude = geometry_point(sent.geometry)
    except (Invalid, msgspec.MsgspecError):
        charge_attempt(budget, len(part))
        with suppress(Invalid, msgspec.MsgspecError):  # a position that has a field of this name
            return (from_object(part, lambda: device_of(message, budget, PATH)),)
        raise
    budget.left -= ATTEMPT_COST  # each name is looked for
    get = field_getter(read_loose(sent.properties if bytes(sent.properties) != b"null" else b"{}"))
    own = {"lat": lat, "lon": lon}
    made = from_names(lambda name: own.get(name, get(name)), lambda: device_of(message, budget, PATH))
    made.altitude = optional_number(altitude, "altitude") if made.altitude is None else made.altitude
    made.battery = optional_number(get("battery_level"), "battery", 100) if made.battery is None else made.battery
    return (made,)
