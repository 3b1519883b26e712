"""Private servers: a Redis, and candidates behind an nginx each."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import redis

from proving import harness
from proving.kafka import Broker
from rig import heads
from rig import load as generators
from rig.environment import BENCH, ROOT, VENV
from rig.parameters import OURS, Figures

# The same versions of the interpreters, with the frameworks.
THEIRS = {"cpython": VENV / "bin/python", "pypy": ROOT / ".venv-pypy/bin/python"}
harness.PYTHON.update({name: str(path) for name, path in OURS.items()})
CFLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
# No worker drains the lists, and a gateway that refuses bodies at its limit would look fast.
UNBOUNDED = {"INGEST_MAX_MEMORY": "1024g"}
UNBOUNDED_BEFORE = {"INGEST_MAX_BACKLOG_BYTES": "1024g"}  # a setting before the package
# For nginx in front of a server that is not Sluice's reader: all paths go to the upstream of the gateway.
NO_VIEWS = {"INGEST_VIEWS": "off"}

# Runs in a checkout, old layout or new: writes the configuration of nginx, prints the sockets of the gateway.
RENDER = """
import sys
sys.path.insert(0, ".")
try:
    from sluice import settings
    from sluice.run import configure
except ImportError:  # a checkout from before the package
    import settings
    from ops import up as configure
load = getattr(settings, "load_settings", None) or settings.load  # the latter in a checkout from before the names
write = next(filter(None, (getattr(configure, name, None) for name in ("write_configuration", "write", "prepare"))))
s = load()
write(s)
for name, text in configure.nginx_configuration(s).items():
    (s.home / "etc" / name).write_text(text)
print(*s.gateway_sockets)
"""


@dataclass
class Candidate:
    """A system under test: its port, and the process groups of each of its parts."""

    name: str
    port: int
    parts: dict[str, list[int]]
    home: Path
    path: str = "/gps"
    line: bool = False  # it gets line protocol instead of JSON
    about: Figures = field(default_factory=dict)  # runtime, worker class …, for the results


class Stand:
    """A private Redis and any number of candidates, in a directory that is removed at the end.

    api_key: that all requests have.
    """

    api_key = ""

    def __init__(
        self,
        options: argparse.Namespace,
        durability: str = "no",
        max_memory: str = "4g",
        redis_env: Mapping[str, str] | None = None,
    ) -> None:
        """durability: appendfsync of Redis at the start. max_memory: bytes, with suffix. redis_env: more for Redis."""
        self.options = options
        self.redis_env = redis_env or {}
        self.durability = durability
        self.max_memory = max_memory
        self.stack = contextlib.ExitStack()
        self.count = 0
        self.servers: list[harness.Server] = []
        self.posts: dict[tuple[str, int, bool, str], heads.Requests] = {}  # of `load`

    def __enter__(self) -> Stand:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda signum, _: sys.exit(128 + signum))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65535), hard))  # as bin/up does
        self.tmp = Path(tempfile.mkdtemp(prefix="sl-", dir=self.options.dir))
        # If this process is killed, this shell reads the end of its pipe, and kills the servers.
        orphaned = 'cat; while read -r group; do kill -KILL -- "-$group"; done <"$0/groups"; rm -rf "$0"'
        self.watch = subprocess.Popen(
            ["bash", "-c", orphaned, self.tmp], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.stack.callback(self.watch.communicate)
        self.stack.callback(shutil.rmtree, self.tmp, ignore_errors=True)
        try:
            config = {"appendfsync": self.durability, "maxmemory": self.max_memory + "b"}
            with mock.patch.dict(os.environ, self.redis_env):
                self.redis = self.enter(harness.redis_server(self.home("redis"), **config))
        except BaseException:
            self.stack.close()
            raise
        self.client = redis.Redis(unix_socket_path=str(self.redis.socket), socket_timeout=120)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.stack.close()

    def kill(self) -> None:
        """Kill all servers: a graceful end would take seconds per server, and no benchmark needs it."""
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)

    def enter(self, context: contextlib.AbstractContextManager[harness.Server]) -> harness.Server:
        """Start a server that runs until the end of the stand."""
        server = self.stack.enter_context(context)
        self.servers.append(server)
        with open(self.tmp / "groups", "a") as groups:
            groups.write(f"{server.pid}\n")
        return server

    def home(self, name: str = "") -> Path:
        """A new INGEST_HOME, with the sockets `home`/run/gateway-*.sock."""
        self.count += 1
        home = self.tmp / (name or f"c{self.count}")
        (home / "run").mkdir(parents=True)
        return home

    def environment(self, home: Path, **env: object) -> dict[str, str]:
        """The environment of the programs of bin/up, with the Redis of this stand."""
        return harness.environment(home, {"INGEST_SPOOL": self.redis.socket} | env)

    def run(
        self,
        home: Path,
        command: Sequence[object],
        env: Mapping[str, str],
        where: int | Path | None = None,
        name: str = "server",
        cwd: Path = ROOT,
    ) -> harness.Server:
        """Start any program. where: a port or socket to wait for."""
        log = home / f"{name}.out"

        @contextlib.contextmanager
        def started() -> Iterator[harness.Server]:
            with harness.running(command, log, env, cwd=cwd) as process:
                server = harness.Server(process, log, home)
                if where is not None:
                    harness.poll(harness.listening(server, where), 60, name)
                yield server

        return self.enter(started())

    def front(
        self,
        name: str,
        home: Path,
        parts: dict[str, harness.Server],
        *change: tuple[str, str],
        path: str = "/gps",
        read: str = "",
        line: bool = False,
        env: Mapping[str, object] | None = None,
        **about: Any,
    ) -> Candidate:
        """A candidate: servers behind nginx with the configuration of bin/up.

        env, change: as for `harness.nginx`; for a read env is NO_VIEWS unless given. read, line: see `checked`.
        """
        env = NO_VIEWS if read and env is None else env
        return self.checked(name, home, parts, self.enter(harness.nginx(home, env, change)), path, about, read, line)

    def checked(
        self,
        name: str,
        home: Path,
        parts: dict[str, harness.Server],
        nginx: harness.Server,
        path: str = "/gps",
        about: Figures | None = None,
        read: str = "",
        line: bool = False,
    ) -> Candidate:
        """A candidate, once it answers a POST (line: of line protocol), or a GET of the target `read`, with a 2xx.

        Raises: AssertionError if it does not within 60 s.
        """
        groups = {"nginx": [nginx.pid]} | {part: [server.pid] for part, server in parts.items()}
        candidate = Candidate(name, nginx.port, groups | {"redis": [self.redis.pid]}, home, path, line, about or {})

        def answers() -> bool:
            for server in parts.values():
                if server.process.poll() is not None:
                    raise harness.Died(f"{name}: {server.said()[-3000:]}")
            if read:
                status, _, text = harness.get(nginx.port, read)
            else:
                fields = {"Connection": "close", "X-API-Key": self.api_key}
                status, _, text = harness.post(nginx.port, path, generators.body(80, line), fields)
            if status // 100 != 2:
                raise ValueError(f"{name}: {status} {text!r}\n" + "".join(s.said()[-2000:] for s in parts.values()))
            return True

        harness.poll(answers, 60, name)
        return candidate

    def gateway(
        self,
        name: str,
        runtime: str = "cpython",
        gateways: int = 1,
        worker_class: str = "",
        broker: Broker | None = None,
        **env: object,
    ) -> Candidate:
        """The gateway of Sluice as bin/up runs it, behind nginx. worker_class: of gunicorn; "": the fast lane.

        broker: of Kafka, in the place of Redis.
        """
        home = self.home()
        env = {"INGEST_GATEWAYS": gateways} | UNBOUNDED | env | ({"INGEST_SPOOL": broker.url} if broker else {})
        server = self.enter(harness.gateway(home, None if broker else self.redis, runtime, worker_class, env))
        parts = {"gateway": server} | ({"kafka": broker.server} if broker else {})
        worker = worker_class or "fastlane"
        return self.front(name, home, parts, env=env, runtime=runtime, worker=worker, processes=gateways)

    def tree(self, name: str, root: Path, runtime: str) -> Candidate:
        """The gateway of a checkout in its own virtual environment, behind nginx as configured by its bin/up.

        The checkout may have the layout before the package `sluice`.
        """
        home, port = self.home(), harness.free_port()
        unbounded = UNBOUNDED if (root / "sluice").exists() else UNBOUNDED | UNBOUNDED_BEFORE
        env = self.environment(home, INGEST_PORT=port, **unbounded)
        python = {"cpython": root / ".venv/bin/python", "pypy": root / ".venv-pypy/bin/python"}
        rendered = subprocess.run(
            [python["cpython"], "-c", RENDER], env=env, cwd=root, check=True, stdout=subprocess.PIPE, text=True
        )
        socket, *_ = map(Path, rendered.stdout.split())
        command = [python[runtime], "-m", "gunicorn", "-c", root / "gunicorn.conf.py"]
        server = self.run(home, command, env, socket, "gateway", cwd=root)
        binary = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        nginx = self.run(home, [binary, "-p", home, "-c", home / "etc/nginx.conf"], env, port, "nginx")
        nginx.port = port
        return self.checked(name, home, {"gateway": server}, nginx, about={"runtime": runtime, "tree": str(root)})

    def gunicorn(
        self,
        name: str,
        app: str,
        runtime: str = "cpython",
        worker_class: str = "gevent",
        workers: int = 1,
        threads: int = 1,
        read: str = "",
        **env: object,
    ) -> Candidate:
        """A module of bench/wsgi under gunicorn, with bench/wsgi/gunicorn_conf.py, behind nginx."""
        home = self.home()
        sockets = harness.settings.load_settings({"INGEST_HOME": str(home)}).gateway_sockets
        command: list[object] = [THEIRS[runtime], "-m", "gunicorn", "-c", "python:wsgi.gunicorn_conf"]
        command += ["-k", worker_class, "-w", workers, *(["--threads", threads] if threads > 1 else [])]
        command += [part for path in sockets for part in ("-b", f"unix:{path}")]
        surroundings = self.environment(home, PYTHONPATH=f"{BENCH}:{BENCH}/wsgi", **env)
        server = self.run(home, [*command, app], surroundings, sockets[0], "gunicorn")
        return self.front(
            name, home, {"gateway": server}, read=read,
            runtime=runtime, worker=worker_class, processes=workers, threads=threads,
        )  # fmt: skip

    def compiled(self, name: str) -> Path:
        """A C program of bench/."""
        program = self.tmp / name
        if not program.exists():
            subprocess.run(["gcc", *CFLAGS, "-o", program, BENCH / f"{name}.c"], check=True)
        return program

    def noop(self, name: str = "no-op", body: str = '{"message":"OK"}', read: str = "") -> Candidate:
        """The ceiling of any server behind nginx: a C program that sends the response of Sluice and stores nothing."""
        home = self.home()
        sockets = harness.settings.load_settings({"INGEST_HOME": str(home)}).gateway_sockets
        server = self.run(home, [self.compiled("noop"), body, *sockets], os.environ, sockets[-1], "noop")
        return self.front(name, home, {"gateway": server}, read=read, runtime="C", worker="epoll", processes=1)

    def returning(self, name: str = "nginx return 200") -> Candidate:
        """nginx alone: the ceiling of the load generator and nginx."""
        answer = """default_type application/json; return 200 '{"message":"OK"}';"""
        return self.front(
            name, self.home(), {}, ("proxy_pass http://sluice_gateway;", answer), runtime="C", worker="nginx"
        )

    def requests(self, some: Iterable[heads.Request], kind: str = "") -> heads.Requests:
        """Requests for `users`. kind: of their heads (rig/heads.py); "": that of the options."""
        self.count += 1
        return heads.requests(self.tmp / f"requests-{self.count}", some, kind or heads.kind(self.options), self.api_key)

    def users(
        self, candidate: Candidate, requests: heads.Requests, count: int, rate: float | str = 0, warm: float = 0,
        patience: float = 10, details: bool = False,
    ) -> Callable[[float], Figures]:  # fmt: skip
        """A case for `rounds`: load by users.c on one candidate; see `rig.load.users`. details: `slots`, `timeline`."""
        program = self.compiled("users")

        def run(seconds: float) -> Figures:
            found = generators.users(
                program, candidate.port, requests, candidate.parts, seconds, count, rate, warm, patience
            )
            if not details:
                del found["slots"], found["timeline"]
            return found

        return run

    # --- between the runs ---

    def set_durability(self, durability: str) -> None:
        """Set appendfsync of Redis: no, everysec or always."""
        if durability != self.durability:
            self.client.config_set("appendfsync", durability)
            self.durability = durability

    def clear(self) -> None:
        """Empty Redis, and rewrite its append-only file now, not in the middle of a run.

        By itself, Redis would rewrite it after 16 MB, with the list that no worker shortens here: longer items would
        cost more than they do.
        """
        self.client.config_set("auto-aof-rewrite-percentage", 0)
        self.client.flushall(asynchronous=True)
        with contextlib.suppress(redis.ResponseError):  # a rewrite is in progress
            self.client.bgrewriteaof()
        harness.poll(self.settled, 120, "Redis to rewrite its log")

    def settled(self) -> bool:
        """Whether Redis neither rewrites its append-only file nor frees memory."""
        info = self.client.info()
        return not (
            info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"] or info["lazyfree_pending_objects"]
        )

    def load(
        self,
        candidate: Candidate,
        durability: str = "",
        connections: int = 64,
        size: int = 80,
        clear: bool = True,
        kind: str = "",
        path: str = "",
    ) -> Callable[[float], Figures]:
        """A case for `rounds`: each connection posts again as soon as it has an answer.

        durability: "": unchanged. clear: Redis. kind: as for `requests`. path: "": that of the candidate.
        """
        asked = path or candidate.path, size, candidate.line, kind
        if asked not in self.posts:
            self.posts[asked] = self.requests([(asked[0], generators.body(size, candidate.line))], kind)
        load = self.users(candidate, self.posts[asked], connections)

        def run(seconds: float) -> Figures:
            if durability:
                self.set_durability(durability)
            if clear:
                self.clear()
            return load(seconds)

        return run
