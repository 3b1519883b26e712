"""The Redis contract (docs/protocol/spool.md): keys, scripts, and the constants that gateway and worker share.

    READY ──claim──> CLAIMED ──persist, settle──> STORED, or DEAD if the store cannot store it
      ^                 │  ^
    commit              └──┘ claimed again when the lease ends

READY and CLAIMED bodies are in Redis, STORED and DEAD ones in the store. Bodies are opaque bytes here. A number names a
body only together with its epoch. The gateway's side is `inlet`, the worker's `outlet`, the operator's `inspector`;
what the last two know of the lists is a `snapshot`.
"""

from __future__ import annotations

import contextlib
import re
from functools import cache
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, ResponseError

from sluice.spool.errors import EARLIER, NewerKeys

TIMEOUT_SECONDS = 3.0  # to wait for one reply: longer than a slow fsync, shorter than a client waits
UNHURRIED_SECONDS = 30.0  # to wait for one reply where no client waits
REPLICAS_MS = 1000  # that a worker waits for replicas
LEASE_SECONDS = 5.0  # until the claim of a dead worker is claimed again
RENEW_SECONDS = LEASE_SECONDS / 4  # between two renewals; also to wait for the reply to one
AT_ONCE = 0.0  # monotonic: what is due then is due now
NAME = "sluice"  # prefix of connection names: sluice:gateway:PID, sluice:worker:PID:STREAM@FIRST:…


class Keys(NamedTuple):
    ready: str
    taken: str
    claims: str
    marks: str
    purged: str
    epochs: str
    history: str
    deliveries: str
    claim: str  # a prefix: the claim's id follows

    @classmethod
    @cache
    def for_stream(cls, stream: str) -> Keys:
        """The keys of a stream, all in one slot of a Redis Cluster."""
        base = "ingest:{%s}" % stream
        names = "taken", "claims", "marks", "purged", "epochs", "history", "deliveries", "claim:"
        return cls(base, *(f"{base}:{name}" for name in names))


COUNTS = "ingest:counts"  # of the whole installation
ERRORS = "ingest:errors:"  # a prefix: the process id of a worker follows; why it cannot store streams, as JSON
LAYOUT = 3  # of the keys. A change of their meaning raises it
LAYOUT_KEY = "ingest:layout"
CELL = "ingest:cell"  # the name of the cell whose list this is
STORE = "ingest:store"  # the identity of the database that has what was stored of this list
PROBED = "ingest:ready"  # written by the gateway's readiness check, and by PROBE
PATTERN = "ingest:{*"  # glob: every key of every stream
STREAM = re.compile(rb"ingest:\{([^}]+)\}")  # the stream of a key

# An epoch is a history of a list: within one, a sequence number is given to one body only. Redis has another history
# (master_replid) after each restart and promotion, because its last writes may be lost, and their numbers with them.
# Bodies that are on the list at that moment keep their epoch; the next ones belong to a new epoch. The time makes its
# name unique if the keys are deleted while Redis runs. Each epoch is scored by its first number that is not taken.
# `history` keeps the first number of every epoch of the present list, for the ledger: bodies with other numbers are
# from a list that Redis has lost.
EPOCHS = """
local function epochs(key, history_key, taken, ready, us)
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  local known = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  local start
  if #known == 0 or tonumber(known[2]) > taken + 1 then -- no epoch has the first body: the counter was deleted
    start = taken + 1
  elseif string.sub(known[#known - 1], 1, #history) ~= history then
    start = taken + ready + 1
  else
    return known
  end
  start = string.format('%.0f', start)
  for _, each in ipairs({key, history_key}) do
    redis.call('ZREMRANGEBYSCORE', each, start, '+inf')
    redis.call('ZADD', each, start, history .. '-' .. us)
  end
  return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
end
"""

# Every call sends the whole script (EVAL). Redis caches it by its hash; SCRIPT FLUSH does no harm.
MARK = (
    EPOCHS
    + """
local t = redis.call('TIME')
local taken = tonumber(redis.call('GET', KEYS[2]) or 0)
local ready = redis.call('LLEN', KEYS[1])
local seq = string.format('%.0f', taken + ready + 1)
local us = t[1] .. string.format('%06d', t[2])
epochs(KEYS[4], KEYS[5], taken, ready, us)
redis.call('ZREMRANGEBYSCORE', KEYS[3], seq, seq) -- keep one mark per number, or a refused stream would collect them
redis.call('ZADD', KEYS[3], seq, seq .. ':' .. us)
return {taken, ready, us, redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) or 0}
"""
)

# allow-oom: a full Redis must still be drained. If the whole list fits into the claim, RENAME makes it the claim: no
# body is copied or written to the append-only file again. Otherwise the head of the list moves in pieces.
CLAIM = (
    "#!lua flags=allow-oom"
    + EPOCHS
    + """
local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local prefix, max_bodies, max_bytes, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- the reply includes the marks that date the bodies: the last one at or before the first body, and all within the claim
local function give(id, n, size, deliveries)
  local first = tonumber(string.match(id, ':(%d+):'))
  local low, last = string.format('%.0f', first), string.format('%.0f', first + n - 1)
  local before = redis.call('ZREVRANGEBYSCORE', KEYS[4], low, '-inf', 'LIMIT', 0, 1)
  return {id, n, size, before, redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. low, last), deliveries}
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ms + lease, '+inf')) do
  redis.call('ZADD', KEYS[3], ms + lease, id) -- the clock was ahead when this lease began
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms, 'LIMIT', 0, 1)[1]
if expired then
  redis.call('ZADD', KEYS[3], ms + lease, expired)
  local key, times = prefix .. expired, redis.call('HINCRBY', KEYS[7], expired, 1)
  return give(expired, redis.call('LLEN', key), redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) or 0, times + 1)
end
local ready = redis.call('LLEN', KEYS[1])
if ready == 0 then return false end
local taken = tonumber(redis.call('GET', KEYS[2]) or 0)
local us = t[1] .. string.format('%06d', t[2])
local known = epochs(KEYS[5], KEYS[6], taken, ready, us)
local epoch, following
for at = 1, #known, 2 do
  if tonumber(known[at + 1]) <= taken + 1 then epoch = known[at]
  elseif not following then following = tonumber(known[at + 1]) end
end
if following then max_bodies = math.min(max_bodies, following - taken - 1) end -- a claim has bodies of one epoch
local id = epoch .. ':' .. string.format('%.0f', taken + 1) .. ':' .. us
local key = prefix .. id
local n, size = 0, 0
if ready <= max_bodies then size = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) end
if ready <= max_bodies and size <= max_bytes then
  n = ready
  redis.call('RENAME', KEYS[1], key)
else
  size = 0
  local step = 1
  repeat
    local bodies = redis.call('LPOP', KEYS[1], math.min(step, max_bodies - n))
    if not bodies then break end
    redis.call('RPUSH', key, unpack(bodies))
    n = n + #bodies
    local moved = 0
    for _, body in ipairs(bodies) do moved = moved + #body end
    size = size + moved
    -- the step grows while bodies are small; its maximum limits by how much the last step can exceed max_bytes
    if moved * 8 > max_bytes then step = math.max(1, math.floor(step / 8)) else step = math.min(step * 2, 32) end
  until n >= max_bodies or size >= max_bytes
end
redis.call('SET', KEYS[2], string.format('%.0f', taken + n))
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format('%.0f', taken + 1))
if following ~= taken + n + 1 then redis.call('ZADD', KEYS[5], string.format('%.0f', taken + n + 1), epoch) end
redis.call('ZADD', KEYS[3], ms + lease, id)
return give(id, n, size, 1)
"""
)

RENEW = """#!lua flags=allow-oom
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[1], t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2], ARGV[1])
return 1
"""

# Deletes a claim, or its first bodies: the rest becomes a claim of its own, with the lease and the deliveries of this
# one. Also trims the marks. The oldest body that still needs a date is the first one of the open claims, or the head of
# the list if there is none; the last mark at or before it is kept, all earlier ones are deleted.
SETTLE = """#!lua flags=allow-oom
local key, rest, lease = ARGV[1] .. ARGV[2], ARGV[3], redis.call('ZSCORE', KEYS[2], ARGV[2])
if rest and lease then
  local times = redis.call('HGET', KEYS[4], ARGV[2])
  redis.call('LTRIM', key, ARGV[4], -1)
  redis.call('RENAME', key, ARGV[1] .. rest)
  redis.call('ZADD', KEYS[2], lease, rest)
  if times then redis.call('HSET', KEYS[4], rest, times) end
elseif not rest then
  redis.call('UNLINK', key)
end
redis.call('HDEL', KEYS[4], ARGV[2], ARGV[2] .. ' alone')
local settled = redis.call('ZREM', KEYS[2], ARGV[2])
local oldest = tonumber(redis.call('GET', KEYS[1]) or 0) + 1
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  oldest = math.min(oldest, tonumber(string.match(id, ':(%d+):')))
end
local keep = redis.call('ZREVRANGEBYSCORE', KEYS[3], string.format('%.0f', oldest), '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
if keep[2] then redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. keep[2]) end
return settled
"""

# allow-oom: the hash has a few dozen fields.
COUNT = """#!lua flags=allow-oom
for at = 1, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 1
"""

# Ages come from the marks that date the first body of each claim and the head of the list. MEMORY USAGE samples 16
# nodes of a list and extrapolates.
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
local taken = tonumber(redis.call('GET', KEYS[2]) or 0)
return {t[1] .. string.format('%06d', t[2]), taken, redis.call('LLEN', KEYS[1]), since(taken + 1), claims, size,
  tonumber(redis.call('GET', KEYS[5]) or 0), redis.call('ZRANGE', KEYS[6], 0, -1, 'WITHSCORES')}
"""

# Before the WAIT of a reader, because a connection that has written nothing waits for nothing.
PROBE = """#!lua flags=allow-oom
return redis.call('SET', KEYS[1], '1', 'EX', 60)
"""


def open_layout(link: Any) -> None:
    """redis-py calls this for a new connection of a gateway or a worker: note the layout of the keys, once.

    Raises: RedisError; NewerKeys.
    """
    link.on_connect()
    if not ask_layout(link, "GET", LAYOUT_KEY):
        with contextlib.suppress(ResponseError):  # Redis refuses to write; the commands that follow tell the client
            ask_layout(link, "SET", LAYOUT_KEY, LAYOUT, "NX", "GET")


def read_layout(link: Any) -> None:
    """The same for an operator, who notes nothing. Raises: RedisError; NewerKeys."""
    link.on_connect()
    ask_layout(link, "GET", LAYOUT_KEY)


def ask_layout(link: Any, *command: Any) -> bool:
    """Whether a layout was noted. Raises: ConnectionError, NewerKeys if it is another one; the connection is closed."""
    link.send_command(*command)
    layout = int(link.read_response() or 0)
    if layout not in (0, LAYOUT):
        link.disconnect()
        if layout > LAYOUT:
            raise NewerKeys("Redis", layout, LAYOUT)
        raise ConnectionError(f"its keys have layout {layout}, and this version knows {LAYOUT}: {EARLIER}")
    return bool(layout)


def count_command(delta: dict[str, int]) -> tuple[Any, ...]:
    return "EVAL", COUNT, 1, COUNTS, *(part for pair in delta.items() for part in pair)
