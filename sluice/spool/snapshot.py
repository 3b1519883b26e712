"""The state of the lists, as worker and operator know it: counts, ages and epochs of each stream at one moment."""

from __future__ import annotations

import contextlib
from collections.abc import Set
from typing import Any, NamedTuple, Protocol

from redis.exceptions import ResponseError

from sluice.base.connect import connect_client, exchange, required
from sluice.spool import contract
from sluice.spool.claim import Window
from sluice.spool.contract import Keys


class Partitions(Protocol):
    """Numbers that a contribution has in several lists."""

    @property
    def epochs(self) -> Set[str]:
        """Of all these lists."""

    def count_bodies(self, store: Any, stream: str) -> tuple[int, int, int]:
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


class Snapshots:
    """Takes snapshots of the lists, and knows whose they are. Every method raises RedisError."""

    def __init__(self, address: str, timeout: float = contract.UNHURRIED_SECONDS) -> None:
        self.redis = connect_client(address, timeout, redis_connect_func=contract.read_layout)

    def list_streams(self) -> set[str]:
        matches = (contract.STREAM.match(key) for key in self.redis.scan_iter(contract.PATTERN, count=1000))
        return {match[1].decode("utf-8", "replace") for match in matches if match}

    def take_snapshot(self, stream: str, replicas: int = 0) -> Snapshot:
        """The state of a stream. replicas: number of replicas of Redis that are asked to confirm it, at least."""
        keys = Keys.for_stream(stream)
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

    def read_cell(self, default: str) -> str:
        name: Any = self.redis.get(contract.CELL)
        return (name or default.encode()).decode()

    def name_cell(self, name: str, keep: bool) -> str:
        """Name the cell whose list this is, and return its name. keep: a name that it has."""
        with contextlib.suppress(ResponseError):  # a full Redis
            self.redis.set(contract.CELL, name, nx=keep)
        return self.read_cell(name)

    def name_store(self, identity: str) -> str:
        """Note which database has what is stored from now on; which one had what was stored before, or ""."""
        with contextlib.suppress(ResponseError):  # a full Redis
            before: Any = self.redis.set(contract.STORE, identity, get=True)
            return (before or b"").decode()
        return ""


def epoch_windows(epochs: list[tuple[str, int]], taken: int, ready: int) -> list[Window]:
    """The windows of the epochs of a list. epochs: each with its first number, ascending."""
    if not epochs:
        return []
    ends = [first for _, first in epochs[1:]]
    closed = [Window(name, first, end) for (name, first), end in zip(epochs, ends)]
    return [*closed, Window(*epochs[-1], taken + ready + 1, taken)]
