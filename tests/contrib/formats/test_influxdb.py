"""InfluxDB's clients for JavaScript, Python and Java, unmodified, write to a whole installation."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import influxdb_client_3
import pytest
from influxdb_client import Point

from proving import harness
from proving.harness import Server, ask, installation, request, short_tmp
from support.access import KEY, keys
from support.answering_proxy import AnsweringProxy, closing, reply
from support.sender_configs import Write, npm_packages, program, samples

pytestmark = pytest.mark.nightly

poll = partial(harness.poll, interval=0.05)
HERE = Path(__file__).parent / "influx"
JARS = harness.ROOT / "var/influx/libs"
PLACE, NOTE = "2, east = sun", 'say "hi", back\\slash'
FIRST = 1_767_268_800  # the time of point 0, in seconds: noon, 1 January 2026

Start = Callable[[int, str], contextlib.AbstractContextManager[Write]]  # port, measurement

ANSWERS = {
    "400": reply(400),
    "413": reply(413),
    "429": reply(429, "Retry-After: 1"),
    "503": reply(503, "Retry-After: 1"),
    "a lost answer": b"",
}
# the clients in the order of their samples in docs/INTEGRATIONS.md, and after what each sends again by itself
AGAIN: dict[str, set[str]] = {
    "influx": set(),
    "@influxdata/influxdb-client": {"429", "503", "a lost answer"},
    "@influxdata/influxdb3-client": set(),
    "influxdb": {"a lost answer"},
    "influxdb-client": {"429", "503", "a lost answer"},
    "influxdb3-python": set(),
    "influxdb-client-java": {"429", "503", "a lost answer"},
}


def sample(client: str, port: int) -> str:
    """The lines of docs/INTEGRATIONS.md that make a client."""
    return samples("InfluxDB", port)[list(AGAIN).index(client)].replace("KEY", KEY)


def node(
    packages: Path, client: str, port: int, name: str, change: tuple[str, str] = ("", "")
) -> contextlib.AbstractContextManager[Write]:
    """change: a pattern in the sample, and what replaces it."""
    path = packages / f"{name}.mjs".replace("/", " ")
    path.write_text(re.sub(*change, sample(client, port)) + (HERE / "write.mjs").read_text())
    return program("node", path, client, name)


def java(tmp: Path, client: str, port: int, name: str) -> contextlib.AbstractContextManager[Write]:
    path = tmp / name / "Write.java"
    path.parent.mkdir()
    text = (HERE / "Write.java").read_text()
    path.write_text(text.replace("// docs/INTEGRATIONS.md", sample(client, port)))
    return program("java", "-cp", f"{JARS}/*", path, name)


@contextlib.contextmanager
def version_1(port: int, name: str) -> Iterator[Write]:
    names: dict[str, Any] = {}
    exec(sample("influxdb", port), names)  # noqa: S102  # our own document

    def write(numbers: range) -> str:
        about = {"measurement": name, "tags": {"place": PLACE}}
        points = [about | {"fields": {"n": n, "door": True, "note": NOTE}, "time": FIRST + n} for n in numbers]
        try:
            names["client"].write_points(points, time_precision="s")
        except Exception as error:
            return str(error)
        return "ok"

    with contextlib.closing(names["client"]):
        yield write


@contextlib.contextmanager
def version_2(port: int, name: str) -> Iterator[Write]:
    names: dict[str, Any] = {}
    exec(sample("influxdb-client", port), names)  # noqa: S102  # our own document

    def write(numbers: range) -> str:
        for n in numbers:
            point = Point(name).tag("place", PLACE).field("n", n).field("door", True).field("note", NOTE)
            names["client"].write("any", record=point.time(FIRST + n, "s"), write_precision="s")
        return "ok"  # they are written by a thread

    with contextlib.closing(names["client"]):
        yield write


@contextlib.contextmanager
def version_3(port: int, name: str) -> Iterator[Write]:
    names: dict[str, Any] = {}
    exec(sample("influxdb3-python", port), names)  # noqa: S102  # our own document

    def write(numbers: range) -> str:
        about = influxdb_client_3.Point(name).tag("place", PLACE).field("door", True).field("note", NOTE)
        points = [copy.deepcopy(about).field("n", n).time(FIRST + n, "s") for n in numbers]
        try:
            names["client"].write(points)
        except Exception as error:
            return str(error)
        return "ok"

    with contextlib.closing(names["client"]):
        yield write


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    """bin/up that asks for a key."""
    head = f"GET /readyz HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n\r\n".encode()
    with short_tmp() as tmp, installation(tmp, {"INGEST_API_KEYS": keys(tmp)}, ready=False) as server:
        poll(lambda: request(server.port, head)[0] == 200, seconds=300)
        yield server


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Start]]:
    """The clients that can run here."""
    found: dict[str, Start] = {"influxdb": version_1, "influxdb-client": version_2, "influxdb3-python": version_3}
    with contextlib.ExitStack() as stack:
        if shutil.which("npm"):
            packages = stack.enter_context(npm_packages(HERE))
            found |= {name: partial(node, packages, name) for name in list(AGAIN)[:3]}
        if JARS.is_dir():
            found["influxdb-client-java"] = partial(java, stack.enter_context(short_tmp()), "influxdb-client-java")
        yield found


def numbers(up: Server, name: str) -> list[int]:
    """The points that are stored of a measurement, sorted."""
    return sorted(int(n) for (n,) in ask(up.home, "SELECT value FROM metrics WHERE name = ? AND field = 'n'", name))


@pytest.mark.parametrize("client", AGAIN)
def test_a_point_is_a_row_for_each_field(client: str, up: Server, clients: dict[str, Start]) -> None:
    if client not in clients:
        pytest.skip("no npm, or no jars")
    name = f"{client}-rows"
    with clients[client](up.port, name) as write:
        assert write(range(1, 2)) == "ok"
        poll(lambda: numbers(up, name))
    sql = "SELECT time, tags, field, type, value FROM metrics WHERE name = ? ORDER BY field"
    found = [(*row[:1], json.loads(row[1]), *row[2:]) for row in ask(up.home, sql, name)]
    point = "2026-01-01T12:00:01.000000000Z", {"place": PLACE}
    number = "float" if client == "influx" else "integer"  # it has no integers without a schema
    assert found == [(*point, "door", "boolean", 1), (*point, "n", number, 1), (*point, "note", "string", NOTE)]


def refused(up: Server, client: str, start: Start) -> list[str]:
    """Write a point for each of the answers, then one that is stored. Returns: what the client said of the first ones.

    The application writes a point again that the client does not send again, unless it was rejected.
    """
    name = f"{client}-refused"
    replies: list[bytes] = []
    said: list[str] = []
    with closing(proxy := AnsweringProxy(up.port, replies)) as port, start(port, name) as write:
        for n, (kind, answer) in enumerate(ANSWERS.items()):
            replies.append(answer)
            said.append(write(range(n, n + 1)))
            poll(lambda n=n: len(proxy.answered) == n + 1)  # type: ignore[misc]
            if kind not in {"400", "413"} | AGAIN[client]:
                poll(lambda n=n: write(range(n, n + 1)) == "ok")  # type: ignore[misc]
            if kind not in {"400", "413"}:
                poll(lambda n=n: numbers(up, name).count(n) == 1)  # type: ignore[misc]
        assert write(range(9, 10)) == "ok"
        poll(lambda: 9 in numbers(up, name))
    return said


@pytest.fixture(scope="module")
def outcomes(up: Server, clients: dict[str, Start]) -> Iterator[dict[str, Future[list[str]]]]:
    """What `refused` returns of each client. They run at once, because they wait most of the time."""
    with ThreadPoolExecutor(len(clients)) as pool:
        yield {client: pool.submit(refused, up, client, start) for client, start in clients.items()}


def test_every_point_is_stored_exactly_once_although_the_worker_is_killed(
    up: Server, clients: dict[str, Start], outcomes: dict[str, Future[list[str]]], kills: int
) -> None:
    assert outcomes.keys() == clients.keys()  # they run meanwhile
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(start(up.port, f"{client}-kills")) for client, start in clients.items()]
        for n in range(kills):
            (worker,) = poll(lambda: up.pids("worker"))
            assert [write(range(n * 100, n * 100 + 100)) for write in writers] == ["ok"] * len(writers)
            os.kill(worker, signal.SIGKILL)
            poll(lambda worker=worker: worker not in up.pids("worker"))  # type: ignore[misc]
        for client in clients:
            poll(lambda client=client: len(numbers(up, f"{client}-kills")) >= kills * 100)  # type: ignore[misc]
    for client in clients:
        assert numbers(up, f"{client}-kills") == list(range(kills * 100))
    assert ask(up.home, "SELECT reason FROM dead_letters") == []


@pytest.mark.parametrize("client", AGAIN)
def test_what_a_client_does_after_an_error(
    client: str, up: Server, clients: dict[str, Start], outcomes: dict[str, Future[list[str]]]
) -> None:
    if client not in clients:
        pytest.skip("no npm, or no jars")
    answers = outcomes[client].result()
    # 0 and 1 were rejected; 4 was stored before its answer was lost, and what was sent again is its copy
    assert numbers(up, f"{client}-refused") == [2, 3, 4, 9]
    for kind, said in zip(ANSWERS, answers, strict=True):
        if kind not in AGAIN[client] and client not in ("influxdb-client", "influxdb-client-java"):
            assert said != "ok", kind


@pytest.mark.parametrize("client", AGAIN)
def test_every_point_is_stored_once_although_one_answer_in_ten_is_lost(
    client: str, up: Server, clients: dict[str, Start]
) -> None:
    """The application writes again what its client does not send again."""
    if client not in clients:
        pytest.skip("no npm, or no jars")
    name = f"{client}-lost"
    with closing(proxy := AnsweringProxy(up.port, [], cut=10)) as port, clients[client](port, name) as start:
        count = proxy.sent_in_steps(lambda: numbers(up, name), lambda asked: poll(lambda: start(asked) == "ok"), step=1)
        poll(lambda: proxy.repeated() >= proxy.lost)
        assert start(range(count, count + 1)) == "ok"
        poll(lambda: count in numbers(up, name))
    assert numbers(up, name) == [*range(count + 1)]


def changed(
    clients: dict[str, Start], client: str, port: int, *change: str
) -> contextlib.AbstractContextManager[Write]:
    """A client for JavaScript whose sample is changed."""
    if client not in clients:
        pytest.skip("no npm")
    return clients[client](port, f"{client}-changed", change=change)  # type: ignore[call-arg]


def test_without_the_options_the_javascript_client_of_version_2_gives_up_soon(
    up: Server, clients: dict[str, Start]
) -> None:
    """It takes the 60 seconds for milliseconds, five times."""
    with (
        closing(proxy := AnsweringProxy(up.port, [reply(503, "Retry-After: 60")] * 6)) as port,
        changed(clients, "@influxdata/influxdb-client", port, r"(?s), \{\s+flushInterval.*?\}", "") as write,
    ):
        assert write(range(1)) != "ok"
        poll(lambda: len(proxy.answered) == 6)
        poll(lambda: write(range(1, 2)) == "ok")  # again if its own ten seconds have passed
        poll(lambda: numbers(up, "@influxdata/influxdb-client-changed"))
    assert set(numbers(up, "@influxdata/influxdb-client-changed")) == {1}


def test_points_of_version_3_are_stored_without_sync(up: Server, clients: dict[str, Start]) -> None:
    more = '"any", writeOptions: { noSync: true }'
    with changed(clients, "@influxdata/influxdb3-client", up.port, '"any"', more) as write:
        assert write(range(1)) == "ok"
    poll(lambda: numbers(up, "@influxdata/influxdb3-client-changed") == [0])
