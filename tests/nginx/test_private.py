"""The sockets and files of an installation are private, and its logs contain neither bodies nor secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import PATIENCE, Answer, Server, connect, installation, poll, post, request
from sluice.run.configure import has_ipv6
from support.folders import has, needs

pytestmark = pytest.mark.contract

SECRET = "s3cr3t"
OWN = """
from sluice.http.routes import OK, Route
ROUTES = {"/own": Route("own", OK, keep_head=True)}

from sluice.streams.record import Vote
from sluice.streams.registry import Stream

def decode(item, limits):
    raise ValueError(item)

STREAMS = {"own": Stream("own", Vote, decode)}
"""


def processes(up: Server) -> dict[int, str]:
    """All processes of an installation: number -> program."""
    found = {up.process.pid: "up"}
    for tag in (up.home / "run").glob("*.tag"):
        found |= {pid: tag.stem for pid in up.pids(tag.stem)}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        pid = status.parent.name
        if int(parent) in found:
            found.setdefault(int(pid), found[int(parent)])
    return found


def listeners(up: Server) -> set[tuple[str, str, int]]:
    """(program, protocol, port) of every socket of the installation that listens on the network."""
    sockets: dict[str, tuple[str, int]] = {}
    for protocol in "tcp", "tcp6", "udp", "udp6", "raw", "raw6":
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" or not protocol.startswith("tcp"):
                sockets[inode] = protocol, int(local.rpartition(":")[2], 16)
    found = set()
    for pid, program in processes(up).items():
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                inode = os.readlink(f"/proc/{pid}/fd/{number}").removeprefix("socket:[").rstrip("]")
            except FileNotFoundError:
                continue
            if inode in sockets:
                found.add((program, *sockets[inode]))
    return found


@pytest.mark.nightly
def test_nothing_but_nginx_listens_on_the_network(tmp: Path) -> None:
    with installation(tmp) as up:
        programs = {"up", "redis", "worker", "gateway", "nginx", *["views", "follower", "reader"] * has("views")}
        assert set(processes(up).values()) >= programs
        assert listeners(up) == {("nginx", "tcp", up.port)} | ({("nginx", "tcp6", up.port)} if has_ipv6() else set())


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_open_neither_sockets_nor_files(tmp: Path) -> None:
    tmp.chmod(0o755)
    home = tmp / "home"
    home.mkdir()
    home.chmod(0o755)  # an existing directory of the user; bin/up makes private ones in it
    (tmp / "own").mkdir(0o755)
    (tmp / "own").chmod(0o755)
    with installation(home, {"INGEST_SPOOL": tmp / "own/redis.sock"}) as up:
        post(up.port, "/votes", b'{"poll":"p","choice":"c"}')
        poll(lambda: (home / "ingest.db").exists())

        def found() -> list[Path]:
            # one is for datagrams: tests/run/test_up.py looks at its mode
            return [tmp / "own/redis.sock", *set((home / "run").glob("*.sock")) - {home / "run/rejected.sock"}]

        # of Redis, gateway (4), reader (4), the views' Redis and metrics
        poll(lambda: len(found()) == 5 + 5 * has("views") + has("page"))
        sockets = found()
        files = [path for path in home.rglob("*") if path.is_file() and path.name != "up.out"]  # the test's own
        assert len(files) > 15
        code = (
            "import os, socket, sys\n"
            "def tell(path):\n"
            "    try:\n"
            "        socket.socket(socket.AF_UNIX).connect(path) if '.sock' in path else open(path)\n"
            "    except (PermissionError, FileNotFoundError):\n"  # some are temporary
            "        return\n"
            "    print(path)\n"
            "for path in sys.argv[1:]: tell(path)\n"
        )
        ask = [sys.executable, "-I", "-c", code, *map(str, sockets + files)]
        done = subprocess.run(ask, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, cwd="/")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        again = subprocess.run(ask, capture_output=True, text=True)  # the program does report what it can open
        assert {str(path) for path in sockets + files if path.exists()} <= set(again.stdout.splitlines())


def read(up: Server, target: str, headers: dict[str, str]) -> Answer:
    """The answer to a GET. Raises: AssertionError while the views are not served yet."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answer = request(up.port, f"GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode())
    assert answer[0] < 500
    return answer


@pytest.mark.nightly
@needs("access", "views")
def test_neither_bodies_nor_secrets_are_in_any_log(tmp: Path) -> None:
    (tmp / "own.py").write_text(OWN)
    (tmp / "keys").touch(0o600)
    key = SECRET * 6
    (tmp / "keys").write_text(f"{key} jane;\n")
    env = {
        "INGEST_ROUTES": tmp / "own.py", "INGEST_RECORDS": tmp / "own.py", "INGEST_API_KEYS": tmp / "keys",
        "INGEST_MAX_BODY": "100k",
    }  # fmt: skip
    with installation(tmp, env, ready=False) as up:
        right = {"X-API-Key": key, "Cookie": f"session={SECRET}", "X-Other": SECRET}
        poll(lambda: post(up.port, "/votes", SECRET.encode(), right)[0] == 200)
        body = SECRET.encode()
        answers = {
            "taken": post(
                up.port, f"/own?password={SECRET}", body, right
            ),  # the decoder raises an error that quotes it
            "no stream": post(up.port, f"/{SECRET}?{SECRET}", body, right),
            "no key": post(up.port, f"/votes?{SECRET}", body, {"X-API-Key": SECRET}),
            "too large": post(up.port, "/votes", body * 20_000, right),
            "no request line": request(up.port, f"POST /{SECRET}\x01 HTTP/1.1\r\nHost: a\r\n\r\n".encode()),
            # sent to the gateway directly, because nginx rejects them
            "no target": request(up.socket, f"POST {SECRET} HTTP/1.1\r\nHost: a\r\n\r\n".encode()),
            "no version": request(up.socket, f"POST /votes?{SECRET} HTTP/{SECRET}\r\nHost: a\r\n\r\n".encode()),
            "no field": request(up.socket, f"POST / HTTP/1.1\r\nHost: a\r\n({SECRET}): x\r\n\r\n".encode()),
            "no value": poll(lambda: read(up, f"/gps/latest?device={SECRET}", right)),
            "no key of a view": poll(lambda: read(up, f"/gps/latest?{SECRET}", right)),
            "no count": poll(lambda: read(up, f"/votes/tally?poll={SECRET}", right)),
        }
        assert {what: given[0] for what, given in answers.items()} == {
            "taken": 200, "no stream": 404, "no key": 401, "too large": 413, "no request line": 400, "no target": 400,
            "no version": 400, "no field": 400, "no value": 404, "no key of a view": 400, "no count": 404,
        }  # fmt: skip
        for program in "worker", "gateway", "redis", "views", "follower", "reader":
            for pid in up.pids(program)[-1:]:
                os.kill(pid, signal.SIGSEGV)  # by default, Redis logs a report with the current command
            poll(lambda: post(up.port, "/votes", SECRET.encode(), right)[0] == 200)
        with connect(up.port) as connection:  # a client that disconnects in the middle
            connection.sendall(f"POST /x?{SECRET} HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{SECRET}".encode())
        poll(lambda: "own: 1 buried" in up.said())
        up.process.terminate()
        assert up.process.wait(PATIENCE) == 0
        logs = [*(up.home / "log").iterdir(), up.log]
        assert len(logs) > 5
        said = {path.name: path.read_text(errors="replace") for path in logs}
        assert "the decoder failed" in said["worker.log"]
        assert "ValueError" in said["worker.log"]
        assert [line for text in said.values() for line in text.splitlines() if SECRET in line] == []
        assert "REDIS BUG REPORT" not in said["redis.log"] + said["views.log"]
