"""What every server under `ingest.app` must do, and whatever stands in front of it: each promise of an answer once.

`bin/test tests/test_http_contract.py --url http://localhost:8080` asks an installation instead, for example through a
proxy of your own. It posts to the stream of votes. Without a key or a password: those tests are in tests/nginx.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from proving import harness
from proving.harness import Answer, Server, answer, connect, redis_server, request
from sluice.http.replies import CODINGS
from support.folders import has, needs
from support.gateway_sites import MAX_BODY, Site, gateway_site
from support.runtimes import SERVERS, is_problem

pytestmark = pytest.mark.contract
OK = b'{"message":"OK"}'


@dataclass
class Front:
    """Where requests are sent. site: the server, if it is one of ours; else only answers are looked at."""

    host: str
    connect: Callable[[], socket.socket]
    site: Site | None = None

    def send(self, line: str, body: bytes = b"", connection: socket.socket | None = None, **fields: object) -> Answer:
        """One request. line: method and target. fields: with _ for -."""
        lines = [f"{line} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        if line.startswith("POST ") and not {"Content_Length", "Transfer_Encoding"} & {*fields}:
            lines.append(f"Content-Length: {len(body)}")
        data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        with contextlib.nullcontext(connection) if connection else self.connect() as link:
            return request(link, data)

    def holds(self, *bodies: bytes) -> None:
        """Assert that these bodies are on the list, alone or in their requests, and no others."""
        if self.site:
            items = self.site.items()
            assert [item for item in items if not item.endswith(bodies)] == [] and len(items) == len(bodies)


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with harness.short_tmp() as tmp, redis_server(tmp, appendonly="no", save="") as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    url = metafunc.config.getoption("--url")
    servers = [pytest.param(tuple(each.values), id=each.id, marks=each.marks) for each in SERVERS]
    if "back" in metafunc.fixturenames:
        metafunc.parametrize("back", [url] if url else servers, indirect=True, scope="module")


@pytest.fixture(scope="module")
def back(request: pytest.FixtureRequest) -> Iterator[str | Site]:
    if isinstance(request.param, str):
        yield request.param
    else:
        with gateway_site(request.getfixturevalue("redis"), *request.param) as site:
            yield site


@pytest.fixture
def front(back: str | Site) -> Iterator[Front]:
    if isinstance(back, Site):
        with back.emptied():
            yield Front("localhost", lambda: connect(back.where), back)
        return
    url = urllib.parse.urlsplit(back)
    host, port = url.hostname or "localhost", url.port or (443 if url.scheme == "https" else 80)

    def dial() -> socket.socket:
        link = socket.create_connection((host, port), 60)
        return ssl.create_default_context().wrap_socket(link, server_hostname=host) if url.scheme == "https" else link

    yield Front(url.netloc, dial)


# --- taken -----------------------------------------------------------------------------------------------------------


def test_a_body_is_acknowledged(front: Front) -> None:
    body = b'{"poll":"contract","choice":"\xc3\xa9\\u0000"}'
    status, headers, content = front.send("POST /votes", body, Content_Type="text/plain")
    assert (status, headers["content-type"], content) == (200, "application/json", OK)
    front.holds(body)


@needs("formats")
def test_the_answer_is_that_of_the_path(front: Front) -> None:
    status, headers, content = front.send("POST /v1/metrics", b"{}", Content_Type="application/json")
    assert (status, headers["content-type"], content) == (200, "application/json", b"{}")
    assert front.send("POST /api/v2/write?precision=s", b"contract value=1 1")[::2] == (204, b"")


def test_a_query_string_is_taken_for_an_empty_body(front: Front) -> None:
    assert front.send("POST /votes?poll=contract&choice=%C3%A9+%25")[::2] == (200, OK)
    front.holds(b"poll=contract&choice=%C3%A9+%25")


def test_a_compressed_body_is_taken_as_it_is(front: Front) -> None:
    body = gzip.compress(b'{"poll":"contract","choice":"a"}', mtime=0)
    assert front.send("POST /votes", body, Content_Encoding="gzip")[0] == 200
    front.holds(body)


def test_a_request_with_a_key_is_kept_whole_and_a_malformed_key_is_rejected(front: Front) -> None:
    key = os.urandom(16).hex()
    assert front.send("POST /votes", b'{"poll":"contract","choice":"b"}', Idempotency_Key=key)[0] == 200
    if front.site:
        (item,) = front.site.items()
        assert item.startswith(b"POST /votes HTTP/1.1\r\n")
        assert f"\r\nidempotency-key: {key}\r\n".encode() in item.lower()
    given = front.send("POST /votes", b"{}", Idempotency_Key='"a')
    is_problem(given, 400)
    assert b"Idempotency-Key" in given[2]
    front.holds(b'{"poll":"contract","choice":"b"}')


def test_a_chunked_body_is_whole_or_rejected(front: Front) -> None:
    chunks = b'c\r\n{"poll":"c",\r\nc;x=y\r\n"choice":"d"\r\n1\r\n}\r\n0\r\n\r\n'
    given = front.send("POST /votes", chunks, Transfer_Encoding="chunked")
    if front.site and not front.site.is_gunicorn:
        is_problem(given, 400)
        assert b"length" in given[2]
        front.holds()
    else:
        assert given[::2] == (200, OK)
        front.holds(b'{"poll":"c","choice":"d"}')


def test_an_expected_100_continue_comes_before_the_body(front: Front) -> None:
    if front.site and not front.site.is_gunicorn:
        pytest.skip("wsgiref does not support Expect")
    with front.connect() as link:
        head = f"POST /votes HTTP/1.1\r\nHost: {front.host}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        link.sendall(head.encode())
        assert harness.receive(link, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(b"{}")
        assert answer(link)[::2] == (200, OK)


def test_the_largest_body_is_taken(front: Front) -> None:
    body = os.urandom(MAX_BODY)
    assert front.send("POST /votes", body)[0] == 200
    front.holds(body)


# --- rejected --------------------------------------------------------------------------------------------------------


def test_a_request_with_neither_body_nor_query_string_gets_400(front: Front) -> None:
    for line in "POST /votes", "POST /votes?", "POST /metrics":
        is_problem(front.send(line), 400)
    front.holds()


def test_a_body_shorter_than_its_length_is_not_taken(front: Front) -> None:
    with front.connect() as link:
        link.sendall(f"POST /votes HTTP/1.1\r\nHost: {front.host}\r\nContent-Length: 9\r\n\r\n{{}}".encode())
        if front.site:
            link.shutdown(socket.SHUT_WR)
            is_problem(answer(link), 400)
    front.holds()


def test_a_malformed_length_gets_400(front: Front) -> None:
    for length in "-5", "5_0", "five", "5, 5":
        if not (front.site and front.site.name == "validated"):  # it calls int() itself
            assert front.send("POST /votes?a=b", Content_Length=length)[0] == 400
    front.holds()


MALFORMED = (
    b"nonsense\r\n\r\n",
    b"POST /votes?a=b HTTP/1.1\r\nHost: x\r\nHost : y\r\nContent-Length: 0\r\n\r\n",
    b"POST /votes?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    *(
        b"POST /votes?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + rest
        for rest in (b"\r\nx\r\nabc\r\n0\r\n\r\n", b"\r\n3\r\nabcd\r\n0\r\n\r\n", b"Content-Length: 3\r\n\r\n0\r\n\r\n")
    ),
)


def test_malformed_http_gets_400_or_a_closed_connection(front: Front) -> None:
    if front.site and not front.site.is_gunicorn:
        pytest.skip("wsgiref takes it")
    for data in MALFORMED:
        with front.connect() as link:
            try:
                assert request(link, data)[0] == 400, data
            except EOFError:  # gunicorn 23 closes the connection on malformed chunks
                assert front.site and front.site.runtime == "pypy" and b"chunked" in data, data
    front.holds()


def test_a_body_that_is_too_large_gets_413_before_it_is_sent(front: Front) -> None:
    is_problem(front.send("POST /votes", Content_Length=MAX_BODY + 1 if front.site else 1 << 40), 413)
    front.holds()


def test_an_unknown_path_gets_404(front: Front) -> None:
    for line in "POST /nowhere", "POST /vote", "POST /VOTES":
        is_problem(front.send(line, b"{}"), 404)
    front.holds()


def test_another_method_gets_405_with_those_that_are_allowed(front: Front) -> None:
    is_problem(front.send("GET /votes"), 400)  # with a query it is a vote
    for method in "PUT", "DELETE", "OPTIONS":
        assert is_problem(front.send(f"{method} /votes"), 405)["allow"] == "GET, POST"
    status, headers, content = front.send("HEAD /votes")
    assert (status, headers["allow"], content) == (405, "GET, POST", b"")
    assert is_problem(front.send("PUT /healthz"), 405)["allow"] == "GET, HEAD"
    front.holds()


def test_an_unknown_content_encoding_gets_415_with_those_that_are_known(front: Front) -> None:
    headers = is_problem(front.send("POST /votes", b"{}", Content_Encoding="br"), 415)
    assert headers["accept-encoding"] == ", ".join(CODINGS)
    front.holds()


def test_a_connection_gives_the_next_request_its_own_answer_after_an_error(front: Front) -> None:
    with front.connect() as link:
        is_problem(front.send("POST /nowhere", b"{}", link), 404)
        try:
            given = front.send("POST /votes", b'{"poll":"contract","choice":"e"}', link)
        except (EOFError, ConnectionError):  # closed
            front.holds()
        else:
            assert given[::2] == (200, OK)
            front.holds(b'{"poll":"contract","choice":"e"}')


# --- not now ---------------------------------------------------------------------------------------------------------


def test_while_redis_is_away_a_post_gets_503_and_retry_after(front: Front) -> None:
    if not front.site:
        pytest.skip("the Redis behind the URL stays")
    with front.site.without_redis():
        for given in front.send("POST /votes", b"lost"), front.send("GET /readyz"):
            assert is_problem(given, 503)["retry-after"] == "1"
        if has("formats"):
            status, headers, content = front.send("POST /v1/logs", b"{}", Content_Type="application/json")
            assert (status, headers["retry-after"], [*json.loads(content)]) == (503, "1", ["message"])
        assert front.send("GET /healthz")[0] == 200
    assert front.send("POST /votes", b"after")[0] == 200
    front.holds(b"after")


def test_a_probe_is_answered_and_an_answer_to_head_has_no_body(front: Front) -> None:
    for path in "/healthz", "/readyz":
        status, headers, content = front.send(f"GET {path}")
        assert (status, headers["content-type"], content) == (200, "application/json", OK)
        assert front.send(f"HEAD {path}")[::2] == (200, b"")
    if has("formats"):
        assert front.send("GET /ping")[0] == 204
    front.holds()
