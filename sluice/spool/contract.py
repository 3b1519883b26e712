"""The Redis contract (docs/PROTOCOL.md, section 4): keys, scripts, and what both sides of the list agree on.

Bodies are opaque bytes here. `inlet` is the gateway's side, `outlet` the worker's, `inspector` the operator's.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Any, NamedTuple

TIMEOUT = 3.0  # seconds that Redis may take for one reply; longer than a bad fsync, shorter than a client's patience
REPLICAS_MS = 1000  # that replicas may take, where they are waited for
LEASE = 5.0  # seconds after which the claim of a dead worker is claimed again

COUNTS = "ingest:counts"  # of the whole installation
PROBE = "ingest:ready"  # written by the gateway's readiness check
PATTERN = "ingest:{*"  # matches every key of every stream
NAME = "sluice"  # the names of connections begin so: sluice:gateway:PID, sluice:worker:PID:STREAM@FIRST:…
STREAM = re.compile(rb"ingest:\{([^}]+)\}")

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


def count(delta: dict[str, int]) -> tuple[Any, ...]:
    """The command that adds these up in Redis."""
    return "EVAL", COUNT, 1, COUNTS, *(part for pair in delta.items() for part in pair)


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
