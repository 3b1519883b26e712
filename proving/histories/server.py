"""Redis in this process: the commands of the contracts, their scripts, and an append-only file that survives it.

What differs from Redis 7: only the commands below; strings, lists, sets, hashes and sorted sets without their compact
forms, so MEMORY USAGE is a count of bytes; a hash and a set keep the order of insertion; SCAN returns all keys at once;
keys expire when they are asked for. Commands of one connection that were sent together run without others in between.

The append-only file has the commands that write, those of a script or of MULTI as one. With `always`, what was answered
is in it whatever happens. With `everysec`, a machine that loses its power loses up to LOST_SECONDS of it.
"""

from __future__ import annotations

import fnmatch
from bisect import insort
from collections.abc import Callable
from typing import Any

from proving.histories.clock import World
from proving.histories.scripts import NO_OOM, SCRIPTS, ScriptError, number

LOST_SECONDS = 1.0
READING = {
    "GET", "EXISTS", "LLEN", "LRANGE", "ZRANGE", "ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZREVRANGE", "ZSCORE", "ZCARD",
    "HGET", "HMGET", "HGETALL", "HLEN", "HKEYS", "TIME", "INFO", "MEMORY", "KEYS", "SCAN", "PTTL", "MGET", "GETRANGE",
    "STRLEN", "SMEMBERS", "CLIENT", "HELLO", "PING", "WAIT", "TYPE",
}  # fmt: skip
GROWING = {"RPUSH", "SET", "ZADD", "HSET", "HINCRBY", "INCRBY", "SADD", "MSET"}
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
FULL = "OOM command not allowed when used memory > 'maxmemory'."


class Server:
    """One Redis. log: its append-only file: (when, commands that are one). runs: how often it was started."""

    def __init__(self, world: World, name: str, lasting: bool, policy: str = "always") -> None:
        self.world, self.name, self.lasting, self.policy = world, name, lasting, policy
        self.log: list[tuple[float, list[list[bytes]]]] = []
        self.up, self.full, self.stalled = False, False, 0.0
        self.runs = 0
        self.links: dict[int, Any] = {}  # id of a connection -> the connection
        self.commands: dict[str, Callable[..., Any]] = {
            name[3:].upper(): getattr(self, name) for name in dir(self) if name.startswith("do_")
        }
        self.watch: Callable[[list[bytes]], None] = lambda words: None  # is told of each write before it is done
        self.start()

    # --- its life

    def start(self) -> None:
        """Start it, with what its append-only file has."""
        self.data: dict[bytes, Any] = {}
        self.expires: dict[bytes, float] = {}
        self.versions: dict[bytes, int] = {}
        self.history = f"{self.world.random.getrandbits(160):040x}"
        self.runs += 1
        self.batch: list[list[bytes]] = []
        self.loading = True
        for _, commands in self.log:
            for words in commands:
                self.run(words)
        self.loading, self.up = False, True
        self.batch = []

    def stop(self) -> None:
        """Its process ends; what it has written to its file stays."""
        self.up = False
        for link in [*self.links.values()]:
            link.reset()
        self.links.clear()
        if not self.lasting:
            self.log.clear()

    def lose_power(self) -> int:
        """The machine loses its power; how many entries of the file are gone."""
        kept = len(self.log)
        if self.policy == "everysec":
            recent = [n for n, (at, _) in enumerate(self.log) if at > self.world.seconds - LOST_SECONDS]
            kept = self.world.random.choice([*recent, kept])
        gone = len(self.log) - kept
        self.stop()
        del self.log[kept:]
        return gone

    # --- commands

    def execute(self, link: Any, words: list[bytes]) -> Any:
        """Run a command of a connection; its reply, or an exception as one."""
        name = words[0].decode().upper()
        self.link = link
        if link.multi is not None and name not in ("EXEC", "DISCARD"):
            link.multi.append(words)
            return "QUEUED"
        try:
            return self.run(words)
        except ScriptError as error:
            return error
        finally:
            if self.batch:
                self.log.append((self.world.seconds, self.batch))
                self.batch = []

    def run(self, words: list[bytes]) -> Any:
        name = words[0].decode().upper()
        command = self.commands.get(name)
        if command is None:
            raise ScriptError(f"ERR unknown command '{name}'")
        if self.full and not self.loading and name in GROWING and not self.tolerant:
            raise ScriptError(FULL)
        if name not in READING and name not in ("EVAL", "MULTI", "EXEC", "WATCH", "UNWATCH"):
            if not self.loading:
                self.watch(words)
                self.batch.append(self.absolute(name, words))
            for key in words[1:]:
                self.versions[key] = self.versions.get(key, 0) + 1
        return command(*words[1:])

    link: Any  # whose command is executed
    tolerant = False  # whether the script that runs may write to a full Redis

    def absolute(self, name: str, words: list[bytes]) -> list[bytes]:
        """A command as the append-only file has it: with times instead of durations."""
        if name in ("PEXPIRE", "EXPIRE"):
            milliseconds = int(words[2]) * (1 if name == "PEXPIRE" else 1000)
            return [b"PEXPIREAT", words[1], number(int(self.wall() * 1000) + milliseconds)]
        return words

    def wall(self) -> float:
        return self.world.wall()

    def get(self, key: bytes, kind: type) -> Any:
        """The value of a key; None if there is none."""
        if key in self.expires and self.wall() >= self.expires[key] and not self.loading:
            self.data.pop(key, None)
            del self.expires[key]
            self.batch.append([b"DEL", key])
        value = self.data.get(key)
        if value is not None and not isinstance(value, kind):
            raise ScriptError(WRONG_TYPE)
        return value

    def make(self, key: bytes, kind: type) -> Any:
        value = self.get(key, kind)
        if value is None:
            value = self.data[key] = kind()
        return value

    def drop_empty(self, key: bytes) -> None:
        if not self.data.get(key, True):
            self.remove(key)

    def remove(self, key: bytes) -> bool:
        self.expires.pop(key, None)
        return self.data.pop(key, None) is not None

    # connections

    def do_hello(self, *_: bytes) -> Any:
        self.link.protocol = 3
        return {b"server": b"redis", b"version": b"7.0.15", b"proto": 3, b"role": b"master", b"modules": []}

    def do_ping(self) -> str:
        return "PONG"

    def do_client(self, verb: bytes, *words: bytes) -> Any:
        verb, link = verb.upper(), self.link
        if verb == b"SETNAME":
            link.name = words[0]
        elif verb == b"ID":
            return link.id
        elif verb == b"LIST":
            some = [int(word) for word in words[1:]] or sorted(self.links)
            lines = [b"id=%d name=%b\n" % (n, self.links[n].name) for n in some if n in self.links]
            return b"".join(lines)
        return "OK"

    def do_wait(self, *_: bytes) -> int:
        return 0

    def do_multi(self) -> str:
        self.link.multi = []
        return "OK"

    def do_watch(self, *keys: bytes) -> str:
        self.link.watched |= {key: self.versions.get(key, 0) for key in keys}
        return "OK"

    def do_unwatch(self) -> str:
        self.link.watched.clear()
        return "OK"

    def do_exec(self) -> Any:
        commands, self.link.multi = self.link.multi, None
        watched, self.link.watched = self.link.watched, {}
        if any(self.versions.get(key, 0) != version for key, version in watched.items()):
            return None
        return [self.run(words) for words in commands]

    def do_eval(self, text: bytes, count: bytes, *words: bytes) -> Any:
        head = text.partition(b"\n")[0]
        self.tolerant = head.startswith(b"#!") and NO_OOM in head
        if self.full and not self.tolerant and head.startswith(b"#!"):
            raise ScriptError(FULL)
        try:
            reply = SCRIPTS.run(text, [*words[: int(count)]], [*words[int(count) :]], self.run)
        finally:
            self.tolerant = False
        if isinstance(reply, ScriptError):
            raise reply
        return reply

    # the server

    def do_time(self) -> list[bytes]:
        now = int(self.wall() * 1e6)
        return [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]

    def do_info(self, section: bytes = b"") -> bytes:
        memory = b"used_memory:%d\r\nmaxmemory:%d\r\n" % (1 << 20, 1 << 30)
        return memory if section == b"memory" else b"role:master\r\nmaster_replid:%b\r\n" % self.history.encode()

    def do_memory(self, verb: bytes, key: bytes, *_: bytes) -> int | None:
        value = self.data.get(key)
        return None if value is None else len(key) + sum(len(part) + 16 for part in value)

    # keys

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.get(key, object) is not None for key in keys)

    def do_del(self, *keys: bytes) -> int:
        return sum(self.remove(key) for key in keys)

    do_unlink = do_del

    def do_rename(self, old: bytes, new: bytes) -> str:
        if self.get(old, object) is None:
            raise ScriptError("ERR no such key")
        self.remove(new)
        self.data[new] = self.data.pop(old)
        if old in self.expires:
            self.expires[new] = self.expires.pop(old)
        return "OK"

    def do_keys(self, pattern: bytes) -> list[bytes]:
        text = pattern.decode()
        return [key for key in sorted(self.data) if fnmatch.fnmatchcase(key.decode("latin-1"), text)]

    def do_scan(self, cursor: bytes, *words: bytes) -> Any:
        options = dict(zip(words[::2], words[1::2]))
        return [b"0", self.do_keys(options.get(b"MATCH", b"*"))]

    def do_pexpire(self, key: bytes, milliseconds: bytes) -> int:
        return self.expire(key, self.wall() + int(milliseconds) / 1000)

    def do_expire(self, key: bytes, seconds: bytes) -> int:
        return self.expire(key, self.wall() + int(seconds))

    def do_pexpireat(self, key: bytes, milliseconds: bytes) -> int:
        return self.expire(key, int(milliseconds) / 1000)

    def expire(self, key: bytes, at: float) -> int:
        if self.get(key, object) is None:
            return 0
        self.expires[key] = at
        return 1

    def do_pttl(self, key: bytes) -> int:
        if self.get(key, object) is None:
            return -2
        return int((self.expires[key] - self.wall()) * 1000) if key in self.expires else -1

    # strings

    def do_get(self, key: bytes) -> Any:
        return self.get(key, bytes)

    def do_mget(self, *keys: bytes) -> Any:
        return [self.get(key, bytes) for key in keys]

    def do_strlen(self, key: bytes) -> int:
        return len(self.get(key, bytes) or b"")

    def do_getrange(self, key: bytes, start: bytes, end: bytes) -> bytes:
        value = self.get(key, bytes) or b""
        last = int(end) + 1 or len(value)
        return bytes(value[int(start) : last])

    def do_set(self, key: bytes, value: bytes, *words: bytes) -> Any:
        options = {word.upper(): at for at, word in enumerate(words)}
        before = self.get(key, object)
        if b"NX" in options and before is not None:
            return before if b"GET" in options else None
        self.data[key] = value
        self.expires.pop(key, None)
        for word, unit in (b"PX", 1000), (b"EX", 1), (b"PXAT", 0):
            if word in options:
                number_ = int(words[options[word] + 1])
                at = self.wall() + number_ / unit if unit else number_ / 1000
                self.expires[key] = at
                if not self.loading and self.batch:
                    self.batch[-1] = [b"SET", key, value, b"PXAT", number(int(at * 1000))]
        return before if b"GET" in options else "OK"

    def do_mset(self, *words: bytes) -> str:
        for key, value in zip(words[::2], words[1::2]):
            self.data[key] = value
            self.expires.pop(key, None)
        return "OK"

    def do_incrby(self, key: bytes, change: bytes) -> int:
        value = int(self.get(key, bytes) or 0) + int(change)
        self.data[key] = b"%d" % value
        return value

    # lists

    def do_rpush(self, key: bytes, *values: bytes) -> int:
        found = self.make(key, list)
        found += values
        return len(found)

    def do_llen(self, key: bytes) -> int:
        return len(self.get(key, list) or ())

    def do_lpop(self, key: bytes, count: bytes) -> Any:
        found, number_ = self.get(key, list), int(count)
        if not found:
            return None
        gone = found[:number_]
        del found[:number_]
        self.drop_empty(key)
        return gone

    def do_lrange(self, key: bytes, start: bytes, end: bytes) -> list[bytes]:
        found = self.get(key, list) or []
        return found[span(len(found), int(start), int(end))]

    def do_ltrim(self, key: bytes, start: bytes, end: bytes) -> str:
        found = self.get(key, list) or []
        found[:] = found[span(len(found), int(start), int(end))]
        self.drop_empty(key)
        return "OK"

    # hashes

    def do_hset(self, key: bytes, *words: bytes) -> int:
        found = self.make(key, dict)
        before = len(found)
        found.update(zip(words[::2], words[1::2]))
        return len(found) - before

    def do_hget(self, key: bytes, field: bytes) -> Any:
        return (self.get(key, dict) or {}).get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> Any:
        found = self.get(key, dict) or {}
        return [found.get(field) for field in fields]

    def do_hgetall(self, key: bytes) -> Any:
        return dict(self.get(key, dict) or {})

    def do_hlen(self, key: bytes) -> int:
        return len(self.get(key, dict) or ())

    def do_hkeys(self, key: bytes) -> list[bytes]:
        return [*(self.get(key, dict) or ())]

    def do_hdel(self, key: bytes, *fields: bytes) -> int:
        found = self.get(key, dict) or {}
        gone = sum(found.pop(field, None) is not None for field in fields)
        self.drop_empty(key)
        return gone

    def do_hincrby(self, key: bytes, field: bytes, change: bytes) -> int:
        found = self.make(key, dict)
        value = int(found.get(field, 0)) + int(change)
        found[field] = b"%d" % value
        return value

    # sets

    def do_sadd(self, key: bytes, *members: bytes) -> int:
        found = self.make(key, Members)
        before = len(found)
        found.update(dict.fromkeys(members))
        return len(found) - before

    def do_smembers(self, key: bytes) -> list[bytes]:
        return [*(self.get(key, Members) or ())]

    def do_srem(self, key: bytes, *members: bytes) -> int:
        found = self.get(key, Members) or {}
        gone = sum(member in found for member in members)
        for member in members:
            found.pop(member, None)
        self.drop_empty(key)
        return gone

    # sorted sets

    def do_zadd(self, key: bytes, *words: bytes) -> int:
        found: Sorted = self.make(key, Sorted)
        before = len(found)
        for score, member in zip(words[::2], words[1::2]):
            found.put(member, float(score))
        return len(found) - before

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        found = self.get(key, Sorted)
        gone = sum(found.pop(member) for member in members) if found is not None else 0
        self.drop_empty(key)
        return gone

    def do_zscore(self, key: bytes, member: bytes) -> Any:
        found = self.get(key, Sorted)
        score = found.scores.get(member) if found is not None else None
        return None if score is None else number(score)

    def do_zcard(self, key: bytes) -> int:
        return len(self.get(key, Sorted) or ())

    def do_zrange(self, key: bytes, start: bytes, end: bytes, *words: bytes) -> Any:
        found = self.get(key, Sorted)
        some = found.order if found is not None else []
        if words[:1] == (b"DESC",) or b"REV" in words:
            some = some[::-1]
        return pairs(some[span(len(some), int(start), int(end))], words)

    def do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *words: bytes) -> Any:
        return pairs(limited(self.between(key, low, high), words), words)

    def do_zrevrangebyscore(self, key: bytes, high: bytes, low: bytes, *words: bytes) -> Any:
        return pairs(limited(self.between(key, low, high)[::-1], words), words)

    def do_zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> int:
        some = self.between(key, low, high)
        for _, member in some:
            self.data[key].pop(member)
        self.drop_empty(key)
        return len(some)

    def between(self, key: bytes, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        found = self.get(key, Sorted)
        if found is None:
            return []
        least, most = float(low.lstrip(b"(")), float(high.lstrip(b"("))
        return [
            (score, member)
            for score, member in found.order
            if (score > least or (score == least and low[:1] != b"("))
            and (score < most or (score == most and high[:1] != b"("))
        ]


class Members(dict[bytes, None]):
    """A set, in the order of insertion."""


class Sorted:
    """A sorted set: by score, then by member."""

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Any:
        return iter(self.scores)

    def pop(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self.order.remove((score, member))
        return True

    def put(self, member: bytes, score: float) -> None:
        self.pop(member)
        self.scores[member] = score
        insort(self.order, (score, member))


def span(length: int, start: int, end: int) -> slice:
    """The part of a list that Redis means by two positions."""
    start, end = (max(0, at + length) if at < 0 else at for at in (start, end + length if end < -length else end))
    return slice(start, end + 1)


def limited(some: list[Any], words: tuple[bytes, ...]) -> list[Any]:
    if b"LIMIT" in words:
        at = words.index(b"LIMIT")
        return some[int(words[at + 1]) :][: int(words[at + 2])]
    return some


def pairs(some: list[tuple[float, bytes]], words: tuple[bytes, ...]) -> list[bytes]:
    if b"WITHSCORES" in words:
        return [part for score, member in some for part in (member, number(score))]
    return [member for _, member in some]
