"""The scheduler: tasks of one thread that take turns where they wait, and the clocks that they see.

A task runs until it sleeps, waits for a lock, a reply or the disk. The next one is the one whose time has come first,
so a history takes no longer than what is computed in it. A process is a group of tasks that die together.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import secrets
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import apsw
import greenlet

START_SECONDS = 1_790_000_000.0  # the wall clock at the beginning, since 1970
TICK_SECONDS = 1e-6  # by which each reading of a clock moves it: no loop waits for ever without sleeping


class Killed(BaseException):
    """This process was killed. Nothing that it does from here on is seen by anybody."""


class Process:
    """A process: what it has open, and the faults that wait for its next steps.

    trips: a kind of step ("redis", "disk", "decode", or "" for all) -> (steps until then, what happens). held: the
    connections to Redis. stalled: until when (monotonic) it does not run.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.alive = world, name, True
        self.random = random.Random(f"{world.seed} {name}")
        self.tasks: list[Task] = []
        self.trips: list[list[Any]] = []
        self.sockets: list[Any] = []
        self.databases: list[apsw.Connection] = []
        self.stalled, self.began = 0.0, world.seconds
        world.processes = [each for each in world.processes if each.alive or each.tasks] + [self]
        self.ended: Callable[[], None] = lambda: None

    def trip(self, kind: str, count: int, action: Callable[[], Any]) -> None:
        """Do something at the step of a kind that comes after `count` others; see `step`."""
        self.trips.append([kind, count, action])

    def step(self, kind: str) -> Any:
        """A step of this process that others can see. Returns what a fault says about it. Raises: Killed."""
        if not self.alive:
            raise Killed
        said = None
        for trip in [*self.trips]:
            if trip[0] in ("", kind):
                trip[1] -= 1
                if trip[1] < 0:
                    self.trips.remove(trip)
                    said = trip[2]() or said
                    if not self.alive:
                        raise Killed
        return said

    def kill(self) -> None:
        """End it as SIGKILL does: no code of it runs on that anybody sees."""
        if self.alive:
            self.alive = False
            self.world.later(0.0, self.bury)

    def bury(self) -> None:
        """Unwind its tasks, and close what it had open."""
        for task in [*self.tasks]:
            if task:
                task.throw(Killed)
            else:  # it has not begun
                self.tasks.remove(task)
        for socket in self.sockets:
            socket.close()
        for db in self.databases:
            with contextlib.suppress(apsw.Error):  # closed
                db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                db.close(True)
        self.ended()


class Task(greenlet.greenlet):
    def __init__(self, world: World, process: Process, run: Callable[[], Any], name: str) -> None:
        super().__init__(self.begin, world.hub)
        self.world, self.process, self.body, self.name = world, process, run, name
        self.turn = 0  # the number of the wait that it is in
        process.tasks.append(self)

    def begin(self) -> None:
        try:
            if self.process.alive:
                self.body()
        except Killed:
            pass
        except BaseException as error:
            if self.process.alive:  # else it is what SQLite has made of the end
                self.world.failed(self, error)
        finally:
            self.process.tasks.remove(self)


class World:
    """Everything that happens in one history. seconds: monotonic, the uptime of the machine. begun: at the beginning.

    ahead: by which the wall clock is.
    """

    def __init__(self, seed: str, say: Callable[[str], None]) -> None:
        self.seed, self.say_line = seed, say
        self.random = random.Random(f"{seed} world")
        self.hub = greenlet.getcurrent()
        # a machine that was just booted, or hours ago
        self.begun = self.seconds = self.random.choice((100.0, 10_000.0))
        self.ahead = 0.0
        self.queue: list[tuple[float, int, Any, int]] = []
        self.count = 0
        self.failures: list[str] = []
        self.processes: list[Process] = []  # those that live, or have tasks
        self.nobody = Process(self, "nobody")

    # --- what happens, and when

    @property
    def task(self) -> Task | None:
        now = greenlet.getcurrent()
        return now if isinstance(now, Task) else None

    @property
    def process(self) -> Process:
        return self.task.process if self.task else self.nobody

    def say(self, text: str, process: Process | None = None) -> None:
        self.say_line(f"{self.seconds - self.begun:10.4f}  {(process or self.process).name:<10} {text}")

    def failed(self, task: Task, error: BaseException) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno} {last.line})"
        self.failures.append(f"{task.process.name}: {text}")
        self.say(f"ended by {text}", task.process)

    def later(self, seconds: float, what: Any, turn: int = 0) -> None:
        """Call a function in so many seconds, or give a task its turn if it still waits for that one."""
        self.count += 1
        heapq.heappush(self.queue, (self.seconds + seconds, self.count, what, turn))

    def spawn(self, process: Process, run: Callable[[], Any], name: str = "", after: float = 0.0) -> Task:
        task = Task(self, process, run, name)
        self.later(after, task, task.turn)
        return task

    def wait(self, seconds: float | None = None) -> None:
        """Let others run, until `wake` or so many seconds have passed."""
        task = self.task
        assert task, "only a task waits"
        if not task.process.alive:
            raise Killed
        task.turn += 1
        if seconds is not None:
            self.later(max(seconds, 0.0), task, task.turn)
        self.hub.switch()
        if not task.process.alive:
            raise Killed

    def wake(self, task: Task) -> None:
        self.later(0.0, task, task.turn)

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let things happen until a time, or until it is done."""
        while self.queue and self.queue[0][0] <= until and not done():
            at, _, what, turn = heapq.heappop(self.queue)
            self.seconds = max(self.seconds, at)
            if not isinstance(what, Task):
                what()
            elif what in what.process.tasks and what.turn == turn:
                if what.process.stalled > self.seconds:
                    self.later(what.process.stalled - self.seconds, what, turn)
                else:
                    what.switch()
        self.seconds = max(self.seconds, until) if not self.queue or self.queue[0][0] > until else self.seconds

    # --- the clocks, and what else a process gets from the system

    def monotonic(self) -> float:
        self.seconds += TICK_SECONDS
        return self.seconds

    def wall(self) -> float:
        return START_SECONDS - self.begun + self.ahead + self.monotonic()

    def lock(self) -> Lock:
        return Lock(self)

    def thread(self, target: Callable[..., Any], args: Any = (), name: str = "", daemon: bool = True) -> Any:
        process = self.process
        return SimpleNamespace(start=lambda: self.spawn(process, lambda: target(*args), name))

    @contextlib.contextmanager
    def installed(self, modules: list[Any]) -> Iterator[None]:
        """Put these clocks, locks and threads in the place of the system's. modules: that make threads and locks."""
        threads = SimpleNamespace(Lock=self.lock, Thread=self.thread)
        with contextlib.ExitStack() as stack:
            for name, clock in {
                "time": self.wall, "monotonic": self.monotonic, "perf_counter": self.monotonic, "sleep": self.sleep,
                "thread_time": self.monotonic,
            }.items():  # fmt: skip
                stack.enter_context(mock.patch.object(time, name, clock))
            for module in modules:
                stack.enter_context(mock.patch.object(module, "threading", threads))
            chosen = self.random
            stack.enter_context(mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(int=chosen.getrandbits(128))))
            stack.enter_context(
                mock.patch.object(secrets, "token_hex", lambda size: f"{chosen.getrandbits(8 * size):0{2 * size}x}")
            )
            stack.enter_context(mock.patch.object(random, "uniform", chosen.uniform))
            stack.enter_context(mock.patch.object(os, "getpid", lambda: 1))
            yield


class Lock:
    """threading.Lock for tasks."""

    def __init__(self, world: World) -> None:
        self.world, self.held = world, False
        self.waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self.held:
            self.held = True
            return True
        if not blocking:
            return False
        task = self.world.task
        assert task
        self.waiting.append(task)
        self.world.wait(timeout if timeout >= 0 else None)
        if task in self.waiting:
            self.waiting.remove(task)
            return False
        return True

    def release(self) -> None:
        while self.waiting:
            task = self.waiting.pop(0)
            if task.process.alive and not task.dead:
                self.world.wake(task)
                return
        self.held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
