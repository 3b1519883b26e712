"""The faults that a drill injects. Each function causes a fault, lets it last, and always repairs it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import redis

from proving import harness
from proving.harness import stopped, strike
from proving.read import TRAIL, TRAIL_CAP
from proving.site import KEYS, Site, Trouble, wait
from proving.store import Postgres, Sqlite, Store
from sluice.base import connect
from sluice.run.configure import ROOT
from sluice.spool.contract import LEASE
from sluice.views import Tally, feeds
from sluice.views.contract import HOLDER, REBUILD, prefix, state, tally


class Scene(NamedTuple):
    """The target of a fault. run: the drill. cut: make that many clients close their connection early.

    count: of the clients. resting: the clients that read do nothing, and then expect nothing of what they saw before.
    """

    site: Site
    random: random.Random
    run: str
    cut: Callable[[int], None]
    count: Callable[[str], int]
    resting: Callable[[], contextlib.AbstractContextManager[None]]


class Fault(NamedTuple):
    """A fault: its description, and the function that injects it and returns details for the report.

    private: for private installations only. proof: breaks a promise, to prove that the drill detects it; injected only
    if named. views: concerns the views only. cuts: while it lasts, a read may get 502, 504, or no response.
    """

    words: str
    inject: Callable[[Scene], str]
    private: bool = False
    proof: bool = False
    views: bool = False
    cuts: bool = False


FAULTS: dict[str, Fault] = {}


def fault(name: str, words: str, **kinds: bool) -> Callable:
    """Register a function in FAULTS. kinds: of `Fault`."""

    def enter(inject: Callable[[Scene], str]) -> Callable[[Scene], str]:
        FAULTS[name] = Fault(words, inject, **kinds)
        return inject

    return enter


class Target(NamedTuple):
    """Processes to kill or stop. find: `Site.parents` or `Site.children` of the program."""

    words: str
    program: str
    find: Callable[[Site, str], list[int]]
    views: bool = False
    cuts: bool = False


PROCESSES = {
    "gateway": Target("a gateway process", "gateway", Site.children),
    "master": Target("gunicorn's master", "gateway", Site.parents),
    "nginx": Target("nginx's master", "nginx", Site.parents, cuts=True),
    "nginx-worker": Target("an nginx worker", "nginx", Site.children, cuts=True),
    "worker": Target("a worker", "worker", Site.parents),
    "redis": Target("Redis", "redis", Site.parents),
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


for _name, _target in PROCESSES.items():
    _kinds = {"views": _target.views, "cuts": _target.cuts}

    @fault(f"kill-{_name}", f"SIGKILL to {_target.words}", **_kinds)
    def _kill(scene: Scene, target: Target = _target) -> str:
        site, program = scene.site, target.program
        if program in ("gateway", "reader"):  # nothing starts in the place of one that a reload is ending
            most = site.settings.gateways if program == "gateway" else 1
            wait(lambda: len(site.children(program)) <= most, 60, "the end of the processes before a reload")
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


@fault("redis-full", "Redis is at maxmemory")
def redis_full(scene: Scene) -> str:
    client, seconds = scene.site.redis, scene.random.uniform(0.5, 3)
    before = str(client.config_get("maxmemory")["maxmemory"])
    try:
        client.config_set("maxmemory", 1 << 20)
        time.sleep(seconds)
    finally:
        wait(lambda: client.config_set("maxmemory", before), 10, "Redis accepts its former maxmemory")
    return f"{seconds:.1f} s"


@fault("redis-slow", "a script blocks Redis for 0.5 to 6 s; after 5 s Redis answers BUSY")
def redis_slow(scene: Scene) -> str:
    script = "local x = 0 for i = 1, ARGV[1] do x = x + i end return x"
    begun = time.monotonic()
    scene.site.redis.eval(script, 0, 3_000_000)
    seconds = scene.random.choice((0.5, 2, 4, 6))
    turns = int(3_000_000 * seconds / (time.monotonic() - begun))
    begun = time.monotonic()
    scene.site.redis.eval(script, 0, turns)
    return f"{time.monotonic() - begun:.1f} s"


@fault("script-flush", "SCRIPT FLUSH: Redis forgets the scripts")
def script_flush(scene: Scene) -> str:
    scene.site.redis.script_flush()
    return ""


@fault("redis-disk", "the append-only file reaches a size limit, as on a full disk; Redis exits and is restarted")
def redis_disk(scene: Scene) -> str:
    pid = scene.site.parents("redis")[0]
    log = max((scene.site.home / "redis/appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)
    limit = log.stat().st_size + scene.random.randrange(1, 20_000)
    # the limit applies to this process only
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))
    try:
        wait(lambda: gone(pid), 20, "Redis exits at the size limit")
    finally:
        if not gone(pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.prlimit(pid, resource.RLIMIT_FSIZE)[1],) * 2)
    wait(lambda: [other for other in scene.site.parents("redis") if other != pid], 60, "a new Redis")
    return f"the append-only file ended at {limit} bytes"


@fault("replica", "failover: a replica takes the place of Redis", private=True)
def replica(scene: Scene) -> str:
    site, port = scene.site, harness.free_port()
    home, sock = site.home / "replica", site.home / "run/replica.sock"
    assert site.process

    def give_up() -> None:
        if home.exists():  # the failover was not completed
            shutil.rmtree(home)
            with contextlib.suppress(redis.RedisError):
                site.redis.client_unpause()
                site.redis.config_set("port", 0)

    home.mkdir()
    site.redis.config_set("bind", "127.0.0.1")
    site.redis.config_set("port", port)
    site.redis.config_set("repl-diskless-sync-delay", 0)
    durability = "everysec" if site.settings.durability == "no" else site.settings.durability
    command = [
        "redis-server", "--port", 0, "--unixsocket", sock, "--unixsocketperm", 700, "--dir", home, "--save", "",
        "--appendonly", "yes", "--appendfsync", durability, "--replicaof", "127.0.0.1", port, "--loglevel", "warning",
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.callback(give_up)
        process = stack.enter_context(harness.running(command, site.home / "log/replica.log", site.environ))
        follower = connect.client(str(sock), 30)

        def caught_up() -> bool:
            info = follower.info()
            return (
                info["master_link_status"] == "up"
                and not info["aof_rewrite_in_progress"]
                and not info["aof_rewrite_scheduled"]
                and bool(list(home.glob("appendonlydir/*.manifest")))
                and bool(list(home.glob("appendonlydir/*.base.*")))
            )

        begun = time.monotonic()
        wait(caught_up, 30, "the replica is in sync")
        took = time.monotonic() - begun
        site.redis.client_pause(20_000, all=False)
        begun = time.monotonic()
        wait(
            lambda: (
                site.redis.info("replication")["master_repl_offset"]
                == follower.info("replication")["slave_repl_offset"]
            ),
            10,
            "the replica has the last write",
        )
        with stopped(site.process.pid):  # so that bin/up does not restart the old Redis
            follower.replicaof("NO", "ONE")
            old = site.parents("redis")[0]
            strike(old, signal.SIGKILL)
            wait(lambda: gone(old), 60, "the end of the old Redis")
            with contextlib.suppress(redis.RedisError):
                follower.shutdown(nosave=True)
            process.wait(10)
            (site.home / "redis").rename(site.home / "redis.old")
            home.rename(site.home / "redis")
        shutil.rmtree(site.home / "redis.old")
    return f"in sync after {took:.1f} s, failover in {time.monotonic() - begun:.1f} s"


@fault("store-locked", "another client holds the lock of the database")
def store_locked(scene: Scene) -> str:
    seconds = scene.random.choice((0.5, 2, 6))  # a worker waits 5 s for the lock
    with scene.site.store.locked():
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("store-away", "the database is moved away; the workers that have it open are killed", private=True)
def store_away(scene: Scene) -> str:
    seconds = scene.random.uniform(1, 4)
    with scene.site.store.away(scene.site.parents("worker")):
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("store-full", "the files of the database reach a size limit, as on a full disk")
def store_full(scene: Scene) -> str:
    if not scene.site.private and isinstance(scene.site.store, Postgres):
        return "not done: the drill does not own the tables"
    seconds = scene.random.uniform(1, 4)
    with scene.site.store.full(scene.site.parents("worker")):
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("rows-away", "SIGKILL to the destination of the rows, if they go elsewhere; it starts again", private=True)
def rows_away(scene: Scene) -> str:
    engine = scene.site.engine
    if engine is None:
        return "not done: the drill has started no destination"
    engine.kill()
    time.sleep(scene.random.uniform(0, 2))
    begun = time.monotonic()
    engine.start()
    return f"answers after {time.monotonic() - begun:.1f} s"


@fault("kill-commit", "SIGKILL to the workers while they persist, three times")
def kill_commit(scene: Scene) -> str:
    site, committed = scene.site, 0
    for _ in range(3):
        pids = site.parents("worker")
        claims = wait(site.claims, 60, "a claim")
        time.sleep(scene.random.uniform(0, 0.01))
        for pid in pids:
            strike(pid, signal.SIGKILL)
        wait(lambda pids=pids: all(map(gone, pids)), 60, "the end of the workers")  # type: ignore[misc]
        still = set(site.claims())
        committed += any(site.store.persisted(claim) for claim in claims if claim in still)
        wait(lambda: site.pids("worker"), 60, "a new worker")
    return f"{committed} of 3 between commit and settle"


@fault("kill-settle", "SIGKILL to the workers and Redis between commit and settle")
def kill_settle(scene: Scene) -> str:
    site, begun, tries = scene.site, time.monotonic(), 0
    server = site.parents("redis")[0]
    while time.monotonic() < begun + 10:
        tries += 1
        pids = site.parents("worker")
        claims = wait(lambda: [claim for claim in site.claims() if not site.store.persisted(claim)], 60, "a claim")
        # a worker that has read the bodies of its claim commits, then waits for the stopped Redis to settle
        with stopped(server), contextlib.suppress(Trouble):
            if any(map(site.store.persisted, claims)):
                continue  # too late: the claim may be settled already
            wait(lambda claims=claims: any(map(site.store.persisted, claims)), 0.3, "a commit")  # type: ignore[misc]
            for pid in [*pids, server]:
                strike(pid, signal.SIGKILL)
            wait(lambda pids=pids: all(map(gone, [*pids, server])), 60, "the end of the workers and Redis")  # type: ignore[misc]
            break
    else:
        return "did not occur within 10 s"
    wait(lambda: site.redis.ping(), 60, "a new Redis")
    still = set(claims) & set(site.claims())
    return f"{sum(map(site.store.persisted, still))} claims committed and not settled, at attempt {tries}"


@fault("lease", "SIGSTOP to the workers until another worker has taken over their claims")
def lease(scene: Scene) -> str:
    site, begun = scene.site, time.monotonic()
    with contextlib.ExitStack() as stack:
        while time.monotonic() < begun + 10:
            pids = site.parents("worker")
            wait(site.claims, 60, "a claim")
            time.sleep(scene.random.uniform(0, 0.005))
            with stopped(*pids):
                held = set(site.claims())
                if not held:
                    continue  # settled before the stop
                stack.enter_context(second_worker(site))
                deadline = time.monotonic() + LEASE + 3
                # a worker stopped within a transaction holds the lock of the database, for which the other one waits
                while held & set(site.claims()) and time.monotonic() < deadline:
                    time.sleep(0.05)
                taken = len(held - set(site.claims()))
            time.sleep(0.5)  # all workers run
            return f"{len(held)} held, {taken} settled by another"
    return "did not occur within 10 s"


@contextlib.contextmanager
def second_worker(site: Site, **environ: str) -> Iterator[int]:
    """An additional worker."""
    command = [sys.executable, ROOT / "worker.py"]
    with harness.running(command, site.home / "log/second.log", {**site.environ, **environ}) as process:
        yield process.pid


@fault("prune", "`sluice prune` beside the workers, which delete old logs too", private=True)
def prune(scene: Scene) -> str:
    wait(lambda: not scene.site.command("prune").returncode, 60, "old rows are deleted")
    return ""


NOT_ALONE = "not done: the database has more than the drill's tables, or rows are elsewhere"
ALONE = threading.Lock()  # of faults that change what the other one has stored


def copied(site: Site, seconds: float = 60) -> Path:
    """A backup of the database. Raises: Trouble, subprocess.TimeoutExpired."""
    file = site.home / "copy"
    wait(lambda: not site.command("backup", str(file), seconds=seconds).returncode, 60, "a backup")
    if isinstance(site.store, Sqlite):
        explained(Sqlite(f"sqlite:///{file}"), site.streams, "the copy")
    return file


def explained(store: Store, streams: Iterable[str], name: str) -> None:
    """Check that all bodies in a database are whole. Raises: Trouble."""
    for stream in streams:
        if found := store.unexplained(stream):
            raise Trouble(f"{stream} in {name}: {found} bodies are neither rows nor dead letters")


@fault("backup", "`sluice backup` while bodies are stored, once killed, once completed", private=True)
def backup(scene: Scene) -> str:
    site, seconds = scene.site, scene.random.uniform(0.2, 1)
    if not site.store.alone():
        return NOT_ALONE
    with contextlib.suppress(subprocess.TimeoutExpired):
        copied(site, seconds)
    file = copied(site)
    size = file.stat().st_size
    for path in site.home.glob("copy*"):
        path.unlink()
    return f"killed after {seconds:.1f} s; {size:,} bytes"


@contextlib.contextmanager
def without_workers(site: Site) -> Iterator[None]:
    """No worker runs, and no claim that is stored waits to be settled. Raises: Trouble."""
    assert site.process
    for _ in range(20):
        site.parents("worker")
        with stopped(site.process.pid):  # it starts no worker
            pids = site.pids("worker")
            for pid in pids:
                strike(pid, signal.SIGTERM)
            wait(lambda pids=pids: all(map(gone, pids)), 60, "the end of the workers")  # type: ignore[misc]
            if not any(site.store.persisted(claim, stream) for stream in site.streams for claim in site.claims(stream)):
                yield
                return
        time.sleep(LEASE / 2)  # a killed worker has left one; another worker settles it
    raise Trouble("stored claims are not settled")


@fault("restore", "`sluice restore` of a copy while no worker runs, half of the time after a killed one", private=True)
def restore(scene: Scene) -> str:
    site, store = scene.site, scene.site.store
    if not store.alone():
        return NOT_ALONE

    def events(above: int) -> set[int]:
        return {number for stream in site.streams for number, _ in store.rows(stream, scene.run, above)}

    with ALONE:
        above = store.batches()[1] - 100  # one with a lower id may be committed later
        file = copied(site)
        time.sleep(scene.random.uniform(0.5, 3))
        with scene.resting():
            with without_workers(site):
                explained(store, site.streams, "the database")
                before, bodies = events(above), {stream: store.bodies(stream) for stream in site.streams}
                words, killed = ("restore", "--replace", str(file)), ""
                if scene.random.random() < 0.5:
                    seconds = scene.random.uniform(0.2, 1)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        site.command(*words, seconds=seconds)
                    killed = f"killed after {seconds:.1f} s, then "
                    kept = events(above)
                done = site.command(*words)
                if done.returncode:
                    raise Trouble(f"restore: {done.stderr.strip()}")
                after = events(above)
                if killed and kept not in (before, after):
                    raise Trouble("a killed restore has changed the database")
                explained(store, site.streams, "the restored database")
                site.away |= before - after
                site.gone += Counter({stream: bodies[stream] - store.bodies(stream) for stream in site.streams})
                said = re.findall(r"^(\w+): (\d+) bodies were stored after", done.stdout, re.M)
                if {stream: int(count) for stream, count in said} != +site.gone:
                    raise Trouble(f"restore says {dict(said)}; the copies had less than the database: {+site.gone}")
            renew_views(site)
    for path in site.home.glob("copy*"):
        path.unlink()
    return f"{killed}without {len(before - after)} events"


def renew_views(site: Site) -> None:
    """Wait until the views are those of a restored database; drop the tallies, which would last for their period."""
    tallies = [tally(path, view, "*") for path, view in site.views.items() if isinstance(view, Tally)]

    def forget() -> bool:
        for pattern in tallies:
            site.views_redis.delete("", *site.views_redis.scan_iter(pattern))
        return True

    if site.views:
        wait(forget, 60, "the views' Redis answers")
        wait(lambda: not any(site.different().values()), 120, "the views are those of the restored database")


NO_COMPILER = "not done: no C compiler found"
# Shifts the wall clock by the seconds in a file. libfaketime (0.9.10) does not serve: it also shifts sleeps on the
# monotonic clock, which then fail, and it crashes with the malloc of Redis.
CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t zero, *step = &zero;
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SLUICE_DRILL_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *at = fd < 0 ? MAP_FAILED : mmap(0, sizeof *step, PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) step = at;
  if (fd >= 0) close(fd);
}
int clock_gettime(clockid_t which, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, which, now);
  if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *step;
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  now->tv_sec = t.tv_sec;
  now->tv_usec = t.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *now) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (now) *now = t.tv_sec;
  return t.tv_sec;
}
"""


class Clock:
    """A clock that can be moved, for the Python programs that are started with its environment."""

    def __init__(self, folder: Path, path: str) -> None:
        """Compile it. path: PATH of the programs. Raises: FileNotFoundError if there is no C compiler."""
        self.step, real, library = folder / "clock", folder / "real", folder / "clock.so"
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), "-x", "c", "-"]
        subprocess.run(build, input=CLOCK, text=True, check=True)
        # Redis keeps its clock: received_at comes from it, and the drill compares that with its own. nginx needs none.
        real.mkdir(exist_ok=True)
        for name in "redis-server", "nginx":
            found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
            (real / name).write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec "{found}" "$@"\n')
            (real / name).chmod(0o700)
        self.step.write_bytes(struct.pack("q", 0))
        self.environ = {
            "PATH": f"{real}:{path}", "LD_PRELOAD": str(library), "SLUICE_DRILL_CLOCK": str(self.step),
        }  # fmt: skip

    def move(self, seconds: int) -> None:
        """Set how far it is ahead."""
        with open(self.step, "r+b") as file:  # in place: the file is mapped
            file.write(struct.pack("q", seconds))


@fault("clock", "the wall clock of Python's programs jumps by hours; needs a C compiler", private=True, cuts=True)
def clock(scene: Scene) -> str:
    site, before = scene.site, dict(scene.site.environ)
    try:
        moved = Clock(site.home, before.get("PATH", ""))
    except FileNotFoundError:
        return NO_COMPILER
    site.environ |= moved.environ
    steps = scene.random.sample((3600, -3600, 86400, -86400), 3)
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


@fault("cut", "clients close the connection just before or after the last byte of their request")
def cut(scene: Scene) -> str:
    scene.cut(100)
    return "100 clients"


@fault("reload-reader", "SIGHUP: gunicorn replaces its reader processes", views=True)
def reload_reader(scene: Scene) -> str:
    return reloaded(scene, "reader")


@fault("views-flush", "FLUSHALL: the views' Redis is empty", views=True)
def views_flush(scene: Scene) -> str:
    wait(scene.site.views_redis.flushall, 60, "the views' Redis is empty")
    return ""


@fault("views-full", "the views' Redis is at maxmemory", views=True)
def views_full(scene: Scene) -> str:
    client, seconds = scene.site.views_redis, scene.random.uniform(0.5, 3)
    before: Any = wait(lambda: client.config_get("maxmemory")["maxmemory"], 60, "the views' Redis answers")
    try:
        wait(lambda: client.config_set("maxmemory", 1 << 20), 10, "the views' Redis accepts another maxmemory")
        time.sleep(seconds)
    finally:
        wait(lambda: client.config_set("maxmemory", before), 60, "the views' Redis accepts its former maxmemory")
    return f"{seconds:.1f} s"


@fault("views-rebuild", "every view is rebuilt; the drill does not wait for it", views=True)
def views_rebuild(scene: Scene) -> str:
    paths = [path for path, view in scene.site.views.items() if not isinstance(view, Tally)]
    wait(lambda: scene.site.views_redis.sadd(REBUILD, *paths) >= 0, 60, "the views' Redis answers")
    return ""


@fault("follower-lease", "SIGSTOP to the follower until another one has taken over its lease", views=True)
def follower_lease(scene: Scene) -> str:
    site, client = scene.site, scene.site.views_redis
    pid = site.parents("follower")[0]
    before = wait(lambda: client.get(HOLDER), 60, "a follower")
    command = [sys.executable, "-m", "sluice.run.follow"]
    with harness.running(command, site.home / "log/second-follower.log", site.environ), stopped(pid):
        wait(lambda: client.get(HOLDER) not in (None, before), 60, "another follower")
        seconds = scene.random.uniform(0, 2)
        time.sleep(seconds)
    return f"{seconds:.1f} s"


@fault("replay", "a dead letter is repaired and replayed", views=True)
def replay(scene: Scene) -> str:
    wrong, right = (b'{"device":"drill-replay","lat":%b,"lon":0}' % lat for lat in (b'"?"', b"1"))
    store = scene.site.store
    with ALONE:
        wait(lambda: scene.site.ask("POST", "/gps", wrong) == 200, 60, "a body is accepted")
        wait(lambda: store.dead("drill-replay"), 60, "a dead letter")
        wait(lambda: store.repair(wrong, right) is None, 60, "its repair")
        wait(lambda: not scene.site.command("replay", "--stream", "gps").returncode, 60, "its replay")
    return ""


@fault("views-lose", "removes an item of a feed: the drill must report it", views=True, proof=True)
def views_lose(scene: Scene) -> str:
    client, path = scene.site.views_redis, TRAIL
    generation: Any = wait(lambda: client.get(state(path)), 60, "a trail")
    pattern = prefix(path, generation.decode()) + "*"

    def trail() -> Any:
        for key in client.scan_iter(pattern):
            value: Any = client.get(key)
            items = feeds.decode(value, False)
            if len(items) > 10:
                return key, items
        return None

    with stopped(*scene.site.parents("follower")):
        key, items = wait(trail, 60, "a trail")
        # a client has seen it, and it does not fall off the end meanwhile
        del items[-1 if len(items) < TRAIL_CAP else len(items) // 2]
        client.set(key, feeds.encode(items))
    wait(lambda: scene.count("wrong"), 60, "a client notices it")
    return key.decode()


@fault("late", "moves the oldest body on the list behind the newest: the drill must report it", proof=True)
def late(scene: Scene) -> str:
    ready, redis_ = KEYS.ready, scene.site.redis
    with stopped(*scene.site.parents("worker")):
        wait(lambda: int(redis_.llen(ready)) > 200, 10, "a backlog")  # more bodies than clients
        redis_.lmove(ready, ready, "LEFT", "RIGHT")
    return ""


@fault("lose", "removes a body from the list: the drill must report it", proof=True)
def lose(scene: Scene) -> str:
    with stopped(*scene.site.parents("worker")):
        wait(lambda: scene.site.redis.lpop(KEYS.ready), 10, "a body to lose")
    return ""


@fault("double", "appends a body of the list again: the drill must report it", proof=True)
def double(scene: Scene) -> str:
    with stopped(*scene.site.parents("worker")):
        body: Any = wait(lambda: scene.site.redis.lindex(KEYS.ready, 0), 10, "a body to double")
        scene.site.redis.rpush(KEYS.ready, body)
    return ""
