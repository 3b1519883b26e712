"""The contract of the views' Redis (docs/protocol/database.md): keys, values, scripts.

The follower writes, the reader reads; both spell keys only here. Standard library only: the reader runs on PyPy.

How to read a value of a view. Generations change while the view is served, so:

1. send the read with the last known generation, and *behind it, in the same round trip*, `GET state(path)`;
2. if the state is that generation, the value is valid: at the time of the read its keys were complete;
3. if it is another generation, read again with that one. If it is FULL or absent, or its name does not begin with
   `fingerprint` of the reader's own declaration, the answer is 503.

What clients can name has a bound, and what was asked for longest ago goes first.

A generation's keys are deleted only after the state has changed, which is why the state is read last.
"""

from __future__ import annotations

from hashlib import blake2b

KEY_BYTES = 512  # a record whose key is longer is in no view
LEASE_SECONDS = 3.0  # after which another follower may take over from one that is stopped
ASKED_KEYS = 1_000  # of a tally that clients wait for; a client waits ten seconds, so a longer queue helps nobody
WANTED_KEYS = 10_000  # of a tally that are refreshed: clients can name any number of keys
FULL = b"full"  # the state of a view whose data did not fit into maxmemory

LAYOUT = 3  # of the values; with another one all views are built again

HOLDER = "lease"  # string: the follower's token
TAKEN = "taken"  # string: the token of the last follower that took the lease. Renewing the lease does not change it
REBUILD = "rebuild"  # set: paths to be rebuilt; the follower removes one when its build has begun
READS = "reads"  # hash: `PATH STATUS` -> answers
REFRESHES = "refreshes"  # hash: path of a tally -> counts made


def fingerprint(view: object) -> str:
    """Eight hex digits of a declaration and of LAYOUT. The names of generations and counts have them: while a reload
    changes a view, reader and follower may have different declarations of it, and each kind is read in another way.
    """
    return blake2b(f"{LAYOUT} {view!r}".encode(), digest_size=4).hexdigest()


def state_key(path: str) -> str:
    """String: the generation that is served, or FULL. Absent: the view is not built yet."""
    return f"s:{path}"


def crowded_key(path: str) -> str:
    """String: the generation, if it has refused keys: one that it lacks may have rows."""
    return f"c:{path}"


def building(path: str) -> str:
    """String: the generation that is being built. Absent: none is."""
    return f"n:{path}"


def info_key(path: str, generation: str) -> str:
    """Hash of a generation.

    spec: the declaration and the fields. position: of the follower. rows: applied. keys: of the view. bytes: about
    what they take. refused: how often a key was not added because there was no room.
    synced: milliseconds since 1970; all rows that were committed before that time are applied.
    """
    return f"g:{path}:{generation}"


def generation_prefix(path: str, generation: str) -> str:
    """The beginning of all keys of a generation; the key's text follows. The files of the kinds have the values."""
    return f"v:{path}:{generation}:"


def kept_key(path: str, view: object, key: str) -> str:
    """String, with a lifetime: the JSON of a tally. Empty: the database has no row with that key: 404.

    Absent: the reader pushes to `asked_key` and asks again until the value is there; every second it pushes again.
    """
    return f"t:{path}:{fingerprint(view)}:{key}"


def asked_key(path: str) -> str:
    """List: keys of a tally without a kept value that a client waits for; the reader pushes a key once a second.

    It has at most ASKED_KEYS, the last ones: whoever still waits pushes again.
    """
    return f"a:{path}"


def wanted_key(path: str) -> str:
    """Sorted set: key -> when a client last asked for its tally, in milliseconds since 1970.

    The reader adds a key that has a value when it is asked for, at most once a second for each key. The refresher
    removes it when nobody has asked for a lifetime, which is twice the period, and those asked for longest ago when
    there are more than WANTED_KEYS, or their values take more memory than tallies may.
    """
    return f"w:{path}"


# Every script checks the lease: a follower that was stopped and continues after another has taken over changes
# nothing, and an emptied Redis has no lease, so no position is ever stored in a Redis that lacks the rows before it.
HELD = f"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('LOST the lease') end
redis.call('PEXPIRE', KEYS[1], {int(LEASE_SECONDS * 1000)})
"""

# For the scripts of the kinds, whose KEYS[2] is the info, and ARGV[2] the bytes that new keys may take.
ENTRY_BYTES = 100  # about what a key takes in addition to its name and value
ROOM = f"""
local room, made, bytes, refused = tonumber(ARGV[2]), 0, 0, 0
local function fits(key, value)
  local size = #key + #value + {ENTRY_BYTES}
  if size > room then
    refused = refused + 1
    return false
  end
  room, made, bytes = room - size, made + 1, bytes + size
  return true
end
"""
COUNT = """
redis.call('HINCRBY', KEYS[2], 'keys', made)
redis.call('HINCRBY', KEYS[2], 'bytes', bytes)
redis.call('HINCRBY', KEYS[2], 'refused', refused)
"""

# A full Redis refuses the kinds' scripts, which need memory, before their first command; those with allow-oom run.

# Commands of the follower, all or none of them. KEYS: lease. ARGV: token, and of each command the number of its words
# and the words.
WRITE = f"""#!lua flags=allow-oom
{HELD}
local at = 2
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
"""

# Keeps a count, unless the lease has passed to another process. KEYS: lease, key. ARGV: token, value, milliseconds.
KEEP = """#!lua
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) end
"""

# The lease of a new follower, also in a full Redis, which only a follower can empty. The present one may seem to live
# longer than a lease: Redis's clock has stepped back. KEYS: lease, taken. ARGV: token, milliseconds.
TAKE = """#!lua flags=allow-oom
if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return false end
redis.call('SET', KEYS[2], ARGV[1])
return 1
"""
