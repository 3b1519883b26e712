"""Times as ISO 8601.

A wall clock is read for times that are shown or stored. What lasts is measured by the monotonic clock, and what a
clock that has stepped could delete or delay has a bound.
"""

from __future__ import annotations

import contextlib
import time
from datetime import datetime, timezone
from functools import cache, lru_cache
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=4096)
def iso_second(seconds: int) -> str:
    """A second since 1970 as ISO 8601, UTC, without an offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=4096)
def iso_instant(microseconds: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC with milliseconds."""
    return f"{iso_second(microseconds // 1_000_000)}.{microseconds // 1000 % 1000:03d}Z"


def uptime_seconds() -> float:
    """Seconds since this machine was booted, also those in which it slept; no clock that is set changes them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """What no other boot of any machine has; "" if the system does not say it."""
    with contextlib.suppress(OSError):
        return BOOT.read_text().strip()
    return ""


def microseconds(text: str) -> int:
    """The inverse of `iso_instant`."""
    return int(datetime.fromisoformat(text).timestamp() * 1000 + 0.5) * 1000


def format_age(seconds: float) -> str:
    """Seconds as text with about two significant digits."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    for size, name in (60, "min"), (3600, "h"):
        if seconds < 100 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds / 86400:.0f} d"
