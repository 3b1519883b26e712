"""Decodes what Cloudflare's Logpush sends to an HTTP destination (developers.cloudflare.com/logs): objects, one a line.

A record is a row of `logs`. Its fields are those of its dataset, so its message is the request, if it has one, else
empty. What is sent when a job is made, to see whether the destination takes it, has no row.
"""

from __future__ import annotations

from typing import Any

from sluice.contrib.formats.json_objects import object_decoder
from sluice.contrib.formats.log_fields import take_first, time_scalar
from sluice.streams.body import Empty
from sluice.streams.record import Invalid, Log
from sluice.streams.times import nanoseconds_of

TEST = {"content": "tests"}
# Of the datasets of HTTP requests; firewall, gateway and network events; DNS, Spectrum; audits; Workers; sessions
TIMES = "EdgeStartTimestamp", "Datetime", "Timestamp", "When", "EventTimestampMs", "SessionStartTime"
REQUEST = "ClientRequestMethod", "ClientRequestHost", "ClientRequestURI"


def logpush_log(sent: dict[str, Any]) -> Log:
    """The row of a record. Raises: Invalid."""
    if sent == TEST:
        raise Empty("connectivity")
    if not sent:
        raise Invalid("missing: fields")
    method, host, uri = (value if isinstance(value := sent.get(name), str) else "" for name in REQUEST)
    time = nanoseconds_of(time_scalar(take_first({**sent}, TIMES)))
    attributes = {name: value for name, value in sent.items() if value is not None}
    return Log(time=time, message=f"{method} {host}{uri}".strip(), attributes=attributes)


decode = object_decoder(logpush_log)
