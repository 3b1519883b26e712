"""Decodes objects in which log libraries and shippers wrap records: an array of records, or one, in a member.

`events` is of Serilog.Sinks.Http before 8 (its README) and, as `Events`, of Seq's raw format; `logs` of pino-http-send;
`logEvents` of CloudWatch (its subscription filters); `records` of Azure Monitor (diagnostic logs); `entries` of
Google's Logging API; `params` of winston 2 (transports/http.js: {"method":"collect","params":{…}}). What stands beside
an array is an attribute of each of its records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sluice.formats.objects import records
from sluice.streams.body import Budget
from sluice.streams.decoder import Result
from sluice.streams.logs import build
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log

NAMES = "events", "Events", "logs", "logEvents", "records", "entries", "params"
read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
read_any = msgspec.json.Decoder().decode


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
    """The records in an object. An invalid one is rejected as an array of its own. Raises: Invalid, msgspec's."""
    sent = read(part)
    inside = bytes(next(sent.pop(name) for name in NAMES if name in sent))
    if not inside.startswith((b"[", b"{")):
        raise Invalid("missing: message")
    if inside.startswith(b"{"):
        return records(inside, budget, lambda one: (build(one),))
    size = sum(map(len, sent.values()))
    if size > budget.limits.record // 4:
        raise Invalid(f"more than {budget.limits.record // 4} bytes beside the records")
    shared: dict[str, Any] = {name: read_any(value) for name, value in sent.items()}

    def log(one: dict[str, Any]) -> tuple[Log]:
        budget.charge(size)
        made = build(one)
        return (msgspec.structs.replace(made, attributes=shared | made.attributes),)

    return records(inside, budget, log)
