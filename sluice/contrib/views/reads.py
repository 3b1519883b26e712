"""Group read, the twin of group commit: all reads that wait at the same moment share one round trip to Redis.

How a value of a view is read: see `sluice.contrib.views.contract`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Optional

from redis.exceptions import RedisError, ResponseError

from sluice.base.counters import REPORT_SECONDS, Counts
from sluice.contrib.views import contract
from sluice.contrib.views.kinds.view import View
from sluice.contrib.views.link import Link, Place, pack_command

log = logging.getLogger("sluice.reads")

TIMEOUT_SECONDS = 1.0  # to wait for Redis; all reads wait meanwhile
PAUSE_SECONDS = 0.25  # after a failure in which reads are refused without another try
ASK_SECONDS = 1.0  # between two requests for the same tally
# Of a round trip: values, and about so many bytes, as those of the last ones had. Redis holds the reply, too
TRIP_KEYS, TRIP_BYTES = 500, 4 << 20

# The details of the 503 answers
DOWN = "The views' Redis does not answer."
BUILDING = "This view is being built."
FULL = "This view does not fit into its memory."


class Trip:
    """Reads that are sent together.

    room: for so many strings, and commands. strings: key -> value. states: key of a state -> state. commands: packed
    command -> reply. asks: packed commands that a full Redis may refuse. done: the outcome is known. failed: there was
    no reply, so no read has a value.
    """

    __slots__ = ("asks", "commands", "done", "failed", "room", "states", "strings")

    def __init__(self, room: int) -> None:
        self.room = room
        self.asks: list[bytes] = []
        self.strings: dict[bytes, Place | None] = {}
        self.states: dict[bytes, bytes | None] = {}
        self.commands: dict[bytes, Any] = {}
        self.done = False
        self.failed = False


# The read of the first keys of a request, or all: its trip, the generation that is read, and the name of each value for
# `ServedView.value`. A class would cost a read 5 % of its time
Question = tuple[Trip, Optional[bytes], list[bytes]]


class GroupReads:
    """The reader's side of the views' Redis, one per process. Safe with threads and greenlets."""

    def __init__(self, socket: str) -> None:
        self.redis = Link(socket, TIMEOUT_SECONDS, f"sluice:reader:{os.getpid()}")
        self.counts = Counts()  # "PATH STATUS"
        self.size = TRIP_BYTES // TRIP_KEYS  # bytes of a value, as far as is known
        self.open = Trip(TRIP_KEYS)
        self.entry = threading.Lock()  # held for a moment, so that nothing is added to a trip that is under way
        self.turn = threading.Lock()  # held for a round trip
        self.retry_at = 0.0  # monotonic
        self.wanted: dict[str, set[bytes]] = {}  # tallies that clients asked for since the last report, by path
        self.asked: dict[tuple[str, bytes], float] = {}  # tallies without a value: when to ask for them again
        self.logged = False

    def add(self, view: ServedView, keys: list[bytes]) -> Question:
        """Add the reads of one request to the open trip, of many large values the first ones."""
        generation = view.generation  # first, see `follow`
        prefix = view.prefix
        names = [prefix + keys[0]] if len(keys) == 1 else [prefix + key for key in keys[: self.most()]]
        if not view.string:
            names = [pack_command(b"HGETALL", name) for name in names]
        with self.entry:
            trip = self.open
            reads: dict[bytes, Any] = trip.strings if view.string else trip.commands
            if len(reads) >= trip.room:
                trip = self.open = Trip(self.most())
                reads = trip.strings if view.string else trip.commands
            for name in names:
                reads[name] = None
            if view.state:
                trip.states[view.state] = trip.states[view.crowded] = None
        return trip, generation, names

    def most(self) -> int:
        """How many strings a trip may have, and how many commands: two at least, so only a read of one key has one."""
        return max(2, min(TRIP_KEYS, TRIP_BYTES // self.size))

    def want(self, path: str, keys: list[bytes]) -> None:
        """Report that clients asked for these keys of a tally. Only keys that have a value: the others cost nothing."""
        with self.entry:
            wanted = self.wanted.setdefault(path, set())
            if len(wanted) < contract.WANTED_KEYS:
                wanted.update(keys)

    def ask(self, path: str, keys: list[bytes]) -> bool:
        """Ask the refresher for tallies without a value, at most once in ASK_SECONDS for each. Returns: whether any."""
        now = time.monotonic()
        with self.entry:
            new = [key for key in keys if now >= self.asked.get((path, key), 0.0)]
            if new:
                self.asked.update(((path, key), now + ASK_SECONDS) for key in new)
                asked = contract.asked_key(path).encode()
                self.open.asks.append(pack_command(b"RPUSH", asked, *new))
                self.open.asks.append(pack_command(b"LTRIM", asked, b"-%d" % contract.ASKED_KEYS, b"-1"))
        return bool(new)

    def fetch(self, trip: Trip) -> None:
        """Send the trip, unless another thread has. On return `done` is set."""
        with self.turn:
            if trip.done:
                return
            with self.entry:
                if trip is self.open:
                    self.open = Trip(self.most())
            now = time.monotonic()
            if now < self.retry_at:
                trip.failed = trip.done = True
                return
            try:
                self.send(trip, now)
                self.say(None)
            except (RedisError, OSError) as error:
                self.redis.close()
                trip.failed = True
                self.retry_at = now + PAUSE_SECONDS
                self.say(error)
            except BaseException:  # a signal before the replies
                self.redis.close()
                trip.failed = True
                raise
            finally:
                trip.done = True

    def send(self, trip: Trip, now: float) -> None:
        """One round trip. The states are last: they must be read after the values."""
        report, delta = self.report() if now >= self.counts.due else ([], {})
        out = [*report, *trip.asks, *trip.commands]
        keys = [*trip.strings, *trip.states]
        if keys:
            out.append(pack_command(b"MGET", *keys))
        received = self.redis.received
        self.redis.send(b"".join(out))
        refused = self.refused(len(report))  # by a full Redis; then the next report has the counts
        if now >= self.counts.due:
            self.counts.due = now + REPORT_SECONDS
        if not refused:
            self.counts.confirm(delta)
        self.refused(len(trip.asks))
        for command in trip.commands:
            trip.commands[command] = self.redis.reply()
        if keys:
            places = self.redis.strings()
            for key, place in zip(trip.states, places[len(trip.strings) :]):
                trip.states[key] = place and place[0][place[1] : place[2]]
            trip.strings = dict(zip(trip.strings, places))
        if count := len(trip.strings) + len(trip.commands):
            size = (self.redis.received - received) // count + 1
            self.size = max(size, (self.size + size) // 2)  # forgotten more slowly than learned

    def report(self) -> tuple[list[bytes], dict[str, int]]:
        """The commands that report what was counted and asked for, and the counts in them."""
        milliseconds = str(int(time.time() * 1000)).encode()
        now = time.monotonic()
        with self.entry:
            wanted, self.wanted = self.wanted, {}
            self.asked = {key: due for key, due in self.asked.items() if due > now}
        commands = []
        for path, keys in wanted.items():
            words = [word for key in keys for word in (milliseconds, key)]
            commands.append(pack_command(b"ZADD", contract.wanted_key(path).encode(), *words))
        delta = self.counts.delta()
        commands += [
            pack_command(b"HINCRBY", contract.READS.encode(), field.encode(), str(n).encode())
            for field, n in delta.items()
        ]
        return commands, delta

    def refused(self, replies: int) -> bool:
        """Read replies; whether one is an error."""
        refused = False
        for _ in range(replies):
            try:
                self.redis.reply()
            except ResponseError:
                refused = True
        return refused

    def tick(self) -> None:
        """Once a second: report what no read has reported."""
        if time.monotonic() >= self.counts.due and (self.wanted or self.counts.delta()):
            self.fetch(self.open)

    def say(self, error: Exception | None) -> None:
        """Log a failure when it begins, and its end."""
        if bool(error) != self.logged:
            self.logged = bool(error)
            log.warning("the views' Redis is %s", f"unavailable: {error}" if error else "available again")


class ServedView:
    """A view as it is read: its generation, the names of its values, and their JSON.

    fingerprint: the first bytes of the names of its generations. string: values are strings, and one command reads all
    of a trip. state, crowded: the keys of the state, and of the generation that has refused keys; b"" for a tally.
    generation: the one that is served, as far as this process knows; b"" before the first. None for a tally.
    """

    __slots__ = ("crowded", "fingerprint", "generation", "json", "path", "prefix", "state", "string", "view")

    def __init__(self, path: str, view: View) -> None:
        self.path, self.view = path, view
        self.fingerprint = contract.fingerprint(view).encode()
        self.string, self.json = view.string, view.to_json()
        self.state = view.state(path).encode()
        self.crowded = contract.crowded_key(path).encode() if self.state else b""
        # not None before the first one: an absent state, of a view that is not served, must differ
        self.generation: bytes | None = b"" if self.state else None
        self.prefix = view.prefix(path, "").encode()

    def follow(self, state: bytes | None) -> str:
        """Read this generation from now on. Returns: why the view is not served, or ""."""
        if state == contract.FULL:
            return FULL
        if state is None or not state.startswith(self.fingerprint):  # absent, or built for another declaration
            return BUILDING
        self.prefix = self.view.prefix(self.path, state.decode()).encode()
        self.generation = state  # last: another thread that reads it finds its prefix
        return ""

    def value(self, trip: Trip, name: bytes, limit: int) -> bytes | None:
        """The JSON of a value. None: there is none; of a tally: it was not counted yet. b"": a tally of no rows.

        name: of a Question. limit: items of a feed.
        """
        value: Any = (trip.strings if self.string else trip.commands)[name]
        return self.json(value, limit) if value else None
