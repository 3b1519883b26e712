"""Times as ISO 8601.

A wall clock is read for times that are shown or stored. What lasts is measured by the monotonic clock, and what a
clock that has stepped could delete or delay has a bound.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache


@lru_cache(maxsize=4096)
def second(seconds: int) -> str:
    """A second since 1970 as ISO 8601, UTC, without an offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=4096)
def instant(microseconds: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC with milliseconds."""
    return f"{second(microseconds // 1_000_000)}.{microseconds // 1000 % 1000:03d}Z"


def microseconds(text: str) -> int:
    """The inverse of `instant`."""
    return int(datetime.fromisoformat(text).timestamp() * 1000 + 0.5) * 1000
