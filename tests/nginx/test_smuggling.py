"""Request smuggling: the same bytes are sent through nginx, to the gateway, and to a gunicorn without the fast lane.

They never become two different sets of bodies: either all servers accept the same bodies, or one of them rejects.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as profiles
from hypothesis import strategies as st

from proving.harness import connect, gateway, nginx, redis_server, short_tmp
from sluice.routes import ROUTES
from sluice.spool.contract import Keys
from sluice.streams.message import parse_message
from sluice.streams.record import Invalid
from support import generated_requests
from support.request_cases import BODY, CHUNKED, CHUNKS, DECLINED, FIVE, SMUGGLED, TAKEN, post
from support.runtimes import RUNTIMES
from support.table_of_cases import check_each_row

pytestmark = pytest.mark.contract

STREAMS = sorted({route.stream for route in ROUTES.values()})
EXAMPLES = 100  # per generator and runtime
STATUS = re.compile(rb"HTTP/[\d.]+ (\d{3}) ")  # matches no body of an answer


END = "votes", b"end"
LAST = b"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nend"


class Seen(NamedTuple):
    """The result of sending bytes: the statuses of the answers, the bodies on the lists, and whether the connection was
    reset. A reset may lose answers: gunicorn closes connections with unread bytes.
    """

    statuses: list[int]
    bodies: Counter[tuple[str, bytes]]
    reset: bool


class Servers:
    """The servers that write to one Redis, by name, with their addresses."""

    def __init__(self, client: redis.Redis, addresses: dict[str, int | Path]) -> None:
        self.client = client
        self.addresses = addresses

    def send(self, data: bytes, where: int | Path) -> Seen:
        """Send bytes on one connection, half-close it, and read all answers."""
        received, reset = b"", False
        with connect(where) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(65536):
                    received += part
            except (ConnectionResetError, BrokenPipeError):
                reset = True
        statuses = [int(status) for status in STATUS.findall(received) if status != b"100"]
        with self.client.pipeline() as pipe:
            for stream in STREAMS:
                pipe.lrange(Keys.for_stream(stream).ready, 0, -1)
                pipe.delete(Keys.for_stream(stream).ready)
            lists = pipe.execute()[::2]
        bodies = Counter((stream, bare(item)) for stream, items in zip(STREAMS, lists) for item in items)
        return Seen(statuses, bodies, reset)

    def agree(self, data: bytes) -> dict[str, Seen]:
        """Send bytes to all servers and compare the results."""
        data = data.replace(b" / HTTP", b" /nowhere HTTP")  # GET / is answered, and appends nothing
        data += LAST
        seen = {name: self.send(data, where) for name, where in self.addresses.items()}
        for one in seen.values():
            # every body has an answer: otherwise the server saw a request that the client, or nginx, did not
            answered = sum(status < 300 for status in one.statuses)
            assert answered == one.bodies.total() or (one.reset and answered < one.bodies.total()), (data, seen)
        for one, other in itertools.permutations(seen.values(), 2):
            if one.bodies != other.bodies:
                assert one.bodies < other.bodies or one.bodies > other.bodies, (data, seen)
            if one.bodies < other.bodies:  # it rejected, or it closed the connection before the last request
                assert any(status >= 400 for status in one.statuses) or END not in one.bodies, (data, seen)
        return seen


def bare(item: bytes) -> bytes:
    """The body of an item without its head, which nginx rewrites."""
    try:
        message = parse_message(item)
    except Invalid:  # a body that looks like an incomplete head
        return item
    return message.body or message.query if message else item


@pytest.fixture(scope="module", params=RUNTIMES)
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    short = ("send_timeout 30s;", "send_timeout 30s; lingering_timeout 10ms;")  # default: 5 s after each rejection
    with (
        short_tmp() as tmp,
        short_tmp() as other,
        redis_server(tmp, appendfsync="no") as server,
        gateway(tmp, server, request.param) as ours,
        gateway(other, server, request.param, "gevent") as theirs,
        nginx(tmp, change=(short,)) as front,
    ):
        addresses: dict[str, int | Path] = {"nginx": front.port, "gateway": ours.socket, "gunicorn": theirs.socket}
        yield Servers(redis.Redis(unix_socket_path=str(server.socket)), addresses)


REST = {
    # RFC 9112's rules for chunks, and past vulnerabilities of gunicorn, waitress, nginx, Node and HAProxy
    "a_chunk_extension_that_hides_a_request": post(CHUNKED, body=b"3;" + SMUGGLED.replace(b"\r\n", b"\n") + CHUNKS),
    "a_chunk_size_that_ends_with_a_bare_lf": post(CHUNKED, body=b"3\nabc\r\n0\r\n\r\n"),
    "a_chunk_extension_that_ends_with_a_bare_lf": post(CHUNKED, body=b"3;x\nabc\r\n0\r\n\r\n"),
    "a_chunk_extension_with_a_bare_cr": post(CHUNKED, body=b"3;x\rabc\r\n0\r\n\r\n"),
    "a_chunk_that_ends_with_a_bare_lf": post(CHUNKED, body=b"3\r\nabc\n0\r\n\r\n"),
    "a_chunk_that_does_not_end": post(CHUNKED, body=b"3\r\nabcXX0\r\n\r\n"),
    "a_chunk_that_is_longer_than_it_says": post(CHUNKED, body=b"3\r\nabcde\r\n0\r\n\r\n"),
    "a_last_chunk_with_a_bare_lf": post(CHUNKED, body=b"3\r\nabc\r\n0\n\n"),
    "a_last_chunk_of_many_zeros": post(CHUNKED, body=b"3\r\nabc\r\n0000000000000000000\r\n\r\n"),
    "a_chunk_size_of_17_digits": post(CHUNKED, body=b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_size_of_64_bits": post(CHUNKED, body=b"ffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_size_with_a_plus": post(CHUNKED, body=b"+3\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_size_with_an_underscore": post(CHUNKED, body=b"0_3\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_size_behind_a_blank": post(CHUNKED, body=b" 3\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_size_before_a_blank": post(CHUNKED, body=b"3 \r\nabc\r\n0 \r\n\r\n"),
    "a_chunk_size_before_a_tab": post(CHUNKED, body=b"3\t\r\nabc\r\n0\t\r\n\r\n"),
    "an_empty_chunk_size": post(CHUNKED, body=b"\r\nabc\r\n0\r\n\r\n"),
    "a_chunk_size_with_a_nul": post(CHUNKED, body=b"3\x00\r\nabc\r\n0\r\n\r\n"),
    "trailers_that_look_like_a_request": post(CHUNKED, body=b"0\r\n" + SMUGGLED),
    "trailers_that_give_a_length": post(CHUNKED, body=b"3\r\nabc\r\n0\r\nContent-Length: 50\r\n\r\n"),
    "trailers_that_give_a_coding": post(CHUNKED, body=b"3\r\nabc\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "trailers_without_a_colon": post(CHUNKED, body=b"3\r\nabc\r\n0\r\nnonsense\r\n\r\n"),
    "trailers_that_are_folded": post(CHUNKED, body=b"3\r\nabc\r\n0\r\nX: y\r\n z\r\n\r\n"),
    "a_get_with_a_body": post(b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED, line=b"GET /gps HTTP/1.1"),
    "a_get_without_a_length": post(body=SMUGGLED, line=b"GET /gps HTTP/1.1"),
    "a_get_of_http_0_9": b"GET /traccar?id=1&lat=48.1&lon=-11.6 \r\nHost: localhost\r\n\r\n",
    "a_get_of_http_0_9_that_is_a_webhook": b"GET /hooks/shop?id=1\r\n",
    "a_get_with_chunks": post(CHUNKED, body=CHUNKS, line=b"GET /gps HTTP/1.1"),
    "a_head_with_a_body": post(FIVE, body=BODY, line=b"HEAD /gps HTTP/1.1"),
    "http_1_0_with_chunks": post(CHUNKED, body=CHUNKS, line=b"POST /gps HTTP/1.0"),
    "http_1_0_that_stays": post(b"Connection: keep-alive", FIVE, body=BODY, line=b"POST /gps HTTP/1.0"),
    "http_1_0_with_a_length_and_chunks": post(FIVE, CHUNKED, body=BODY, line=b"POST /gps HTTP/1.0"),
    "a_length_that_a_path_without_a_stream_does_not_read": post(FIVE, body=BODY, line=b"POST /nothing HTTP/1.1"),
    "a_body_that_is_refused_unread": post(b"Content-Length: 1048577", body=b"x" * 1048577),
    "chunks_that_are_refused_unread": post(CHUNKED, body=b"100001\r\n" + b"x" * 0x100001 + b"\r\n0\r\n\r\n"),
    "an_absolute_form_with_another_host": post(FIVE, body=BODY, line=b"POST http://other:81/votes HTTP/1.1"),
    "an_absolute_form_with_a_request_in_it": post(
        FIVE, body=BODY, line=b"POST http://o/gps%20HTTP/1.1%0d%0aX:y HTTP/1.1"
    ),
    "line_ends_in_the_path": post(FIVE, body=BODY, line=b"POST /gps%0d%0aContent-Length:%200 HTTP/1.1"),
    "line_ends_in_the_query": post(b"Content-Length: 0", line=b"POST /gps?a=%0d%0a%0d%0a" + b" HTTP/1.1"),
    "a_path_that_is_not_normal": post(FIVE, body=BODY, line=b"POST /x/../gps HTTP/1.1"),
    "a_path_with_two_slashes": post(FIVE, body=BODY, line=b"POST //gps HTTP/1.1"),
    "a_host_with_a_line_end": post(FIVE, body=BODY).replace(b"localhost", b"a\nTransfer-Encoding: chunked"),
    "connection_names_the_coding": post(b"Connection: Transfer-Encoding", CHUNKED, body=CHUNKS),
    "expect_and_chunks": post(b"Expect: 100-continue", CHUNKED, body=CHUNKS),
    "expect_and_no_body": post(b"Expect: 100-continue", FIVE),
    "an_upgrade_with_a_body": post(b"Connection: Upgrade", b"Upgrade: websocket", FIVE, body=BODY),
    "a_length_in_hidden_fields": post(b"X: " + b"y" * 7000, b"Z: " + b"y" * 7000, FIVE, body=BODY),
}
CASES = DECLINED | {name: data for name, (data, _) in TAKEN.items()} | REST


@check_each_row("name", CASES)
def test_all_servers_read_an_ambiguous_request_alike_or_reject_it(servers: Servers, name: str) -> None:
    for before in b"", SMUGGLED:
        servers.agree(before + CASES[name])


SIZES = (
    b"3", b"03", b"3 ", b" 3", b"3\t", b"3;", b"3;a=b", b'3;a="\r\n"', b'3;"\n', b"3;\r", b"0x3", b"+3", b"-3", b"3,3",
    b"3\x00", b"3\x0b", b"3h", b"0_3", b"", b"ffffffff3", b"fffffffffffffff3", b"10000000000000003", b"0", b"4", b"2",
)  # fmt: skip
CODINGS = tuple(field for field in generated_requests.ODD if b"ansfer" in field) + (CHUNKED,) * 9
TRAILERS = (
    b"X: y\r\n",
    FIVE + b"\r\n",
    CHUNKED + b"\r\n",
    b"nonsense\r\n",
    b" folded\r\n",
    b"X : y\r\n",
    SMUGGLED,
    b"\n",
)
LINE_ENDS = b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"", b"XX", b" \r\n"


def chunks(choices: generated_requests.Choices) -> bytes:
    """A request with a chunked body: plain unless chosen otherwise."""

    def end() -> bytes:
        return choices.of(LINE_ENDS) if choices.seldom() else b"\r\n"

    lines = [b"POST /gps HTTP/1.1", b"Host: localhost", choices.of(CODINGS) if choices.seldom() else CHUNKED]
    if choices.seldom():
        lines.insert(choices.number(4), generated_requests.LENGTHS[choices.number(3)] % choices.number(60))
    data = b"".join(line + end() for line in [*lines, b""])
    for _ in range(choices.number(4)):
        data += (choices.of(SIZES) if choices.seldom() else b"3") + end() + b"abc" + end()
    data += b"0" + end()
    for _ in range(choices.number(3) if choices.seldom() else 0):
        data += choices.of(TRAILERS)
    return data + end()


@pytest.mark.nightly
@pytest.mark.parametrize("one", [chunks, generated_requests.stream])
def test_all_servers_read_a_random_mix_alike_or_reject_it(
    servers: Servers, one: Callable[[generated_requests.Choices], bytes]
) -> None:
    @profiles(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(min_size=48, max_size=48))
    def agree(data: bytes) -> None:
        choices = generated_requests.Choices(data)
        sent = b"".join(
            one(choices) + choices.of((b"", b"", SMUGGLED, b"\r\n", b"x")) for _ in range(1 + choices.number(3))
        )
        for seen in servers.agree(sent).values():
            answered.update(seen.statuses)

    answered: Counter[int] = Counter()
    agree()
    # both outcomes were tried
    assert min(answered[200], answered[400]) > EXAMPLES / 4, answered
