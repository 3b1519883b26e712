"""Machines for a drill, as namespaces of this one, joined by a bridge. Needs root, Linux and iproute2.

A machine has its own network and its own processes. Its first process only sleeps; when it ends, the kernel kills all
others. The bridge is in a network namespace of the drill's process alone. So nothing appears in the system's network,
drills can run side by side, and nothing is left when the drill is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from proving import harness, relay
from proving.harness import strike
from proving.site import Trouble
from sluice.places import ROOT
from sluice.run.launch import parent_of
from sluice.run.servers import program_path

CLONE_NEWNET = 0x40000000  # unshare(2)
BRIDGE = "machines"
NETWORK = "10.77.0"
TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
DEPENDENT = ("setpriv", "--pdeathsig", "KILL", "--")  # prefix of a command that is killed when the drill's process ends


def require(**programs: str) -> None:
    """Check that machines can be made. programs: each further program and its package. Raises: Trouble."""
    if os.geteuid():
        raise Trouble("--cells needs root, for network namespaces")
    for name, package in (TOOLS | programs).items():
        if not shutil.which(name, path=program_path()):
            raise Trouble(f"--cells needs the program {name} (Debian: {package})")


def ip(*words: object, prefix: Sequence[str] = ()) -> None:
    """Run `ip`. Raises: Trouble."""
    command = [*prefix, str(shutil.which("ip", path=program_path())), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Trouble(f"{' '.join(command)}: {done.stderr.strip()}")


def isolate() -> None:
    """Give this process a network of its own, with the bridge. Call it before any thread starts. Raises: Trouble."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise Trouble(f"--cells needs network namespaces: {os.strerror(ctypes.get_errno())}")
    ip("link", "set", "lo", "up")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("address", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


class Machine:
    """A machine with the address NETWORK.number, until `close`."""

    def __init__(self, number: int) -> None:
        """Make it, and connect it. Raises: Trouble."""
        self.address = f"{NETWORK}.{number}"
        self.link = f"m{number}"  # the bridge's end of its cable
        self.back = 0.0  # when it was last connected or woken again (monotonic)
        # ignoring SIGCHLD makes the kernel remove the processes that it inherits, once they end
        first = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        first += ["env", "--ignore-signal=CHLD", "sleep", "infinity"]
        self.process = subprocess.Popen([*DEPENDENT, *first], start_new_session=True)
        try:
            self.first = harness.poll(self.sleeper, 10, "a machine starts")
            ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.first)
            ip("link", "set", self.link, "arp", "off", "up")
            self.plug()
            ip("address", "add", f"{self.address}/24", "dev", "eth0", prefix=self.inside())
            for name in "lo", "eth0":
                ip("link", "set", name, "up", prefix=self.inside())
        except BaseException:
            self.close()
            raise

    def sleeper(self) -> int:
        """Its first process, once it sleeps; else 0. Raises: Died."""
        if self.process.poll() is not None:
            raise harness.Died(f"unshare ended with status {self.process.returncode}")
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if parent_of(pid) == self.process.pid:
                return pid if Path(f"/proc/{pid}/comm").read_text() == "sleep\n" else 0
        return 0

    def inside(self) -> list[str]:
        """The prefix of a command that runs in it."""
        return ["nsenter", f"--target={self.first}", "--net", "--pid", "--mount", "--", "env", f"--chdir={ROOT}"]

    @contextlib.contextmanager
    def running(
        self, command: Sequence[object], log: Path, env: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program in it; kill it at the end, but not its children."""
        with harness.running([*self.inside(), *command], log, env, signal.SIGKILL) as process:
            try:
                yield process
            finally:
                self.send_signal(process, signal.SIGKILL)

    def send_signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to a program that `running` started: nsenter waits for it."""
        for pid in self.pids():
            if parent_of(pid) == process.pid:
                strike(pid, number)

    def pids(self, namespace: str = "pid") -> list[int]:
        """All its processes but the first. namespace: net, to include each `nsenter`, which waits for one of them."""
        found: list[int] = []
        if self.process.poll() is not None:  # it is closed
            return found
        mine, kept = os.readlink(f"/proc/{self.first}/ns/{namespace}"), (self.process.pid, self.first)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                if os.readlink(f"/proc/{pid}/ns/{namespace}") == mine and int(pid) not in kept:
                    found.append(int(pid))
        return found

    def kill(self) -> None:
        """SIGKILL to all of them at once. Its network goes on: it refuses connections."""
        deadline = time.monotonic() + 10
        while pids := self.pids():  # one may have forked meanwhile; `nsenter` must remove those that it waits for
            for pid in pids:
                strike(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise Trouble(f"processes {pids} do not end")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP to all of them; SIGCONT at the end."""
        stopped: set[int] = set()
        try:
            while pids := set(self.pids()) - stopped:
                for pid in pids:
                    strike(pid, signal.SIGSTOP)
                stopped |= pids
            yield
        finally:
            for pid in self.pids() + self.pids("net"):  # `nsenter` stops itself with its program
                strike(pid, signal.SIGCONT)
            self.back = time.monotonic()

    def plug(self) -> None:
        """Connect it to the bridge."""
        ip("link", "set", self.link, "master", BRIDGE)
        self.back = time.monotonic()

    def unplug(self) -> None:
        """Cut it off, both ways. No connection is closed."""
        ip("link", "set", self.link, "nomaster")

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Cut it off for a time."""
        self.unplug()
        try:
            yield
        finally:
            self.plug()

    @contextlib.contextmanager
    def relayed(self, inbound: float | None, outbound: float | None, log: Path) -> Iterator[None]:
        """Delay each packet to it and each from it, in seconds; None: drop them."""
        port, other = f"{self.link}-port", f"{self.link}-relay"
        command = [sys.executable, "-I", "-S", relay.__file__, other, self.link]
        command += ["drop" if seconds is None else str(seconds) for seconds in (inbound, outbound)]
        with self.cut():
            ip("link", "add", port, "type", "veth", "peer", "name", other)
            try:
                ip("link", "set", other, "arp", "off", "up")
                ip("link", "set", port, "master", BRIDGE, "up")
                with harness.running([*DEPENDENT, *command], log, os.environ, signal.SIGKILL):
                    yield
            finally:
                ip("link", "delete", port)

    def close(self) -> None:
        """Remove it with all its processes."""
        self.process.kill()
        self.process.wait()
