"""Faults of the views."""

from __future__ import annotations

import sys
import time
from typing import Any

from proving import harness
from proving.faults.database import ALONE
from proving.faults.scene import Scene, fault
from proving.harness import stopped
from proving.read import TRAIL, TRAIL_CAP
from proving.site import wait


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
    from sluice.contrib.views import Tally
    from sluice.contrib.views.contract import REBUILD

    paths = [path for path, view in scene.site.views.items() if not isinstance(view, Tally)]
    wait(lambda: scene.site.views_redis.sadd(REBUILD, *paths) >= 0, 60, "the views' Redis answers")
    return ""


@fault("follower-lease", "SIGSTOP to the follower until another one has taken over its lease", views=True)
def follower_lease(scene: Scene) -> str:
    from sluice.contrib.views.contract import HOLDER

    site, client = scene.site, scene.site.views_redis
    pid = site.parents("follower")[0]
    before = wait(lambda: client.get(HOLDER), 60, "a follower")
    command = [sys.executable, "-m", "sluice.contrib.views.follow"]
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
    from sluice.contrib.views.contract import generation_prefix, state_key
    from sluice.contrib.views.kinds import feed

    client, path = scene.site.views_redis, TRAIL
    generation: Any = wait(lambda: client.get(state_key(path)), 60, "a trail")
    pattern = generation_prefix(path, generation.decode()) + "*"

    def trail() -> Any:
        for key in client.scan_iter(pattern):
            value: Any = client.get(key)
            items = feed.decode(value, False)
            if len(items) > 10:
                return key, items
        return None

    wait(trail, 60, "a trail")  # a stopped follower makes none
    with stopped(*scene.site.parents("follower")):
        key, items = wait(trail, 60, "a trail")
        # a client has seen it, and it does not fall off the end meanwhile
        del items[-1 if len(items) < TRAIL_CAP else len(items) // 2]
        client.set(key, feed.encode_items(items))
    wait(lambda: scene.count("wrong"), 60, "a client notices it")
    return str(key, "utf-8")
