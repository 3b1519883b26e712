"""The gateway's side of the list: append, commit. One round trip to Redis commits the bodies of many requests.

A client waits for one reply at most. While a Redis that does not answer is away, a thread waits for it, not a client:
all are refused at once, posts and health checks alike.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from redis.exceptions import ConnectionError, OutOfMemoryError, RedisError, ResponseError, TimeoutError

from sluice.base import disk
from sluice.base.connect import connection, required
from sluice.base.counters import REPORT_SECONDS, SECONDS, SIZES, Counts
from sluice.spool import errors
from sluice.spool.backlog import UNLIMITED, Backlog
from sluice.spool.contract import AT_ONCE, NAME, PROBED, TIMEOUT_SECONDS, count_command, open_layout
from sluice.spool.errors import Refusal

log = logging.getLogger("sluice.spool")
DISK_SECONDS = 10  # Retry-After while the disk has no more than its reserve
CONFIRM_MS = 400  # to wait for replicas: a balancer must notice before a client gives up a second time
PAUSE_SECONDS = 0.1  # between two attempts to connect to a Redis that was lost, while all bodies are refused
PROBE_SECONDS = 0.02  # or until a commit, the answer of a readiness check counts: those of one turn ask Redis once
MARK_SECONDS = 0.1  # between two marks of one process and stream: the precision of received_at
MAX_BACKLOG_BODIES = 10_000_000  # READY, per stream; of 54 bytes or more, the limit in bytes (512m) acts first
# What precedes an item of `size` bytes in a command for Redis: the end of the line before, and the length
LENGTHS = [b"\r\n$%d\r\n" % size for size in range(2048)]

# Reads the reply to a command; returns how many bodies the command has put on a list
Reader = Callable[[], int]


class Group:
    """Items that are sent in one commit.

    items: stream -> its items in the order of arrival.
    done: the outcome is known: Redis has answered, or failed to.
    refused: the streams whose bodies get 503, each with its Refusal; None if there are none.
    """

    __slots__ = ("done", "items", "refused")

    def __init__(self) -> None:
        self.items: dict[str, list[bytes]] = {}
        self.done = False
        self.refused: dict[str, Refusal] | None = None


class Inlet:
    """The gateway's side of the list, one per process. Safe with threads and greenlets."""

    down = errors.REDIS_DOWN

    def __init__(
        self,
        address: str,
        max_backlog: int = MAX_BACKLOG_BODIES,
        replicas: int = 0,
        max_bytes: int = UNLIMITED,
        gateways: int = 1,
    ) -> None:
        """max_backlog, max_bytes: READY bodies of a stream, and their bytes, beyond which new bodies are refused.
        replicas: number of replicas of Redis that must confirm a commit, at least. gateways: processes like this one.
        """
        name = f"{NAME}:gateway:{os.getpid()}"
        self.redis = connection(address, TIMEOUT_SECONDS, client_name=name, redis_connect_func=open_layout)
        self.counts = Counts()
        self.sizes = self.counts.histogram("commit_bodies", SIZES)
        self.seconds = self.counts.histogram("commit_seconds", SECONDS)
        self.limits = max_backlog, max_bytes
        self.replicas, self.gateways = replicas, gateways
        self.full_since = 0.0  # monotonic; 0: Redis took the last push
        # 0, or how many milliseconds to ask for replicas before a push: too few of them confirmed the last commit (1),
        # or nothing was sent yet on this connection
        self.behind = CONFIRM_MS if replicas else 0
        self.required = replicas  # of the last WAIT
        self.away = False  # Redis did not answer in time, and a thread connects again: see `reconnect`
        self.closed: Refusal | None = None  # why nothing is accepted, without asking Redis
        self.reason: str | None = None  # what the last readiness check found: why /readyz says 503
        self.probe_due = AT_ONCE  # monotonic: end of PROBE_SECONDS
        self.open = Group()
        self.backlogs: dict[str, Backlog] = {}
        self.entry = threading.Lock()  # held for a moment, so that no item is added to a group that is being sent
        self.turn = threading.Lock()  # held for a round trip: one commit at a time
        self.cause = ""  # why the last connection was lost
        self.refusing: dict[str, str] = {}  # what the log said last: the reason, by stream, partition or check

    def append(self, stream: str, item: bytes) -> Group:
        """Add an item to the open group and return that group. Nothing is safe before `commit` has returned."""
        with self.entry:
            group = self.open
            try:
                group.items[stream].append(item)
            except KeyError:
                group.items[stream] = [item]
            return group

    def commit(self, group: Group) -> None:
        """Send the group, unless another thread has. On return `done` is set and `refused` is final."""
        with self.turn:
            if group.done:
                return
            with self.entry:
                self.open = Group()
            try:
                self.push_group(group)
            except (RedisError, OSError) as error:
                self.disconnect(error)
                self.refuse_all(group)
            except BaseException as error:  # a signal before the reply: the outcome is unknown, so nothing gets 2xx
                self.disconnect(error)
                self.refuse_all(group)
                raise
            finally:
                group.done = True
                self.probe_due = AT_ONCE

    def disconnect(self, cause: BaseException) -> None:
        """Close the connection, after this error. The next one may lead to a Redis that lost bodies, or has no
        replicas; a mark, or WAIT, tells it first.
        """
        self.redis.disconnect()
        self.cause = str(cause) or type(cause).__name__
        if self.replicas:
            self.behind = CONFIRM_MS
        self.probe_due = AT_ONCE
        for backlog in self.backlogs.values():
            backlog.mark_due = AT_ONCE
        if self.replicas or isinstance(cause, TimeoutError):
            self.away = True
            threading.Thread(target=self.reconnect, name="reconnect", daemon=True).start()

    def reconnect(self) -> None:
        """Connect again, in a thread. Meanwhile nothing else uses the connection, and everything is refused at once."""
        while self.away:
            try:
                self.redis.connect()  # this includes a question, which a Redis that hangs does not answer
                self.away = False
            except Exception as error:
                log.debug("cannot connect: %s", error)
                time.sleep(PAUSE_SECONDS)

    def push_group(self, group: Group) -> None:
        """One round trip: collect the commands, send all of them, read the replies in the same order."""
        now = time.monotonic()
        if self.away or self.closed:
            self.refuse_all(group)
            return
        if self.behind and not self.caught_up(group):  # probe first: otherwise each retry adds another copy
            return
        out: list[bytes] = []  # the commands
        readers: list[Reader] = []  # of their replies, in the same order
        for stream, items in group.items.items():
            backlog = self.backlogs.get(stream) or self.open_backlog(stream)
            over = backlog.length >= backlog.max_bodies or backlog.size >= backlog.max_bytes
            if over and self.is_full(backlog, now):
                self.refuse_excess(group, stream, backlog)
            else:
                readers.append(self.push_command(out, group, stream, items, backlog, now))
        if not readers:
            return
        if now >= self.counts.due and (delta := self.counts.delta()):
            out[:0] = self.redis.pack_command(*count_command(delta))
            readers.insert(0, partial(self.read_report, delta, now))
        if self.replicas:
            out += self.wait_command()
            readers.append(partial(self.read_wait_reply, group))
        self.redis.send_packed_command((b"".join(out),))
        accepted = 0
        for read in readers:
            accepted += read()
        self.sizes.add(accepted)
        self.seconds.add(time.monotonic() - now)

    def open_backlog(self, stream: str) -> Backlog:
        backlog = self.backlogs[stream] = Backlog(stream, *self.limits)
        self.counts.counters[f"bytes {stream}"] = backlog.bytes
        return backlog

    def push_command(
        self, out: list[bytes], group: Group, stream: str, items: list[bytes], backlog: Backlog, now: float
    ) -> Reader:
        """Append the RPUSH of a stream, before it a mark if one is due. Returns: the reader of the replies.

        Packed by hand, without a copy of an item before `join`: redis-py takes several times as long.
        """
        marked = now >= backlog.mark_due
        if marked:
            out += self.redis.pack_command(*backlog.mark)
        out += (b"*%d\r\n" % (len(items) + 2), backlog.push)
        for item in items:
            size = len(item)
            out.append(LENGTHS[size] if size < len(LENGTHS) else b"\r\n$%d\r\n" % size)
            out.append(item)
        out.append(b"\r\n")

        def read() -> int:
            refused = self.read_mark(backlog, now) if marked else None
            try:
                backlog.length = self.redis.read_response()
                if refused:  # the bodies may have got numbers that others had in this epoch
                    raise refused
            except ResponseError as error:
                backlog.mark_due = AT_ONCE  # what refused the push may have been a replica
                full = isinstance(error, OutOfMemoryError)
                self.full_since = (self.full_since or now) if full else 0.0
                reason = errors.REDIS_FULL if full else errors.REDIS_READ_ONLY % error
                since = now - self.full_since if full else 0.0  # it may be another stream that fills it
                self.refuse_stream(
                    group, stream, backlog.make_refusal(backlog.length // 20 + 1, reason, max(1.0, since))
                )
                return 0
            self.full_since = 0.0
            backlog.count_pushed(sum(map(len, items)))
            if stream in self.refusing:
                self.log_change(stream, None)
            return len(items)

        return read

    def wait_command(self) -> list[bytes]:
        self.required = required(self.redis, self.replicas)
        packed: list[bytes] = self.redis.pack_command("WAIT", self.required, self.behind or CONFIRM_MS)
        return packed

    def read_wait_reply(self, group: Group) -> int:
        """Read the reply of WAIT. If too few replicas confirmed this connection's last write, the group is refused."""
        try:
            self.behind = int(self.redis.read_response() < self.required)
        except ResponseError as error:  # the master has become a replica
            raise ConnectionError(f"WAIT: {error}") from None
        if not self.behind:
            self.log_change("replicas", None)
        for stream in group.items.keys() - (group.refused or {}).keys() if self.behind else ():
            self.refuse_stream(group, stream, Refusal(errors.REPLICAS_BEHIND % self.required, 1), "replicas")
        return 0

    def caught_up(self, group: Group) -> bool:
        """Whether enough replicas have all writes of this connection; else the group is refused."""
        self.redis.send_packed_command(self.wait_command())
        self.read_wait_reply(group)
        return not self.behind

    def read_report(self, delta: dict[str, int], now: float) -> int:
        """Read the reply to a report of counts. If the reply is lost, the report may be counted twice."""
        self.counts.due = now + REPORT_SECONDS
        try:
            self.redis.read_response()
            self.counts.confirm(delta)
        except ResponseError as error:  # the next report includes it
            log.debug("counts not reported: %s", error)
        return 0

    def report_counts(self, last: bool = False) -> None:
        """Report the counts to Redis, if no commit has done so within REPORT_SECONDS. last: in any case."""
        with self.turn:
            now = time.monotonic()
            if self.away or (now < self.counts.due and not last) or not (delta := self.counts.delta()):
                return
            try:
                self.redis.send_command(*count_command(delta))
                self.read_report(delta, now)
            except (RedisError, OSError) as error:
                self.disconnect(error)

    def check_disk(self, place: Path) -> None:
        """Refuse everything while the disk of Redis has too little room beyond its reserve: what waits is written there
        once more when it is claimed. Call this about once a second. place: Redis's directory.
        """
        spare = disk.spare_bytes(place)
        with self.turn:
            if spare < self.waiting_bytes() and not self.away:
                try:
                    for backlog in self.backlogs.values():
                        self.is_full(backlog, time.monotonic())  # what waited may have been taken
                except (RedisError, OSError) as error:
                    self.disconnect(error)
            self.closed = Refusal(errors.DISK_FULL, DISK_SECONDS) if spare < self.waiting_bytes() else None

    def waiting_bytes(self) -> int:
        """The bytes of all READY bodies that this process knows of."""
        return sum(backlog.size for backlog in self.backlogs.values())

    def is_full(self, backlog: Backlog, now: float) -> bool:
        """Ask Redis whether a full backlog still is: a client that waited for Retry-After must be accepted."""
        if now >= backlog.mark_due:
            self.redis.send_command(*backlog.mark)
            self.read_mark(backlog, now)
        return backlog.excess_bodies() > 0

    def read_mark(self, backlog: Backlog, now: float) -> ResponseError | None:
        """Read a mark's reply; returns the error if Redis refused the mark.

        now: when the mark was sent. The next one is due from then, because the reply may have waited for an fsync.
        """
        try:
            backlog.update_from_mark(*self.redis.read_response())
            backlog.mark_due = now + MARK_SECONDS
        except ResponseError as error:
            backlog.mark_due = AT_ONCE
            return error
        return None

    def refuse_stream(self, group: Group, stream: str, refusal: Refusal, subject: str = "", cause: str = "") -> None:
        """Refuse the bodies of one stream. subject: what the log calls it, unless by its name. cause: for the log."""
        if group.refused is None:
            group.refused = {}
        group.refused[stream] = refusal
        counted = refusal.reason.partition(":")[0].rstrip(".")  # Redis's own text would give too many reasons
        self.counts.counter(f"refused {stream} {counted}").n += len(group.items[stream])
        self.log_change(subject or stream, refusal.reason, cause)

    def refuse_excess(self, group: Group, stream: str, backlog: Backlog) -> None:
        backlog.refused_bodies += len(group.items[stream])
        # the clients that other processes have refused come back, too
        excess = backlog.excess_bodies() - 1 + backlog.refused_bodies * self.gateways
        self.refuse_stream(group, stream, backlog.make_refusal(excess, errors.BACKLOG_FULL))

    def refuse_all(self, group: Group) -> None:
        """Refuse a group without a reply: its bodies may or may not be on the list."""
        for stream in group.items:
            if self.closed:
                self.refuse_stream(group, stream, self.closed)
            else:
                self.refuse_stream(group, stream, Refusal(self.down, 1), cause=self.cause)

    def log_change(self, subject: str, reason: str | None, cause: str = "") -> None:
        """Log one line when refusals start or their reason changes, and one when they end.

        subject: a stream, a partition, /readyz, or "replicas". cause: what is behind the reason; the first one is
        logged.
        """
        if reason == self.refusing.get(subject):
            return
        if reason:
            self.refusing[subject] = reason
            log.warning("%s: refusing bodies: %s", subject, f"{reason} ({cause})" if cause else reason)
        else:
            del self.refusing[subject]
            log.warning("%s: accepting bodies again", subject)

    def unready_reason(self) -> str | None:
        """None if Redis accepts writes and enough replicas confirm them, else the reason why not."""
        with self.turn:
            if self.away:
                return self.down
            if time.monotonic() < self.probe_due:
                return self.reason
            try:
                self.reason = self.probe_redis()
            except ResponseError as error:
                self.reason = errors.REDIS_READ_ONLY % error
            except (RedisError, OSError) as error:
                self.disconnect(error)
                self.reason = self.down
            self.log_change("/readyz", self.reason, self.cause if self.reason == self.down else "")
            self.probe_due = time.monotonic() + PROBE_SECONDS
            return self.reason

    def probe_redis(self) -> str | None:
        """Write to Redis. Returns: None, or the reason why bodies would be refused. Raises: RedisError, OSError."""
        if self.closed:
            return self.closed.reason
        if not self.behind or self.caught_up(Group()):  # do not make each check wait
            self.redis.send_command("SET", PROBED, "1", "EX", "60")
            self.redis.read_response()
            if self.replicas:
                self.caught_up(Group())
        return errors.REPLICAS_BEHIND % self.required if self.behind else None
