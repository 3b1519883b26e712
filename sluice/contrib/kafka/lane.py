"""The fast lane of a gateway that commits to Kafka. While a commit waits for a leader that has died, only the clients
of its bodies wait; the loop serves all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from sluice.base.override import override
from sluice.contrib.kafka.inlet import Inlet
from sluice.fastlane.answers import Pending
from sluice.fastlane.connection import DECLINED, LEFT, Connection
from sluice.fastlane.interface import Later
from sluice.fastlane.loop import FastLane

RETRY_SECONDS = 0.02  # after which an answer that was not ready is iterated again
FEW_REQUESTS = 2  # of a turn, which need not wait for others
PAUSE_SECONDS = 0.0004  # in which a turn may get more requests: a commit costs this much CPU, however few bodies it has


class KafkaLane(FastLane):
    """`worker_class` with Kafka. A client has at most one answer that is pending, because all `waits`."""

    waits = True

    @override
    def prepare(self) -> None:
        super().prepare()
        Inlet.later = Later
        self.wsgi = self.wait_for
        self.held: dict[Connection, Pending] = {}  # clients with an answer that is not ready, by age

    def wait_for(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """`application`, for gunicorn's handler, which iterates an answer once: wait until it is ready."""
        answer = self.application(environ, start_response)
        while True:
            try:
                return list(answer)
            except Later:
                gevent.sleep(RETRY_SECONDS)

    @override
    def read(self, ready: list[tuple[int, int]]) -> None:
        super().read(ready)
        if len(self.pending) > FEW_REQUESTS:
            time.sleep(PAUSE_SECONDS)
            answered = {item[0].fd for item in self.pending}
            super().read([(fd, events) for fd, events in self.poller.poll(0) if fd not in answered])

    @override
    def gather(self) -> None:
        """Wait for nothing: a commit holds up its own clients only."""

    @override
    def hold(self, item: Pending, later: Later) -> None:
        """Keep an answer that is not ready, and read nothing more from its client."""
        conn = item[0]
        if not self.held:
            self.slow_count += 1
            gevent.spawn(self.retry)
        self.held[conn] = item
        if conn.state != LEFT:
            self.watch(conn)

    def retry(self) -> None:
        """A greenlet: iterate the answers that were not ready, until all are."""
        while self.held:
            gevent.sleep(RETRY_SECONDS)
            try:
                self.again()
            except Exception:  # see `turn`
                self.log.exception("Error in the loop")
        self.slow_count -= 1

    def again(self) -> None:
        held, self.held = self.held, {}
        self.pending = [*held.values(), *self.pending]
        self.flush()
        for conn in held:
            if conn not in self.held and conn.state != LEFT:
                self.watch(conn)
                if conn.state == DECLINED:
                    self.declined.append(conn)
        self.finish()

    @override
    def watch(self, conn: Connection) -> None:
        if conn in self.held and not conn.out:
            self.poller.modify(conn.fd, 0)
        else:
            super().watch(conn)

    @override
    def decline(self, conn: Connection) -> None:
        if conn not in self.held:
            super().decline(conn)
