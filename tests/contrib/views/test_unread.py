"""Clients that ask for large answers and take no byte of them: what the programs that hold them take."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest
import redis

from proving.harness import PATIENCE, Server, ask, installation, poll, short_tmp
from sluice.contrib.views import contract
from sluice.settings import SCRATCH_SOCKET
from support.access import curl, tls

pytestmark = pytest.mark.contract

MOST = 150 << 20  # bytes of a process
EACH = 200 << 10  # bytes of nginx for an answer
CONNECTIONS, STREAMS, KEYS, POINTS = 6, 128, 50, 100
PLAIN, NAMES, HOSTS = 6, 100, 300  # connections of HTTP/1.1; what each asks for
LARGE = 6 << 20  # bytes of an answer: the kernel takes up to 4 MB of it
DEVICE = "d" * 60
HEADERS, SETTINGS, END = 1, 4, 5  # types of frames; the flags END_STREAM and END_HEADERS
NO_WINDOW = pack(">HI", 4, 0)  # SETTINGS_INITIAL_WINDOW_SIZE


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return pack(">I", len(payload))[1:] + pack(">BBI", kind, flags, stream) + payload


def text(value: bytes) -> bytes:
    """A string of HPACK, without Huffman's code."""
    size = len(value)
    if size < 127:
        return bytes([size]) + value
    head, size = b"\x7f", size - 127
    while size >= 128:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + value


class Unread:
    """A connection of HTTP/2 whose streams have no window, and of which nothing is read."""

    def __init__(self, port: int, certificate: Path) -> None:
        context = ssl.create_default_context(cafile=str(certificate))
        context.set_alpn_protocols(["h2"])
        self.socket = context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), PATIENCE), server_hostname="localhost"
        )
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, NO_WINDOW))

    def ask(self, number: int, path: str) -> None:
        """GET, :method and :scheme from HPACK's table, :authority and :path by its names."""
        block = b"\x82\x87" + b"\x01" + text(b"localhost") + b"\x04" + text(path.encode())
        self.socket.sendall(frame(HEADERS, END, 2 * number + 1, block))


@pytest.fixture(scope="module")
def up(certificate: tuple[Path, Path]) -> Iterator[Server]:
    """An installation with devices whose trails are full."""
    with short_tmp() as tmp, installation(tmp, tls(certificate), ready=False) as server:
        url = f"https://localhost:{server.port}"
        trusting = ["--cacert", certificate[0]]
        poll(lambda: curl(*trusting, f"{url}/readyz")[0] == 200, 300)
        for at in range(0, POINTS, 10):
            points = [
                {"device": f"{DEVICE}{n}", "time": 1_767_268_800 + m, "lat": 48.123456 + m / 1e4, "lon": 11.5}
                for n in range(KEYS) for m in range(at, at + 10)
            ]  # fmt: skip
            (tmp / "points").write_text(json.dumps(points))
            assert curl(*trusting, "--data-binary", f"@{tmp}/points", f"{url}/gps")[0] == 200
        last = f"{url}/gps/trail?device={DEVICE}{KEYS - 1}"
        poll(lambda: len(json.loads(curl(*trusting, last)[2])) == POINTS, what="full trails")
        yield server


def memory(server: Server, name: str) -> list[int]:
    """The most that each process of a program has taken, in bytes."""
    found = [Path(f"/proc/{pid}/status").read_text() for pid in server.pids(name)]
    return [int(text.partition("VmHWM:")[2].split()[0]) << 10 for text in found]


def on_disk(server: Server) -> int:
    """Bytes of the files of answers that nginx has open. They have no names."""
    files = [path for pid in server.pids("nginx") for path in Path(f"/proc/{pid}/fd").iterdir()]
    found = 0
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            if str(server.home / "tmp/proxy") in os.readlink(path):
                found += path.stat().st_blocks * 512
    return found


@pytest.mark.nightly
def test_answers_that_nobody_reads_take_no_disk(up: Server, certificate: tuple[Path, Path]) -> None:
    """HTTP/1.1: nginx would put what neither a client nor the kernel takes into files, up to 1 GB for each answer."""
    context = ssl.create_default_context(cafile=str(certificate[0]))
    trusting, url = ["--cacert", certificate[0]], f"https://localhost:{up.port}"
    points = [
        {"name": f"m{name}", "time": 1_767_268_800, "value": 1, "tags": {"host": f"{DEVICE}{DEVICE}{host}"}}
        for name in range(NAMES) for host in range(HOSTS)
    ]  # fmt: skip
    (up.home / "points").write_text(json.dumps(points))
    assert curl(*trusting, "-H", "Expect:", "--data-binary", f"@{up.home}/points", f"{url}/metrics")[0] == 200
    path = "/metrics/latest?" + "&".join(f"name=m{n}" for n in range(NAMES))
    poll(lambda: len(curl(*trusting, url + path)[2]) > LARGE)
    with redis.Redis(unix_socket_path=str(up.home / SCRATCH_SOCKET)) as views, contextlib.ExitStack() as stack:

        def made() -> int:
            return int(views.hget(contract.READS, "/metrics/latest 200") or 0)

        most = made() + PLAIN
        for _ in range(PLAIN):
            plain = socket.socket()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.connect(("127.0.0.1", up.port))
            client = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while made() < most:
            assert curl(*trusting, f"{url}/gps/latest?device={DEVICE}0")[0] == 200
        assert on_disk(up) == 0
        assert max(memory(up, "reader")) < MOST
        assert max(memory(up, "nginx")) < MOST


@pytest.mark.nightly
def test_answers_that_nobody_reads_take_bounded_memory_and_keep_nobody_waiting(
    up: Server, certificate: tuple[Path, Path]
) -> None:
    trusting, url = ["--cacert", certificate[0]], f"https://localhost:{up.port}"
    query = "&".join(f"device={DEVICE}{n}" for n in range(KEYS))
    before = sum(memory(up, "nginx"))
    with redis.Redis(unix_socket_path=str(up.home / SCRATCH_SOCKET)) as views, contextlib.ExitStack() as stack:
        clients = [Unread(up.port, certificate[0]) for _ in range(CONNECTIONS)]
        for client in clients:
            stack.enter_context(client.socket)
        for number in range(STREAMS):
            for client in clients:
                client.ask(number, f"/gps/trail?{query}")
        vote = json.dumps({"poll": "unread", "choice": "fig"})
        assert curl(*trusting, "-d", vote, f"{url}/votes")[0] == 200
        poll(lambda: ask(up.home, "SELECT count(*) FROM votes WHERE poll = 'unread'") == [(1,)])

        def made() -> int:
            return int(views.hget(contract.READS, "/gps/trail 200") or 0)

        while made() < CONNECTIONS * STREAMS:
            assert curl(*trusting, f"{url}/gps/latest?device={DEVICE}0")[0] == 200
        assert max(memory(up, "reader")) < MOST
        assert sum(memory(up, "nginx")) - before < CONNECTIONS * STREAMS * EACH
