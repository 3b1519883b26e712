"""The gateway's side of the list: append, commit. Many requests share one round trip."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.retry import Retry

from sluice.spool.contract import MARK, NAME, PROBE, REPLICAS_MS, TIMEOUT, Keys, count
from sluice.spool.counters import EVERY, SECONDS, SIZES, Counter, Counts

log = logging.getLogger("sluice.spool")
MARK_EVERY = 0.1  # seconds between two marks of one process and stream: the precision of received_at
MAX_BACKLOG = 10_000_000  # READY bodies per stream; of 54 bytes or more, INGEST_MAX_BACKLOG_BYTES (512m) acts first
RETRY_MOST = 60  # seconds: the longest Retry-After
SMOOTH = 10.0  # seconds over which the drain rate is taken, once so many were seen


class Refusal(NamedTuple):
    """Why the bodies of one stream in one batch are not on the list, and when to try again (whole seconds)."""

    detail: str
    retry_after: int


class Batch:
    """Bodies that share one commit.

    bodies: stream -> its bodies in the order of arrival.
    done: Redis has answered, or will not.
    refused: stream -> why, for the streams whose bodies are not on the list; None if all are.
    """

    __slots__ = ("bodies", "done", "refused")

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {}
        self.done = False
        self.refused: dict[str, Refusal] | None = None


class Backlog:
    """What a gateway process knows of one stream: its length at the last reply, and how fast it is drained."""

    def __init__(self, stream: str, most: int = 1 << 62, most_bytes: int = 1 << 62) -> None:
        """most, most_bytes: READY bodies, and bytes of them, beyond which nothing more is taken."""
        keys = Keys.of(stream)
        self.most, self.most_bytes = most, most_bytes
        self.bound = most  # bodies: as many of the present size as are within both
        key = keys.ready.encode()
        self.bytes = Counter()  # of the bodies taken
        self.push = b"$5\r\nRPUSH\r\n$%d\r\n%b\r\n" % (len(key), key)
        self.mark = ("EVAL", MARK, 3, keys.ready, keys.claimed, keys.marks)
        self.mark_due = 0.0
        self.backlog = 0
        self.waiting = 0  # bodies sent away since the list was last found with room: they will be back
        self.rate = 0.0  # bodies a second that workers can claim, as far as was seen
        self.watched = 0.0  # seconds of a backlog that this was seen in, up to SMOOTH
        self.sample: tuple[float, int, int] | None = None

    def marked(self, claimed: int, ready: int, microseconds: bytes, size: int) -> None:
        """Take a mark's reply into account: the backlog, its bound, and the drain rate. size: bytes READY."""
        now = int(microseconds) / 1e6
        if self.sample and now > self.sample[0]:
            elapsed, drained = now - self.sample[0], max(0, claimed - self.sample[1])
            behind = drained < self.sample[2]
            if behind:
                self.watched = min(self.watched + elapsed, SMOOTH)
            # who took all there was could perhaps take more: that only ever raises the rate
            if behind or drained > self.rate * elapsed:
                self.rate += (drained / elapsed - self.rate) * elapsed / max(self.watched, elapsed)
        self.sample = now, claimed, ready
        self.backlog = ready
        self.bound = min(self.most, self.most_bytes * ready // size) if size else self.most

    def full(self, excess: int, detail: str) -> Refusal:
        """The refusal of a stream that has `excess` bodies too many."""
        idle = self.watched if self.watched < SMOOTH else RETRY_MOST  # nobody was seen to take anything for so long
        seconds = excess / self.rate if self.rate > 0 else idle
        return Refusal(detail, min(max(math.ceil(seconds), 1), RETRY_MOST))


class Inlet:
    """The gateway's side, one a process: many requests, one round trip. Safe with threads and greenlets."""

    def __init__(
        self, socket: str, max_backlog: int = MAX_BACKLOG, replicas: int = 0, max_bytes: int = 1 << 62
    ) -> None:
        """socket: the path of Redis's Unix socket.

        max_backlog, max_bytes: READY bodies of a stream, and bytes of them, beyond which it refuses.
        replicas: of Redis that must have a body before it is safe.
        """
        # No retry: a push that timed out may have happened, and a second one would double it.
        self.redis = redis.UnixDomainSocketConnection(  # type: ignore[abstract]
            path=socket,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            client_name=f"{NAME}:gateway:{os.getpid()}",
        )
        self.counts = Counts()
        self.batches = self.counts.histogram("batch_bodies", SIZES)
        self.commits = self.counts.histogram("commit_seconds", SECONDS)
        self.bounds = max_backlog, max_bytes
        self.replicas = replicas
        self.lacking = False  # at the last look too few replicas had what they should
        self.wait, self.probe = [
            self.redis.pack_command("WAIT", replicas, ms) if replicas else [] for ms in (REPLICAS_MS, 1)
        ]
        self.open = Batch()
        self.lines: dict[str, Backlog] = {}
        self.entry = threading.Lock()  # held for a moment: no body may slip into a batch that is being sent
        self.turn = threading.Lock()  # held for a round trip: one leader at a time
        self.said: dict[str, str | None] = {}

    def append(self, stream: str, body: bytes) -> Batch:
        """Put a body into the open batch and return that batch. It is safe only once `commit` has said so."""
        with self.entry:
            batch = self.open
            try:
                batch.bodies[stream].append(body)
            except KeyError:
                batch.bodies[stream] = [body]
            return batch

    def commit(self, batch: Batch) -> None:
        """Send the batch unless somebody has; afterwards it is done, and `refused` says what is not on the list."""
        with self.turn:
            if batch.done:
                return
            with self.entry:
                self.open = Batch()
            try:
                self.push(batch)
            except (RedisError, OSError) as error:
                self.redis.disconnect()
                self.refuse_all(batch, error)
            except BaseException as error:  # a signal in mid-reply: nobody knows, so nobody is told "got it"
                self.redis.disconnect()
                self.refuse_all(batch, error)
                raise
            finally:
                batch.done = True

    def push(self, batch: Batch) -> None:
        """One pipelined round trip: an RPUSH a stream, before it a mark where one is due."""
        now = time.monotonic()
        out: list[bytes] = []
        asked = []
        if self.lacking:  # what is refused should not be on the list all the same, each time that somebody tries again
            self.redis.send_packed_command(self.probe)
            if self.lacks(batch):
                return
        for stream, bodies in batch.bodies.items():
            line = self.lines.get(stream)
            if line is None:
                line = self.lines[stream] = Backlog(stream, *self.bounds)
                self.counts.counters[f"bytes {stream}"] = line.bytes
            if line.backlog >= line.bound and now >= line.mark_due:
                self.look(line, now)
            marking = now >= line.mark_due
            if line.backlog >= line.bound:
                line.waiting += len(bodies)
                excess = line.backlog - line.bound + line.waiting
                self.refuse(batch, stream, line.full(excess, "The backlog is over its bound."))
                continue
            if marking:
                out += self.redis.pack_command(*line.mark)
            # packed by hand: a third less than hiredis behind redis-py, and on PyPy less than half
            out += (b"*%d\r\n" % (len(bodies) + 2), line.push)
            out += [b"$%d\r\n%b\r\n" % (len(body), body) for body in bodies]
            asked.append((stream, bodies, line, marking))
        if not asked:
            return
        out += self.wait
        delta = {}
        if now >= self.counts.due and (delta := self.counts.delta()):
            out.insert(0, b"".join(self.redis.pack_command(*count(delta))))
        self.redis.send_packed_command((b"".join(out),))
        if delta:
            self.counted(delta, now)
        size = 0
        for stream, bodies, line, marking in asked:
            if marking:
                self.read_mark(line, now)
            try:
                line.backlog = self.redis.read_response()
                line.waiting = 0
                size += len(bodies)
                line.bytes.n += sum(map(len, bodies))
                self.say(stream, None)
            except ResponseError as error:
                full = isinstance(error, OutOfMemoryError)
                detail = "Redis is full." if full else f"Redis refuses to write: {error}"
                self.refuse(batch, stream, line.full(line.backlog // 20 + 1, detail))
        if self.replicas:
            self.lacks(batch)
        self.batches.add(size)
        self.commits.add(time.monotonic() - now)

    def lacks(self, batch: Batch) -> bool:
        """Read what WAIT says of this connection's last write; if too few replicas have it, the batch is refused."""
        self.lacking = self.redis.read_response() < self.replicas
        why = f"Fewer than {self.replicas} replicas of Redis keep up." if self.lacking else None
        if why:
            for stream in batch.bodies.keys() - (batch.refused or {}).keys():
                self.count_refused(batch, stream, why)
            batch.refused = dict.fromkeys(batch.bodies, Refusal(why, 1)) | (batch.refused or {})
        self.say("replicas", why)
        return self.lacking

    def counted(self, delta: dict[str, int], now: float) -> None:
        """Read the reply to a report. Of one whose reply does not come nobody knows: it may count twice."""
        self.counts.due = now + EVERY
        try:
            self.redis.read_response()
            self.counts.confirm(delta)
        except ResponseError as error:  # it will be part of the next
            log.debug("not counted: %s", error)

    def report(self, last: bool = False) -> None:
        """Tell Redis what was counted, if no commit has for a second, or if it is the last time."""
        with self.turn:
            now = time.monotonic()
            if (now < self.counts.due and not last) or not (delta := self.counts.delta()):
                return
            try:
                self.redis.send_command(*count(delta))
                self.counted(delta, now)
            except (RedisError, OSError):
                self.redis.disconnect()

    def look(self, line: Backlog, now: float) -> None:
        """See whether a full stream has room again: a client that waited as it was told must get in."""
        self.redis.send_command(*line.mark)
        self.read_mark(line, now)

    def read_mark(self, line: Backlog, now: float) -> None:
        """Read a mark's reply. A full Redis takes no mark; the push that follows says so.

        now: before it was sent. The reply may have waited for an fsync, or longer, and so long was the mark true.
        """
        try:
            line.marked(*self.redis.read_response())
            line.mark_due = now + MARK_EVERY
        except ResponseError:
            line.mark_due = 0.0

    def refuse(self, batch: Batch, stream: str, refused: Refusal) -> None:
        """Note that one stream's bodies are not on the list."""
        if batch.refused is None:
            batch.refused = {}
        batch.refused[stream] = refused
        self.count_refused(batch, stream, refused.detail)
        self.say(stream, refused.detail)

    def count_refused(self, batch: Batch, stream: str, detail: str) -> None:
        """Count bodies that get 503, by the reason without Redis's own text, which stands behind a colon."""
        reason = detail.partition(":")[0].rstrip(".")
        self.counts.counter(f"refused {stream} {reason}").n += len(batch.bodies[stream])

    def refuse_all(self, batch: Batch, error: BaseException) -> None:
        """The answer of a batch whose reply did not come: it may or may not be on the list."""
        for line in self.lines.values():
            line.mark_due = 0.0
        for stream in batch.bodies:
            self.refuse(batch, stream, Refusal("Redis does not answer.", 1))
        log.debug("no reply: %s: %s", type(error).__name__, error)

    def say(self, stream: str, refusal: str | None) -> None:
        """One log line when a stream is refused, one when it is taken again."""
        if refusal != self.said.get(stream):
            self.said[stream] = refusal
            log.warning("%s: refusing: %s", stream, refusal) if refusal else log.warning("%s: taken again", stream)

    def ready(self) -> str | None:
        """None if Redis answers and takes writes, else why not."""
        with self.turn:
            try:
                self.redis.send_command("SET", PROBE, "1", "EX", "60")
                self.redis.read_response()
            except ResponseError as error:
                return f"Redis refuses to write: {error}"
            except (RedisError, OSError):
                self.redis.disconnect()
                return "Redis does not answer."
        return None
