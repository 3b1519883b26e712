"""What senders post, in the shapes that they have by default; and what a plain loop over the same bytes does.

Each shape is a function of a number, so that no two bodies are equal. The plain loop is what one would write without
Sluice: it decodes a body with the generated classes, or with json.loads, makes what a row has of each of its parts,
and stores nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import cramjam
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sluice.contrib.formats.loki import messages as loki
from sluice.contrib.formats.prometheus import messages as prometheus

PROTOBUF, JSON = b"Content-Type: application/x-protobuf", b"Content-Type: application/json"
SNAPPY = PROTOBUF + b"\r\nContent-Encoding: snappy"
MANY = 10**9  # senders: each body is from another one
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nX-Real-IP: 127.0.0.1\r\nContent-Length: %d\r\nUser-Agent: bench\r\n%s"


class Shape(NamedTuple):
    """make: body number n. loop: the plain loop over the body without its head."""

    stream: str
    make: Callable[[int], bytes]
    loop: Callable[[bytes], Any]


def message(target: bytes, fields: bytes, body: bytes) -> bytes:
    """A body that is kept with its HTTP head, as nginx forwards it."""
    return HEAD % (target, len(body), fields) + b"\r\n\r\n" + body


def at(n: int) -> int:
    """Seconds since 1970; 300 bodies per second."""
    return 1_766_600_000 + n // 300


def pairs(**given: object) -> list[dict[str, Any]]:
    """Attributes of OTLP."""
    return [
        {"key": name.replace("_", "."), "value": {"int_value" if isinstance(value, int) else "string_value": value}}
        for name, value in given.items()
    ]


def resource(n: int) -> dict[str, Any]:
    """What an SDK says of its process."""
    return {
        "attributes": pairs(
            service_name="web", service_instance=f"3f1c-{n}", host_name=f"h{n % 500}", process_pid=4711,
            telemetry_sdk_name="opentelemetry", telemetry_sdk_language="python", telemetry_sdk_version="1.38.0",
        )
    }  # fmt: skip


SCOPE = {"name": "opentelemetry.instrumentation.flask", "version": "0.59b0"}


def metric(number: int, n: int, points: int) -> dict[str, Any]:
    """A metric of an SDK: half of them are counters, with the time when they began."""
    made = []
    for point in range(points):
        common = {
            "time_unix_nano": at(n) * 10**9 + n % 300 * 10**6, "as_double": number + point / 4,
            "attributes": pairs(http_method="GET", http_route=f"/api/items/{point}", http_status=200),
        }  # fmt: skip
        made.append(common if number % 2 else {**common, "start_time_unix_nano": at(0) * 10**9})
    data: dict[str, Any] = {"data_points": made}
    kind = {"gauge": data} if number % 2 else {"sum": data | {"aggregation_temporality": 2, "is_monotonic": True}}
    return {"name": f"http.server.figure.{number}", "unit": "By", "description": "Of all requests.", **kind}


def otlp_metrics(resources: int, metrics: int, points: int, senders: int = MANY) -> Callable[[int], bytes]:
    """senders: they take turns, and each sends the same series again."""

    def make(n: int) -> bytes:
        sent: list[Any] = [
            {
                "resource": resource(n % senders * resources + each),
                "scope_metrics": [{"scope": SCOPE, "metrics": [metric(m, n, points) for m in range(metrics)]}],
            }
            for each in range(resources)
        ]
        body = ExportMetricsServiceRequest(resource_metrics=sent).SerializeToString()
        return message(b"/v1/metrics", PROTOBUF, body)

    return make


def value_of(value: Any) -> Any:
    return value.string_value or getattr(value, value.WhichOneof("value") or "string_value")


def named(attributes: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in attributes}


def loop_metrics(body: bytes) -> list[Any]:
    rows = []
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        inherited = named(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                name, unit = metric.name, metric.unit
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    tags = {**inherited, **named(point.attributes)}
                    value = getattr(point, point.WhichOneof("value"))
                    rows.append((point.time_unix_nano, name, unit, tags, value, point.start_time_unix_nano))
    return rows


def otlp_logs(n: int) -> bytes:
    """512 records, as an SDK's batch processor sends them."""
    start = at(n) * 10**9 + n % 300 * 10**6
    records = [
        {
            "time_unix_nano": start + line, "observed_time_unix_nano": start + line + 50_000, "severity_number": 9,
            "severity_text": "INFO", "body": {"string_value": f"GET /api/items/{line} took 12 ms"},
            "attributes": pairs(code_file_path="/srv/app/web.py", code_line_number=line, http_status=200),
            "trace_id": (n << 32 | line).to_bytes(16, "big"), "span_id": (n << 16 | line).to_bytes(8, "big"),
        }
        for line in range(512)
    ]  # fmt: skip
    sent: list[Any] = [{"resource": resource(n), "scope_logs": [{"scope": SCOPE, "log_records": records}]}]
    return message(b"/v1/logs", PROTOBUF, ExportLogsServiceRequest(resource_logs=sent).SerializeToString())


def loop_logs(body: bytes) -> list[Any]:
    rows = []
    for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
        inherited = named(resource.resource.attributes)
        for scope in resource.scope_logs:
            for one in scope.log_records:
                tags = {**inherited, **named(one.attributes), "trace_id": one.trace_id.hex()}
                tags["span_id"] = one.span_id.hex()
                rows.append((one.time_unix_nano, one.severity_text, one.body.string_value, tags))
    return rows


def otlp_spans(n: int) -> bytes:
    """512 spans, as an SDK's batch processor sends them."""
    start = at(n) * 10**9 + n % 300 * 10**6
    about = pairs(http_method="GET", url_path="/api/items", url_scheme="http", server_address="a.example")
    spans = [
        {
            "trace_id": n.to_bytes(16, "big"), "parent_span_id": b"\1" * 8, "name": "GET /api/items", "kind": 2,
            "span_id": (n << 16 | each).to_bytes(8, "big"), "attributes": about, "status": {},
            "start_time_unix_nano": start + each, "end_time_unix_nano": start + each + 10**6,
        }
        for each in range(512)
    ]  # fmt: skip
    sent: list[Any] = [{"resource": resource(n), "scope_spans": [{"scope": SCOPE, "spans": spans}]}]
    return message(b"/v1/traces", PROTOBUF, ExportTraceServiceRequest(resource_spans=sent).SerializeToString())


def loop_spans(body: bytes) -> list[Any]:
    rows = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        inherited = named(resource.resource.attributes)
        for scope in resource.scope_spans:
            for one in scope.spans:
                tags = {**inherited, **named(one.attributes)}
                ids = one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex()
                start = one.start_time_unix_nano
                rows.append((*ids, one.name, one.kind, start, one.end_time_unix_nano - start, tags))
    return rows


def remote_write(samples: int, senders: int = MANY) -> Callable[[int], bytes]:
    """A request of Prometheus (version 1.0): one sample a series, with the labels of node_exporter in Kubernetes.

    senders: as for `otlp_metrics`.
    """

    def make(n: int) -> bytes:
        stamp = at(n) * 1000 + n % 300
        series = [
            {
                "labels": [
                    {"name": name, "value": value}
                    for name, value in (
                        ("__name__", f"node_cpu_seconds_{each % 200}"), ("cluster", "a"), ("cpu", str(each % 64)),
                        ("instance", f"10.0.{n % senders % 250}.7:9100"), ("job", "node"), ("mode", "idle"),
                        ("namespace", "x"),
                        ("pod", f"node-exporter-{n % senders % 500}"),
                    )
                ],
                "samples": [{"value": each * 1.25, "timestamp": stamp}],
            }
            for each in range(samples)
        ]  # fmt: skip
        body = prometheus.Request1(timeseries=series).SerializeToString()
        return message(b"/api/v1/write", SNAPPY, bytes(cramjam.snappy.compress_raw(body)))

    return make


def loop_series(body: bytes) -> list[Any]:
    rows = []
    for series in prometheus.Request1.FromString(bytes(cramjam.snappy.decompress_raw(body))).timeseries:
        tags = {label.name: label.value for label in series.labels}
        name = tags.pop("__name__")
        rows += [(sample.timestamp, name, tags, sample.value) for sample in series.samples]
    return rows


def promtail(n: int) -> bytes:
    """A batch of 1 MiB before its compression: ten streams of 500 lines."""
    start = at(n)
    labels = '{{container="web", filename="/var/log/{0}.log", job="logs/web", namespace="x", pod="web-{0}"}}'
    line = (
        '10.1.{}.7 - - "GET /api/items/{}?page=2 HTTP/1.1" 200 5316 "https://a.example/{}" '
        '"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0" 0.012 upstream=a-1'
    )
    streams = [
        {
            "labels": labels.format(each + n % 50 * 10),
            "entries": [
                {
                    "timestamp": {"seconds": start, "nanos": n % 300 * 10**6 + number},
                    "line": line.format(each, number, n),
                }
                for number in range(500)
            ],
        }
        for each in range(10)
    ]
    body = loki.Push(streams=streams).SerializeToString()
    return message(b"/loki/api/v1/push", PROTOBUF, bytes(cramjam.snappy.compress_raw(body)))


def loop_push(body: bytes) -> list[Any]:
    rows = []
    for stream in loki.Push.FromString(bytes(cramjam.snappy.decompress_raw(body))).streams:
        parts = (pair.partition("=") for pair in stream.labels[1:-1].split(", "))
        labels = {name: value[1:-1] for name, _, value in parts}
        for entry in stream.entries:
            time = entry.timestamp.seconds * 10**9 + entry.timestamp.nanos
            rows.append((time, entry.line, {**labels, **{pair.name: pair.value for pair in entry.structured_metadata}}))
    return rows


def telegraf(n: int) -> bytes:
    """A batch of 1,000 lines of the inputs cpu, mem and net."""
    stamp, host = at(n) * 10**9 + n % 300 * 10**6, n % 500
    lines = []
    for each in range(334):
        ends = f"host=h{host} "
        lines += [
            f"cpu,cpu=cpu{each % 64},{ends}usage_user={each}.25,usage_system=1.5,usage_idle=90.125,usage_iowait=0 "
            f"{stamp + each}",
            f"mem,{ends}used={4_000_000_000 + each}i,available=8000000000i,used_percent=33.3125 {stamp + each}",
            f"net,interface=eth{each % 4},{ends}bytes_recv={n}i,bytes_sent={each}i,err_in=0i,drop_in=0i {stamp + each}",
        ]
    return message(b"/write?db=telegraf", b"Content-Type: text/plain", "\n".join(lines[:1000]).encode() + b"\n")


def loop_lines(body: bytes) -> list[Any]:
    rows = []
    for line in body.decode().splitlines():
        head, fields, stamp = line.split(" ")
        name, *labels = head.split(",")
        tags = dict(label.split("=") for label in labels)
        for field in fields.split(","):
            key, written = field.split("=")
            value = int(written[:-1]) if written[-1] == "i" else float(written)
            rows.append((int(stamp), name, tags, key, value))
    return rows


def fluent_bit(n: int) -> bytes:
    """500 lines of a container, as its output http writes them with format json, behind the filter kubernetes."""
    about = {
        "pod_name": f"web-{n % 500}", "namespace_name": "x", "container_name": "web", "host": f"h{n % 500}",
        "labels": {"app": "web", "pod-template-hash": "5d4f"},
    }  # fmt: skip
    records = [
        {
            "date": at(n) + n % 300 / 1000 + line / 10**6, "time": f"2026-01-01T00:00:00.{line:09d}Z",
            "stream": "stdout", "_p": "F", "log": f"GET /api/items/{line} took {n} ms", "kubernetes": about,
        }
        for line in range(500)
    ]  # fmt: skip
    return json.dumps(records, separators=(",", ":")).encode()


def json_logs(n: int) -> bytes:
    """500 lines of a library's logger."""
    return b"[%b]" % b",".join(
        b'{"time":%d,"level":"info","service":"web","message":"GET /api/items/%d took %d ms","status":200,"host":"h%d"}'
        % (at(n), line, n, n % 500)
        for line in range(500)
    )


def gelf(n: int) -> bytes:
    body = b'{"version":"1.1","host":"h%d","short_message":"GET /%d","timestamp":%d,"level":6,"_status":200}'
    return message(b"/gelf", JSON, body % (n % 500, n, at(n)))


def push(n: int) -> bytes:
    """A push to GitHub, of 8 kB: half of it are addresses of the repository."""
    commit = {"id": f"{n:040x}", "message": "Mend it", "timestamp": "2026-01-01T00:00:00Z", "added": ["src/a.py"] * 12}
    person = {"name": "ada", "email": "ada@example.org", "username": "ada"}
    parts = "keys", "hooks", "forks", "teams", "events", "branches", "tags", "labels", "merges", "releases", "issues"
    urls = {f"{part}_{kind}url": f"https://api.example.org/repos/ada/web/{part}{{/{kind}id}}"
            for part in parts for kind in ("", "git_", "html_", "clone_", "ssh_")}  # fmt: skip
    body = {
        "ref": "refs/heads/main", "before": f"{n - 1:040x}", "after": f"{n:040x}", "repository": {"id": 1} | urls,
        "pusher": person, "commits": [commit | {"author": person, "committer": person}] * 7, "forced": False,
    }  # fmt: skip
    fields = JSON + b"\r\nX-GitHub-Event: push\r\nX-GitHub-Delivery: 72d3162e-%020d" % n
    return message(b"/hooks/github", fields, json.dumps(body).encode())


def event(n: int, hooks: int = 1) -> bytes:
    """A small event, of 300 bytes, at one of so many hooks."""
    body = {
        "id": f"evt_{n:024d}", "object": "event", "api_version": "2026-01-01", "created": at(n), "livemode": True,
        "type": "invoice.paid", "data": {"object": {"id": f"in_{n:024d}", "amount": n % 9999, "currency": "eur"}},
        "pending_webhooks": 1, "request": {"id": f"req_{n:014d}", "idempotency_key": None},
    }  # fmt: skip
    return message(b"/hooks/shop%d" % (n % hooks), JSON, json.dumps(body).encode())


def loop_json(body: bytes) -> list[Any]:
    found = json.loads(body)
    return [(one.get("time"), one) for one in (found if isinstance(found, list) else [found])]


SHAPES = {
    "OTLP metrics of an SDK, 100 of one point": Shape("metrics", otlp_metrics(1, 100, 1), loop_metrics),
    "OTLP metrics of an SDK, 500 of one point": Shape("metrics", otlp_metrics(1, 500, 1), loop_metrics),
    "OTLP metrics of a Collector, 8,192 of one point": Shape("metrics", otlp_metrics(16, 512, 1), loop_metrics),
    "OTLP metrics of a Collector, 256 of 32 points": Shape("metrics", otlp_metrics(4, 64, 32), loop_metrics),
    "OTLP logs, 512": Shape("logs", otlp_logs, loop_logs),
    "OTLP spans, 512": Shape("spans", otlp_spans, loop_spans),
    "remote write, 500 samples": Shape("metrics", remote_write(500), loop_series),
    "remote write, 2,000 samples": Shape("metrics", remote_write(2000), loop_series),
    "Loki, a batch of Promtail": Shape("logs", promtail, loop_push),
    "line protocol, 1,000 lines of Telegraf": Shape("metrics", telegraf, loop_lines),
    "JSON logs, 500 of Fluent Bit": Shape("logs", fluent_bit, loop_json),
    "JSON logs, 500 of a library": Shape("logs", json_logs, loop_json),
    "GELF, one message": Shape("logs", gelf, loop_json),
    "hooks, a push to GitHub of 8 kB": Shape("hooks", push, loop_json),
    "hooks, an event of 300 bytes": Shape("hooks", event, loop_json),
}
