"""nginx in front of the reader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proving.harness import Server, get, request
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


GONE = problem(
    "Bad Gateway",
    502,
    "The server is down or closed the connection before it answered. If a body was sent, it may have been accepted.",
)
LATE = problem(
    "Gateway Timeout", 504, "The server did not answer in time. If a body was sent, it may have been accepted."
)
VIEWS = "/gps/latest", "/gps/trail", "/votes/tally", "/metrics/latest"


def test_the_views_are_read_from_the_reader_and_everything_else_goes_to_the_gateway(
    web: Server, gateway: Gateway
) -> None:
    for path in VIEWS:
        assert get(web.port, f"{path}?key=%20a&x")[0] == 200
        assert gateway.reads.pop().startswith(f"GET {path}?key=%20a&x HTTP/1.1\r\n".encode())
        for other in f"{path}/", f"{path}x", path.rpartition("/")[0]:
            assert get(web.port, other)[0] == 200
            assert gateway.requests.pop().startswith(f"GET {other} HTTP/1.1\r\n".encode())
    assert (gateway.reads, gateway.requests) == ([], [])


def test_a_rejected_read_is_told_which_methods_its_path_accepts(web: Server, gateway: Gateway) -> None:
    for path in VIEWS:
        status, headers, body = request(web.port, f"TRACE {path}?a HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        assert (status, headers["allow"]) == (405, "GET, HEAD")
        assert body == problem("Method Not Allowed", 405, "This path accepts only GET and HEAD.")
    assert gateway.reads == []


def test_a_view_gets_no_fields(web: Server, gateway: Gateway) -> None:
    get(web.port, "/gps/latest?device=a")
    assert gateway.reads[0] == b"GET /gps/latest?device=a HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_read_whose_connection_breaks_is_sent_again_to_the_other_sockets(web: Server, gateway: Gateway) -> None:
    gateway.reply = b""
    status, headers, body = get(web.port, "/gps/latest?device=bike")
    assert (status, body, int(headers["retry-after"]) > 0) == (502, GONE, True)
    assert len(gateway.reads) == 4


def test_a_reader_that_does_not_answer_in_time_is_asked_once() -> None:
    with front(("proxy_read_timeout 15s", "proxy_read_timeout 100ms")) as (web, gateway):
        gateway.reply = b"HTTP/1.1 "
        assert get(web.port, "/gps/latest?device=bike")[::2] == (504, LATE)
        assert len(gateway.reads) == 1
