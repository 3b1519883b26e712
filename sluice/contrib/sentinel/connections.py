"""Connections to Redis on another machine: redis://, and with TLS rediss://."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.exceptions import ConnectionError, ReadOnlyError

CONNECT_SECONDS = 1.0  # to wait for a connection
VANISHED_MS = 400  # until data that the other machine's kernel has not confirmed ends its connection


def connect_host(address: str, timeout: float) -> tuple[Any, dict[str, Any]]:
    """The class of the connections to the Redis of an address, and their arguments."""
    kind, arguments = parse_login(address, timeout)
    host, _, port = urlsplit(address).netloc.rpartition("@")[2].rpartition(":")
    return kind, arguments | {"host": host.strip("[]"), "port": int(port)}


def parse_login(address: str, timeout: float) -> tuple[Any, dict[str, Any]]:
    """The same without host and port."""
    url = urlsplit(address)
    user, _, password = url.netloc.rpartition("@")[0].partition(":")
    arguments: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
    arguments |= {"socket_connect_timeout": min(timeout, CONNECT_SECONDS), **dict(parse_qsl(url.query))}
    return TlsConnection if url.scheme.startswith("rediss") else TcpConnection, arguments


class Remote:
    """A connection to a Redis on another machine, which may become a replica while it lasts."""

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
