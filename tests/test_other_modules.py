"""Two cells on one database whose modules of records differ, and then have each other's: every acknowledged body is a
row once, a dead letter, or waits and is shown.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proving.harness import ROOT, Server, ask, environment, gateway, poll, post, redis_server, running
from proving.postgres import postgres_server
from support.operator_verbs import sluice, status

pytestmark = pytest.mark.nightly

# Of orders, one has a field that the other lacks, and requires one that it does not send; the others have one stream
OLD = """
from sluice import OK, Record, Route, stream

class Order(Record):
    sku: str
    count: int = 1

class Tide(Record):
    metres: float

STREAMS = {"orders": stream("orders", Order), "tides": stream("tides", Tide)}
ROUTES = {"/orders": Route("orders", OK), "/tides": Route("tides", OK)}
"""
NEW = """
from sluice import OK, Record, Route, stream

class Order(Record):
    sku: str
    customer: str

class Guest(Record):
    name: str

STREAMS = {"orders": stream("orders", Order), "guests": stream("guests", Guest)}
ROUTES = {"/orders": Route("orders", OK), "/guests": Route("guests", OK)}
"""
COUNT = 40


class Cell:
    """A Redis, a gateway and a worker with a module, which may be changed between two starts."""

    def __init__(self, home: Path, name: str, url: str) -> None:
        home.mkdir()
        self.home, self.module = home, home / "own.py"
        self.env: dict[str, object] = {
            **{"INGEST_STORE": url, "INGEST_CELL": name, "INGEST_VIEWS": "off"},
            **dict.fromkeys(("INGEST_RECORDS", "INGEST_ROUTES"), self.module),
        }

    @contextlib.contextmanager
    def gateway(self, module: str) -> Iterator[Server]:
        self.module.write_text(module)
        with gateway(self.home, env=self.env) as server:
            yield server

    def worker(self) -> contextlib.AbstractContextManager[Any]:
        command = [sys.executable, ROOT / "worker.py"]
        return running(command, self.home / "worker.out", environment(self.home, self.env))

    def worker_of(self, module: str) -> contextlib.AbstractContextManager[Any]:
        self.module.write_text(module)
        return self.worker()

    def status(self) -> tuple[int, dict[str, dict[str, Any]], list[str]]:
        return status(self.home, **self.env)


Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(params=["sqlite", "postgres"])
def base(request: pytest.FixtureRequest, tmp: Path) -> Iterator[tuple[str, Query]]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp}/ingest.db", partial(ask, tmp)
    else:
        with postgres_server() as server:
            yield server.url, lambda sql: [*server.ask(sql)]


def order(cell: str, n: int, **more: object) -> bytes:
    return json.dumps({"sku": f"{cell}-{n}"} | more).encode()


def send(where: Server, path: str, bodies: list[bytes]) -> None:
    assert {post(where.socket, path, body)[0] for body in bodies} == {200}


def settled(cell: Cell, *streams: str) -> bool:
    """Whether nothing of these streams waits."""
    rows = cell.status()[1]
    return all((rows[name]["ready"], rows[name]["claimed"]) == (0, 0) for name in streams)


def test_modules_that_differ_and_are_exchanged_lose_and_double_nothing(tmp: Path, base: tuple[str, Query]) -> None:
    url, query = base
    one, two = Cell(tmp / "1", "c1", url), Cell(tmp / "2", "c2", url)
    with redis_server(one.home, appendfsync="no"), redis_server(two.home, appendfsync="no"):
        with one.gateway(OLD) as old, two.gateway(NEW) as new:
            with one.worker(), two.worker():
                send(old, "/orders", [order("a", n, count=n) for n in range(COUNT)])
                send(new, "/orders", [order("b", n, customer="ann") for n in range(COUNT)])
                send(old, "/tides", [b'{"metres":%d.5}' % n for n in range(COUNT)])
                send(new, "/guests", [b'{"name":"ann"}' for _ in range(COUNT)])
                poll(lambda: settled(one, "orders", "tides") and settled(two, "orders", "guests"))
            # what comes now is stored by a worker that has the other module
            send(old, "/orders", [order("c", n, count=n) for n in range(COUNT)])
            send(new, "/orders", [order("d", n, customer="bob") for n in range(COUNT)])
            send(old, "/tides", [b'{"metres":%d.5}' % n for n in range(COUNT)])
            send(new, "/guests", [b'{"name":"bob"}' for _ in range(COUNT)])
        with one.gateway(NEW) as new, two.gateway(OLD) as old, one.worker(), two.worker():
            send(new, "/orders", [order("e", n, customer="eve") for n in range(COUNT)])
            send(old, "/orders", [order("f", n, count=n) for n in range(COUNT)])
            poll(lambda: settled(one, "orders") and settled(two, "orders"))
            # they have no decoder here: they wait, are counted, and it is said why
            for cell, stream in (one, "tides"), (two, "guests"):
                waiting = cell.status()[1][stream]
                assert (waiting["ready"], waiting["decoder"], waiting["missing"]) == (COUNT, False, 0)
                assert f"{stream}: no decoder" in sluice(cell.home, "status", **cell.env)[1]
            # c: the customer is missing
            rows = one.status()[1]
            assert (rows["orders"]["accepted"], rows["orders"]["dead"], rows["orders"]["missing"]) == (120, COUNT, 0)
            assert two.status()[1]["orders"]["missing"] == two.status()[1]["orders"]["dead"] == 0
        # each has its own again
        with one.gateway(OLD), two.gateway(NEW), one.worker(), two.worker():
            poll(lambda: settled(one, "orders", "tides") and settled(two, "orders", "guests"))
            assert sluice(one.home, "replay", **one.env)[0] == 0
            for cell in one, two:
                code, rows, trouble = cell.status()
                assert (code, trouble, {row["missing"] for row in rows.values()}) == (0, [], {0})
    found = query("SELECT sku, count(*) FROM orders GROUP BY sku")
    assert sorted(found) == sorted((f"{name}-{n}", 1) for name in "abcdef" for n in range(COUNT))
    for table in "tides", "guests":
        assert query(f"SELECT count(*) FROM {table}") == [(2 * COUNT,)]
    assert query("SELECT count(*) FROM dead_letters") == [(0,)]


def test_a_field_of_another_type_keeps_its_cell_waiting_and_no_other_one(tmp: Path) -> None:
    """PostgreSQL holds both types in no column; which module came first decides."""
    with postgres_server() as server:
        one, two = Cell(tmp / "1", "c1", server.url), Cell(tmp / "2", "c2", server.url)
        other = OLD.replace("count: int = 1", 'count: str = ""')
        with redis_server(one.home, appendfsync="no"), redis_server(two.home, appendfsync="no"), one.worker_of(OLD):
            with one.gateway(OLD) as first, two.gateway(other) as second:
                send(first, "/orders", [order("a", 0, count=1)])
                poll(lambda: settled(one, "orders"))
                with two.worker_of(other):
                    send(second, "/orders", [order("b", n, count="2") for n in range(COUNT)])
                    why = "bodies of orders cannot be stored: the database is unavailable: PostgreSQL: column count"
                    poll(lambda: [line for line in two.status()[2] if line.startswith(why)])
                    send(first, "/orders", [order("a", 1, count=1)])
                    poll(lambda: settled(one, "orders"))
                    assert two.status()[1]["orders"]["stored"] == 0
            with two.worker_of(OLD):
                poll(lambda: settled(two, "orders"))
            rows = two.status()[1]["orders"]
            assert (rows["accepted"], rows["dead"], rows["missing"]) == (COUNT, COUNT, 0)  # "2" is no integer
            assert server.ask("SELECT count(*) FROM orders") == [(2,)]
