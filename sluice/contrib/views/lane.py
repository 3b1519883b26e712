"""The fast lane of the reader, whose answers may be large: a feed may have 670 kB, and 300 at once would take 180 MB.

An answer is heavy if it says so (`heavy`); the others are light, and wait for nothing. What nginx does not take at once
of a large answer, it takes within the turn, because it buffers; so the loop waits for it. A client that has not taken
its answer in this time is a slow reader. While slow readers have not taken UNSENT_BYTES, heavy answers stay pending,
and those that take nothing are closed.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator

from sluice.base.override import override
from sluice.fastlane.answers import Pending
from sluice.fastlane.connection import DECLINED, LEFT, Connection
from sluice.fastlane.interface import Later
from sluice.fastlane.loop import FastLane

PACED_BYTES = 128 << 10  # of an answer that are not sent at once, from which the next ones wait for it
PATIENCE_SECONDS = 0.5  # that a turn waits in all
UNSENT_BYTES = 24 << 20


class ReaderLane(FastLane):
    """`worker_class` of the reader."""

    @override
    def gather(self) -> None:
        """Wait for nothing: nothing is committed."""

    @override
    def prepare(self) -> None:
        super().prepare()
        self.tick_application, self.tick = self.tick, self.each_second
        self.patience = PATIENCE_SECONDS  # that are left of this turn
        # clients that have not taken a large answer in this time -> bytes left of it at the last look; -1: none yet
        self.slow_readers: dict[Connection, int] = {}

    @override
    def flush(self) -> None:
        self.patience = PATIENCE_SECONDS
        super().flush()
        self.nr -= len(self.pending)

    @override
    def answer(self, pending: Iterable[Pending]) -> None:
        super().answer(self.affordable(pending))

    def affordable(self, pending: Iterable[Pending]) -> Iterator[Pending]:
        """The answers for which there is room when it is their turn; the others stay pending."""
        kept = set[Connection]()  # clients of answers that stay pending: no answer may overtake the one before it
        for item in pending:
            if item[0] in kept or (self.slow_readers and self.is_full() and getattr(item[1], "heavy", False)):
                kept.add(item[0])
                self.pending.append(item)
            else:
                yield item

    def is_full(self) -> bool:
        """Whether there is no room for further heavy answers."""
        return sum(len(conn.out) for conn in self.slow_readers) > UNSENT_BYTES

    def each_second(self) -> None:
        """Close slow readers that have taken nothing since the last call, if others wait: nginx takes what it can."""
        self.tick_application()
        for conn, left in [*self.slow_readers.items()]:
            if self.pending and left == len(conn.out):
                self.drop(conn)
            else:
                self.slow_readers[conn] = len(conn.out)
        self.finish()

    @override
    def hold(self, item: Pending, later: Later) -> None:
        """An answer is not ready: the slow lane serves its request, and then what its client has sent behind it."""
        conn = item[0]
        if conn.state != LEFT:
            conn.pieces.insert(0, later.args[0])
            if conn.state != DECLINED:
                conn.state = DECLINED
                self.watch(conn)
                self.declined.append(conn)

    @override
    def wait_for_reader(self, conn: Connection) -> None:
        """Let nginx take the rest of a large answer, which it buffers, before others take memory too."""
        super().wait_for_reader(conn)
        if len(conn.out) <= PACED_BYTES:
            return
        writable = select.poll()
        writable.register(conn.fd, select.POLLOUT)
        while conn.out and conn.state != LEFT:
            began = time.monotonic()
            ready = writable.poll(1000 * self.patience)
            self.patience = max(0.0, self.patience - (time.monotonic() - began))
            if not ready:
                self.slow_readers[conn] = -1
                return
            self.resume(conn)

    @override
    def resume(self, conn: Connection) -> None:
        super().resume(conn)
        if not conn.out:
            self.slow_readers.pop(conn, None)

    @override
    def leave(self, conn: Connection) -> None:
        super().leave(conn)
        self.slow_readers.pop(conn, None)
