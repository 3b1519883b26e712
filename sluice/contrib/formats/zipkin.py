"""Decodes Zipkin's spans, version 2 in JSON (zipkin.io, "zipkin2-api.yaml"): an array of spans, each a row of `spans`.

Times are microseconds. Annotations are events. The remote endpoint is `peer.service` and `net.peer.ip`, and
`net.peer.port`. A tag `error` is the status, whatever its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.contrib.formats.json_objects import object_records
from sluice.contrib.formats.otlp_traces import PARTS, PARTS_PER_RECORD
from sluice.contrib.formats.spans import Span
from sluice.streams.body import Budget
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import INT64, Invalid

MICROSECOND = 1_000
TRACE_DIGITS = 32, 16  # of the ids of traces and of spans
PEER = {"serviceName": "peer.service", "ipv4": "net.peer.ip", "ipv6": "net.peer.ip", "port": "net.peer.port"}


def span(sent: dict[str, Any]) -> Span:
    """Raises: Invalid."""
    trace, own = (identity(sent.get(name)) for name in ("traceId", "id"))
    if not trace or not own:
        raise Invalid("missing: traceId or id")
    start = nanoseconds(sent.get("timestamp"))
    tags = sent.get("tags")
    attributes: dict[str, Any] = {**tags} if isinstance(tags, dict) else {}
    service = inside(sent.get("localEndpoint"), "serviceName")
    for name, attribute in PEER.items():
        if (value := inside(sent.get("remoteEndpoint"), name)) is not None:
            attributes.setdefault(attribute, value)
    for name in "shared", "debug":
        if sent.get(name):
            attributes.setdefault(f"zipkin.{name}", True)
    kind = sent.get("kind")
    return Span(
        time=start,
        trace_id=trace,
        span_id=own,
        parent_id=identity(sent.get("parentId")) or None,
        name=text(sent.get("name")) or "",
        kind=kind.lower() if isinstance(kind, str) else None,
        service=text(service),
        start=start,
        duration=nanoseconds(sent.get("duration")),
        status="error" if "error" in attributes else None,
        attributes=attributes,
        events=[event(each) for each in sent.get("annotations") or () if isinstance(each, dict)] or None,
    )


def event(sent: dict[str, Any]) -> dict[str, Any]:
    return {"time": nanoseconds(sent.get("timestamp")), "name": sent.get("value")}


def identity(sent: object) -> str:
    return sent.lower() if isinstance(sent, str) and sent.strip("0") else ""


def nanoseconds(sent: object) -> int | None:
    """Microseconds as nanoseconds. Raises: Invalid."""
    if sent is None:
        return None
    if isinstance(sent, bool) or not isinstance(sent, int | float):
        raise Invalid("a time is no number of microseconds")
    time = int(sent * MICROSECOND)
    if time not in INT64:
        raise Invalid("a time is out of range")
    return time or None


def inside(endpoint: object, name: str) -> object:
    return endpoint.get(name) if isinstance(endpoint, dict) else None


def text(sent: object) -> str | None:
    return sent if isinstance(sent, str) and sent else None


def decode(body: bytes, message: Message, budget: Budget) -> Iterable[Result]:
    def build(sent: dict[str, Any]) -> tuple[Span]:
        annotations = sent.get("annotations")
        count = len(annotations) if isinstance(annotations, list) else 0
        if count > PARTS:
            raise Invalid(f"span with more than {PARTS} annotations")
        budget.left -= count // PARTS_PER_RECORD
        return (span(sent),)

    return object_records(body, budget, build)
