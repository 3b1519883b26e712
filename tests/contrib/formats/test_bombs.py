"""Whatever a body contains, it becomes a small multiple of its inflated size: on disk, in memory and in time.

The limits are a sixteenth of the default ones, so that the bodies are small.
"""

from __future__ import annotations

import base64
import gzip
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import cramjam
import msgspec
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from sluice.contrib.formats import codings, protobuf
from sluice.contrib.formats.codings import FRAMED
from sluice.contrib.formats.loki import messages as loki
from sluice.contrib.formats.prometheus import messages as prometheus
from sluice.contrib.formats.protobuf import encode_field
from sluice.contrib.formats.register import FORMATS
from sluice.routes import ROUTES
from sluice.streams import encoding
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Invalid, Limits, Log, Reject
from support import peak_memory
from support.folders import has
from support.list_items import kept
from support.otlp_requests import attribute, in_json
from support.table_of_cases import check_each_row
from support.zstd import zstd

BODY = 1 << 19
LIMITS = Limits(BODY, BODY // 32, BODY // 8, room=2 * BODY, repeated=BODY // 2)
QUARTER = LIMITS.record // 4 - 400  # of what a resource, a line or the labels of a stream may have
WRITTEN = 24  # times the body
PEAK = 64  # times the body; mostly a list of the smallest elements in JSON, of at most a mebibyte at once

PROTOBUF = "Content-Type: application/x-protobuf"
VERSION_2 = PROTOBUF + ";proto=io.prometheus.write.v2.Request"
SNAPPY = "Content-Encoding: snappy"

Body = Callable[[int], tuple[str, bytes, tuple[str, ...], str]]  # by its size: path, body, fields of the head, stream
BOMBS: dict[str, Body] = {}


def bomb(path: str, *fields: str) -> Callable[[Callable[[int], bytes]], Callable[[int], bytes]]:
    """Adds a function that makes a body of about a size. Its name begins with that of its format."""

    def add(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
        stream = ROUTES[path.partition("?")[0]].stream
        BOMBS[make.__name__] = lambda size: (path, make(size), fields, stream)
        return make

    return add


def filled(head: bytes, part: bytes, end: bytes, size: int, separator: bytes = b",") -> bytes:
    """A body of this size: as many parts as fit."""
    room = size - len(head) - len(end)
    return head + separator.join([part] * (room // (len(part) + len(separator)))) + end


def text(size: int) -> bytes:
    return b"x" * min(size // 2, QUARTER)


# --- plain objects


@bomb("/votes")
def votes_empty_objects(size: int) -> bytes:
    return filled(b'{"poll":"a","choice":"b"}\n', b"{}", b"", size, b"\n")


@bomb("/gps")
def gps_elements_without_a_device(size: int) -> bytes:
    return filled(b'[{"device":"a","lat":1,"lon":1},', b"{}", b"]", size)


@bomb("/metrics")
def metrics_that_are_only_names(size: int) -> bytes:
    return filled(b'[{"name":"a","value":1},', b'{"name":1}', b"]", size)


@bomb("/logs")
def logs_of_one_letter(size: int) -> bytes:
    return filled(b"", b"x", b"", size, b"\n")


@bomb("/logs")
def logs_of_indented_objects(size: int) -> bytes:
    return filled(b"", b'{\n "message": "a"\n}', b"", size, b"\n")


@bomb("/logs")
def logs_of_objects_that_do_not_end(size: int) -> bytes:
    return filled(b'{"message":"a"}\n', b'{\n"a"', b"", size, b"\n")


@bomb("/logs")
def logs_after_separators(size: int) -> bytes:
    return filled(b"", b'\x1e{"message":"a"}', b"", size, b"\n")


@bomb("/gps")
def gps_with_other_names(size: int) -> bytes:
    return filled(b"[", b'{"latitude":1,"lng":2,"vel":[1]}', b"]", size)


@bomb("/upload")
def journal_entries_of_a_letter(size: int) -> bytes:
    return filled(b"MESSAGE=a\n", b"\nA=\n", b"", size, b"")


@bomb("/upload")
def journal_entries_of_many_fields(size: int) -> bytes:
    fields = b"".join(b"%x=\n" % n for n in range(min(size, QUARTER) // 8))
    return filled(b"MESSAGE=a\n\n", b"MESSAGE=b\nPRIORITY=1\n" + fields, b"", size, b"\n")


@bomb("/upload")
def journal_fields_of_many_values(size: int) -> bytes:
    entry = filled(b"\nMESSAGE=b\n", b"A=\n", b"", min(size // 2, LIMITS.record - 20), b"")
    return filled(b"MESSAGE=a\n", entry, b"", size, b"")


@bomb("/api/v2/logs?service=" + "s" * 500)
def datadog_logs_with_a_long_query(size: int) -> bytes:
    return filled(b'[{"message":"m"},', b'{"message":""}', b"]", size)


@bomb("/logpush")
def logpush_small_records(size: int) -> bytes:
    return filled(b"[", b'{"a":1}', b"]", size)


@bomb("/firehose", "X-Amz-Firehose-Request-Id: a")
def firehose_small_records(size: int) -> bytes:
    return filled(b'{"records":[', b'{"data":"YQ=="}', b"]}", size)


@bomb("/firehose", "X-Amz-Firehose-Request-Id: a")
def firehose_empty_records(size: int) -> bytes:
    return filled(b'{"records":[{"data":"YQ=="},', b'{"data":""}', b"]}", size)


@bomb("/firehose", "X-Amz-Firehose-Request-Id: a")
def firehose_packed_records(size: int) -> bytes:
    packed = base64.b64encode(gzip.compress(b"a\n" * 1000))
    return filled(b'{"records":[', b'{"data":"%b"}' % packed, b"]}", size)


@bomb("/logs")
def msgpack_small_records(size: int) -> bytes:
    return filled(b"", b"\x81\xa3msg\xa0", b"", size, b"")


@bomb("/logs")
def msgpack_numbers(size: int) -> bytes:
    return filled(b"\x81\xa3msg\xa0", b"\x05", b"", size, b"")


@bomb("/logs")
def msgpack_records_of_arrays(size: int) -> bytes:
    count = LIMITS.record // 8 - 5
    record = b"\x82\xa3msg\xa0\xa1a\xdd" + count.to_bytes(4, "big") + b"\x90" * count
    return (
        filled(b"\x81\xa3msg\xa0", record, b"", size, b"") if size > len(record) else b"\x81\xa3msg\xa0" * (size // 6)
    )


@bomb("/logs")
def msgpack_record_of_arrays_as_long_as_it_may_be(size: int) -> bytes:
    count = min(size, LIMITS.record) - 20
    record = b"\x82\xa3msg\xa0\xa1a\xdd" + count.to_bytes(4, "big") + b"\x90" * count
    return filled(b"\x81\xa3msg\xa0", record, b"", size, b"")


# --- formats of metrics


@bomb("/write")
def influx_tags_of_many_fields(size: int) -> bytes:
    half = text(size)[: QUARTER // 2]
    line = b"m,t=" + half + b" " + b",".join([b"f=1"] * (len(half) // 4))
    return filled(line + b"\n", line, b"", size, b"\n")


@bomb("/write")
def influx_escaped_tags_of_many_fields(size: int) -> bytes:
    half = text(size)[: QUARTER // 2]
    line = b"m,t=\\ " + half + b" " + b",".join([b'f="\\\\"'] * (len(half) // 8))
    return filled(line + b"\n", line, b"", size, b"\n")


@bomb("/metrics")
def telegraf_tags_of_many_fields(size: int) -> bytes:
    fields = b",".join(b'"%x":1' % n for n in range(min(size // 2, QUARTER) // 8))
    point = b'{"name":"m","tags":{"t":"%b"},"fields":{%b}}' % (text(size), fields)
    return filled(b'{"metrics":[', point, b"]}", size)


@bomb("/metrics")
def sensor_logger_readings_of_a_long_device(size: int) -> bytes:
    reading = b'{"name":"a","values":{"x":1,"y":2}}'
    return filled(b'{"deviceId":"%b","payload":[' % text(size), reading, b"]}", size)


@bomb("/metrics")
def sensor_logger_readings_that_are_invalid(size: int) -> bytes:
    return filled(b'{"deviceId":"%b","payload":[' % text(size), b"{}", b"]}", size)


@bomb("/api/v1/write", PROTOBUF, SNAPPY)
def prometheus_labels_of_many_samples(size: int) -> bytes:
    name = encode_field(1, encode_field(1, b"__name__") + encode_field(2, b"m"))
    label = encode_field(1, encode_field(1, b"t") + encode_field(2, text(size)))
    series = encode_field(1, name + label + encode_field(2, b"") * (QUARTER // 2))
    return bytes(cramjam.snappy.compress_raw(filled(series, series, b"", size, b"")))


@bomb("/api/v1/write", PROTOBUF, SNAPPY)
def prometheus_series_without_a_name(size: int) -> bytes:
    return bytes(cramjam.snappy.compress_raw(filled(b"", encode_field(1, b""), b"", size, b"")))


@bomb("/api/v1/write", PROTOBUF, SNAPPY)
def prometheus_histograms(size: int) -> bytes:
    part = prometheus.Histogram(schema=8, positive_spans=[{"length": 10_000}], positive_deltas=[1] + [0] * 9_999)
    labels = [{"name": "__name__", "value": "m"}]
    series = encode_field(1, prometheus.Series1(labels=labels, histograms=[part] * 4).SerializeToString())
    return bytes(cramjam.snappy.compress_raw(filled(series, series, b"", size, b"")))


def version_2(size: int, series: Any) -> bytes:
    symbols = b"".join(encode_field(4, symbol) for symbol in (b"", b"__name__", b"m", b"t", b"x" * (size // 2)))
    return bytes(
        cramjam.snappy.compress_raw(filled(symbols, encode_field(5, series.SerializeToString()), b"", size, b""))
    )


@bomb("/api/v1/write", VERSION_2, SNAPPY)
def prometheus_2_exemplars(size: int) -> bytes:
    samples = [{"timestamp": 1}]
    return version_2(size, prometheus.Series2(labels_refs=[1, 2], samples=samples, exemplars=[{"labels_refs": [3, 4]}]))


@bomb("/api/v1/write", VERSION_2, SNAPPY)
def prometheus_2_many_exemplars_of_one_series(size: int) -> bytes:
    exemplars = [{"labels_refs": [3, 4]}] * (QUARTER // 8)
    return version_2(size, prometheus.Series2(labels_refs=[1, 2], samples=[{"timestamp": 1}], exemplars=exemplars))


@bomb("/api/v1/write", VERSION_2, SNAPPY)
def prometheus_2_labels(size: int) -> bytes:
    return version_2(size, prometheus.Series2(labels_refs=[1, 2, 3, 4], samples=[{"timestamp": 1}] * 9))


@bomb("/api/v1/write", VERSION_2, SNAPPY)
def prometheus_2_small_labels_and_their_samples(size: int) -> bytes:
    symbols = b"".join(encode_field(4, symbol) for symbol in (b"", b"__name__", b"m", b"t", b"x" * 300))
    series = prometheus.Series2(labels_refs=[1, 2, 3, 4], samples=[{"timestamp": 1}] * 450).SerializeToString()
    return bytes(cramjam.snappy.compress_raw(filled(symbols, encode_field(5, series), b"", size, b"")))


@bomb("/api/v1/write", VERSION_2, SNAPPY)
def prometheus_2_descriptions(size: int) -> bytes:
    symbols = [encode_field(4, symbol) for symbol in (b"", b"__name__", b"x" * 900)]
    names = [encode_field(4, b"%x" % n) for n in range(size // 25)]
    series = (
        prometheus.Series2(labels_refs=[1, 3 + n], samples=[{"timestamp": 1}], metadata={"help_ref": 2})
        for n in range(size // 25)
    )
    body = b"".join(symbols + names) + b"".join(encode_field(5, one.SerializeToString()) for one in series)
    return bytes(cramjam.snappy.compress_raw(body))


@bomb("/collectd")
def collectd_values_of_long_names(size: int) -> bytes:
    names = b",".join([b'"a"'] * (QUARTER // 8))
    part = b'{"plugin":"p","host":"%b","dsnames":[%b],"values":[%b]}' % (
        text(size)[: size // 8], names[: size // 4 // 4 * 4 - 1], b",".join([b"1"] * min(QUARTER // 8, size // 16)),
    )  # fmt: skip
    return filled(b"[", part, b"]", size)


@bomb("/api/put")
def opentsdb_points_of_many_tags(size: int) -> bytes:
    return filled(b"[", b'{"metric":"m","value":"1","tags":{"a":1,"b":[]}}', b"]", size, b",")


@bomb("/api/v1/datapoints")
def series_of_one_value(size: int) -> bytes:
    return filled(b"[", b'{"name":"m","datapoints":[[1,2]],"tags":{"a":1,"b":[]}}', b"]", size)


@bomb("/api/v1/datapoints")
def series_of_many_values(size: int) -> bytes:
    tags = b",".join(b'"tag%d":"x"' % n for n in range(30))
    part = filled(b'{"name":"m","tags":{' + tags + b'},"datapoints":[', b"[1,2]", b"]}", min(size - 2, QUARTER // 4))
    return filled(b"[", part, b"]", size)


@bomb("/api/v1/import")
def series_of_null_values(size: int) -> bytes:
    head = b'{"metric":{"__name__":"m","a":"b"},"values":['
    count = min(size - 80, QUARTER // 4) // 7
    values, times = b",".join([b"null"] * (count - 1) + [b"1"]), b",".join([b"1"] * count)
    return filled(b"", head + values + b'],"timestamps":[' + times + b"]}", b"", size, b"\n")


@bomb("/collectd")
def collectd_lines(size: int) -> bytes:
    return filled(b"", b"PUTVAL a/b/c N:1", b"", size, b"\n")


@bomb("/collectd")
def collectd_lines_of_many_values(size: int) -> bytes:
    return filled(
        b"", b"PUTVAL %b/b/c N%b" % (text(size // 8)[:9_000], b":1" * min(size // 16, 9_000)), b"", size, b"\n"
    )


def metrics(resource: bytes, metric: dict[str, Any], count: int) -> Any:
    request = ExportMetricsServiceRequest()
    below = request.resource_metrics.add(resource={"attributes": [attribute("t", string_value=resource.decode())]})
    below.scope_metrics.add(scope={"name": "y" * (len(resource) // 2)}, metrics=[metric] * count)
    return request


def gauge(*points: dict[str, Any]) -> dict[str, Any]:
    return {"name": "m", "gauge": {"data_points": points}}


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_that_are_empty(size: int) -> bytes:
    return bytes(metrics(text(size), {}, size // 4).SerializeToString())


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_that_are_invalid_after_a_valid_one(size: int) -> bytes:
    request = metrics(text(size), gauge({"as_int": 1}), 1)
    request.resource_metrics[0].scope_metrics[0].metrics.extend([Metric()] * (size // 4))
    return bytes(request.SerializeToString())


@bomb("/v1/metrics", "Content-Type: application/json")
def otlp_metrics_in_json_that_are_invalid(size: int) -> bytes:
    return in_json(metrics(text(size), gauge({"as_int": 1}, *[{}] * (size // 8)), 1))


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_of_a_large_resource(size: int) -> bytes:
    return bytes(metrics(text(size), gauge(*[{"as_int": 1}] * 9), size // 200).SerializeToString())


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_of_a_small_resource(size: int) -> bytes:
    return bytes(metrics(b"x" * 300, gauge(*[{"as_int": 1}] * 9), size // 200).SerializeToString())


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_with_a_long_name(size: int) -> bytes:
    points = [{"as_int": 1}] * (QUARTER // 12)
    metric = {"name": text(size).decode(), "gauge": {"data_points": points}}
    return bytes(metrics(b"", metric, size // 2 // QUARTER or 1).SerializeToString())


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_histograms_with_large_attributes(size: int) -> bytes:
    few = min(size // 64, QUARTER // 32)
    point = {"count": 1, "bucket_counts": [1] * few, "explicit_bounds": range(few - 1)}
    point |= {"attributes": [attribute("t", string_value="x" * (few * 8))]}
    metric = {"name": "m", "histogram": {"data_points": [point]}}
    return bytes(metrics(b"", metric, max(1, size // (few * 32))).SerializeToString())


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_histograms_with_many_attributes(size: int) -> bytes:
    few = min(size // 64, QUARTER // 32)
    point = {"count": 1, "bucket_counts": [1] * few, "explicit_bounds": range(few - 1)}
    point |= {"attributes": [attribute(f"{n:x}", string_value="") for n in range(few)]}
    metric = {"name": "m", "histogram": {"data_points": [point]}}
    return bytes(metrics(b"", metric, max(1, size // (few * 26))).SerializeToString())


@bomb("/v1/metrics", PROTOBUF)
def otlp_metrics_exponential_histograms(size: int) -> bytes:
    point = {"count": 1, "scale": 20, "positive": {"bucket_counts": [1] * min(10_000, size // 4)}}
    metric = {"name": "m", "exponential_histogram": {"data_points": [point]}}
    return bytes(metrics(b"", metric, max(1, size // min(10_040, size // 4))).SerializeToString())


def logs(resource: bytes, service: bytes, count: int, record: dict[str, Any]) -> bytes:
    request = ExportLogsServiceRequest()
    pairs = {"t": resource, "service.name": service}
    given = [attribute(name, string_value=value.decode()) for name, value in pairs.items()]
    below = request.resource_logs.add(resource={"attributes": given})
    below.scope_logs.add(log_records=[record] * count)
    return bytes(request.SerializeToString())


@bomb("/v1/logs", PROTOBUF)
def otlp_logs_of_a_large_resource(size: int) -> bytes:
    return logs(text(size), b"", size // 4, {})


@bomb("/v1/logs", PROTOBUF)
def otlp_logs_of_a_long_service(size: int) -> bytes:
    return logs(b"", text(size), size // 4, {})


@bomb("/v1/logs", PROTOBUF)
def otlp_logs_that_are_invalid(size: int) -> bytes:
    return logs(text(size), b"", size // 8, {"event_name": "\0"})


def spans(resource: bytes, span: dict[str, Any], count: int) -> bytes:
    request = ExportTraceServiceRequest()
    below = request.resource_spans.add(resource={"attributes": [attribute("t", string_value=resource.decode())]})
    below.scope_spans.add(spans=[span] * count)
    return bytes(request.SerializeToString())


@bomb("/v1/traces", PROTOBUF)
def spans_of_a_large_resource(size: int) -> bytes:
    return spans(text(size), {}, size // 4)


@bomb("/v1/traces", PROTOBUF)
def otlp_traces_of_empty_events(size: int) -> bytes:
    count = min(10_000, QUARTER // 4, size // 4)
    return spans(b"", {"events": [{}] * count}, size // (2 * count))


@bomb("/v1/traces", PROTOBUF)
def otlp_traces_of_empty_links(size: int) -> bytes:
    count = min(10_000, QUARTER // 4, size // 4)
    return spans(b"", {"links": [{}] * count}, size // (2 * count))


@bomb("/v1/traces", PROTOBUF)
def otlp_traces_that_are_invalid(size: int) -> bytes:
    return spans(text(size), {"name": "\0"}, size // 8)


@bomb("/v1/traces", "Content-Type: application/json")
def otlp_traces_in_json_of_an_unknown_kind(size: int) -> bytes:
    return filled(b'{"resourceSpans":[{"scopeSpans":[{"spans":[', b'{"kind":"x"}', b"]}]}]}", size)


# --- Loki


@bomb("/loki/api/v1/push", "Content-Type: application/json")
def loki_lines_of_large_labels(size: int) -> bytes:
    return filled(b'{"streams":[{"stream":{"t":"%b"},"values":[' % text(size), b'["1",""]', b"]}]}", size)


@bomb("/loki/api/v1/push", "Content-Type: application/json")
def loki_lines_that_are_invalid(size: int) -> bytes:
    return filled(b'{"streams":[{"stream":{"t":"%b"},"values":[["1",""],' % text(size), b"[]", b"]}]}", size)


@bomb("/loki/api/v1/push", "Content-Type: application/json")
def loki_many_labels(size: int) -> bytes:
    labels = b",".join(b'"%x":""' % n for n in range(size // 10))
    return b'{"streams":[{"stream":{%b},"values":[["1",""]]}]}' % labels


@bomb("/loki/api/v1/push", "Content-Type: application/json")
def loki_lines_of_many_labels(size: int) -> bytes:
    labels = b",".join(b'"%x":""' % n for n in range(len(text(size)) // 12))
    return filled(b'{"streams":[{"stream":{%b},"values":[' % labels, b'["1",""]', b"]}]}", size)


@bomb("/v1/logs", PROTOBUF)
def otlp_logs_of_many_attributes(size: int) -> bytes:
    request = ExportLogsServiceRequest()
    given = [attribute(f"{n:x}", string_value="") for n in range(len(text(size)) // 16)]
    request.resource_logs.add(resource={"attributes": given}).scope_logs.add(log_records=[{"flags": 1}] * (size // 8))
    return bytes(request.SerializeToString())


@bomb("/loki/api/v1/push", PROTOBUF)
def loki_entries_of_large_labels(size: int) -> bytes:
    stream = encode_field(1, b'{t="%b"}' % text(size)) + encode_field(2, b"") * ((size - len(text(size))) // 2)
    return bytes(cramjam.snappy.compress_raw(encode_field(1, stream)))


@bomb("/loki/api/v1/push", PROTOBUF)
def loki_entries_of_labels_that_take_more_as_json(size: int) -> bytes:
    stream = encode_field(1, b'{t="%b"}' % (b"\1" * 300)) + encode_field(2, b"") * ((size - 300) // 2)
    return bytes(cramjam.snappy.compress_raw(encode_field(1, stream)))


@bomb("/loki/api/v1/push", PROTOBUF)
def loki_entries_that_are_invalid(size: int) -> bytes:
    entry = encode_field(2, loki.Entry(line="\0").SerializeToString())
    stream = (
        encode_field(1, b'{t="%b"}' % text(size))
        + encode_field(2, b"")
        + entry * ((size - len(text(size))) // len(entry))
    )
    return bytes(cramjam.snappy.compress_raw(encode_field(1, stream)))


@bomb("/api/prom/push", "Content-Type: application/json")
def loki_old_entries_of_large_labels(size: int) -> bytes:
    head = b'{"streams":[{"labels":"{t=\\"%b\\"}","entries":[' % text(size)
    return filled(head, b'{"ts":1,"line":""}', b"]}]}", size)


# --- GELF and reports


@bomb("/gelf")
def gelf_messages(size: int) -> bytes:
    return filled(b"[", b'{"short_message":""}', b"]", size)


@bomb("/gelf")
def gelf_messages_that_are_invalid(size: int) -> bytes:
    return filled(b'[{"short_message":""},', b"{}", b"]", size)


@bomb("/gelf")
def gelf_additional_fields(size: int) -> bytes:
    return b'{"short_message":"",%b}' % b",".join(b'"_%x":1' % n for n in range(min(size, LIMITS.record - 99) // 9)) + (
        b" " * (size - LIMITS.record) if size > LIMITS.record else b""
    )


@bomb("/reports")
def reports_of_one_letter(size: int) -> bytes:
    return filled(b"[", b'{"type":"a"}', b"]", size)


# --- formats of gps

FEATURE = b'{"geometry":{"type":"Point","coordinates":[1,1]},"properties":{}}'


@bomb("/overland")
def overland_features_of_a_long_device(size: int) -> bytes:
    return filled(b'{"device_id":"%b","locations":[' % (b"x" * (size // 2)), FEATURE, b"]}", size)


@bomb("/overland")
def overland_features_that_are_invalid(size: int) -> bytes:
    return filled(b'{"device_id":"%b","locations":[%b,' % (b"x" * (size // 2), FEATURE), b"{}", b"]}", size)


@bomb("/owntracks", "X-Limit-U: " + "x" * 7_900, "X-Limit-D: " + "x" * 7_900)
def owntracks_payloads_of_a_long_user(size: int) -> bytes:
    return filled(b"[", b'{"_type":"location","lat":1,"lon":1}', b"]", size)


@bomb("/owntracks", *(f"X-{n}: " + "x" * 7_900 for n in range(3)))
def owntracks_payloads_that_are_invalid(size: int) -> bytes:
    return filled(b'[{"_type":"location","tid":"a","lat":1,"lon":1},', b"{}", b"]", size)


@bomb("/homeassistant?device=" + "x" * 7_900)
def homeassistant_messages_of_a_long_device(size: int) -> bytes:
    return filled(b"[", b'{"type":"update_location","data":{"gps":[1,1]}}', b"]", size)


@bomb("/gps")
def geojson_features_of_a_long_name(size: int) -> bytes:
    feature = b'{"geometry":{"type":"Point","coordinates":[1,2]},"properties":{"device":"%b"}}' % (b"x" * 500)
    return filled(b'{"features":[', feature, b"]}", size)


@bomb("/gps")
def geojson_features_that_are_invalid(size: int) -> bytes:
    return filled(b'{"features":[', b'{"geometry":1}', b"]}", size)


@bomb("/traccar")
def traccar_locations_of_a_long_device(size: int) -> bytes:
    head = b'{"device_id":"%b","location":[' % (b"x" * (size // 4))
    return filled(head, b'{"coords":{"latitude":1,"longitude":2}}', b"]}", size)


@bomb("/logs")
def envelopes_of_a_long_field(size: int) -> bytes:
    return filled(b'{"x":"%b","events":[' % text(size), b'{"msg":""}', b"]}", size)


@bomb("/logs")
def envelopes_of_invalid_records(size: int) -> bytes:
    return filled(b'{"x":"%b","logs":[' % text(size), b"{}", b"]}", size)


@bomb("/traccar")
def traccar_forms(size: int) -> bytes:
    return filled(b"id=a&lat=1&lon=1\n", b"id=a", b"", size, b"\n")


@bomb("/gpslogger")
def gpslogger_forms(size: int) -> bytes:
    return filled(b"longitude=1&lat=1&device=a\n", b"longitude=", b"", size, b"\n")


# --- forms of browsers


MULTIPART = "Content-Type: multipart/form-data; boundary=b"
NAMED = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n'


@bomb("/logs", MULTIPART)
def multipart_fields(size: int) -> bytes:
    return filled(NAMED % b"message" + b"m\r\n", NAMED % b"a" + b"1\r\n", b"--b--\r\n", size, b"")


@bomb("/logs", MULTIPART)
def multipart_field_of_boundaries(size: int) -> bytes:
    return filled(NAMED % b"message", b"\r\n--", b"\r\n--b--\r\n", size, b"")


@bomb("/logs", MULTIPART)
def multipart_name_of_escapes(size: int) -> bytes:
    return filled(b'--b\r\nContent-Disposition: form-data; name="', b"%22", b'"\r\n\r\n1\r\n--b--\r\n', size, b"")


@bomb("/logs", MULTIPART)
def multipart_head_of_names(size: int) -> bytes:
    return filled(b"--b\r\n", b'; name="', b"\r\n\r\n1\r\n--b--\r\n", size, b"")


if has("hooks"):

    @bomb("/hooks/{hook}/*")
    def hooks_of_many_members(size: int) -> bytes:
        members = b",".join(b'"%d":1' % number for number in range(size // 9))
        return b'{"type":"a","id":"b",' + members + b"}"

    @bomb("/hooks/{hook}/*")
    def hooks_of_many_elements(size: int) -> bytes:
        return filled(b"[", b"[]", b"]", size)

    @bomb("/hooks/{hook}/*", "Content-Type: application/x-www-form-urlencoded")
    def hooks_of_many_fields(size: int) -> bytes:
        return filled(b"a=b", b"%41=%41", b"", size, b"&")
# --- formats of other systems


@bomb("/metrics/job/*")
def exposition_samples(size: int) -> bytes:
    return filled(b"", b"a 1", b"\n", size, b"\n")


@bomb("/metrics/job/*")
def exposition_labels(size: int) -> bytes:
    return filled(b"a{", b'b="c"', b"} 1\n", min(size, QUARTER)) * (size // min(size, QUARTER))


@bomb("/_bulk")
def elastic_actions(size: int) -> bytes:
    return filled(b"", b'{"index":{}}', b"\n", size, b"\n")


@bomb("/_bulk")
def elastic_long_index(size: int) -> bytes:
    return filled(b'{"index":{"_index":"' + text(size) + b'"}}\n', b'{"a":1}', b"\n", size, b"\n")


@bomb("/services/collector")
def hec_events(size: int) -> bytes:
    return filled(b"", b'{"event":1}', b"", size, b"")


@bomb("/api/v2/spans")
def zipkin_annotations(size: int) -> bytes:
    part = LIMITS.record - 100
    one = filled(b'{"traceId":"1","id":"1","annotations":[', b"{}", b"]}", min((size - 8) // 4, part))
    return filled(b"[", one, b"]", size)


@bomb("/metrics")
def zabbix_tags(size: int) -> bytes:
    part = LIMITS.record - 100
    one = filled(b'{"itemid":1,"name":"a","value":1,"item_tags":[', b'{"tag":"a"}', b"]}", min((size - 8) // 4, part))
    return filled(b"[", one, b"]", size)


@bomb("/logs")
def faro_events(size: int) -> bytes:
    part = LIMITS.record - 100
    one = filled(b'{"meta":{"app":{"name":"a"}},"exceptions":[', b'{"a":1}', b"]}", min((size - 8) // 4, part))
    return filled(b"[", one, b"]", size)


def item(name: str, size: int) -> tuple[str, bytes, int]:
    """The stream, the item, and the inflated size of its body."""
    path, body, fields, stream = BOMBS[name](size)
    inflated = cramjam.snappy.decompress_raw_len(body) if path in ("/api/v1/write", "/loki/api/v1/push") and not (
        body.startswith(b"{")
    ) else len(body)  # fmt: skip
    return stream, kept(body, path, *fields), inflated


def test_each_stream_and_each_format_has_a_body_here() -> None:
    modules = {(known.decoder or known.form).partition(":")[0].rpartition(".")[2] for known in FORMATS}
    for name in {*STREAMS, *modules}:
        assert any(bomb.startswith(name) for bomb in BOMBS), name


def decoded(stream: str, sent: bytes) -> tuple[int, int]:
    """The bytes of the results of an item, and how many of them are rejects."""
    written = letters = 0
    for result in STREAMS[stream].decode(sent, LIMITS._replace(inflated=2 * BODY)):
        letters += isinstance(result, Reject)
        written += len(result.part) if isinstance(result, Reject) else len(msgspec.json.encode(result))
    return written, letters


@pytest.mark.nightly
@pytest.mark.parametrize("name", BOMBS)
def test_a_body_becomes_a_small_multiple_of_itself(name: str) -> None:
    stream, sent, size = item(name, BODY)
    assert BODY // 2 < size <= BODY * 1.4
    peak_memory.peak(decoded, *item(name, 2_000)[:2])  # imports what it needs
    (written, letters), most = peak_memory.peak(decoded, stream, sent)
    assert written <= WRITTEN * size
    assert most <= PEAK * size
    assert letters <= 300


def calls(decode: Callable[[], object]) -> int:
    """How many functions of Python and C are called by a decoder."""
    counts: Counter[str] = Counter()

    def count(_frame: Any, event: str, _argument: Any) -> None:
        counts[event] += 1

    sys.setprofile(count)
    try:
        decode()
    finally:
        sys.setprofile(None)
    return counts["call"] + counts["c_call"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", BOMBS)
def test_twice_the_body_takes_at_most_twice_the_calls(name: str) -> None:
    limits = LIMITS._replace(records=1 << 30)
    found = []
    for size in 1_000, 8_000, 16_000:
        stream, sent, _ = item(name, size)
        found.append(calls(partial(STREAMS[stream].decode, sent, limits)))
    assert found[2] <= 2.5 * found[1] + 100


NOTHING = b"[]", b'{"_type":"lwt"}', b'{"_type":"status"}', b'{"locations":[]}', b'{"metrics":[]}', b"{}", b"[{}]"


@check_each_row("part", NOTHING)
@check_each_row("stream", ["gps", "metrics", "logs", "votes"])
@check_each_row("begin, separator, end", [(b"", b"\n", b""), (b"[", b",", b"]")])
def test_parts_without_a_record_are_charged(
    stream: str, part: bytes, begin: bytes, separator: bytes, end: bytes
) -> None:
    body = begin + separator.join([part] * (BODY // (len(part) + 1))) + end
    assert calls(lambda: STREAMS[stream].decode(body, LIMITS)) < 48 * LIMITS.records


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/logs", "/v1/traces"])
@pytest.mark.parametrize("part", [b"\x0a\0", b"\x7a\0", b"\x78\0"], ids=["child", "unknown", "number"])
def test_messages_of_otlp_without_a_record_are_charged(path: str, part: bytes) -> None:
    decode = STREAMS[ROUTES[path].stream].decode
    for body, kind in (part * (BODY // 2), PROTOBUF), (empties(path), "Content-Type: application/json"):
        assert calls(partial(decode, kept(body, path, kind), LIMITS)) < 30 * LIMITS.records


def empties(path: str) -> bytes:
    name = {"/v1/metrics": b"resourceMetrics", "/v1/logs": b"resourceLogs", "/v1/traces": b"resourceSpans"}[path]
    return filled(b'{"%b":[' % name, b"{}", b"]}", BODY, b",")


@pytest.mark.parametrize("part", [b"\x22\0", b"\x38\0", b"\x3d\0\0\0\0"], ids=["message", "number", "fixed"])
def test_a_message_of_more_fields_than_it_needs_is_invalid(part: bytes) -> None:
    body = part * (3 * BODY // len(part))
    with pytest.raises(Invalid, match="fields"):
        list(protobuf.split_fields(body))
    assert len(list(protobuf.split_fields(encode_field(1, b"x" * 14) * 200_000))) == 200_000


@pytest.mark.parametrize("name", ["loki_lines_of_many_labels", "otlp_logs_of_many_attributes"])
def test_all_rows_of_a_body_fit_into_memory_together(name: str) -> None:
    """A destination gets many rows at once, and each row of a log has a dictionary of its own."""
    stream, sent, size = item(name, BODY)
    results = STREAMS[stream].decode(sent, LIMITS._replace(records=1 << 20))
    assert 0 < sum(len(result.attributes) for result in results if isinstance(result, Log)) < size // 4


# --- encodings


def in_frames(compress: Callable[[bytes], bytes]) -> Callable[[int], bytes]:
    """A body of so many members, frames or chunks of a kibibyte each, which do not compress."""
    part = random.Random(1).randbytes(1024)
    return lambda count: compress(part) * count


def in_one(compress: Callable[[bytes], bytes]) -> Callable[[int], bytes]:
    """The same in one stream."""
    return lambda count: compress(random.Random(1).randbytes(1024 * count))


def chunks(count: int) -> bytes:
    """A stream of snappy of so many chunks."""
    start, chunk = FRAMED, bytes(cramjam.snappy.compress(bytes(1024)))[len(FRAMED) :]
    return start + chunk * count


ENCODED = {
    "gzip": in_frames(gzip.compress), "zstd": in_frames(zstd.compress), "snappy": chunks,
    "gzip in one": in_one(gzip.compress), "zstd in one": in_one(zstd.compress), "deflate": in_one(zlib.compress),
    "snappy in one": in_one(lambda data: bytes(cramjam.snappy.compress_raw(data))),
}  # fmt: skip


class Handed:
    """A decompressor that counts the bytes that it gets."""

    total = 0

    def __init__(self, member: Any) -> None:
        self.member = member

    def __getattr__(self, name: str) -> Any:
        return getattr(self.member, name)

    def decompress(self, chunk: bytes, most: int) -> bytes:
        Handed.total += len(chunk)
        made: bytes = self.member.decompress(chunk, most)
        return made


@pytest.mark.parametrize("name", ENCODED)
def test_twice_the_compressed_body_takes_at_most_twice_the_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = encoding.inflate_members

    def counted(name: str, data: bytes, start: Callable[[], Any], *rest: Any) -> bytes:
        return joined(name, data, lambda: Handed(start()), *rest)

    monkeypatch.setattr(encoding, "inflate_members", counted)
    monkeypatch.setattr(codings, "inflate_members", counted)
    found, handed = [], []
    for count in 1, 245, 490:
        body, before = ENCODED[name](count), Handed.total
        found.append(calls(partial(encoding.inflate_body, body, name.partition(" ")[0], BODY)))
        handed.append(Handed.total - before)
    assert found[2] <= 2.2 * found[1] + 20
    assert handed[2] <= 2.2 * handed[1]
    assert (handed[2] > 0) != name.startswith("snappy")
