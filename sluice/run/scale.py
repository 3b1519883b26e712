"""INGEST_WORKERS=auto: as many workers as the backlog needs. bin/up runs it beside them.

The rules are those of a published case that cut a fleet to a third: slowly up by one, fast up by three in an extreme,
slowly down by one, and never for a single look. They are pure, so that `bench/autoscale` can replay a day in a second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from xmlrpc.client import Fault, ServerProxy

from redis.exceptions import RedisError
from supervisor.states import RUNNING_STATES
from supervisor.xmlrpc import SupervisorTransport

from sluice import settings
from sluice.spool.inspector import Inspector

EVERY = 2.0  # seconds between two looks
TICK = os.sysconf("SC_CLK_TCK")


class Look(NamedTuple):
    """What is seen at one moment."""

    workers: int  # that run
    age: float  # seconds that the oldest body has waited which no database has
    cpu: float  # of one core, on average over the workers: 0 to 1


class Decision(NamedTuple):
    """How many workers more (or fewer, below 0), and why: a line for a person."""

    change: int
    why: str


class Rules:
    """Target, policy and alarms. An alarm counts when it holds in several looks in a row, and then all begin anew."""

    TARGET = 2.0  # seconds that a body may wait
    EXTREME = 20.0  # seconds that call for three workers at once
    BUSY = 0.85  # of a core: a worker that has no room left for a burst
    IDLE = 0.5  # of a core, that the workers would have to do each if there were one fewer
    UP, DOWN = 2, 30  # looks in a row

    def __init__(self, least: int, most: int) -> None:
        """least, most: workers."""
        self.least = least
        self.most = most
        self.clear()

    def clear(self) -> None:
        """Forget what was seen: a decision needs time to show, and what was not seen holds for nothing."""
        self.extreme = self.slow = self.calm = 0

    def decide(self, look: Look) -> Decision | None:
        """What a look calls for, together with those before it."""
        workers, age, cpu = look
        behind, busy = age > self.TARGET, cpu > self.BUSY
        calm = age < self.TARGET / 4 and workers > 1 and cpu * workers / (workers - 1) < self.IDLE
        self.extreme = self.extreme + 1 if age > self.EXTREME else 0
        self.slow = self.slow + 1 if behind or busy else 0
        self.calm = self.calm + 1 if calm else 0
        seen = f"the oldest body waits {age:.1f} s, a worker takes {cpu:.0%} of a core"
        if self.extreme >= self.UP:
            change, why = 3, f"{seen}, {self.extreme} looks above {self.EXTREME:g} s"
        elif self.slow >= self.UP:
            bound = f"{self.TARGET:g} s" if behind else f"{self.BUSY:.0%}"
            change, why = 1, f"{seen}, {self.slow} looks above {bound}"
        elif self.calm >= self.DOWN:
            change, why = -1, f"{seen}, {self.calm} looks in which one fewer would do"
        else:
            return None
        self.clear()
        change = max(self.least, min(self.most, workers + change)) - workers
        return Decision(change, why) if change else None


class Crew:
    """The workers of a running bin/up, as its supervisord knows them."""

    def __init__(self, s: settings.Settings) -> None:
        transport = SupervisorTransport(None, None, f"unix://{s.home}/run/up.sock")
        self.supervisor: Any = ServerProxy("http://localhost", transport=transport).supervisor
        self.spool = Inspector(str(s.redis))
        self.used: dict[int, float] = {}  # process -> CPU seconds at the last look
        self.looked = time.monotonic()

    def members(self) -> list[dict[str, Any]]:
        """All workers there may be, in the order of their numbers."""
        workers = (one for one in self.supervisor.getAllProcessInfo() if one["name"].startswith("worker-"))
        return sorted(workers, key=lambda one: int(one["name"][7:]))

    def look(self) -> Look:
        """See how things stand. Raises: RedisError."""
        running = [one["pid"] for one in self.members() if one["state"] in RUNNING_STATES and one["pid"]]
        used, now = {pid: seconds(pid) for pid in running}, time.monotonic()
        shares = [(used[pid] - self.used[pid]) / (now - self.looked) for pid in running if pid in self.used]
        self.used, self.looked = used, now
        waits = [age for name in self.spool.streams() for age in self.spool.snapshot(name).ages.values()]
        return Look(len(running), max(waits, default=0.0), sum(shares) / len(shares) if shares else 0.0)

    def change(self, by: int) -> None:
        """Start so many workers more, or stop the last ones."""
        members = self.members()
        idle = [one for one in members if one["state"] not in RUNNING_STATES]
        busy = [one for one in members if one["state"] in RUNNING_STATES]
        for one in idle[:by] if by > 0 else busy[by:]:
            act = self.supervisor.startProcess if by > 0 else self.supervisor.stopProcess
            act(f"{one['group']}:{one['name']}", False)


def seconds(pid: int) -> float:
    """CPU seconds that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def main() -> NoReturn:
    """Look and decide until stopped."""
    s = settings.load_or_exit()
    crew, rules = Crew(s), Rules(*s.workers)
    while True:
        time.sleep(EVERY)
        try:
            look = crew.look()
            if decision := rules.decide(look):
                print(f"{look.workers} -> {look.workers + decision.change} workers: {decision.why}", flush=True)
                crew.change(decision.change)
        except (RedisError, OSError, Fault):  # others say so; what cannot be seen is no reason to do anything
            rules.clear()


if __name__ == "__main__":
    main()
