"""Decodes data points of OpenTSDB (its HTTP API, /api/put): `metric` is the name, and a value may be in a text."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from sluice.contrib.formats.lenient_json import struct_reader
from sluice.contrib.formats.loose_metrics import Loose, from_loose, read_loose
from sluice.streams.body import Budget
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.metrics import from_text
from sluice.streams.record import Invalid, Text


class Point(Loose):
    name: Text = msgspec.field(name="metric")


read = struct_reader(Point)


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
    """The record of an object with a `metric`; if it has a `name`, too, that counts. Raises: Invalid, msgspec's."""
    limit = budget.limits.record
    if len(part) > limit:
        raise Invalid(f"record larger than {limit} bytes")
    wire = None
    with suppress(Invalid):
        wire = read_loose(part, budget)
    if wire is None:
        wire = read(part, budget)
        if isinstance(wire.value, str):
            wire.value = from_text(wire.value)
    record = from_loose(wire)
    return (check_text(record) if NUL in part else record,)
