"""Decodes Zabbix's values of items (zabbix.com, "Streaming to external systems"): an object a line, each a row.

The time is `clock` and `ns`. The tags of the item are tags, with `host`, the name of the host, and `itemid`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.streams.body import Budget
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.metrics import typed_value
from sluice.streams.record import Invalid, Metric
from sluice.streams.times import SECOND, nanoseconds_of

read = msgspec.json.Decoder(dict[str, Any]).decode


def decode(part: bytes, message: Message | None, budget: Budget) -> tuple[Result]:
    """Raises: Invalid."""
    if len(part) > budget.limits.record:
        raise Invalid(f"record larger than {budget.limits.record} bytes")
    sent = read(part)
    name, value, host, time, rest = (sent.get(each) for each in ("name", "value", "host", "clock", "ns"))
    if not isinstance(name, str) or not name:
        raise Invalid("missing: name")
    if isinstance(value, dict):  # an entry of a log
        value = value.get("value")
    if not isinstance(value, str | int | float):
        raise Invalid("missing: value")
    tags = {}
    for tag in sent.get("item_tags") or ():
        if isinstance(tag, dict) and isinstance(tag.get("tag"), str):
            tags[tag["tag"]] = str(tag.get("value", ""))
    if isinstance(host, dict) and isinstance(host.get("host"), str):
        tags["host"] = host["host"]
    tags["itemid"] = str(sent.get("itemid"))
    at = nanoseconds_of(time) if isinstance(time, int | str) else None
    if at is not None and isinstance(rest, int) and 0 <= rest < SECOND:
        at += rest
    stored, kind = typed_value(value)
    metric = Metric(time=at, name=name, tags=tags, field="value", value=stored, type=kind)
    return (check_text(metric) if NUL in part else metric,)
