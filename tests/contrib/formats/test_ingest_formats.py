"""What the gateway answers senders of the wire formats, and what it puts on the list of them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import cramjam
import pytest
from google.rpc.status_pb2 import Status

from proving import harness
from proving.harness import Server, get, post, redis_server
from proving.harness import request as send
from sluice.contrib.formats import remote_write_counts
from sluice.contrib.formats.prometheus import messages
from sluice.http.routes import varies
from sluice.routes import ROUTES
from sluice.streams.message import parse_message
from support.gateway_sites import MAX_BODY, Site, gateway_site

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def private_redis() -> Iterator[Server]:
    with harness.short_tmp() as tmp, redis_server(tmp, appendonly="no", save="") as server:
        yield server


# Every server keeps the contract: test_http_contract.py. wsgiref.validate is the strictest, and knows least of HTTP
@pytest.fixture(scope="module", params=["fastlane", "validated"])
def installed(private_redis: Server, request: pytest.FixtureRequest) -> Iterator[Site]:
    with gateway_site(private_redis, request.param, "cpython") as found:
        yield found


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    """Empty lists; afterwards, that the application raised nothing during the test."""
    with installed.emptied():
        yield installed


WRITE_2 = {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request", "Content-Encoding": "snappy"}


def test_the_answer_to_remote_write_2_counts_what_is_on_the_list(site: Site) -> None:
    series = messages.Series2(
        samples=[messages.Sample()] * 2, histograms=[messages.Histogram(sum=n / 7) for n in range(200)]
    )
    series.exemplars.add()
    request = messages.Request2(
        symbols=["", "a" * 200], timeseries=[series, messages.Series2(samples=[messages.Sample()])]
    )
    body = bytes(cramjam.snappy.compress_raw(request.SerializeToString()))
    for path in "/api/v1/write", "/metrics":
        status, headers, answer = post(site.where, path, body, WRITE_2)
        found = [headers.get(f"x-prometheus-remote-write-{name}-written") for name in remote_write_counts.NAMES]
        expected = (204, b"", ["3", "200", "1"]) if path == "/api/v1/write" else (200, b'{"message":"OK"}', [None] * 3)
        assert (status, answer, found) == expected
    assert [item.partition(b"\r\n\r\n")[2] for item in site.items("metrics")][:1] == [body]


def test_remote_write_2_that_is_not_counted_is_on_the_list_and_its_answer_says_why(site: Site) -> None:
    for body in b"no snappy", bytes(cramjam.snappy.compress_raw(b"*\0" * 30_000)):
        status, headers, answer = post(site.where, "/api/v1/write", body, WRITE_2)
        assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert answer.startswith(b"The request is stored, but its samples were not counted: it ")
        assert "x-prometheus-remote-write-samples-written" not in headers
    assert len(site.items("metrics")) == 2


@pytest.mark.parametrize("path", ["/firehose", "/own"])
def test_the_answer_to_a_delivery_of_firehose_has_its_id_and_the_time(site: Site, path: str) -> None:
    for size in 1, 2000:
        body = b"x" * size
        before = time.time() * 1000 - 1
        status, headers, answer = post(site.where, path, body, {"X-Amz-Firehose-Request-Id": 'ed4a"'})
        assert (status, headers["content-type"]) == (200, "application/json")
        assert headers["content-length"] == str(len(answer))
        found = json.loads(answer)
        assert found.keys() == {"requestId", "timestamp"} and found["requestId"] == 'ed4a"'
        assert before < found["timestamp"] <= time.time() * 1000
    assert post(site.where, path, b"x")[2] == b'{"message":"OK"}'
    items = site.items("logs" if path == "/firehose" else "votes")
    assert [item.endswith(b"\r\n\r\n" + b"x" * size) for item, size in zip(items, (1, 2000))] == [True, True]


RPC = [path for path, route in ROUTES.items() if route.json]


@pytest.mark.parametrize("path", RPC)
def test_an_answer_of_otlp_has_the_encoding_of_its_request(site: Site, path: str) -> None:
    for content_type, in_json in (
        *(("application/json", True), ("Application/JSON; charset=utf-8", True)),
        *(("application/x-protobuf", False), ("text/plain", False), ("", False)),
    ):
        headers = {"Content-Type": content_type} if content_type else {}
        for body in b"\n\x00", b"":  # a request without telemetry is valid
            status, fields, answer = post(site.where, path, body, headers)
            assert (status, answer) == (200, b"{}" if in_json else b"")
            assert fields["content-type"] == ("application/json" if in_json else "application/x-protobuf")
    assert len(site.items(ROUTES[path].stream)) == 5


@pytest.mark.parametrize("path", RPC)
def test_an_error_of_otlp_is_a_status_in_the_encoding_of_its_request(site: Site, path: str) -> None:
    with site.without_redis():
        status, fields, answer = post(site.where, path, b"\n\x00", {"Content-Type": "application/json"})
        assert (status, fields["content-type"]) == (503, "application/json")
        message = json.loads(answer)["message"]
        assert message and fields["retry-after"] == "1"
        status, fields, answer = post(site.where, path, b"\n\x00", {"Content-Type": "application/x-protobuf"})
        assert (status, fields["content-type"], fields["retry-after"]) == (503, "application/x-protobuf", "1")
        assert Status.FromString(answer) == Status(message=message)
    status, _, answer = post(site.where, path, bytes(8 * MAX_BODY + 1), {"Content-Type": "application/x-protobuf"})
    assert (status, Status.FromString(answer).message[:15]) == (413, "A body may have")
    status, _, answer = post(site.where, path, bytes(8 * MAX_BODY + 1), {"Content-Type": "application/json"})
    assert (status, json.loads(answer)["message"][:15]) == (413, "A body may have")
    assert not site.client.keys("ingest:{*")


def test_an_empty_body_is_replaced_by_the_query_string(site: Site) -> None:
    query = "id=1&timestamp=1766600000&lat=48.1&lon=11.6&speed=3%2e5&note=%C3%A9+%"
    assert post(site.where, f"/traccar?{query}")[0] == 200
    assert post(site.where, f"/traccar?{query}", b"body")[0] == 200
    assert send(site.where, f"POST /traccar?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())[0] == 200
    plain, message, again = site.items("gps")
    assert plain == again == query.encode()
    # the query string of a request with a body may name the device
    assert message.startswith(f"POST /traccar?{query} HTTP/1.1\r\n".encode()) and message.endswith(b"\r\n\r\nbody")


def test_the_message_of_a_route_has_the_fields_that_it_names(site: Site) -> None:
    body = b"cpu value=1\r\n\r\ncpu value=2"
    data = (
        b"POST %b?bucket=b%%20c&precision=s HTTP/1.1\r\nHost: localhost:8086\r\nX-Limit-U: phil\r\nCookie: secret\r\n"
        b"x-latin: \xe9\r\nContent-Encoding: identity\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b"
    )
    passed = {"content-encoding": "identity", "content-type": "text/plain"}
    named = {"x-limit-u": "phil"}
    others = {"host": "localhost:8086", "x-latin": "\xe9", "content-length": str(len(body))}
    for path, fields in (
        ("/api/v2/write", passed), ("/owntracks", passed | named), ("/own/whole", passed | named | others),
    ):  # fmt: skip
        assert send(site.where, data % (path.encode(), len(body), body))[0] in (200, 204)
        stream = ROUTES[path].stream if path in ROUTES else "votes"
        head, _, rest = site.items(stream)[-1].partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        assert (line, rest) == (f"POST {path}?bucket=b%20c&precision=s HTTP/1.1", body)
        assert {name.lower(): value for name, value in (field.split(": ", 1) for field in lines)} == fields


def test_a_stream_whose_decoder_needs_the_head_gets_the_whole_message(site: Site) -> None:
    for path, stream in (
        ("/write", "metrics"), ("/api/v1/write", "metrics"), ("/v1/metrics", "metrics"), ("/loki/api/v1/push", "logs"),
        ("/v1/logs", "logs"), ("/v1/traces", "spans"), ("/owntracks", "gps"), ("/homeassistant", "gps"),
    ):  # fmt: skip
        assert post(site.where, path, b"x")[0] in (200, 204)
        assert site.items(stream)[-1].startswith(f"POST {path} HTTP/1.1\r\n".encode())


def test_a_whole_message_without_a_body_keeps_its_query_in_the_head(site: Site) -> None:
    assert post(site.where, "/owntracks?u=phil&d=phone")[2] == b"[]"
    (item,) = site.items("gps")
    assert item.startswith(b"POST /owntracks?u=phil&d=phone HTTP/1.1\r\n") and item.endswith(b"\r\n\r\n")


def test_an_empty_request_of_owntracks_is_accepted(site: Site) -> None:
    assert post(site.where, "/owntracks", b"", {"X-Limit-U": "jo"})[::2] == (200, b"[]")
    assert post(site.where, "/gps", b"")[0] == 400
    assert site.items("gps") == []


def field(message: Any) -> str:
    return str(message.field("Content-Encoding"))


def test_the_kept_path_is_the_one_that_chose_the_route_however_it_is_written(site: Site) -> None:
    rng = random.Random(41)  # noqa: S311
    query = "precision=s&u=a%20b"
    accepted = 0
    kept = [(path, route) for path, route in ROUTES.items() if route.fields is not None and not varies(path)]
    for path, route in kept * 4:
        coded = "".join(
            rng.choice((f"%{ord(letter):02x}", f"%{ord(letter):02X}", letter, letter)) for letter in path[1:]
        )
        target = rng.choice(("", "http://elsewhere:1" if site.is_gunicorn else "")) + "/" + coded
        data = f"POST {target}?{query} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode()
        if send(site.where, data)[0] < 300:
            accepted += 1
            message = parse_message(site.items(route.stream)[-1])
            assert message and (message.path, message.query, message.body) == (path, query.encode(), b"x"), target
    assert accepted >= 10


def test_what_senders_ask_influxdb_before_they_write_is_answered(site: Site) -> None:
    status, _, body = get(site.where, "/health")
    assert (status, json.loads(body)["name"], json.loads(body)["status"]) == (200, "influxdb", "pass")
    create = "q=CREATE+DATABASE+%22a%22"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for given in (
        get(site.where, f"/query?{create}"),
        post(site.where, f"/query?{create}"),
        post(site.where, "/query?db=a", create.encode(), form),
        post(site.where, f"/query?{create}", b"db=a", form),
    ):
        assert (given[0], given[2]) == (200, b'{"results":[{"statement_id":0}]}')
    policy = b"q=create+retention+policy+%22b%22+on+%22a%22+duration+3d+replication+1"
    for statement in policy, b"q=ALTER+RETENTION+POLICY+b+ON+a+DEFAULT", b"q=SHOW+MEASUREMENTS":
        assert post(site.where, "/query", statement, form)[2] == b'{"results":[{"statement_id":0}]}'
    status, _, body = get(site.where, "/query?q=show%20databases;")
    assert (status, json.loads(body)["results"][0]["series"][0]["columns"]) == (200, ["name"])
    for target, body in ("/query?q=SELECT+1", b""), ("/query", b""), ("/query", b"q=%zz"), ("/query", b"&" * 200):
        assert post(site.where, target, body)[0] == 400
    assert post(site.where, "/query", bytes(9000))[0] == 413
    assert get(site.where, "/query?q=SELECT+1")[0] == 400
    assert site.items() == site.items("metrics") == []


@pytest.mark.parametrize("query", ["verbose=true", "u=a&p=b&verbose=1"])
def test_a_verbose_ping_gets_200_with_the_version_as_boards_check_it(query: str, site: Site) -> None:
    status, headers, body = get(site.where, f"/ping?{query}")
    assert (status, [*json.loads(body)], headers["x-influxdb-version"]) == (200, ["version"], "sluice")
    assert get(site.where, "/ping?verbose=false")[0] == 204
