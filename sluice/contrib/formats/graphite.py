"""Decodes Graphite's lines ("Feeding In Your Data", the plaintext protocol): NAME VALUE SECONDS, at /metrics.

NAME may have tags: `cpu.load;host=a;core=1`. A time of -1 is that of arrival.
"""

from __future__ import annotations

import re
from math import isfinite

from sluice.contrib.formats.parts import finite_or_text
from sluice.streams.metrics import state_field
from sluice.streams.record import Invalid, Metric
from sluice.streams.times import nanoseconds

LINE = re.compile(
    r"(?P<name>[^\s;=,]++)(?P<tags>(?:;[^\s;=]++=[^\s;]++)*+)[ \t]++(?P<value>[^\s=]++)[ \t]++(?P<time>-?[0-9.]++)"
)


def row(line: str) -> Metric | None:
    """The row of a line; None: it is none. Raises: Invalid."""
    match = LINE.fullmatch(line)
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    if "\0" in line:
        raise Invalid("text with a NUL")
    is_number = isfinite(value)
    return Metric(
        time=None if match["time"].startswith("-") else nanoseconds(match["time"]),
        name=match["name"],
        tags=dict(tag.split("=", 1) for tag in match["tags"].split(";")[1:]),
        field="value" if is_number else state_field("value"),
        value=finite_or_text(value),
        type="float" if is_number else "string",
    )
