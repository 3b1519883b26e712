"""`ingest.app`, on the fast lane and on wsgiref.validate: docs/protocol/http.md, "What a request gets", row by row."""

from __future__ import annotations

import io
import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import cramjam
import pytest
import redis as redis_client
from google.rpc.status_pb2 import Status

import ingest
from proving import harness
from proving.harness import Server, answer, connect, gateway, get, poll, post, redis_server
from proving.harness import request as send
from sluice.contrib.formats import written
from sluice.contrib.formats.prometheus import messages
from sluice.http.replies import NO_LENGTH, Rejected
from sluice.http.request import read_body, sender_head
from sluice.routes import ROUTES
from sluice.streams.built_in import STREAMS
from sluice.streams.message import parse, sender
from sluice.streams.record import Gps, Limits, Log
from support.gateway_sites import MAX_BODY, Site, gateway_site
from support.runtimes import is_problem

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


# --- on the list: the route's answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_on_the_list_gets_the_answer_of_its_route(site: Site, path: str) -> None:
    route = ROUTES[path]
    status, headers, body = post(site.where, path, b'{"a":1}\xff\x00', {"Content-Type": "text/plain"})
    assert (f"{status} "[:4], body) == (route.reply.status[:4], b"".join(route.reply.chunks))
    for name, value in route.reply.headers:
        assert headers[name.lower()] == value
    (item,) = site.items(route.stream)
    if route.fields is not None:
        assert item.startswith(f"POST {path} HTTP/1.1\r\n".encode()) and item.endswith(b'\r\n\r\n{"a":1}\xff\x00')
    else:
        assert item == b'{"a":1}\xff\x00'


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
        found = [headers.get(f"x-prometheus-remote-write-{name}-written") for name in written.NAMES]
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


def test_a_body_of_exactly_the_maximum_size_is_accepted(site: Site) -> None:
    body = os.urandom(MAX_BODY)
    assert post(site.where, "/votes", body)[0] == 200
    assert site.items() == [body]


def test_each_body_of_concurrent_clients_is_on_the_list_once(site: Site) -> None:
    acknowledged: list[bytes] = []

    def client(number: int) -> None:
        for count in range(20):
            body = b"%d-%d" % (number, count)
            assert post(site.where, "/votes", body)[0] == 200
            acknowledged.append(body)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acknowledged) == 80
    assert sorted(site.items()) == sorted(acknowledged)


CHUNKED = b"POST /votes?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_chunked_body_is_accepted_if_the_server_finds_its_end(site: Site) -> None:
    given = send(site.where, CHUNKED + b"3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n")
    if site.is_gunicorn:
        assert given[0] == 200
        assert send(site.where, CHUNKED + b"0\r\n\r\n")[0] == 200
        whole, query = site.items()
        assert whole.startswith(b"POST /votes?a=b HTTP/1.1\r\n")
        assert whole.endswith(b"\r\n\r\nabcd")
        assert query == b"a=b"
    else:
        is_problem(given, 400)
        assert b"length" in given[2]
        assert site.items() == []


@pytest.mark.parametrize("more", [{}, {"wsgi.input_terminated": True, "CONTENT_LENGTH": "3"}])
def test_a_chunked_body_is_not_read_if_its_end_is_not_certain(more: dict[str, object]) -> None:
    with pytest.raises(Rejected) as rejected:
        read_body({"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": io.BytesIO(b"abc"), **more}, MAX_BODY)
    assert rejected.value.args == (NO_LENGTH,)


def test_a_body_of_a_named_key_has_a_head_that_says_who_sent_it_and_no_more_unless_it_needs_more(site: Site) -> None:
    field = b"Host: x\r\nSluice-Sender: %b\r\nContent-Length: 3\r\n"
    for name in b"acme", b"acme", b"acme", b"other", b"other", b"default", b"acme":
        assert send(site.where, b"POST /votes HTTP/1.1\r\n" + field % name + b"\r\nabc")[0] == 200
    items = site.items()
    assert [sender(item) for item in items] == ["acme"] * 3 + ["other"] * 2 + ["default", "acme"]
    assert all(item.endswith(b"\r\n\r\nabc") for item in items)
    if site.name == "fastlane":
        assert {*items} == {sender_head(name) + b"abc" for name in ("acme", "other", "default")}
    for start, more in (
        (b"POST /gps?device=x HTTP/1.1\r\n", b""),
        (b"POST /gps HTTP/1.1\r\n", b"Idempotency-Key: k1\r\n"),
        (b"POST /gps HTTP/1.1\r\n", b"Content-Type: application/x-www-form-urlencoded\r\n"),
        (b"POST /gps HTTP/1.1\r\n", b"Content-Encoding: deflate\r\n"),
        (b"POST /owntracks HTTP/1.1\r\n", b""),
    ):
        for _ in range(3):
            assert send(site.where, start + more + field % b"acme" + b"\r\nabc")[0] == 200
            item = site.items("gps")[-1]
            assert item.startswith(start) and item.endswith(b"\r\n\r\nabc") and sender(item) == "acme"


@pytest.mark.parametrize("field", ["Idempotency-Key", "webhook-id", "X-GitHub-Delivery", "ce-id"])
def test_a_request_with_a_key_is_kept_whole(site: Site, field: str) -> None:
    for path in "/votes", "/gps":
        head = f"POST {path}?a=b HTTP/1.1\r\nHost: x\r\n{field}: k1\r\nContent-Length: 3\r\n\r\n".encode()
        assert send(site.where, head + b"abc")[0] == 200
    for item, start in zip(site.items(), (b"POST /votes?a=b HTTP/1.1\r\n", b"POST /gps?a=b HTTP/1.1\r\n")):
        assert item.startswith(start) and item.endswith(b"\r\n\r\nabc")
        assert b"\r\n%b: k1\r\n" % field.lower().encode() in item.lower()


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ('"a b\\\\c"', 200), ("a" * 255, 200), (f'"{"a" * 255}"', 200), ("8e03978e-40d5-43dd-bc93-6894a57f9324", 200),
        ("a" * 256, 400), (f'"{"a" * 256}"', 400), ("", 400), ('""', 400), ("a b", 400), ('"a', 400), ('"a"b', 400),
        ('"\\a"', 400), ("\xe4", 400), ('a"b', 400), ("a,b", 400), ('"a,b"', 200),
        ("a\r\nIdempotency-Key: b", 400), ('"a"\r\nidempotency-key: "a"', 400), ("a\r\nIDEMPOTENCY-KEY: ", 400),
    ],
)  # fmt: skip
def test_a_malformed_key_is_rejected_with_the_reason(site: Site, key: str, status: int) -> None:
    head = f"POST /votes HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: 3\r\n\r\n".encode("latin-1")
    given = send(site.where, head + b"abc")
    assert given[0] == status
    assert len(site.items()) == (status == 200)
    if status == 400:
        is_problem(given, 400)
        assert b"Idempotency-Key" in given[2]


@pytest.mark.parametrize("path", ["/votes", "/write", "/v1/logs"])
def test_an_unknown_content_encoding_is_rejected_on_every_path(site: Site, path: str) -> None:
    """Also by the fast lane, which has seen a head that differs in this value alone."""
    sent = ("gzip", 2), ("UTF-8", 2), ("br", 415), ("gzip, br", 415), ("ZSTD", 2), ("br", 415), ("", 2), (",,", 415)
    for encoding, status in sent:
        given = post(site.where, path, b"abc", {"Content-Encoding": encoding})
        assert given[0] == status or given[0] // 100 == status
        if status == 415:
            assert given[1]["accept-encoding"] == "gzip, zstd, deflate, snappy"
            assert b"Content-Encoding is none of gzip" in given[2]
    assert len(site.items(ROUTES[path].stream)) == 4


def test_an_empty_request_of_owntracks_is_accepted(site: Site) -> None:
    assert post(site.where, "/owntracks", b"", {"X-Limit-U": "jo"})[::2] == (200, b"[]")
    assert post(site.where, "/gps", b"")[0] == 400
    assert site.items("gps") == []


def test_a_list_of_content_codings_is_kept_with_the_body(site: Site) -> None:
    for encoding, status in ("gzip,deflate", 200), ("GZIP, identity", 200), ("gzip, deflate, gzip", 415):
        assert post(site.where, "/votes", b"abc", {"Content-Encoding": encoding})[0] == status
    listed, *others = site.items()
    assert b"gzip,deflate" in listed and others == [b"abc"]


def test_a_body_whose_compression_only_the_head_tells_is_kept_whole(site: Site) -> None:
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    for headers, starts in ({"Content-Type": "text/plain"}, b"abc"), (form, b"POST /gps HTTP"):
        assert post(site.where, "/gps", b"abc", headers)[0] == 200
        assert site.items("gps")[-1].startswith(starts)
    for encoding in "gzip", "deflate", "identity", "Snappy", "deflate":
        assert post(site.where, "/votes", b"abc", {"Content-Encoding": encoding})[0] == 200
    items = site.items()
    assert [item.startswith(b"POST /votes HTTP/1.1\r\n") for item in items] == [False, True, False, True, True]
    assert [field(parse(item)) for item in items if item != b"abc"] == ["deflate", "Snappy", "deflate"]


def field(message: Any) -> str:
    return str(message.field("Content-Encoding"))


def test_answers_close_their_connections_while_the_gateway_is_told_to(private_redis: Server) -> None:
    with harness.short_tmp() as tmp, gateway(tmp, private_redis) as server:

        def closes(path: str) -> bool:
            status, headers, _ = post(server.socket, path, b"x")
            assert status in (200, 204)
            return "x-accel-redirect" in headers  # to a location of nginx, which closes them

        for told in True, False:
            (tmp / "run/closing").touch() if told else (tmp / "run/closing").unlink()
            for path in "/votes", "/write":
                poll(lambda path=path, told=told: closes(path) == told)  # type: ignore[misc]


def test_what_a_process_has_counted_is_reported_when_it_ends() -> None:
    with harness.short_tmp() as tmp, redis_server(tmp) as redis:
        with gateway(tmp, redis) as server:
            client = redis_client.Redis(unix_socket_path=str(redis.socket))
            assert get(server.socket, "/nowhere")[0] == 404
            poll(lambda: client.hget("ingest:counts", "answered 404 ") == b"1")
            assert get(server.socket, "/nowhere")[0] == 404  # the next report is not due yet
        assert client.hget("ingest:counts", "answered 404 ") == b"2"


def test_expect_100_continue_is_answered(site: Site) -> None:
    if not site.is_gunicorn:
        pytest.skip("wsgiref does not support Expect")
    with connect(site.where) as connection:
        connection.sendall(b"POST /votes HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert connection.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert answer(connection)[0] == 200
    assert site.items() == [b"abc"]


# --- 400 -------------------------------------------------------------------------------------------------------------


def test_a_request_with_neither_body_nor_query_string_gets_400(site: Site) -> None:
    is_problem(post(site.where, "/votes"), 400)
    is_problem(post(site.where, "/votes?"), 400)
    is_problem(post(site.where, "/write"), 400)
    is_problem(send(site.where, b"POST /votes HTTP/1.1\r\nHost: x\r\n\r\n"), 400)
    assert not site.client.keys("ingest:{*")


@pytest.mark.parametrize("size", [0, 1, 5_000])
def test_a_body_shorter_than_its_content_length_gets_400_and_is_not_accepted(site: Site, size: int) -> None:
    with connect(site.where) as connection:
        connection.sendall(b"POST /votes HTTP/1.1\r\nHost: x\r\nContent-Length: 5001\r\n\r\n" + b"x" * size)
        connection.shutdown(socket.SHUT_WR)
        is_problem(answer(connection), 400)
    assert not site.client.keys("ingest:{*")


@pytest.mark.parametrize("length", ["+5", "-5", "5_0", "0x5", "5, 5", "5.0", "\xb2", "five", "9" * 20, "9" * 5000])
def test_a_malformed_content_length_gets_400_and_a_huge_one_413(site: Site, length: str) -> None:
    if site.name == "validated" and (len(length) > 4300 or not set(length) <= set("0123456789+_")):
        pytest.skip("wsgiref.validate itself calls int() on the length")
    head = f"POST /votes?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    status, _, _ = send(site.where, head.encode("latin-1") + b"12345")
    # gunicorn rejects some of these before the application sees them
    assert status in ((400, 413) if site.is_gunicorn else (413 if length.startswith("9") else 400,))
    assert not site.client.keys("ingest:{*")


# --- 404, 405, 413 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/vote", "/votes/", "/VOTES", "/metrics/x", "/healthz/", "/v%6ftes%00"])
def test_an_unknown_path_gets_404_with_any_method(site: Site, path: str) -> None:
    is_problem(post(site.where, path, b"x"), 404)
    is_problem(get(site.where, path), 404)
    assert not site.client.keys("ingest:{*")


def test_percent_escapes_in_the_path_are_decoded(site: Site) -> None:
    assert post(site.where, "/v%6ftes", b"x")[0] == 200
    assert site.items() == [b"x"]


def test_the_kept_path_is_the_one_that_chose_the_route_however_it_is_written(site: Site) -> None:
    rng = random.Random(41)  # noqa: S311
    query = "precision=s&u=a%20b"
    accepted = 0
    for path, route in [each for each in ROUTES.items() if each[1].fields is not None] * 4:
        coded = "".join(
            rng.choice((f"%{ord(letter):02x}", f"%{ord(letter):02X}", letter, letter)) for letter in path[1:]
        )
        target = rng.choice(("", "http://elsewhere:1" if site.is_gunicorn else "")) + "/" + coded
        data = f"POST {target}?{query} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode()
        if send(site.where, data)[0] < 300:
            accepted += 1
            message = parse(site.items(route.stream)[-1])
            assert message and (message.path, message.query, message.body) == (path, query.encode(), b"x"), target
    assert accepted >= 10


@pytest.mark.parametrize("path", ["//write", "/api//v2///write", "//votes"])
def test_repeated_slashes_are_one(site: Site, path: str) -> None:
    stream, plain = "votes" if "votes" in path else "metrics", re.sub("/+", "/", path)
    assert post(site.where, f"{path}?precision=s", b"x")[0] in (200, 204)
    (item,) = site.items(stream)
    message = parse(item)
    assert message and (message.path, message.query, message.body) == (plain, b"precision=s", b"x")
    assert get(site.where, "//ping")[0] == 204
    is_problem(get(site.where, "//pingx"), 404)


@pytest.mark.parametrize("form", ["POST /logs HTTP/1.1", "P%4fST / HTTP/1.1", "POST /owntracks?u=eve HTTP/1.0"])
def test_a_body_that_looks_like_a_whole_message_is_kept_unchanged(site: Site, form: str) -> None:
    body = form.encode() + b"\r\nX-Limit-U: eve\r\n\r\n" + b'{"_type":"location","lat":1,"lon":2,"tid":"me"}'
    assert post(site.where, "/logs", body)[0] == post(site.where, "/gps", body)[0] == 200
    for path, stream in ("/logs", "logs"), ("/gps", "gps"):
        (item,) = site.items(stream)
        message = parse(item)
        assert (message.body if message else item) == body
        assert message is None or (message.path, message.field("X-Limit-U")) == (path, "")
    lines = [log.message for log in STREAMS["logs"].decode(site.items("logs")[0], Limits()) if isinstance(log, Log)]
    assert lines[:2] == [form, "X-Limit-U: eve"]
    found = STREAMS["gps"].decode(site.items("gps")[0], Limits())
    assert not any(isinstance(each, Gps) and "eve" in each.device for each in found)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_another_method_gets_405_with_allow(site: Site, method: str) -> None:
    for path, allowed in ("/votes", "POST"), ("/write", "POST"):
        given = send(site.where, f"{method} {path}?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode())
        assert is_problem(given, 405)["allow"] == allowed
    if method != "GET":
        given = send(site.where, f"{method} /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode())
        assert is_problem(given, 405)["allow"] == "GET, HEAD"
    assert not site.client.keys("ingest:{*")


@pytest.mark.parametrize(
    "field, status",
    [("eventgrid.azure.net", 200), ("*", 200), ("a b", 405), ("", 405), ("a" * 256, 405), ("\u00e4", 405)],
)
def test_a_sender_of_cloudevents_that_asks_gets_permission_to_post(site: Site, field: str, status: int) -> None:
    head = f"OPTIONS /votes HTTP/1.1\r\nHost: x\r\nWebHook-Request-Origin: {field}\r\n\r\n".encode("latin-1")
    given, headers, _ = send(site.where, head)
    assert (given, headers["allow"]) == (status, "POST")
    assert headers.get("webhook-allowed-origin") == (field if status == 200 else None)
    assert send(site.where, head.replace(b"OPTIONS", b"PUT"))[0] == 405
    assert send(site.where, head.replace(b"/votes", b"/nowhere"))[0] == 404


def test_a_body_that_is_too_large_gets_413_before_it_is_read(site: Site) -> None:
    with connect(site.where) as connection:
        head = f"POST /votes HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
        is_problem(send(connection, head.encode()), 413)  # not a byte of it was sent
    assert not site.client.keys("ingest:{*")


def test_a_chunked_body_that_is_too_large_gets_413(site: Site) -> None:
    if not site.is_gunicorn:
        pytest.skip("wsgiref does not support chunks")
    chunk = b"2710\r\n" + bytes(10_000) + b"\r\n"
    assert send(site.where, CHUNKED + chunk * (MAX_BODY // 10_000) + b"0\r\n\r\n")[0] == 200
    is_problem(send(site.where, CHUNKED + chunk * (MAX_BODY // 10_000) + b"1\r\nx\r\n0\r\n\r\n"), 413)
    assert [len(item.partition(b"\r\n\r\n")[2]) for item in site.items()] == [MAX_BODY]


# --- 503 -------------------------------------------------------------------------------------------------------------


def is_unavailable(given: tuple[int, dict[str, str], bytes]) -> bool:
    headers = is_problem(given, 503)
    assert headers["retry-after"].isdecimal() and 1 <= int(headers["retry-after"]) <= 60
    return True


def test_requests_get_503_while_redis_is_down_and_are_accepted_afterwards(site: Site) -> None:
    assert post(site.where, "/votes", b"before")[0] == 200
    with site.without_redis():
        for path in "/votes", "/write":
            assert is_unavailable(post(site.where, path, b"lost"))
        assert is_problem(get(site.where, "/readyz"), 503)["retry-after"] == "1"
        assert get(site.where, "/healthz")[0] == 200
    assert post(site.where, "/votes", b"after")[0] == 200
    assert get(site.where, "/readyz")[0] == 200
    assert site.items() == [b"before", b"after"]


def test_requests_get_503_while_redis_is_full(site: Site) -> None:
    with site.with_config("maxmemory", "1"):
        assert is_unavailable(post(site.where, "/votes", b"lost"))
        assert is_unavailable(get(site.where, "/readyz")) and is_unavailable(get(site.where, "/ready"))
    assert post(site.where, "/votes", b"after")[0] == 200
    assert site.items() == [b"after"]


def test_a_backlog_over_its_limit_gets_503_until_there_is_room(site: Site) -> None:
    key = "ingest:{votes}"
    site.client.rpush(key, *[bytes(1000)] * 3800)
    assert post(site.where, "/votes", b"below the limit")[0] == 200
    site.client.rpush(key, *[bytes(1000)] * 400)
    # the process that answers may not have seen the new length yet
    poll(lambda: post(site.where, "/votes", b"?")[0] == 503)
    assert is_unavailable(post(site.where, "/votes", b"lost"))
    assert post(site.where, "/gps", b"another stream")[0] == 200
    site.client.delete(key)
    poll(lambda: post(site.where, "/votes", b"room")[0] == 200)
    assert site.items() == [b"room"]


# --- health checks ---------------------------------------------------------------------------------------------------


def test_the_health_checks_answer(site: Site) -> None:
    for path, text in (
        ("/healthz", b'{"message":"OK"}'),
        ("/readyz", b'{"message":"OK"}'),
        ("/ready", b'{"status":"ready"}'),
    ):
        status, headers, body = get(site.where, path)
        assert (status, headers["content-type"], body) == (200, "application/json", text)
    assert get(site.where, "/ping")[0] == 204
    assert site.items() == []


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


def test_the_fast_lane_copies_no_dictionary_for_the_application() -> None:
    assert ingest.app.fastlane.shares_environ  # type: ignore[attr-defined]


def test_an_answer_to_head_has_no_body(site: Site) -> None:
    for path, status in ("/healthz", 200), ("/readyz", 200), ("/ping", 204), ("/votes", 405), ("/nowhere", 404):
        with connect(site.where) as connection:
            head = f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            assert send(connection, head)[0] == status
            if site.name in ("sync", "wsgiref", "validated"):  # these close the connection
                assert connection.recv(1) == b""
            else:
                assert get(connection, "/healthz")[0] == 200
