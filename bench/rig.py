"""What every bench has in common: private servers, load, alternating rounds, and the report. Beside the data flow.

A bench is an executable file that imports this module first (which sets up what is missing and goes on in bench/.venv):

    options = harness.options(__doc__, rounds=5, seconds=4)
    report = harness.Report("name", "What is asked", options)             # prints the parameters
    with harness.Stand(options) as stand:
        ours = stand.gateway("fast lane", runtime="pypy")                 # as bin/up runs it, behind its own nginx
        noop = stand.noop("no-op")
        found = harness.rounds(options, {c.name: stand.load(c) for c in (ours, noop)}, reference="no-op")
    report.table(found); report.bars(...); report.write()

All candidates run all the time; only one of them is under load. Each has an nginx of its own with the configuration of
bin/up, and all that use Redis use the same one, which is emptied between the runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "bench/.venv"

if Path(sys.prefix).resolve() != VENV:
    if os.spawnv(os.P_WAIT, str(ROOT / "bin/provision"), ["provision", "bench"]):
        sys.exit("the set-up failed: bin/provision bench")
    os.execv(str(VENV / "bin/python"), [str(VENV / "bin/python"), *sys.argv])

import argparse  # noqa: E402
import contextlib  # noqa: E402
import datetime  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from typing import Any  # noqa: E402

import redis as redis_py  # noqa: E402

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from sluice.drill import harness  # noqa: E402

BENCH = ROOT / "bench"
OURS = {"cpython": ROOT / ".venv/bin/python", "pypy": ROOT / ".venv-pypy/bin/python"}  # what bin/up runs the gateway on
THEIRS = {"cpython": VENV / "bin/python", "pypy": ROOT / ".venv-pypy/bin/python"}  # the same versions, and frameworks
harness.PYTHON.update({name: str(path) for name, path in OURS.items()})
TICK = os.sysconf("SC_CLK_TCK")
GENERATOR = "load generator"

Figures = dict[str, Any]


# --- Parameters ------------------------------------------------------------------------------------------------------


def options(
    doc: str, *, rounds: int, seconds: float, warm: float = 8, extra: Callable | None = None
) -> argparse.Namespace:
    """The options that every bench takes. extra: adds its own to the parser."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="alternating rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=seconds, help="of load a run (%(default)s)")
    parser.add_argument("--warm", type=float, default=warm, help="seconds of load first, for PyPy (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of two seconds: does it all run?")
    parser.add_argument("--dir", default="/var/tmp", help="where Redis writes; a real disk (%(default)s)")
    parser.add_argument("--results", type=Path, default=BENCH / "results", help="where the results go (bench/results)")
    if extra:
        extra(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.warm = 1, 2.0, 3.0
    return chosen


def said(*command: object) -> str:
    """What a command prints, both streams; empty if it is not there."""
    try:
        done = subprocess.run(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env=os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout.strip()


def versions(python: Path, *packages: str) -> str:
    """An interpreter and the packages in its environment, as one line."""
    code = (
        "import platform as p, importlib.metadata as m, sys\n"
        "pypy = ' (PyPy %d.%d.%d)' % sys.pypy_version_info[:3] if p.python_implementation() == 'PyPy' else ''\n"
        f"have = {{d.metadata['Name'].lower(): d.version for d in m.distributions()}}\n"
        f"print(p.python_version() + pypy, *(n + ' ' + have[n] for n in {packages!r} if n in have), sep=', ')"
    )
    return said(python, "-c", code)


def machine(where: str) -> dict[str, str]:
    """What the figures hang on: the machine, the versions of everything, the commit."""
    model = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0].strip("\t: ")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    dirty = " and uncommitted changes" if said("git", "status", "--porcelain", "-uno", "--", ":!bench/results") else ""
    packages = "gunicorn", "gevent", "redis", "hiredis"
    return {
        "machine": f"{os.cpu_count()} cores, {model}, {memory:.0f} GiB",
        "kernel": platform.release(),
        "disk": said("stat", "-f", "-c", "%T", where),
        "somaxconn": Path("/proc/sys/net/core/somaxconn").read_text().strip(),
        "load before": "%.2f %.2f %.2f" % os.getloadavg(),
        "nginx": said("nginx", "-v").rpartition("/")[2],
        "redis": said("redis-server", "--version").partition("v=")[2].partition(" ")[0],
        "CPython": versions(OURS["cpython"], *packages),
        "PyPy": versions(OURS["pypy"], *packages),
        "wrk": said("wrk", "-v").partition(" [")[0].removeprefix("wrk "),
        "siege": said("env", "HOME=/nonexistent", "siege", "--version").partition("SIEGE ")[2].partition("\n")[0],
        "commit": said("git", "rev-parse", "--short=12", "HEAD") + dirty,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


# --- Servers ---------------------------------------------------------------------------------------------------------


@dataclass
class Candidate:
    """One thing under test: the port it is reached at, and its processes by part (leaders of process groups)."""

    name: str
    port: int
    parts: dict[str, list[int]]
    home: Path
    path: str = "/gps"
    about: Figures = field(default_factory=dict)  # runtime, worker class …: goes into the results as it is


class Stalled(Exception):
    """The load generator did not end when its time was over: the machine stood still, as virtual ones sometimes do."""


class Stand:
    """A private Redis and any number of candidates in a directory that is gone at the end, and so are they."""

    def __init__(self, options: argparse.Namespace, durability: str = "no", max_memory: str = "4g") -> None:
        """durability: `set_durability` changes it at any time. Redis is otherwise as redis/redis.conf has it."""
        self.options = options
        self.durability = durability
        self.max_memory = max_memory
        self.stack = contextlib.ExitStack()
        self.count = 0
        self.servers: list[harness.Server] = []

    def __enter__(self) -> Stand:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65535), hard))  # as bin/up does
        self.tmp = Path(tempfile.mkdtemp(prefix="sl-", dir=self.options.dir))
        # Should this process be killed, what it started must not stay: somebody else waits for its end.
        orphaned = 'cat; while read -r group; do kill -KILL -- "-$group"; done <"$0/groups"; rm -rf "$0"'
        self.watch = subprocess.Popen(
            ["bash", "-c", orphaned, self.tmp], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.stack.callback(self.watch.communicate)
        self.stack.callback(shutil.rmtree, self.tmp, ignore_errors=True)
        try:
            config = {"appendfsync": self.durability, "maxmemory": self.max_memory + "b"}
            self.redis = self.enter(harness.redis_server(self.home("redis"), **config))
        except BaseException:
            self.stack.close()
            raise
        self.client = redis_py.Redis(unix_socket_path=str(self.redis.socket), socket_timeout=120)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.stack.close()

    def kill(self) -> None:
        """End everything at once. Asking politely would take seconds a server, and nothing here is worth it."""
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)

    def enter(self, context: contextlib.AbstractContextManager[harness.Server]) -> harness.Server:
        """Start a server that lives as long as the stand."""
        server = self.stack.enter_context(context)
        self.servers.append(server)
        with open(self.tmp / "groups", "a") as groups:
            groups.write(f"{server.pid}\n")
        return server

    def home(self, name: str = "") -> Path:
        """A new INGEST_HOME; its sockets are `home`/run/gateway-*.sock."""
        self.count += 1
        home = self.tmp / (name or f"c{self.count}")
        (home / "run").mkdir(parents=True)
        return home

    def environment(self, home: Path, **env: object) -> dict[str, str]:
        """What bin/up would give its programs, with this stand's Redis."""
        return harness.environment(home, {"INGEST_REDIS": self.redis.socket} | env)

    def run(
        self,
        home: Path,
        command: Sequence[object],
        env: Mapping[str, str],
        where: int | Path | None = None,
        name: str = "server",
    ) -> harness.Server:
        """Start any program in `home`; where: a port or socket to wait for."""
        log = home / f"{name}.out"

        @contextlib.contextmanager
        def started():
            with harness.running(command, log, env) as process:
                server = harness.Server(process, log, home)
                if where is not None:
                    harness.poll(harness.listening(server, where), 60, name)
                yield server

        return self.enter(started())

    def nginx(self, home: Path, *change: tuple[str, str]) -> harness.Server:
        """nginx as bin/up has it, before `home`/run/gateway-*.sock. change: (text, what stands there instead)."""
        return self.enter(harness.nginx(home, change=change))

    def front(
        self,
        name: str,
        home: Path,
        parts: dict[str, harness.Server],
        *change: tuple[str, str],
        path: str = "/gps",
        **about: Any,
    ) -> Candidate:
        """Put the real nginx before servers, see that a POST gets a 2xx, and call the whole a candidate."""
        nginx = self.nginx(home, *change)
        groups = {"nginx": [nginx.pid]} | {part: [server.pid] for part, server in parts.items()}
        candidate = Candidate(name, nginx.port, groups | {"redis": [self.redis.pid]}, home, path, about)

        def answers() -> bool:
            for server in parts.values():
                if server.process.poll() is not None:
                    raise harness.Died(f"{name}: {server.said()[-3000:]}")
            status, _, text = harness.post(nginx.port, path, body(80), {"Connection": "close"})
            if status // 100 != 2:
                raise ValueError(f"{name}: {status} {text!r}\n" + "".join(s.said()[-2000:] for s in parts.values()))
            return True

        harness.poll(answers, 60, name)
        return candidate

    def gateway(
        self, name: str, runtime: str = "cpython", gateways: int = 1, worker_class: str = "", **env: object
    ) -> Candidate:
        """Our gateway exactly as bin/up runs it, behind nginx. worker_class: one of gunicorn's own instead of ours."""
        home = self.home()
        # nobody drains: without this, long bodies would be refused, which is quick
        bounds = {"INGEST_MAX_BACKLOG_BYTES": "1024g"}
        env = {"INGEST_GATEWAYS": gateways} | bounds | env
        server = self.enter(harness.gateway(home, self.redis, runtime, worker_class, env))
        return self.front(
            name, home, {"gateway": server}, runtime=runtime, worker=worker_class or "fastlane", processes=gateways
        )

    def gunicorn(
        self,
        name: str,
        app: str,
        runtime: str = "cpython",
        worker_class: str = "gevent",
        workers: int = 1,
        threads: int = 1,
    ) -> Candidate:
        """A module of bench/rungs under gunicorn, with what of gunicorn.conf.py any tutorial would have too."""
        home = self.home()
        sockets = harness.settings.load({"INGEST_HOME": str(home)}).gateway_sockets
        command = [
            THEIRS[runtime],
            "-m",
            "gunicorn",
            "-c",
            "python:rungs.gunicorn_conf",
            "-k",
            worker_class,
            "-w",
            workers,
        ]
        command += ["--threads", threads] if threads > 1 else []
        command += [part for path in sockets for part in ("-b", f"unix:{path}")]
        env = self.environment(home, PYTHONPATH=f"{BENCH}:{BENCH}/rungs")
        server = self.run(home, [*command, app], env, sockets[0], "gunicorn")
        return self.front(
            name, home, {"gateway": server}, runtime=runtime, worker=worker_class, processes=workers, threads=threads
        )

    def noop(self, name: str = "no-op") -> Candidate:
        """The ceiling: nginx before a C program that answers as we do and does nothing else."""
        home = self.home()
        program = home / "noop"
        subprocess.run(["gcc", "-O2", "-Wall", "-o", program, BENCH / "noop.c"], check=True)
        sockets = harness.settings.load({"INGEST_HOME": str(home)}).gateway_sockets
        server = self.run(home, [program, *sockets], os.environ, sockets[-1], "noop")
        return self.front(name, home, {"gateway": server}, runtime="C", worker="epoll", processes=1)

    def returning(self, name: str = "nginx return 200") -> Candidate:
        """nginx alone: the ceiling of the load generator and nginx."""
        answer = """default_type application/json; return 200 '{"message":"OK"}';"""
        return self.front(
            name, self.home(), {}, ("proxy_pass http://sluice_gateway;", answer), runtime="C", worker="nginx"
        )

    def worker(self, home: Path, *arguments: str, **env: object) -> harness.Server:
        """worker.py as bin/up runs it ("run") or as told ("drain"), storing into `home`/ingest.db or INGEST_SINK."""
        surroundings = self.environment(home, PYTHONUNBUFFERED=1, **env)
        return self.run(home, [OURS["cpython"], "worker.py", *(arguments or ("run",))], surroundings, name="worker")

    # --- between the runs ---

    def set_durability(self, durability: str) -> None:
        """Redis's appendfsync: no, everysec or always."""
        if durability != self.durability:
            self.client.config_set("appendfsync", durability)
            self.durability = durability

    def clear(self) -> None:
        """Empty Redis, and let it rewrite its log now rather than in the middle of a run."""
        self.client.flushall(asynchronous=True)
        with contextlib.suppress(redis_py.ResponseError):  # a rewrite is on its way already
            self.client.bgrewriteaof()
        harness.poll(self.settled, 120, "Redis to rewrite its log")

    def settled(self) -> bool:
        """No rewrite of the log, and no memory to be freed."""
        info = self.client.info()
        return not (
            info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"] or info["lazyfree_pending_objects"]
        )

    def queued(self) -> int:
        """Items on all lists of this Redis."""
        return sum(self.client.llen(key) for key in self.client.keys("*") if self.client.type(key) == b"list")

    # --- load ---

    def load(self, candidate: Candidate, tool: str = "wrk", **more: Any) -> Callable[[float], Figures]:
        """For `rounds`: so many seconds of load on one candidate. more: durability, and what `wrk` or `siege` take."""
        durability = more.pop("durability", None)

        def run(seconds: float) -> Figures:
            if durability:
                self.set_durability(durability)
            self.clear()
            return (self.wrk if tool == "wrk" else self.siege)(candidate, seconds, **more)

        return run

    def wrk(
        self, candidate: Candidate, seconds: float, connections: int = 64, size: int = 80, script: str = ""
    ) -> Figures:
        """Load by wrk on one thread. script: Lua that defines `request` or more, after ours.

        Returns: rate (2xx a second), p50, p99, p999, mean, most (ms), errors, and what `measured` adds.
        """
        lua = self.tmp / "load.lua"
        lua.write_text(
            f"wrk.method = 'POST'\nwrk.body = [==[{body(size).decode()}]==]\n"
            "wrk.headers['Content-Type'] = 'application/json'\n" + DONE + script
        )
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s", "-s", lua]
        text, more = self.measured(candidate, [*command, f"http://127.0.0.1:{candidate.port}{candidate.path}"], seconds)
        found = json.loads(text.rpartition("WRK ")[2])
        good = found["requests"] - found["status"]
        errors = {name: found.pop(name) for name in ("connect", "read", "write", "status", "timeout")}
        return {
            "rate": good / found["duration"],
            **{name: found[name] for name in ("p50", "p99", "p999", "mean", "most")},
            "errors": sum(errors.values()),
            "errors by kind": {name: number for name, number in errors.items() if number},
            "requests": good,
            "connections": connections,
            "size": size,
            **per_100k(more, good),
        }

    def siege(self, candidate: Candidate, seconds: float, connections: int = 64, size: int = 80) -> Figures:
        """Load by siege over kept connections. Returns: rate, mean, most (ms), errors, and what `measured` adds."""
        (self.tmp / "siegerc").write_text(
            "protocol = HTTP/1.1\nconnection = keep-alive\nparser = false\nshow-logfile = false\nlogging = false\n"
            f"verbose = false\nlimit = {connections}\njson_output = true\n"
        )
        url = f"http://127.0.0.1:{candidate.port}{candidate.path} POST {body(size).decode()}"
        (self.tmp / "urls.txt").write_text(url + "\n")
        command = ["siege", f"--rc={self.tmp}/siegerc", f"--file={self.tmp}/urls.txt", "--benchmark"]
        command += [
            f"--concurrent={connections}",
            f"--time={max(1, round(seconds))}S",
            "--content-type=application/json",
        ]
        text, more = self.measured(candidate, command, seconds)
        found = json.loads(text[text.rindex("{") : text.rindex("}") + 1])
        good = found["successful_transactions"]
        return {
            "rate": good / found["elapsed_time"],
            "mean": found["response_time"] * 1000,
            "most": found["longest_transaction"] * 1000,
            "errors": found["failed_transactions"],
            "requests": good,
            "connections": connections,
            "size": size,
            **per_100k(more, good),
        }

    def measured(self, candidate: Candidate, command: Sequence[object], seconds: float) -> tuple[str, Figures]:
        """Run a load generator; what it printed, and CPU seconds and resident MB of each part of the candidate."""
        before = {part: cpu(groups) for part, groups in candidate.parts.items()}
        mine = resource.getrusage(resource.RUSAGE_CHILDREN)
        began, late = time.monotonic(), 1.5 * seconds + 4  # generators end by the clock, whatever the server does
        try:
            done = subprocess.run(
                [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=late + 30, env=os.environ | {"HOME": str(self.tmp)},
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Stalled from error
        if time.monotonic() - began > late:
            raise Stalled
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout} {done.stderr}")
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = {part: cpu(groups) - before[part] for part, groups in candidate.parts.items()}
        used[GENERATOR] = now.ru_utime + now.ru_stime - mine.ru_utime - mine.ru_stime
        return done.stdout, {"cpu": used, "memory": {part: memory(groups) for part, groups in candidate.parts.items()}}


# what wrk's own summary does not say: the 99.9th percentile, and the kinds of errors
DONE = """
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('WRK {"requests":%d,"duration":%f,"p50":%f,"p99":%f,"p999":%f,"mean":%f,"most":%f,' ..
    '"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}', summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency:percentile(99.9) / 1e3,
    latency.mean / 1e3, latency.max / 1e3, e.connect, e.read, e.write, e.status, e.timeout))
end
"""


def body(size: int) -> bytes:
    """A position as a client would send it, stretched to so many bytes; it decodes."""
    text = b'{"device":"a1b2c3","lat":48.13743,"lon":11.57549,"time":1766600000,"speed":2.5'
    padding = size - len(text) - 1
    if padding < 10:
        return text + b" " * padding + b"}"
    return text + b',"note":"' + b"x" * (padding - 10) + b'"}'


def processes(groups: Sequence[int]) -> dict[int, list[str]]:
    """The processes of these groups: pid -> the fields of /proc/PID/stat from the state on."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            if int(fields[2]) in groups:
                found[int(pid)] = fields
    return found


def cpu(groups: Sequence[int]) -> float:
    """CPU seconds these process groups have used, with the children that are gone."""
    return sum(sum(map(int, fields[11:15])) for fields in processes(groups).values()) / TICK


def memory(groups: Sequence[int], key: str = "VmRSS") -> float:
    """Resident MB of process groups; shared pages count in each process. key: VmHWM for the most there ever was."""
    total = 0
    for pid in processes(groups):
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{pid}/status").read_text().partition(key + ":")[2].split()[0])
    return total / 1024


def per_100k(figures: Figures, requests: int) -> Figures:
    """CPU seconds a hundred thousand requests instead of in all."""
    times = {part: round(used * 1e5 / requests, 3) for part, used in figures["cpu"].items()} if requests else {}
    return figures | {"cpu": times}


# --- Rounds ----------------------------------------------------------------------------------------------------------


def rounds(
    options: argparse.Namespace,
    cases: Mapping[str, Callable[[float], Figures]],
    reference: str = "",
    warm: Mapping[str, float] | None = None,
    rest: float = 0.3,
) -> dict[str, Figures]:
    """Every case once a round, in an order that rotates, after one discarded run each.

    warm: seconds of that first run where not options.warm. reference: the case that the ratios are to.
    A run during which the machine stood still is done again.
    Returns: case -> the medians of its figures, `ratio` (median over the rounds), `rates` and `ratios` of each round.
    """
    names, began = list(cases), time.monotonic()
    warming = {name: (warm or {}).get(name, options.warm) for name in names}
    plan = [(0, name, warming[name]) for name in names if warming[name]]
    for n in range(options.rounds):
        plan += [(n + 1, name, options.seconds) for name in names[n % len(names) :] + names[: n % len(names)]]
    results: dict[str, list[Figures]] = {name: [] for name in names}
    total = sum(seconds + rest + 0.5 for *_, seconds in plan)
    spent, stalls = 0.0, 0
    while plan:
        n, name, seconds = plan.pop(0)
        left = (time.monotonic() - began) / spent * (total - spent) if spent else total
        try:
            found = cases[name](seconds)
        except Stalled:
            stalls += 1
            if stalls > 5:
                raise
            # gunicorn ends workers that stood still for too long; their successors are cold
            tell(f"  the machine stood still during {name}; warming up again")
            plan = [(0, other, warming[other]) for other in names if warming[other]] + [(n, name, seconds), *plan]
            continue
        spent += seconds + rest + 0.5
        if n:
            results[name].append(found)
        kind = f"round {n}/{options.rounds}" if n else "warm-up  "
        errors = f"  {found['errors']:,} ERRORS" if found.get("errors") else ""
        tell(f"  {max(left, 0) / 60:4.1f} min left  {kind}  {name:<44} {found.get('rate', 0):>10,.0f}/s{errors}")
        time.sleep(rest)
    summary = {}
    for name, runs in results.items():
        summary[name] = {"case": name, **median(runs), "rates": [round(run["rate"], 1) for run in runs]}
        if reference:
            ratios = [run["rate"] / other["rate"] for run, other in zip(runs, results[reference]) if other["rate"]]
            summary[name] |= {"ratio": statistics.median(ratios or [0]), "ratios": [round(r, 3) for r in ratios]}
    return summary


def median(runs: Sequence[Figures]) -> Figures:
    """The median of every number, and the kinds of errors of all runs; errors are added up."""
    out: Figures = {}
    for key, value in runs[0].items():
        values = [run[key] for run in runs if key in run]
        if key == "errors":
            out[key] = sum(values)
        elif key == "errors by kind":
            out[key] = {kind: sum(v.get(kind, 0) for v in values) for kind in {kind for v in values for kind in v}}
        elif isinstance(value, dict):
            out[key] = median(values) if all(values) else value
        elif isinstance(value, (int, float)):
            out[key] = statistics.median(values)
        else:
            out[key] = value
    return out


def ratio(found: Mapping[str, Figures], one: str, other: str) -> float:
    """One case to another: the median of the ratios of the rounds."""
    pairs = zip(found[one]["rates"], found[other]["rates"])
    return statistics.median([a / b for a, b in pairs if b] or [0])


# --- Report ----------------------------------------------------------------------------------------------------------

# Okabe and Ito's colours, which the colour-blind can tell apart
OURS_COLOUR, THEIRS_COLOUR, LIMIT_COLOUR, ALARM_COLOUR = "#0072B2", "#999999", "#E69F00", "#D55E00"
STACK = ("#E69F00", "#0072B2", "#D55E00", "#BBBBBB", "#009E73", "#CC79A7")
COLOURS = (OURS_COLOUR, "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


class Report:
    """The parameters, printed first; then tables and plots under bench/results."""

    def __init__(self, name: str, question: str, options: argparse.Namespace, **more: Any) -> None:
        self.name = name
        self.question = question
        self.results: Path = options.results
        chosen = {key: str(value) for key, value in vars(options).items() if key not in ("dir", "results")}
        # without what says nothing about the figures: where they were written
        command = re.sub(r" --(results|dir)[ =]\S+", "", " ".join([f"bench/{name}", *sys.argv[1:]]))
        self.parameters = {"command": command, **machine(options.dir), **chosen}
        self.parameters |= {key: str(value) for key, value in more.items()}
        self.data: Figures = {"question": question, "parameters": self.parameters}
        self.text = f"# {question}\n"
        print(question)
        for key, value in self.parameters.items():
            print(f"  {key:<12} {value}")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """A paragraph."""
        self.text += f"\n{text}\n"
        print("\n" + text, flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
        """A table; numbers are for people: 61,234 or 0.83."""
        cells = [[show(cell) for cell in row] for row in rows]
        lines = [list(head), ["---"] + ["--:"] * (len(head) - 1), *cells]
        wide = [max(len(line[n]) for line in lines) for n in range(len(head))]
        lines[1] = ["-" * wide[0]] + ["-" * (width - 1) + ":" for width in wide[1:]]
        text = "\n".join(
            "| "
            + " | ".join(f"{cell:<{w}}" if n == 0 else f"{cell:>{w}}" for n, (cell, w) in enumerate(zip(line, wide)))
            + " |"
            for line in lines
        )
        self.say((f"**{title}**\n\n" if title else "") + text)

    def bars(
        self, bars: Sequence[tuple[str, float, str]], title: str, unit: str, suffix: str = "",
        labels: Sequence[str] | None = None, log: bool = False, note: str = "",
    ) -> None:  # fmt: skip
        """A horizontal bar chart. bars: (name, value, colour), from the top. labels: what stands at the bars' ends."""
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(9, 1.3 + 0.34 * len(bars)), layout="constrained")
        names, values, colours = zip(*bars)
        drawn = axes.barh(range(len(bars)), values, color=colours, height=0.72)
        axes.bar_label(drawn, labels=labels or [show(value) for value in values], padding=4, fontsize=9)
        axes.set_yticks(range(len(bars)), names, fontsize=9)
        axes.invert_yaxis()
        if log:
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.margins(x=0.16)
        axes.set_xlabel(unit + (f"\n{note}" if note else ""), fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        self.save(figure, axes, suffix)

    def stacks(
        self, bars: Mapping[str, Sequence[float]], parts: Sequence[str], title: str, unit: str, suffix: str = ""
    ) -> None:
        """A horizontal bar each, made of parts; the total at its end."""
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(9, 1.5 + 0.34 * len(bars)), layout="constrained")
        left = [0.0] * len(bars)
        for n, part in enumerate(parts):
            values = [bar[n] for bar in bars.values()]
            drawn = axes.barh(range(len(bars)), values, left=left, color=STACK[n % len(STACK)], height=0.72, label=part)
            left = [a + b for a, b in zip(left, values)]
        axes.bar_label(drawn, labels=[show(float(value)) for value in left], padding=4, fontsize=9)
        axes.set_yticks(range(len(bars)), list(bars), fontsize=9)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.margins(x=0.1)
        axes.set_xlabel(unit, fontsize=9)
        axes.legend(loc="lower right", fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        self.save(figure, axes, suffix)

    def lines(
        self, series: Mapping[str, Sequence[tuple[float, float]]], title: str, x: str, y: str, suffix: str = "",
        log_x: bool = False, log_y: bool = False, colours: Mapping[str, str] | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """A line a series, its name at its end. series: name -> (x, y) …"""
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
        ends = []
        for n, (name, points) in enumerate(series.items()):
            colour = (colours or {}).get(name, COLOURS[n % len(COLOURS)])
            axes.plot(*zip(*points), color=colour, marker="osD^vP*X"[n % 8], linewidth=1.8, markersize=5)
            ends.append((points[-1][1], points[-1][0], name, colour))
        if log_x:
            axes.set_xscale("log")
            points = sorted({at for line in series.values() for at, _ in line})
            axes.set_xticks(points, [show(at) for at in points])
            axes.set_xticks([], minor=True)
        else:
            axes.xaxis.set_major_formatter("{x:,g}")
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,g}")
        figure.draw_without_rendering()
        last = -1e9
        for value, at, name, colour in sorted(ends):  # names that would lie on each other move up
            height = axes.transData.transform((at, value))[1] * 72 / figure.dpi
            last = max(height, last + 11)
            axes.annotate(
                name,
                (at, value),
                xytext=(8, last - height),
                textcoords="offset points",
                color=colour,
                va="center",
                fontsize=9,
            )
        axes.set_xlabel(x + (f"\n{note}" if note else ""), fontsize=9)
        axes.set_ylabel(y, fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        self.save(figure, axes, suffix)

    def save(self, figure: Any, axes: Any, suffix: str = "") -> None:
        """Write any figure as SVG, with its origin below it."""
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="both", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        p = self.parameters
        figure.supxlabel(
            f"{p['command']} · {p['machine']} · commit {p['commit']} · {p['date']}", fontsize=7, color="#666666"
        )
        self.results.mkdir(parents=True, exist_ok=True)
        stem = self.name + (f"-{suffix}" if suffix else "")
        figure.savefig(self.results / f"{stem}.svg", metadata={"Date": None}, dpi=130)  # of what is rasterized in it
        pyplot().close(figure)
        self.text += f"\n![{stem}]({stem}.svg)\n"

    def write(self) -> None:
        """Write <name>.json (all of `data`) and <name>.md."""
        self.results.mkdir(parents=True, exist_ok=True)
        (self.results / f"{self.name}.json").write_text(json.dumps(self.data, indent=1) + "\n")
        facts = "\n".join(f"- {key}: {value}" for key, value in self.parameters.items())
        (self.results / f"{self.name}.md").write_text(f"{self.text}\n## Parameters\n\n{facts}\n")
        where = self.results
        print(
            f"\nwritten: {where.relative_to(ROOT) if where.is_relative_to(ROOT) else where}/{self.name}.*", flush=True
        )


def show(value: object) -> str:
    """A cell: whole from a thousand on, else three figures."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def pyplot() -> Any:
    """matplotlib without a screen; imported late, for it takes a second."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "sluice", "font.family": "DejaVu Sans"}
    from matplotlib import pyplot as plt

    return plt
