"""The state of one client's connection in the fast lane, and the listening socket that accepted it."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from sluice.fastlane.grammar import Heads, remote_address

READ_BYTES = 65536  # that one recv asks for

# The states of a connection. In any of them `out` may hold answers that the client has not read yet; while it does,
# nothing is read from the client.
IDLE = 0  # between two requests
RECEIVING = 1  # `pieces` is the beginning of a request, `missing` the number of bytes that it lacks
WAITING = 2  # as RECEIVING, but not read: bodies of other connections use all of MAX_ADMITTED_BYTES (loop.py)
DECLINED = 3  # `pieces` is for the slow lane, once `out` is sent; not read
CLOSING = 4  # closes once `out` is sent; not read
LEFT = 5  # closed, or in the slow lane


class Connection:
    __slots__ = (
        "admitted", "fd", "heads", "listener", "missing", "out", "peer", "pieces", "remote", "sock", "state",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, peer: Any, listener: Listener) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.remote = remote_address(peer)
        self.listener = listener
        self.heads = listener.heads
        self.state = IDLE
        self.pieces: list[bytes] = []
        self.missing = 0
        self.admitted = 0  # its part of FastLane.admitted: the bytes that it lacked when it was admitted
        self.out = bytearray()


class Listener(NamedTuple):
    """A listening socket, its name, and the cache of the heads that it received."""

    sock: Any
    name: Any
    heads: Heads

    def getsockname(self) -> Any:
        """The name, for gunicorn's handler; works after the socket is closed."""
        return self.name
