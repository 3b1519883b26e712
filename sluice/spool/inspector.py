"""The operator's side of the list between gateway and worker: snapshot, peek, purge, release."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Set
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from redis.exceptions import ResponseError

from sluice.base.connect import connect_client, exchange, required
from sluice.spool import contract
from sluice.spool.claim import Claim, Window
from sluice.spool.contract import Keys

PEEK_BYTES = 4 << 20  # of items that one peek returns
FOLLOW_SECONDS = 0.005
Seen = tuple[Any, str, bytes]  # sequence number, state, item


class Partitions(Protocol):
    """Numbers that a contribution has in several lists."""

    @property
    def epochs(self) -> Set[str]:
        """Of all these lists."""

    def count(self, store: Any, stream: str) -> tuple[int, int, int]:
        """How many bodies the store has, how many of their numbers are not settled, and how many bodies have the number
        of another one, which the list has lost.
        """


class Snapshot(NamedTuple):
    """The state of a stream in Redis at one moment.

    taken: bodies ever claimed. ready: READY bodies. claims: the open claims, id -> number of bodies.
    ages: claim id, or "" for the READY bodies -> seconds since the first of these bodies arrived, if a mark dates it.
    size: approximate bytes of memory of all these bodies, if known. purged: bodies ever purged.
    history: which epoch has which of the numbers from 1 to taken + ready, ascending.
    confirmed: whether replicas have all of this, if they were asked, so that a failover does not lose it.
    warning: what endangers the bodies, with what to do; "" if nothing does.
    partitions: how the numbers are counted that are not those of one list; None: they are.
    """

    taken: int
    ready: int
    claims: dict[str, int] = {}
    ages: dict[str, float] = {}
    size: int | None = 0
    purged: int = 0
    history: list[Window] = []
    confirmed: bool = True
    warning: str = ""
    partitions: Partitions | None = None


class Process(NamedTuple):
    """A process that is connected to Redis. role: gateway or worker. claims: those that a worker holds.

    errors: stream -> why the worker cannot store its bodies.
    """

    role: str
    pid: int
    claims: list[tuple[str, int]]  # (stream, first sequence number)
    errors: dict[str, str] = {}


class Inspector:
    """Reads the state of Redis, purges, and releases claims. Every method raises RedisError."""

    def __init__(self, address: str, timeout: float = contract.UNHURRIED_SECONDS) -> None:
        self.redis = connect_client(address, timeout, redis_connect_func=contract.read_layout)

    def require(self, verb: str) -> None:
        """Whether there is such a verb for this spool. Raises: NoSuchVerb."""

    def snapshot(self, stream: str, replicas: int = 0) -> Snapshot:
        """The state of a stream. replicas: number of replicas of Redis that are asked to confirm it, at least."""
        keys = Keys.of(stream)
        pool = self.redis.connection_pool
        link: Any = pool.get_connection()
        commands: list[tuple[Any, ...]] = [("EVAL", contract.SNAPSHOT, 6, *keys[:5], keys.history, keys.claim)]
        number = required(link, replicas)
        if number:  # on the same connection: another one may lead to a replica that was promoted meanwhile
            commands += [("EVAL", contract.PROBE, 1, contract.PROBED), ("WAIT", number, contract.REPLICAS_MS)]
        try:
            reply, *confirmed = exchange(link, commands)
        finally:
            pool.release(link)
        now, taken, ready, since, claims, size, purged, epochs = reply
        arrived = {name.decode(): at for name, _, at in claims} | ({"": since} if ready else {})
        return Snapshot(
            taken,
            ready,
            {name.decode(): count for name, count, _ in claims},
            {name: max(0, int(now) - int(at)) / 1e6 for name, at in arrived.items() if at},
            size,
            purged,
            epoch_windows(
                [(name.decode(), int(first)) for name, first in zip(epochs[::2], epochs[1::2])], taken, ready
            ),
            confirmed=not confirmed or confirmed[-1] >= number,
        )

    def peek(self, stream: str, first: int = 0, limit: int = 100) -> tuple[int, list[tuple[int, str, bytes]]]:
        """Read items without claiming them: the last sequence number of the stream, and (sequence number, state, item)
        of READY and CLAIMED ones from `first` on. At most `limit` of them, and no more after PEEK_BYTES.
        """
        keys = Keys.of(stream)
        last, items = self.redis.eval(contract.PEEK, 3, *keys[:3], keys.claim, first, limit, PEEK_BYTES)
        return last, [(seq, state.decode(), item) for seq, state, item in items]

    def waiting(self, stream: str, first: int, limit: int) -> Iterator[Seen]:
        """READY and CLAIMED items from a sequence number on, at most `limit`."""
        while items := self.peek(stream, first, limit)[1]:
            yield from items
            limit, first = limit - len(items), items[-1][0] + 1

    def follow(self, stream: str) -> tuple[str, Iterator[Seen | int]]:
        """Where it starts, and from there the items as they arrive, for ever; a number: so many were gone already.

        The list is read 200 times a second: a worker stores a single body in about as long.
        """
        start = self.peek(stream, limit=0)[0] + 1

        def arrivals(following: int) -> Iterator[Seen | int]:
            while True:
                last, items = self.peek(stream, following)
                for item in items:
                    if item[0] > following:
                        yield item[0] - following
                    yield item
                    following = item[0] + 1
                if not items:
                    if last >= following:
                        yield last + 1 - following
                    following = last + 1  # a lower number: Redis was emptied, or lost the end of its log
                    time.sleep(FOLLOW_SECONDS)

        return f"sequence number {start}", arrivals(start)

    def claimed(self, stream: str, seq: str | None = None) -> Iterator[tuple[Claim, int, bytes]]:
        """CLAIMED bodies, or the one with this sequence number: a claim of each alone, its arrival, its item."""
        for id, count in self.snapshot(stream).claims.items():
            claim = Claim.of(stream, id, count)
            for n, state, item in self.waiting(stream, claim.first, claim.count):
                if state == "claimed" and claim.first <= n < claim.end and seq in (None, str(n)):
                    yield claim.part(n, n + 1), self.received(stream, n), item

    def received(self, stream: str, seq: int) -> int:
        """When a body arrived, or was claimed if no mark dates it: microseconds since 1970."""
        at: Any = self.redis.zrevrangebyscore(Keys.of(stream).marks, seq, "-inf", start=0, num=1)
        return int(at[0].split(b":")[1]) if at else int(time.time() * 1e6)

    def purge(self, stream: str, seen: Snapshot) -> int:
        """Discard the READY bodies that a snapshot has counted; returns their number."""
        keys, epoch = Keys.of(stream), seen.history[-1].epoch if seen.history else ""
        return int(self.redis.eval(contract.PURGE, 6, *keys[:5], keys.history, seen.taken + seen.ready, epoch))

    def write_off(self, stream: str, bodies: int) -> None:
        """Count bodies that are neither here nor in the database as purged."""
        self.redis.incrby(Keys.of(stream).purged, bodies)

    def release(self, stream: str) -> int:
        """End the leases of all open claims, so that they are claimed again; returns their number."""
        keys = Keys.of(stream)
        claims: Any = self.redis.zrange(keys.claims, 0, -1)
        return sum(bool(self.redis.eval(contract.RENEW, 1, keys.claims, claim, 0)) for claim in claims)

    def processes(self) -> list[Process]:
        """The gateway and worker processes that are connected to Redis, by the names of their connections."""
        processes = []
        for connected in self.redis.client_list():
            name, *rest = connected["name"].split(":")
            if name == contract.NAME and len(rest) >= 2:
                role, pid, *held = rest
                claims = [(unquote(stream), int(at)) for stream, _, at in (claim.rpartition("@") for claim in held)]
                errors: Any = self.redis.get(contract.ERRORS + pid) if role == "worker" else None
                processes.append(Process(role, int(pid), claims, json.loads(errors or "{}")))
        return sorted(processes, key=lambda process: process[:3])

    def counters(self) -> dict[str, int]:
        counts: Any = self.redis.hgetall(contract.COUNTS)
        return {field.decode(): int(n) for field, n in counts.items()}

    def cell(self, default: str) -> str:
        name: Any = self.redis.get(contract.CELL)
        return (name or default.encode()).decode()

    def name_cell(self, name: str, keep: bool) -> str:
        """Name the cell whose list this is, and return its name. keep: a name that it has."""
        with contextlib.suppress(ResponseError):  # a full Redis
            self.redis.set(contract.CELL, name, nx=keep)
        return self.cell(name)

    def name_store(self, identity: str) -> str:
        """Note which database has what is stored from now on; which one had what was stored before, or ""."""
        with contextlib.suppress(ResponseError):  # a full Redis
            before: Any = self.redis.set(contract.STORE, identity, get=True)
            return (before or b"").decode()
        return ""

    def memory(self) -> tuple[int, int]:
        """Bytes that Redis uses, and its limit (0: none)."""
        info = self.redis.info("memory")
        return info["used_memory"], info["maxmemory"]

    def streams(self) -> set[str]:
        matches = (contract.STREAM.match(key) for key in self.redis.scan_iter(contract.PATTERN, count=1000))
        return {match[1].decode("utf-8", "replace") for match in matches if match}


def epoch_windows(epochs: list[tuple[str, int]], taken: int, ready: int) -> list[Window]:
    """The windows of the epochs of a list. epochs: each with its first number, ascending."""
    if not epochs:
        return []
    ends = [first for _, first in epochs[1:]]
    closed = [Window(name, first, end) for (name, first), end in zip(epochs, ends)]
    return [*closed, Window(*epochs[-1], taken + ready + 1, taken)]
