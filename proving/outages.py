"""The faults of `drill --cells`: what happens to machines, to the network between them, and to what all cells share."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable

from proving import harness
from proving.cells import WHOLE, Cell, Cells
from proving.cells_kafka import KafkaCells
from proving.clock import NO_COMPILER
from proving.faults.scene import Fault, Scene
from proving.site import CRUMBS_DEAD, STREAM, Trouble, wait
from sluice.places import ROOT

NO_KAFKA = "not done: the lists are in Redis"
FREEZE = 10.0  # seconds: longer than a lease and a failover
APART = 300  # seconds between two clocks
BURIED = 180.0  # seconds until a body that ends workers is buried: with Kafka, each of four is missed for six seconds
# what a cell is meanwhile, for the time that clients are without service
STATES = {
    **dict.fromkeys(("kill-cell", "power-cell", "lose-cell"), "dead"),
    **dict.fromkeys(("freeze-cell", "cut-cell", "deaf-cell", "mute-cell"), "frozen or cut off"),
}

OUTAGES: dict[str, Fault] = {}
Inject = Callable[[Cells, random.Random], str]


def outage(name: str, words: str, **kinds: bool) -> Callable[[Inject], Inject]:
    """Register a function in OUTAGES. kinds: of `Fault`."""

    def enter(inject: Inject) -> Inject:
        def injected(scene: Scene) -> str:
            assert isinstance(scene.site, Cells)
            try:
                return inject(scene.site, scene.random)
            except (AssertionError, harness.Died) as error:  # a server does not start again
                raise Trouble(f"{name}: {error}") from None

        OUTAGES[name] = Fault(words, injected, **kinds)
        return inject

    return enter


def lasting(chance: random.Random, low: float, high: float) -> str:
    """Let a fault last for a random time. Returns: the details for the report."""
    seconds = chance.uniform(low, high)
    time.sleep(seconds)
    return f"{seconds:.1f} s"


def one_of(cells: Cells, chance: random.Random) -> Cell:
    """The cell that a fault concerns."""
    return chance.choice(cells.cells)


@outage("kill-cell", "SIGKILL to every process of a cell's machine; its disk is kept")
def kill_cell(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    with cell.dead():
        return f"cell {cell.number + 1}, {lasting(chance, 0.5, 3)}"


@outage("power-cell", "a cell's machine vanishes, and closes no connection; its disk is kept")
def power_cell(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    with cell.dead(silent=True):
        return f"cell {cell.number + 1}, {lasting(chance, 0.5, 3)}"


@outage("lose-cell", "a cell's machine dies with its disk; a worker elsewhere stores what its replicas have")
def lose_cell(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    cell.kill()
    try:
        return f"cell {cell.number + 1}, {cells.rescue(cell)}"
    finally:
        cells.replace(cell)
        cell.start()


@outage("freeze-cell", "SIGSTOP to every process of a cell's machine for ten seconds, then SIGCONT")
def freeze_cell(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    with cell.machine.frozen():
        time.sleep(FREEZE)
    return f"cell {cell.number + 1}"


@outage("cut-cell", "a cell's machine is cut off, both ways")
def cut_cell(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    with cell.machine.cut():
        return f"cell {cell.number + 1}, {lasting(chance, 0.5, 3.5)}"


@outage("deaf-cell", "nothing reaches a cell's machine, but what it sends arrives")
def deaf_cell(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    with cell.machine.relayed(None, 0.0, cells.tmp / "relay.out"):
        return f"cell {cell.number + 1}, {lasting(chance, 0.5, 3.5)}"


@outage("mute-cell", "nothing that a cell's machine sends arrives, but it receives")
def mute_cell(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    with cell.machine.relayed(0.0, None, cells.tmp / "relay.out"):
        return f"cell {cell.number + 1}, {lasting(chance, 0.5, 3.5)}"


@outage("slow-link", "each packet to and from a cell's machine takes 5 to 50 ms")
def slow_link(cells: Cells, chance: random.Random) -> str:
    cell, delay = one_of(cells, chance), chance.uniform(0.005, 0.05)
    with cell.machine.relayed(delay, delay, cells.tmp / "relay.out"):
        return f"cell {cell.number + 1}, {delay * 1000:.0f} ms each way, {lasting(chance, 1, 3)}"


@outage("clock", "the wall clock of a cell's Python programs is five minutes off; needs a C compiler")
def clock(cells: Cells, chance: random.Random) -> str:
    cell, seconds = one_of(cells, chance), chance.choice((APART, -APART))
    if not cell.clock:
        return NO_COMPILER
    try:
        cell.clock.move(seconds)
        return f"cell {cell.number + 1}, {seconds:+d} s for {lasting(chance, 1, 3)}"
    finally:
        cell.clock.move(0)


@outage("voter", "SIGKILL to a Sentinel, with Kafka to a broker; it is started again")
def voter(cells: Cells, chance: random.Random) -> str:
    cell = one_of(cells, chance)
    cell.nodes[-1].kill()
    try:
        return f"machine {cell.number + 1}, {lasting(chance, 0.5, 3)}"
    finally:
        cell.nodes[-1].start()


@outage("topic-again", "with Kafka, a topic is deleted once its bodies are stored; the next post makes it again")
def topic_again(cells: Cells, chance: random.Random) -> str:
    return cells.replace_topic(STREAM) if isinstance(cells, KafkaCells) else NO_KAFKA


@outage("partitions", "with Kafka, the number of a topic's partitions is raised")
def partitions(cells: Cells, chance: random.Random) -> str:
    return cells.raise_partitions(chance.choice(cells.streams)) if isinstance(cells, KafkaCells) else NO_KAFKA


@outage("log-cut", "with Kafka, SIGKILL to all brokers; they lose the last bodies, which are stored", named=True)
def log_cut(cells: Cells, chance: random.Random) -> str:
    return cells.cut_log(STREAM, chance.randint(1, 500)) if isinstance(cells, KafkaCells) else NO_KAFKA


@outage("worker", "a second worker joins a cell, and leaves it or is killed while it stores")
def worker(cells: Cells, chance: random.Random) -> str:
    cell, leaves = one_of(cells, chance), chance.random() < 0.5
    command = [sys.executable, ROOT / "worker.py"]
    with cell.machine.running(command, cells.tmp / "worker.out", cell.environ) as process:
        lasted = lasting(chance, 1, 3)
        if leaves:
            cell.machine.send_signal(process, signal.SIGTERM)
            wait(lambda: process.poll() is not None, WHOLE, "a worker leaves")
    return f"cell {cell.number + 1}, {lasted}, {'left' if leaves else 'killed'}"


@outage("poison", "a body of another stream ends each worker that decodes it, until it is buried")
def poison(cells: Cells, chance: random.Random) -> str:
    cell, begun = one_of(cells, chance), time.monotonic()
    before: int = wait(lambda: (cells.store.number(CRUMBS_DEAD), True), WHOLE, "the database answers")[0]
    wait(lambda: cell.post("/crumbs", b"abort") == 200, WHOLE, "a cell accepts the body")
    wait(lambda: cells.store.number(CRUMBS_DEAD) > before, BURIED, "the body is buried", interval=0.1)
    return f"cell {cell.number + 1}, buried after {time.monotonic() - begun:.1f} s"


@outage("balancer", "SIGTERM to the balancer; it is started again")
def balancer(cells: Cells, chance: random.Random) -> str:
    cells.balancer_running.close()
    cells.balancer = cells.start_balancer()
    return ""


@outage("cut-database", "PostgreSQL's machine is cut off")
def cut_database(cells: Cells, chance: random.Random) -> str:
    with cells.database_machine.cut():
        return lasting(chance, 1, 4)


@outage("kill-database", "SIGKILL to PostgreSQL; it is started again")
def kill_database(cells: Cells, chance: random.Random) -> str:
    cells.database_machine.kill()
    cells.database.stop()
    try:
        return lasting(chance, 0, 1)
    finally:
        cells.database.start()
