"""Sockets between the processes and the in-process Redis: requests and replies take time, and may be lost.

The clients are the real ones, redis-py and `sluice.contrib.views.link`, down to `sendall` and `recv`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from types import SimpleNamespace
from typing import Any
from unittest import mock

import redis._parsers.hiredis
import redis.connection
import redis.utils

from proving.histories.clock import Process, Task, World
from proving.histories.scripts import ScriptError
from proving.histories.server import Server
from sluice.contrib.views import link as views_link

REPLY_SECONDS = 0.0004  # that a request, and a reply, take on average
# What may happen to one exchange: the request is not executed, or it is and the reply does not come, or it is executed
# when its sender waits no longer. The connection is reset, or nothing comes until the sender's patience ends
UNSENT, UNANSWERED, LATE = "unsent", "unanswered", "late"
# not faults' places, and not worth a line: what the client says of itself
HANDSHAKE = {b"HELLO", b"CLIENT"}


class Socket:
    """A client's end of a connection."""

    def __init__(self, net: Net) -> None:
        self.net, self.world = net, net.world
        self.process: Process = net.world.process
        self.server: Server | None = None
        self.id, self.name, self.protocol = 0, b"", 2
        self.multi: list[list[bytes]] | None = None
        self.watched: dict[bytes, int] = {}
        self.patience: float | None = None
        self.data = b""  # received
        self.broken: OSError | None = None
        self.waiting: Task | None = None

    # what redis-py and the views' link call

    def setsockopt(self, *_: Any) -> None: ...

    def settimeout(self, seconds: float | None) -> None:
        self.patience = seconds

    def gettimeout(self) -> float | None:
        return self.patience

    def connect(self, path: str) -> None:
        self.process.step("connect")
        server = self.net.servers[path]
        if not server.up:
            raise ConnectionRefusedError(111, "Connection refused")
        self.net.count += 1
        self.id, self.server = self.net.count, server
        server.links[self.id] = self
        self.process.sockets.append(self)

    def shutdown(self, how: int) -> None: ...

    def close(self) -> None:
        if self.server:
            self.server.links.pop(self.id, None)
        if self in self.process.sockets:
            self.process.sockets.remove(self)
        self.server = None

    def sendall(self, data: bytes) -> None:
        requests = parsed(data)
        quiet = all(words[0].upper() in HANDSHAKE for words in requests)
        fault = None if quiet else self.process.step("redis")
        if self.broken or not self.server:
            raise self.broken or BrokenPipeError(32, "Broken pipe")
        if not self.process.alive:
            return
        kind, reset, delay = fault or ("", False, 0.0)
        took = self.process.random.expovariate(1 / REPLY_SECONDS)
        if not quiet and (fault or (requests[0][0] != b"EXISTS" and self.process.name not in ("observer", "checker"))):
            self.world.say(f"> {shown(requests)}" + (f"  [{kind}{', reset' if reset else ''}]" if kind else ""))
        if kind != UNSENT:
            server, run = self.server, self.server.runs
            lost = kind in (UNANSWERED, LATE)
            self.world.later(took + delay, lambda: self.execute(server, run, requests, lost))
        if kind and reset:
            self.world.later(took + min(delay, 0.01) + 0.001, self.reset)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.data and not self.broken:
            self.waiting = self.world.task
            self.world.wait(self.patience)
            self.waiting = None
        if self.data:
            data, self.data = self.data[:size], self.data[size:]
            return data
        if self.broken:
            raise self.broken
        if not self.server:
            return b""
        raise socket.timeout("timed out")

    def recv_into(self, buffer: bytearray) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    # what happens at the other end

    def execute(self, server: Server, run: int, requests: list[list[bytes]], lost: bool) -> None:
        if not server.up or server.runs != run:
            return
        if server.stalled > self.world.seconds:
            wait = server.stalled - self.world.seconds
            self.world.later(wait, lambda: self.execute(server, run, requests, lost))
            return
        replies = [server.execute(self, words) for words in requests]
        for words, reply in zip(requests, replies):
            if words[0] == b"EVAL" and NAMES.get(words[1]) == "CLAIM":
                self.net.claimed(self, words[3].decode(), reply)
        if not lost:
            took = self.process.random.expovariate(1 / REPLY_SECONDS)
            self.world.later(
                took, lambda: self.arrive(b"".join(packed(reply, self.protocol) for reply in replies), server, run)
            )

    def arrive(self, data: bytes, server: Server, run: int) -> None:
        if self.server is server and server.runs == run and not self.broken:
            self.data += data
            self.wake()

    def reset(self) -> None:
        """The connection ends."""
        if self.server:
            self.server.links.pop(self.id, None)
        self.broken = self.broken or ConnectionResetError(104, "Connection reset by peer")
        self.wake()

    def wake(self) -> None:
        if self.waiting and not self.waiting.dead:
            self.world.wake(self.waiting)


class Net:
    """The sockets. servers: path -> the Redis that listens there. claimed: is told of the reply to each claim."""

    claimed: Callable[[Socket, str, Any], None]

    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: dict[str, Server] = {}
        self.count = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Put these sockets in the place of the system's, for the clients of Redis."""
        sockets = SimpleNamespace(**{name: getattr(socket, name) for name in dir(socket) if not name.startswith("__")})
        sockets.socket = lambda *_: Socket(self)
        parser = redis._parsers.hiredis
        with contextlib.ExitStack() as stack:
            for module in redis.connection, views_link:
                stack.enter_context(mock.patch.object(module, "socket", sockets))
            stack.enter_context(
                mock.patch.object(parser, "_socket_can_read", lambda sock, _: bool(sock.data or sock.broken))
            )
            # each new connection asks for redis-py's version, which takes a millisecond
            stack.enter_context(mock.patch.object(redis.utils.metadata, "version", cache(metadata.version)))
            stack.enter_context(mock.patch.object(parser, "_socket_is_closed", lambda sock: bool(sock.broken)))
            yield


def parsed(data: bytes) -> list[list[bytes]]:
    """The commands of a request."""
    requests, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        count, at = int(data[at + 1 : end]), end + 2
        words = []
        for _ in range(count):
            end = data.index(b"\r\n", at)
            size, at = int(data[at + 1 : end]), end + 2
            words.append(bytes(data[at : at + size]))
            at += size + 2
        requests.append(words)
    return requests


def packed(reply: Any, protocol: int) -> bytes:
    """A reply in RESP 2 or 3."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, ScriptError):
        return b"-%b\r\n" % str(reply).encode()
    if isinstance(reply, str):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, dict):
        words = [word for pair in reply.items() for word in pair]
        head = b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % len(words)
        return head + b"".join(packed(word, protocol) for word in words)
    return b"*%d\r\n" % len(reply) + b"".join(packed(each, protocol) for each in reply)


NAMES: dict[bytes, str] = {}  # text of a script -> its name in the contract


def shown(requests: list[list[bytes]]) -> str:
    """Requests in a line of a history."""
    texts = []
    for words in requests:
        name, *rest = words
        if name.upper() == b"EVAL":
            head, keys = NAMES.get(rest[0], "script"), int(rest[1])
            texts.append(" ".join([head, *(short(word) for word in [rest[2], *rest[2 + keys :]])]))
        else:
            texts.append(" ".join([name.decode(), *map(short, rest)]))
    return "; ".join(texts)[:300]


def short(word: bytes) -> str:
    text = word.decode("utf-8", "backslashreplace")
    return text.replace("\r\n", "|") if len(text) <= 60 else text[:28].replace("\r\n", "|") + "…" + text[-28:]
