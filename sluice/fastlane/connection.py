"""A client connection in the fast lane, and the listening socket that it came through."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from sluice.fastlane.grammar import ParsedHead, remote

READ = 65536  # bytes one recv asks for
BODY_MOST = 1 << 20  # a longer body is read by the application itself, in the slow lane
LINGER = 2.0  # seconds that a client has to notice that it is refused while it still sends


class Connection:
    """One client connection in the fast lane."""

    __slots__ = (
        "closing", "declined", "due", "fd", "heads", "listener", "missing", "out", "peer", "pieces", "remote", "sock",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, peer: Any, listener: Listener) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.remote = remote(peer)
        self.listener = listener
        self.heads = listener.heads
        self.pieces: list[bytes] = []  # a request whose body is still coming,
        self.missing = 0  # how many bytes of it are,
        self.due = 0  # and how many of these count as coming; 0 while it waits to be let in
        self.out: bytes | bytearray = b""  # what the client has not taken yet
        self.declined: bytes | None = None  # what the slow lane gets once the answers before it are out
        self.closing = False


class Listener(NamedTuple):
    """A listening socket, its name, and the heads that came through it."""

    sock: Any
    name: Any
    heads: dict[bytes, ParsedHead]

    def getsockname(self) -> Any:
        """The name, for gunicorn's handler; also when the socket is closed already."""
        return self.name


class Unread:
    """A socket for gunicorn's handler that has the bytes before it which were read too early.

    left: what had been read after the request, once it was served and the connection may stay; None: it ends.
    """

    def __init__(self, sock: Any, data: bytes) -> None:
        self.sock = sock
        self.data = data
        self.left: bytes | None = None

    def recv(self, size: int) -> bytes:
        """What was read too early first, then the socket's own."""
        if not self.data:
            received: bytes = self.sock.recv(size)
            return received
        data, self.data = self.data[:size], self.data[size:]
        return data

    def close(self) -> None:
        """gunicorn is done with it; whether the connection is too, `left` says."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)
