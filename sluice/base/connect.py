"""Connections to Redis: on this machine, on another one, or to the master that Sentinels name. None of them repeats a
command by itself: a push whose reply was lost may have been executed, and a second one would add the bodies again.

address: the path of a Unix socket, or a URL (docs/protocol/spool.md). timeout: seconds to wait for one reply.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ReadOnlyError
from redis.retry import Retry

CONNECT_SECONDS = 1.0  # to wait for a connection to another machine
VANISHED_MS = 400  # until data that another machine's kernel has not confirmed ends its connection
ASK_SECONDS = 0.2  # between two questions to a Sentinel: a failover takes about two seconds longer than this


def connection(address: str, timeout: float, **options: Any) -> Any:
    kind, arguments = parse(address, timeout)
    return kind(**arguments, **options)


def client(address: str, timeout: float, **options: Any) -> redis.Redis:
    kind, arguments = parse(address, timeout)
    return redis.Redis.from_pool(redis.ConnectionPool(kind, **arguments, **options))


def exchange(link: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands at once, and read their replies. Raises: RedisError, OSError; the connection is closed then."""
    try:
        link.send_packed_command(link.pack_commands(commands))
        return [link.read_response() for _ in commands]
    except BaseException:
        link.disconnect()
        raise


def parse(address: str, timeout: float) -> tuple[Any, dict[str, Any]]:
    """The class of the connections to an address, and its arguments. sluice/settings.py has checked the address."""
    common = {"socket_timeout": timeout, "retry": Retry(NoBackoff(), 0)}
    if "://" not in address:
        return redis.UnixDomainSocketConnection, common | {"path": address, "socket_connect_timeout": timeout}
    url = urlsplit(address)
    login, _, hosts = url.netloc.rpartition("@")
    user, _, password = login.partition(":")
    common |= {"username": unquote(user) or None, "password": unquote(password) or None, **dict(parse_qsl(url.query))}
    common["socket_connect_timeout"] = min(timeout, CONNECT_SECONDS)
    kind = TlsConnection if url.scheme.startswith("rediss") else TcpConnection
    if url.scheme.endswith("+sentinel"):
        return kind, common | {"followed": address}
    host, _, port = hosts.rpartition(":")
    return kind, common | {"host": host.strip("[]"), "port": int(port)}


@functools.cache
def sentinels(address: str, process: int) -> Sentinels:
    """Those of an address, once per process: a thread does not survive a fork, and gunicorn's --preload makes the
    connection before it.
    """
    return Sentinels(address)


class SentinelAnswer(NamedTuple):
    """What one Sentinel says; the greatest answer counts, so one of a Sentinel that is cut off changes nothing.

    epoch: of the last failover. replicas: how many it might promote: they run, and replicate the master.
    """

    epoch: int
    master: tuple[str, int]
    replicas: int


class Sentinels:
    """Knows which Redis is the master: asks each Sentinel, in a thread of its own, several times a second.

    When the master changes, connections to the previous one are closed: it may accept writes that will be lost.
    """

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        login, at, hosts = url.netloc.rpartition("@")
        self.name = url.path[1:]
        self.best: SentinelAnswer | None = None  # None: no Sentinel answers
        self.replicas = 0  # of the last answer
        self.answers: dict[int, SentinelAnswer | None] = {}
        self.reason = "none has answered yet"
        self.links: weakref.WeakSet[Following] = weakref.WeakSet()
        self.changed = threading.Condition()
        self.count = hosts.count(",") + 1
        for number, host in enumerate(hosts.split(",")):
            alone = url._replace(scheme=url.scheme.partition("+")[0], netloc=login + at + host, path="").geturl()
            link = connection(alone, CONNECT_SECONDS, protocol=2)
            threading.Thread(target=self.ask, args=(number, link), name=f"sentinel-{number}", daemon=True).start()

    def master(self) -> tuple[str, int]:
        """Host and port of the master. Raises: ConnectionError if no Sentinel names it; the first time it waits."""
        with self.changed:
            self.changed.wait_for(lambda: self.best or len(self.answers) == self.count, CONNECT_SECONDS)
            if not self.best:
                raise ConnectionError(f"no Sentinel names the master of {self.name}: {self.reason}")
            return self.best.master

    def ask(self, number: int, link: Any) -> None:
        # the address that MASTER has is that of the old master until the replicas follow the new one
        verbs = "MASTER", "GET-MASTER-ADDR-BY-NAME", "REPLICAS"
        questions = [("SENTINEL", verb, self.name) for verb in verbs]
        while True:
            answer = None
            try:
                state, (host, port), replicas = exchange(link, questions)
                candidates = sum(map(is_candidate, map(pairs, replicas)))
                answer = SentinelAnswer(int(pairs(state)[b"config-epoch"]), (host.decode(), int(port)), candidates)
            except Exception as error:  # whatever a Sentinel says, it is asked again
                self.reason = str(error) or type(error).__name__
            self.learn(number, answer)
            time.sleep(ASK_SECONDS)

    def learn(self, number: int, answer: SentinelAnswer | None) -> None:
        """Keep an answer, and close the connections to any Redis but the master."""
        with self.changed:
            self.answers[number] = answer
            self.best = max(filter(None, self.answers.values()), default=None)
            self.changed.notify_all()
            if self.best:
                for link in list(self.links):
                    link.leave_unless(self.best.master)
                self.replicas = self.best.replicas  # only now: the previous master might have fewer


def pairs(reply: list[bytes]) -> dict[bytes, bytes]:
    """The fields of a reply of RESP 2."""
    return dict(zip(reply[::2], reply[1::2]))


def is_candidate(replica: dict[bytes, bytes]) -> bool:
    """Whether Sentinel might promote a replica. An old master that has not been told yet is none."""
    return (
        not {b"s_down", b"o_down", b"disconnected"} & set(replica[b"flags"].split(b","))
        and replica[b"role-reported"] == b"slave"
        and replica[b"master-link-status"] == b"ok"
        and replica[b"slave-priority"] != b"0"
    )


def required(link: Any, replicas: int) -> int:
    """How many replicas must confirm a write on this connection: `replicas` at least, and if there are Sentinels, each
    one that they might promote. With fewer, a failover could promote one that lacks the write.
    """
    sentinels = getattr(link, "sentinels", None)
    return max(replicas, sentinels.replicas) if sentinels and replicas else replicas


class Following:
    """A connection to a Redis on another machine, which may become a replica while it lasts."""

    def __init__(self, followed: str = "", **arguments: Any) -> None:
        """followed: address of the Sentinels that name host and port ; "": these are among the arguments."""
        super().__init__(**arguments)
        self.followed = followed
        self.link: socket.socket | None = None

    @property
    def sentinels(self) -> Sentinels | None:
        return sentinels(self.followed, os.getpid()) if self.followed else None

    def _connect(self) -> socket.socket:
        followed = self.sentinels
        if followed:
            self.host, self.port = followed.master()
        self.link = super()._connect()  # type: ignore[misc]
        assert self.link
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_MS)
        if followed:
            with followed.changed:
                followed.links.add(self)
        return self.link

    def leave_unless(self, master: tuple[str, int]) -> None:
        """End a connection to another Redis, from another thread: a reply that is waited for never comes."""
        if (self.host, self.port) != master and self.link:
            with contextlib.suppress(OSError):
                # not SSLSocket.shutdown: after it, what another thread sends is not encrypted
                socket.socket.shutdown(self.link, socket.SHUT_RDWR)

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read a reply. Raises: ConnectionError from a replica that refuses a write; the next command connects anew."""
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        except ReadOnlyError as error:
            self.disconnect()  # type: ignore[attr-defined]
            raise ConnectionError(f"{self.host}:{self.port} is a replica: {error}") from error


class TcpConnection(Following, redis.Connection):
    """To a host and port."""


class TlsConnection(Following, redis.SSLConnection):
    """The same with TLS; redis-py checks the certificate and its name unless told otherwise."""
