"""The harness of tests, bench and drill: private servers (each program of Sluice, and bin/up), and raw HTTP to them.

Each server is a context manager: it takes a directory `tmp` as its INGEST_HOME, waits until the server answers, and
ends the server and its children. Servers in the same `tmp` connect to each other as in an installation. The path of a
socket is limited to 107 bytes: use `short_tmp`. A private PostgreSQL is in `postgres.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw

from sluice import settings
from sluice.places import ROOT
from sluice.run import configure, launch, servers
from sluice.settings import SCRATCH_SOCKET

T = TypeVar("T")
PORTS = range(20_000, 32_768)  # Linux takes those of outgoing connections from 32,768 on
reservations: list[socket.socket] = []  # see `free_port`
PYTHON = {"cpython": sys.executable, "pypy": str(ROOT / ".venv-pypy/bin/python")}


@dataclass
class Server:
    """A running server: its addresses and its process."""

    process: subprocess.Popen[bytes]
    log: Path
    home: Path
    port: int = 0
    sockets: list[Path] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def socket(self) -> Path:
        return self.sockets[0]

    def said(self) -> str:
        """The contents of its log."""
        return self.log.read_text(errors="replace")

    def pids(self, name: str) -> list[int]:
        """The processes of a program of an installation (redis, gateway, nginx, worker), in the order of their ids."""
        return sorted(launch.tag_holders(launch.program_tag(name, self.home)))


def strike(pid: int, number: int) -> None:
    """Send a signal to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes by SIGSTOP; continue them at the end."""
    try:
        for pid in pids:
            strike(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            strike(pid, signal.SIGCONT)


class Died(Exception):
    """A server ended unexpectedly; the message is its log. `poll` does not retry."""


PATIENCE = 120.0  # seconds; it only ends a test that hangs


def poll(
    until: Callable[[], T],
    seconds: float = PATIENCE,
    what: str = "",
    interval: float = 0.01,
    retried: tuple[type[Exception], ...] = (Exception,),
) -> T:
    """Call `until` until it returns something true, and return that. retried: exceptions that count as false.

    Raises: AssertionError after `seconds`, from the last exception.
    """
    deadline = time.monotonic() + seconds
    while True:
        error: Exception | None = None
        try:
            if answer := until():
                return answer
        except Died:
            raise
        except retried as caught:
            error = caught
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or until}") from error
        time.sleep(interval)


@contextlib.contextmanager
def database(path: Path, flags: int = apsw.SQLITE_OPEN_READWRITE, seconds: float = 30) -> Iterator[apsw.Connection]:
    """A connection to a worker's SQLite database. seconds: to wait for its lock.

    By the workers' SQLite: an older one can damage a log that both write (sqlite.org/wal.html#walresetbug). And by one
    copy of SQLite in a process: with two of them, one breaks the other's POSIX locks (howtocorrupt.html, 2.2.1).
    """
    with contextlib.closing(apsw.Connection(str(path), flags)) as db:
        db.set_busy_timeout(int(seconds * 1000))
        yield db


def ask(home: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a query to the worker's SQLite database; none while the database or the table does not exist."""
    try:
        with database(home / "ingest.db", apsw.SQLITE_OPEN_READONLY) as db:
            return db.execute(sql, values).fetchall()
    except (apsw.CantOpenError, apsw.SQLError, apsw.BusyError, apsw.IOError, apsw.FullError):
        return []


def free_port() -> int:
    """A TCP port that is unused on IPv4 and on IPv6. No process gets it again as long as this one runs.

    A server may open it late, or be started again on it. So a socket in the abstract namespace reserves its number: the
    kernel gives the name to one process, and takes it back when that ends.
    """
    dual = socket.has_dualstack_ipv6()
    family = (socket.AF_INET, socket.AF_INET6)[dual]
    for port in random.sample(PORTS, len(PORTS)):
        reservation = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            reservation.bind(f"\0sluice-port-{port}")
            socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
            reservations.append(reservation)
            return port
        reservation.close()
    raise OSError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


@contextlib.contextmanager
def short_tmp() -> Iterator[Path]:
    """A private directory whose name is short enough for sockets."""
    tmp = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
    try:
        yield tmp
    finally:
        for tag in tmp.rglob("*.tag"):  # of programs that a killed bin/up left
            launch.end_tagged(tag.resolve(), signal.SIGKILL, 1)
        shutil.rmtree(tmp, ignore_errors=True)


def environment(tmp: Path, env: Mapping[str, object] | None = None) -> dict[str, str]:
    """The environment of bin/up's programs: `tmp` as INGEST_HOME, `env`, and no other INGEST_ variable."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("INGEST_")}
    clean = configure.NURSERY | clean
    return clean | {"INGEST_HOME": str(tmp)} | {name: str(value) for name, value in (env or {}).items()}


@contextlib.contextmanager
def running(
    command: Sequence[object],
    log: Path,
    env: Mapping[str, str],
    stop: int = signal.SIGTERM,
    cwd: Path = ROOT,
    seconds: float = 15,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in its own process group. At the end send `stop`, wait for at most `seconds`, kill the group.

    A program whose children have sessions of their own needs more than the slowest end takes: killed, it leaves them.
    """
    with open(log, "ab") as out:
        process = subprocess.Popen(
            # a shell script that starts the tests with & makes them ignore SIGINT, nohup SIGHUP; children inherit it
            ["env", "--default-signal=INT,HUP", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def listening(server: Server, where: int | Path) -> Callable[[], bool]:
    """For `poll`: whether the server accepts connections there. It raises Died if the server has ended."""

    def ask() -> bool:
        if server.process.poll() is not None:
            raise Died(f"status {server.process.returncode}: {server.said()}")
        connect(where, 1).close()
        return True

    return ask


@contextlib.contextmanager
def _redis(tmp: Path, name: str, socket: Path, config: Mapping[str, object]) -> Iterator[Server]:
    """redis-server with `tmp`/etc/NAME.conf."""
    configure.write_configuration(settings.load_settings({"INGEST_HOME": str(tmp)}))
    more = [part for key, value in config.items() for part in ("--" + key.replace("_", "-"), value)]
    command, log = ["redis-server", tmp / f"etc/{name}.conf", *more], tmp / f"{name}.out"
    # SIGTERM would wait for Redis's next tenth of a second; what it has replied to is in its log already
    with running(command, log, environment(tmp), signal.SIGKILL) as process:
        server = Server(process, log, tmp, sockets=[socket])
        # while it loads its log, it answers LOADING
        poll(lambda: listening(server, socket)() and exchange(socket, b"PING\r\n", 5) == b"+PONG", what="redis-server")
        yield server


def redis_server(tmp: Path, **config: object) -> contextlib.AbstractContextManager[Server]:
    """redis-server with deploy/redis/redis.conf, on `tmp`/run/redis.sock.

    config: directives with _ for -, such as appendfsync="no".
    """
    return _redis(tmp, "redis", tmp / "run/redis.sock", config)


def views_redis(tmp: Path, **config: object) -> contextlib.AbstractContextManager[Server]:
    """redis-server with deploy/redis/views.conf, on `tmp`/run/views.sock. config: as above."""
    return _redis(tmp, "views", tmp / SCRATCH_SOCKET, config)


@contextlib.contextmanager
def follower(tmp: Path, env: Mapping[str, object] | None = None) -> Iterator[Server]:
    """The follower of the database and the views' Redis in `tmp`. The views may not be built yet."""
    command, log = [sys.executable, "-m", "sluice.contrib.views.follow"], tmp / "follower.out"
    with running(command, log, environment(tmp, env)) as process:
        yield Server(process, log, tmp)


@contextlib.contextmanager
def _gunicorn(
    tmp: Path, name: str, sockets: list[Path], command: Sequence[object], env: Mapping[str, str]
) -> Iterator[Server]:
    """gunicorn with gunicorn.conf.py."""
    sockets[0].parent.mkdir(parents=True, exist_ok=True)
    with running(command, tmp / f"{name}.out", env) as process:
        server = Server(process, tmp / f"{name}.out", tmp, sockets=sockets)
        # the master listens before its first worker runs; a worker answers, the reader 404
        poll(lambda: listening(server, server.socket)() and get(server.socket, "/healthz")[0], 30, name)
        yield server


def gateway(
    tmp: Path,
    redis: Server | Path | None = None,
    runtime: str = "cpython",
    worker_class: str = "",
    env: Mapping[str, object] | None = None,
    args: tuple[object, ...] = (),
) -> contextlib.AbstractContextManager[Server]:
    """gunicorn with ingest.app, on `tmp`/run/gateway-*.sock. args: options of gunicorn."""
    where = redis.socket if isinstance(redis, Server) else redis
    surroundings = environment(tmp, ({"INGEST_SPOOL": where} if where else {}) | dict(env or {}))
    command = [PYTHON[runtime], "-m", "gunicorn", "-c", ROOT / "gunicorn.conf.py", *args]
    command += ["-k", worker_class] if worker_class else []
    return _gunicorn(tmp, "gateway", settings.load_settings(surroundings).gateway_sockets, command, surroundings)


def reader(
    tmp: Path,
    runtime: str = "cpython",
    worker_class: str = "",
    env: Mapping[str, object] | None = None,
    args: tuple[object, ...] = (),
) -> contextlib.AbstractContextManager[Server]:
    """gunicorn with serve.app, on `tmp`/run/reader-*.sock. args: as above."""
    surroundings = environment(tmp, env)
    sockets = settings.load_settings(surroundings).reader_sockets
    command = [PYTHON[runtime], "-m", "gunicorn", "-c", ROOT / "gunicorn.conf.py", "--workers", 1, *args]
    command += ["-k", worker_class or "sluice.contrib.views.lane.ReaderLane"]
    command += [word for path in sockets for word in ("--bind", f"unix:{path}")]
    return _gunicorn(tmp, "reader", sockets, [*command, "sluice.contrib.views.serve:app"], surroundings)


@contextlib.contextmanager
def nginx(
    tmp: Path, env: Mapping[str, object] | None = None, change: tuple[tuple[str, str], ...] = ()
) -> Iterator[Server]:
    """nginx with the configuration in nginx/, in front of `tmp`/run/gateway-*.sock.

    change: pairs of a text in the configuration and its replacement, for example to shorten a timeout.
    """
    port = free_port()
    s = settings.load_settings(environment(tmp, {"INGEST_PORT": port} | dict(env or {})))
    configure.write_configuration(s)
    for name, text in configure.nginx_configuration(s).items():
        for old, new in change:
            text = text.replace(old, new)
        (tmp / "etc" / name).write_text(text)
    binary = servers.find("nginx")
    command = [binary, "-p", tmp, "-c", tmp / "etc/nginx.conf"]
    with running(command, tmp / "nginx.out", environment(tmp), signal.SIGQUIT) as process:
        server = Server(process, tmp / "nginx.out", tmp, port=port)
        poll(listening(server, port), what="nginx")
        yield server


@contextlib.contextmanager
def chain(tmp: Path, env: Mapping[str, object] | None = None) -> Iterator[Server]:
    """The programs through which a body goes into the database: Redis, gateway, nginx and a worker. Without bin/up, so
    nothing starts one again that has ended; it takes a quarter of the time of `installation`.
    """
    worker = [sys.executable, ROOT / "worker.py"]
    with (
        redis_server(tmp) as redis,
        gateway(tmp, redis, env=env),
        nginx(tmp, env) as web,
        running(worker, tmp / "worker.out", environment(tmp, env)),
    ):
        yield web


def claim_home(home: Path) -> None:
    """Make a directory that bin/up takes as its INGEST_HOME, whatever else is in it."""
    (home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "run/up.lock").touch(0o600)


@contextlib.contextmanager
def installation(
    tmp: Path,
    env: Mapping[str, object] | None = None,
    ready: bool = True,
    command: Sequence[object] = (ROOT / "bin/up",),
) -> Iterator[Server]:
    """bin/up on a free port. ready: wait until /readyz answers 200. command: one that does the same."""
    surroundings = environment(tmp, {"INGEST_PORT": free_port()} | dict(env or {}))
    port = int(surroundings["INGEST_PORT"])
    claim_home(tmp)
    with running(command, tmp / "up.out", surroundings, seconds=60) as process:
        server = Server(process, tmp / "up.out", tmp, port, settings.load_settings(surroundings).gateway_sockets)
        if ready:
            # 300 s: the first start may install packages
            poll(lambda: listening(server, port)() and get(port, "/readyz")[0] == 200, 300, "bin/up")
        yield server


def connect(where: int | Path, seconds: float = PATIENCE) -> socket.socket:
    """A connection to a local TCP port or a Unix socket."""
    if isinstance(where, int):
        return socket.create_connection(("127.0.0.1", where), seconds)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    try:
        connection.connect(str(where))
    except OSError:
        connection.close()
        raise
    return connection


def exchange(where: int | Path, data: bytes, size: int) -> bytes:
    """Send bytes, then read `size` bytes."""
    with connect(where) as connection:
        connection.sendall(data)
        return receive(connection, size)


def receive(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes, or all if the connection ends first. MSG_WAITALL does not wait on a socket with a timeout."""
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data


Answer = tuple[int, dict[str, str], bytes]


def request(where: int | Path | socket.socket, data: bytes, seconds: float = PATIENCE) -> Answer:
    """Send bytes unchanged and read one response: status, headers with lower-case names, body.

    where: a port, a Unix socket, or a connection, which stays open.
    """
    if isinstance(where, socket.socket):
        # the response to an early rejection can be read all the same
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            where.sendall(data)
        return answer(where, head=data.startswith(b"HEAD "))
    with connect(where, seconds) as connection:
        return request(connection, data)


def answer(connection: socket.socket, head: bool = False) -> Answer:
    """Read exactly one response. head: it answers a HEAD request, so it has no body.

    Raises: EOFError if the connection ends first.
    """
    lines = b""
    while not lines.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise EOFError(f"ended after {lines!r}")
        lines += byte
    first, *fields = lines.decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
    status = int(first.split()[1])
    if status == 100:
        return answer(connection, head)
    if head or status in (204, 304):
        return status, headers, b""
    if "content-length" in headers:
        size = int(headers["content-length"])
        body = receive(connection, size)
        if len(body) < size:
            raise EOFError(f"ended after {lines + body!r}")
        return status, headers, body
    body = b""
    while part := connection.recv(65536):
        body += part
    return status, headers, body


def get(where: int | Path | socket.socket, target: str) -> Answer:
    """GET a target."""
    return request(where, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def post(
    where: int | Path | socket.socket, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """POST a body with Content-Length."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return request(where, head.encode() + body)
