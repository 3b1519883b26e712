"""The worker's side of the list: claim, renew, settle."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from sluice.spool.contract import CLAIM, LEASE, NAME, RENEW, REPLICAS_MS, SETTLE, TIMEOUT, Claim, Keys, count
from sluice.spool.counters import Counts

CLAIM_BODIES = 5_000  # stored in one transaction; SQLite takes 16 ms for it, so larger claims would save little
CLAIM_BYTES = 4 << 20  # a worker holds one claim per stream and decodes it body by body: this keeps it below 100 MB


class Lost(Exception):
    """A claim's bodies are not what they were: somebody else settled it, or Redis lost it. Nothing may be stored."""


class Outlet:
    """The worker's side: claim, renew, settle. Safe with threads."""

    def __init__(
        self, socket: str, patience: float = 30, replicas: int = 0, most: int = CLAIM_BODIES, size: int = CLAIM_BYTES
    ) -> None:
        """socket: the path of Redis's Unix socket. patience: seconds that it may take for one reply.

        replicas: of Redis that must know of a claim before it is given away.
        most: bodies of a claim. size: bytes after which no more bodies are added.
        """
        self.most, self.size = most, size
        # A claim whose reply was lost is claimed again when its lease ends, so no retry is needed here either.
        self.redis = redis.Redis(
            unix_socket_path=socket,
            socket_timeout=patience,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        )
        # An idle worker looks often. Through the client a look costs four times the CPU.
        self.replicas = replicas
        self.glance = redis.UnixDomainSocketConnection(  # type: ignore[abstract]
            path=socket, socket_timeout=patience, socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0)
        )
        # What a worker says of itself, also while it stores. The name of a connection is gone with the process.
        self.desk = redis.UnixDomainSocketConnection(  # type: ignore[abstract]
            path=socket, socket_timeout=patience, socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0)
        )
        self.counts = Counts()
        self.telling = threading.Lock()

    def claim(self, stream: str, most: int = 0, size: int = 0, lease: float = LEASE) -> Claim | None:
        """Claim an expired batch or else the head of the list; None if there is nothing.

        most, size: as above unless given. lease: seconds.
        Raises: RedisError, also where too few replicas know of the claim: it comes again when its lease ends.
        """
        return self.claiming(stream, most, size, lease)()

    def claiming(self, stream: str, most: int = 0, size: int = 0, lease: float = LEASE) -> Callable[[], Claim | None]:
        """Ask for a claim without waiting for it: what this returns waits, once. Arguments, errors: as `claim`."""
        keys = Keys.of(stream)
        most, size = most or self.most, size or self.size
        asked: list[tuple[Any, ...]] = [("EVAL", CLAIM, 4, *keys[:4], keys.claim, most, size, int(lease * 1000))]
        if self.replicas:
            asked.append(("WAIT", self.replicas, REPLICAS_MS))  # of what its own connection wrote
        pool = self.redis.connection_pool
        connection = pool.get_connection()

        def wait() -> Claim | None:
            try:
                taken, *known = [connection.read_response() for _ in asked]
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)
            if taken is None:
                return None
            if known and known[0] < self.replicas:
                raise RedisError(f"fewer than {self.replicas} replicas know of a claim")
            name, count, size, before, within = taken
            _, first, at = name.split(b":")
            marks = [(int(seq), int(us)) for seq, us in (mark.split(b":") for mark in before + within)]
            return Claim(stream, name.decode(), int(first), count, size, marks or [(int(first), int(at))])

        try:
            connection.send_packed_command(connection.pack_commands(asked))
        except BaseException:
            pool.release(connection)
            raise
        return wait

    def bodies(self, claim: Claim) -> Iterator[bytes]:
        """The bodies of a claim, in order, read in pieces that fit into memory.

        Raises: Lost if they are not all there.
        """
        key = Keys.of(claim.stream).claim + claim.id
        step = claim.count if claim.size <= self.size else 8
        for start in range(0, claim.count, step):
            bodies: list = self.redis.lrange(key, start, start + step - 1)
            if len(bodies) != min(step, claim.count - start):
                raise Lost(f"{claim.stream}: claim {claim.id} is gone from Redis")
            yield from bodies

    def renew(self, claim: Claim, lease: float = LEASE) -> bool:
        """Move the end of the lease; False if the claim is no longer there."""
        keys = Keys.of(claim.stream)
        return bool(self.redis.eval(RENEW, 1, keys.claims, claim.id, int(lease * 1000)))

    def settle(self, claim: Claim) -> None:
        """Forget a claim whose bodies are in the sink, and the marks that nothing needs any more."""
        keys = Keys.of(claim.stream)
        self.redis.eval(SETTLE, 3, keys.claimed, keys.claims, keys.marks, keys.claim, claim.id)

    def waiting(self, streams: list[str]) -> list[bool]:
        """For each stream whether there is anything to claim, or will be when a lease ends. For one thread."""
        names = [(keys.ready, keys.claims) for keys in map(Keys.of, streams)]
        try:
            self.glance.send_packed_command(self.glance.pack_commands([("EXISTS", *pair) for pair in names]))
            return [bool(self.glance.read_response()) for _ in names]
        except BaseException:
            self.glance.disconnect()
            raise

    def report(self, held: Iterable[Claim] = ()) -> None:
        """Tell Redis that this worker lives, what it holds and what it has counted.

        Raises: RedisError.
        """
        name = ":".join([NAME, "worker", str(os.getpid()), *(f"{quote(claim.stream)}@{claim.first}" for claim in held)])
        with self.telling:
            delta = self.counts.delta()
            commands = [("CLIENT", "SETNAME", name), *([count(delta)] if delta else [])]
            try:
                self.desk.send_packed_command(self.desk.pack_commands(commands))
                for _ in commands:
                    self.desk.read_response()
                self.counts.confirm(delta)
            except BaseException:
                self.desk.disconnect()
                raise
