"""What nginx does with the paths of wire formats."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proving.harness import Server, get, post, request
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


PROTOBUF = "application/x-protobuf"


@pytest.mark.parametrize(
    ("content_type", "encoding", "status"),
    [
        (PROTOBUF, "snappy", 200),
        (f"{PROTOBUF};proto=prometheus.WriteRequest", "snappy", 200),
        (f"{PROTOBUF};proto=io.prometheus.write.v2.Request", "snappy", 200),
        (f'{PROTOBUF}; proto="io.prometheus.write.v2.Request"', "snappy", 200),
        (f"{PROTOBUF};proto=io.prometheus.write.v3.Request", "snappy", 415),
        (f"{PROTOBUF};proto=", "snappy", 415),
        (f"{PROTOBUF}; charset=utf-8", "snappy", 200),
        (f"{PROTOBUF}; charset=utf-8; proto=x", "snappy", 415),
        ("application/json", "snappy", 415),
        ("application/json", "", 415),
        (PROTOBUF, "zstd", 200),
        (PROTOBUF, "br", 415),
        (PROTOBUF, "", 200),
        ("", "snappy", 200),
        ("application/vnd.google.protobuf", "snappy", 200),
        ("application/octet-stream", "", 200),
        ("text/plain", "snappy", 200),
        ("text/plain; charset=utf-8", "", 415),
        ("application/x-www-form-urlencoded", "", 415),
    ],
)
def test_remote_write_in_an_unknown_format_gets_415(
    content_type: str, encoding: str, status: int, web: Server, gateway: Gateway
) -> None:
    given = {"Content-Type": content_type, "Content-Encoding": encoding}
    headers = {name: text for name, text in given.items() if text}
    got, fields, text = post(web.port, "/api/v1/write", b"x", headers)
    assert got == status == post(web.port, "/api/v1/write/", b"x", headers)[0]
    if status == 200:
        received = gateway.requests[0]
        assert all(f"\r\n{name}: {text}\r\n".encode() in received for name, text in headers.items())
        return
    accepts = "This path accepts only Prometheus remote write 1.0 or 2.0, compressed with snappy or zstd"
    assert text == problem("Unsupported Media Type", 415, f"{accepts}; the request had no effect.")
    assert fields["content-type"] == "application/problem+json" and gateway.requests == []
    assert fields["accept-encoding"] == "snappy, zstd, gzip, deflate"


def test_another_method_at_the_path_of_remote_write_reaches_the_gateway(web: Server, gateway: Gateway) -> None:
    assert get(web.port, "/api/v1/write")[0] == 200
    assert len(gateway.requests) == 1


@pytest.mark.parametrize("path", ["/gpslogger", "/traccar"])
def test_a_get_of_a_tracker_is_sent_once(web: Server, gateway: Gateway, path: str) -> None:
    assert get(web.port, f"{path}?lat=1")[0] == 200
    assert gateway.requests.pop().startswith(f"GET {path}?lat=1 HTTP/1.1\r\n".encode())
    assert post(web.port, path, b"lat=1")[0] == 200
    assert gateway.requests.pop().endswith(b"\r\n\r\nlat=1")
    assert request(web.port, f"DELETE {path}?lat=1 HTTP/1.1\r\n".encode() + HOST + b"\r\n")[0] == 200
    assert gateway.requests.pop().startswith(b"DELETE ")
    gateway.reply = b""  # it closes the connection instead of answering
    assert get(web.port, f"{path}?lat=1")[0] == 502
    assert len(gateway.requests) == 1
