"""deploy/haproxy.cfg before two cells: one leaves, is killed, starts and joins under load, and no request fails.

`bin/test --nightly tests/run/test_balancer.py --leaves 100 -o faulthandler_timeout=0` takes about 40 minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from test_reload import Load

from proving import harness
from proving.balancer import haproxy, state
from proving.harness import ROOT, Server, environment, free_port, get, installation, poll, post
from sluice import parsers
from sluice.run import launch
from support.folders import needs
from support.nginx_front import front

pytestmark = pytest.mark.nightly


def sluice(home: Path, *words: str) -> str:
    """The output of a verb that succeeds."""
    command = [str(ROOT / "bin/sluice"), *words]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def stored(homes: list[Path]) -> list[str]:
    return sorted(choice for home in homes for (choice,) in harness.ask(home, "SELECT choice FROM votes"))


@pytest.fixture
def homes(tmp: Path) -> list[Path]:
    found = [tmp / "a", tmp / "b"]
    for home in found:
        home.mkdir()
    return found


def test_a_cell_is_taken_out_killed_and_put_back_under_load_and_no_request_fails(
    homes: list[Path], tmp: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    ports = [free_port(), free_port()]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    times = request.config.getoption("--leaves")
    up: dict[int, Server] = {}

    def start(cell: int, ready: bool = True) -> None:
        env = {"INGEST_PORT": ports[cell], "INGEST_VIEWS": "off"}
        up[cell] = stacks[cell].enter_context(installation(homes[cell], env, ready))

    def kill(cell: int) -> None:
        """End all its processes at once (SIGKILL): a request that it still has would fail."""
        up[cell].process.kill()
        for pid in [pid for tag in launch.home_tags(homes[cell]) for pid in launch.tag_holders(tag)]:
            os.kill(pid, signal.SIGKILL)
        stacks[cell].close()

    def drain_and_undrain(cell: int) -> None:
        said = sluice(homes[cell], "drain", "--notice", "3").splitlines()
        assert said == ["/readyz answers 503", "connections close", "draining; bin/sluice undrain puts it back"]
        assert state(balancer, cell) == "DOWN"
        kill(cell)
        start(cell, ready=False)
        poll(lambda: get(ports[cell], "/healthz")[0] == 200, what="the cell has started")
        assert b"bin/sluice undrain" in get(ports[cell], "/readyz")[2]
        assert sluice(homes[cell], "undrain") == "undrained: /readyz answers 200\n"
        poll(lambda: state(balancer, cell) == "UP", what="the balancer puts it back")
        before = len(stored([homes[cell]]))
        poll(lambda: len(stored([homes[cell]])) > before + 20, what="the cell gets requests again")

    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        stacks = first, second
        start(0)
        start(1)
        with (
            haproxy(tmp, addresses, patient=True) as balancer,
            Load(balancer.port, 12, 4, 0.05) as load,
        ):
            for turn in range(times):
                drain_and_undrain(turn % 2)
        wanted = sorted(load.acknowledged)
        with contextlib.suppress(AssertionError):  # the next assertion shows the difference
            poll(lambda: len(stored(homes)) >= len(wanted))
        assert stored(homes) == wanted
    head = ("cells taken out and put back", "answered", "failed", "sent again")
    row = (str(times), str(len(wanted)), str(len(load.failed)), str(len(load.again)))
    record_property("row", ("deploy/haproxy.cfg", head, row))
    assert load.failed == load.again == []


@needs("views", "page")
def test_the_balancer_passes_on_writes_and_health_checks_but_no_reads() -> None:
    """A cell would take every reader for the balancer, which may be on its machine."""
    reads = ["/status", "/status/", "//status/", "/%73tatus/status.json", "/status/metrics", "/gps/latest?device=a",
             "/votes/../gps/latest?device=a", "/GPS/latest"]  # fmt: skip
    with front() as (web, gateway), haproxy(web.home, [f"127.0.0.1:{web.port}"]) as balancer:
        gateway.reads.clear()
        for method in b"GET", b"HEAD":
            for target in reads:
                data = b"%b %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (method, target.encode())
                assert harness.request(balancer.port, data)[0] == 403
        assert gateway.reads == []
        assert post(balancer.port, "/votes", b"x")[0] == 200
        assert [get(balancer.port, path)[0] for path in ("/gpslogger?lat=1", "/healthz", "/ping")] == [200] * 3


def test_the_balancer_admits_the_networks_that_a_cell_admits() -> None:
    (networks,) = re.findall(r" unless \{ src (.+) \}$", (ROOT / "deploy/haproxy.cfg").read_text(), re.M)
    assert tuple(networks.split()) == parsers.PRIVATE


def test_a_request_is_tried_elsewhere_only_if_its_connection_was_refused(tmp: Path) -> None:
    """Of two cells, one takes each request and closes without an answer; then nothing listens on its port."""
    with (
        harness.redis_server(tmp, appendonly="no") as redis,
        harness.gateway(tmp, redis),
        harness.nginx(tmp) as web,
        socket.create_server(("127.0.0.1", 0)) as bad,
    ):
        posts: list[bytes] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = bad.accept()
                    with connection:
                        data = connection.recv(65536)
                        if data.startswith(b"GET /readyz"):
                            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                        elif data:
                            posts.append(data)

        thread = threading.Thread(target=serve)
        thread.start()
        addresses = [f"127.0.0.1:{port}" for port in (web.port, bad.getsockname()[1])]
        with haproxy(tmp, addresses, patient=True) as balancer:
            statuses = [post(balancer.port, "/votes", b"{}")[0] for _ in range(20)]
            sent = len(posts)
            assert sent and statuses.count(502) == sent and statuses.count(200) == 20 - sent
            bad.shutdown(socket.SHUT_RDWR)
            thread.join()
            bad.close()
            assert {post(balancer.port, "/votes", b"{}")[0] for _ in range(20)} == {200}


def test_drain_where_nothing_runs_is_one_line_and_status_1(tmp: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        (tmp / "run").mkdir()
        killed.bind(str(tmp / "run/gateway-0.sock"))
    for home in tmp / "none", tmp:
        done = subprocess.run([ROOT / "bin/sluice", "drain"], env=environment(home), capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sluice: nothing runs in {home}\n")
    assert [file.name for file in (tmp / "run").iterdir()] == ["gateway-0.sock"]
