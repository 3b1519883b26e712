"""Refresh ahead: a value that is expensive to compute is computed again before it expires, by one process at a time.

A failure belongs to its key: the keys behind it are counted at once, and no error ends a thread. Each tally has threads
of its own, so one whose counts take long delays itself only.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import redis
from redis.exceptions import RedisError

from sluice.base import connect
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream
from sluice.views import contract
from sluice.views.kinds.counted import Counted
from sluice.views.kinds.view import View
from sluice.views.rows.registry import open_row_source
from sluice.views.rows.source import RowSource

log = logging.getLogger("sluice.refresh")

KNOWN = (RedisError, Unavailable)  # their text says it all

LOCK_SECONDS = 3.0  # after which another process computes if the holder of the lock was killed; at most half a period
FAILED_SECONDS = 1.0  # before a computation that failed is tried again
UNKNOWN_SECONDS = 1.0  # for which an empty value is kept
PATIENCE_SECONDS = 10.0  # that Redis may take for one reply
FAILING_KEYS = 1_000  # that are remembered, to log when one is counted again
INDEX_SECONDS = 3600.0  # between two looks whether a tally has its index: it may have been dropped
MEMORY_SHARE = 0.125  # of the views' Redis: the counts of all tallies; those asked for longest ago go first
KEY_BYTES = 256  # about what a count takes in addition to its key and value
PERIOD_SHARE = 0.1  # of a period: a tally gets an index if its counts take longer than that


def once_a_period(client: redis.Redis, key: str, period: float, compute: Callable[[], bytes]) -> None:
    """Compute a value and keep it for two periods, unless it is younger than one, or another process computes it.

    - A holder of the lock that is killed: after LOCK_SECONDS another process computes.
    - A computation longer than a period: the value expires; it still runs once at a time.
    - `compute` raises: the old value is kept while it lives; the next try is a second later.
    - An empty value is kept for a second.

    period: seconds. Raises: RedisError, and any exception of `compute`.
    """
    lock, token = contract.lock(key), secrets.token_hex(16)
    hold = min(LOCK_SECONDS, period / 2)
    if is_fresh(client, key, period):
        return
    if not client.set(lock, token, nx=True, px=int(hold * 1000)):
        if client.pttl(lock) > 1000 * max(hold, FAILED_SECONDS):
            client.pexpire(lock, int(hold * 1000))  # the clock of Redis was ahead when the lock was taken
        return
    if is_fresh(client, key, period):  # it may have been computed between the two calls
        client.eval(contract.RELEASE, 1, lock, token)
        return
    try:
        with held(client, lock, token, hold):
            value = compute()
    except Exception:
        client.eval(contract.EXTEND, 1, lock, token, int(FAILED_SECONDS * 1000))
        raise
    lifetime = 2 * period if value else UNKNOWN_SECONDS
    client.eval(contract.KEEP, 2, lock, key, token, value, int(lifetime * 1000))


def is_fresh(client: redis.Redis, key: str, period: float) -> bool:
    """Whether the value of a key needs no refresh yet.

    A value that seems to live for longer than it was given has seen the clock of Redis step back: it needs one.
    """
    pipeline = client.pipeline(transaction=False)
    pipeline.strlen(key)
    pipeline.pttl(key)
    size, left = pipeline.execute()
    return young(left, period) if size else 0 <= left <= UNKNOWN_SECONDS * 1000


def young(left: int, period: float) -> bool:
    """Whether a value that lives for so many milliseconds yet is younger than a period."""
    return period < left / 1000 <= 2 * period


@contextlib.contextmanager
def held(client: redis.Redis, lock: str, token: str, hold: float) -> Iterator[None]:
    done = threading.Event()

    def renew() -> None:
        while not done.wait(hold / 3):
            with contextlib.suppress(Exception):
                client.eval(contract.EXTEND, 1, lock, token, int(hold * 1000))

    thread = threading.Thread(target=renew, name="renew", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Refresher:
    """Computes tallies: those that a client waits for at once, those that clients asked for lately once a period."""

    def __init__(self, socket: str, url: str, views: Mapping[str, View], streams: dict[str, Stream]) -> None:
        """socket: of the views' Redis. url: of the store."""
        self.client = connect.client(socket, PATIENCE_SECONDS)
        self.url, self.streams = url, streams
        self.tallies = {path: view for path, view in views.items() if isinstance(view, Counted)}
        self.every = min([1.0, *(view.period / 4 for view in self.tallies.values())])  # seconds between two scans
        self.stopping = threading.Event()
        self.reason = ""
        self.failing: set[tuple[str, str]] = set()  # path and key
        self.spent: dict[Counted, tuple[float, float]] = {}  # since when (monotonic), and the seconds of its counts
        self.slow: queue.SimpleQueue[Counted] = queue.SimpleQueue()  # tallies whose counts take long

    def start(self) -> None:
        """Start two threads for each tally: a client that waits for a first count does not wait for a count ahead."""
        for path in self.tallies:
            for ahead in False, True:
                name = f"refresh {path}"
                threading.Thread(target=self.run, args=(path, ahead), name=name, daemon=True).start()
        if self.tallies:
            threading.Thread(target=self.index, name="index", daemon=True).start()

    def stop(self) -> None:
        """Stop the threads; one that computes is not waited for."""
        self.stopping.set()

    def run(self, path: str, ahead: bool) -> None:
        """Count what clients wait for and, if `ahead`, what will expire."""
        source = open_row_source(self.url, self.streams)
        asked, due = contract.asked(path), 0.0
        while not self.stopping.is_set():
            try:
                first: Any = self.client.blpop([asked], timeout=self.every)
                if first:
                    self.refresh(source, path, text(first[1]))
                if ahead and time.monotonic() >= due:
                    due = time.monotonic() + self.every
                    for key in self.expiring(path):
                        self.refresh(source, path, key)
                        first = self.client.lpop(asked)
                        if first:
                            self.refresh(source, path, text(first))
            except Exception as error:
                self.say(error)
                self.stopping.wait(self.every)
        source.close()

    def say(self, error: Exception) -> None:
        """Log a failure when it begins or changes."""
        reason = str(error) if isinstance(error, KNOWN) else repr(error)
        if reason != self.reason:
            self.reason = reason
            log.warning("tallies are not refreshed: %s", reason, exc_info=None if isinstance(error, KNOWN) else error)

    def expiring(self, path: str) -> list[str]:
        """The keys of a tally that are older than a period and were asked for lately; the others are forgotten."""
        view, wanted, now = self.tallies[path], contract.wanted(path), time.time() * 1000
        self.client.zremrangebyscore(wanted, "-inf", now - 2000 * view.period)
        self.client.zremrangebyrank(wanted, 0, -1 - contract.WANTED_KEYS)
        found: Any = self.client.zrange(wanted, 0, -1, desc=True)
        pipeline = self.client.pipeline(transaction=False)
        for key in found:
            pipeline.pttl(contract.kept(path, view, text(key)))
            pipeline.strlen(contract.kept(path, view, text(key)))
        replies = iter(pipeline.execute())
        memory: Any = self.client.info("memory")
        left = (memory["maxmemory"] or 1 << 62) * MEMORY_SHARE / len(self.tallies)
        expiring = []
        for key, expires, size in zip(found, replies, replies):
            left -= size + len(key) + KEY_BYTES
            if left < 0:
                self.client.zrem(wanted, key)
                self.client.unlink(contract.kept(path, view, text(key)))
            elif size and not young(expires, view.period):
                expiring.append(text(key))
        return expiring

    def refresh(self, source: RowSource, path: str, key: str) -> None:
        """Compute a tally unless it is young, or another thread computes it."""
        view = self.tallies[path]

        def compute() -> bytes:
            began = time.monotonic()
            try:
                value = view.count(source, key)
            except Exception as error:  # whoever has an old value does not see it
                if len(self.failing) < FAILING_KEYS:
                    self.failing.add((path, key))
                self.say(error)
                raise
            if (path, key) in self.failing:
                self.failing.clear()
                self.reason = ""
                log.info("recovered")
            since, seconds = self.spent.get(view, (began, 0.0))
            if began > since + view.period:
                since, seconds = began, 0.0
            self.spent[view] = since, seconds + time.monotonic() - began
            if self.spent[view][1] > PERIOD_SHARE * view.period:
                self.slow.put(view)
            self.client.hincrby(contract.REFRESHES, path, 1)
            return value

        try:
            once_a_period(self.client, contract.kept(path, view, key), view.period, compute)
        except RedisError:
            raise
        except Exception as error:
            log.debug("%s %s: %s", path, key, error)  # `say` has logged the first one

    def index(self) -> None:
        """Create the index of each tally whose counts take long: without it, each count reads all rows.

        Its thread has the precedence of the workers, which may wait for it.
        """
        source = open_row_source(self.url, self.streams)
        tried: dict[Counted, float] = {}
        while True:
            view = self.slow.get()
            if time.monotonic() < tried.get(view, 0.0):
                continue
            try:
                view.make_countable(source)
                source.close()
            except Exception as error:
                log.warning("%s: no index on %s, so each tally reads all rows: %s", view.stream, view.key, error)
            tried[view] = time.monotonic() + INDEX_SECONDS


def text(key: bytes) -> str:
    return key.decode(errors="replace")
