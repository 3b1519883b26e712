"""Makes a record of one position for the decoders: checks the ranges of the values that a client sent."""

from __future__ import annotations

import re
from sys import float_info

from sluice.streams.record import Gps, Invalid
from sluice.streams.times import Time, first

Number = float | str | None

# What a position may also have: the least and the greatest value. Clients send others for "unknown"
MOST = float_info.max
RANGES = {
    "altitude": (-MOST, MOST),
    "speed": (0, MOST),
    "accuracy": (0, MOST),
    "bearing": (0, 360),
    "battery": (0, 100),
}

NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE
)
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
    sent = number(value, what)
    if sent is None:
        raise Invalid(f"missing: {what}")
    if not -limit <= sent <= limit:
        raise Invalid(f"{what} out of range: {sent}")
    return sent


def optional(value: Number, field: str, unit: float = 1.0) -> float | None:
    """A number times `unit`; None if it is not in the range of its field. Raises: Invalid if it is not a number."""
    if value is None or (sent := value if isinstance(value, float) else number(value, field)) is None:
        return None
    least, most = RANGES[field]
    sent *= unit
    return sent if least <= sent <= most else None


def position(
    device: str | int | None,
    lat: Number,
    lon: Number,
    time: Time = None,
    altitude: Number = None,
    speed: Number = None,
    accuracy: Number = None,
    bearing: Number = None,
    battery: Number = None,
    ts: Time = None,
    timestamp: Time = None,
    *,
    speed_unit: float = 1.0,
    battery_unit: float = 1.0,
) -> Gps:
    """A position. speed_unit: in metres per second. battery_unit: in percent.

    The decoders' Structs have their fields in the order of these parameters.

    Raises: Invalid if device, latitude, longitude or time are missing or invalid, or an optional value is not a number.
    """
    name = "" if device is None else str(device)
    if not name:
        raise Invalid("missing: device")
    if "\0" in name:  # `check_texts` takes 0.3 µs
        raise Invalid("text with a NUL")
    return Gps(
        time=first(time, ts, timestamp),
        device=name,
        lat=required(lat, "latitude", 90),
        lon=required(lon, "longitude", 180),
        altitude=optional(altitude, "altitude"),
        speed=optional(speed, "speed", speed_unit),
        accuracy=optional(accuracy, "accuracy"),
        bearing=optional(bearing, "bearing"),
        battery=optional(battery, "battery", battery_unit),
    )
