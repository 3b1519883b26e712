"""`ingest.app` on one of the servers that it supports, with a private Redis that holds its lists."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis as redis_client

from proving import harness
from proving.harness import Server, gateway
from support.runtimes import GUNICORN, simple_server

MAX_BODY = 100_000
MAX_MEMORY = 8 << 20  # half of it for the backlog of a stream


@dataclass
class Site:
    """The application on one server, with its Redis."""

    name: str
    runtime: str
    where: int | Path
    server: Server
    redis: Server
    client: redis_client.Redis

    @property
    def is_gunicorn(self) -> bool:
        return self.name in GUNICORN

    def items(self, stream: str = "votes") -> list[bytes]:
        items: Any = self.client.lrange(f"ingest:{{{stream}}}", 0, -1)
        return items

    @contextlib.contextmanager
    def without_redis(self) -> Iterator[None]:
        """Redis is unreachable; only the test's own connection stays."""
        path = self.redis.socket
        away = path.with_suffix(".away")
        path.rename(away)
        self.client.client_kill_filter(_type="normal", skipme=True)
        try:
            yield
        finally:
            away.rename(path)

    @contextlib.contextmanager
    def with_config(self, name: str, value: str) -> Iterator[None]:
        before = str(self.client.config_get(name)[name])
        self.client.config_set(name, value)
        try:
            yield
        finally:
            self.client.config_set(name, before)

    @contextlib.contextmanager
    def emptied(self) -> Iterator[None]:
        """Empty lists; afterwards, that the application raised nothing meanwhile."""
        self.client.flushall()
        before = len(self.server.said())
        yield
        said = self.server.said()[before:]
        # wsgiref.validate raises AssertionError; gunicorn 23 logs malformed chunks with a traceback
        errors = re.findall(r"^Traceback .*?\n(\w[^\n]*)", said, re.MULTILINE | re.DOTALL)
        assert all(error.startswith("gunicorn.http.errors.") for error in errors), said


@contextlib.contextmanager
def gateway_site(redis: Server, name: str, runtime: str) -> Iterator[Site]:
    """name, runtime: one of `runtimes.SERVERS`."""
    env = {
        "INGEST_SPOOL": redis.socket, "INGEST_MAX_BODY": MAX_BODY, "INGEST_MAX_MEMORY": MAX_MEMORY,
        "INGEST_ROUTES": harness.ROOT / "tests/support/own_routes.py",
    }  # fmt: skip
    client = redis_client.Redis(unix_socket_path=str(redis.socket), single_connection_client=True)
    with harness.short_tmp() as tmp:
        if name in GUNICORN:
            args = ("--threads", 4) if name == "gthread" else ()
            with gateway(tmp, redis, runtime, GUNICORN[name], env, args) as server:
                yield Site(name, runtime, server.socket, server, redis, client)
        else:
            with simple_server("ingest", name, runtime, tmp, env) as server:
                yield Site(name, runtime, server.port, server, redis, client)
    client.close()
