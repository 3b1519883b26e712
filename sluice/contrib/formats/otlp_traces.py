"""Decodes OTLP's spans: docs/INTEGRATIONS.md has the columns of a row.

What has no column becomes an attribute, with the name that OpenTelemetry gives it in formats other than OTLP
(opentelemetry.io/docs/specs/otel/common/mapping-to-non-otlp): `otel.status_description`, `otel.dropped_links_count` …
"""

from __future__ import annotations

from functools import partial
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from sluice.contrib.formats import otlp
from sluice.contrib.formats.otlp import (
    Context,
    Node,
    Tags,
    any_value,
    attributes,
    checked_text,
    checked_time,
    identity,
    scope_context,
)
from sluice.contrib.formats.otlp_logs import resource
from sluice.contrib.formats.spans import Span
from sluice.streams.record import Invalid

KINDS = None, "internal", "server", "client", "producer", "consumer"
STATUSES = None, "ok", "error"
DROPPED = "dropped_attributes_count", "dropped_events_count", "dropped_links_count"
# A byte of these becomes up to 25 in memory and has a name in each row, so a span has no more of them than SDKs send
PARTS, PARTS_PER_RECORD = 10_000, 4


def span_row(message: Any, context: Context) -> tuple[Span]:
    """The row of a span. Raises: Invalid."""
    start, end = checked_time(message.start_time_unix_nano), checked_time(message.end_time_unix_nano)
    tags = attributes(message.attributes, any_value)
    kind, status = message.kind, message.status
    if not 0 <= kind < len(KINDS):
        tags.setdefault("otel.kind", kind)
        kind = 0
    code = status.code
    if not 0 <= code < len(STATUSES):
        tags.setdefault("otel.status_code", code)
        code = 0
    if status.message:
        tags["otel.status_description"] = checked_text(status.message)
    if message.trace_state:
        tags["otel.trace_state"] = checked_text(message.trace_state)
    if message.flags & 0xFF:  # the rest says whether the parent is remote
        tags["otel.trace_flags"] = message.flags & 0xFF
    for name in DROPPED:
        if number := getattr(message, name):
            tags["otel." + name] = number
    events, links = message.events, message.links
    if len(events) + len(links) > PARTS:
        raise Invalid(f"span with more than {PARTS} events and links")
    context.budget.left -= (len(events) + len(links)) // PARTS_PER_RECORD
    return (
        Span(
            time=start or end,
            trace_id=identity(message.trace_id),
            span_id=identity(message.span_id),
            parent_id=identity(message.parent_span_id) or None,
            name=checked_text(message.name),
            kind=KINDS[kind],
            service=context.service,
            start=start or end,
            duration=end - start if start and end and end >= start else None,
            status=STATUSES[code],
            attributes=context.merged(tags),
            events=[event_json(each) for each in events] if events else None,
            links=[link_json(each) for each in links] if links else None,
        ),
    )


def event_json(message: Any) -> Tags:
    """An event as JSON. Raises: Invalid."""
    made: Tags = {"time": checked_time(message.time_unix_nano), "name": checked_text(message.name)}
    return with_attributes(made, message)


def link_json(message: Any) -> Tags:
    """A link as JSON. Raises: Invalid."""
    made: Tags = {"trace_id": identity(message.trace_id), "span_id": identity(message.span_id)}
    if message.trace_state:
        made["trace_state"] = checked_text(message.trace_state)
    return with_attributes(made, message)


def with_attributes(made: Tags, message: Any) -> Tags:
    if message.attributes:
        made["attributes"] = attributes(message.attributes, any_value)
    if message.dropped_attributes_count:
        made["dropped_attributes_count"] = message.dropped_attributes_count
    return made


SCOPE = Node(trace_pb2.ScopeSpans, partial(scope_context, any_value), {"spans": Node(trace_pb2.Span, span_row)})
RESOURCE = Node(trace_pb2.ResourceSpans, resource, {"scopeSpans": SCOPE})
REQUEST = Node(ExportTraceServiceRequest, lambda _, context: context, {"resourceSpans": RESOURCE})
decode = partial(otlp.decode, REQUEST)
