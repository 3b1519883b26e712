"""INGEST_WORKERS=auto: starts and stops workers beside those that always run; they are its child processes.

Another worker must help: the database answers, the workers are busy, and bodies wait all the same. If more are then not
stored with it, the database is the bottleneck, and the worker stops again. The rules see averages, never a single
reading, and do no I/O, so `bench/autoscale` replays a day in seconds.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections import deque
from typing import NamedTuple, NoReturn

from sluice import settings
from sluice.base import terminal
from sluice.contrib.background import exit_on_signal
from sluice.parsers import Range
from sluice.places import ROOT
from sluice.spool import open_spool
from sluice.spool.errors import SPOOL_ERRORS
from sluice.spool.inspector import Inspector
from sluice.streams.built_in import load_streams

READING_SECONDS = 2.0  # between two readings


class Work(NamedTuple):
    """One stream at the time of a reading. All but `waiting` only grow."""

    waiting: int  # accepted bodies that are not in the database
    stored: int  # bodies
    seconds: float  # that the workers took for it
    errors: int  # failed attempts to store a claim


class Reading(NamedTuple):
    """One reading. streams: those that have a decoder."""

    at: float  # seconds, monotonic
    workers: int
    streams: dict[str, Work]


class Averages(NamedTuple):
    """Averages over a window of readings, of the streams that are being stored."""

    waiting: int  # bodies
    arrived: float  # bodies per second
    stored: float  # bodies per second
    busy: float  # mean over the workers: the share of the time in which they stored, 0 to 1

    @property
    def wait(self) -> float:
        """Seconds until a body that arrives now is stored."""
        return self.waiting / self.stored if self.stored else 0.0


class Decision(NamedTuple):
    change: int
    reason: str  # one line for the log


class Rules:
    TARGET_SECONDS = 2.0  # a body may wait
    CALM_SECONDS = TARGET_SECONDS / 4  # a body may wait where one worker fewer shall suffice
    BUSY_SHARE = 0.7  # of the time, from which a worker is a bottleneck
    REST_SHARE = 0.7  # of the capacity of one worker fewer: the load must stay below
    RECOVERY_SECONDS = 30.0  # in which a backlog shall be stored
    MOST_WORKERS = 3  # added at once
    GAIN_SHARE = 1 / 3  # of its share of the capacity: what a new worker must add to what is stored
    HOLD_SECONDS = 600.0  # until more workers are tried again where they did not help
    UP_READINGS, DOWN_READINGS = 2, 30  # consecutive
    WINDOW_READINGS = 5, 10  # that averages need, and cover

    def __init__(self, limits: Range) -> None:
        self.limits = limits
        self.readings: deque[Reading] = deque(maxlen=self.WINDOW_READINGS[1])
        self.late = self.calm = 0  # consecutive readings
        self.capacity = 0.0  # bodies/s that one worker stores, measured when the workers were last the bottleneck
        self.tried: tuple[int, float] | None = None  # workers before the last addition, and bodies/s that they stored
        self.held = -math.inf  # no addition before this time

    def clear(self) -> None:
        """Forget the readings: after a decision, which takes effect later, and when one failed."""
        self.readings.clear()
        self.late = self.calm = 0

    def load(self) -> Averages:
        """A stream counts from its last failed attempt on, if enough readings follow it and some bodies were stored."""
        last, waiting, arrived, stored, seconds = self.readings[-1], 0, 0.0, 0.0, 0.0
        for name, now in last.streams.items():
            since = [reading for reading in self.readings if reading.streams[name].errors == now.errors]
            before, took = since[0].streams[name], last.at - since[0].at
            if len(since) >= self.WINDOW_READINGS[0] and now.stored > before.stored:
                waiting += now.waiting
                stored += (now.stored - before.stored) / took
                arrived += (now.stored - before.stored + now.waiting - before.waiting) / took
                seconds += (now.seconds - before.seconds) / took
        return Averages(waiting, arrived, stored, min(1.0, seconds / last.workers))

    def decide(self, reading: Reading) -> Decision | None:
        self.readings.append(reading)
        if len(self.readings) < self.WINDOW_READINGS[0]:
            return None
        load, workers = self.load(), reading.workers
        late = load.wait > self.TARGET_SECONDS and load.busy > self.BUSY_SHARE
        if late:
            self.capacity = load.stored / load.busy / workers
        elif load.wait < self.TARGET_SECONDS:
            self.tried = None
        capacity = self.capacity or (load.stored / load.busy / workers if load.busy else math.inf)
        calm = load.wait < self.CALM_SECONDS and load.stored <= self.REST_SHARE * capacity * (workers - 1)
        self.late = self.late + 1 if late else 0
        self.calm = self.calm + 1 if calm else 0
        stored = f"store {load.stored:.0f} bodies/s and are busy for {load.busy:.0%}"
        seen = f"bodies wait {load.wait:.1f} s, workers {stored}"
        if self.late >= self.UP_READINGS:
            before, then = self.tried or (workers, 0.0)
            if load.stored < then * (1 + self.GAIN_SHARE * (workers / before - 1)):  # the last addition did not help
                if len(self.readings) < self.WINDOW_READINGS[1]:
                    return None
                fewer, self.held, self.tried = before - workers, reading.at + self.HOLD_SECONDS, None
                return self.decided(workers, fewer, f"{seen}, no more than before: the database is the bottleneck")
            if reading.at < self.held:
                return None
            need = math.ceil((load.arrived + load.waiting / self.RECOVERY_SECONDS) / capacity) - workers
            return self.decided(workers, max(1, min(self.MOST_WORKERS, need)), seen, load.stored)
        if self.calm >= self.DOWN_READINGS:
            return self.decided(workers, -1, f"{seen}, {self.calm} readings in which one fewer would suffice")
        return None

    def decided(self, workers: int, change: int, reason: str, stored: float | None = None) -> Decision | None:
        """The decision, if the limits allow a change. stored: before an addition, bodies/s."""
        change = max(self.limits.min, min(self.limits.max, workers + change)) - workers
        if not change:
            return None
        if stored is not None:
            self.tried = workers, stored
        self.clear()
        return Decision(change, reason)


class Pool:
    """The workers of a cell: the minimum, which bin/up or systemd runs, and children of this process."""

    def __init__(self, s: settings.Settings) -> None:
        """Raises: SettingError if a user's module cannot be imported."""
        self.least = s.workers.min
        self.spool: Inspector = open_spool("inspector:Inspector", s.spool, s.figures)
        self.streams = load_streams(s)
        self.children: list[subprocess.Popen[bytes]] = []
        self.stopping: list[subprocess.Popen[bytes]] = []

    @property
    def size(self) -> int:
        return self.least + len(self.children)

    def read(self) -> Reading:
        """Take a reading. Raises: one of SPOOL_ERRORS."""
        counted = self.spool.counters()
        streams = {}
        for name in self.streams:
            snapshot = self.spool.take_snapshot(name)
            held = sum(snapshot.claims.values())
            seconds = counted.get(f"persist_seconds {name} sum", 0) / 1e6
            stored, errors = snapshot.taken - snapshot.purged - held, counted.get(f"store_errors {name}", 0)
            streams[name] = Work(snapshot.ready + held, stored, seconds, errors)
        return Reading(time.monotonic(), self.size, streams)

    def change(self, by: int) -> None:
        """Start more workers, or stop the newest; they finish their batches meanwhile. Raises: OSError."""
        command = [sys.executable, str(ROOT / "worker.py"), "run"]
        for _ in range(by):
            # they inherit the tag of launch.py: a worker that outlives this process is found by it
            self.children.append(subprocess.Popen(command, cwd=ROOT, close_fds=False))
        for _ in range(-by):
            leaver = self.children.pop()
            leaver.terminate()
            self.stopping.append(leaver)

    def replace(self) -> None:
        """Start a worker in place of each one that died. Raises: OSError."""
        self.stopping = [child for child in self.stopping if child.poll() is None]
        alive = [child for child in self.children if child.poll() is None]
        dead, self.children = len(self.children) - len(alive), alive
        self.change(dead)

    def close(self) -> None:
        """Stop all children and wait until they have finished their batches."""
        self.change(-len(self.children))
        for child in self.stopping:
            child.wait()


def scale_once(pool: Pool, rules: Rules) -> None:
    """Take one reading and act on it. A failed reading counts as none; other programs report the cause."""
    try:
        pool.replace()
        if decision := rules.decide(pool.read()):
            print(f"{pool.size} -> {pool.size + decision.change} workers: {decision.reason}", flush=True)
            pool.change(decision.change)
    except (*SPOOL_ERRORS, OSError):
        rules.clear()


def main() -> NoReturn:
    with settings.exit_if_invalid():
        s = settings.load_settings()
        pool, rules = Pool(s), Rules(s.workers)
    exit_on_signal()
    try:
        while True:
            time.sleep(READING_SECONDS)
            try:
                scale_once(pool, rules)
            except Exception as error:  # the workers that there are go on
                terminal.complain(f"the number of workers is not changed: {type(error).__name__}: {error}")
    finally:
        for number in signal.SIGTERM, signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)
        pool.close()


if __name__ == "__main__":
    main()
