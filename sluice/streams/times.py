"""Converts the time formats of clients to nanoseconds since 1970 UTC, for the decoders."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import lru_cache

from sluice.streams.record import Invalid

SECOND = 10**9
START = 100_000_000  # 1973 in seconds: a number of seconds after 2200 is an error, not milliseconds in spring 1970
END = 7_258_118_400  # 2200-01-01 in seconds: distinguishes the four units, and nanoseconds fit into 64 bits
UNITS = [(START * SECOND // unit * (unit < SECOND), END * SECOND // unit, unit) for unit in (SECOND, 10**6, 1000, 1)]
PLACES: list[int] = [SECOND // 10**places for places in range(10)]  # nanoseconds of the last of so many decimal places
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Time = int | float | str | None
TIMES = "time", "ts", "timestamp"  # the names that it has in plain objects and forms, in this order

NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20})?")
ISO = re.compile(
    r"(\d{4}-?\d\d-?\d\d)"
    r"(?:[T ](\d\d:?\d\d(?::?\d\d)?)(?:[.,](\d{1,30}))?)?"
    r"(?: ?(Z|[+-]\d\d(?::?\d\d)?)| (\d\d:?\d\d))?",  # an unencoded + in a form, as of an offset, decodes to a space
    re.ASCII | re.IGNORECASE,
)


def nanoseconds(value: int | float | str) -> int:
    """Nanoseconds since 1970 UTC of a number or a string.

    A number is in seconds, milliseconds, microseconds or nanoseconds: in the unit that puts it between 1970 (for units
    smaller than a second, March 1973) and 2200. Integers are exact; a float is rounded to a microsecond, which is more
    precise than a float of seconds since 1970.
    A string is such a number or ISO 8601; without an offset it is UTC.

    Raises: Invalid, a ValueError, if it is neither, or not after 1970-01-01 and before 2200-01-01.
    """
    number = value
    if isinstance(value, str):
        text = value.strip()
        if text[-1:] == "Z" or not (match := NUMBER.fullmatch(text)):
            return iso_nanoseconds(text)
        number = float(text) if match[1] else int(text)
    assert not isinstance(number, str)
    for start, end, unit in UNITS:
        if start < number < end:
            return round(number * (unit // 1000)) * 1000 if unit != 1 else round(number)
    raise Invalid(f"time out of range: {value!r:.40}")


def iso_nanoseconds(text: str) -> int:
    """`nanoseconds` of an ISO 8601 string: a date, or a date and a time with up to 9 decimal places."""
    # as programs write it, mostly several in the same second
    if text[-1:] == "Z" and (second := utc_second(text[:20])) is not None:
        fraction = text[20:-1]
        if fraction.isdecimal() and fraction.isascii() and text[19] == "." and len(fraction) < len(PLACES):
            return second + int(fraction) * PLACES[len(fraction)]
        if len(text) == 20:
            return second
    return parse_iso(text)


@lru_cache(maxsize=1024)
def utc_second(text: str) -> int | None:
    """The nanoseconds of a date and a time, whatever the character behind it; None if they are written otherwise.

    Raises: Invalid.
    """
    return parse_iso(text[:19] + "Z") if text[4:17:3] == "--T::" else None


def parse_iso(text: str) -> int:
    """`iso_nanoseconds` of any text. A leap second is the first one of the next day, as for POSIX. Raises: Invalid."""
    try:
        if not (match := ISO.fullmatch(text)):
            raise ValueError
        date, clock, fraction, offset, bare = match.groups()
        leap = bool(clock) and len(clock) > 5 and clock.endswith("60")
        clock = clock[:-2] + "59" if leap else clock or "00:00"
        moment = datetime.fromisoformat(f"{date}T{clock}{(offset or bare and '+' + bare or 'Z').upper()}")
        since = moment - EPOCH
    except (ValueError, OverflowError):
        raise Invalid(f"time not understood: {text!r:.40}") from None
    seconds = since.days * 86400 + since.seconds + leap
    if leap and seconds % 86400:
        raise Invalid(f"time not understood: {text!r:.40}")
    if not 0 < seconds < END:
        raise Invalid(f"time out of range: {text!r:.40}")
    return seconds * SECOND + int(f"{fraction or '0':0<9.9}")


def nanoseconds_of(time: Time, ts: Time = None, timestamp: Time = None) -> int | None:
    """The time of a record: the first of these that is understood; None if none is: the time of arrival is stored."""
    if type(time) is int and 0 < time < END:  # as `nanoseconds`, without the call
        return time * SECOND
    if type(time) is float and 0 < time < END:
        return round(time * 1_000_000) * 1_000
    if type(time) is str and time[-1:] == "Z":  # of programs
        try:
            return iso_nanoseconds(time)
        except Invalid:
            pass
    for sent in (time, ts, timestamp):
        if sent is None or sent == "":
            continue
        try:
            return nanoseconds(sent)
        except (Invalid, OverflowError):
            continue
    return None


def in_utc(moment: datetime) -> str:
    """A text whose order is that of the times. A time without a zone is taken for UTC, as that of a record is.

    Raises: OverflowError if it has no year in UTC.
    """
    moment = moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
