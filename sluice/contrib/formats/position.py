"""Decodes positions as phones and trackers send them: other names of the fields, values that are nearly right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sluice.base.override import override
from sluice.contrib.formats.format_decoder import FormatDecoder, formats_of
from sluice.contrib.formats.lenient_json import scalar_or_text
from sluice.streams import gps
from sluice.streams.body import Budget, Empty
from sluice.streams.message import Message
from sluice.streams.record import RANGES, Gps, Invalid
from sluice.streams.registry import Stream
from sluice.streams.times import Time, nanoseconds_of

Number = float | int | str | None

# The names that a field has in what phones send, in the order in which they are tried: of Sluice, of OwnTracks and
# Colota (colota.app, "API Reference": metres per second, percent), of GPSLogger, of browsers ("Geolocation"), of
# Transistor's and Expo's libraries, of Home Assistant. Names that mean another unit elsewhere are left out
# (`battery_level`, `level`)
NAMES = {
    "device": "device device_id deviceId deviceid deviceID imei tid id",
    "lat": "lat latitude Latitude LAT",
    "lon": "lon lng long longitude Longitude LON",
    "time": "time ts timestamp tst datetime date recorded_at Timestamp",
    "altitude": "altitude alt elevation ele",
    "speed": "speed vel velocity spd s",
    "accuracy": "accuracy acc horizontal_accuracy horizontalAccuracy gps_accuracy hacc",
    "bearing": "bearing bear heading course cog direction dir",
    "battery": "battery batt bat",
}
ALIASES = {field: tuple(names.split()) for field, names in NAMES.items()}
NAMES_ONLY = {"u", "d", "device"}  # the parameters of a URL that say who sends
NESTED = "coords", "location", "position"  # objects that have some of the fields
OTHER_NAMES = *NESTED, "battery_level"  # the latter is 0 to 1 in GeoJSON, and percent elsewhere
PATH = "gps"  # the name of a device that has none, if the head of its request was not kept

# A valid plain object; any other field may be another name of one of its own
Plain = msgspec.defstruct("Plain", gps.FIELDS, gc=False, forbid_unknown_fields=True)
# Any other one: its fields may have other names, and are read one by one. `coords` holds some of them in browsers
Loose = msgspec.defstruct(
    "Loose",
    [
        (name, Raw | UnsetType, UNSET)
        for name in (*OTHER_NAMES, *(name for names in ALIASES.values() for name in names))
    ],
)
read_loose: Callable[[Any], Any] = msgspec.json.Decoder(Loose).decode

NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE
)
KNOT = 1852 / 3600  # metres per second
KMH = 1 / 3.6


def parse_number(value: Number, what: str) -> float | None:
    """A number, also one sent as a string, with the comma of the phone's language; None if it is missing or blank.

    Raises: Invalid.
    """
    if value is None or value.__class__ is float:
        return value
    if value.__class__ is int:
        return float(value)
    if not isinstance(value, str):
        raise Invalid(f"{what} is not a number: {value!r:.40}")
    if not (text := value.strip()):
        return None
    if not NUMBER.fullmatch(text):
        text = text.replace(",", ".", 1)
        if not NUMBER.fullmatch(text):
            raise Invalid(f"{what} is not a number: {value.strip()!r:.40}")
    return float(text)


def required_number(value: Number, what: str, field: str) -> float:
    """A number in the range of its field. Raises: Invalid."""
    sent = parse_number(value, what)
    if sent is None:
        raise Invalid(f"missing: {what}")
    least, most = RANGES[field]
    if not least <= sent <= most:
        raise Invalid(f"{what} out of range: {sent}")
    return sent


def optional_number(value: Number, field: str, unit: float = 1.0) -> float | None:
    """A number times `unit`; None if it is none, or not in the range of its field: clients mean "unknown" by it."""
    if value is None:
        return None
    try:
        sent = parse_number(value, field)
    except (Invalid, OverflowError):
        return None
    if sent is None:
        return None
    least, most = RANGES[field]
    sent *= unit
    return sent if least <= sent <= most else None


def build_position(
    device: str | int,
    lat: Number,
    lon: Number,
    time: Time = None,
    altitude: Number = None,
    speed: Number = None,
    accuracy: Number = None,
    bearing: Number = None,
    battery: Number = None,
    *,
    speed_unit: float = 1.0,
    battery_unit: float = 1.0,
) -> Gps:
    """A position. speed_unit: in metres per second. battery_unit: in percent.

    The decoders' Structs have their fields in the order of these parameters. An optional value that is not understood
    is unknown; without a time, the position has that of its arrival.

    Raises: Invalid if device, latitude or longitude are missing or invalid.
    """
    name = str(device)
    if not name:
        raise Invalid("missing: device")
    if "\0" in name:  # `check_texts` takes 0.3 µs
        raise Invalid("text with a NUL")
    return Gps(
        time=nanoseconds_of(time),
        device=name,
        lat=required_number(lat, "latitude", "lat"),
        lon=required_number(lon, "longitude", "lon"),
        altitude=optional_number(altitude, "altitude"),
        speed=optional_number(speed, "speed", speed_unit),
        accuracy=optional_number(accuracy, "accuracy"),
        bearing=optional_number(bearing, "bearing"),
        battery=optional_number(battery, "battery", battery_unit),
    )


def device_of(message: Message | None, budget: Budget, path: str) -> str:
    """The device of a position that names none: a parameter of the URL with one of its ALIASES, else the last part of
    the path.

    path: this part, if the head was not kept. Raises: Invalid.
    """
    name = ""
    if message:
        if message.query:
            name = next((value for alias in ALIASES["device"] if (value := message.parameter(alias))), "")
        name = name or message.path.rpartition("/")[2]
    name = name or path
    budget.charge_bytes(len(name))
    return name


def from_names(get: Callable[[str], Number], device: Callable[[], str]) -> Gps:
    """A position of fields that have any of their ALIASES.

    get: what was sent under a name. device: called if the position names none. Raises: Invalid.
    """
    values: dict[str, Number] = {}
    for field, names in ALIASES.items():
        for name in names:
            if (value := get(name)) is not None and value != "":
                values[field] = value
                break
    name = str(values.pop("device", "") or device())
    return build_position(name, values.pop("lat", None), values.pop("lon", None), **values)  # type: ignore[arg-type]


def field_getter(*sent: Any) -> Callable[[str], Number]:
    """What gets a field of the first of these objects (`Loose`) that has it."""

    def get(name: str) -> Number:
        for fields in sent:
            value: Any = getattr(fields, name, UNSET)
            if value is not UNSET and (name not in ALIASES["device"] or bytes(value)[:1] not in b"tf[{"):
                return scalar_or_text(value)
        return None

    return get


def from_object(part: bytes, device: Callable[[], str]) -> Gps:
    """The position of an object with any names. device: called if it names none. Raises: Invalid, msgspec's errors."""
    sent = read_loose(part)
    inside = [bytes(found) for name in NESTED if (found := getattr(sent, name)) is not UNSET]
    return from_names(field_getter(sent, *(read_loose(found) for found in inside if found.startswith(b"{"))), device)


class NamedGpsDecoder(FormatDecoder):
    @override
    def named(self, sent: Mapping[str, Any]) -> set[str]:
        present = ([name for name in names if sent.get(name) not in (None, "")] for names in ALIASES.values())
        return {names[0] for names in present if names} | {name for name in NESTED if isinstance(sent.get(name), dict)}

    @override
    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Gps:
        return from_object(part, lambda: device_of(message, budget, PATH))

    @override
    def plain_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Gps:
        if message and not message.body and fields.keys() <= NAMES_ONLY:  # as OwnTracks sends it
            raise Empty
        return from_names(fields.get, lambda: device_of(message, budget, PATH))


DECODER = NamedGpsDecoder(Plain, gps.build_position, formats_of("gps"))
GPS = Stream("gps", Gps, DECODER.fast_path(Gps), content=True, decoder=DECODER)
