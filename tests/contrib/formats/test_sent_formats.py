"""What senders of other systems send, decoded as a gateway puts it on the list: a row of the table is a request."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from sluice import settings
from sluice.http.endpoints import Endpoints, load_endpoints
from sluice.http.replies import Rejected
from sluice.registry import declared_entries
from sluice.routes import load_routes
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Decoded, Limits
from support.table_of_cases import check_each_row

S = settings.load_settings({})


class Count:
    n = 0


@pytest.fixture(scope="module")
def endpoints() -> Endpoints:
    return load_endpoints(load_routes(""), S, lambda name: Count())  # type: ignore[arg-type, return-value]


def send(
    endpoints: Endpoints, method: str, target: str, body: bytes = b"", fields: Mapping[str, str] | None = None
) -> tuple[str, Decoded]:
    """The status of the reply, and what a worker makes of the request."""
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": unquote(path), "QUERY_STRING": query}
    environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "CONTENT_TYPE": ""}
    for name, value in (fields or {}).items():
        key = name.upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    endpoint = endpoints.find_endpoint(environ)
    assert endpoint is not None, target
    assert method in endpoint.taken, method
    try:
        item = endpoint.read(environ, endpoint)
    except Rejected as rejected:
        return rejected.args[0].status, Decoded()
    return endpoint.reply.status, STREAMS[endpoint.stream].decode(item, Limits())


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    assert not decoded.rejects, decoded.rejects
    return [msgspec.structs.asdict(record) for record in decoded.records]


AT = 1_795_864_023_000_000_000
NEW_RELIC = b'[{"common":{"attributes":{"service":"shop"}},"logs":[{"timestamp":1795864023000,"message":"m","attributes":{"a":1}}]}]'
FARO = (
    b'{"meta":{"app":{"name":"shop"},"session":{"id":"s"}},"logs":[{"message":"l","level":"info"}],'
    b'"events":[{"name":"e"}],"exceptions":[{"type":"E","value":"x"}],"measurements":[{"type":"web-vitals","values":{"lcp":1}}]}'
)
ZABBIX = (
    b'{"host":{"host":"h1","name":"H 1"},"item_tags":[{"tag":"component","value":"cpu"}],"itemid":44457,"name":"load",'
    b'"clock":1795864023,"ns":5,"value":0.5,"type":0}\n'
)
ZIPKIN = (
    b'[{"traceId":"9032b04972e475c5","id":"AB","parentId":"0c","kind":"SERVER","name":"get","timestamp":1795864023000000,'
    b'"duration":612898,"localEndpoint":{"serviceName":"s"},"remoteEndpoint":{"ipv4":"192.0.2.1","port":80},'
    b'"tags":{"error":"true"},"annotations":[{"timestamp":1795864023000001,"value":"sr"}]}]'
)
DOCKER = b'{"event":{"line":"hello","source":"stdout","tag":"t"},"time":"1795864023.5","host":"h"}{"event":{"line":{"message":"in","a":1}},"time":1}'
PUBSUB = b'{"message":{"data":"aGVsbG8=","messageId":"1","publishTime":"2026-11-28T11:07:03Z","attributes":{"k":"v"}},"subscription":"s"}'
BULK = (
    b'{"create":{"_index":"fb"}}\n{"@timestamp":"2026-11-28T11:07:03Z","message":"x"}\n'
    b'{"index":{}}\n{"log_level":"warn","message":"y"}\n{"delete":{"_id":"1"}}\n{"update":{"_id":"2"}}\n{"doc":{"message":"z"}}\n'
)
METRIC = ("time", "name", "tags", "field", "value", "type")
TEXT = b'# HELP a b\n# TYPE a gauge\na{host="x\\"y",} 1.5\nb 2 1795864023000\nc_bucket{le="+Inf"} NaN\n'

# method, target, body, fields, status, names of columns, values of the rows
REQUESTS: list[tuple[str, str, bytes, dict[str, str], str, tuple[str, ...], list[tuple]]] = [
    ("POST", "/_bulk", BULK, {"Content-Type": "application/x-ndjson"}, "200 OK", ("message", "level", "attributes"),
     [("x", None, {"_index": "fb"}), ("y", "warn", {"_index": "fb"}), ("z", None, {"_index": "fb"})]),
    ("PUT", "/mine/_bulk", b'{"index":{}}\n{"message":"x"}\n', {}, "200 OK", ("message", "attributes"),
     [("x", {"_index": "mine"})]),
    ("POST", "/_bulk", b'{"index":{"_index":"i"}}\n{"user":"u"}\n', {}, "200 OK", ("message", "attributes"),
     [("", {"user": "u", "_index": "i"})]),
    ("POST", "/services/collector/event", b'{"event":"hello","time":1795864023}', {}, "200 OK", ("time", "message"),
     [(AT, "hello")]),
    ("POST", "/services/collector", DOCKER, {}, "200 OK", ("time", "message", "attributes"),
     [(AT + 500_000_000, "hello", {"source": "stdout", "tag": "t", "host": "h"}),
      (1_000_000_000, "in", {"a": 1})]),
    ("POST", "/services/collector/event/1.0",
     b'{"event":{"message":"m","severity":"ERROR"},"sourcetype":"st","fields":{"f":"1"}}', {}, "200 OK",
     ("message", "level", "attributes"), [("m", "error", {"sourcetype": "st", "f": "1"})]),
    ("POST", "/services/collector/raw?host=h&channel=c", b"one\ntwo\n", {}, "200 OK", ("message", "attributes"),
     [("one", {"host": "h"}), ("two", {"host": "h"})]),
    ("PUT", "/metrics/job/backup/instance/a%20b", TEXT, {"Content-Type": "text/plain; version=0.0.4"}, "200 OK", METRIC,
     [(None, "a", {"host": 'x"y', "job": "backup", "instance": "a b"}, "value", 1.5, "float"),
      (AT, "b", {"job": "backup", "instance": "a b"}, "value", 2.0, "float"),
      (None, "c_bucket", {"le": "+Inf", "job": "backup", "instance": "a b"}, "state", "NaN", "string")]),
    ("POST", "/metrics/job@base64/L3Zhci90bXA/x/y", b"a 1", {}, "200 OK", ("name", "tags"),
     [("a", {"job": "/var/tmp", "x": "y"})]),
    ("POST", "/api/v1/import/prometheus?extra_label=a=b", b"m 1", {}, "204 No Content", ("name", "tags"),
     [("m", {"a": "b"})]),
    ("POST", "/api/v2/spans", ZIPKIN, {"Content-Type": "application/json"}, "202 Accepted",
     ("time", "trace_id", "span_id", "parent_id", "name", "kind", "service", "duration", "status", "attributes", "events"),
     [(AT, "9032b04972e475c5", "ab", "0c", "get", "server", "s", 612_898_000, "error",
       {"error": "true", "net.peer.ip": "192.0.2.1", "net.peer.port": 80}, [{"time": AT + 1000, "name": "sr"}])]),
    ("POST", "/api/events/raw?clef", b'{"@t":"2026-11-28T11:07:03Z","@mt":"Hi {Name}","Name":"a"}\n', {}, "201 Created",
     ("time", "level", "message", "attributes"), [(AT, "info", "Hi {Name}", {"Name": "a", "level": "Information"})]),
    ("GET", "/metrics?name=room&value=21.5", b"", {}, "200 OK", ("name", "field", "value"), [("room", "value", 21.5)]),
    ("GET", "/metrics?name=room&temperature=21.5&humidity=40", b"", {}, "200 OK", ("name", "field", "value"),
     [("room", "temperature", 21.5), ("room", "humidity", 40)]),
    ("GET", "/gps?device=d&lat=1&lon=2", b"", {}, "200 OK", ("device", "lat"), [("d", 1.0)]),
    ("GET", "/votes?poll=p&choice=c", b"", {}, "200 OK", ("poll", "choice"), [("p", "c")]),
    ("GET", "/logs?message=hi", b"", {}, "200 OK", ("message",), [("hi",)]),
    ("POST", "/metrics", b"servers.a.load 0.5 1795864023\ncpu;host=a;core=1 2 -1\nm f=1i 1795864023000000000\n", {}, "200 OK", METRIC,
     [(AT, "servers.a.load", {}, "value", 0.5, "float"), (None, "cpu", {"host": "a", "core": "1"}, "value", 2.0, "float"),
      (AT, "m", {}, "f", 1, "integer")]),
    ("POST", "/metrics", b'[{"measurement":"m","tags":{"a":"b"},"fields":{"v":1.5},"time":1795864023}]', {}, "200 OK", METRIC,
     [(AT, "m", {"a": "b"}, "v", 1.5, "float")]),
    ("POST", "/metrics", b'{"name":"m","value":1,"tags":["a:b",{"key":"c","value":2},"d"]}', {}, "200 OK", ("tags",),
     [({"a": "b", "c": "2", "d": ""},)]),
    ("POST", "/metrics?name=room", b'{"temperature":21.5,"open":true,"where":"attic","hum":"40","time":1795864023}', {}, "200 OK",
     METRIC, [(AT, "room", {"where": "attic"}, "temperature", 21.5, "float"), (AT, "room", {"where": "attic"}, "open", 1, "boolean"),
              (AT, "room", {"where": "attic"}, "hum", 40, "integer")]),
    ("POST", "/metrics?name=station", b"tempf=68.2&humidity=40&model=HP", {}, "200 OK", ("name", "field", "value"),
     [("station", "tempf", 68.2), ("station", "humidity", 40)]),
    ("POST", "/metrics", ZABBIX, {}, "200 OK", METRIC,
     [(AT + 5, "load", {"component": "cpu", "host": "h1", "itemid": "44457"}, "value", 0.5, "float")]),
    ("POST", "/logs", NEW_RELIC, {}, "200 OK", ("time", "service", "message", "attributes"), [(AT, "shop", "m", {"a": 1})]),
    ("POST", "/logs", FARO, {}, "200 OK", ("service", "level", "message"),
     [("shop", "info", "l"), ("shop", None, "e"), ("shop", "error", "E: x"), ("shop", None, "web-vitals")]),
    ("POST", "/logs", b'{"message":"m","dt":"2026-11-28T11:07:03Z"}', {}, "200 OK", ("time", "message"), [(AT, "m")]),
    ("POST", "/logs", b'{"event":"e","data":"1","published_at":"2026-11-28T11:07:03Z"}', {}, "200 OK", ("time", "message"), [(AT, "e")]),
    ("POST", "/logs", PUBSUB, {}, "200 OK", ("time", "message"), [(AT, "hello")]),
    ("POST", "/logs", b'{"message":"m","log_level":"WARN"}', {}, "200 OK", ("level",), [("warn",)]),
]  # fmt: skip


@check_each_row("method, target, body, fields, status, columns, expected", REQUESTS)
def test_a_request_becomes_these_rows(
    endpoints: Endpoints, method: str, target: str, body: bytes, fields: dict[str, str], status: str,
    columns: tuple[str, ...], expected: list[tuple],
) -> None:  # fmt: skip
    answered, decoded = send(endpoints, method, target, body, fields)
    assert answered == status
    assert [tuple(row[name] for name in columns) for row in rows(decoded)] == expected


@check_each_row(
    "target, body, fields, reason",
    [
        (
            "/metrics",
            b'{"temperature":21.5}',
            {},
            "missing: name; for an object of numbers, name it: /metrics?name=NAME",
        ),
        (
            "/metrics",
            b"a 0.5",
            {},
            "not a field: '0.5'; a line is NAME FIELD=VALUE TIME (line protocol) or NAME VALUE TIME",
        ),
        ("/metrics?name=a", b'{"b":"c"}', {}, "no number"),
        (
            "/metrics/job/a",
            b"\n",
            {"Content-Type": "application/vnd.google.protobuf"},
            "protobuf: send the text format",
        ),
        ("/metrics/job/a", b"a b c\n", {}, "not a sample"),
        ("/metrics/job/a/b", b"a 1\n", {}, "the path has a label without a value"),
        ("/services/collector", b'{"time":1}', {}, "missing: event"),
        ("/api/v2/spans", b'[{"name":"a"}]', {}, "missing: traceId or id"),
    ],
)
def test_an_invalid_request_names_the_reason(
    endpoints: Endpoints, target: str, body: bytes, fields: dict[str, str], reason: str
) -> None:
    _, decoded = send(endpoints, "POST", target, body, fields)
    assert not decoded.records
    assert [reject.reason[: len(reason)] for reject in decoded.rejects] == [reason]


def test_senders_that_ask_first_are_answered() -> None:
    probes = declared_entries("probes")
    environ = {"REQUEST_METHOD": "GET"}
    root = probes["/"].load()(environ, lambda: None)
    assert ("X-Elastic-Product", "Elasticsearch") in root.headers
    assert b'"number":"8.' in root.chunks[0]
    health = probes["/services/collector/health"].load()
    assert health(environ, lambda: None).chunks == (b'{"text":"HEC is healthy","code":17}',)
    assert health(environ, lambda: root).status.startswith("503")
    assert health({"REQUEST_METHOD": "POST"}, lambda: None) is None


def test_each_row_is_replayed_as_it_was() -> None:
    """A line of the bulk format that was buried is decoded alone."""
    item = b"POST /_bulk HTTP/1.1\r\n\r\n" + b'{"index":{"_index":"i"}}\n{"message":"a"}\n{"message":\n'
    decoded = STREAMS["logs"].decode(item, Limits())
    (reject,) = decoded.rejects
    again = STREAMS["logs"].decode(reject.part.replace(b'"message":', b'"message":"b"}'), Limits())
    assert [row["message"] for row in rows(again)] == ["b"]
