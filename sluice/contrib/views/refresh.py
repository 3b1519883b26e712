"""Refresh ahead: a tally, which is expensive to count, is counted again before it expires.

Only the process that holds the follower's lease counts; a count that ends after the lease has passed on is not kept. A
failure belongs to its key: the keys behind it are counted at once, and no error ends a thread. Each tally has threads
of its own, so one whose counts take long delays itself only.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import redis
from redis.exceptions import RedisError

from sluice.base import connect
from sluice.contrib.background import background
from sluice.contrib.views import contract
from sluice.contrib.views.kinds.tally import Tally
from sluice.contrib.views.kinds.view import View
from sluice.contrib.views.rows.registry import open_row_source
from sluice.contrib.views.rows.source import RowSource
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream

log = logging.getLogger("sluice.refresh")

KNOWN = (RedisError, Unavailable)  # their text says it all

FAILED_SECONDS = 1.0  # before a count that failed is tried again
UNKNOWN_SECONDS = 1.0  # for which an empty value is kept
PATIENCE_SECONDS = 10.0  # that Redis may take for one reply
FAILING_KEYS = 1_000  # that are remembered
INDEX_SECONDS = 3600.0  # between two looks whether a tally has its index: it may have been dropped
MEMORY_SHARE = 0.125  # of the views' Redis: the counts of all tallies; those asked for longest ago go first
KEY_BYTES = 256  # about what a count takes in addition to its key and value
PERIOD_SHARE = 0.1  # of a period: a tally gets an index if its counts take longer than that


def is_fresh(client: redis.Redis, key: str, period: float) -> bool:
    """Whether the value of a key needs no refresh yet.

    A value that seems to live for longer than it was given has seen the clock of Redis step back: it needs one.
    """
    pipeline = client.pipeline(transaction=False)
    pipeline.strlen(key)
    pipeline.pttl(key)
    size, left = pipeline.execute()
    return is_young(left, period) if size else 0 <= left <= UNKNOWN_SECONDS * 1000


def is_young(left: int, period: float) -> bool:
    """Whether a value that lives for so many milliseconds yet is younger than a period."""
    return period < left / 1000 <= 2 * period


class Refresher:
    """Counts tallies: those that a client waits for at once, those that clients asked for lately once a period."""

    def __init__(
        self, socket: str, url: str, views: Mapping[str, View], streams: dict[str, Stream], token: Callable[[], str]
    ) -> None:
        """socket: of the views' Redis. url: of the store. token: of the lease, "" while another process has it."""
        self.client = connect.connect_client(socket, PATIENCE_SECONDS)
        self.url, self.streams, self.token = url, streams, token
        self.tallies = {path: view for path, view in views.items() if isinstance(view, Tally)}
        self.every = min([1.0, *(view.period / 4 for view in self.tallies.values())])  # seconds between two scans
        self.stopping = threading.Event()
        self.reason = ""
        self.entry = threading.Lock()  # held for a moment, so that no two threads count one tally
        self.counting: set[str] = set()  # names of tallies
        self.failed: dict[str, float] = {}  # name of a tally -> when to try again, monotonic
        self.spent: dict[Tally, tuple[float, float]] = {}  # since when (monotonic), and the seconds of its counts
        self.index_at: dict[Tally, float] = {}  # when to look again whether it has its index, monotonic
        self.indexing = threading.Lock()

    def start(self) -> None:
        """Start two threads for each tally: a client that waits for a first count does not wait for a count ahead."""
        for path in self.tallies:
            for ahead in False, True:
                name = f"refresh {path}"
                threading.Thread(target=self.run, args=(path, ahead), name=name, daemon=True).start()

    def stop(self) -> None:
        """Stop the threads; one that counts is not waited for."""
        self.stopping.set()

    def run(self, path: str, ahead: bool) -> None:
        """Count what clients wait for and, if `ahead`, what will expire."""
        source = open_row_source(self.url, self.streams)
        asked, due = contract.asked_key(path), 0.0
        while not self.stopping.is_set():
            if not self.token():
                self.stopping.wait(self.every)
                continue
            try:
                first: Any = self.client.blpop([asked], timeout=self.every)
                if first:
                    self.refresh(source, path, key_text(first[1]))
                if ahead and time.monotonic() >= due:
                    due = time.monotonic() + self.every
                    for key in self.expiring(path):
                        self.refresh(source, path, key)
                        first = self.client.lpop(asked)
                        if first:
                            self.refresh(source, path, key_text(first))
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
        view, wanted, now = self.tallies[path], contract.wanted_key(path), time.time() * 1000
        self.client.zremrangebyscore(wanted, "-inf", now - 2000 * view.period)
        self.client.zremrangebyrank(wanted, 0, -1 - contract.WANTED_KEYS)
        found: Any = self.client.zrange(wanted, 0, -1, desc=True)
        pipeline = self.client.pipeline(transaction=False)
        for key in found:
            pipeline.pttl(contract.kept_key(path, view, key_text(key)))
            pipeline.strlen(contract.kept_key(path, view, key_text(key)))
        replies = iter(pipeline.execute())
        memory: Any = self.client.info("memory")
        left = (memory["maxmemory"] or 1 << 62) * MEMORY_SHARE / len(self.tallies)
        expiring = []
        for key, expires, size in zip(found, replies, replies):
            left -= size + len(key) + KEY_BYTES
            if left < 0:
                self.client.zrem(wanted, key)
                self.client.unlink(contract.kept_key(path, view, key_text(key)))
            elif size and not is_young(expires, view.period):
                expiring.append(key_text(key))
        return expiring

    def refresh(self, source: RowSource, path: str, key: str) -> None:
        """Count a tally and keep it for two periods, unless it is young, is being counted, or has just failed.

        If the count fails, the old one is kept while it lives. That of an unknown key is empty, and kept for a second.
        """
        view, token = self.tallies[path], self.token()
        name = contract.kept_key(path, view, key)
        with self.entry:
            if name in self.counting or time.monotonic() < self.failed.get(name, 0.0):
                return
            self.counting.add(name)
        try:
            if not is_fresh(self.client, name, view.period):
                value = self.count(source, view, key)
                lifetime = int(1000 * (2 * view.period if value else UNKNOWN_SECONDS))
                self.client.hincrby(contract.REFRESHES, path, 1)
                self.client.eval(contract.KEEP, 2, contract.HOLDER, name, token, value, lifetime)
                if self.failed.pop(name, None):
                    self.failed.clear()
                    self.reason = ""
                    log.info("recovered")
        except RedisError:
            raise
        except Exception as error:  # whoever has an old value does not see it
            if len(self.failed) >= FAILING_KEYS:
                self.failed.clear()
            self.failed[name] = time.monotonic() + FAILED_SECONDS
            self.say(error)
            log.debug("%s %s: %s", path, key, error)  # `say` logs the first one
        finally:
            self.counting.discard(name)

    def count(self, source: RowSource, view: Tally, key: str) -> bytes:
        """The JSON of a tally. One whose counts take a large part of its period gets an index."""
        began = time.monotonic()
        value = view.count(source, key)
        since, seconds = self.spent.get(view, (began, 0.0))
        if began > since + view.period:
            since, seconds = began, 0.0
        self.spent[view] = since, seconds + time.monotonic() - began
        if self.spent[view][1] > PERIOD_SHARE * view.period and began >= self.index_at.get(view, 0.0):
            self.index_at[view] = began + INDEX_SECONDS
            background(partial(self.index, view))
        return value

    def index(self, view: Tally) -> None:
        """Create the index of a tally whose counts take long, one after the other: without it, each reads all rows."""
        with self.indexing, contextlib.closing(open_row_source(self.url, self.streams)) as source:
            try:
                source.make_countable(view.stream, view.key, view.by)
            except Exception as error:
                log.warning("%s: no index on %s, so each tally reads all rows: %s", view.stream, view.key, error)


def key_text(key: bytes) -> str:
    return key.decode(errors="replace")
