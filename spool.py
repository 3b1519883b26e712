"""The Redis contract (PROTOCOL.md, section 4): what the gateway puts on the lists and how a worker takes it off.

Bodies are opaque bytes here. `Inlet` is the gateway's side: append, commit. `Outlet` is the worker's: claim, renew,
settle.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.retry import Retry

from counts import EVERY, SECONDS, SIZES, Cell, Counts

log = logging.getLogger("sluice.spool")

TIMEOUT = 3.0  # seconds that Redis may take for one reply; longer than a bad fsync, shorter than a client's patience
REPLICAS_MS = 1000  # that replicas may take, where they are waited for
MARK_EVERY = 0.1  # seconds between two marks of one process and stream: the precision of received_at
CLAIM_BODIES = 5_000
CLAIM_BYTES = 4 << 20  # a worker holds one claim a stream, decoded piece by piece: this keeps it under 100 MB
LEASE = 5.0  # seconds after which the claim of a dead worker is claimed again
RETRY_MOST = 60  # seconds: the longest Retry-After
SMOOTH = 10.0  # seconds over which the drain rate is taken, once so many were seen

# Sent whole with every call (EVAL): Redis caches them by their hash, and a SCRIPT FLUSH does no harm.
MARK = """
local t = redis.call('TIME')
local claimed = tonumber(redis.call('GET', KEYS[2]) or 0)
local ready = redis.call('LLEN', KEYS[1])
local seq = string.format('%.0f', claimed + ready + 1)
local us = t[1] .. string.format('%06d', t[2])
redis.call('ZREMRANGEBYSCORE', KEYS[3], seq, seq) -- only the last counts, and while nothing is taken they would pile up
redis.call('ZADD', KEYS[3], seq, seq .. ':' .. us)
return {claimed, ready, us, redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) or 0}
"""

# allow-oom: what empties a full Redis must run in it. A list that fits whole becomes the claim by its new name, which
# copies nothing and writes no body to the append-only file again; of a longer one the head moves over in pieces.
CLAIM = """#!lua flags=allow-oom
local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local prefix, most, bytes, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- with the marks that date its bodies: the last one at or before the first, and those within
local function give(id, n, size)
  local first = tonumber(string.match(id, ':(%d+):'))
  local low, last = string.format('%.0f', first), string.format('%.0f', first + n - 1)
  local before = redis.call('ZREVRANGEBYSCORE', KEYS[4], low, '-inf', 'LIMIT', 0, 1)
  return {id, n, size, before, redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. low, last)}
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms, 'LIMIT', 0, 1)[1]
if expired then
  redis.call('ZADD', KEYS[3], ms + lease, expired)
  local key = prefix .. expired
  return give(expired, redis.call('LLEN', key), redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) or 0)
end
local ready = redis.call('LLEN', KEYS[1])
if ready == 0 then return false end
local claimed = tonumber(redis.call('GET', KEYS[2]) or 0)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local id = run .. ':' .. string.format('%.0f', claimed + 1) .. ':' .. t[1] .. string.format('%06d', t[2])
local key = prefix .. id
local n, size = 0, 0
if ready <= most then size = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) end
if ready <= most and size <= bytes then
  n = ready
  redis.call('RENAME', KEYS[1], key)
else
  size = 0
  local step = 1
  repeat
    local bodies = redis.call('LPOP', KEYS[1], math.min(step, most - n))
    if not bodies then break end
    redis.call('RPUSH', key, unpack(bodies))
    n = n + #bodies
    local before = size
    for _, body in ipairs(bodies) do size = size + #body end
    -- longer steps while they weigh little; the longest bounds what one step may take beyond `bytes`
    if (size - before) * 8 > bytes then step = math.max(1, math.floor(step / 8)) else step = math.min(step * 2, 32) end
  until n >= most or size >= bytes
end
redis.call('SET', KEYS[2], string.format('%.0f', claimed + n))
redis.call('ZADD', KEYS[3], ms + lease, id)
return give(id, n, size)
"""

RENEW = """#!lua flags=allow-oom
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[1], t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2], ARGV[1])
return 1
"""

# The oldest body that may still be asked for is the first of an open claim, or else the head of the list; the mark
# that dates it is kept, those before it go.
SETTLE = """#!lua flags=allow-oom
redis.call('UNLINK', ARGV[1] .. ARGV[2])
local settled = redis.call('ZREM', KEYS[2], ARGV[2])
local oldest = tonumber(redis.call('GET', KEYS[1]) or 0) + 1
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  oldest = math.min(oldest, tonumber(string.match(id, ':(%d+):')))
end
local keep = redis.call('ZREVRANGEBYSCORE', KEYS[3], string.format('%.0f', oldest), '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
if keep[2] then redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. keep[2]) end
return settled
"""

# Bodies from a sequence number on, claims first, in order; cut off where they are many or long.
PEEK = """
local from, most, bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local claimed = tonumber(redis.call('GET', KEYS[2]) or 0)
local lists = {{claimed + 1, KEYS[1], 'ready'}}
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  lists[#lists + 1] = {tonumber(string.match(id, ':(%d+):')), ARGV[1] .. id, 'claimed'}
end
table.sort(lists, function(a, b) return a[1] < b[1] end)
local found, size = {}, 0
for _, list in ipairs(lists) do
  local at = math.max(0, from - list[1])
  local length = redis.call('LLEN', list[2])
  while at < length and #found < most and size < bytes do
    for _, body in ipairs(redis.call('LRANGE', list[2], at, math.min(at + 7, at + most - #found - 1))) do
      found[#found + 1] = {list[1] + at, list[3], body}
      size, at = size + #body, at + 1
    end
  end
end
return {claimed + redis.call('LLEN', KEYS[1]), found}
"""

# The sequence numbers of purged bodies are never given again, and the ledger knows how many there were.
PURGE = """#!lua flags=allow-oom
local claimed = tonumber(redis.call('GET', KEYS[2]) or 0)
local n = math.min(tonumber(ARGV[1]) - claimed, redis.call('LLEN', KEYS[1]))
if n <= 0 then return 0 end
redis.call('LTRIM', KEYS[1], n, -1)
redis.call('SET', KEYS[2], string.format('%.0f', claimed + n))
redis.call('INCRBY', KEYS[5], n)
return n
"""

# A full Redis still counts: the hash has a few dozen fields.
COUNT = """#!lua flags=allow-oom
for at = 1, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 1
"""
COUNTS = "ingest:counts"  # of the whole installation
NAME = "sluice"  # the names of connections begin so: sluice:gateway:PID, sluice:worker:PID:STREAM@FIRST:…

# Since when: the mark that dates the first body of a claim, and the head of the list. Bytes: Redis looks at some nodes
# of a list and reckons the others alike.
SNAPSHOT = """
local function since(seq)
  local mark = redis.call('ZREVRANGEBYSCORE', KEYS[4], string.format('%.0f', seq), '-inf', 'LIMIT', 0, 1)[1]
  return mark and string.match(mark, ':(%d+)') or false
end
local function bytes(key) return redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 16) or 0 end
local claims, size = {}, bytes(KEYS[1])
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  size = size + bytes(ARGV[1] .. id)
  claims[#claims + 1] = {id, redis.call('LLEN', ARGV[1] .. id), since(tonumber(string.match(id, ':(%d+):')))}
end
local t = redis.call('TIME')
local claimed = tonumber(redis.call('GET', KEYS[2]) or 0)
return {t[1] .. string.format('%06d', t[2]), claimed, redis.call('LLEN', KEYS[1]), since(claimed + 1), claims, size,
  tonumber(redis.call('GET', KEYS[5]) or 0)}
"""


STREAM = re.compile(rb"ingest:\{([^}]+)\}")


class Keys(NamedTuple):
    """The names of one stream's keys; the only place where they are spelled."""

    ready: str
    claimed: str
    claims: str
    marks: str
    purged: str
    claim: str  # a prefix: the claim's id follows

    @classmethod
    def of(cls, stream: str) -> Keys:
        """The keys of a stream, all in one slot of a Redis Cluster."""
        base = "ingest:{%s}" % stream
        return cls(base, f"{base}:claimed", f"{base}:claims", f"{base}:marks", f"{base}:purged", f"{base}:claim:")


class Refused(NamedTuple):
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
        self.refused: dict[str, Refused] | None = None


class Line:
    """What a gateway process knows of one stream: its length at the last reply, and how fast it is drained."""

    def __init__(self, stream: str, most: int = 1 << 62, most_bytes: int = 1 << 62) -> None:
        """most, most_bytes: READY bodies, and bytes of them, beyond which nothing more is taken."""
        keys = Keys.of(stream)
        self.most, self.most_bytes = most, most_bytes
        self.bound = most  # bodies: as many of the present size as are within both
        key = keys.ready.encode()
        self.bytes = Cell()  # of the bodies taken
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

    def full(self, excess: int, detail: str) -> Refused:
        """The refusal of a stream that has `excess` bodies too many."""
        idle = self.watched if self.watched < SMOOTH else RETRY_MOST  # nobody was seen to take anything for so long
        seconds = excess / self.rate if self.rate > 0 else idle
        return Refused(detail, min(max(math.ceil(seconds), 1), RETRY_MOST))


class Inlet:
    """The gateway's side, one a process: many requests, one round trip. Safe with threads and greenlets."""

    def __init__(self, socket: str, max_backlog: int, replicas: int = 0, max_bytes: int = 1 << 62) -> None:
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
        self.lines: dict[str, Line] = {}
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
                line = self.lines[stream] = Line(stream, *self.bounds)
                self.counts.cells[f"bytes {stream}"] = line.bytes
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
        news = {}
        if now >= self.counts.due and (news := self.counts.news()):
            out.insert(0, b"".join(self.redis.pack_command(*count(news))))
        self.redis.send_packed_command((b"".join(out),))
        if news:
            self.counted(news, now)
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
            batch.refused = dict.fromkeys(batch.bodies, Refused(why, 1)) | (batch.refused or {})
        self.say("replicas", why)
        return self.lacking

    def counted(self, news: dict[str, int], now: float) -> None:
        """Read the reply to a report. Of one whose reply does not come nobody knows: it may count twice."""
        self.counts.due = now + EVERY
        try:
            self.redis.read_response()
            self.counts.confirm(news)
        except ResponseError as error:  # it will be part of the next
            log.debug("not counted: %s", error)

    def report(self, last: bool = False) -> None:
        """Tell Redis what was counted, if no commit has for a second, or if it is the last time."""
        with self.turn:
            now = time.monotonic()
            if (now < self.counts.due and not last) or not (news := self.counts.news()):
                return
            try:
                self.redis.send_command(*count(news))
                self.counted(news, now)
            except (RedisError, OSError):
                self.redis.disconnect()

    def look(self, line: Line, now: float) -> None:
        """See whether a full stream has room again: a client that waited as it was told must get in."""
        self.redis.send_command(*line.mark)
        self.read_mark(line, now)

    def read_mark(self, line: Line, now: float) -> None:
        """Read a mark's reply. A full Redis takes no mark; the push that follows says so.

        now: before it was sent. The reply may have waited for an fsync, or longer, and so long was the mark true.
        """
        try:
            line.marked(*self.redis.read_response())
            line.mark_due = now + MARK_EVERY
        except ResponseError:
            line.mark_due = 0.0

    def refuse(self, batch: Batch, stream: str, refused: Refused) -> None:
        """Note that one stream's bodies are not on the list."""
        if batch.refused is None:
            batch.refused = {}
        batch.refused[stream] = refused
        self.count_refused(batch, stream, refused.detail)
        self.say(stream, refused.detail)

    def count_refused(self, batch: Batch, stream: str, detail: str) -> None:
        """Count bodies that get 503, by the reason without Redis's own text, which stands behind a colon."""
        reason = detail.partition(":")[0].rstrip(".")
        self.counts.cell(f"refused {stream} {reason}").n += len(batch.bodies[stream])

    def refuse_all(self, batch: Batch, error: BaseException) -> None:
        """The answer of a batch whose reply did not come: it may or may not be on the list."""
        for line in self.lines.values():
            line.mark_due = 0.0
        for stream in batch.bodies:
            self.refuse(batch, stream, Refused("Redis does not answer.", 1))
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
                self.redis.send_command("SET", "ingest:ready", "1", "EX", "60")
                self.redis.read_response()
            except ResponseError as error:
                return f"Redis refuses to write: {error}"
            except (RedisError, OSError):
                self.redis.disconnect()
                return "Redis does not answer."
        return None


def count(news: dict[str, int]) -> tuple[Any, ...]:
    """The command that adds these up in Redis."""
    return "EVAL", COUNT, 1, COUNTS, *(part for pair in news.items() for part in pair)


class Claim(NamedTuple):
    """One claimed batch: its bodies have the sequence numbers first, first + 1, …

    size: bytes, roughly.
    marks: (sequence number, microseconds since 1970), ascending, from the last at or before first.
    """

    stream: str
    id: str
    first: int
    count: int  # type: ignore[assignment]
    size: int
    marks: list[tuple[int, int]]

    def received(self, seq: int) -> tuple[int, int]:
        """When the body with this sequence number arrived (microseconds since 1970, up to 100 ms early), and the
        sequence number from which on another mark holds.
        """
        at = bisect_right(self.marks, (seq, 1 << 62))
        until = self.marks[at][0] if at < len(self.marks) else self.first + self.count
        return self.marks[max(at - 1, 0)][1], until


class Snapshot(NamedTuple):
    """What lies in Redis of a stream.

    claimed: bodies ever claimed. ready: READY bodies. claims: the open claims, id -> bodies.
    waiting: claim id, or "" for the READY ones -> seconds since the first of these bodies arrived, where a mark tells.
    size: bytes of memory that all of these bodies take, roughly. purged: bodies that an operator threw away.
    """

    claimed: int
    ready: int
    claims: dict[str, int]
    waiting: dict[str, float]
    size: int
    purged: int


class Process(NamedTuple):
    """A process that Redis knows: what it is (gateway or worker), its id, and of a worker the claims that it holds."""

    role: str
    pid: int
    claims: list[tuple[str, int]]  # (stream, first sequence number)


class Lost(Exception):
    """A claim's bodies are not what they were: somebody else settled it, or Redis lost it. Nothing may be stored."""


class Outlet:
    """The worker's side, and the operator's: claim, renew, settle, and what lies where. Safe with threads."""

    def __init__(
        self, socket: str, patience: float = 30, replicas: int = 0, most: int = CLAIM_BODIES, size: int = CLAIM_BYTES
    ) -> None:
        """socket: the path of Redis's Unix socket. patience: seconds that it may take for one reply.

        replicas: of Redis that must know of a claim before it is given away.
        most: bodies of a claim. size: bytes after which no more bodies are added.
        """
        self.most, self.size = most, size
        # A claim whose reply was lost is claimed again when its lease ends, so no retry is needed here either.
        self.redis = redis.Redis(
            unix_socket_path=socket,
            socket_timeout=patience,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        )
        # An idle worker looks often. Through the client a look costs four times the CPU.
        self.replicas = replicas
        self.glance = redis.UnixDomainSocketConnection(  # type: ignore[abstract]
            path=socket, socket_timeout=patience, socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0)
        )
        # What a worker says of itself, also while it stores. The name of a connection is gone with the process.
        self.desk = redis.UnixDomainSocketConnection(  # type: ignore[abstract]
            path=socket, socket_timeout=patience, socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0)
        )
        self.counts = Counts()
        self.telling = threading.Lock()

    def claim(self, stream: str, most: int = 0, size: int = 0, lease: float = LEASE) -> Claim | None:
        """Claim an expired batch or else the head of the list; None if there is nothing.

        most, size: as above unless given. lease: seconds.
        Raises: RedisError, also where too few replicas know of the claim: it comes again when its lease ends.
        """
        return self.claiming(stream, most, size, lease)()

    def claiming(self, stream: str, most: int = 0, size: int = 0, lease: float = LEASE) -> Callable[[], Claim | None]:
        """Ask for a claim without waiting for it: what this returns waits, once. Arguments, errors: as `claim`."""
        keys = Keys.of(stream)
        most, size = most or self.most, size or self.size
        asked: list[tuple[Any, ...]] = [("EVAL", CLAIM, 4, *keys[:4], keys.claim, most, size, int(lease * 1000))]
        if self.replicas:
            asked.append(("WAIT", self.replicas, REPLICAS_MS))  # of what its own connection wrote
        pool = self.redis.connection_pool
        connection = pool.get_connection()

        def wait() -> Claim | None:
            try:
                taken, *known = [connection.read_response() for _ in asked]
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)
            if taken is None:
                return None
            if known and known[0] < self.replicas:
                raise RedisError(f"fewer than {self.replicas} replicas know of a claim")
            name, count, size, before, within = taken
            _, first, at = name.split(b":")
            marks = [(int(seq), int(us)) for seq, us in (mark.split(b":") for mark in before + within)]
            return Claim(stream, name.decode(), int(first), count, size, marks or [(int(first), int(at))])

        try:
            connection.send_packed_command(connection.pack_commands(asked))
        except BaseException:
            pool.release(connection)
            raise
        return wait

    def bodies(self, claim: Claim) -> Iterator[bytes]:
        """The bodies of a claim, in order, read in pieces that fit into memory.

        Raises: Lost if they are not all there.
        """
        key = Keys.of(claim.stream).claim + claim.id
        step = claim.count if claim.size <= self.size else 8
        for start in range(0, claim.count, step):
            bodies: list = self.redis.lrange(key, start, start + step - 1)
            if len(bodies) != min(step, claim.count - start):
                raise Lost(f"{claim.stream}: claim {claim.id} is gone from Redis")
            yield from bodies

    def renew(self, claim: Claim, lease: float = LEASE) -> bool:
        """Move the end of the lease; False if the claim is no longer there."""
        keys = Keys.of(claim.stream)
        return bool(self.redis.eval(RENEW, 1, keys.claims, claim.id, int(lease * 1000)))

    def settle(self, claim: Claim) -> None:
        """Forget a claim whose bodies are in the sink, and the marks that nothing needs any more."""
        keys = Keys.of(claim.stream)
        self.redis.eval(SETTLE, 3, keys.claimed, keys.claims, keys.marks, keys.claim, claim.id)

    def waiting(self, streams: list[str]) -> list[bool]:
        """For each stream whether there is anything to claim, or will be when a lease ends. For one thread."""
        names = [(keys.ready, keys.claims) for keys in map(Keys.of, streams)]
        try:
            self.glance.send_packed_command(self.glance.pack_commands([("EXISTS", *pair) for pair in names]))
            return [bool(self.glance.read_response()) for _ in names]
        except BaseException:
            self.glance.disconnect()
            raise

    def snapshot(self, stream: str) -> Snapshot:
        """What lies where at one moment."""
        keys = Keys.of(stream)
        now, claimed, ready, since, claims, size, purged = self.redis.eval(SNAPSHOT, 5, *keys[:5], keys.claim)
        waiting = {name.decode(): at for name, _, at in claims} | ({"": since} if ready else {})
        return Snapshot(
            claimed,
            ready,
            {name.decode(): count for name, count, _ in claims},
            {name: max(0, int(now) - int(at)) / 1e6 for name, at in waiting.items() if at},
            size,
            purged,
        )

    def peek(self, stream: str, first: int = 0, most: int = 100) -> tuple[int, list[tuple[int, str, bytes]]]:
        """Look at bodies without taking them: the last sequence number there is, and (sequence number, state, body) of
        those from `first` on that are claimed or ready. A few if they are long.
        """
        keys = Keys.of(stream)
        last, found = self.redis.eval(PEEK, 3, *keys[:3], keys.claim, first, most, self.size)
        return last, [(seq, state.decode(), body) for seq, state, body in found]

    def purge(self, stream: str, last: int) -> int:
        """Throw READY bodies away, up to a sequence number; how many."""
        return self.redis.eval(PURGE, 5, *Keys.of(stream)[:5], last)

    def requeue(self, stream: str) -> int:
        """End the leases of all open claims, as if their workers were dead; how many. Raises: RedisError."""
        keys = Keys.of(stream)
        claims: Any = self.redis.zrange(keys.claims, 0, -1)
        return sum(bool(self.redis.eval(RENEW, 1, keys.claims, claim, 0)) for claim in claims)

    def report(self, held: Iterable[Claim] = ()) -> None:
        """Tell Redis that this worker lives, what it holds and what it has counted.

        Raises: RedisError.
        """
        name = ":".join([NAME, "worker", str(os.getpid()), *(f"{quote(claim.stream)}@{claim.first}" for claim in held)])
        with self.telling:
            news = self.counts.news()
            commands = [("CLIENT", "SETNAME", name), *([count(news)] if news else [])]
            try:
                self.desk.send_packed_command(self.desk.pack_commands(commands))
                for _ in commands:
                    self.desk.read_response()
                self.counts.confirm(news)
            except BaseException:
                self.desk.disconnect()
                raise

    def processes(self) -> list[Process]:
        """The gateway and worker processes that are connected."""
        found = []
        for client in self.redis.client_list():
            name, *rest = client["name"].split(":")
            if name == NAME and len(rest) >= 2:
                claims = [claim.rpartition("@") for claim in rest[2:]]
                found.append(Process(rest[0], int(rest[1]), [(unquote(stream), int(at)) for stream, _, at in claims]))
        return sorted(found)

    def counted(self) -> dict[str, int]:
        """All that the processes have counted, by field."""
        found: Any = self.redis.hgetall(COUNTS)
        return {field.decode(): int(n) for field, n in found.items()}

    def memory(self) -> tuple[int, int]:
        """Bytes that Redis uses, and that it may use (0: no bound)."""
        info = self.redis.info("memory")
        return info["used_memory"], info["maxmemory"]

    def streams(self) -> set[str]:
        """All streams of which there is anything in Redis."""
        found = (STREAM.match(key) for key in self.redis.scan_iter("ingest:{*", count=1000))
        return {match[1].decode("utf-8", "replace") for match in found if match}
