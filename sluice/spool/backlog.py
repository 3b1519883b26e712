"""One stream's list as a gateway process sees it: its length, its limit, and how fast the workers take from it."""

from __future__ import annotations

import math

from sluice.base.counters import Counter
from sluice.spool.contract import AT_ONCE, MARK, Keys
from sluice.spool.errors import Refusal

MAX_RETRY_AFTER_SECONDS = 60
RATE_WINDOW_SECONDS = 10.0  # over which the rate of the workers is averaged
UNLIMITED = 1 << 62


class Backlog:
    """The READY bodies of one stream."""

    def __init__(self, stream: str, max_bodies: int = UNLIMITED, max_bytes: int = UNLIMITED) -> None:
        """max_bodies, max_bytes: READY bodies, and their bytes, beyond which new bodies are refused."""
        keys = Keys.for_stream(stream)
        self.max_bodies, self.max_bytes = max_bodies, max_bytes
        key = keys.ready.encode()
        self.bytes = Counter()  # of the accepted bodies
        self.push = b"$5\r\nRPUSH\r\n$%d\r\n%b" % (len(key), key)
        self.mark = ("EVAL", MARK, 5, keys.ready, keys.taken, keys.marks, keys.epochs, keys.history)
        self.mark_due = AT_ONCE
        self.length = 0  # at the last reply
        self.size = 0  # bytes at the last mark, and those that this process has pushed since
        self.refused_bodies = 0  # since the last accepted one; their clients will retry
        self.rate = 0.0  # bodies per second that the workers can take, estimated
        self.observed = 0.0  # seconds of backlog that the estimate is based on, up to RATE_WINDOW_SECONDS
        self.sample: tuple[float, int, int] | None = None  # the last mark: Redis's time (seconds), taken, ready

    def update_from_mark(self, taken: int, ready: int, microseconds: bytes, size: int) -> None:
        """Update length, size and rate from a mark's reply. size: bytes of the READY bodies."""
        now = int(microseconds) / 1e6
        if self.sample and now > self.sample[0]:
            elapsed, moved = now - self.sample[0], max(0, taken - self.sample[1])
            backlogged = moved < self.sample[2]
            if backlogged:
                self.observed = min(self.observed + elapsed, RATE_WINDOW_SECONDS)
            # An emptied list only bounds the rate from below: it may raise the estimate, never lower it.
            if backlogged or moved > self.rate * elapsed:
                self.rate += (moved / elapsed - self.rate) * elapsed / max(self.observed, elapsed)
        self.sample = now, taken, ready
        self.length, self.size = ready, size

    def count_pushed(self, size: int) -> None:
        """Count bytes that are now on the list."""
        self.bytes.n += size
        self.size += size
        self.refused_bodies = 0

    def excess_bodies(self) -> int:
        """How many bodies must leave the list until it is below both limits, at their average size; 0: it is below."""
        bodies = self.length - self.max_bodies + 1
        if self.size:
            bodies = max(bodies, math.ceil((self.size - self.max_bytes + 1) * self.length / self.size))
        return max(0, bodies)

    def make_refusal(self, excess: int, reason: str, at_least: float = 1.0) -> Refusal:
        """The refusal while `excess` bodies must leave the list first. If the workers take nothing, retry_after is the
        time for which this has been observed, and after RATE_WINDOW_SECONDS the maximum. at_least: seconds.
        """
        idle = self.observed if self.observed < RATE_WINDOW_SECONDS else MAX_RETRY_AFTER_SECONDS
        seconds = excess / self.rate if self.rate > 0 else idle
        return Refusal(reason, min(math.ceil(max(seconds, at_least)), MAX_RETRY_AFTER_SECONDS))
