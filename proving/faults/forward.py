"""Faults of the receiver of rows that are posted on (`drill --forward`), and of the program that posts them.

Meanwhile a metric is posted, which goes elsewhere: it is stored within WITHIN_SECONDS, whatever the receiver does.
"""

from __future__ import annotations

import time

from proving.faults.scene import Scene, fault
from proving.receiver import Program
from proving.site import Trouble, wait

WITHIN_SECONDS = 3.0
WORDS = {
    "500": "answers 500",
    "429": "answers 429 with Retry-After: 1",
    "lie": "takes what comes, and closes the connection",
    "hang": "hangs",
}


def receiver(scene: Scene) -> Program:
    assert scene.site.receiver is not None
    return scene.site.receiver


def probed(scene: Scene, seconds: float) -> str:
    """Let a fault last, and see that another stream is stored meanwhile. Raises: Trouble."""
    end, worst, number = time.monotonic() + seconds, 0.0, 0
    while not number or time.monotonic() < end:
        name, begun = f"probe.{scene.run}.{time.monotonic_ns()}", time.monotonic()
        body = b'{"name":"%b","value":1}' % name.encode()
        wait(lambda body=body: scene.site.ask("POST", "/metrics", body) == 200, 60, "a metric is acknowledged")  # type: ignore[misc]
        asked = f"SELECT count(*) FROM metrics WHERE name = '{name}'"  # noqa: S608
        wait(lambda asked=asked: scene.site.store.number(asked), 60, "a metric is stored")  # type: ignore[misc]
        worst, number = max(worst, time.monotonic() - begun), number + 1
        time.sleep(0.2)
    if worst > WITHIN_SECONDS:
        raise Trouble(f"a metric was stored after {worst:.1f} s, while the receiver of other rows was in trouble")
    return f"{number} metrics stored meanwhile, each within {worst:.1f} s"


for _mode, _words in WORDS.items():

    @fault(f"receiver-{_mode}", f"the receiver {_words} for 1 to 5 s", forward=True)
    def _become(scene: Scene, mode: str = _mode) -> str:
        try:
            receiver(scene).become(mode)
            return probed(scene, scene.random.uniform(1, 5))
        finally:
            receiver(scene).become("take")


@fault("receiver-410", "the receiver answers 410 until there is a dead letter; then `replay`", forward=True)
def receiver_410(scene: Scene) -> str:
    try:
        receiver(scene).become("410")
        wait(lambda: scene.site.store.number("SELECT count(*) FROM dead_letters"), 120, "a dead letter")
    finally:
        receiver(scene).become("take")
    time.sleep(1)  # until what was answered is written
    done = scene.site.command("replay")
    return (done.stdout + done.stderr).strip().rpartition("\n")[2]


@fault("receiver-dead", "SIGKILL to the receiver, which is away for 1 to 5 s", forward=True)
def receiver_dead(scene: Scene) -> str:
    try:
        receiver(scene).kill()
        return probed(scene, scene.random.uniform(1, 5))
    finally:
        receiver(scene).start()
