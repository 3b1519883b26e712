"""Makes a record of one position for the decoders: checks the ranges of the values that a client sent."""

from __future__ import annotations

import math
import re

from sluice.streams.record import Gps, Invalid
from sluice.streams.times import Time, first

Number = float | str | None

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
KNOT = 1852 / 3600  # metres per second
KMH = 1 / 3.6


def number(value: Number, what: str) -> float | None:
    """A number, also one sent as a string; None if it is missing or blank. Raises: Invalid."""
    if value is None or isinstance(value, float):
        return value
    if not (text := value.strip()):
        return None
    if not NUMBER.fullmatch(text):
        raise Invalid(f"{what} is not a number: {text!r:.40}")
    return float(text)


def required(value: Number, what: str, limit: float) -> float:
    """A number within ±limit. Raises: Invalid."""
    found = number(value, what)
    if found is None:
        raise Invalid(f"missing: {what}")
    if not -limit <= found <= limit:
        raise Invalid(f"{what} out of range: {found}")
    return found


def optional(value: Number, what: str, minimum: float, maximum: float, factor: float = 1.0) -> float | None:
    """A number times `factor`; None if the product is out of range: clients send such values for "unknown".

    Raises: Invalid if it is not a number.
    """
    found = number(value, what)
    if found is None:
        return None
    found *= factor
    return found if minimum <= found <= maximum and math.isfinite(found) else None


def position(
    device: str | int | None,
    lat: Number,
    lon: Number,
    time: Time = None,
    ts: Time = None,
    timestamp: Time = None,
    *,
    altitude: Number = None,
    speed: Number = None,
    accuracy: Number = None,
    bearing: Number = None,
    battery: Number = None,
    speed_unit: float = 1.0,
    battery_unit: float = 1.0,
) -> Gps:
    """A position. speed_unit: in metres per second. battery_unit: in percent.

    Raises: Invalid if device, latitude, longitude or time are missing or invalid, or an optional value is not a number.
    An optional number out of range is unknown.
    """
    name = "" if device is None else str(device)
    if not name:
        raise Invalid("missing: device")
    if "\0" in name:
        raise Invalid("text with a NUL")
    return Gps(
        time=first(time, ts, timestamp),
        device=name,
        lat=required(lat, "latitude", 90),
        lon=required(lon, "longitude", 180),
        altitude=optional(altitude, "altitude", -math.inf, math.inf),
        speed=optional(speed, "speed", 0, math.inf, speed_unit),
        accuracy=optional(accuracy, "accuracy", 0, math.inf),
        bearing=optional(bearing, "bearing", 0, 360),
        battery=optional(battery, "battery", 0, 100, battery_unit),
    )
