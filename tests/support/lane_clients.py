"""The worker class in a real gunicorn, over Unix and TCP sockets, and its clients."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from proving.harness import (
    ROOT,
    Server,
    connect,
    free_port,
    gateway,
    poll,
    short_tmp,
)

Where = int | Path


@dataclass
class Site:
    """A gateway that listens on a Unix socket and on a port."""

    server: Server
    port: int

    def __getitem__(self, kind: str) -> Where:
        return self.port if kind == "tcp" else self.server.socket

    def workers(self) -> list[int]:
        """The pids of the master's worker processes."""
        master = self.server.pid
        return [int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()]

    def worker(self) -> int:
        poll(lambda: len(self.workers()) == 1)
        return self.workers()[0]


@contextlib.contextmanager
def site(
    app: str = "support.wsgi_apps:echo",
    *args: object,
    runtime: str = "cpython",
    redis: Server | None = None,
    **env: object,
) -> Iterator[Site]:
    with short_tmp() as tmp:
        port = free_port()
        binds = ("-b", f"unix:{tmp}/run/gateway-0.sock", "-b", f"127.0.0.1:{port}")
        arguments = (*binds, "--pythonpath", ROOT / "tests", *args, app)
        with gateway(tmp, redis, runtime, env=env, args=arguments) as server:
            yield Site(server, port)


class Client:
    """One connection and its answers."""

    def __init__(self, where: Where, seconds: float = 20, receive: int = 0) -> None:
        if receive and isinstance(where, int):  # TCP's window scale is negotiated at connect
            self.sock = socket.socket()
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            self.sock.settimeout(seconds)
            self.sock.connect(("127.0.0.1", where))
        else:
            self.sock = connect(where, seconds)
            if receive:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        if isinstance(where, int):
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file: BinaryIO = self.sock.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def try_to_send(self, data: bytes) -> None:
        """Send until the connection ends."""
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def send_apart(self, *parts: bytes) -> None:
        """Send each part after the server has read the previous one (over TCP: acknowledged it)."""
        for part in parts:
            self.sock.sendall(part)
            poll(lambda: unread(self) == 0, interval=0.001)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer. Raises: EOFError if there is none, or an incomplete one."""
        lines: list[str] = []
        while (line := self.file.readline()) != b"\r\n":
            if not line.endswith(b"\r\n"):
                raise EOFError(f"ended after {lines + [line]}")
            lines.append(line.decode("latin-1"))
        version, code, *_ = lines[0].split()
        assert version in ("HTTP/1.0", "HTTP/1.1")
        status = int(code)
        if status == 100:
            return self.answer()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if status == 204:
            assert "content-length" not in headers
            return status, headers, b""
        size = int(headers["content-length"])
        body = self.file.read(size)
        if len(body) < size:
            raise EOFError(f"ended after {body!r}")
        return status, headers, body

    def echo(self) -> dict[str, Any]:
        """The next answer of apps.echo."""
        status, _, body = self.answer()
        assert status == 200, body
        said: dict[str, Any] = json.loads(body)
        return said

    def ended(self) -> bool:
        """Whether the server closes without sending more."""
        return self.file.read(1) == b""


def plain(body: bytes = b"x", path: str = "/votes", *fields: str) -> bytes:
    """A request for the fast lane."""
    head = "".join(f"{line}\r\n" for line in (f"POST {path} HTTP/1.1", "Host: localhost", *fields))
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


CODED = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
CHUNKED = CODED + b"\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def unread(client: Client) -> int:
    """The data that the server has not read (over TCP: not acknowledged), in bytes of kernel memory."""
    size: int = struct.unpack("i", fcntl.ioctl(client.sock, termios.TIOCOUTQ, b"\0" * 4))[0]
    return size


def memory(pid: int, key: str = "VmRSS") -> int:
    """A process's resident memory in bytes; key: VmHWM for its maximum so far."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(key + ":")[2].split()[0]) << 10


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
