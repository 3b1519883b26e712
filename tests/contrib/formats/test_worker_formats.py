"""Bodies of wire formats through a whole worker."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import Server, ask, redis_server
from sluice.contrib.formats.protobuf import encode_field
from support.operator_verbs import drain, push, vote

pytestmark = pytest.mark.contract


@pytest.fixture
def redis(tmp: Path) -> Iterator[Server]:
    with redis_server(tmp, appendfsync="no") as server:
        yield server


def test_bodies_that_would_become_gigabytes_or_take_minutes_do_not(tmp: Path, redis: Server) -> None:
    number = b"1" * 500_000
    position = b'{"device":"a","lat":"%bx","lon":1}' % number
    resource = encode_field(
        1, encode_field(1, encode_field(1, b"t") + encode_field(2, encode_field(1, b"x" * 250_000)))
    )
    valid = encode_field(
        2, encode_field(1, b"m") + encode_field(5, encode_field(1, b"\x31" + bytes(8)))
    )  # the others have no name
    request = encode_field(1, resource + encode_field(2, valid + encode_field(2, b"") * 100_000))
    head = b"POST /v1/metrics HTTP/1.1\r\nContent-Type: application/x-protobuf\r\n\r\n"
    push(redis, position, stream="gps")
    push(redis, head + gzip.compress(request), stream="metrics")
    push(redis, vote("a"))
    drain(tmp)
    assert ask(tmp, "SELECT choice FROM votes") == [("a",)]
    assert ask(tmp, "SELECT name FROM metrics") == [("m",)]
    ((letters, size),) = ask(tmp, "SELECT count(*), sum(length(body)) FROM dead_letters")
    assert letters <= 3 and size < 3 * len(request)
