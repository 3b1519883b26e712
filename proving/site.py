"""The installation under test: a private one, which the drill starts itself, or a running one."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from proving import engines, harness, receiver
from proving.destinations import DESTINATIONS
from proving.load import PATIENCE, unverified
from proving.store import STREAM, Postgres, Sqlite
from sluice import settings
from sluice.base import connect
from sluice.places import ROOT
from sluice.registry import contributions
from sluice.run import launch
from sluice.run.launch import parent_of
from sluice.settings import SCRATCH_SOCKET
from sluice.spool.contract import Keys
from sluice.spool.errors import SPOOL_ERRORS
from sluice.store.types import Unavailable

T = TypeVar("T")
KEYS = Keys.for_stream(STREAM)
OWN_VIEWS, OWN_RECORDS, OWN_ROUTES = "proving.views", "proving.records", "proving.routes"
CRUMBS_DEAD = "SELECT count(*) FROM dead_letters WHERE stream = 'crumbs'"  # the stream of OWN_RECORDS
AGE = 5  # seconds until a log is deleted
# Raised while a fault lasts: `wait` tries again.
TRANSIENT = (OSError, *SPOOL_ERRORS, Unavailable, http.client.HTTPException)


class Trouble(Exception):
    """The drill cannot continue; the message is one line for the operator."""


def wait(until: Callable[[], T], seconds: float, what: str, interval: float = 0.002) -> T:
    """`harness.poll`, for transient errors only. Raises: Trouble after `seconds`."""
    try:
        return harness.poll(until, seconds, what, interval, retried=TRANSIENT)
    except AssertionError as error:
        raise Trouble(str(error)) from None


def load_views(s: settings.Settings) -> dict[str, Any]:
    """The views of an installation; none in a checkout without them."""
    if "views" not in contributions():
        return {}
    from sluice.contrib import views

    return dict(views.load_views(s))


def destination_url(s: settings.Settings) -> str | None:
    """Where the rows of the drill go; None: into a table of the database."""
    url: str | None = s.rows.for_stream(STREAM) if "destinations" in contributions() else None
    return url


class Site:
    """An installation, its processes and its stores.

    private: the drill owns it, and may stop it and move its files. tls: its port speaks TLS. header: a header line for
    each request, such as an API key, or "".
    """

    ordered = True  # whether a stream has one list
    patience = PATIENCE  # seconds that clients wait for a response

    def __init__(self, environ: Mapping[str, str], private: bool, tls: bool = False, header: str = "") -> None:
        self.tls = tls
        self.header = header
        self.environ = dict(environ)
        self.settings = settings.load_settings(self.environ)
        self.private = private
        self.home = self.settings.home
        self.port = self.settings.port
        self.process: subprocess.Popen[bytes] | None = None  # of bin/up, if private
        self.running = contextlib.ExitStack()
        store = self.settings.store
        self.store: Sqlite | Postgres = Sqlite(store) if store.startswith("sqlite:///") else Postgres(store)
        if (rows := destination_url(self.settings)) is not None:
            if not isinstance(self.store, Sqlite):
                raise Trouble("the drill with INGEST_ROWS keeps the ledger in SQLite: unset INGEST_STORE")
            self.store = DESTINATIONS[rows.partition(":")[0]](store, rows, environ)
        self.redis = connect.connect_client(self.settings.spool, 30)
        self.lists = [self.redis]
        self.views_redis = connect.connect_client(str(self.home / SCRATCH_SOCKET), 30)
        self.views = load_views(self.settings)  # none: no client reads, and only the faults of writing are injected
        self.logs = (
            private and self.settings.keep.for_stream("logs") is not None
        )  # the drill posts logs, deleted by age
        # to which the drill posts
        self.streams = (STREAM, *(("gps", "votes") if self.views else ()), *(("logs",) if self.logs else ()))
        self.cleared = 0.0  # when a wrong clock may have made every log too old, by time.time()
        self.misdating: list[tuple[float, float]] = []  # from when until when Redis's clock was wrong, by time.time()
        self.receiver: receiver.Program | None = None  # of what is posted on
        self.engine: engines.Engine | None = None  # of the destination of rows, if the drill may kill it
        self.away: set[int] = set()  # events that a restored copy did not have
        self.gone: Counter[str] = Counter()  # stream -> bodies that the restored copies did not have

    # --- its processes ---

    def start(self) -> None:
        """Start bin/up, and wait until gateway and reader answer: on a busy machine the reader may be the last."""
        harness.claim_home(self.home)
        up = harness.running([ROOT / "bin/up"], self.home / "up.out", self.environ)
        self.process = self.running.enter_context(up)
        self.wait_ready(300)
        for path in self.views:
            wait(lambda path=path: self.ask("GET", path) != 502, 60, f"{path} answers")  # type: ignore[misc]

    def stop(self) -> None:
        """Stop bin/up and everything that it, or a killed one before it, has started."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.running.close()
            for tag in launch.home_tags(self.home):
                launch.end_tagged(tag, signal.SIGKILL, 1)
            self.process = None

    def ask(self, method: str, target: str, body: bytes | None = None) -> int:
        """Send a request. Returns: the status of the response. Raises: OSError, HTTPException."""
        connection = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=unverified())
            if self.tls
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        )
        name, _, value = self.header.partition(":")
        with contextlib.closing(connection):
            connection.request(method, target, body, {name: value.strip()} if name else {})
            return connection.getresponse().status

    def ready(self) -> bool:
        """Whether /readyz answers 200."""
        return self.ask("GET", "/readyz") == 200

    def wait_ready(self, seconds: float = 60) -> None:
        """Wait until it is ready. Raises: Trouble."""

        def ready() -> bool:
            if self.process is not None and self.process.poll() is not None:
                tail = (self.home / "up.out").read_text(errors="replace").strip().rpartition("\n")[2]
                raise Trouble(f"bin/up ended with status {self.process.returncode}: {tail}")
            # until the new bin/up has ended it, the nginx of a killed one answers too
            ours = self.process is None or self.process.pid in map(parent_of, self.pids("nginx"))
            return ours and self.ready()

        wait(ready, seconds, f"port {self.port} is ready")

    def pids(self, name: str) -> list[int]:
        """All processes of a program: redis, gateway, nginx, worker, views, follower or reader."""
        found: list[int] = []
        for tag in (self.home / "run").resolve().glob(f"{name}*.tag"):
            found += launch.tag_holders(tag)
        return found

    def parents(self, name: str) -> list[int]:
        """Those whose parent is not among them: the master, or all workers."""
        pids = self.pids(name)
        return wait(lambda: [pid for pid in pids or self.pids(name) if parent_of(pid) not in pids], 60, f"any {name}")

    def children(self, name: str) -> list[int]:
        """Those whose parent is among them."""

        def children() -> list[int]:
            pids = self.pids(name)
            return [pid for pid in pids if parent_of(pid) in pids]

        return wait(children, 60, f"a child of {name}")

    def mended(self) -> None:
        """Wait until a fault has no more effect on what is posted. Raises: Trouble."""
        wait(self.redis.ping, 60, "Redis answers")

    def served(self) -> bool:
        """Whether all views that follow rows are served whole. Raises: RedisError."""
        if not self.views:
            return True
        from sluice.contrib.views.contract import crowded_key, fingerprint

        for path, view in self.views.items():
            if name := view.state(path):
                found: Any = self.views_redis.mget(name, crowded_key(path))
                state, refused = found
                if not state or not state.startswith(fingerprint(view).encode()) or (self.private and refused == state):
                    return False
        return True

    # --- its stores ---

    def claims(self, stream: str = STREAM) -> list[str]:
        """The open claims of a stream."""
        found: Any = self.redis.zrange(Keys.for_stream(stream).claims, 0, -1)
        return [name.decode() for name in found]

    def waiting(self) -> int:
        """READY bodies plus open claims."""
        keys = [Keys.for_stream(stream) for stream in self.streams]
        found: Any = [each.llen(one.ready) + each.zcard(one.claims) for each in self.lists for one in keys]
        return sum(found)

    def ledger(self) -> dict[str, int]:
        """The ledger: bodies claimed since the beginning, and how many of them are in the database."""
        stored = sum(map(self.store.bodies, self.streams))
        taken = sum(map(self.taken, self.streams))
        return {"taken": taken, "in_the_database": stored, "missing": taken - stored}

    def taken(self, stream: str) -> int:
        """The bodies of a stream that were ever claimed."""
        taken: Any = [each.get(Keys.for_stream(stream).taken) for each in self.lists]
        return sum(int(found or 0) for found in taken)

    def command(self, *words: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """Run bin/sluice. Raises: subprocess.TimeoutExpired; it is killed after so many seconds."""
        command = [sys.executable, "-m", "sluice.ops", *words]
        return subprocess.run(command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=seconds)

    def different(self) -> dict[str, int]:
        """Run `views check`: path -> keys that differ. Raises: OSError unless all views are served."""
        done = self.command("views", "check")
        found = dict(re.findall(r"^(\S+): \d+ keys, (\d+) different$", done.stdout, re.M))
        if found.keys() != self.views.keys():
            raise OSError(done.stdout + done.stderr)
        return {path: int(count) for path, count in found.items()}


# A private installation has its own Redis and database, no replicas, no access control and no limits.
NOT_PASSED = {
    *("INGEST_SPOOL", "INGEST_STORE", "INGEST_REPLICAS"),
    *("INGEST_API_KEYS", "INGEST_PASSWORDS", "INGEST_ALLOW"),
    *("INGEST_TLS_CERTIFICATE", "INGEST_TLS_KEY", "INGEST_CLIENT_RATE", "INGEST_CLIENT_CONNECTIONS"),
    *("INGEST_KEEP", "INGEST_CELL"),
}


@contextlib.contextmanager
def private(keep: bool, with_views: bool, forward: bool = False) -> Iterator[Site]:
    """A private installation with the settings of the environment, removed afterwards unless `keep`.

    forward: positions and votes are posted on to a receiver, too.

    If INGEST_STORE is a PostgreSQL, it gets its own schema there. With INGEST_ROWS all rows go to a destination of that
    kind, made for the drill, and there are no views. Raises: Trouble.
    """
    if not (ROOT / "bin/up").exists():
        raise Trouble("a private installation needs a checkout of Sluice; --home takes a running installation")
    home = Path(tempfile.mkdtemp(prefix="drill-"))
    own = {"INGEST_HOME": str(home), "INGEST_PORT": str(harness.free_port()), "INGEST_KEEP": f"logs={AGE}s"}
    passed = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
    rows = destination_url(settings.load_settings())
    engine = destination(rows.partition(":")[0], home) if rows else None
    if "views" not in contributions():
        pass
    elif rows or not with_views:  # a view follows a table
        own["INGEST_VIEWS"] = "off"
    elif not passed.get("INGEST_VIEWS"):
        own["INGEST_VIEWS"] = OWN_VIEWS
    if not passed.get("INGEST_RECORDS") and not passed.get("INGEST_ROUTES"):
        own["INGEST_RECORDS"] = OWN_RECORDS
        own["INGEST_ROUTES"] = OWN_ROUTES
    store = settings.load_settings().store
    with contextlib.ExitStack() as stack:
        if keep:
            stack.callback(print, f"files kept in {home}")
        else:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        if engine:
            own |= {"INGEST_ROWS": stack.enter_context(engines.running(engine)).url, **engine.env}
        elif rows:
            own["INGEST_ROWS"] = f"parquet://{home}/rows"
        if store.startswith("sqlite:///"):
            own["INGEST_STORE"] = f"sqlite:///{home}/disk/ingest.db"  # as on a disk of its own, which may go and come
        else:
            own["INGEST_STORE"] = Postgres.within(store, f"drill_{os.getpid()}_{time.time_ns()}")
        receiving = receiver.Program(home / "receiver", harness.free_port()) if forward else None
        if receiving:
            stack.callback(receiving.kill)
            receiving.start()
            options = {"gps": "#order=device&timeout=2", "votes": "#timeout=2"}
            own["INGEST_ROWS"] = ",".join(f"{name}=store+{receiving.url}{how}" for name, how in options.items())
        site = Site({**passed, **own}, private=True)
        site.engine, site.receiver = engine, receiving
        if isinstance(site.store, Postgres):
            try:
                stack.enter_context(site.store.made())
            except Unavailable as error:
                raise Trouble(str(error)) from None
        stack.callback(site.stop)
        site.start()
        yield site


def destination(scheme: str, home: Path) -> engines.Engine | None:
    """What has to run for rows to go there. Raises: Trouble."""
    kinds = {"s3": engines.Store, "clickhouse": engines.ClickHouse, "kafka": engines.Kafka}
    if scheme not in kinds:
        return None
    if not kinds[scheme].available():
        raise Trouble(kinds[scheme].missing)
    return kinds[scheme](home / "engine")


def running(home: Path, header: str, with_views: bool) -> Site:
    """The running installation whose INGEST_HOME is `home`. header: see `Site`. Raises: Trouble if it is not ready."""
    try:
        nginx = (home / "etc/includes/listen.conf").read_text()
    except OSError as error:
        raise Trouble(f"no installation in {home}: {error}") from None
    try:
        spool = (home / "etc/redis.conf").read_text()
    except OSError as error:
        raise Trouble(f"the installation in {home} has no Redis of its own, so it cannot be drilled: {error}") from None
    listen = re.search(r"^\s*listen (\d+)( ssl)?", nginx, re.M)
    unix_socket = re.search(r'^unixsocket "(.*)"', spool, re.M)
    assert listen and unix_socket
    environ = {**os.environ, "INGEST_HOME": str(home), "INGEST_PORT": listen[1], "INGEST_SPOOL": unix_socket[1]}
    if not with_views or not (home / SCRATCH_SOCKET).exists():
        environ["INGEST_VIEWS"] = "off"
    site = Site(environ, private=False, tls=bool(listen[2]), header=header)
    try:
        ready = site.ready()
    except (OSError, http.client.HTTPException):
        raise Trouble(f"nothing answers on port {site.port} of {home}; is bin/up running?") from None
    if not ready:
        raise Trouble(f"port {site.port} is not ready for requests from here; does it need an API key (--header)?")
    return site
