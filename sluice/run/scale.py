"""INGEST_WORKERS=auto: a program of bin/up that starts and stops workers as the backlog requires.

The rules follow a published case that cut a fleet to a third: up by one, by three in an extreme, down by one after a
long calm, and never for a single reading. They do no I/O, so `bench/autoscale` replays a day in a second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from xmlrpc.client import Fault, ServerProxy

from redis.exceptions import RedisError
from supervisor.states import RUNNING_STATES, STOPPED_STATES
from supervisor.xmlrpc import SupervisorTransport

from sluice import settings
from sluice.spool.inspector import Inspector

EVERY = 2.0  # seconds between two readings
TICK = os.sysconf("SC_CLK_TCK")  # clock ticks per second, the unit of CPU time in /proc


class Reading(NamedTuple):
    """One reading."""

    workers: int  # running
    age: float  # seconds since the arrival of the oldest body that is not in the database
    cpu: float  # mean over the workers, 0 to 1 of a core


class Decision(NamedTuple):
    """A change of the number of workers."""

    change: int
    why: str  # one line for the log


class Rules:
    """Decides when to change the number of workers. A threshold must be crossed in several consecutive readings."""

    TARGET = 2.0  # seconds a body may wait
    EXTREME = 20.0  # seconds of waiting that add three workers at once
    BUSY = 0.85  # of a core: above it a worker has no reserve for a burst
    IDLE = 0.5  # of a core: the load that each of one fewer workers would have must stay below
    UP, DOWN = 2, 30  # consecutive readings

    def __init__(self, min: int, max: int) -> None:
        """min, max: limits of the number of workers."""
        self.min = min
        self.max = max
        self.clear()

    def clear(self) -> None:
        """Forget the readings: after a decision, which needs time to take effect, and after a failed reading."""
        self.extreme = self.slow = self.calm = 0

    def decide(self, reading: Reading) -> Decision | None:
        """The change that this reading and those before it require."""
        workers, age, cpu = reading
        behind, busy = age > self.TARGET, cpu > self.BUSY
        calm = age < self.TARGET / 4 and workers > 1 and cpu * workers / (workers - 1) < self.IDLE
        self.extreme = self.extreme + 1 if age > self.EXTREME else 0
        self.slow = self.slow + 1 if behind or busy else 0
        self.calm = self.calm + 1 if calm else 0
        seen = f"the oldest body has waited {age:.1f} s, mean CPU of a worker {cpu:.0%}"
        if self.extreme >= self.UP:
            change, why = 3, f"{seen}, {self.extreme} readings above {self.EXTREME:g} s"
        elif self.slow >= self.UP:
            threshold = f"{self.TARGET:g} s" if behind else f"{self.BUSY:.0%}"
            change, why = 1, f"{seen}, {self.slow} readings above {threshold}"
        elif self.calm >= self.DOWN:
            change, why = -1, f"{seen}, {self.calm} readings in which one fewer would suffice"
        else:
            return None
        self.clear()
        change = max(self.min, min(self.max, workers + change)) - workers
        return Decision(change, why) if change else None


class Pool:
    """The workers of a running bin/up, through its supervisord."""

    def __init__(self, s: settings.Settings) -> None:
        transport = SupervisorTransport(None, None, f"unix://{s.home}/run/up.sock")
        self.supervisor: Any = ServerProxy("http://localhost", transport=transport).supervisor
        self.spool = Inspector(s.redis)
        self.used: dict[int, float] = {}  # process -> CPU seconds at the last reading
        self.read_at = time.monotonic()

    def members(self) -> list[dict[str, Any]]:
        """All workers, running or not, ordered by number."""
        workers = (one for one in self.supervisor.getAllProcessInfo() if one["name"].startswith("worker-"))
        return sorted(workers, key=lambda one: int(one["name"][7:]))

    def read(self) -> Reading:
        """Take a reading. Raises: RedisError; OSError, Fault if supervisord does not answer."""
        running = [one["pid"] for one in self.members() if one["state"] in RUNNING_STATES and one["pid"]]
        used, now = {pid: seconds(pid) for pid in running}, time.monotonic()
        shares = [(used[pid] - self.used[pid]) / (now - self.read_at) for pid in running if pid in self.used]
        self.used, self.read_at = used, now
        waits = [age for name in self.spool.streams() for age in self.spool.snapshot(name).ages.values()]
        return Reading(len(running), max(waits, default=0.0), sum(shares) / len(shares) if shares else 0.0)

    def change(self, by: int) -> int:
        """Start more workers, or stop those with the highest numbers; returns the change. Raises: OSError, Fault.

        A worker that is still stopping counts as neither: supervisord would ignore a start.
        """
        states = STOPPED_STATES if by > 0 else RUNNING_STATES
        act = self.supervisor.startProcess if by > 0 else self.supervisor.stopProcess
        members = [one for one in self.members() if one["state"] in states]
        chosen = members[:by] if by > 0 else members[by:]
        for one in chosen:
            act(f"{one['group']}:{one['name']}", False)
        return len(chosen) if by > 0 else -len(chosen)


def seconds(pid: int) -> float:
    """CPU seconds of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def step(pool: Pool, rules: Rules) -> None:
    """Take one reading and act on it. A failed reading counts as none; other programs report the cause."""
    try:
        reading = pool.read()
        decision = rules.decide(reading)
        if decision and (change := pool.change(decision.change)):
            print(f"{reading.workers} -> {reading.workers + change} workers: {decision.why}", flush=True)
    except (RedisError, OSError, Fault):
        rules.clear()


def main() -> NoReturn:
    s = settings.load_or_exit()
    pool, rules = Pool(s), Rules(*s.workers)
    while True:
        time.sleep(EVERY)
        step(pool, rules)


if __name__ == "__main__":
    main()
