"""The worker class in a real gunicorn, over Unix and TCP sockets: clients, applications, operators, Redis."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import redis as redis_client
from gunicorn.config import Config

from proving.harness import (
    PATIENCE,
    ROOT,
    Server,
    answer,
    connect,
    gateway,
    poll,
    post,
    redis_server,
    short_tmp,
    stopped,
)
from sluice.fastlane import answers
from sluice.fastlane.connection import IDLE
from support import generated_requests
from support.lane_clients import CHUNKED, CODED, Client, Site, Where, descriptors, memory, plain, site, unread
from support.runtimes import RUNTIMES

pytestmark = pytest.mark.contract


# --- the servers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=RUNTIMES)
def echo(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Serves apps.echo."""
    with site(runtime=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def odd() -> Iterator[Site]:
    with site("support.wsgi_apps:odd") as running:
        yield running


class Redis:
    """A private Redis and its lists."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = redis_client.Redis(unix_socket_path=str(server.socket))

    def items(self, stream: str = "votes") -> list[bytes]:
        items: Any = self.client.lrange(f"ingest:{{{stream}}}", 0, -1)
        return items

    def pushes(self) -> int:
        """The number of RPUSH commands so far."""
        stats: Any = self.client.info("commandstats")
        return stats.get("cmdstat_rpush", {}).get("calls", 0)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Redis blocks writes within the `with` block."""
        self.client.execute_command("CLIENT", "PAUSE", "2900", "WRITE")
        try:
            yield
        finally:
            self.client.execute_command("CLIENT", "UNPAUSE")


@pytest.fixture(scope="module")
def private_redis() -> Iterator[Redis]:
    with short_tmp() as tmp, redis_server(tmp, appendonly="no", save="") as server:
        yield Redis(server)


@pytest.fixture(scope="module")
def shared_ingest(private_redis: Redis) -> Iterator[Site]:
    with site("ingest:app", redis=private_redis.server) as running:
        yield running


@pytest.fixture
def redis(private_redis: Redis) -> Redis:
    private_redis.client.flushall()
    return private_redis


@pytest.fixture
def ingest(shared_ingest: Site, redis: Redis) -> Site:
    return shared_ingest


@pytest.fixture(params=["unix", "tcp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- the clients -----------------------------------------------------------------------------------------------------


BIG = bytes(random.Random(1).randbytes(3 << 20))
SLOW = {
    "chunks": (CHUNKED, b"abcde"),
    "put": (b"PUT /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
    "expect": (plain(b"abc", "/slow", "Expect: 100-continue"), b"abc"),
    "a_big_body": (plain(BIG, "/slow"), BIG),
    "http_1_0_with_keep_alive": (
        b"POST /slow HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
        b"abc",
    ),
    "letters_in_the_query": (plain(b"abc", "/slow?device=Jürgen"), b"abc"),
    "a_percent_in_the_path": (plain(b"abc", "/sl%6fw"), b"abc"),
    "a_field_twice": (plain(b"abc", "/slow", "Accept: a", "Accept: b"), b"abc"),
}


# --- clients ---------------------------------------------------------------------------------------------------------


def test_pipelined_requests_share_a_commit_and_are_answered_in_order(ingest: Site, redis: Redis, kind: str) -> None:
    bodies = [b"%03d" % number for number in range(500)]
    before = redis.pushes()
    with Client(ingest[kind]) as client, redis.held():
        client.send(b"".join(map(plain, bodies)))
    with Client(ingest[kind]) as client:
        client.send(b"".join(plain(body, "/metrics") for body in bodies))
        assert [client.answer()[0] for _ in bodies] == [200] * len(bodies)
    assert redis.items("metrics") == bodies
    poll(lambda: redis.items() == bodies)  # the first client did not wait for its answers
    # one per recv of 64 KiB
    assert redis.pushes() - before <= 4


def test_the_requests_of_a_turn_are_one_batch(echo: Site) -> None:
    with Client(echo["unix"]) as client:
        client.send(plain() * 100)
        said = [client.echo() for _ in range(100)]
    assert [one["size"] for one in said] == [100] * 100
    assert len({one["batch"] for one in said}) == 1


def test_letters_in_a_query_are_taken_as_if_they_were_encoded(echo: Site, kind: str) -> None:
    """As curl sends what is typed."""
    with Client(echo[kind]) as client:
        for typed in "device=Jürgen", "device=%C3%BC&x=ü", "a=\xff":
            client.send(plain(b"x", f"/gps?{typed}"))
            assert client.echo()["query"] == re.sub("[^ -~]+", lambda found: quote(found[0]), typed)


def test_two_requests_may_be_split_at_any_byte(echo: Site, kind: str) -> None:
    data = plain(b"first") + plain(b"the second")
    with Client(echo[kind]) as client:
        for at in range(1, len(data), 1 if kind == "unix" else 5):  # TCP delays each acknowledgement
            client.send_apart(data[:at], data[at:])
            assert [client.echo()["crc"] for _ in range(2)] == [zlib.crc32(b"first"), zlib.crc32(b"the second")]
            # it is in the fast lane again
            client.send(plain(b"third"))
            assert client.echo()["lane"] == "fast"


def test_a_body_in_pieces_stays_in_the_fast_lane(echo: Site, kind: str) -> None:
    data = plain(b"piece by piece")
    with Client(echo[kind]) as client:
        for at in range(data.index(b"\r\n\r\n") + 4, len(data)):
            client.send_apart(data[:at], data[at:])
            said = client.echo()
            assert (said["lane"], said["crc"]) == ("fast", zlib.crc32(b"piece by piece"))


def test_requests_may_arrive_byte_by_byte(echo: Site, kind: str) -> None:
    data = plain(b"first") + CHUNKED + plain(b"the second")
    with Client(echo[kind]) as client:
        client.send_apart(*(data[at : at + 1] for at in range(len(data))))
        assert [client.echo()["length"] for _ in range(3)] == [5, 5, 10]


def test_bodies_of_any_length_in_any_pieces_are_accepted_unchanged(ingest: Site, redis: Redis, kind: str) -> None:
    rng = random.Random(kind)
    lengths = [1, 2, 100, 8191, 8192, 65535, 65536, 65537, 200_000, (1 << 20) - 1, 1 << 20]
    bodies = [rng.randbytes(length) for length in lengths]
    with Client(ingest[kind]) as client:
        for body in bodies:
            data = plain(body)
            cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(12)))
            for start, stop in zip([0, *cuts], [*cuts, len(data)]):
                client.send(data[start:stop])
            assert client.answer()[0] == 200, len(body)
    assert redis.items() == bodies


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "path", "count", "most"),
    [
        (1 << 20, "/votes", 64, 28 << 20),
        (1 << 20, "/vo%74es", 64, 28 << 20),
        (8 << 20, "/votes", 20, 48 << 20),
    ],
    ids=["fast lane", "slow lane", "longer than the fast lane takes"],
)
def test_many_concurrent_large_bodies_take_bounded_memory(size: int, path: str, count: int, most: int) -> None:
    with (
        short_tmp() as tmp, redis_server(tmp) as private,
        site("ingest:app", redis=private, INGEST_MAX_BODY=8 << 20) as running,
    ):  # fmt: skip
        worker = running.worker()
        with Client(running["unix"]) as client:  # the process's own memory
            client.send(plain())
            assert client.answer()[0] == 200
        before = memory(worker)
        clients = [Client(running["unix"]) for _ in range(count)]
        senders = [threading.Thread(target=client.send, args=(plain(bytes(size), path),)) for client in clients]
        for sender in senders:
            sender.start()
        assert [client.answer()[0] for client in clients] == [200] * count
        for sender, client in zip(senders, clients):
            sender.join()
            client.close()
        assert memory(worker, "VmHWM") - before < most
        assert redis_client.Redis(unix_socket_path=str(private.socket)).llen("ingest:{votes}") == 1 + count


@pytest.mark.parametrize("how", ["completes", "is truncated"])
def test_waiting_bodies_are_admitted_when_those_before_them_end(
    ingest: Site, redis: Redis, kind: str, how: str
) -> None:
    data = plain(bytes(1 << 20))
    first, second = data[:1000], data[1000:]
    clients = [Client(ingest[kind]) for _ in range(8)]
    for client in clients:  # the first four fill MAX_ADMITTED_BYTES
        client.send_apart(first)
    senders = [threading.Thread(target=client.try_to_send, args=(second,)) for client in clients[4:]]
    for sender in senders:
        sender.start()
    for client in clients[:4]:
        client.try_to_send(second) if how == "completes" else client.close()
    assert [client.answer()[0] for client in clients[4:]] == [200] * 4
    if how == "completes":
        assert [client.answer()[0] for client in clients[:4]] == [200] * 4
    for sender in senders:
        sender.join()
    for client in clients:
        client.close()


def test_a_waiting_body_is_not_read_after_the_answers_before_it_are_sent(echo: Site) -> None:
    big = plain(bytes(1 << 20))
    first, rest = big[:1000], big[1000:]
    with contextlib.ExitStack() as stack:
        admitted = [stack.enter_context(Client(echo["unix"])) for _ in range(4)]  # 4 MiB
        for client in admitted:
            client.send_apart(first)
        client, other = (stack.enter_context(Client(echo["unix"])) for _ in range(2))
        os.kill(echo.worker(), signal.SIGSTOP)  # so that one recv gets all of this
        client.send(plain(b"four") * 900 + first)
        os.kill(echo.worker(), signal.SIGCONT)
        poll(lambda: unread(client) == 0)
        assert {client.echo()["lane"] for _ in range(900)} == {"fast"}  # more than the socket holds at a time
        client.send(rest[:10_000])
        for _ in range(3):  # turns of the loop
            other.send(plain())
            other.echo()
        assert unread(client) > 0
        for one in admitted:
            one.send(rest)
            assert one.echo()["crc"] == zlib.crc32(bytes(1 << 20))
        client.send(rest[10_000:])
        assert client.echo()["crc"] == zlib.crc32(bytes(1 << 20))


def test_a_long_body_delays_no_other_that_fits_beside_it(echo: Site, kind: str) -> None:
    data = plain(bytes(1 << 20))
    with Client(echo[kind]) as first, Client(echo[kind]) as other:
        first.send_apart(data[:-1])
        other.send_apart(data[:-1])
        other.send(data[-1:])
        assert other.echo()["length"] == 1 << 20
        first.send(data[-1:])
        assert first.echo()["length"] == 1 << 20


def test_a_large_body_that_waits_is_not_passed_by_smaller_ones(echo: Site) -> None:
    large, medium = plain(bytes(1 << 20)), plain(bytes(100_000))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(echo["unix"])) for _ in range(7)]
        for client in clients[:3]:  # 3 MiB, and most of a fourth
            client.send_apart(large[:1000])
        clients[3].send_apart(plain(bytes(900_000))[:1000])
        clients[4].send_apart(large[:1000])  # waits
        clients[5].send_apart(medium[:1000])  # would fit
        clients[5].send(medium[1000:])
        clients[6].send(plain())
        assert clients[6].echo()["length"] == 1  # a body that came whole waits for nobody
        assert unread(clients[5]) > 0
        clients[0].send(large[1000:])
        clients[4].send(large[1000:])
        assert [clients[number].echo()["length"] for number in (0, 4, 5)] == [1 << 20, 1 << 20, 100_000]


def test_the_end_of_a_body_admits_only_as_many_others_as_fit(echo: Site) -> None:
    data = plain(bytes(1 << 20))
    with contextlib.ExitStack() as stack:
        small, *clients = [stack.enter_context(Client(echo["unix"])) for _ in range(7)]
        for client in clients[:4]:  # 4 MiB
            client.send_apart(data[:1000])
        small.send_apart(plain(b"abc")[:-1])
        for client in clients[4:]:
            client.send_apart(data[:1000])
            client.send(b"x")
        small.send(b"c")
        assert small.echo()["length"] == 3
        small.send(plain())
        assert small.echo()
        assert [unread(client) > 0 for client in clients[4:]] == [True, True]
        clients[0].send(data[1000:])
        assert clients[0].echo()["length"] == 1 << 20
        poll(lambda: unread(clients[4]) == 0)
        assert unread(clients[5]) > 0


def test_a_client_that_does_not_read_delays_no_other_and_gets_all_its_answers(echo: Site, kind: str) -> None:
    number, body = 30_000, bytes(1_000)  # more than the kernel's buffers hold, in both directions
    with Client(echo[kind], receive=4096) as lazy, Client(echo[kind]) as busy:
        sender = threading.Thread(target=lazy.send, args=(plain(body) * number,))
        sender.start()
        before = memory(echo.worker())
        for _ in range(500):
            busy.send(plain())
            assert busy.echo()["lane"] == "fast"
        # the server stops reading from it, so its answers do not accumulate
        assert memory(echo.worker()) - before < 20 << 20
        assert sender.is_alive()
        assert [lazy.echo()["crc"] for _ in range(number)] == [zlib.crc32(body)] * number
        sender.join()


@pytest.mark.nightly
@pytest.mark.parametrize("until", ["it reads", "it sends again"])
def test_a_client_that_does_not_read_costs_no_cpu(echo: Site, kind: str, until: str) -> None:
    with Client(echo[kind], receive=4096) as lazy:
        if until == "it sends again":
            # 64 bytes each, so that no recv ends within one: a split head would go to the slow lane
            lazy.send(plain(b"four") * 900)
            assert {lazy.echo()["lane"] for _ in range(900)} == {"fast"}
        else:
            sender = threading.Thread(target=lazy.try_to_send, args=(plain(bytes(1_000)) * 30_000,))
            sender.start()
        worker = echo.worker()

        def is_idle() -> bool:
            beat, spent, since = heartbeat(worker), cpu(worker), time.monotonic()
            poll(lambda: heartbeat(worker) != beat)
            return (cpu(worker) - spent) / (time.monotonic() - since) < 0.15

        poll(is_idle, what="a second without work: the loop spins")
        lazy.sock.shutdown(socket.SHUT_RDWR)
    if until == "it reads":
        sender.join()


def cpu(pid: int) -> float:
    """A process's CPU time in seconds."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_clients_may_disconnect_at_any_byte(ingest: Site, redis: Redis, kind: str, how: str) -> None:
    whole = plain(b"whole")
    before = poll(lambda: descriptors(ingest.worker()))
    for data in (whole + plain(b"half"), CHUNKED.replace(b"/slow", b"/votes")):
        for at in range(len(data)):
            client = Client(ingest[kind])
            client.send(data[:at])
            if how == "resets":
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
    with Client(ingest[kind]) as client:
        client.send(plain(b"last"))
        assert client.answer()[0] == 200
    poll(lambda: descriptors(ingest.worker()) <= before, what="descriptors left open")
    # a complete request may have been accepted, an incomplete one never
    assert set(redis.items()) <= {b"whole", b"last"}
    assert "Traceback" not in ingest.server.said()


def test_a_half_closed_client_gets_all_its_answers(echo: Site, kind: str) -> None:
    with Client(echo[kind]) as client:
        client.send(plain() * 50 + CHUNKED + plain() * 50)
        client.sock.shutdown(socket.SHUT_WR)
        assert [client.echo()["lane"] for _ in range(101)] == ["fast"] * 50 + ["slow"] + ["fast"] * 50
        assert client.ended()


@pytest.mark.parametrize("lane", ["fast", "slow"])
def test_a_truncated_body_gets_400_and_is_not_accepted(ingest: Site, redis: Redis, kind: str, lane: str) -> None:
    data = plain(b"12345", "/votes", *["Accept: a", "Accept: b"][: 2 * (lane == "slow")])
    with Client(ingest[kind]) as client:
        client.send(plain(b"before") + data[:-1])
        client.sock.shutdown(socket.SHUT_WR)
        assert client.answer()[0] == 200
        status, headers, body = client.answer()
        assert (status, headers["content-type"]) == (400, "application/problem+json"), body
        assert client.ended()
    assert redis.items() == [b"before"]


def test_thousands_of_concurrent_clients_are_answered(echo: Site, kind: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(3_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    try:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(echo[kind])) for _ in range(number)]
            for _ in "first", "once more":
                for client in clients:
                    client.send(plain())
                assert [client.echo()["lane"] for client in clients] == ["fast"] * number
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("slow", SLOW)
def test_the_request_after_a_slow_one_is_in_the_fast_lane(echo: Site, kind: str, slow: str) -> None:
    data, body = SLOW[slow]
    with Client(echo[kind]) as client:
        for sends in ([plain(), data, plain()], [plain() + data + plain()]):
            said = []
            for part in sends:
                client.send(part)
                said += [client.echo() for _ in range(3 // len(sends))]
            assert [one["lane"] for one in said] == ["fast", "slow", "fast"]
            assert [one["crc"] for one in said] == [zlib.crc32(b"x"), zlib.crc32(body), zlib.crc32(b"x")]


def test_fast_and_slow_requests_in_one_write_are_answered_in_order(echo: Site, kind: str) -> None:
    with Client(echo[kind]) as client:
        paths = [f"/{number}" for number in range(600)]  # longer than one read of gunicorn's parser
        client.send(
            b"".join(
                CHUNKED.replace(b"/slow", path.encode()) if number % 3 == 2 else plain(b"x", path)
                for number, path in enumerate(paths)
            )
        )
        said = [client.echo() for _ in paths]
    assert [one["path"] for one in said] == paths
    assert {one["lane"] for one in said[2::3]} == {"slow"}
    # so does a head that is divided between two reads, and they are more than one read of the lane
    assert [one["lane"] for one in said].count("fast") >= 400 - 3


def test_unread_answers_of_the_fast_lane_precede_that_of_the_slow_lane(echo: Site, kind: str) -> None:
    number = 30_000
    requests = [plain(path=f"/{at}") for at in range(number)]
    with Client(echo[kind], receive=4096) as client:
        sender = threading.Thread(target=client.send, args=(b"".join([*requests, CHUNKED, plain(path="/last")]),))
        sender.start()
        said = [client.echo() for _ in range(number + 2)]
        sender.join()
    assert [one["path"] for one in said] == [*(f"/{at}" for at in range(number)), "/slow", "/last"]
    assert [one["lane"] for one in said[-2:]] == ["slow", "fast"]
    # a head that the end of a recv splits goes to the slow lane
    assert sum(one["lane"] == "slow" for one in said) < number // 100


def test_connection_close_closes_after_the_last_answer(echo: Site, kind: str) -> None:
    with Client(echo[kind]) as client:
        client.send(plain(b"a") + plain(b"bb") + plain(b"ccc", "/x", "Connection: close") + plain(b"too late"))
        assert [client.echo()["length"] for _ in range(2)] == [1, 2]
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (200, "close")
        with contextlib.suppress(ConnectionResetError):  # the kernel resets: the last request was not read
            assert client.ended()


def test_a_rejected_client_that_still_sends_gets_its_413(ingest: Site, redis: Redis, kind: str) -> None:
    data = plain(bytes(4 << 20))
    with Client(ingest[kind]) as client:
        client.send(data)  # all of it, before reading the answer
        assert client.answer()[0] == 413
        assert client.ended()
    with Client(ingest[kind]) as client:
        client.send(data[:200])  # only the head and a few bytes
        assert client.answer()[0] == 413
    assert redis.items() == []


def test_a_request_without_a_host_gets_400_and_one_with_two_codings_501(ingest: Site, redis: Redis, kind: str) -> None:
    for data in plain(), plain(path="/vo%74es"), b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n":
        with Client(ingest[kind]) as client:
            client.send(data.replace(b"Host", b"Most"))
            assert client.answer()[0] == 400
    with Client(ingest[kind]) as client:
        client.send(b"POST /votes HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
        assert client.answer()[0] == 501
    assert redis.items() == []


def test_max_body_of_the_application_applies_before_the_body_is_read(redis: Redis) -> None:
    with short_tmp() as tmp, gateway(tmp, redis.server, env={"INGEST_MAX_BODY": "1k"}) as server:
        with Client(server.socket) as client:
            client.send(plain(bytes(1025))[:100])
            assert client.answer()[0] == 413
        assert post(server.socket, "/votes", bytes(1024))[0] == 200


def test_malformed_requests_get_400_and_are_not_accepted(ingest: Site, redis: Redis, kind: str) -> None:
    head = b"POST /votes HTTP/1.1\r\nHost: localhost\r\n"
    for line in (
        b"Content-Length: 1, 1",
        b"Content-Length: 0x1",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding: chunked\r\nX : y",
        b"Content-Length: 1\r\nX: a\x00",
    ):
        with Client(ingest[kind]) as client:
            client.send(plain(b"before") + head + line + b"\r\n\r\n" + plain())
            assert client.answer()[0] == 200
            status, fields, body = client.answer()
            assert status in (400, 501), line
            assert (fields["content-type"], json.loads(body)["status"]) == ("application/problem+json", status), line
            assert client.ended(), line
    for line, expected in (b"POST /vot\xc3\xa9s", 400), (b"POST /votes?" + 9_000 * b"a", 414):
        with Client(ingest[kind]) as client:
            client.send(line + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
            status, fields, body = client.answer()
            assert (status, fields["content-type"]) == (expected, "application/problem+json")
            assert json.loads(body)["detail"].endswith("had no effect.")
    assert set(redis.items()) == {b"before"}


def test_a_malformed_request_is_quoted_neither_in_its_answer_nor_in_the_log(ingest: Site) -> None:
    with Client(ingest["unix"]) as client:
        client.send(b"POST /votes HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer top-secret\r\n\r\n")
        status, _, body = client.answer()
    assert status == 400
    assert b"top-secret" not in body
    assert "top-secret" not in ingest.server.said()


def test_a_malformed_chunked_body_gets_one_answer_and_the_connection_closes(ingest: Site, kind: str) -> None:
    with Client(ingest[kind]) as client:  # the application answers before it reads the body
        client.send(CODED.replace(b"/slow", b"/nowhere") + b"\r\nno chunk\r\n" + plain())
        assert client.answer()[0] == 404
        assert client.ended()


# --- applications ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [(b"/plain", b"3\r\nab"), (b"/plain", b"zz\r\n" + plain()), (b"/ignores", b"zz\r\n" + plain())],
    ids=["stops", "malformed", "malformed and ignored"],
)
def test_a_body_without_an_end_that_the_application_does_not_need_closes_the_connection(
    odd: Site, path: bytes, body: bytes
) -> None:
    with Client(odd["unix"]) as client:
        client.send(CODED.replace(b"/slow", path) + b"\r\n" + body)
        assert client.answer()[2] == b"plain"
        assert client.ended()
    assert "Timeout" not in odd.server.said()


def test_a_500_affects_one_request_only(odd: Site) -> None:
    with Client(odd["unix"]) as client, Client(odd["unix"]) as other:
        client.send(plain() + plain(path="/raises") + plain() + plain(path="/raises-late") + plain())
        other.send(plain())
        assert [client.answer()[0] for _ in range(5)] == [200, 500, 200, 500, 200]
        assert other.answer()[0] == 200
    assert "the application that raises" in odd.server.said()


@pytest.mark.parametrize(
    "path",
    ["silent", "nothing", "text", "no-status", "no-headers", "euro", "split", "malformed-length", "closing-late"],
)
def test_an_application_that_breaks_its_contract_causes_a_500_and_the_loop_continues(odd: Site, path: str) -> None:
    with Client(odd["unix"]) as client, Client(odd["unix"]) as other:
        for _ in range(2):
            other.send(plain())
            client.send(plain() + plain(path="/" + path) + plain())
            assert [client.answer()[0] for _ in range(3)] == [200, 500, 200]
            assert other.answer()[0] == 200


def test_answers_of_every_kind_are_framed_correctly(odd: Site) -> None:
    with Client(odd["unix"]) as client:
        for _ in range(2):
            client.send(
                plain(path="/eager")
                + plain(b"ator", "/generator")
                + plain(b"1", "/own-headers")
                + plain(b"22", "/own-headers")
                + plain(b"333", "/shared-headers")
                + plain(b"4444", "/shared-headers")
                + plain(b"", "/no-content")
                + plain(b"no", "/no-content")
                + plain(path="/long")
                + plain(path="/hop")
                + plain()
            )
            answers = [client.answer() for _ in range(11)]
            statuses = [status for status, _, _ in answers]
            assert statuses == [202, 200, 200, 200, 200, 200, 204, 204, 200, 200, 200]
            bodies = [body for _, _, body in answers]
            assert bodies[:6] == [b"eager", b"generator", b"1", b"22", b"333", b"4444"]
            assert bodies[6:] == [b"", b"", b"lon", b"hop", b"plain"]
            assert [headers["x-body"] for _, headers, _ in answers[2:4]] == ["1", "22"]
            assert not any("connection" in headers or "transfer-encoding" in headers for _, headers, _ in answers)
        for size in 1023, 1024, 1025:  # the lengths below 1024 are kept as text
            client.send(plain(b"x" * (size - 5), "/generator"))
            assert client.answer()[2] == b"gener" + b"x" * (size - 5)
        client.send(plain() + plain(path="/short"))
        assert client.answer()[2] == b"plain"
        head, _, body = client.file.read().partition(b"\r\n\r\n")
        assert (head.splitlines()[-2:], body) == ([b"Content-Length: 9", b"Connection: close"], b"short")


def test_rendered_heads_are_kept_up_to_a_limit() -> None:
    rendering = answers.Answers(Config())
    lists = [[("X-Number", str(number))] for number in range(answers.MAX_RENDERED_HEADS + 1)]
    for headers in lists[:-1]:
        rendering.render("200 OK", headers)
    assert len(rendering.rendered) == answers.MAX_RENDERED_HEADS
    rendering.render("200 OK", lists[-1])
    assert list(rendering.rendered) == [id(lists[-1])]


def test_the_head_of_a_headers_list_is_rendered_once_for_each_status() -> None:
    lane = generated_requests.Place("", "/run/gateway-0.sock").lane
    lane.alive, lane.nr = True, 0
    rendered: list[str] = []
    render = lane.answers.render

    def recorded(status: str, headers: list[tuple[str, str]]) -> answers.Rendered:
        rendered.append(status)
        return render(status, headers)

    lane.answers.render = recorded  # type: ignore[method-assign]
    conn: Any = SimpleNamespace(state=IDLE, out=b"", sock=SimpleNamespace(send=len))
    headers = [("Content-Length", "1")]
    for status in "200 OK", "200 OK", "202 Accepted", "202 Accepted":
        lane.pending = [(conn, (b"x",), (status, headers), True, {})]
        lane.flush()
    assert rendered == ["200 OK", "202 Accepted"]


def test_close_is_called_once_for_each_answer(odd: Site) -> None:
    def closed() -> int:
        return int(post(odd["unix"], "/closed")[2])

    before = closed()
    with Client(odd["unix"]) as client:
        client.send(plain(path="/closing") * 3 + plain(path="/closing-late") * 2)
        assert [client.answer()[0] for _ in range(5)] == [200, 200, 200, 500, 500]
    assert closed() - before == 5


OWN_ROUTES = """
from sluice import OK, Route
ROUTES = {"/ok": Route("own", OK), "/accepted": Route("own", OK._replace(status="202 Accepted"))}
"""


def test_a_process_preempts_no_other_and_seldom_looks_for_cycles(odd: Site) -> None:
    assert os.sched_getscheduler(odd.worker()) == os.SCHED_BATCH
    with Client(odd.server.socket) as client:
        client.send(plain(path="/collections"))
        threshold, frozen = map(int, client.answer()[2].split())
    assert threshold == 50_000
    assert frozen > 10_000


def test_an_error_in_the_loop_is_logged_and_does_not_end_it() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the poller fails")

    lane = generated_requests.Place("", "/run/gateway-0.sock").lane
    logged: list[str] = []
    lane.log, lane.poller = SimpleNamespace(exception=logged.append), SimpleNamespace(poll=broken, modify=broken)
    lane.turn()
    assert logged == ["Error in the loop"]


def test_a_tick_that_raises_is_logged_and_does_not_end_the_process() -> None:
    with site("support.wsgi_apps:failing_tick") as running:
        worker = running.worker()
        poll(lambda: running.server.said().count("Error in the application's tick") >= 2)
        assert post(running.server.socket, "/", b"x")[0] == 200
        assert running.worker() == worker


def test_routes_that_share_a_headers_list_keep_their_own_status(redis: Redis, tmp: Path) -> None:
    routes = tmp / "own_routes.py"
    routes.write_text(OWN_ROUTES)
    with gateway(tmp, redis.server, env={"INGEST_ROUTES": routes}) as server, Client(server.socket) as client:
        client.send((plain(path="/ok") + plain(path="/accepted")) * 2)
        assert [client.answer()[0] for _ in range(4)] == [200, 202, 200, 202]


# --- operators -------------------------------------------------------------------------------------------------------

PATIENT = "--graceful-timeout", 30  # seconds; for a busy machine


def test_requests_read_before_a_stop_are_committed_and_answered(redis: Redis, kind: str) -> None:
    bodies = [b"%03d" % number for number in range(100)]
    half = plain(b"half")
    with site("ingest:app", *PATIENT, redis=redis.server) as running:
        with Client(running[kind]) as busy, Client(running[kind]) as slow, Client(running[kind]) as idle:
            idle.send(plain(b"idle"))
            assert idle.answer()[0] == 200
            slow.send_apart(half[:-2])
            with redis.held():
                busy.send_apart(plain(bodies[0]))  # the process waits for Redis; these wait for the process
                busy.send(b"".join(map(plain, bodies[1:])))
                waiting = Client(running[kind])
                waiting.send(plain(b"not yet accepted"))
                running.server.process.terminate()
                poll(lambda: "Handling signal: term" in running.server.said())
            assert [busy.answer()[0] for _ in bodies] == [200] * len(bodies)
            assert waiting.answer()[0] == 200
            waiting.close()
            poll(lambda: refuses(running.port))
            for client, data in (slow, half[-2:]), (idle, plain(b"one more")):
                client.send(data)
                status, headers, _ = client.answer()
                assert (status, headers["connection"]) == (200, "close")
                assert client.ended()
        assert running.server.process.wait(PATIENCE) == 0
    assert sorted(redis.items()) == sorted([b"idle", *bodies, b"half", b"not yet accepted", b"one more"])


def test_a_stop_closes_idle_connections_at_the_end_of_the_graceful_timeout(kind: str) -> None:
    with site("support.wsgi_apps:echo", "--graceful-timeout", 1) as running, Client(running[kind]) as idle:
        idle.send(plain())
        assert idle.echo()["lane"] == "fast"
        running.server.process.terminate()
        assert idle.ended()
        assert running.server.process.wait(PATIENCE) == 0
        assert "SIGKILL" not in running.server.said()
        assert "closed 1 connections that were still open" in running.server.said()


def test_requests_in_the_slow_lane_are_answered_at_a_stop(kind: str) -> None:
    with (
        site("support.wsgi_apps:echo", *PATIENT) as running,
        Client(running[kind]) as client,
        Client(running[kind]) as body,
    ):
        client.send(plain())
        assert client.echo()["lane"] == "fast"
        body.send_apart(CHUNKED[:-5])
        running.server.process.terminate()
        poll(lambda: refuses(running.port))
        client.send(plain() + CHUNKED)
        assert [client.echo()["lane"] for _ in range(2)] == ["fast", "slow"]
        assert client.ended()
        body.send(CHUNKED[-5:])
        assert body.echo()["length"] == 5
        body.close()  # its answer was keep-alive: the request began before the stop
        assert running.server.process.wait(PATIENCE) == 0
        assert "Traceback" not in running.server.said()


def test_a_stop_waits_for_a_request_that_the_slow_lane_alone_has(kind: str) -> None:
    with site("support.wsgi_apps:echo", *PATIENT) as running, Client(running[kind]) as body:
        body.send_apart(CHUNKED[:-5])
        running.server.process.terminate()
        poll(lambda: refuses(running.port))
        body.send(CHUNKED[-5:])
        assert body.echo()["length"] == 5
        body.close()
        assert running.server.process.wait(PATIENCE) == 0


def refuses(port: int) -> bool:
    """Whether the port is closed: the worker process closes it last, after it has noticed the signal."""
    try:
        connect(port).close()
        return False
    except ConnectionRefusedError:
        return True


def test_a_quick_stop_is_quick(redis: Redis) -> None:
    with site("ingest:app", redis=redis.server) as running, Client(running["unix"]) as client:
        client.send(plain())
        assert client.answer()[0] == 200
        running.server.process.send_signal(signal.SIGQUIT)
        assert running.server.process.wait(PATIENCE) == 0
        assert client.ended()


class Load:
    """Clients that behave like nginx: they keep connections, and drop one that has ended or says `Connection: close`.

    A connection that ends during a request is a failed request: nginx does not send a POST twice.
    """

    def __init__(self, where: Callable[[], Where], clients: int) -> None:
        self.where = where
        self.going = True
        self.acknowledged: list[bytes] = []
        self.failed: list[object] = []
        self.refused = 0
        self.pids: set[int] = set()
        self.threads = [threading.Thread(target=self.post, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.going = False
        for thread in self.threads:
            thread.join()

    def post(self, number: int) -> None:
        client: Client | None = None
        count = 0
        while self.going:
            count += 1
            body = b"%d-%d" % (number, count)
            try:
                client = client or Client(self.where())
                client.send(plain(body))
                status, headers, said = client.answer()
            except (OSError, EOFError) as error:
                self.failed.append((body, error))
                client = None
                continue
            if status == 200:
                self.acknowledged.append(body)
                if said.startswith(b"{") and b"pid" in said:
                    self.pids.add(json.loads(said)["pid"])
            elif status == 503:
                self.refused += 1
                assert int(headers["retry-after"]) >= 1
            else:
                self.failed.append((body, status, said))
            if headers.get("connection") == "close":
                client.close()
                client = None
        if client:
            client.close()

    def progress(self, by: int = 200) -> None:
        """Wait until this many more requests are acknowledged."""
        wanted = len(self.acknowledged) + by
        poll(lambda: len(self.acknowledged) >= wanted, what="progress")


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_under_load_fails_no_request(redis: Redis, kind: str, workers: int) -> None:
    with site("ingest:app", "--workers", workers, *PATIENT, redis=redis.server) as running:
        with Load(lambda: running[kind], 8) as load:
            for _ in range(3):
                load.progress()
                old = set(running.workers())
                running.server.process.send_signal(signal.SIGHUP)
                poll(lambda old=old: not old & set(running.workers()), what="the old workers end")  # type: ignore[misc]
            load.progress()
        assert load.failed == [] and load.refused == 0
        assert sorted(redis.items()) == sorted(load.acknowledged)
        assert "Traceback" not in running.server.said()


@pytest.mark.nightly
def test_max_requests_replaces_processes_and_fails_no_request(kind: str) -> None:
    with site("support.wsgi_apps:echo", "--max-requests", 100, *PATIENT) as running:
        with Load(lambda: running[kind], 4) as load:
            poll(lambda: len(load.pids) >= 3, what="three workers, one after the other")
        assert load.failed == []


def test_max_requests_starts_another_process_before_it_ends_one() -> None:
    with site("support.wsgi_apps:echo", "--max-requests", 5, *PATIENT) as running, Client(running["unix"]) as client:
        first = running.worker()
        client.send(plain() * 5)
        assert [client.answer()[0] for _ in range(5)] == [200] * 5
        # the client keeps its connection, so the first process stays until its timeout
        poll(lambda: len(running.workers()) == 2, what="another process")
        assert first in running.workers()
        client.close()
        poll(lambda: len(running.workers()) == 1, what="the end of the first process")
        with Client(running["unix"]) as other:
            other.send(plain() * 5)  # as many as it takes: the harness has asked the first process, too
            poll(lambda: len(running.workers()) == 2, what="a third process")


def test_requests_of_the_slow_lane_count_for_max_requests() -> None:
    with site("support.wsgi_apps:echo", "--max-requests", 5) as running:
        first = running.worker()
        for _ in range(6):
            with Client(running["unix"]) as client:
                client.send(CHUNKED)
                assert client.echo()["lane"] == "slow"
        poll(lambda: running.workers() and first not in running.workers(), what="another worker")


def test_the_access_log_has_a_line_for_every_request(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    form = "%(m)s %(U)s?%(q)s %(H)s %(s)s %(B)s %(a)s %({x-real-ip}i)s %({content-length}i)s %({content-type}o)s"
    with site("support.wsgi_apps:odd", "--access-logfile", log, "--access-logformat", form) as running:
        with Client(running[kind]) as client:
            for double in (), ("Accept: a", "Accept: b"):
                client.send(plain(b"abc", "/eager?a=b", "User-Agent: test", "X-Real-IP: 192.0.2.1", *double))
                # gunicorn sends an answer without a length in chunks
                assert client.file.readline().startswith(b"HTTP/1.1 202")
                assert b"0\r\n" in iter(client.file.readline, b"")
                assert client.file.readline() == b"\r\n"
        line = "POST /eager?a=b HTTP/1.1 202 5 test 192.0.2.1 3 text/plain"
        poll(lambda: log.read_text().splitlines()[-2:] == [line, line])


def test_the_access_log_has_the_seconds_of_a_request(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with site("support.wsgi_apps:echo", "--access-logfile", log, "--access-logformat", "%(T)s") as running:
        with Client(running["unix"]) as client:
            client.send(plain())
            client.answer()
        poll(lambda: log.read_text().splitlines()[-1:] == ["0"])


def test_a_logger_with_an_access_log_of_its_own_gets_every_request(tmp_path: Path) -> None:
    (tmp_path / "logger.py").write_text(
        "from gunicorn.glogging import Logger\n"
        "class Own(Logger):\n    def access(self, *_):\n        self.error('a request')\n"
    )
    with site(
        "support.wsgi_apps:echo", "--pythonpath", f"{ROOT}/tests,{tmp_path}", "--logger-class", "logger.Own"
    ) as running:
        with Client(running["unix"]) as client:
            client.send(plain() * 3)
            assert [client.echo()["lane"] for _ in range(3)] == ["slow"] * 3
        poll(lambda: running.server.said().count("a request") >= 3)


def test_without_an_access_log_nothing_is_logged(ingest: Site) -> None:
    with Client(ingest["unix"]) as client:
        client.send(plain())
        assert client.answer()[0] == 200
        before = ingest.server.said()
        for _ in range(3):  # a line about one request would be there once the next is answered
            client.send(plain() + CHUNKED.replace(b"/slow", b"/votes"))
            assert [client.answer()[0] for _ in range(2)] == [200, 200]
        assert ingest.server.said() == before


@pytest.mark.nightly
def test_the_heartbeat_continues_under_load_and_stops_if_the_application_hangs() -> None:
    with site("support.wsgi_apps:odd", "--timeout", 20) as running:  # a busy machine may keep a worker for seconds
        first = running.worker()
        with Client(running["unix"]) as client:

            def beat_after(before: int) -> bool:
                client.send(plain() * 50)
                assert [client.answer()[0] for _ in range(50)] == [200] * 50
                return heartbeat(first) != before

            for _ in range(4):  # one per second
                before = heartbeat(first)
                poll(lambda before=before: beat_after(before))  # type: ignore[misc]
            assert running.workers() == [first]
            client.send(plain(path="/wedged"))
            poll(lambda: first not in running.workers(), what="the end of the wedged worker")
            with pytest.raises((EOFError, ConnectionResetError)):
                client.answer()
        assert poll(lambda: post(running["unix"], "/"))[0] == 200
        assert "WORKER TIMEOUT" in running.server.said()


def heartbeat(pid: int) -> int:
    """The time of the last heartbeat: gunicorn touches an unlinked file."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "wgunicorn" in os.readlink(file):
                return file.stat().st_ctime_ns
    raise AssertionError("no heartbeat")


def test_with_a_hook_every_request_takes_the_slow_lane(tmp_path: Path) -> None:
    conf = tmp_path / "hooked.py"
    conf.write_text(
        f"import runpy\nglobals().update(runpy.run_path({str(ROOT / 'gunicorn.conf.py')!r}))\n"
        "def pre_request(worker, req):\n    worker.log.info('hook: %s', req.path)\n"
    )
    with site("support.wsgi_apps:echo", "-c", conf) as running, Client(running["unix"]) as client:
        client.send(plain(path="/1") + plain(path="/2"))
        assert [client.echo()["lane"] for _ in range(2)] == ["slow", "slow"]
        assert "hook: /1" in running.server.said() and "hook: /2" in running.server.said()


def test_a_process_without_free_descriptors_accepts_again_when_some_are_free(kind: str) -> None:
    with site() as running:
        worker = running.worker()
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (descriptors(worker) + 20,) * 2)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(running[kind])) for _ in range(50)]
            for client in clients:
                client.send(plain())
            served = clients[:15]
            for client in served:
                assert client.echo()["lane"] == "fast"
            poll(lambda: "cannot accept more" in running.server.said())
            for client in served:  # accepted clients are still served
                client.send(plain() + CHUNKED)
                assert [client.echo()["lane"] for _ in range(2)] == ["fast", "slow"]
            for client in clients:
                if client not in served:
                    assert client.echo()["lane"] == "fast"
                client.close()
        assert running.workers() == [worker]


def test_connections_beyond_worker_connections_wait_in_the_backlog(kind: str) -> None:
    with site("support.wsgi_apps:echo", "--worker-connections", 10) as running, contextlib.ExitStack() as stack:
        before = poll(lambda: descriptors(running.worker()))
        clients = [stack.enter_context(Client(running[kind])) for _ in range(20)]
        for client in clients:
            client.send(plain())
        for client in clients:
            assert client.echo()["lane"] == "fast"
            assert descriptors(running.worker()) <= before + 10
            client.close()


@pytest.mark.nightly
def test_connections_in_the_slow_lane_count_towards_worker_connections_until_they_end(kind: str) -> None:
    with site("support.wsgi_apps:echo", "--worker-connections", 10) as running, contextlib.ExitStack() as stack:

        def beats(number: int) -> None:
            for _ in range(number):
                beat = heartbeat(running.worker())
                poll(lambda beat=beat: heartbeat(running.worker()) != beat)  # type: ignore[misc]

        poll(lambda: running.worker())
        beats(2)  # the connection that asked whether it answers is closed
        before = descriptors(running.worker())

        def connect_many(data: bytes, number: int = 20) -> list[Client]:
            clients = [stack.enter_context(Client(running[kind])) for _ in range(number)]
            for client in clients:
                client.send(data)
            accepted = before + min(number, 10)
            poll(lambda: descriptors(running.worker()) >= accepted)
            beats(2)  # it accepts after each, if it has fewer connections
            assert descriptors(running.worker()) == accepted
            return clients

        some = connect_many(CHUNKED[:-5], 5)
        for client in [*connect_many(b""), *some]:
            client.close()
        poll(lambda: descriptors(running.worker()) == before)
        for client in connect_many(CHUNKED[:-5]):
            client.send(CHUNKED[-5:])
            assert client.echo()["lane"] == "slow"
            client.close()
        connect_many(b"")


def test_several_processes_share_the_sockets(kind: str) -> None:
    with site("support.wsgi_apps:echo", "--workers", 2) as running, contextlib.ExitStack() as stack:
        clients: list[Client] = []

        def answering() -> set[int]:
            clients.extend(stack.enter_context(Client(running[kind])) for _ in range(20))
            for client in clients:
                client.send(plain())
            return {client.echo()["pid"] for client in clients}

        poll(lambda: len(answering()) == 2, what="an answer of each process")


# --- Redis -----------------------------------------------------------------------------------------------------------


def test_requests_that_arrive_during_a_commit_share_the_next_one(ingest: Site, redis: Redis, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(ingest[kind])) for _ in range(300)]
        for client in clients:  # all are accepted
            client.send(plain(b"warm"))
        assert {client.answer()[0] for client in clients} == {200}
        before = redis.pushes()
        with redis.held():
            clients[0].send_apart(plain(b"0"))
            for number, client in enumerate(clients[1:], 1):
                client.send(plain(b"%d" % number))
        assert {client.answer()[0] for client in clients} == {200}
    assert redis.pushes() - before <= 3
    assert sorted(redis.items()[300:]) == sorted(b"%d" % number for number in range(300))


def test_a_refusal_of_one_stream_does_not_affect_another_in_the_same_commit(redis: Redis) -> None:
    redis.client.rpush("ingest:{votes}", bytes(4 << 20))
    with short_tmp() as tmp, gateway(tmp, redis.server, env={"INGEST_MAX_MEMORY": "8m"}) as server:
        poll(lambda: post(server.socket, "/votes", b"x")[0] == 503)
        before = redis.pushes()
        with Client(server.socket) as client:
            client.send(b"".join(plain(path=path) for path in ("/votes", "/gps", "/votes", "/metrics", "/metrics")))
            assert [client.answer()[0] for _ in range(5)] == [503, 200, 503, 200, 200]
        assert redis.pushes() - before == 2
    assert redis.items("gps") == [b"x"] and len(redis.items("metrics")) == 2


@pytest.mark.nightly
def test_a_redis_that_hangs_delays_each_request_by_one_timeout_at_most() -> None:
    """Health checks and both lanes. Each client here waits 10 s, and Redis gets 3 s for a reply."""
    with short_tmp() as tmp, redis_server(tmp) as server, site("ingest:app", redis=server) as running:
        where = running.server.socket
        odd = b"POST /vo%74es HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"  # for the slow lane
        check = b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"
        with stopped(server.pid), contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(where)) for _ in range(30)]
            for client, data in zip(clients, [check, plain(), odd] * 10):
                client.sendall(data)
            for client in clients:
                assert answer(client)[0] == 503
        poll(lambda: post(where, "/votes", b"x")[0] == 200)


def test_a_killed_redis_means_503_until_it_is_back_and_loses_no_acknowledged_body() -> None:
    with short_tmp() as tmp, contextlib.ExitStack() as life:
        first = life.enter_context(redis_server(tmp))
        with site("ingest:app", redis=first) as running, Load(lambda: running["unix"], 4) as load:
            load.progress()
            first.process.kill()
            first.process.wait()
            refused = load.refused
            poll(lambda: load.refused > refused + 10, what="503s")
            with redis_server(tmp) as second:
                load.progress()
                load.going = False
                for thread in load.threads:
                    thread.join()
                assert load.failed == []
                items = Redis(second).items()
                assert set(load.acknowledged) <= set(items)
                assert len(items) == len(set(items))


# gunicorn calls post_fork in the new process before it has signal handlers. The first one terminates itself there.
FORKED = """
import os, runpy, signal
globals().update(runpy.run_path({conf!r}))

def post_fork(server, worker):
    try:
        os.close(os.open({first!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGTERM)
    worker.log.info("process %d survived SIGTERM", os.getpid())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_sigterm_right_after_the_fork_ends_the_new_process(tmp: Path, runtime: str) -> None:
    conf = tmp / "forked.py"
    conf.write_text(FORKED.format(conf=str(ROOT / "gunicorn.conf.py"), first=str(tmp / "first")))
    with site("support.wsgi_apps:echo", "-c", conf, runtime=runtime) as running:
        running.worker()
        assert "survived SIGTERM" not in running.server.said()
        running.server.process.send_signal(signal.SIGHUP)  # the master reads its settings again
        poll(lambda: running.server.said().count("Booting worker") == 3)
        running.server.process.terminate()  # the master's own handler is in place
        assert running.server.process.wait(PATIENCE) == 0
