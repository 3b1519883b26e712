"""Connections to a Redis on this machine. None of them repeats a command by itself: a push whose reply was lost may
have been executed, and a second one would add the bodies again.

path: Redis's Unix socket. timeout: seconds to wait for one reply, and for the connection.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def connection(path: str, timeout: float, **options: Any) -> redis.UnixDomainSocketConnection:
    """One connection, for a caller that packs its own commands."""
    return redis.UnixDomainSocketConnection(path=path, **settings(timeout), **options)  # type: ignore[abstract]


def client(path: str, timeout: float) -> redis.Redis:
    """A client with a pool of connections."""
    return redis.Redis(unix_socket_path=path, **settings(timeout))


def settings(timeout: float) -> dict[str, Any]:
    """What both have in common."""
    return {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": Retry(NoBackoff(), 0)}
