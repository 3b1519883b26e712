"""The gateway's side of the list: append, commit. One round trip to Redis commits the bodies of many requests."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import NamedTuple

from redis.exceptions import ConnectionError, OutOfMemoryError, RedisError, ResponseError

from sluice.base.connect import connection, required
from sluice.base.counters import REPORT_INTERVAL, SECONDS, SIZES, Counter, Counts
from sluice.spool.contract import AT_ONCE, MARK, NAME, PROBED, TIMEOUT, Keys, count_command

log = logging.getLogger("sluice.spool")
CONFIRM_MS = 400  # milliseconds to wait for replicas: a balancer must notice before a client gives up a second time
PAUSE = 0.3  # seconds without a try after a connection with replicas was lost: a vanished Redis would block each commit
MARK_INTERVAL = 0.1  # seconds between two marks of one process and stream: the precision of received_at
MAX_BACKLOG = 10_000_000  # READY bodies per stream; of 54 bytes or more, the limit in bytes (512m) acts first
MAX_RETRY_AFTER = 60  # seconds
RATE_WINDOW = 10.0  # seconds over which the drain rate is averaged
UNLIMITED = 1 << 62
# What precedes a body of `size` bytes in a command for Redis: the end of the line before, and the length
LENGTHS = [b"\r\n$%d\r\n" % size for size in range(2048)]

# The details of the 503 answers. The counts use them without the period, and without the text after a colon.
REDIS_DOWN = "Redis does not answer."
REDIS_FULL = "Redis is full."
REDIS_READ_ONLY = "Redis refuses to write: %s"
BACKLOG_FULL = "The backlog is over its limit."
REPLICAS_BEHIND = "Fewer than %d replicas of Redis keep up."


class Refusal(NamedTuple):
    """Why the bodies of one stream in one batch get 503. retry_after: whole seconds."""

    detail: str
    retry_after: int


class Batch:
    """Bodies that are sent in one commit.

    bodies: stream -> its bodies in the order of arrival.
    done: the outcome is known: Redis has answered, or failed to.
    refused: the streams whose bodies get 503, each with its Refusal; None if there are none.
    """

    __slots__ = ("bodies", "done", "refused")

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {}
        self.done = False
        self.refused: dict[str, Refusal] | None = None


class Backlog:
    """One stream's list as a gateway process sees it: its length, its limit, and how fast the workers drain it."""

    def __init__(self, stream: str, max_bodies: int = UNLIMITED, max_bytes: int = UNLIMITED) -> None:
        """max_bodies, max_bytes: READY bodies, and their bytes, beyond which new bodies are refused."""
        keys = Keys.of(stream)
        self.max_bodies, self.max_bytes = max_bodies, max_bytes
        self.limit = max_bodies  # bodies: the lower of both limits, at the present average size of a body
        key = keys.ready.encode()
        self.bytes = Counter()  # of the accepted bodies
        self.push = b"$5\r\nRPUSH\r\n$%d\r\n%b" % (len(key), key)
        self.mark = ("EVAL", MARK, 5, keys.ready, keys.taken, keys.marks, keys.epochs, keys.history)
        self.mark_due = AT_ONCE
        self.length = 0  # at the last reply
        self.refused_bodies = 0  # since the last accepted one; their clients will retry
        self.rate = 0.0  # bodies per second that the workers can drain, estimated
        self.observed = 0.0  # seconds of backlog that the estimate is based on, up to RATE_WINDOW
        self.sample: tuple[float, int, int] | None = None  # the last mark: Redis's time (seconds), taken, ready

    def update(self, taken: int, ready: int, microseconds: bytes, size: int) -> None:
        """Update length, limit and drain rate from a mark's reply. size: bytes of the READY bodies."""
        now = int(microseconds) / 1e6
        if self.sample and now > self.sample[0]:
            elapsed, moved = now - self.sample[0], max(0, taken - self.sample[1])
            backlogged = moved < self.sample[2]
            if backlogged:
                self.observed = min(self.observed + elapsed, RATE_WINDOW)
            # An emptied list only bounds the rate from below: it may raise the estimate, never lower it.
            if backlogged or moved > self.rate * elapsed:
                self.rate += (moved / elapsed - self.rate) * elapsed / max(self.observed, elapsed)
        self.sample = now, taken, ready
        self.length = ready
        self.limit = min(self.max_bodies, self.max_bytes * ready // size) if size else self.max_bodies

    def refusal(self, excess: int, detail: str) -> Refusal:
        """The refusal while `excess` bodies must leave the list first. If the workers drain nothing, retry_after is the
        time for which this has been observed, and after RATE_WINDOW the maximum.
        """
        idle = self.observed if self.observed < RATE_WINDOW else MAX_RETRY_AFTER
        seconds = excess / self.rate if self.rate > 0 else idle
        return Refusal(detail, min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER))


class Inlet:
    """The gateway's side of the list, one per process. Safe with threads and greenlets."""

    down = REDIS_DOWN
    pause = 0.0  # seconds that a server may wait for more bodies before a commit

    def __init__(
        self, address: str, max_backlog: int = MAX_BACKLOG, replicas: int = 0, max_bytes: int = UNLIMITED
    ) -> None:
        """address: of Redis; see sluice/base/connect.py.

        max_backlog, max_bytes: READY bodies of a stream, and their bytes, beyond which new bodies are refused.
        replicas: number of replicas of Redis that must confirm a commit, at least.
        """
        self.redis = connection(address, TIMEOUT, client_name=f"{NAME}:gateway:{os.getpid()}")
        self.counts = Counts()
        self.batches = self.counts.histogram("batch_bodies", SIZES)
        self.commits = self.counts.histogram("commit_seconds", SECONDS)
        self.limits = max_backlog, max_bytes
        self.replicas = replicas
        # 0, or how many milliseconds to ask for replicas before a push: too few of them confirmed the last commit (1),
        # or nothing was sent yet on this connection
        self.behind = CONFIRM_MS if replicas else 0
        self.required = replicas  # of the last WAIT
        self.resume = 0.0  # monotonic: end of PAUSE
        self.open = Batch()
        self.backlogs: dict[str, Backlog] = {}
        self.entry = threading.Lock()  # held for a moment, so that no body is added to a batch that is being sent
        self.turn = threading.Lock()  # held for a round trip: one commit at a time
        self.logged: dict[str, str | None] = {}

    def append(self, stream: str, body: bytes) -> Batch:
        """Add a body to the open batch and return that batch. Nothing is safe before `commit` has returned."""
        with self.entry:
            batch = self.open
            try:
                batch.bodies[stream].append(body)
            except KeyError:
                batch.bodies[stream] = [body]
            return batch

    def commit(self, batch: Batch) -> None:
        """Send the batch, unless another thread has. On return `done` is set and `refused` is final."""
        with self.turn:
            if batch.done:
                return
            with self.entry:
                self.open = Batch()
            try:
                self.push(batch)
            except (RedisError, OSError) as error:
                self.disconnect()
                self.refuse_all(batch, error)
            except BaseException as error:  # a signal before the reply: the outcome is unknown, so nothing gets 2xx
                self.disconnect()
                self.refuse_all(batch, error)
                raise
            finally:
                batch.done = True

    def answer_later(self, exception: type[Exception]) -> None:
        """Let `commit` raise this exception instead of waiting long, and be called again. Redis has one list: no other
        commit could go on meanwhile.
        """

    def disconnect(self) -> None:
        """Close the connection. The next one may lead to a Redis that lost bodies, or has no replicas; a mark, or WAIT,
        tells it first.
        """
        self.redis.disconnect()
        if self.replicas:
            self.behind, self.resume = CONFIRM_MS, time.monotonic() + PAUSE
        for backlog in self.backlogs.values():
            backlog.mark_due = AT_ONCE

    def push(self, batch: Batch) -> None:
        """One pipelined round trip: an RPUSH per stream, before it a mark if one is due."""
        now = time.monotonic()
        out: list[bytes] = []
        sent = []
        if self.behind:  # probe first: otherwise each retry adds another copy
            if now < self.resume:
                self.refuse_all(batch, "Redis was asked a moment ago")
                return
            self.redis.send_packed_command(self.wait_command(self.behind))
            if self.read_wait_reply(batch):
                return
        for stream, bodies in batch.bodies.items():
            backlog = self.backlogs.get(stream)
            if backlog is None:
                backlog = self.backlogs[stream] = Backlog(stream, *self.limits)
                self.counts.counters[f"bytes {stream}"] = backlog.bytes
            if backlog.length >= backlog.limit and now >= backlog.mark_due:
                self.refresh(backlog, now)
            marking = now >= backlog.mark_due
            if backlog.length >= backlog.limit:
                self.refuse_excess(batch, stream, backlog)
                continue
            if marking:
                out += self.redis.pack_command(*backlog.mark)
            # packed by hand, without a copy of a body before `join` (docs/DECISIONS.md)
            out += (b"*%d\r\n" % (len(bodies) + 2), backlog.push)
            for body in bodies:
                size = len(body)
                out.append(LENGTHS[size] if size < len(LENGTHS) else b"\r\n$%d\r\n" % size)
                out.append(body)
            out.append(b"\r\n")
            sent.append((stream, bodies, backlog, marking))
        if not sent:
            return
        if self.replicas:
            out += self.wait_command(CONFIRM_MS)
        delta = {}
        if now >= self.counts.due and (delta := self.counts.delta()):
            out.insert(0, b"".join(self.redis.pack_command(*count_command(delta))))
        self.redis.send_packed_command((b"".join(out),))
        if delta:
            self.read_report_reply(delta, now)
        accepted = 0
        for stream, bodies, backlog, marking in sent:
            unmarked = self.read_mark_reply(backlog, now) if marking else None
            try:
                backlog.length = self.redis.read_response()
                if unmarked:  # the bodies may have got numbers that others had in this spool
                    raise unmarked
                backlog.refused_bodies = 0
                accepted += len(bodies)
                backlog.bytes.n += sum(map(len, bodies))
                self.log_change(stream, None)
            except ResponseError as error:
                backlog.mark_due = AT_ONCE  # what refused the push may have been a replica
                detail = REDIS_FULL if isinstance(error, OutOfMemoryError) else REDIS_READ_ONLY % error
                self.refuse(batch, stream, backlog.refusal(backlog.length // 20 + 1, detail))
        if self.replicas:
            self.read_wait_reply(batch)
        self.batches.add(accepted)
        self.commits.add(time.monotonic() - now)

    def wait_command(self, milliseconds: int) -> list[bytes]:
        """WAIT for the replicas that must have this connection's writes."""
        self.required = required(self.redis, self.replicas)
        return self.redis.pack_command("WAIT", self.required, milliseconds)

    def read_wait_reply(self, batch: Batch) -> bool:
        """Read the reply of WAIT. If too few replicas confirmed this connection's last write, the batch is refused."""
        try:
            self.behind = int(self.redis.read_response() < self.required)
        except ResponseError as error:  # the master has become a replica
            raise ConnectionError(f"WAIT: {error}") from None
        detail = REPLICAS_BEHIND % self.required if self.behind else None
        if detail:
            for stream in batch.bodies.keys() - (batch.refused or {}).keys():
                self.count_refused(batch, stream, detail)
            batch.refused = dict.fromkeys(batch.bodies, Refusal(detail, 1)) | (batch.refused or {})
        self.log_change("replicas", detail)
        return bool(self.behind)

    def read_report_reply(self, delta: dict[str, int], now: float) -> None:
        """Read the reply to a report of counts. If the reply is lost, the report may be counted twice."""
        self.counts.due = now + REPORT_INTERVAL
        try:
            self.redis.read_response()
            self.counts.confirm(delta)
        except ResponseError as error:  # the next report includes it
            log.debug("counts not reported: %s", error)

    def report(self, last: bool = False) -> None:
        """Report the counts to Redis, if no commit has done so within REPORT_INTERVAL. last: in any case."""
        with self.turn:
            now = time.monotonic()
            if (now < self.counts.due and not last) or not (delta := self.counts.delta()):
                return
            try:
                self.redis.send_command(*count_command(delta))
                self.read_report_reply(delta, now)
            except (RedisError, OSError):
                self.disconnect()

    def refresh(self, backlog: Backlog, now: float) -> None:
        """Ask Redis whether a full backlog has room again: a client that waited for Retry-After must be accepted."""
        self.redis.send_command(*backlog.mark)
        self.read_mark_reply(backlog, now)

    def read_mark_reply(self, backlog: Backlog, now: float) -> ResponseError | None:
        """Read a mark's reply; returns the error if Redis rejected the mark.

        now: when the mark was sent. The next one is due from then, because the reply may have waited for an fsync.
        """
        try:
            backlog.update(*self.redis.read_response())
            backlog.mark_due = now + MARK_INTERVAL
        except ResponseError as error:
            backlog.mark_due = AT_ONCE
            return error
        return None

    def refuse(self, batch: Batch, stream: str, refusal: Refusal, subject: str = "") -> None:
        """Refuse the bodies of one stream. subject: what the log calls it, unless by its name."""
        if batch.refused is None:
            batch.refused = {}
        batch.refused[stream] = refusal
        self.count_refused(batch, stream, refusal.detail)
        self.log_change(subject or stream, refusal.detail)

    def refuse_excess(self, batch: Batch, stream: str, backlog: Backlog) -> None:
        """Refuse the bodies of a stream whose backlog is full."""
        backlog.refused_bodies += len(batch.bodies[stream])
        excess = backlog.length - backlog.limit + backlog.refused_bodies
        self.refuse(batch, stream, backlog.refusal(excess, BACKLOG_FULL))

    def count_refused(self, batch: Batch, stream: str, detail: str) -> None:
        """Count bodies that get 503 by reason. Redis's own text, after the colon, would give too many reasons."""
        reason = detail.partition(":")[0].rstrip(".")
        self.counts.counter(f"refused {stream} {reason}").n += len(batch.bodies[stream])

    def refuse_all(self, batch: Batch, error: BaseException | str) -> None:
        """Refuse a batch without a reply: its bodies may or may not be on the list."""
        for stream in batch.bodies:
            self.refuse(batch, stream, Refusal(self.down, 1))
        log.debug("no reply: %r", error)

    def log_change(self, subject: str, detail: str | None) -> None:
        """Log one line when refusals start or their reason changes, and one when they end. subject: a stream, a
        partition, or "replicas".
        """
        if detail != self.logged.get(subject):
            self.logged[subject] = detail
            if detail:
                log.warning("%s: refusing bodies: %s", subject, detail)
            else:
                log.warning("%s: accepting bodies again", subject)

    def ready(self) -> str | None:
        """None if Redis accepts writes and enough replicas confirm them, else the reason why not."""
        with self.turn:
            try:
                if time.monotonic() < self.resume:
                    return REDIS_DOWN
                if self.behind:  # do not make each check wait
                    self.redis.send_packed_command(self.wait_command(self.behind))
                    if self.read_wait_reply(Batch()):
                        return REPLICAS_BEHIND % self.required
                self.redis.send_command("SET", PROBED, "1", "EX", "60")
                self.redis.read_response()
                if self.replicas:
                    self.redis.send_packed_command(self.wait_command(CONFIRM_MS))
                    if self.read_wait_reply(Batch()):
                        return REPLICAS_BEHIND % self.required
            except ResponseError as error:
                return REDIS_READ_ONLY % error
            except (RedisError, OSError):
                self.disconnect()
                return REDIS_DOWN
        return None
