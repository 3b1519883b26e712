"""The installation under test of `drill --cells`: cells on machines of their own, behind a balancer, and one database.

Machine n has cell n, a Sentinel, the Redis that cell n began with, and a replica of that of the machine before. So the
death of a machine concerns the Redis of two cells; all others have both of theirs. PostgreSQL has a machine of its own.
The balancer is beside the clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from proving import harness, machines
from proving.balancer import all_up, haproxy
from proving.clock import Clock
from proving.harness import Server
from proving.machines import DEPENDENT, NETWORK, Machine
from proving.postgres import Postgres, postgres_server
from proving.replicated import Node, Replicated, node, redis_text, sentinel_text, url_of
from proving.site import KEYS, NOT_PASSED, OWN_RECORDS, OWN_ROUTES, Site, Trouble, wait
from sluice.base import connect
from sluice.places import ROOT

PORT = 8080  # of each cell
REDIS, REPLICA, SENTINEL = 6379, 6380, 26379
DATABASE_MACHINE = 100
WHOLE = 60.0  # seconds until a cell that was dead must be whole again
STARTING = "10"  # niceness of a session of programs that start: on a machine of their own they would disturb no other
GENTLE = 10.0  # seconds for that; then they get their share, for on a busy machine they would never be ready


def renice(process: subprocess.Popen[bytes], niceness: str) -> None:
    """Give the session of a process this niceness (autogroup in sched(7)), if the kernel has autogroups."""
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/{process.pid}/autogroup").write_text(niceness)


class Cell:
    """One cell and the machine that it is on."""

    def __init__(self, number: int, tmp: Path) -> None:
        """number: from 0 on."""
        self.number = number
        self.home = tmp / f"cell-{number}"
        self.machine = Machine(number + 1)
        self.nodes: list[Any] = []  # its Redis servers and Sentinel, or its broker; the last one votes
        self.environ: dict[str, str] = {}
        self.clock: Clock | None = None
        self.running = contextlib.ExitStack()
        self.up: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its address for the balancer."""
        return f"{self.machine.address}:{PORT}"

    def node(self, kind: str, name: str, text: str, port: int) -> Node:
        """A server on its machine, in a new directory."""
        return node(kind, self.home / name, text, self.machine.address, port, run=self.machine.running)

    def start(self) -> None:
        """Start all programs of the machine."""
        for one in self.nodes:
            one.start()
        self.start_up()

    def start_up(self) -> None:
        """Start bin/up."""
        harness.claim_home(self.home)
        up = self.machine.running([ROOT / "bin/up"], self.home / "up.out", self.environ)
        self.up = self.running.enter_context(up)
        renice(self.up, STARTING)

    def ready(self) -> bool:
        """Whether it accepts posts. Raises: OSError, and Trouble if bin/up has ended."""
        if self.up and self.up.poll() is not None:
            tail = (self.home / "up.out").read_text(errors="replace").strip().rpartition("\n")[2]
            raise Trouble(f"bin/up of cell {self.number + 1} ended with status {self.up.returncode}: {tail}")
        with socket.create_connection((self.machine.address, PORT), 5) as connection:
            return harness.get(connection, "/readyz")[0] == 200

    def post(self, path: str, body: bytes) -> int:
        """Post a body to it, past the balancer. Returns: the status. Raises: OSError."""
        with socket.create_connection((self.machine.address, PORT), 5) as connection:
            return harness.post(connection, path, body)[0]

    def kill(self) -> None:
        """SIGKILL to all of them at once."""
        self.machine.kill()
        for one in self.nodes:
            one.kill()
        self.running.close()

    @contextlib.contextmanager
    def dead(self, silent: bool = False) -> Iterator[None]:
        """Kill all of them; start them again at the end. silent: cut it off before, so that no connection is closed."""
        try:
            with self.machine.cut() if silent else contextlib.nullcontext():
                self.kill()
                yield
        finally:
            self.kill()
            self.start()


class Cells(Site):
    """The cells, what is between them and the clients, and their database."""

    spool = "Redis, replicas and Sentinels"
    programs = {"haproxy": "haproxy", "redis-server": "redis-server", "redis-sentinel": "redis-sentinel"}  # noqa: RUF012
    provision = "up"  # what bin/provision must have got
    rate = 1000  # events/s, unless --rate says otherwise: two cores must have room for what a fault brings with it
    ordered = False
    patience = 0.5  # a client that retries must give up a request whose cell has vanished

    def __init__(self, tmp: Path, count: int, stack: contextlib.ExitStack) -> None:
        """Start everything. stack: ends it. Raises: Trouble."""
        self.tmp = tmp
        self.cells: list[Cell] = []
        for number in range(count):
            self.cells.append(Cell(number, tmp))
            stack.callback(self.cells[-1].machine.close)
        self.groups: list[Replicated] = []
        self.build()
        self.database_machine = Machine(DATABASE_MACHINE)
        self.database = self.start_database(stack)
        passed = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
        common = {"INGEST_PORT": str(PORT), "INGEST_VIEWS": "off"}
        common |= {"INGEST_RECORDS": OWN_RECORDS, "INGEST_ROUTES": OWN_ROUTES}
        store = f"postgresql://sluice@{self.database_machine.address}:{self.database.port}/sluice"
        for cell in self.cells:
            cell.environ = passed | common | {"INGEST_HOME": str(cell.home), "INGEST_STORE": store}
            cell.environ |= {"INGEST_CELL": self.name_of(cell.number)} | self.environ_of(cell)
            folder = tmp / f"clock-{cell.number}"
            folder.mkdir()
            with contextlib.suppress(FileNotFoundError):  # without a C compiler the fault `clock` is not done
                cell.clock = Clock(folder, cell.environ.get("PATH", ""))
                cell.environ |= cell.clock.environ
            cell.start_up()
        self.balancer_running = stack.enter_context(contextlib.ExitStack())
        port = harness.free_port()
        own = passed | common | {"INGEST_HOME": str(tmp), "INGEST_PORT": str(port), "INGEST_STORE": self.database.url}
        super().__init__(own, private=True)
        self.lists = [connect.connect_client(group.url, 30) for group in self.groups]
        for cell in self.cells:
            wait(cell.ready, 120, f"cell {cell.number + 1} is ready")
        self.balancer = self.start_balancer()
        self.mended()

    # --- its parts ---

    def build(self) -> None:
        """Start the Redis servers and Sentinels of all machines."""
        count = len(self.cells)
        for cell in self.cells:
            cell.home.mkdir()
            address = cell.machine.address
            cell.nodes = [cell.node("redis", "redis-own", redis_text(address), REDIS)]
            cell.nodes[0].start()
        for cell in self.cells:
            follow = self.cells[(cell.number - 1) % count].nodes[0]
            text = redis_text(cell.machine.address, follow=follow)
            cell.nodes.append(cell.node("redis", "redis-replica", text, REPLICA))
            cell.nodes[1].start()
        wait(lambda: all(cell.nodes[1].has_role(b"slave") for cell in self.cells), 30, "the replicas")
        masters = {self.name_of(number): cell.nodes[0] for number, cell in enumerate(self.cells)}
        for cell in self.cells:
            self.add_sentinel(cell, masters)
            cell.nodes[2].start()
        sentinels = [cell.nodes[2] for cell in self.cells]
        for number, cell in enumerate(self.cells):
            nodes = [cell.nodes[0], self.cells[(number + 1) % count].nodes[1]]
            name = self.name_of(number)
            self.groups.append(Replicated(nodes, sentinels, url_of(sentinels, name), name))
        self.settled()

    def environ_of(self, cell: Cell) -> dict[str, str]:
        """The settings of a cell that concern its list."""
        return {"INGEST_SPOOL": self.groups[cell.number].url, "INGEST_REPLICAS": "1"}

    @staticmethod
    def name_of(number: int) -> str:
        """The name of a cell, and of its master for the Sentinels."""
        return f"cell-{number + 1}"

    def add_sentinel(self, cell: Cell, masters: dict[str, Node]) -> None:
        """Configure the Sentinel of a machine."""
        text = sentinel_text(cell.machine.address, masters)
        # one that replaces another has its id: the others count each id, also of one that is gone, for their majority
        text += f"sentinel myid {cell.number + 1:040x}\n"
        cell.nodes.append(cell.node("sentinel", "sentinel", text, SENTINEL))

    def rescue(self, cell: Cell) -> str:
        """Store what the replica of a dead cell has, by a worker beside it. Returns: the details. Raises: Trouble."""

        def promoted(group: Replicated) -> bool:
            try:
                return group.master() not in cell.nodes
            except AssertionError:  # the Sentinels do not agree yet
                return False

        # an empty Redis that came back as the master would empty its replica
        wait(lambda: all(map(promoted, self.groups)), WHOLE, "replicas are promoted")
        (replica,) = [one for one in self.groups[cell.number].nodes if one not in cell.nodes]
        (other,) = [one for one in self.cells if replica in one.nodes]
        with replica.client() as client:
            found = client.llen(KEYS.ready), client.zcard(KEYS.claims)
        environ = {**other.environ, "INGEST_SPOOL": replica.url, "INGEST_REPLICAS": "0"}
        command = [*other.machine.inside(), sys.executable, str(ROOT / "worker.py"), "burst"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WHOLE)
        if done.returncode:
            raise Trouble(f"worker.py burst: {done.stderr.strip()}")
        return "%d bodies and %d claims stored by a worker elsewhere" % found

    def replace(self, cell: Cell) -> None:
        """A new machine in place of one whose disk is gone: everything is empty, and its Redis servers are replicas."""
        shutil.rmtree(cell.home)
        cell.home.mkdir()
        nodes = []
        for kind, old in ("redis-own", cell.nodes[0]), ("redis-replica", cell.nodes[1]):
            group = next(group for group in self.groups if old in group.nodes)
            (other,) = [one for one in group.nodes if one is not old]
            nodes.append(cell.node("redis", kind, redis_text(cell.machine.address, follow=other), old.port))
            group.nodes[group.nodes.index(old)] = nodes[-1]
        sentinel = cell.nodes[2]
        cell.nodes = nodes
        masters = {group.name: next(one for one in group.nodes if one not in nodes) for group in self.groups}
        self.add_sentinel(cell, masters)
        sentinels = self.groups[0].sentinels  # the same list in all groups
        sentinels[sentinels.index(sentinel)] = cell.nodes[2]

    def start_database(self, stack: contextlib.ExitStack) -> Postgres:
        """PostgreSQL on its machine."""
        machine = self.database_machine
        clients = f"{NETWORK}.0/24 trust"
        server = stack.enter_context(postgres_server(machine.inside(), clients, listen_addresses="*"))
        stack.callback(machine.close)
        return server

    def start_balancer(self) -> Server:
        """HAProxy, once it sends requests to all cells."""
        addresses = [cell.address for cell in self.cells]
        return self.balancer_running.enter_context(haproxy(self.tmp, addresses, self.port, DEPENDENT))

    # --- its state ---

    def settled(self) -> None:
        """Wait until each Redis has its replica, and all Sentinels know it. Raises: Trouble."""
        try:
            for group in self.groups:
                group.settled()
        except AssertionError as error:
            raise Trouble(str(error)) from None

    def ledger(self) -> dict[str, int]:
        """The drill's own, plus what each cell says is missing there. Raises: Trouble."""
        found = super().ledger()
        for cell in self.cells:
            try:  # the last report of a worker, which may be of a fault that has ended, is true for a few seconds
                told = harness.poll(partial(status, cell), WHOLE, f"status of cell {cell.number + 1}")
            except AssertionError as error:
                raise Trouble(f"{error}: {error.__cause__}") from None
            found["missing"] += sum(told)
        return found

    def mended(self) -> None:
        self.settled()
        whole = partial(all_up, self.balancer, len(self.cells))
        with contextlib.suppress(AssertionError):
            harness.poll(whole, GENTLE, interval=0.05)
        for cell in self.cells:
            if cell.up:
                renice(cell.up, "0")
        wait(whole, WHOLE, "the balancer sends requests to all cells", interval=0.05)


def status(cell: Cell) -> list[int]:
    """What `bin/sluice status` of a cell says is missing, by stream. Raises: Trouble if anything else is wrong."""
    command = [*cell.machine.inside(), sys.executable, "-m", "sluice.ops", "status", "--json"]
    done = subprocess.run(command, env=cell.environ, capture_output=True, text=True, timeout=WHOLE)
    missing = [row["missing"] for row in json.loads(done.stdout or '{"streams": []}')["streams"]]
    if done.returncode and not any(missing):
        raise Trouble(f"sluice status: {done.stderr.strip()}")
    return missing


@contextlib.contextmanager
def cells(kind: type[Cells], count: int, keep: bool) -> Iterator[Cells]:
    """So many cells on machines of their own, removed afterwards; keep: but not their files. Raises: Trouble."""
    machines.require(**kind.programs)
    subprocess.run([ROOT / "bin/provision", kind.provision], check=True)  # its downloads need the network of the system
    home = Path(tempfile.mkdtemp(prefix="drill-cells-"))
    with contextlib.ExitStack() as stack:
        if keep:
            stack.callback(print, f"files kept in {home}")
        else:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        machines.isolate()
        try:
            yield kind(home, count, stack)
        except AssertionError as error:  # of the harness, before the drill begins
            raise Trouble(str(error)) from None
