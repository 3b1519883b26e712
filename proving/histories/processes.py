"""The processes of a history: gateways, workers, the follower, and an operator. They are the real ones, in tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import worker as worker_program
from proving.histories.clock import Process, World
from proving.histories.server import Server
from proving.histories.wire import Net
from sluice.account import Publisher, shared_settings
from sluice.base.counters import SECONDS
from sluice.base.override import override
from sluice.contrib.destinations.destination import Carried, Rejected, Rows, Unwritable, single_body
from sluice.contrib.destinations.far_rows import FarRow
from sluice.contrib.destinations.outbox import Outbox
from sluice.contrib.views.follower import Follower
from sluice.contrib.views.kinds.feed import feed
from sluice.contrib.views.kinds.latest import latest
from sluice.contrib.views.kinds.view import View
from sluice.dead_letters import DeadLetters
from sluice.ops import bury, discard, replay
from sluice.parsers import DEAD, Keep
from sluice.spool.claim import Claim
from sluice.spool.errors import SPOOL_ERRORS
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.store.decoding import decode_claim
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import Store
from sluice.store.types import Body, Unavailable
from sluice.streams.custom import stream
from sluice.streams.record import Decoded, Limits, Record, Reject
from sluice.streams.registry import Stream
from sluice.streams.unique import Rule

LIST, VIEWS_LIST = "/redis", "/views"  # the paths of the sockets
STREAMS = ("plain", "keyed", "content")  # without keys, with the sender's, with their content as a key
VIEWS: dict[str, View] = {
    "/plain/newest": latest("plain", "data"),
    "/keyed/each": latest("keyed", "data", each=["part"]),
    "/content/last": feed("content", "data", cap=4, member=["id"]),
}
LIMITS = Limits(1 << 20, 10_000)
SLOW_SECONDS = 1.2  # to decode a body: longer than a transaction lasts
DEADLY_SECONDS = 0.4  # until a body that is deadly ends its worker


class Event(Record, kw_only=True):
    """What is posted. copy: which attempt to post it this is. part: which record of its body. version: of a format."""

    id: str
    copy: int
    part: int
    data: str
    version: int = 1


MADE = {name: stream(name, Event) for name in STREAMS}


@dataclass
class Life:
    """The settings of the processes that start from now on.

    unique, keep: stream -> seconds; 0: no keys, None: for ever. far: streams whose rows go elsewhere. version: the
    latest format that the decoders know.
    """

    unique: dict[str, int]
    keep: dict[str, int | None] = field(default_factory=dict)
    far: frozenset[str] = frozenset()
    version: int = 1


class Cast:
    """The processes, and what they share.

    sinks: stream -> the destination of rows that go elsewhere. disturbed: process -> when (monotonic) something last
    kept it from Redis, or Redis from its time.
    """

    def __init__(self, world: World, net: Net, url: str, life: Life, log: Callable[[str], None]) -> None:
        self.world, self.net, self.url, self.life, self.log = world, net, url, life, log
        self.processes: dict[str, Process] = {}
        self.programs: dict[str, Any] = {}  # of each process, what a step may need of it
        self.sinks = {name: Sink() for name in STREAMS}
        self.disturbed: dict[str, float] = {}
        self.closing = False
        self.lives = [life]

    @property
    def redis(self) -> Server:
        return self.net.servers[LIST]

    def disturb(self, name: str = "", seconds: float = 0.0) -> None:
        """Something keeps a process from Redis for so long; "": all of them."""
        self.disturbed[name] = max(self.disturbed.get(name, 0.0), self.world.seconds + seconds)

    # --- starting and ending them

    def start(self, name: str) -> None:
        """Start a process that the supervisor keeps alive."""
        if self.closing or (name in self.processes and self.processes[name].alive):
            return
        process = self.processes[name] = Process(self.world, name)
        process.random.seed(f"{self.world.seed} {name} {self.world.random.random()}")
        role = name.rstrip("0123456789")
        run = {"gateway": self.run_gateway, "worker": self.run_worker, "follower": self.run_follower}[role]

        def ended() -> None:
            self.world.later(process.random.uniform(0.2, 2.0), lambda: self.start(name))

        def main() -> None:
            run(process, self.life)
            self.world.say("has ended")
            process.kill()

        process.ended = ended
        self.world.say("starts", process)
        self.world.spawn(process, main)

    def kill(self, process: Process, why: str) -> None:
        if process.alive:
            self.world.say(f"killed: {why}", process)
            process.kill()

    def live(self, role: str) -> list[str]:
        return [name for name, process in self.processes.items() if name.startswith(role) and process.alive]

    def run_gateway(self, process: Process, life: Life) -> None:
        inlet = self.programs[process.name] = Inlet(LIST, 200)
        while True:
            self.world.sleep(2.0)
            inlet.report_counts()

    def run_worker(self, process: Process, life: Life) -> None:
        streams, keep = self.streams(process, life), self.keep(life)
        row_destinations = Outbox({name: To(self, name, streams[name]) for name in sorted(life.far)})
        inspector = Inspector(LIST)
        known = partial(shared_settings, streams, keep, row_destinations)
        publisher = Publisher(inspector, streams, "cell", False, 0, known)
        outlet = Outlet(LIST)
        program = worker_program.Worker(outlet, self.url, streams, LIMITS, publisher, keep, row_destinations)
        self.programs[process.name] = program
        program.run()

    def run_follower(self, process: Process, life: Life) -> None:
        follower = self.programs[process.name] = Follower(VIEWS_LIST, self.url, VIEWS, self.streams(None, life))
        follower.run()

    def operate(self, what: Callable[[], None], name: str = "operator") -> Process:
        """Run a verb in a process of its own."""
        process = Process(self.world, name)

        def main() -> None:
            try:
                what()
            except (*SPOOL_ERRORS, Unavailable, ValueError) as error:
                if isinstance(error, ValueError) and "no such table" not in str(error):  # the file was just made
                    raise
                self.world.say(f"fails: {self.shown(error)}")
            process.kill()

        self.world.spawn(process, main)
        return process

    def shown(self, error: Exception) -> str:
        return f"{type(error).__name__}: {error}".replace(self.url.removeprefix("sqlite:///"), "DATABASE")

    # --- what is in them

    def streams(self, process: Process | None, life: Life) -> dict[str, Stream]:
        """The streams of a process with these settings. process: None: its decoders take no time and kill nobody."""
        return {name: self.stream(process, life, name) for name in STREAMS}

    def stream(self, process: Process | None, life: Life, name: str) -> Stream:
        made = MADE[name]
        seconds = life.unique[name]
        rule = Rule(seconds, name == "content") if seconds and name != "plain" else None

        def checked(item: bytes, limits: Limits) -> Decoded:
            decoded = made.decode(item, limits)
            if any(isinstance(record, Event) and record.version > life.version for record in decoded.records):
                return Decoded((), (Reject(item, "unknown version", True),))
            return decoded

        def decode(item: bytes, limits: Limits) -> Decoded:
            assert process
            process.step("decode")
            if b'"deadly"' in item:
                self.world.sleep(DEADLY_SECONDS)
                self.kill(process, "by a body")
                process.step("decode")
            self.world.sleep(SLOW_SECONDS if b'"slow"' in item else process.random.expovariate(1000))
            return checked(item, limits)

        return made._replace(decode=decode if process else checked, part=checked, content=name == "content", rule=rule)

    def keep(self, life: Life) -> Keep:
        return Keep(None, {name: life.keep.get(name) for name in (*STREAMS, DEAD)})

    def store(self, life: Life) -> Store[Any]:
        """The store as an operator opens it."""
        streams = self.streams(None, life)
        row_destinations = Outbox({name: To(self, name, streams[name]) for name in sorted(life.far)})
        return open_store(self.url, streams, make=False, keep=self.keep(life), row_destinations=row_destinations)

    # --- verbs

    def purge(self, name: str) -> None:
        inspector = Inspector(LIST, 3.0)
        seen = inspector.take_snapshot(name)
        self.world.sleep(1.0)
        self.world.say(f"purge {name}: {inspector.purge(name, seen)}")

    def release(self, name: str) -> None:
        self.disturb()
        self.world.say(f"release {name}: {Inspector(LIST, 3.0).release(name)}")

    def bury(self, name: str) -> None:
        inspector, store, buried = Inspector(LIST, 3.0), self.store(self.life), 0
        for claim, received, item in inspector.claimed(name):
            body = Body(claim.first, received, item, (), (Reject(item, bury.REASON, True),))
            buried += bury.persist_dead(store, claim, body, self.world.monotonic() + 20.0).letters
        store.close()
        self.world.say(f"bury {name}: {buried}")

    def replay(self) -> None:
        life, store = self.life, self.store(self.life)
        streams, stored = self.streams(None, life), 0
        decode = partial(replay.decode_letter, streams, LIMITS)
        for some in DeadLetters(store).oldest_first(streams, 3):
            while some:
                done = replay_letters(store, some, decode, False, LIMITS)
                some, stored = some[done.seen :], stored + done.stored
        store.close()
        self.world.say(f"replay: {stored}")

    def discard(self) -> None:
        store, gone = self.store(self.life), 0
        for part in DeadLetters(store, discard.ANSWERED).oldest_first(STREAMS, 3):
            gone += store.delete_letters([letter.id for letter in part]) or 0
        store.close()
        self.world.say(f"discard: {gone}")

    def lock(self, seconds: float) -> None:
        """Hold the database's lock."""
        store = self.store(self.life)
        with store.transaction():
            self.world.sleep(seconds)
        store.close()

    def again(self, claim: Claim, items: list[bytes]) -> None:
        """What a worker does that was stopped after it had read a claim, and goes on long after."""
        store, outlet = self.store(self.life), Outlet(LIST)
        made = self.streams(self.world.process, self.life)[claim.stream]
        group = decode_claim(claim, items, made, LIMITS, outlet.counts.histogram("", SECONDS), 1.0)
        outcome = store.persist(claim.part(claim.first, group.end), group.bodies, LIMITS)
        self.world.say(f"stores the old claim {claim.id}: {outcome}")
        store.close()
        outlet.settle(claim, group.end)


class Sink:
    """A destination outside: what it has, and the last object of each writer. down: until when, monotonic."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.last: dict[str, int] = {}
        self.down = 0.0


class To(Carried[list[list[Any]]]):
    """The way to a sink. It refuses rows whose data is "refused"."""

    GRACE_SECONDS = 4.0

    def __init__(self, cast: Cast, name: str, made: Stream) -> None:
        super().__init__(f"sink://{name}", made)
        self.cast, self.sink = cast, cast.sinks[name]

    @override
    def encoded(self, batch: int, rows: Rows) -> list[list[Any]]:
        made = []
        for seq, received, record in zip(rows.seqs, rows.received, rows.records):
            values = {name: getattr(record, name) for name in ("id", "copy", "part", "data", "version")}
            made.append([batch, seq, received, values])
        return made

    @override
    def packed(self, groups: list[list[list[Any]]]) -> bytes:
        return json.dumps([row for group in groups for row in group]).encode()

    @override
    def send(self, name: str, carried: bytes) -> None:
        world = self.cast.world
        fault = world.process.step("sink")
        world.sleep(0.002)
        if self.sink.down > world.seconds or fault == "before":
            raise Unwritable("the sink is down")
        rows = json.loads(carried)
        writer, _, number = name.rpartition("-")
        if any(row[3]["data"] == "refused" for row in rows):
            raise Rejected("a row is refused")
        if self.sink.last.get(writer, -1) < int(number):
            self.sink.last[writer] = int(number)
            self.sink.rows += rows
        world.say(f"sink has {name[-4:]}: {len(rows)} rows")
        world.process.step("sink")
        if fault:
            raise Unwritable("the sink did not answer")

    @override
    def halves(self, carried: bytes) -> list[tuple[int, bytes]]:
        rows = json.loads(carried)
        if len(rows) < 2:
            return []
        middle = len(rows) // 2
        return [(len(half), json.dumps(half).encode()) for half in (rows[:middle], rows[middle:])]

    @override
    def parts(self, carried: bytes) -> Iterator[FarRow]:
        for batch, seq, received, values in json.loads(carried):
            yield batch, seq, received, single_body(self.stream, {**values})


def key_of(item: bytes) -> tuple[str, int] | None:
    """Which event an item, or a dead letter of it, is of, and which copy."""
    found = re.search(rb'"id":\s*"(e\d+)"', item)
    copy = re.search(rb'"copy":\s*(\d+)', item)
    return (found[1].decode(), int(copy[1])) if found and copy else None
