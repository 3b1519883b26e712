"""The worker's side of the list: claim, read, renew, settle. Bodies leave Redis once they are in the database.

Each claim is delivered until it is settled, so an item that ends every worker would come back for ever. Deliveries and
attempts are counted in Redis, which outlives the workers; see `count_attempt`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from redis.exceptions import RedisError

from sluice.base.connect import connect_client, connection, exchange, required
from sluice.base.counters import Counts
from sluice.spool import contract
from sluice.spool.claim import Claim
from sluice.spool.contract import LEASE_SECONDS, NAME, RENEW_SECONDS, TIMEOUT_SECONDS, UNHURRIED_SECONDS, Keys
from sluice.spool.errors import Lost

# Limits of a claim
MAX_BODIES = 5_000  # stored in one transaction; SQLite takes 16 ms for it, so larger claims would save little
MAX_BYTES = 4 << 20  # a worker holds one claim per stream and decodes it body by body: this keeps it below 100 MB
ALONE = 3  # deliveries: from this one on, a claim is stored body by body
ALONE_BODIES = 64  # read at once from such a claim
ERRORS_SECONDS = 15  # for which Redis keeps the errors of a worker that ends
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False)
class Request:
    """The next claim, once the reply to its request is read. read: reads it, once. is_there: whether it has come."""

    read: Callable[[], Claim | None]
    is_there: Callable[[], bool] = lambda: False
    lock: threading.Lock = field(default_factory=threading.Lock)
    due: bool = True
    claim: Claim | None = None

    def __call__(self, wait: bool = True) -> Claim | None:
        """The claim. wait: for its reply; another thread does not, and gets None until then. Raises: RedisError."""
        if not self.lock.acquire(blocking=wait):
            return None
        try:
            if self.due and (wait or self.is_there()):
                self.due = False  # also if it raises: a reply is read once
                self.claim = self.read()
            return self.claim
        finally:
            self.lock.release()


class Outlet:
    """The worker's side of the list. Safe with threads, except where noted."""

    name = "redis"

    def __init__(self, address: str, replicas: int = 0) -> None:
        """replicas: number of replicas of Redis that must confirm a claim, at least."""
        self.replicas = replicas
        self.redis = connect_client(address, UNHURRIED_SECONDS)
        # A reply that is lost must not hold up the next renewals until the lease has ended
        self.renewing = connect_client(address, RENEW_SECONDS)
        # An idle worker polls often, and polling through the client takes four times the CPU. It connects first.
        self.polling = connection(address, UNHURRIED_SECONDS, redis_connect_func=contract.open_layout)
        # This connection's name lists the claims that the worker holds, and disappears with the process.
        self.reporting = connection(address, TIMEOUT_SECONDS)
        self.report_lock = threading.Lock()
        self.counts = Counts()
        self.reported = False  # errors, the last time

    def claim(
        self, stream: str, max_bodies: int = MAX_BODIES, max_bytes: int = MAX_BYTES, lease: float = LEASE_SECONDS
    ) -> Claim | None:
        """Claim what another worker left, or else the head of the list; None if there is neither. lease: seconds.

        Raises: RedisError, also if too few replicas confirm the claim: it can be claimed again when its lease ends.
        """
        return self.request_claim(stream, max_bodies, max_bytes, lease)()

    def request_claim(
        self, stream: str, max_bodies: int = MAX_BODIES, max_bytes: int = MAX_BYTES, lease: float = LEASE_SECONDS
    ) -> Request:
        """Send the command of `claim`."""
        keys = Keys.for_stream(stream)
        commands: list[tuple[Any, ...]] = [
            ("EVAL", contract.CLAIM, 7, *keys[:4], *keys[5:8], keys.claim, max_bodies, max_bytes, int(lease * 1000))
        ]
        pool = self.redis.connection_pool
        link: Any = pool.get_connection()
        if replicas := self.replicas and required(link, self.replicas):
            commands.append(("WAIT", replicas, contract.REPLICAS_MS))  # covers the writes of its own connection only

        def read_reply() -> Claim | None:
            try:
                reply, *confirmed = [link.read_response() for _ in commands]
            except BaseException:
                link.disconnect()
                raise
            finally:
                pool.release(link)
            if reply is None:
                return None
            if confirmed and confirmed[0] < replicas:
                raise RedisError(f"fewer than {replicas} replicas confirmed a claim")
            name, count, size, before, within, deliveries = reply
            _, first, at = name.split(b":")
            marks = [(int(seq), int(us)) for seq, us in (mark.split(b":") for mark in before + within)]
            marks = marks or [(int(first), int(at))]
            return Claim(stream, name.decode(), int(first), count, size, marks, deliveries)

        try:
            link.send_packed_command(link.pack_commands(commands))
        except BaseException:
            pool.release(link)
            raise
        return Request(read_reply, lambda: bool(link.can_read(0)))

    def read_items(self, claim: Claim) -> list[bytes]:
        """The first items in order: as many as fit into memory, mostly all. Raises: Lost."""
        count = claim.count
        if claim.size > 2 * MAX_BYTES:
            count = max(1, count * MAX_BYTES // claim.size)
        if claim.deliveries >= ALONE:
            count = min(count, ALONE_BODIES)
        items: list[Any] = self.redis.lrange(Keys.for_stream(claim.stream).claim + claim.id, 0, count - 1)
        if len(items) != count:
            raise Lost(f"{claim.stream}: claim {claim.id} is gone from Redis")
        return items

    def count_attempt(self, claim: Claim, change: int = 1) -> int:
        """Count an attempt to store the first body of a claim that is not stored, alone; -1: it has returned.

        Returns the attempts that have not returned, this one included: the others ended their worker.
        """
        return int(self.redis.hincrby(Keys.for_stream(claim.stream).deliveries, f"{claim.id} alone", change))

    def renew(self, claim: Claim, lease: float = LEASE_SECONDS) -> bool:
        """Make the lease end in `lease` seconds; False if the claim no longer exists."""
        keys = Keys.for_stream(claim.stream)
        return bool(self.renewing.eval(contract.RENEW, 1, keys.claims, claim.id, int(lease * 1000)))

    def settle(self, claim: Claim, end: int | None = None) -> Claim | None:
        """Delete the bodies of a claim up to the one before `end`, which are in the store, and the marks that are no
        longer needed. The rest, as a claim of its own; None if there is none, or if another worker has settled it.
        """
        keys, rest = Keys.for_stream(claim.stream), claim.rest_from(end or claim.end)
        arguments: list[str | int] = [rest.id, rest.first - claim.first] if rest else []
        where = keys.taken, keys.claims, keys.marks, keys.deliveries
        settled = self.redis.eval(contract.SETTLE, 4, *where, keys.claim, claim.id, *arguments)
        return rest if settled else None

    def has_work(self, streams: list[str]) -> list[bool]:
        """Whether each stream has READY bodies or open claims. Not thread-safe. Raises: RedisError, NewerLayout."""
        keys = [Keys.for_stream(stream) for stream in streams]
        return [bool(n) for n in exchange(self.polling, [("EXISTS", each.ready, each.claims) for each in keys])]

    def has_more(self, stream: str) -> bool:
        """Whether bodies are left after a claim that is smaller than asked for: it has emptied the list."""
        return False

    def is_empty(self) -> bool:
        """Whether no worker has work, once `has_work` says that this one has none: it knows the work of all."""
        return True

    def close(self) -> None:
        """Nothing: the connections end with the process."""

    def report_state(self, held: Iterable[Claim] = (), errors: Mapping[str, str] = NONE) -> None:
        """Report to Redis that this worker is alive, which claims it holds, and its counts. Raises: RedisError.

        errors: stream -> why its bodies cannot be stored.
        """
        name = ":".join([NAME, "worker", str(os.getpid()), *(f"{quote(claim.stream)}@{claim.first}" for claim in held)])
        with self.report_lock:
            delta = self.counts.delta()
            counts = [contract.count_command(delta)] if delta else []
            exchange(self.reporting, [("CLIENT", "SETNAME", name), *counts])
            self.counts.confirm(delta)
            if errors or self.reported:
                key = f"{contract.ERRORS}{os.getpid()}"
                exchange(self.reporting, [("SET", key, json.dumps(dict(errors)), "EX", ERRORS_SECONDS)])
                self.reported = bool(errors)
