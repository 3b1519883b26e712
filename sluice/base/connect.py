"""Connections to Redis. None of them repeats a command by itself: a push whose reply was lost may have been executed,
and a second one would add the bodies again.

address: the path of a Unix socket, or a URL of a contribution. timeout: seconds to wait for one reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluice import registry


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
    if known := registry.of_url("spools", address):
        kind, arguments = registry.load_target(known.connect)(address, timeout)
        return kind, common | arguments
    return redis.UnixDomainSocketConnection, common | {"path": address, "socket_connect_timeout": timeout}


def required(link: Any, replicas: int) -> int:
    """How many replicas must confirm a write on this connection: `replicas` at least, and each one that might be
    promoted. With fewer, a failover could promote one that lacks the write. A connection knows their number, as far as
    that is known, as its `candidates`.
    """
    return replicas and max(replicas, getattr(link, "candidates", 0))
