"""Bodies that take long to decode for what they have: failing parts, lenient paths, repeated fields of each format."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import cramjam
from backports import zstd

from sluice.contrib.formats.protobuf import encode_field

PROTOBUF, JSON = "Content-Type: application/x-protobuf", "Content-Type: application/json"
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
simple("votes_lines_with_nan", "/votes", b"", b'{"poll":NaN,"choice":"a"}', b"", separator=b"\n")
simple("otlp_names_of_protobuf", "/v1/logs", b'{"resource_logs":[{', b'"a_b":1', b"}]}", JSON)
simple("influx_newlines", "/write", b"m f=1\n", b"", b"\n", separator=b"\n")
simple("influx_newlines_after_a_quote", "/write", b'm f="1"\n', b"", b"\n", separator=b"\n")
simple("influx_comments", "/write", b"m f=1\n", b"#", b"\n", separator=b"\n")
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
