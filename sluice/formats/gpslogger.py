"""Decodes forms of GPSLogger for Android: those of its default URL and of Home Assistant's instructions for it."""

from __future__ import annotations

from sluice.streams.position import position
from sluice.streams.record import Gps


def form(fields: dict[str, str]) -> Gps | None:
    """The position of a form with `longitude`; metres, metres per second, percent. Raises: Invalid."""
    if "longitude" not in fields:
        return None
    return position(
        fields.get("device"),
        fields.get("lat") or fields.get("latitude"),
        fields.get("lon") or fields.get("longitude"),
        fields.get("time"),
        altitude=fields.get("altitude"),
        speed=fields.get("s") or fields.get("speed"),
        accuracy=fields.get("accuracy"),
        bearing=fields.get("direction") or fields.get("bearing"),
        battery=fields.get("battery"),
        ts=fields.get("ts"),
        timestamp=fields.get("timestamp"),
    )
