"""`ingest.app`, on the fast lane and on wsgiref.validate: docs/protocol/http.md, "What a request gets", row by row."""

from __future__ import annotations

import io
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_client

from proving import harness
from proving.harness import Server, answer, connect, gateway, get, poll, post, redis_server
from proving.harness import request as send
from sluice.http.replies import CODINGS, NO_LENGTH, Rejected
from sluice.http.request import read_body, sender_head
from sluice.routes import ROUTES
from sluice.streams.built_in import STREAMS
from sluice.streams.message import parse_message, sender_of
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
    path = re.sub(r"{\w+}", "a", path).replace("/*", "/b")
    status, headers, body = post(site.where, path, b'{"a":1}\xff\x00', {"Content-Type": "text/plain"})
    assert (f"{status} "[:4], body) == (route.reply.status[:4], b"".join(route.reply.chunks))
    for name, value in route.reply.headers:
        assert headers[name.lower()] == value
    (item,) = site.items(route.stream)
    if route.fields is not None or route.keep_head:
        assert item.startswith(f"POST {path} HTTP/1.1\r\n".encode()) and item.endswith(b'\r\n\r\n{"a":1}\xff\x00')
    else:
        assert item == b'{"a":1}\xff\x00'


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
    assert [sender_of(item) for item in items] == ["acme"] * 3 + ["other"] * 2 + ["default", "acme"]
    assert all(item.endswith(b"\r\n\r\nabc") for item in items)
    if site.name == "fastlane":
        assert {*items} == {sender_head(name) + b"abc" for name in ("acme", "other", "default")}
    for start, more in (
        (b"POST /gps?device=x HTTP/1.1\r\n", b""),
        (b"POST /gps HTTP/1.1\r\n", b"Idempotency-Key: k1\r\n"),
        (b"POST /gps HTTP/1.1\r\n", b"Content-Type: application/x-www-form-urlencoded\r\n"),
        (b"POST /gps HTTP/1.1\r\n", b"Content-Encoding: deflate\r\n"),
    ):
        for _ in range(3):
            assert send(site.where, start + more + field % b"acme" + b"\r\nabc")[0] == 200
            item = site.items("gps")[-1]
            assert item.startswith(start) and item.endswith(b"\r\n\r\nabc") and sender_of(item) == "acme"


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


@pytest.mark.parametrize("path", ["/votes", "/metrics", "/logs"])
def test_an_unknown_content_encoding_is_rejected_on_every_path(site: Site, path: str) -> None:
    """Also by the fast lane, which has seen a head that differs in this value alone."""
    sent = ("gzip", 2), ("UTF-8", 2), ("br", 415), ("gzip, br", 415), ("GZIP", 2), ("br", 415), ("", 2), (",,", 415)
    for encoding, status in sent:
        given = post(site.where, path, b"abc", {"Content-Encoding": encoding})
        assert given[0] == status or given[0] // 100 == status
        if status == 415:
            assert given[1]["accept-encoding"] == ", ".join(CODINGS)
            assert b"Content-Encoding is none of gzip" in given[2]
    assert len(site.items(ROUTES[path].stream)) == 4


def test_a_list_of_content_codings_is_kept_with_the_body(site: Site) -> None:
    for encoding, status in ("gzip,deflate", 200), ("GZIP, identity", 200), ("gzip, deflate, gzip", 415):
        assert post(site.where, "/votes", b"abc", {"Content-Encoding": encoding})[0] == status
    listed, *others = site.items()
    assert b"gzip,deflate" in listed and others == [b"abc"]


def test_a_body_whose_compression_only_the_head_tells_is_kept_whole(site: Site) -> None:
    for encoding in "gzip", "deflate", "identity", "Deflate", "deflate":
        assert post(site.where, "/votes", b"abc", {"Content-Encoding": encoding})[0] == 200
    items = site.items()
    assert [item.startswith(b"POST /votes HTTP/1.1\r\n") for item in items] == [False, True, False, True, True]
    assert [field(parse_message(item)) for item in items if item != b"abc"] == ["deflate", "Deflate", "deflate"]


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
            for path in "/votes", "/gps":
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
    is_problem(post(site.where, "/metrics"), 400)
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


@pytest.mark.parametrize("path", ["/vote", "/votes/", "/VOTES", "/metrics/x", "/healthz/", "/v%6ftes%00"])
def test_an_unknown_path_gets_404_with_any_method(site: Site, path: str) -> None:
    is_problem(post(site.where, path, b"x"), 404)
    is_problem(get(site.where, path), 404)
    assert not site.client.keys("ingest:{*")


def test_percent_escapes_in_the_path_are_decoded(site: Site) -> None:
    assert post(site.where, "/v%6ftes", b"x")[0] == 200
    assert site.items() == [b"x"]


@pytest.mark.parametrize("path", ["//metrics", "///metrics", "//votes"])
def test_repeated_slashes_are_one(site: Site, path: str) -> None:
    stream, plain = "votes" if "votes" in path else "metrics", re.sub("/+", "/", path)
    assert post(site.where, f"{path}?precision=s", b"x")[0] in (200, 204)
    (item,) = site.items(stream)
    message = parse_message(item)
    assert message and (message.path, message.query, message.body) == (plain, b"precision=s", b"x")
    assert get(site.where, "//healthz")[0] == 200
    is_problem(get(site.where, "//healthzx"), 404)


@pytest.mark.parametrize("form", ["POST /logs HTTP/1.1", "P%4fST / HTTP/1.1", "POST /gps?device=eve HTTP/1.0"])
def test_a_body_that_looks_like_a_whole_message_is_kept_unchanged(site: Site, form: str) -> None:
    body = form.encode() + b"\r\nX-Limit-U: eve\r\n\r\n" + b'{"_type":"location","lat":1,"lon":2,"tid":"me"}'
    assert post(site.where, "/logs", body)[0] == post(site.where, "/gps", body)[0] == 200
    for path, stream in ("/logs", "logs"), ("/gps", "gps"):
        (item,) = site.items(stream)
        message = parse_message(item)
        assert (message.body if message else item) == body
        assert message is None or (message.path, message.field("X-Limit-U")) == (path, "")
    lines = [log.message for log in STREAMS["logs"].decode(site.items("logs")[0], Limits()) if isinstance(log, Log)]
    assert lines[:2] == [form, "X-Limit-U: eve"]
    found = STREAMS["gps"].decode(site.items("gps")[0], Limits())
    assert not any(isinstance(each, Gps) and "eve" in each.device for each in found)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_another_method_gets_405_with_allow(site: Site, method: str) -> None:
    for path, allowed in ("/votes", "GET, POST"), ("/metrics", "GET, POST"):
        given = send(site.where, f"{method} {path}?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode())
        assert is_problem(given, 405)["allow"] == allowed
    given = send(site.where, f"{method} /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode())
    assert is_problem(given, 405)["allow"] == "GET, HEAD"
    assert not site.client.keys("ingest:{*")


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
        for path in "/votes", "/metrics":
            assert is_unavailable(post(site.where, path, b"lost"))
        assert is_problem(get(site.where, "/readyz"), 503)["retry-after"] == "1"
        assert get(site.where, "/healthz")[0] == 200
    assert post(site.where, "/votes", b"after")[0] == 200
    assert get(site.where, "/readyz")[0] == 200
    assert site.items() == [b"before", b"after"]


def test_requests_get_503_while_redis_is_full(site: Site) -> None:
    with site.with_config("maxmemory", "1"):
        assert is_unavailable(post(site.where, "/votes", b"lost"))
        assert is_unavailable(get(site.where, "/readyz"))
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
    ):
        status, headers, body = get(site.where, path)
        assert (status, headers["content-type"], body) == (200, "application/json", text)
    assert site.items() == []


def test_an_answer_to_head_has_no_body(site: Site) -> None:
    for path, status in ("/healthz", 200), ("/readyz", 200), ("/votes", 405), ("/nowhere", 404):
        with connect(site.where) as connection:
            head = f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            assert send(connection, head)[0] == status
            if site.name in ("sync", "wsgiref", "validated"):  # these close the connection
                assert connection.recv(1) == b""
            else:
                assert get(connection, "/healthz")[0] == 200
