"""The installation that a drill is held against: a private one that it starts itself, or one that runs already."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluice import settings
from sluice.drill.load import untrusting
from sluice.drill.store import Postgres, Sqlite
from sluice.run import launch
from sluice.run.launch import parent_of
from sluice.run.up import ROOT
from sluice.sinks import Unavailable
from sluice.spool.contract import Keys

T = TypeVar("T")
STREAM = "metrics"
KEYS = Keys.of(STREAM)


class Trouble(Exception):
    """Why a drill cannot go on, in one line for a person."""


def wait(until: Callable[[], T], seconds: float, what: str) -> T:
    """Ask until the answer is true, and return it. Raises: Trouble after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, redis.RedisError, Unavailable, http.client.HTTPException):
            if answer := until():
                return answer
        if time.monotonic() > deadline:
            raise Trouble(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.002)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def connect(path: Path) -> redis.Redis:
    """A client of Redis that does not try again: what a fault does must be seen, and done once."""
    return redis.Redis(unix_socket_path=str(path), socket_timeout=30, retry=Retry(NoBackoff(), 0))


class Site:
    """An installation, its processes and its stores. private: it is the drill's own, and may be stopped and moved.

    tls: its port speaks that. header: a line to send with each request, such as a key, or none.
    """

    def __init__(self, environ: Mapping[str, str], private: bool, tls: bool = False, header: str = "") -> None:
        self.tls = tls
        self.header = header
        self.environ = dict(environ)
        self.settings = settings.load(self.environ)
        self.private = private
        self.home = self.settings.home
        self.port = self.settings.port
        self.process: subprocess.Popen | None = None
        sink = self.settings.sink
        self.store = Sqlite(sink) if sink.startswith("sqlite:///") else Postgres(sink)
        self.redis = connect(self.settings.redis)

    # --- its processes ---

    def start(self) -> None:
        """bin/up, until it takes writes."""
        with open(self.home / "up.out", "ab") as out:
            self.process = subprocess.Popen(
                [ROOT / "bin/up"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environ,
                start_new_session=True,
            )
        self.wait_ready(300)

    def stop(self) -> None:
        """Ask bin/up to stop; see everything gone."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for tag in (self.home / "run").resolve().glob("*.tag"):
                launch.end(tag, signal.SIGKILL, 1)
            self.process = None

    def ready(self) -> bool:
        """Whether it takes writes."""
        connection = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=untrusting())
            if self.tls
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        )
        name, _, value = self.header.partition(":")
        try:
            connection.request("GET", "/readyz", headers={name: value.strip()} if name else {})
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def wait_ready(self, seconds: float = 60) -> None:
        """Until it takes writes."""

        def ask() -> bool:
            if self.process is not None and self.process.poll() is not None:
                tail = (self.home / "up.out").read_text(errors="replace").strip().rpartition("\n")[2]
                raise Trouble(f"bin/up ended with status {self.process.returncode}: {tail}")
            # what a killed one has left answers too, until it is ended
            mine = self.process is None or self.process.pid in map(parent_of, self.pids("nginx"))
            return mine and self.ready()

        wait(ask, seconds, f"port {self.port} takes writes")

    def pids(self, name: str) -> list[int]:
        """The processes of redis, gateway, nginx or worker (of all workers)."""
        found: list[int] = []
        for tag in (self.home / "run").resolve().glob(f"{name}*.tag"):
            found += launch.holders(tag)
        return found

    def parents(self, name: str) -> list[int]:
        """Of these the masters: those that none of them started. There is one, but for workers."""
        pids = self.pids(name)
        return wait(lambda: [pid for pid in pids or self.pids(name) if parent_of(pid) not in pids], 60, f"any {name}")

    def children(self, name: str) -> list[int]:
        """And the processes that these started."""

        def ask() -> list[int]:
            pids = self.pids(name)
            return [pid for pid in pids if parent_of(pid) in pids]

        return wait(ask, 60, f"a child of {name}")

    # --- its stores ---

    def claims(self) -> list[str]:
        """The claims that are open."""
        found: Any = self.redis.zrange(KEYS.claims, 0, -1)
        return [name.decode() for name in found]

    def waiting(self) -> int:
        """Bodies that are READY, and claims that are open."""
        ready: Any = self.redis.llen(KEYS.ready)
        return int(ready) + len(self.claims())

    def ledger(self) -> dict[str, int]:
        """The stream's ledger: what was ever claimed, and what of it the database knows."""
        stored = self.store.bodies(STREAM)
        claims: Any = self.redis.get(KEYS.claimed)
        claimed = int(claims or 0)
        return {"claimed": claimed, "in_the_database": stored, "missing": claimed - stored}


# A private installation has its own places, nobody follows its Redis, and everybody on this machine gets in.
NOT_PASSED = {
    *("INGEST_REDIS", "INGEST_SINK", "INGEST_REPLICAS", "INGEST_API_KEYS", "INGEST_PASSWORDS", "INGEST_ALLOW"),
    *("INGEST_TLS_CERTIFICATE", "INGEST_TLS_KEY", "INGEST_CLIENT_RATE", "INGEST_CLIENT_CONNECTIONS"),
}


@contextlib.contextmanager
def private(keep: bool) -> Iterator[Site]:
    """An installation of the drill's own, with the settings of the environment but its own place; gone afterwards.

    Where the environment names a PostgreSQL, it has a schema of its own there. Raises: Trouble.
    """
    home = Path(tempfile.mkdtemp(prefix="drill-"))
    own = {"INGEST_HOME": str(home), "INGEST_PORT": str(free_port())}
    passed = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
    sink = settings.load().sink
    with contextlib.ExitStack() as stack:
        if keep:
            stack.callback(print, f"kept: {home}")
        else:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        if not sink.startswith("sqlite:///"):
            own["INGEST_SINK"] = Postgres.within(sink, f"drill_{os.getpid()}_{time.time_ns()}")
        site = Site({**passed, **own}, private=True)
        if isinstance(site.store, Postgres):
            try:
                stack.enter_context(site.store.made())
            except Unavailable as error:
                raise Trouble(str(error)) from None
        stack.callback(site.stop)
        site.start()
        yield site


def running(home: Path, header: str) -> Site:
    """The installation that runs in this home already. header: see `Site`. Raises: Trouble if none takes writes."""
    try:
        nginx = (home / "etc/sluice.conf").read_text()
        spool = (home / "etc/redis.conf").read_text()
    except OSError as error:
        raise Trouble(f"no bin/up has run in {home}: {error}") from None
    door, socket_path = (
        re.search(r"^\s*listen (\d+)( ssl)?", nginx, re.M),
        re.search(r'^unixsocket "(.*)"', spool, re.M),
    )
    assert door and socket_path
    environ = {**os.environ, "INGEST_HOME": str(home), "INGEST_PORT": door[1], "INGEST_REDIS": socket_path[1]}
    site = Site(environ, private=False, tls=bool(door[2]), header=header)
    try:
        ready = site.ready()
    except (OSError, http.client.HTTPException):
        raise Trouble(f"nothing answers on port {site.port}, where {home} has it; is bin/up running?") from None
    if not ready:
        raise Trouble(f"what answers on port {site.port} takes nothing from here; does it want a key (--header)?")
    return site
