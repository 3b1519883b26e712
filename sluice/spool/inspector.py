"""The operator's side of the list: what lies where, and purge and requeue."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import unquote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluice.spool.contract import COUNTS, NAME, PATTERN, PEEK, PURGE, RENEW, SNAPSHOT, STREAM, TIMEOUT, Keys

PEEK_BYTES = 4 << 20  # of bodies that one look returns


class Snapshot(NamedTuple):
    """What lies in Redis of a stream.

    claimed: bodies ever claimed. ready: READY bodies. claims: the open claims, id -> bodies.
    waiting: claim id, or "" for the READY ones -> seconds since the first of these bodies arrived, where a mark tells.
    size: bytes of memory that all of these bodies take, roughly. purged: bodies that an operator threw away.
    """

    claimed: int
    ready: int
    claims: dict[str, int]
    waiting: dict[str, float]
    size: int
    purged: int


class Process(NamedTuple):
    """A process that Redis knows: what it is (gateway or worker), its id, and of a worker the claims that it holds."""

    role: str
    pid: int
    claims: list[tuple[str, int]]  # (stream, first sequence number)


class Inspector:
    """Reads what is in Redis, and discards or gives back bodies for the operator. Raises: RedisError."""

    def __init__(self, socket: str, timeout: float = 30) -> None:
        """socket: the path of Redis's Unix socket. timeout: seconds to wait for one reply."""
        self.redis = redis.Redis(
            unix_socket_path=socket,
            socket_timeout=timeout,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        )

    def snapshot(self, stream: str) -> Snapshot:
        """What lies where at one moment."""
        keys = Keys.of(stream)
        now, claimed, ready, since, claims, size, purged = self.redis.eval(SNAPSHOT, 5, *keys[:5], keys.claim)
        waiting = {name.decode(): at for name, _, at in claims} | ({"": since} if ready else {})
        return Snapshot(
            claimed,
            ready,
            {name.decode(): count for name, count, _ in claims},
            {name: max(0, int(now) - int(at)) / 1e6 for name, at in waiting.items() if at},
            size,
            purged,
        )

    def peek(self, stream: str, first: int = 0, most: int = 100) -> tuple[int, list[tuple[int, str, bytes]]]:
        """Look at bodies without taking them: the last sequence number there is, and (sequence number, state, body) of
        those from `first` on that are claimed or ready. A few if they are long.
        """
        keys = Keys.of(stream)
        last, found = self.redis.eval(PEEK, 3, *keys[:3], keys.claim, first, most, PEEK_BYTES)
        return last, [(seq, state.decode(), body) for seq, state, body in found]

    def purge(self, stream: str, last: int) -> int:
        """Throw READY bodies away, up to a sequence number; how many."""
        return self.redis.eval(PURGE, 5, *Keys.of(stream)[:5], last)

    def requeue(self, stream: str) -> int:
        """End the leases of all open claims, as if their workers were dead; how many. Raises: RedisError."""
        keys = Keys.of(stream)
        claims: Any = self.redis.zrange(keys.claims, 0, -1)
        return sum(bool(self.redis.eval(RENEW, 1, keys.claims, claim, 0)) for claim in claims)

    def processes(self) -> list[Process]:
        """The gateway and worker processes that are connected."""
        found = []
        for client in self.redis.client_list():
            name, *rest = client["name"].split(":")
            if name == NAME and len(rest) >= 2:
                claims = [claim.rpartition("@") for claim in rest[2:]]
                found.append(Process(rest[0], int(rest[1]), [(unquote(stream), int(at)) for stream, _, at in claims]))
        return sorted(found)

    def counted(self) -> dict[str, int]:
        """All that the processes have counted, by field."""
        found: Any = self.redis.hgetall(COUNTS)
        return {field.decode(): int(n) for field, n in found.items()}

    def memory(self) -> tuple[int, int]:
        """Bytes that Redis uses, and that it may use (0: no bound)."""
        info = self.redis.info("memory")
        return info["used_memory"], info["maxmemory"]

    def streams(self) -> set[str]:
        """All streams of which there is anything in Redis."""
        found = (STREAM.match(key) for key in self.redis.scan_iter(PATTERN, count=1000))
        return {match[1].decode("utf-8", "replace") for match in found if match}
