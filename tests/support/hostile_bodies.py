"""Bodies that take long to decode for what they have: failing parts, lenient paths, repeated fields of each format."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import cramjam

from sluice.contrib.formats.protobuf import encode_field
from support.zstd import zstd

PROTOBUF, JSON = "Content-Type: application/x-protobuf", "Content-Type: application/json"
FORM = "Content-Type: application/x-www-form-urlencoded"
SNAPPY = "Content-Encoding: snappy"
DELIVERED = "X-Amz-Firehose-Request-Id: a"
NAME = encode_field(1, encode_field(1, b"__name__") + encode_field(2, b"m"))

Make = Callable[[int], bytes]  # a body of about so many bytes, inflated
HOSTILE: dict[str, tuple[str, tuple[str, ...], Make]] = {}  # by name: the path, fields of the head, what makes a body


def hostile(path: str, *fields: str) -> Callable[[Make], Make]:
    """Adds a function that makes a body."""

    def add(make: Make) -> Make:
        HOSTILE[make.__name__] = path, fields, make
        return make

    return add


def filled(head: bytes, part: bytes, end: bytes, size: int, separator: bytes = b",") -> bytes:
    """A body of this size: as many parts as fit."""
    return head + separator.join([part] * ((size - len(head) - len(end)) // (len(part) + len(separator)))) + end


def simple(name: str, path: str, head: bytes, part: bytes, end: bytes, *fields: str, separator: bytes = b",") -> None:
    HOSTILE[name] = path, fields, lambda size: filled(head, part, end, size, separator)


# A series of remote write with as many empty parts as a record may have: samples, exemplars, histograms, labels
for what, number in {"labels": 1, "samples": 2, "exemplars": 3, "histograms": 4}.items():
    for share in 8, 128:  # of the body

        def series(size: int, number: int = number, share: int = share) -> bytes:
            one = encode_field(1, NAME + encode_field(number, b"") * (size // share // 2 - 40))
            return bytes(cramjam.snappy.compress_raw(one * share))

        HOSTILE[f"remote write, {what} in {share} series"] = "/api/v1/write", (PROTOBUF, SNAPPY), series


@hostile("/api/v1/write", PROTOBUF, SNAPPY)
def remote_write_spans(size: int) -> bytes:
    one = encode_field(1, NAME + encode_field(4, encode_field(8, b"") * (size // 16 - 40)))
    return bytes(cramjam.snappy.compress_raw(one * 8))


def delivered(data: bytes, size: int) -> bytes:
    part = json.dumps({"data": base64.b64encode(data).decode()}).encode()
    return filled(b'{"records":[', part, b"]}", min(size, 40_000))


@hostile("/firehose", DELIVERED)
def firehose_bombs(size: int) -> bytes:
    return delivered(zstd.compress(bytes(size + 1)), size)


@hostile("/firehose", DELIVERED)
def firehose_truncated(size: int) -> bytes:
    return delivered(zstd.compress(bytes(size - 1))[:-3], size)


@hostile("/gelf", DELIVERED)
def firehose_of_deflated(size: int) -> bytes:
    import zlib

    return delivered(zlib.compress(bytes(size - 1))[:-3], size)


ZONE = b'{"message":"","time":{"date":"2026-01-01","timezone":"Europe/%b"}}'
simple("logs_unknown_zone", "/logs", b"[", ZONE % b"a", b"]")


@hostile("/logs")
def logs_many_unknown_zones(size: int) -> bytes:
    return b"[" + b",".join(ZONE % b"%d" % n for n in range(size // 80)) + b"]"


@hostile("/logs")
def logs_letters_in_braces(size: int) -> bytes:
    return filled(b"{\n", b"a", b"\n}", size, b"\n")


@hostile("/logs")
def logs_letters_in_many_braces(size: int) -> bytes:
    return filled(b"a\n", b"{\n" + b"a\n" * (size // 40) + b"}", b"\n", size, b"\n")


simple("votes_mended_array", "/votes", b"[", b'""', b",NaN]")
simple("votes_nan", "/votes", b"[", b"NaN", b"]")
simple("votes_escapes", "/votes", b'["', rb"\ud800", b'"]', separator=b"")
simple("votes_controls", "/votes", b'["', b"\x01", b'"]', separator=b"")
simple("votes_lines_with_nan", "/votes", b"", b'{"poll":NaN,"choice":"a"}', b"", separator=b"\n")
simple("otlp_names_of_protobuf", "/v1/logs", b'{"resource_logs":[{', b'"a_b":1', b"}]}", JSON)
simple("otlp_name_of_many_words", "/v1/logs", b'{"resource_logs":1,"', b"a_", b'a":1}', JSON, separator=b"")
simple("influx_newlines", "/write", b"m f=1\n", b"", b"\n", separator=b"\n")
simple("influx_newlines_after_a_quote", "/write", b'm f="1"\n', b"", b"\n", separator=b"\n")
simple("influx_comments", "/write", b"m f=1\n", b"#", b"\n", separator=b"\n")
LABELS = b"m{" + b'a="",' * 50_000 + b" } 1"
simple("exposition_labels", "/metrics/job/*", b"", LABELS, b"", separator=b"\n")
simple("exposition_escapes", "/metrics/job/*", b'm{a="', rb"\n", b'"} 1\n', separator=b"")
simple(
    "form_of_percents",
    "/logs",
    b"message=",
    b"%0a",
    b"",
    "Content-Type: application/x-www-form-urlencoded",
    separator=b"",
)
simple("logs_newlines", "/logs", b"a\n", b"", b"\nb", separator=b"\n")


@hostile("/logs")
def envelope_of_many_names(size: int) -> bytes:
    return b'{"events":[],' + b",".join(b'"%x":1' % n for n in range(size // 12)) + b"}"


@hostile("/logs")
def envelope_of_names_for_each_record(size: int) -> bytes:
    beside = b",".join(b'"%x":1' % n for n in range(size // 500))
    return filled(b"{" + beside + b',"events":[', b'{"message":""}', b"]}", size)


for level in 0, 1, 2:

    def unknown(size: int, level: int = level) -> bytes:
        inner = encode_field(15, b"") * (size // 80 - 10)
        for _ in range(level):
            inner = encode_field(2 if level > 1 else 1, inner)
        return inner * 40 if level == 0 else encode_field(1, inner) * 40

    HOSTILE[f"otlp, unknown fields, level {level}"] = "/v1/logs", (PROTOBUF,), unknown


@hostile("/upload")
def journal_fields(size: int) -> bytes:
    return (b"MESSAGE=a\n" + b"A=\n" * (size // 24 - 10) + b"\n") * 7


LOG = b'{"timeUnixNano":1,"body":{"stringValue":"a"},"attributes":[{"key":"k","value":{"intValue":"x"}}]}'
simple("otlp_logs_lenient", "/v1/logs", b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[', LOG, b"]}]}]}", JSON)
simple(
    "otlp_metrics_lenient", "/v1/metrics",
    b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[',
    b'{"asDouble":"x","timeUnixNano":"y"}', b"]}}]}]}]}", JSON,
)  # fmt: skip
simple(
    "otlp_traces_lenient", "/v1/traces", b'{"resourceSpans":[{"scopeSpans":[{"spans":[',
    b'{"traceId":1,"spanId":"x","name":1}', b"]}]}]}", JSON,
)  # fmt: skip
LOCATION = b'{"coords":{"latitude":1,"longitude":2,"speed":[]},"timestamp":"x","battery":[]}'
simple("traccar_lenient", "/gps", b'{"location":[', LOCATION, b'],"device_id":"a"}')
simple("traccar_of_others", "/gps", b'{"location":[', b'{"lat":1,"lon":2,"x":[]}', b'],"device_id":"a"}')
simple("geojson_of_others", "/gps", b'{"features":[', b'{"lat":1,"lon":2,"tid":"a"}', b"]}")
POINT = b'{"geometry":{"type":"Point","coordinates":[1,2]},"properties":{%b}}'
simple("geojson_any_names", "/gps", b'{"features":[', POINT % b'"a":1', b"]}")
simple("overland_of_others", "/gps", b'{"locations":[', b'{"lat":1,"lon":2}', b"]}")
simple("overland_lenient", "/gps", b'{"locations":[', POINT % b'"speed":[],"timestamp":"x"', b"]}")
OWNTRACKS = b'{"_type":"location","lat":1,"lon":1,"tid":[],"tst":{}}'
simple("owntracks_lenient", "/owntracks", b"[", OWNTRACKS, b"]")
APP = b'{"type":"update_location","data":{"gps":[1,2],"speed":[]}}'
simple("homeassistant_lenient", "/homeassistant?device=a", b"[", APP, b"]")
simple("loki_lenient", "/loki/api/v1/push", b'{"streams":[{"stream":{},"values":[', b'["1",1]', b"]}]}", JSON)
STREAM = b'{"stream":{"a":1},"values":[["1",1]]}'
simple("loki_lenient_streams", "/loki/api/v1/push", b'{"streams":[', STREAM, b"]}", JSON)
simple("gelf_odd_time", "/gelf", b"", b'{"short_message":"a","_a":"b","timestamp":"x"}', b"", separator=b"\n")
simple("gps_odd_times", "/gps", b"[", b'{"device":"a","lat":1,"lon":1,"time":"x","ts":"y"}', b"]")
simple("metrics_odd_tags", "/metrics", b"[", b'{"name":"a","value":1,"tags":{"a":1}}', b"]")
simple("metrics_telegraf_odd", "/metrics", b'{"metrics":[', b'{"name":"a","fields":{"a":[]},"tags":{"a":1}}', b"]}")
simple("logs_out_of_range", "/logs", b"", b'{"message":"a","x":1e999}', b"", separator=b"\n")
simple("logs_of_nothing", "/logs", b"", b'{"message":""}', b"", separator=b"\n")
simple("msgpack_arrays", "/logs", b"\x92" + b"\x81\xa3msg\xa0" * 2, b"\x91\x81\xa3msg\xa0", b"", separator=b"")


# What later formats repeat, and what each invalid part of theirs inherits: elements of 200 kB
def inside(head: bytes, part: bytes, end: bytes) -> bytes:
    return filled(head, part, end, 200_000)


META = b'{"meta":{"a":"' + b"a" * 250_000 + b'"},"%b":['
simple("faro_invalid_entries", "/logs", b"", META % b"exceptions" + b"1," * 99_999 + b"1]}", b"", JSON, separator=b"\n")
EVENTS = inside(b'{"meta":{},"exceptions":[{"type":"a"}],"events":[', b'{"name":"a"}', b"]}")
simple("faro_events", "/logs", b"", EVENTS, b"", JSON, separator=b"\n")
simple("faro_bodies", "/logs", b"", b'{"meta":{},"exceptions":[1]}', b"", JSON, separator=b"\n")
simple("elastic_without_documents", "/_bulk", b"", b'{"index":{}}', b"\n", separator=b"\n")
simple("elastic_odd_documents", "/_bulk", b"", b'{"index":{"_index":"a"}}\n{"a":NaN}', b"\n", separator=b"\n")
simple("elastic_deletes", "/_bulk", b"", b'{"delete":{"_id":"a"}}', b"\n", separator=b"\n")
simple("hec_invalid_events", "/services/collector", b"", b'{"event":""}', b"", separator=b"")
simple("hec_odd_times", "/services/collector", b"", b'{"event":"a","time":"x"}', b"", separator=b"")
simple("hec_raw", "/services/collector/raw?host=" + "a" * 5000, b"", b"a", b"", separator=b"\n")
simple("clef_odd", "/ingest/clef", b"", b'{"@t":"x","@m":"a","@l":[]}', b"", separator=b"\n")
simple("zipkin_odd", "/api/v2/spans", b"[", b'{"id":"x","traceId":"y"}', b"]", JSON)
ANNOTATED = inside(b'{"id":"1","traceId":"1","annotations":[', b"{}", b"]}")
simple("zipkin_annotations", "/api/v2/spans", b"[", ANNOTATED, b"]", JSON)
TAGGED = inside(b'{"itemid":1,"name":"a","value":1,"item_tags":[', b'{"tag":"a"}', b"]}")
simple("zabbix_tags", "/metrics", b"", TAGGED, b"", JSON, separator=b"\n")
simple("zabbix_odd", "/metrics", b"", b'{"itemid":1,"name":"a","value":1,"clock":"x","ns":"y"}', b"", separator=b"\n")
simple("graphite_tags", "/metrics", b"", b"a" + b";a=b" * 50_000 + b" 1 1", b"", separator=b"\n")
simple("graphite_odd", "/metrics", b"", b"a 1 x", b"\n", separator=b"\n")
simple("hook_pairs", "/hooks/{hook}/*", b"{", b'"a":1', b"}", JSON)
simple("hook_nested", "/hooks/{hook}/*", b"", b"[", b"", JSON, separator=b"")
simple("hook_form", "/hooks/{hook}/*", b"", b"a=%41", b"", FORM, separator=b"&")
# Values below a record, which may take thirty times their bytes of memory
EMPTY = inside(b"[", b"{}", b"]")
for name, path, head, end in (
    ("logs", "/logs", b'{"message":"a","x":', b"}"),
    ("gelf", "/gelf", b'{"version":"1.1","host":"a","short_message":"a","_x":', b"}"),
    ("datadog", "/api/v2/logs", b'{"message":"a","x":', b"}"),
    ("loki", "/loki/api/v1/push", b'{"streams":[{"stream":{},"values":[["1","a",{"x":', b"}]]}]}"),
    ("hec", "/services/collector", b'{"event":{"message":"a","x":', b"}}"),
    ("hec_fields", "/services/collector", b'{"event":"a","fields":{"x":', b"}}"),
    ("faro", "/logs", b'{"meta":{},"exceptions":[{"type":"a","x":', b"}]}"),
    ("elastic", "/_bulk", b'{"index":{}}\n{"message":"a","x":', b"}"),
    ("clef", "/ingest/clef", b'{"@m":"a","x":', b"}"),
    ("zipkin", "/api/v2/spans", b'{"id":"1","traceId":"1","tags":{"x":', b"}}"),
    ("metrics", "/metrics", b'{"name":"a","value":1,"tags":{"x":', b"}}"),
    ("gps", "/gps", b'{"device":"a","lat":1,"lon":2,"x":', b"}"),
    ("votes", "/votes", b'{"poll":"a","choice":"b","x":', b"}"),
    ("geojson", "/gps", b'{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":{"x":', b"}}"),
    ("cloudevents", "/logs", b'{"specversion":"1.0","id":"1","source":"a","type":"b","data":', b"}"),
):
    simple(f"{name}_nested", path, b"", head + EMPTY + end, b"", JSON, separator=b"\n")

NESTED = b'{"message":"a","x":' + EMPTY + b"}"
simple("logs_nested_below_a_text", "/logs", b"a\n", NESTED, b"", separator=b"\n")


DELIVERY = json.dumps({"data": base64.b64encode(NESTED).decode()}).encode()
simple("firehose_nested", "/firehose", b'{"records":[', DELIVERY, b"]}", DELIVERED)


VALUES = inside(b'{"arrayValue":{"values":[', b"{}", b"]}}")
for name, path, head, end in (
    ("logs", "/v1/logs", b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[', b"]}]}]}"),
    ("traces", "/v1/traces", b'{"resourceSpans":[{"scopeSpans":[{"spans":[', b"]}]}]}"),
):
    part = b'{"attributes":[{"key":"a","value":' + VALUES + b"}]}"
    simple(f"otlp_{name}_nested", path, head, part, end, JSON)
DEEP = encode_field(6, encode_field(1, b"a") + encode_field(2, encode_field(5, encode_field(1, b"") * 100_000)))
simple(
    "otlp_logs_nested_protobuf",
    "/v1/logs",
    b"",
    b"".join(encode_field(1, encode_field(2, encode_field(2, DEEP))) for _ in "a"),
    b"",
    PROTOBUF,
    separator=b"",
)
