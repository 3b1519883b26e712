"""The real nginx with the real configuration, in front of a stand-in for the gateway."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving import harness
from proving.harness import ROOT, Server, answer, connect, free_port, get, nginx, poll, post, request, short_tmp
from sluice import registry, settings
from sluice.routes import ROUTES
from sluice.run import nginx as made
from support.folders import has
from support.nginx_front import HOST, OK, Gateway, front, problem

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Server, Gateway]]:
    with front(INGEST_MAX_BODY="100k") as pair:
        yield pair


@pytest.fixture
def web(both: tuple[Server, Gateway]) -> Server:
    return both[0]


@pytest.fixture
def gateway(both: tuple[Server, Gateway]) -> Gateway:
    both[1].requests.clear()
    both[1].reads.clear()
    both[1].reply = OK
    return both[1]


CORE = "/metrics", "/gps", "/votes", "/logs"  # the paths of the core's own streams
BAD = problem("Bad Request", 400, "The request is not well-formed HTTP; it had no effect.")
LARGE = problem("Content Too Large", 413, "The body is too large; the request had no effect. Send smaller bodies.")
LONG = problem("URI Too Long", 414, "The request line is too long; the request had no effect.")
FIELDS = problem("Request Header Fields Too Large", 431, "The header fields are too long; the request had no effect.")
CODING = problem("Not Implemented", 501, "The only supported transfer coding is chunked; the request had no effect.")
GONE = problem(
    "Bad Gateway",
    502,
    "The server is down or closed the connection before it answered. If a body was sent, it may have been accepted.",
)
LATE = problem(
    "Gateway Timeout", 504, "The server did not answer in time. If a body was sent, it may have been accepted."
)

CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = {
    "no_http_at_all": (b"nonsense\r\n\r\n", 400, BAD),
    "a_tls_greeting": (bytes.fromhex("1603010200010001fc0303"), 400, BAD),
    "an_http2_preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, BAD),
    "no_host": (b"POST / HTTP/1.1\r\n\r\n", 400, BAD),
    "two_hosts": (b"POST / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400, BAD),
    "a_space_in_a_name": (b"POST / HTTP/1.1\r\n" + HOST + b"bad name: 1\r\n\r\n", 400, BAD),
    "a_path_above_the_root": (b"POST /../../x HTTP/1.1\r\n" + HOST + b"\r\n", 400, BAD),
    "a_length_that_is_no_number": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: x\r\n\r\n", 400, BAD),
    "two_lengths": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400, BAD),
    "a_length_and_chunks": (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n0\r\n\r\n", 400, BAD),
    "a_chunk_without_a_size": (CHUNKED + b"zz\r\n\r\n", 400, BAD),
    "the_method_connect": (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", 400, BAD),
    "the_method_trace": (
        b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n",
        405,
        problem("Method Not Allowed", 405, "This path accepts only POST."),
    ),
    "an_internal_place": (
        b"GET /_sluice_problem HTTP/1.1\r\n" + HOST + b"\r\n",
        404,
        problem("Not Found", 404, "The request failed and had no effect."),
    ),
    "a_body_over_the_limit": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 102401\r\n\r\n", 413, LARGE),
    "chunks_over_the_limit": (CHUNKED + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 4, 413, LARGE),
    "a_line_over_the_limit": (b"POST /" + b"a" * 8000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, LONG),
    "a_field_over_the_limit": (b"POST / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 8000 + b"\r\n\r\n", 431, FIELDS),
    "too_many_fields": (b"POST / HTTP/1.1\r\n" + HOST + (b"X: " + b"a" * 7000 + b"\r\n") * 5 + b"\r\n", 431, FIELDS),
    "more_than_1000_fields": (b"POST / HTTP/1.1\r\n" + HOST + b"X:1\r\n" * 1000 + b"\r\n", 431, FIELDS),
    "a_coding_besides_chunked": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        501,
        CODING,
    ),
    "a_version_to_come": (
        b"POST / HTTP/2.0\r\n" + HOST + b"\r\n",
        505,
        problem("HTTP Version Not Supported", 505, "The HTTP version is not supported; the request had no effect."),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_nginx_rejects_gets_a_problem_and_never_reaches_the_gateway(
    name: str, web: Server, gateway: Gateway
) -> None:
    data, status, body = REFUSED[name]
    got, headers, text = request(web.port, data)
    assert (got, headers["content-type"], text) == (status, "application/problem+json", body)
    assert headers.get("allow") == ("POST" if status == 405 else None)
    assert "retry-after" not in headers
    assert headers["server"] == "nginx"  # and no version
    assert json.loads(text)["status"] == status
    assert gateway.requests == []


def test_each_worker_of_nginx_has_a_processor_of_its_own(web: Server) -> None:
    children = Path(f"/proc/{web.pid}/task/{web.pid}/children")
    cores = os.sched_getaffinity(0)
    workers = poll(lambda: found if len(found := children.read_text().split()) >= len(cores) else None)
    expected = {frozenset({core}) for core in cores}
    poll(lambda: {frozenset(os.sched_getaffinity(int(pid))) for pid in workers} == expected)


@pytest.mark.parametrize(
    "path", ["/votes", "/metrics", "/gps", "/logs", *["/write", "/v1/logs", "/ping"] * has("formats")]
)
def test_a_slash_at_the_end_of_a_path_changes_nothing(web: Server, gateway: Gateway, path: str) -> None:
    for end in "/", "//":
        assert post(web.port, f"{path}{end}?a=1&b=%2f", b"x")[0] == 200
        assert gateway.requests.pop().startswith(f"POST {path}?a=1&b=%2f HTTP/1.1\r\n".encode())
    for other in "/_sluice_problem/", "/gps/latest/", "/votes/x/":
        assert post(web.port, other, b"x")[0] == 200
        assert gateway.requests.pop().startswith(f"POST {other} ".encode())


def test_an_oversized_body_is_rejected_before_it_is_read(web: Server, gateway: Gateway) -> None:
    with connect(web.port) as connection:
        # no byte of the body is sent, nor asked for
        head = b"POST /votes HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n"
        connection.sendall(head)
        assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 413"
    assert gateway.requests == []


def test_a_half_closed_client_gets_a_problem_for_its_oversized_body_too(web: Server) -> None:
    with connect(web.port) as connection:
        connection.sendall(b"POST /votes HTTP/1.1\r\n" + HOST + b"Content-Length: 999999999\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert answer(connection)[::2] == (413, LARGE)


def test_a_body_of_exactly_the_limit_is_accepted(web: Server, gateway: Gateway) -> None:
    assert post(web.port, "/votes", b"x" * 102400)[0] == 200
    assert gateway.requests[0].endswith(b"\r\n\r\n" + b"x" * 102400)


def test_the_gateways_own_errors_pass_unchanged(web: Server, gateway: Gateway) -> None:
    gateway.reply = (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: x/y\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nfull"
    )
    status, headers, body = post(web.port, "/votes", b"x")
    assert (status, headers["content-type"], headers["retry-after"], body) == (503, "x/y", "7", b"full")


def test_unknown_paths_are_passed_to_the_gateway(web: Server, gateway: Gateway) -> None:
    gateway.reply = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nmine"
    assert get(web.port, "/nowhere")[::2] == (404, b"mine")


def test_secrets_are_not_passed_to_the_gateway(web: Server, gateway: Gateway) -> None:
    given = {"Authorization": "Token secret", "Cookie": "s=secret", "Idempotency-Key": "k"}
    post(web.port, "/votes?u=x", b"{}", given)
    assert b"secret" not in gateway.requests[0]
    assert b"\r\nIdempotency-Key: k\r\n" in gateway.requests[0]


SENT = {
    "Content-Type": "text/plain", "Content-Encoding": "gzip", "Idempotency-Key": "1", "webhook-id": "2",
    "X-GitHub-Delivery": "3", "ce-id": "4", "ce-source": "5",
}  # fmt: skip
OTHERS = {"User-Agent": "test", "traceparent": "00-1-2-01", "X-Limit-U": "jane", "Accept": "*/*", "Range": "bytes=0-1"}


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_a_route_passes_what_the_gateway_uses_and_what_its_decoder_reads(
    path: str, web: Server, gateway: Gateway
) -> None:
    route = ROUTES[path]
    encoded = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"} if "v1/write" in path else {}
    path = path.replace("{hook}", "a").replace("/*", "/b")
    post(web.port, path, b"x", SENT | OTHERS | encoded)
    lines = gateway.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    passed = dict(line.split(": ", 1) for line in lines)
    named = {name: value for name, value in OTHERS.items() if route.keep_head or name in (route.fields or ())}
    if path.startswith("/hooks/"):  # what no row of it keeps is left out
        named = {name: value for name, value in named.items() if name not in ("traceparent", "Accept")}
    address = {} if route.fields is None and not route.keep_head else {"X-Real-IP": "127.0.0.1"}
    assert passed == {"Host": "localhost", "Content-Length": "1"} | SENT | encoded | named | address


def test_the_clients_address_comes_from_nginx_not_from_the_client(web: Server, gateway: Gateway) -> None:
    post(web.port, "/nowhere", b"x", {"X-Real-IP": "6.6.6.6"})
    assert b"X-Real-IP: 127.0.0.1\r\n" in gateway.requests[0]
    assert b"6.6.6.6" not in gateway.requests[0]


def test_a_chunked_body_reaches_the_gateway_whole_with_a_content_length(web: Server, gateway: Gateway) -> None:
    assert request(web.port, CHUNKED + b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")[0] == 200
    head, _, body = gateway.requests[0].partition(b"\r\n\r\n")
    assert (b"Content-Length: 7" in head, b"chunked" in head, body) == (True, False, b"abcdefg")


def test_a_cut_off_body_never_reaches_the_gateway(web: Server, gateway: Gateway) -> None:
    with connect(web.port) as connection:
        connection.sendall(b"POST /votes HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\nhalf")
    assert post(web.port, "/votes", b"whole")[0] == 200
    assert [body[-5:] for body in gateway.requests] == [b"whole"]


def test_connections_are_kept_alive_on_both_sides(web: Server, gateway: Gateway) -> None:
    with connect(web.port) as connection:
        before = gateway.connections
        for _ in range(40):
            assert post(connection, "/votes", b"x")[0] == 200
        assert gateway.connections - before <= 4  # one per socket
    assert b"\r\nConnection:" not in gateway.requests[-1]  # the default is to close


def test_pipelined_requests_are_answered_in_order(web: Server, gateway: Gateway) -> None:
    one = b"POST /votes HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\nx"
    with connect(web.port) as connection:
        connection.sendall(one * 5)
        assert [answer(connection)[0] for _ in range(5)] == [200] * 5


def test_a_post_that_was_sent_is_not_sent_again(web: Server, gateway: Gateway) -> None:
    gateway.reply = b""  # it closes the connection instead
    status, headers, body = post(web.port, "/votes", b"once")
    assert (status, headers["content-type"], body) == (502, "application/problem+json", GONE)
    assert int(headers["retry-after"]) > 0
    assert len(gateway.requests) == 1


def test_nginx_tries_the_next_socket_when_one_refuses() -> None:
    with front() as (web, gateway):
        for server in gateway.servers[:3]:
            server.shutdown()
            server.server_close()
        assert [post(web.port, "/votes", b"x")[0] for _ in range(12)] == [200] * 12


def test_without_a_gateway_the_answer_is_a_502_with_retry_after() -> None:
    with short_tmp() as tmp, nginx(tmp) as web, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as page:
        page.bind(str(tmp / "run/rejected.sock"))
        status, headers, body = post(web.port, "/votes", b"x")
        assert (status, headers["content-type"], body) == (502, "application/problem+json", GONE)
        assert int(headers["retry-after"]) > 0
        assert web.said() == ""  # otherwise the log would fill while the gateway is down


def test_a_gateway_that_does_not_answer_in_time_is_a_504() -> None:
    with front(("proxy_read_timeout 15s", "proxy_read_timeout 100ms")) as (web, gateway):
        gateway.reply = b"HTTP/1.1 "  # and no more
        status, headers, body = post(web.port, "/votes", b"x")
        assert (status, headers["content-type"], body) == (504, "application/problem+json", LATE)
        assert int(headers["retry-after"]) > 0
        assert len(gateway.requests) == 1


def test_a_probe_that_was_given_up_does_not_hold_up_the_end_of_nginx() -> None:
    change = ("proxy_read_timeout 15s", "proxy_read_timeout 1h"), ("shutdown_timeout 60s", "shutdown_timeout 1h")
    with front(*change) as (web, gateway):
        gateway.reply = b"HTTP/1.1 "  # and no more
        with connect(web.port) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            poll(lambda: gateway.requests)
        web.process.send_signal(signal.SIGQUIT)
        assert web.process.wait(harness.PATIENCE) == 0


def test_the_connection_of_a_client_that_stops_sending_is_closed() -> None:
    change = (
        ("client_header_timeout 30s", "client_header_timeout 100ms"),
        ("client_body_timeout 30s", "client_body_timeout 100ms"),
    )
    with front(*change) as (web, gateway):
        for start in b"POST /votes HT", b"POST /votes HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\nhalf":
            with connect(web.port) as connection:
                connection.sendall(start)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
        assert gateway.requests == []


def test_an_unwritable_temporary_directory_is_a_503_with_retry_after() -> None:
    with front() as (web, gateway):
        (web.home / "tmp/body").rmdir()
        (web.home / "tmp/body").write_text("not a directory")
        status, headers, body = post(web.port, "/votes", b"x" * 200_000)
        assert (status, headers["content-type"], headers["retry-after"]) == (503, "application/problem+json", "1")
        assert body == problem("Service Unavailable", 503, "The request had no effect. Send it again later.")
        assert gateway.requests == []


def test_nginx_accepts_the_configuration_as_it_is() -> None:
    """That of the core, as it is in nginx/: without settings, and without the folders of contrib."""
    with short_tmp() as tmp:
        shutil.copytree(ROOT / "nginx", tmp / "etc")
        main = (tmp / "etc/nginx.conf").read_text()
        (tmp / "etc/nginx.conf").write_text(re.sub(r"/(?:run|var/lib)/sluice/", f"{tmp}/", main))
        listen = tmp / "etc/includes/listen.conf"
        listen.write_text(listen.read_text().replace("8080 ", f"{free_port()} "))  # which bin/up may be using
        command = [shutil.which("nginx", path="/usr/sbin:" + os.environ["PATH"]), "-t", "-c", tmp / "etc/nginx.conf"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "test is successful" in done.stderr
        assert "[warn]" not in done.stderr


def test_the_shipped_includes_are_those_of_the_core_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "contributions", dict)
    monkeypatch.setattr(made, "load_routes", lambda module: {path: ROUTES[path] for path in CORE})
    files = made.includes(settings.load_settings({"INGEST_HOME": "/var/lib/sluice"}))
    assert files == {path.name: path.read_text() for path in (ROOT / "nginx/includes").iterdir()}
