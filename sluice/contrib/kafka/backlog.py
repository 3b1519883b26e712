"""One stream's topic as a gateway process sees it, and which of its partitions a commit goes to."""

from __future__ import annotations

import random
import time

from sluice.contrib.kafka.admin import Admin, Config, Topic, log
from sluice.spool import backlog
from sluice.spool.contract import TIMEOUT_SECONDS

REDUCED_SECONDS = 0.3  # that a commit rather waits than that it goes to a partition with fewer in-sync replicas


class Backlog(backlog.Backlog):
    """The records of one topic that are not settled."""

    def __init__(self, stream: str, topic: Topic, max_bodies: int, max_bytes: int) -> None:
        super().__init__(stream, max_bodies, max_bytes)
        self.topic = topic
        self.config = Config()
        self.accepted = 0  # bodies, by this process
        self.turn = random.randrange(len(topic.replicas))  # noqa: S311  # so that processes do not move in step
        self.busy: dict[int, float] = {}  # partition that a commit is waiting for -> since when (monotonic)
        self.failed: dict[int, float] = {}  # partition -> when it last failed (monotonic)

    def choose(self, suspects: dict[int, float], brokers: frozenset[int]) -> int | None:
        """The partition of the next commit: its bodies go there together, because each partition is one more request
        to a broker, and one more claim. None: the best one is busy.

        suspects: see `Inlet.suspects`. brokers: those that the rest of the commit goes to.
        """
        replicas = self.topic.replicas
        count = len(replicas)

        def cost(n: int) -> tuple[float, bool, float, bool]:
            wait = sum(suspects.get(broker, 0.0) for broker in replicas[n])
            if n not in self.topic.writable:
                wait += TIMEOUT_SECONDS if self.topic.leaders[n] < 0 else REDUCED_SECONDS
            # without its follower, a leader acknowledges the commit once that is replaced; a dead leader never does
            return wait, n in self.busy, suspects.get(self.topic.leaders[n], 0.0), replicas[n] != brokers

        best = min((n % count for n in range(self.turn + 1, self.turn + 1 + count)), key=cost)
        if best in self.busy:
            return None
        self.turn = best
        return best

    def configure(self, config: Config) -> None:
        """Take the present configuration, and say what in it is not safe, when that begins."""
        if config.unsafe and config.unsafe != self.config.unsafe:
            log.warning("%s", config.unsafe)
        self.config = config

    def look(self, admin: Admin) -> None:
        positions = admin.positions(self.topic)
        settled, end = sum(at.first for at in positions), sum(at.end for at in positions)
        size = self.bytes.n * (end - settled) // self.accepted if self.accepted else 0
        self.update_from_mark(settled, end - settled, b"%d" % (time.time() * 1e6), size)
