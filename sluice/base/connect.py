"""Connections to Redis, on this machine or on another one. None of them repeats a command by itself: a push whose reply
was lost may have been executed, and a second one would add the bodies again.

address: the path of a Unix socket, or a URL (docs/protocol/spool.md). timeout: seconds to wait for one reply.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ReadOnlyError
from redis.retry import Retry

from sluice import registry

CONNECT_SECONDS = 1.0  # to wait for a connection to another machine
VANISHED_MS = 400  # until data that another machine's kernel has not confirmed ends its connection


def connection(address: str, timeout: float, **options: Any) -> Any:
    kind, arguments = parse_address(address, timeout)
    return kind(**arguments, **options)


def connect_client(address: str, timeout: float, **options: Any) -> redis.Redis:
    kind, arguments = parse_address(address, timeout)
    return redis.Redis.from_pool(redis.ConnectionPool(kind, **arguments, **options))


def exchange(link: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands at once, and read their replies. Raises: RedisError, OSError; the connection is closed then."""
    try:
        link.send_packed_command(link.pack_commands(commands))
        return [link.read_response() for _ in commands]
    except BaseException:
        link.disconnect()
        raise


def parse_address(address: str, timeout: float) -> tuple[Any, dict[str, Any]]:
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
    if known := registry.of_url("spools", address):  # others name the Redis to connect to
        return registry.load_target(known.connect)(kind, address), common
    host, _, port = hosts.rpartition(":")
    return kind, common | {"host": host.strip("[]"), "port": int(port)}


def required(link: Any, replicas: int) -> int:
    """How many replicas must confirm a write on this connection: `replicas` at least, and each one that might be
    promoted. With fewer, a failover could promote one that lacks the write.
    """
    return replicas and max(replicas, getattr(link, "candidates", 0))


class Remote:
    """A connection to a Redis on another machine, which may become a replica while it lasts.

    candidates: how many replicas might be promoted, as far as is known.
    """

    candidates = 0

    def _connect(self) -> socket.socket:
        link: socket.socket = super()._connect()  # type: ignore[misc]
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_MS)
        return link

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read a reply. Raises: ConnectionError from a replica that refuses a write; the next command connects anew."""
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        except ReadOnlyError as error:
            self.disconnect()  # type: ignore[attr-defined]
            where = f"{self.host}:{self.port}"  # type: ignore[attr-defined]
            raise ConnectionError(f"{where} is a replica: {error}") from error


class TcpConnection(Remote, redis.Connection):
    """To a host and port."""


class TlsConnection(Remote, redis.SSLConnection):
    """The same with TLS; redis-py checks the certificate and its name unless told otherwise."""
