"""Faults of the list: Redis is full, slow, restarted or replaced, and its claims change hands."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator

import redis

from proving import harness
from proving.faults.programs import after_reload, gone
from proving.faults.scene import Scene, fault
from proving.harness import stopped, strike
from proving.site import Site, Trouble, wait
from sluice.base import connect
from sluice.places import ROOT
from sluice.spool.contract import LEASE_SECONDS


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


@fault("hung-redis", "SIGSTOP to Redis for 4 to 12 s, while /readyz is asked five times a second")
def hung_redis(scene: Scene) -> str:
    site, seconds, longest = scene.site, scene.random.uniform(4, 12), 0.0
    after_reload(site, "gateway")
    gateways = site.pids("gateway")
    with stopped(*site.parents("redis")):
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            if (status := site.ask("GET", "/readyz")) != 503:
                raise Trouble(f"/readyz answered {status} while Redis was stopped")
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.2)
    wait(site.ready, 10, "/readyz answers 200 again")
    if longest > 4:  # more than one reply was waited for, or the gateway was busy with others that were
        raise Trouble(f"/readyz took {longest:.1f} s while Redis was stopped")
    if lost := [pid for pid in gateways if pid not in site.pids("gateway")]:
        raise Trouble(f"{len(lost)} gateway processes ended while Redis was stopped")
    return f"{seconds:.1f} s, /readyz took {longest:.1f} s at most"


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
        follower = connect.connect_client(str(sock), 30)

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
                deadline = time.monotonic() + LEASE_SECONDS + 3
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
