"""Faults of processes: killed, stopped, reloaded, restarted; a clock that jumps; clients that hang up."""

from __future__ import annotations

import gzip
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from proving import harness
from proving.clock import NO_COMPILER, PYTHON, REDIS, Clock
from proving.faults.scene import Scene, fault
from proving.harness import stopped, strike
from proving.site import CRUMBS_DEAD, OWN_ROUTES, Site, wait
from sluice.spool.contract import Keys


class Target(NamedTuple):
    """Processes to kill or stop. find: `Site.parents` or `Site.children` of the program."""

    words: str
    program: str
    find: Callable[[Site, str], list[int]]
    views: bool = False
    cuts: bool = False
    forward: bool = False


PROCESSES = {
    "gateway": Target("a gateway process", "gateway", Site.children),
    "master": Target("gunicorn's master", "gateway", Site.parents),
    "nginx": Target("nginx's master", "nginx", Site.parents, cuts=True),
    "nginx-worker": Target("an nginx worker", "nginx", Site.children, cuts=True),
    "worker": Target("a worker", "worker", Site.parents),
    "redis": Target("Redis", "redis", Site.parents),
    "forward": Target("the program that posts rows", "forward", Site.parents, forward=True),
    "views": Target("the views' Redis", "views", Site.parents, views=True),
    "follower": Target("the follower", "follower", Site.parents, views=True),
    "reader": Target("a reader process", "reader", Site.children, views=True, cuts=True),
    "reader-master": Target("the reader's master", "reader", Site.parents, views=True, cuts=True),
}


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def after_reload(site: Site, program: str) -> None:
    """Wait for the end of those processes of gateway or reader that a reload has replaced."""
    most = site.settings.gateways if program == "gateway" else 1
    wait(lambda: len(site.children(program)) <= most, 60, "the end of the processes before a reload")


for _name, _target in PROCESSES.items():
    _kinds = {"views": _target.views, "cuts": _target.cuts, "forward": _target.forward}

    @fault(f"kill-{_name}", f"SIGKILL to {_target.words}", **_kinds)
    def _kill(scene: Scene, target: Target = _target) -> str:
        site, program = scene.site, target.program
        if program in ("gateway", "reader"):  # nothing starts in the place of one that a reload is ending
            after_reload(site, program)
        found = [pid for pid in target.find(site, program) if program != "nginx" or not ending(pid)]
        pid, before = scene.random.choice(found), site.pids(program)
        strike(pid, signal.SIGKILL)
        wait(lambda: gone(pid), 60, f"the end of process {pid}")
        # not one of those that a killed master leaves
        wait(lambda: set(target.find(site, program)) - {pid, *before}, 60, "a new process")
        if program in ("gateway", "reader"):  # before a new master listens, the processes of the old one may have ended
            wait(lambda: set(site.children(program)) - {*before}, 60, "a new process that serves")
        return f"process {pid}"

    @fault(f"stop-{_name}", f"SIGSTOP to {_target.words} for 0.5 to 5 s", **_kinds)
    def _stop(scene: Scene, target: Target = _target) -> str:
        pid, seconds = scene.random.choice(target.find(scene.site, target.program)), scene.random.uniform(0.5, 5)
        with stopped(pid):
            time.sleep(seconds)
        return f"process {pid}, {seconds:.1f} s"


def reloaded(scene: Scene, name: str) -> str:
    """Send SIGHUP to a program, and wait until it has a new child process."""
    before = scene.site.children(name)
    strike(scene.site.parents(name)[0], signal.SIGHUP)
    wait(lambda: set(scene.site.children(name)) - set(before), 60, f"a new process of {name}")
    return ""


@fault("reload-gateway", "SIGHUP: gunicorn replaces its gateway processes")
def reload_gateway(scene: Scene) -> str:
    return reloaded(scene, "gateway")


@fault("reload-nginx", "SIGHUP: nginx reads its configuration again", cuts=True)
def reload_nginx(scene: Scene) -> str:
    before = scene.site.children("nginx")
    said = reloaded(scene, "nginx")
    # it tells them a tenth of a second later, and nothing starts in the place of one that it is ending
    wait(lambda: all(map(ending, before)), 60, "the end of the processes before a reload")
    return said


def ending(pid: int) -> bool:
    """Whether a worker process of nginx has ended, or accepts no connection any more."""
    try:
        return b"is shutting down" in Path(f"/proc/{pid}/cmdline").read_bytes() or gone(pid)
    except OSError:
        return True


@fault("restart", "stop and start every program", cuts=True)
def restart(scene: Scene) -> str:
    if scene.site.private:
        scene.site.stop()
        scene.site.start()
        return "bin/up"
    # the order in which bin/up stops them
    for name in ("nginx", "gateway", "worker", "redis", *(("reader", "follower", "views") if scene.site.views else ())):
        for pid in scene.site.parents(name):
            strike(pid, signal.SIGTERM)  # the supervisor starts it again
    scene.site.wait_ready()
    return "each program"


@fault("kill-up", "SIGKILL to bin/up; a new one takes over", private=True, cuts=True)
def kill_up(scene: Scene) -> str:
    assert scene.site.process
    scene.site.process.kill()
    scene.site.process.wait()
    scene.site.start()
    return ""


@fault("clock", "the wall clock of Python's programs jumps by hours; needs a C compiler", private=True, cuts=True)
def clock(scene: Scene) -> str:
    return jumps(scene, 3)


@fault("clock-redis", "Redis's wall clock jumps by an hour and by 40 days; needs a C compiler", private=True, cuts=True)
def clock_redis(scene: Scene) -> str:
    begun = time.time()
    try:
        with scene.resting():  # else a device's last position would be one of the future
            return jumps(scene, 4, redis=True)
    finally:
        scene.site.misdating.append((begun, time.time()))


def jumps(scene: Scene, count: int, redis: bool = False) -> str:
    """Move the wall clock of Python's programs, or of Redis. Returns: what `fault` returns."""
    site, before = scene.site, dict(scene.site.environ)
    try:
        # received_at comes from Redis's clock, and the drill compares that with its own
        moved = Clock(site.home, before.get("PATH", ""), (REDIS,) if redis else (PYTHON,))
    except FileNotFoundError:
        return NO_COMPILER
    site.environ |= moved.environ
    steps = scene.random.sample((3600, -3600, 86400, -86400, 40 * 86400, -40 * 86400), count)
    try:
        site.stop()
        site.start()
        for seconds in steps:
            moved.move(seconds)
            time.sleep(scene.random.uniform(0.5, 1.5))
    finally:
        site.environ = before
        site.stop()
        site.start()
        site.cleared = time.time()
    return "by " + ", ".join(f"{seconds:+d} s" for seconds in steps)


@fault("bomb", "five bodies of half a kilobyte, with 262,144 records each", private=True)
def bomb(scene: Scene) -> str:
    site, bodies = scene.site, 5
    if site.environ.get("INGEST_ROUTES") != OWN_ROUTES:
        return "the drill's own path is not there"
    stored = "SELECT coalesce(sum(last - first + 1), 0) FROM batches_ranges WHERE stream = 'crumbs'"
    before, began = wait(lambda: (site.store.number(stored),), 60, "the database")[0], time.monotonic()
    body = gzip.compress(b"x\n" * 262_144)
    for _ in range(bodies):
        wait(lambda: harness.post(site.port, "/crumbs", body)[0] == 200, 60, "an answer to a body")
    wait(lambda: site.store.number(stored) >= before + bodies, 120, "the end of the bodies", 0.1)
    return f"stored after {time.monotonic() - began:.1f} s"


@fault("poison", "a body of another stream ends each worker that decodes it, until it is buried", private=True)
def poison(scene: Scene) -> str:
    site, begun = scene.site, time.monotonic()
    before: int = wait(lambda: (site.store.number(CRUMBS_DEAD), True), 60, "the database answers")[0]
    wait(lambda: site.redis.rpush(Keys.for_stream("crumbs").ready, b"abort"), 60, "Redis answers")
    wait(lambda: site.store.number(CRUMBS_DEAD) > before, 180, "the body is buried")
    return f"buried after {time.monotonic() - begun:.1f} s"


@fault("cut", "clients close the connection just before or after the last byte of their request")
def cut(scene: Scene) -> str:
    scene.cut(100)
    return "100 clients"


@fault("reload-reader", "SIGHUP: gunicorn replaces its reader processes", views=True)
def reload_reader(scene: Scene) -> str:
    return reloaded(scene, "reader")
