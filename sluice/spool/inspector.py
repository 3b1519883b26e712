"""The operator's side of the list between gateway and worker: peek, purge, release."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from sluice.spool import contract
from sluice.spool.claim import Claim
from sluice.spool.contract import Keys
from sluice.spool.snapshot import Snapshot, Snapshots

PEEK_BYTES = 4 << 20  # of items that one peek returns
FOLLOW_SECONDS = 0.005
Seen = tuple[Any, str, bytes]  # sequence number, state, item

# The bodies from a sequence number on, in order, claims first, up to a number of bodies and bytes.
PEEK = """
local from, max_bodies, max_bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local taken = tonumber(redis.call('GET', KEYS[2]) or 0)
local lists = {{taken + 1, KEYS[1], 'ready'}}
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  lists[#lists + 1] = {tonumber(string.match(id, ':(%d+):')), ARGV[1] .. id, 'claimed'}
end
table.sort(lists, function(a, b) return a[1] < b[1] end)
local seen, size = {}, 0
for _, list in ipairs(lists) do
  local at = math.max(0, from - list[1])
  local length = redis.call('LLEN', list[2])
  while at < length and #seen < max_bodies and size < max_bytes do
    for _, body in ipairs(redis.call('LRANGE', list[2], at, math.min(at + 7, at + max_bodies - #seen - 1))) do
      seen[#seen + 1] = {list[1] + at, list[3], body}
      size, at = size + #body, at + 1
    end
  end
end
return {taken + redis.call('LLEN', KEYS[1]), seen}
"""

# Purged bodies count as taken, so that their sequence numbers are not used again, and as purged, for the ledger.
# A number says nothing without its epoch: the operator has seen the last epoch of a list, and bodies of a later one,
# or of another list, stay.
PURGE = """#!lua flags=allow-oom
local last, seen = tonumber(ARGV[1]), false
for _, epoch in ipairs(redis.call('ZRANGE', KEYS[6], 0, -1)) do
  if epoch == ARGV[2] then seen = true
  elseif seen then
    last = math.min(last, tonumber(redis.call('ZSCORE', KEYS[6], epoch)) - 1)
    break
  end
end
if not seen and (ARGV[2] ~= '' or redis.call('EXISTS', KEYS[6]) == 1) then return 0 end
local taken = tonumber(redis.call('GET', KEYS[2]) or 0)
local n = math.min(last - taken, redis.call('LLEN', KEYS[1]))
if n <= 0 then return 0 end
redis.call('LTRIM', KEYS[1], n, -1)
redis.call('SET', KEYS[2], string.format('%.0f', taken + n))
redis.call('INCRBY', KEYS[5], n)
return n
"""


class NoSuchVerb(Exception):
    """A verb that the tools of what is in the list's place do better. The text says which tool."""


class Process(NamedTuple):
    """A process that is connected to Redis. role: gateway or worker. claims: those that a worker holds.

    errors: stream -> why the worker cannot store its bodies.
    """

    role: str
    pid: int
    claims: list[tuple[str, int]]  # (stream, first sequence number)
    errors: dict[str, str] = {}


class Inspector(Snapshots):
    """Reads the bodies that wait, purges them, and releases claims. Every method raises RedisError."""

    def require(self, verb: str) -> None:
        """Whether there is such a verb for this spool. Raises: NoSuchVerb."""

    def peek(self, stream: str, first: int = 0, limit: int = 100) -> tuple[int, list[tuple[int, str, bytes]]]:
        """Read items without claiming them: the last sequence number of the stream, and (sequence number, state, item)
        of READY and CLAIMED ones from `first` on. At most `limit` of them, and no more after PEEK_BYTES.
        """
        keys = Keys.for_stream(stream)
        last, items = self.redis.eval(PEEK, 3, *keys[:3], keys.claim, first, limit, PEEK_BYTES)
        return last, [(seq, state.decode(), item) for seq, state, item in items]

    def waiting(self, stream: str, first: int, limit: int) -> Iterator[Seen]:
        """READY and CLAIMED items from a sequence number on, at most `limit`."""
        while items := self.peek(stream, first, limit)[1]:
            yield from items
            limit, first = limit - len(items), items[-1][0] + 1

    def follow(self, stream: str) -> tuple[str, Iterator[Seen | int]]:
        """Where it starts, and from there the items as they arrive, for ever; a number: so many were gone already.

        The list is read 200 times a second: a worker stores a single body in about as long.
        """
        start = self.peek(stream, limit=0)[0] + 1

        def arrivals(following: int) -> Iterator[Seen | int]:
            while True:
                last, items = self.peek(stream, following)
                for item in items:
                    if item[0] > following:
                        yield item[0] - following
                    yield item
                    following = item[0] + 1
                if not items:
                    if last >= following:
                        yield last + 1 - following
                    following = last + 1  # a lower number: Redis was emptied, or lost the end of its log
                    time.sleep(FOLLOW_SECONDS)

        return f"sequence number {start}", arrivals(start)

    def claimed(self, stream: str, seq: str | None = None) -> Iterator[tuple[Claim, int, bytes]]:
        """CLAIMED bodies, or the one with this sequence number: a claim of each alone, its arrival, its item."""
        for id, count in self.take_snapshot(stream).claims.items():
            claim = Claim.from_id(stream, id, count)
            for n, state, item in self.waiting(stream, claim.first, claim.count):
                if state == "claimed" and claim.first <= n < claim.end and seq in (None, str(n)):
                    yield claim.part(n, n + 1), self.received(stream, n), item

    def received(self, stream: str, seq: int) -> int:
        """When a body arrived, or was claimed if no mark dates it: microseconds since 1970."""
        at: Any = self.redis.zrevrangebyscore(Keys.for_stream(stream).marks, seq, "-inf", start=0, num=1)
        return int(at[0].split(b":")[1]) if at else int(time.time() * 1e6)

    def purge(self, stream: str, seen: Snapshot) -> int:
        """Discard the READY bodies that a snapshot has counted; returns their number."""
        keys, epoch = Keys.for_stream(stream), seen.history[-1].epoch if seen.history else ""
        return int(self.redis.eval(PURGE, 6, *keys[:5], keys.history, seen.taken + seen.ready, epoch))

    def write_off(self, stream: str, bodies: int) -> None:
        """Count bodies that are neither here nor in the database as purged."""
        self.redis.incrby(Keys.for_stream(stream).purged, bodies)

    def release(self, stream: str) -> int:
        """End the leases of all open claims, so that they are claimed again; returns their number."""
        keys = Keys.for_stream(stream)
        claims: Any = self.redis.zrange(keys.claims, 0, -1)
        return sum(bool(self.redis.eval(contract.RENEW, 1, keys.claims, claim, 0)) for claim in claims)

    def processes(self) -> list[Process]:
        """The gateway and worker processes that are connected to Redis, by the names of their connections."""
        processes = []
        for connected in self.redis.client_list():
            name, *rest = connected["name"].split(":")
            if name == contract.NAME and len(rest) >= 2:
                role, pid, *held = rest
                claims = [(unquote(stream), int(at)) for stream, _, at in (claim.rpartition("@") for claim in held)]
                errors: Any = self.redis.get(contract.ERRORS + pid) if role == "worker" else None
                processes.append(Process(role, int(pid), claims, json.loads(errors or "{}")))
        return sorted(processes, key=lambda process: process[:3])

    def counters(self) -> dict[str, int]:
        counts: Any = self.redis.hgetall(contract.COUNTS)
        return {field.decode(): int(n) for field, n in counts.items()}

    def memory(self) -> tuple[int, int]:
        """Bytes that Redis uses, and its limit (0: none)."""
        info = self.redis.info("memory")
        return info["used_memory"], info["maxmemory"]
