"""One history: a plan that is run until nothing is left to do, and is then checked."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time as clocks
from collections import Counter
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import worker as worker_program
from proving.histories import wire
from proving.histories.check import Checks
from proving.histories.clock import Process, World
from proving.histories.disk import Disk
from proving.histories.plan import Plan
from proving.histories.processes import LIST, STREAMS, VIEWS_LIST, Cast, Life
from proving.histories.server import Server
from proving.histories.wire import Net
from sluice.base import disk as product_disk
from sluice.base import times
from sluice.contrib.destinations import outbox
from sluice.contrib.views import contract as views_contract
from sluice.contrib.views import follower, lease
from sluice.ops import bury
from sluice.spool import contract, inlet, outlet
from sluice.spool.claim import Claim
from sluice.spool.contract import UNHURRIED_SECONDS
from sluice.store import bookkeeping, chores, transaction_limits

# the product's pauses, longer, so that a minute of a history has fewer idle turns
PAUSES = ((worker_program, "IDLE_SECONDS", 0.7), (follower, "IDLE_SECONDS", 0.8), (chores, "FOLD_SECONDS", 3.0),
    (outbox, "PUBLISH_SECONDS", 3.0), (lease, "BEAT_SECONDS", 1.2))  # fmt: skip
MEMORY = "/dev/shm"  # noqa: S108  # a private directory in it is made
DRAIN_SECONDS = 600.0  # after the last fault until all is stored
TRIES = 25  # of a sender
ANSWER_SECONDS = 8.0  # that a sender waits


class Attempt:
    """A request. status: acknowledged, refused, or unknown."""

    def __init__(self, copy: int, item: bytes) -> None:
        self.copy, self.item, self.status = copy, item, "unknown"


class Posted:
    """An event, and the requests that its sender made of it."""

    def __init__(self, id: str, stream: str, kind: str) -> None:
        self.id, self.stream, self.kind = id, stream, kind
        self.attempts: list[Attempt] = []


class Result(NamedTuple):
    """wrong: what no history may show. lines: what happened."""

    wrong: list[str]
    lines: list[str]
    seconds: float

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


class History:
    """posted: by the ids of the events. pushed: stream -> bodies that its list ever got.

    discarded: what an operator has purged. stepped: whether the wall clock was set. kept_short: whether anything is
    deleted by age. lost: whether Redis's log lost its end.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: list[str] = []
        self.world = World(str(plan.seed), self.lines.append)
        self.posted: dict[str, Posted] = {}
        self.discarded: Counter[bytes] = Counter()
        self.pushed: Counter[str] = Counter()
        self.stepped = self.kept_short = self.lost = False
        self.place = tempfile.mkdtemp(prefix="histories-", dir=MEMORY if os.path.isdir(MEMORY) else None)
        self.net = Net(self.world)
        life = Life(dict.fromkeys(STREAMS, plan.window), {}, plan.far)
        self.cast = Cast(self.world, self.net, f"sqlite:///{self.place}/db", life, self.lines.append)
        self.checks = Checks(self)
        self.down, self.boots = False, 1

    def run(self) -> Result:
        began = clocks.perf_counter()
        handler = Lines(self)
        log = logging.getLogger("sluice")
        before, propagate = log.level, log.propagate
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.place, ignore_errors=True)
            for module, name, value in PAUSES:
                stack.enter_context(mock.patch.object(module, name, value))
            stack.enter_context(mock.patch.object(worker_program, "FIRST_BODIES", self.plan.first_bodies))
            stack.enter_context(mock.patch.object(worker_program, "MAX_BODIES", max(4, self.plan.first_bodies)))
            stack.enter_context(mock.patch.object(transaction_limits, "KEEP_BATCHES", self.plan.keep_batches))
            stack.enter_context(mock.patch.object(transaction_limits, "FOLD_BATCHES", 2))
            stack.enter_context(mock.patch.object(product_disk, "spare_bytes", lambda *_: 1 << 40))
            signals = SimpleNamespace(setitimer=lambda *_: None, ITIMER_PROF=0)
            stack.enter_context(mock.patch.object(worker_program, "signal", signals))
            stack.enter_context(mock.patch.object(bury.terminal, "complain", self.world.say))
            stack.enter_context(mock.patch.object(follower, "waited_seconds", lambda: 0.0))
            for module in times, bookkeeping:
                stack.enter_context(mock.patch.object(module, "uptime_seconds", self.world.monotonic))
                stack.enter_context(mock.patch.object(module, "boot_id", lambda: f"boot {self.boots}"))
            stack.enter_context(self.world.installed([worker_program, inlet, outlet, follower]))
            stack.enter_context(self.net.installed())
            log.setLevel(logging.INFO)
            log.propagate = False
            log.addHandler(handler)
            self.disk = Disk(self.world, self.place)
            try:
                self.live()
            finally:
                self.end()
                self.disk.close()
                log.removeHandler(handler)
                log.setLevel(before)
                log.propagate = propagate
        result = Result(self.checks.wrong, self.lines, clocks.perf_counter() - began)
        for part in (*self.net.servers.values(), self.net, self.cast, self.checks, self.world, self):
            vars(part).clear()  # they are a cycle that goes through SQLite, where the collector does not look
        return result

    def live(self) -> None:
        world, cast = self.world, self.cast
        for name, text in {**vars(contract), **vars(views_contract)}.items():
            if isinstance(text, str) and "redis.call" in text:
                wire.NAMES[text.encode()] = name
        self.net.servers[LIST] = Server(world, "redis", True, self.plan.policy)
        self.net.servers[VIEWS_LIST] = Server(world, "views", False)
        cast.redis.watch = self.watch
        self.net.claimed = self.checks.claimed
        for name in self.names():
            cast.start(name)
        self.observer = Process(world, "observer")
        world.spawn(self.observer, self.checks.observe)
        for step in self.plan.steps:
            world.later(step.at, partial(self.take, step))
        world.run(world.seconds + self.plan.seconds, self.checks.done)
        self.heal()
        settled: list[bool] = []
        deadline = world.seconds + DRAIN_SECONDS
        while not settled and not self.checks.done() and world.seconds < deadline:
            world.run(world.seconds + 2.0, self.checks.done)
            if self.checks.drained():
                settled.append(True)
        if not settled and not self.checks.wrong:
            self.checks.report(f"not all is stored {DRAIN_SECONDS:.0f} s after the last fault: {self.checks.left()}")
        if not self.checks.wrong:
            last = cast.operate(self.checks.final, "checker")
            world.run(world.seconds + 60.0, lambda: self.checks.done() or not last.alive)
            if last.alive and not self.checks.wrong:
                self.checks.report("the check has not ended")
        self.checks.wrong += [failure for failure in world.failures if failure not in self.checks.wrong]

    def names(self) -> list[str]:
        plan = self.plan
        return [
            *(f"gateway{n}" for n in range(plan.gateways)), *(f"worker{n}" for n in range(plan.workers)), "follower",
        ]  # fmt: skip

    def take(self, step: Any) -> None:
        self.world.say(f"* {step.what} {' '.join(map(str, step.given))}".rstrip(), self.world.nobody)
        getattr(self, step.what)(*step.given)

    def heal(self) -> None:
        """From here on nothing fails, and the settings are those under which everything has its place."""
        world, cast = self.world, self.cast
        world.say("* heal", world.nobody)
        self.disk.full = cast.redis.full = False
        far = frozenset().union(*(life.far for life in cast.lives))
        cast.life = Life({**cast.life.unique}, {**cast.life.keep}, far, 2)
        for sink in cast.sinks.values():
            sink.down = 0.0
        for process in cast.processes.values():
            process.trips.clear()
        for name in cast.live("worker"):
            self.restart(name)

    def end(self) -> None:
        """Unwind everything."""
        self.cast.closing = True
        tasks = [task for process in self.all_processes() for task in process.tasks]
        for process in {task.process for task in tasks}:
            process.kill()
        self.world.run(self.world.seconds + 1.0)

    def all_processes(self) -> list[Process]:
        return self.world.processes

    def watch(self, words: list[bytes]) -> None:
        """Note what a list gets, and what an operator discards."""
        if not words[1].endswith(b"}"):
            return
        if words[0] == b"RPUSH":
            self.pushed[words[1].decode()[8:-1]] += len(words) - 2
        elif words[0] == b"LTRIM":
            for item in self.cast.redis.data.get(words[1], [])[: int(words[2])]:
                self.discarded[item] += 1

    # --- steps

    def post(self, stream: str, kind: str, burst: int, *again: float) -> None:
        for _ in range(burst):
            event = Posted(f"e{len(self.posted)}", stream, kind)
            self.posted[event.id] = event
            sender = Process(self.world, event.id)
            self.world.spawn(sender, partial(self.send, event, again))

    def send(self, event: Posted, again: tuple[float, ...]) -> None:
        """Send an event until it is acknowledged, and then perhaps again."""
        sent = self.world.wall()
        for rest in (0.0, *again):
            self.world.sleep(rest)
            for _ in range(TRIES):
                attempt = self.attempt(event, sent)
                if attempt.status == "acknowledged":
                    break
                self.world.sleep(1.0)

    def attempt(self, event: Posted, sent: float) -> Attempt:
        world = self.world
        attempt = Attempt(len(event.attempts), item_of(event, len(event.attempts), sent))
        event.attempts.append(attempt)
        there = self.cast.live("gateway")
        if not there:
            return attempt
        name = world.process.random.choice(there)
        process, program, sender = self.cast.processes[name], self.cast.programs.get(name), world.task
        if program is None:
            return attempt

        def handle() -> None:
            group = program.append(event.stream, attempt.item)
            world.sleep(process.random.choice((0.0, 0.001, 0.02)))
            if not group.done:
                program.commit(group)
            refused = group.refused and group.refused.get(event.stream)
            process.step("answer")
            attempt.status = "refused" if refused else "acknowledged"
            world.say(f"{event.id}.{attempt.copy} {attempt.status}" + (f": {refused[0]}" if refused else ""))
            assert sender is not None
            world.wake(sender)

        world.spawn(process, handle)
        world.wait(ANSWER_SECONDS)
        return attempt

    def kill(self, name: str, kind: str, count: int) -> None:
        process = self.cast.processes[name]
        process.trip(kind, count, lambda: self.cast.kill(process, f"at a step {kind}".rstrip()))

    def cut(self, name: str, count: int, kind: str, reset: bool, delay: float) -> None:
        def lose() -> tuple[str, bool, float]:
            self.cast.disturb(name, 0.0 if reset else UNHURRIED_SECONDS)  # in which it waits for the reply
            return kind, reset, delay if kind == wire.LATE else 0.0

        self.cast.processes[name].trip("redis", count, lose)

    def stall(self, name: str, seconds: float) -> None:
        """It does not run for so long: it was stopped, or waits for its memory."""
        process = self.cast.processes[name]
        process.stalled = self.world.seconds + seconds
        self.world.later(seconds, lambda: self.cast.disturb(name))
        self.cast.disturb(name)

    def restart(self, name: str) -> None:
        """As at SIGTERM."""
        program = self.cast.programs.get(name)
        if self.cast.processes[name].alive and program and not program.stopping:
            program.stop()

    def restart_redis(self, seconds: float) -> None:
        if not self.cast.redis.up:
            return
        self.cast.redis.stop()
        self.cast.disturb()
        self.world.later(seconds, self.start_redis)

    def start_redis(self) -> None:
        self.cast.disturb()
        if not self.cast.redis.up and not self.down:
            self.cast.redis.start()

    def restart_views(self) -> None:
        views = self.net.servers[VIEWS_LIST]
        if views.up:
            views.stop()
            self.world.later(1.0, lambda: None if self.down or views.up else views.start())

    def stall_redis(self, seconds: float) -> None:
        self.cast.redis.stalled = self.world.seconds + seconds
        self.cast.disturb()
        self.world.later(seconds, self.cast.disturb)

    def lose_power(self, seconds: float) -> None:
        """The machine goes off, and on again."""
        if self.down:
            return
        self.down = self.cast.closing = True
        for process in self.all_processes():
            if process not in (self.observer, self.world.nobody) and not process.name.startswith("e"):
                process.kill()
        gone = self.cast.redis.lose_power()
        self.lost |= gone > 0
        self.net.servers[VIEWS_LIST].stop()
        self.world.say(f"power lost, {gone} entries of Redis's log", self.world.nobody)
        self.world.later(0.0, self.checks.pause)
        self.world.later(0.001, self.disk.lose_power)
        self.world.later(min(seconds, 5.0), self.power_up)

    def power_up(self) -> None:
        self.down = self.cast.closing = False
        self.boots += 1
        self.cast.disturb()
        for server in self.net.servers.values():
            server.start()
        for name in self.names():
            self.cast.start(name)
        self.checks.resume()

    def clock(self, seconds: float) -> None:
        """Someone sets the wall clock."""
        self.stepped = True
        self.world.ahead += seconds
        self.cast.disturb()

    def settings(self, unique: str, version: int, far: tuple[str, ...]) -> None:
        """The workers that start from now on have other settings, and one of them starts now."""
        life = self.cast.life
        seconds = {"same": self.plan.window, "off": 0, "half": self.plan.window // 2}[unique]
        self.new_life(Life(dict.fromkeys(STREAMS, seconds), life.keep, frozenset(far), version))

    def keep(self, rows: int | None, dead: int | None) -> None:
        life = self.cast.life
        self.kept_short |= rows is not None or dead is not None
        self.new_life(Life(life.unique, {**dict.fromkeys(STREAMS, rows), "dead": dead}, life.far, life.version))

    def new_life(self, life: Life) -> None:
        self.cast.life = life
        self.cast.lives.append(life)
        for name in self.cast.live("worker"):
            self.restart(name)

    def purge(self, stream: str) -> None:
        self.cast.operate(lambda: self.cast.purge(stream))

    def release(self, stream: str) -> None:
        self.cast.operate(lambda: self.cast.release(stream))

    def bury(self, stream: str) -> None:
        self.cast.operate(lambda: self.cast.bury(stream))

    def replay(self) -> None:
        self.cast.operate(self.cast.replay)

    def discard(self) -> None:
        self.cast.operate(self.cast.discard)

    def lock(self, seconds: float) -> None:
        self.cast.operate(lambda: self.cast.lock(seconds))

    def fill_disk(self, seconds: float) -> None:
        self.disk.full = True
        self.world.later(seconds, lambda: setattr(self.disk, "full", False))

    def fill_redis(self, seconds: float) -> None:
        self.cast.redis.full = True
        self.world.later(seconds, lambda: setattr(self.cast.redis, "full", False))

    def close_sink(self, seconds: float) -> None:
        for sink in self.cast.sinks.values():
            sink.down = self.world.seconds + seconds

    def cut_sink(self, name: str, kind: str) -> None:
        self.cast.processes[name].trip("sink", 0, lambda: kind)

    def old_claim(self, name: str, seconds: float) -> None:
        """Keep what a worker holds now, and store it again later, whatever has become of it."""
        program = self.cast.programs.get(name)
        held: list[Claim] = [state.claim for state in program.states if state.claim] if program else []
        for claim in held:
            key = f"ingest:{{{claim.stream}}}:claim:{claim.id}".encode()
            items = [*self.cast.redis.data.get(key, ())]
            if len(items) == claim.count:
                store = partial(self.cast.again, claim, items)
                self.world.later(seconds, partial(self.cast.operate, store, f"old-{name}"))


class Lines(logging.Handler):
    """The product's log, as lines of the history. What the product calls unexpected is."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self.history = history

    def emit(self, record: logging.LogRecord) -> None:
        if not self.history.world.process.alive:  # it was killed in the midst of this
            return
        text = record.getMessage().replace(self.history.place, "").replace("\n", " | ")
        self.history.world.say(f"log: {text}")
        if "unexpected error" in text or "an error" in text or "the decoder failed" in text:
            self.history.checks.report(text)


def item_of(event: Posted, copy: int, sent: float) -> bytes:
    """The list item of an event; see `processes.Event`."""
    at = datetime.fromtimestamp(sent, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    time = f'"time":"{at}",' if event.stream == "content" else ""
    number = 0 if event.stream == "content" else copy
    data = event.kind if event.kind in ("slow", "deadly", "refused") else "abc"[int(event.id[1:]) % 3]
    version = 2 if event.kind == "later" else 1

    def one(part: int) -> str:
        return f'{{{time}"id":"{event.id}","copy":{number},"part":{part},"data":"{data}","version":{version}}}'

    body = one(0)
    if event.kind == "several":
        body = f"[{one(0)},{one(1)},{one(2)}]"
    elif event.kind == "bad":
        body = f'{{"id":"{event.id}","copy":{number},'
    elif event.kind == "half":
        body = f'[{one(0)},{{"id":"{event.id}","copy":{number},"part":"x"}}]'
    head = f'POST /keyed HTTP/1.1\r\nIdempotency-Key: "{event.id}"\r\n\r\n' if event.stream == "keyed" else ""
    return (head + body).encode()
