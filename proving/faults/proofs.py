"""Faults that break a promise, to prove that the drill reports them."""

from __future__ import annotations

from typing import Any

from proving.faults.scene import Scene, fault
from proving.harness import stopped
from proving.site import KEYS, wait


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


@fault("double", "appends a body of the list again, without its key: the drill must report it", proof=True)
def double(scene: Scene) -> str:
    with stopped(*scene.site.parents("worker")):
        body: Any = wait(lambda: scene.site.redis.lindex(KEYS.ready, 0), 10, "a body to double")
        scene.site.redis.rpush(KEYS.ready, body.partition(b"\r\n\r\n")[2])
    return ""
