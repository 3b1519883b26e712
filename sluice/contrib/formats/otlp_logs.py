"""Decodes OTLP's log records: docs/INTEGRATIONS.md has the attributes of a row."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1 import logs_pb2

from sluice.contrib.formats import otlp
from sluice.contrib.formats.log_fields import stored_level
from sluice.contrib.formats.otlp import (
    Context,
    Node,
    Tags,
    any_text,
    any_value,
    attributes,
    checked_text,
    checked_time,
    identity,
    scope_context,
)
from sluice.streams.record import Log

SEVERITIES = "trace", "debug", "info", "warn", "error", "fatal"  # four numbers each, from 1


def resource(message: Any, context: Context) -> Context:
    own = attributes(message.resource.attributes, any_value)
    service = own.pop("service.name", None) if isinstance(own.get("service.name"), str) else None
    if message.resource.dropped_attributes_count:
        own["otel.dropped_attributes_count"] = message.resource.dropped_attributes_count
    return replace(context, tags=own, service=service)


def log_rows(message: Any, context: Context) -> tuple[Log]:
    own: Tags = {}
    stored = severity(message, own)
    time, observed = checked_time(message.time_unix_nano), checked_time(message.observed_time_unix_nano)
    if time and observed and observed != time:
        own["observed_time_unix_nano"] = observed
    for name in "trace_id", "span_id":
        if given := getattr(message, name):
            own[name] = identity(given)
    if message.flags:
        own["trace_flags"] = message.flags
    if message.event_name:
        own["event_name"] = checked_text(message.event_name)
    if message.dropped_attributes_count:
        own["dropped_attributes_count"] = message.dropped_attributes_count
    sent = attributes(message.attributes, any_value)
    for name in sent.keys() & own.keys():
        sent["attributes." + name] = sent.pop(name)
    return (
        Log(
            time=time or observed,
            level=stored,
            service=context.service,
            message=any_text(message.body) if message.HasField("body") else message.event_name,
            attributes=context.merged(sent | own),
        ),
    )


def severity(message: Any, own: Tags) -> str | None:
    """The level of a LogRecord. Adds to `own` what it does not say."""
    number, sent = message.severity_number, checked_text(message.severity_text)
    known = 1 <= number <= 4 * len(SEVERITIES)
    stored, kept = (SEVERITIES[(number - 1) // 4], sent) if known else stored_level(sent)
    if kept and sent.lower() != stored:
        own["level"] = sent
    if number and not (known and number % 4 == 1):
        own["severity_number"] = number
    return stored


SCOPE = Node(logs_pb2.ScopeLogs, partial(scope_context, any_value), {"logRecords": Node(logs_pb2.LogRecord, log_rows)})
RESOURCE = Node(logs_pb2.ResourceLogs, resource, {"scopeLogs": SCOPE})
REQUEST = Node(ExportLogsServiceRequest, lambda _, context: context, {"resourceLogs": RESOURCE})
decode = partial(otlp.decode, REQUEST)
