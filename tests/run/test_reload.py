"""Reloads under load: gunicorn's HUP, its upgrade (USR2), nginx's HUP. No request fails; each body is stored once.

`bin/test --nightly tests/run/test_reload.py --reloads 100 -o faulthandler_timeout=0` does each a hundred times, at a
low and at a high rate, in about twenty minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import redis as client

from proving import harness
from proving.harness import (
    PATIENCE,
    ROOT,
    Answer,
    answer,
    connect,
    environment,
    gateway,
    installation,
    nginx,
    poll,
    post,
    redis_server,
    stopped,
)
from sluice.routes import ROUTES
from sluice.run import launch, reload
from support.folders import has, needs
from support.posting_clients import Threads
from support.runtimes import RUNTIMES

pytestmark = pytest.mark.contract


class Sent(NamedTuple):
    """A request: its vote, start and end (seconds, monotonic), and the response, if it was not 200."""

    body: str
    sent: float
    ended: float
    wrong: object = None


class Load(Threads):
    """Clients in threads, each of which posts its own numbered votes.

    kept: number of clients that keep their connection and follow RFC 9112, 9.3 and 9.5: if it was closed while idle,
    they open another; if it is closed after a request and before any byte of the response, they send the request
    `again`, once, on a new one. fresh: number of clients that open a connection per request and never send it twice.
    pause: maximum seconds between two requests of a client. fields: field lines of each request.
    """

    def __init__(self, port: int, kept: int, fresh: int, pause: float, fields: bytes = b"") -> None:
        self.port, self.fields = port, fields
        self.pause = pause
        self.stop = threading.Event()
        self.acknowledged: list[str] = []
        self.failed: list[Sent] = []
        self.again: list[Sent] = []
        self.threads = [threading.Thread(target=self.post, args=(n, n < kept)) for n in range(kept + fresh)]

    def post(self, number: int, keep: bool) -> None:
        """One client."""
        connection: socket.socket | None = None
        chance = random.Random(number)
        count = 0
        while not self.stop.wait(chance.uniform(0, self.pause)):
            count += 1
            name = f"{number}-{count}"
            body = b'{"poll":"p","choice":"%b"}' % name.encode()
            more = self.fields + (b"" if keep else b"Connection: close\r\n")
            data = b"POST /votes HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)
            sent = time.monotonic()
            if connection is not None and select.select([connection], [], [], 0)[0]:
                connection.close()
                connection = None
            if connection is not None:
                said = ask(connection, data)
                if not said:
                    self.again.append(Sent(name, sent, time.monotonic()))
                    connection.close()
                    connection = None
            if connection is None:
                connection = connect(self.port, 60)
                said = ask(connection, data)
            if said.startswith(b"HTTP/1.1 200 "):
                self.acknowledged.append(name)
            else:
                self.failed.append(Sent(name, sent, time.monotonic(), said))
            if not keep or b"\r\nConnection: close\r\n" in said or not said:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()


def ask(connection: socket.socket, data: bytes) -> bytes:
    """Send a request and read the response, up to its closing brace or the end of the connection."""
    said = b""
    with contextlib.suppress(OSError):
        connection.sendall(data)
        while not said.endswith(b"}") and (part := connection.recv(65536)):
            said += part
    return said


def hup_gateway(home: Path) -> None:
    """gunicorn's reload: it replaces the workers."""
    master = reload.program_master(home, "gateway")
    old = reload.program_processes(home, "gateway").keys() - {master}
    os.kill(master, signal.SIGHUP)
    poll(lambda: not old & reload.program_processes(home, "gateway").keys(), what=f"the end of {old}")


def upgrade_gateway(home: Path) -> None:
    """gunicorn's upgrade: it replaces the master and the workers."""
    reload.upgrade_program(home, "gateway", reload.program_master(home, "gateway"))


def hup_nginx(home: Path) -> None:
    """nginx's reload, until its old processes are gone."""
    master = reload.program_master(home, "nginx")
    old = reload.program_processes(home, "nginx").keys() - {master}
    reload.reload_nginx(home, master)
    poll(lambda: not old & reload.program_processes(home, "nginx").keys(), what=f"the end of {old}")


STEPS: dict[str, Callable[[Path], None]] = {
    "gunicorn HUP": hup_gateway,
    "gunicorn USR2": upgrade_gateway,
    "nginx HUP": hup_nginx,
}


def stored(home: Path) -> list[str]:
    return [choice for (choice,) in harness.ask(home, "SELECT choice FROM votes")]


@pytest.mark.nightly
@pytest.mark.parametrize("rate, kept, fresh, pause", [("low", 12, 4, 2.0), ("high", 12, 4, 0.0)])
def test_a_reload_under_load_fails_no_request(
    tmp: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    rate: str,
    kept: int,
    fresh: int,
    pause: float,
) -> None:
    times = request.config.getoption("--reloads")
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in STEPS}
    answered = dict.fromkeys(STEPS, 0)
    with installation(tmp) as up:
        with Load(up.port, kept, fresh, pause) as load:
            for _ in range(times):
                for name, step in STEPS.items():
                    start, before = time.monotonic(), len(load.acknowledged)
                    step(tmp.resolve())
                    spans[name].append((start, time.monotonic()))
                    answered[name] += len(load.acknowledged) - before
        wanted = sorted(load.acknowledged)
        with contextlib.suppress(AssertionError):  # the next assertion shows the difference
            poll(lambda: len(stored(tmp)) >= len(wanted))
        assert sorted(stored(tmp)) == wanted

        def during(these: list[Sent], name: str) -> int:
            return sum(any(one.sent <= end and one.ended >= start for start, end in spans[name]) for one in these)

        head = ("reload", "times", "answered", "failed", "sent again")
        for name in STEPS:
            counts = len(spans[name]), answered[name], during(load.failed, name), during(load.again, name)
            record_property("row", ("Reloads under load", head, (f"{name}, {rate} rate", *map(str, counts))))
        assert load.failed == load.again == []
        said = up.said()
        assert "Traceback" not in said and "still open" not in said


@needs("access")
def test_during_the_notice_a_2xx_differs_only_in_being_the_last_on_its_connection(tmp: Path) -> None:
    own = tmp / "own.py"
    own.write_text(
        "from sluice import Route, reply\n"
        "ROUTES = {f'/{n}': Route('own', each) for n, each in enumerate([\n"
        "    reply('201 Created', b'# \"$uri\";', 'text/plain; charset=utf-8'),\n"
        "    reply('202 Accepted', b'', 'text/plain'),\n"
        "    reply('200 OK', b'{}', 'application/json', ('Location', '/')),\n"
        "    reply('200 OK', b'two\\nlines'),\n"
        "    reply('203 Non-Authoritative Information', b'{}'),\n"
        "])}\n"
    )
    keys = tmp / "keys"
    keys.write_text(f"{'k' * 32} me;\n")
    keys.chmod(0o600)
    plain = [path for path in ROUTES if path.isascii() and not {*path} & {*"{*"}]
    paths = [*plain, "/%76otes?a=%20", "/0", "/1"]
    stay = ["/2", "/3", "/4", *{"/_bulk"} & {*plain}]  # responses that nginx cannot give itself
    paths = [path for path in paths if path not in stay]
    headers = {"Origin": "https://a.example", "X-API-Key": "k" * 32}
    headers |= {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}  # or remote write is a 415
    headers |= {"Sec-Fetch-Site": "same-site"}  # not all paths are in INGEST_CORS
    env = {"INGEST_CORS": " ".join([*plain, headers["Origin"]]), "INGEST_API_KEYS": keys}
    closing = tmp / "run/closing"
    posted = 0

    with (
        redis_server(tmp, appendonly="no") as redis,
        gateway(tmp, redis, env={"INGEST_ROUTES": own}),
        nginx(tmp, env) as web,
        contextlib.ExitStack() as stack,
    ):
        connections = {path: stack.enter_context(connect(web.port)) for path in paths + stay}

        def answers() -> dict[str, Answer]:
            """Post to each path on its own connection; the responses, without Date."""
            nonlocal posted
            posted += len(connections)
            given = {path: post(connections[path], path, b"b" * 100_000, headers) for path in connections}
            for _, fields, _ in given.values():
                del fields["date"]
            return given

        def last() -> bool:
            nonlocal posted
            posted += 1
            return post(web.port, "/votes", b"{}", headers)[1]["connection"] == "close"

        before = answers()
        assert {fields.pop("connection") for _, fields, _ in before.values()} == {"keep-alive"}
        closing.touch()
        poll(last)
        after = answers()
        assert {path for path in after if after[path][1].pop("connection") == "close"} == set(paths)
        assert after == before
        assert after["/0"][2] == b'# "$uri";' and after["/write"][0] == 204
        assert all(connections[path].recv(1) == b"" for path in paths)
        assert post(web.port, "/votes", b"{}")[0] == 401
        closing.unlink()
        poll(lambda: not last())
        with client.Redis(unix_socket_path=str(redis.socket)) as db:
            streams = {"own", *(route.stream for route in ROUTES.values())}
            assert sum(db.llen(f"ingest:{{{stream}}}") for stream in streams) == posted


def test_nginx_closes_its_connections_before_a_stopping_gateway_does(tmp: Path) -> None:
    with redis_server(tmp, appendonly="no") as redis, gateway(tmp, redis) as behind, nginx(tmp) as web:
        for _ in range(20):
            assert post(web.port, "/votes", b"{}")[0] == 200  # each nginx process keeps a connection now
        behind.process.terminate()
        assert behind.process.wait(PATIENCE) == 0
        assert "still open" not in behind.said()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_reload_replaces_all_but_redis_and_bin_up_supervises_the_new_processes(tmp: Path, runtime: str) -> None:
    with installation(tmp, {"INGEST_RUNTIME": runtime}) as up, connect(up.port) as slow:
        slow.sendall(b"POST /votes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 25\r\n\r\n")
        slow.sendall(b'{"poll":"p",')
        (redis,) = up.pids("redis")
        before = {name: set(up.pids(name)) for name in ("gateway", "worker", "nginx")}
        # an upload that lasts longer than both; nginx waits 30 seconds for its next part
        turns: list[tuple[list[str], bytes]] = [([], b'"choice":'), (["--nginx", "--notice=0"], b'"a"}')]
        if runtime == "pypy":  # which programs are replaced does not depend on it
            turns = [(turns[1][0], b'"choice":"a"}')]
        for more, part in turns:
            command = [str(ROOT / "bin/sluice"), "reload", *more]
            done = subprocess.run(command, env=environment(tmp), capture_output=True, text=True, timeout=120)
            assert (done.returncode, done.stderr) == (0, "")
            slow.sendall(part)
            replaced = [line.split(":")[0] for line in done.stdout.splitlines()]
            parts = {"follower": "views", "metrics": "page", "page": "page", "reader": "views"}
            here = [name for name, folder in parts.items() if has(folder)]
            assert replaced == ["gateway", *here, "worker", *["nginx"][: len(more)]]
            assert (before["nginx"] == set(up.pids("nginx"))) == (not more)
        assert answer(slow)[0] == 200
        poll(lambda: stored(tmp) == ["a"])
        poll(lambda: up.said().count("up       | upgraded: gateway") == len(turns))
        assert "ended the processes that an earlier run left" not in up.said()
        assert not before["gateway"] & set(up.pids("gateway"))
        assert not before["worker"] & set(up.pids("worker"))
        poll(lambda: len(before["nginx"] & set(up.pids("nginx"))) == 1, what="the end of nginx's old processes")
        assert up.pids("redis") == [redis]
        assert "not expected" not in up.said()
        successor = reload.program_master(tmp.resolve(), "gateway")
        os.kill(successor, signal.SIGKILL)
        poll(
            lambda: any(launch.is_leader(pid) for pid in up.pids("gateway") if pid != successor), what="another gateway"
        )
        poll(lambda: post(up.port, "/votes", b'{"poll":"p","choice":"a"}')[0] == 200, what="a write")
        up.process.terminate()
        assert up.process.wait(PATIENCE) == 0
        assert up.pids("gateway") == []


@needs("access")
@pytest.mark.nightly
def test_keys_are_those_that_were_checked_whatever_becomes_of_their_file(tmp: Path) -> None:
    keys, home = tmp / "keys", tmp / "home"
    keys.touch(0o600)
    keys.write_text(f"{'k' * 32} me;\n")
    with installation(home, {"INGEST_API_KEYS": keys, "INGEST_VIEWS": "off"}, ready=False) as up:

        def taken(key: str) -> bool:
            with contextlib.suppress(OSError):
                return post(up.port, "/votes", b'{"poll":"p"}', {"X-API-Key": key * 32})[0] == 200
            return False

        poll(lambda: taken("k"))
        keys.write_text(f"{'k' * 32} me;\n{'o' * 32} you;\n")
        command = [str(ROOT / "bin/sluice"), "reload", "--nginx", "--notice=2"]
        with subprocess.Popen(command, env=environment(home)) as running:
            poll((home / "run/closing").exists)
            keys.write_text("")  # by who writes it again
            assert running.wait(PATIENCE) == 0
        assert taken("k") and taken("o")
        keys.unlink()
        for pid in up.pids("nginx"):
            os.kill(pid, signal.SIGKILL)
        poll(lambda: taken("o"), what="nginx, which bin/up has started again")


@pytest.mark.nightly
def test_a_reload_does_not_wait_for_workers_that_wait_for_redis(tmp: Path) -> None:
    with installation(tmp, {"INGEST_WORKERS": 2, "INGEST_VIEWS": "off"}) as up:
        post(up.port, "/votes", b'{"poll":"p","choice":"a"}')
        poll(lambda: stored(tmp) == ["a"])
        with stopped(*up.pids("redis")):
            command = [str(ROOT / "bin/sluice"), "reload"]
            done = subprocess.run(command, env=environment(tmp), capture_output=True, text=True, timeout=120)
            assert (done.returncode, done.stderr) == (0, "")
            assert re.findall(r"(worker-\d): process \d+ still waits", done.stdout) == ["worker-0", "worker-1"]
            assert len(re.findall(r"worker-\d: process \d+ replaced", done.stdout)) == 2
        poll(lambda: post(up.port, "/votes", b'{"poll":"p","choice":"b"}')[0] == 200)
        poll(lambda: stored(tmp) == ["a", "b"])


@pytest.mark.nightly
def test_a_gateway_that_cannot_start_does_not_replace_the_running_one(tmp: Path) -> None:
    module = tmp / "mine.py"
    module.write_text("ROUTES = {}")
    command = [str(ROOT / "bin/sluice"), "reload"]
    with installation(tmp, {"INGEST_ROUTES": module}) as up:
        before = set(up.pids("gateway"))
        module.write_text(
            "import os\nROUTES = {}\nassert 'GUNICORN_PID' not in os.environ"
        )  # fails only in a new gateway
        done = subprocess.run(command, env=environment(tmp), capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "the new gateway did not start; the old one continues" in done.stderr
        module.write_text("ROUTES = 1")
        done = subprocess.run(command, env=environment(tmp), capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (
            2,
            f"sluice: INGEST_ROUTES='{module}' is invalid: the module has no dictionary ROUTES.\n",
        )
        assert set(up.pids("gateway")) == before
        assert post(up.port, "/votes", b"{}")[0] == 200


@needs("access")
@pytest.mark.nightly
def test_a_reload_checks_the_files_of_secrets_again(tmp: Path) -> None:
    keys = tmp / "keys"
    keys.touch(0o600)
    keys.write_text(f"{'k' * 32} me;\n")
    other = tmp / "deep/enough/that/the/path/leads/elsewhere/from/here"
    other.mkdir(parents=True)
    with installation(tmp, {"INGEST_API_KEYS": os.path.relpath(keys, ROOT)}, ready=False) as up:
        key = {"X-API-Key": "k" * 32}
        poll(lambda: post(up.port, "/votes", b"{}", key)[0] == 200)
        before = set(up.pids("gateway")), set(up.pids("nginx"))
        for text, mode, why in (
            ("default me;\n", 0o600, f"INGEST_API_KEYS: line 1 of {keys} is not `KEY NAME;`"),
            (f"{'k' * 32} me;\n", 0o644, "is accessible to every user of this machine: chmod 600 it."),
        ):
            keys.write_text(text)
            keys.chmod(mode)
            command = [str(ROOT / "bin/sluice"), "reload", "--nginx", "--notice=0"]
            done = subprocess.run(command, env=environment(tmp), cwd=other, capture_output=True, text=True, timeout=120)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert why in done.stderr
        assert (set(up.pids("gateway")), set(up.pids("nginx"))) == before
        assert post(up.port, "/votes", b"{}", key)[0] == 200


@needs("access")
@pytest.mark.nightly
def test_keys_change_under_load_and_no_request_of_a_key_that_stays_fails(tmp: Path) -> None:
    key, other = "k" * 32, "o" * 32
    keys = tmp / "keys"
    keys.touch(0o600)
    keys.write_text(f"{key} me;\n")

    def sent(name: str, by: str = key) -> int:
        return post(up.port, "/votes", b'{"poll":"q","choice":"%b"}' % name.encode(), {"X-API-Key": by})[0]

    with installation(tmp, {"INGEST_API_KEYS": keys}, ready=False) as up:
        poll(lambda: sent("ready") == 200)
        master = reload.program_master(tmp, "nginx")
        with Load(up.port, 12, 4, 0.0, b"X-API-Key: %b\r\n" % key.encode()) as load:
            for lines in (
                f"{key} name=acme\n",
                f"{key} name=acme streams=votes\n{other} name=new\n",
                f"{key} name=renamed rate=100000\n",
            ):
                keys.write_text(lines)
                before = len(load.acknowledged)
                command = [str(ROOT / "bin/sluice"), "reload", "--nginx"]
                subprocess.run(command, env=environment(tmp), check=True, stdout=subprocess.DEVNULL, timeout=120)
                name = lines.partition("name=")[2].split()[0]
                assert sent(name) == 200
                assert sent("new", other) == (200 if "new" in lines else 401)
                assert len(load.acknowledged) > before
        assert load.failed == load.again == []
        assert reload.program_master(tmp, "nginx") == master
        poll(lambda: len(harness.ask(tmp, "SELECT choice FROM votes WHERE poll = 'p'")) == len(load.acknowledged))
        rows = harness.ask(tmp, "SELECT choice, sender FROM votes WHERE poll = 'q' AND choice != 'ready'")
        assert sorted(rows) == [(name, name) for name in ("acme", "acme", "new", "renamed")]
        # those of the clients change their name in this order
        found = harness.ask(tmp, "SELECT sender FROM votes WHERE poll = 'p' GROUP BY sender ORDER BY min(rowid)")
        assert found == [("",), ("acme",), ("renamed",)]


def test_a_reload_without_a_running_bin_up_is_one_line_and_status_1(tmp: Path) -> None:
    done = subprocess.run([ROOT / "bin/sluice", "reload"], env=environment(tmp), capture_output=True, text=True)
    said = f"sluice: no gateway runs in {tmp}; is bin/up running? (Services: systemctl try-restart.)\n"
    assert (done.returncode, done.stderr) == (1, said)
