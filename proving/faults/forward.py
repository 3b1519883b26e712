"""Faults of the receiver of rows that are posted on (`drill --forward`), and of the program that posts them.

Meanwhile metrics are posted, which go elsewhere: each is stored within WITHIN_SECONDS of its 2xx, whatever the receiver
does. The time that the worker was ready to run and had no processor is subtracted, as the kernel counts it, except what
the program that posts rows used of it: that program must not hold up the worker. The report has both figures.
`receiver-take` measures the same without a fault.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from proving.faults.programs import PROCESSES
from proving.faults.scene import FAULTS, Scene, fault
from proving.harness import stopped
from proving.receiver import Program
from proving.site import Site, Trouble, wait

WITHIN_SECONDS = 3.0
WORDS = {
    "500": "answers 500",
    "429": "answers 429 with Retry-After: 1",
    "lie": "takes what comes, and closes the connection",
    "hang": "hangs",
    "take": "takes everything",
}


TICKS = os.sysconf("SC_CLK_TCK")


def receiver(scene: Scene) -> Program:
    assert scene.site.receiver is not None
    return scene.site.receiver


class Processors(NamedTuple):
    """Seconds that the workers have waited for a processor, and that the program that posts rows has had one."""

    waited: float
    forwarded: float

    @classmethod
    def of(cls, site: Site) -> Processors:
        waited = [float(read_words(pid, "schedstat")[1]) / 1e9 for pid in site.pids("worker")]
        ticks = [sum(map(int, read_words(pid, "stat")[13:15])) for pid in site.pids("forward")]
        return cls(min(waited, default=0.0), sum(ticks) / TICKS)


def read_words(pid: int, name: str) -> list[str]:
    """A file of /proc, of the main thread: the name of a Python program has no space. It may have ended: zeros."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text().split()
    except OSError:
        return ["0"] * 20


def others_share(before: Processors, after: Processors) -> float:
    """Seconds for which the worker waited, but not for the program that posts rows."""
    return max(0.0, after.waited - before.waited - max(0.0, after.forwarded - before.forwarded))


def probed(scene: Scene, seconds: float) -> str:
    """Let a fault last, and see that another stream is stored meanwhile. Raises: Trouble."""
    site = scene.site
    end, worst, longest, number = time.monotonic() + seconds, 0.0, 0.0, 0
    while not number or time.monotonic() < end:
        name = f"probe.{scene.run}.{time.monotonic_ns()}"
        body = b'{"name":"%b","value":1}' % name.encode()
        wait(lambda body=body: site.ask("POST", "/metrics", body) == 200, 60, "a metric is acknowledged")  # type: ignore[misc]
        before, begun = Processors.of(site), time.monotonic()
        asked = f"SELECT count(*) FROM metrics WHERE name = '{name}'"  # noqa: S608
        wait(lambda asked=asked: site.store.number(asked), 60, "a metric is stored")  # type: ignore[misc]
        took = time.monotonic() - begun
        longest = max(longest, took)
        worst, number = max(worst, took - others_share(before, Processors.of(site))), number + 1
        time.sleep(0.2)
    words = f"{worst:.1f} s"
    if longest - worst >= 0.1:
        words += f", or {longest:.1f} s with the time in which other programs had the processors"
    if worst > WITHIN_SECONDS:
        raise Trouble(f"a metric was stored after {words}, while the receiver of other rows was in trouble")
    return f"{number} metrics stored meanwhile, each within {words}"


for _mode, _words in WORDS.items():

    @fault(f"receiver-{_mode}", f"the receiver {_words} for 1 to 5 s", forward=True, named=_mode == "take")
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


_killed = FAULTS["kill-forward"].inject


@fault("kill-forward", FAULTS["kill-forward"].words, forward=True)
def kill_forward(scene: Scene) -> str:
    return f"{_killed(scene)}; {probed(scene, 1)}"


@fault("stop-forward", f"SIGSTOP to {PROCESSES['forward'].words} for 0.5 to 5 s", forward=True)
def stop_forward(scene: Scene) -> str:
    pid = scene.site.parents("forward")[0]
    with stopped(pid):
        return f"process {pid}; {probed(scene, scene.random.uniform(0.5, 5))}"
