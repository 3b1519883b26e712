"""Reading through bin/up: what was posted can be read, and what happens when a program of the read side is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proving.harness import ROOT, Server, connect, environment, get, installation, poll, post, short_tmp, stopped
from sluice.contrib import views
from support.access import curl

pytestmark = pytest.mark.contract

BIKE = "/gps/latest?device=bike"
RECORDS = """
from sluice import Record, stream

class Order(Record):
    customer: str
    sku: str

STREAMS = {"orders": stream("orders", Order)}
"""
ROUTES = """
from sluice import OK, Route

ROUTES = {"/orders": Route("orders", OK)}
"""
VIEWS = """
from sluice.contrib.views import feed, latest

VIEWS = {"/orders/recent.v1": feed("orders", key="customer", cap=2), "/gps/trail": latest("gps", key="device")}
"""


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    """An installation that the tests leave as they found it."""
    with short_tmp() as tmp, installation(tmp) as server:
        poll(lambda: get(server.port, "/gps/latest?device=nobody")[0] == 404)
        yield server


def read(server: Server, target: str) -> Any:
    """The JSON of a view; None: no 200."""
    status, _, body = get(server.port, target)
    return json.loads(body) if status == 200 else None


def ride(server: Server, lat: float) -> None:
    """Post a position of the device `bike`."""
    assert post(server.port, "/gps", json.dumps({"device": "bike", "lat": lat, "lon": 11.5}).encode())[0] == 200


def arrives(server: Server, lat: float) -> None:
    """Post a position, and wait until it can be read."""
    ride(server, lat)
    poll(lambda: read(server, BIKE)["lat"] == lat, what="the position that was posted")


def another(server: Server, name: str, before: list[int]) -> None:
    """Wait until a program has other processes than before."""
    poll(lambda: (now := server.pids(name)) and not set(before) & set(now), what=f"another {name}")


def test_what_was_posted_can_be_read(up: Server) -> None:
    for lat in 48.25, 48.5:
        arrives(up, lat)
    # a row comes into one view after the other
    poll(lambda: [point["lat"] for point in read(up, "/gps/trail?device=bike&limit=2")] == [48.5, 48.25])
    assert post(up.port, "/write", b"room,floor=2 temperature=21.5,door=true")[0] == 204
    rooms = poll(lambda: read(up, "/metrics/latest?name=room"))
    assert {(row["field"], row["value"]) for row in rooms} == {("temperature", 21.5), ("door", True)}
    assert post(up.port, "/votes", b'{"poll":"cookies","choice":"oreo"}')[0] == 200
    tally = poll(lambda: read(up, "/votes/tally?poll=cookies"))
    assert (tally["total"], tally["choices"]) == (1, {"oreo": 1})
    both = read(up, "/gps/latest?device=bike&device=nobody")
    assert (both[0]["lat"], both[1]) == (48.5, None)
    status, headers, _ = post(up.port, "/gps/latest?device=bike", b"x")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_only_this_machine_may_read_unless_set(up: Server) -> None:
    ride(up, 48.0)
    url = f"127.0.0.1:{up.port}{BIKE}"
    assert poll(lambda: curl(url)[0] == 200)
    status, headers, body = curl("--interface", "127.0.0.2", url)
    assert (status, headers["content-type"]) == (403, ["application/problem+json"])
    assert "bike" not in body


def refused(server: Server) -> bool:
    """Whether a read gets 503, as docs/protocol/http.md describes it."""
    status, headers, body = get(server.port, BIKE)
    if status == 200:
        return False
    assert (status, headers["content-type"], int(headers["retry-after"])) == (503, "application/problem+json", 1)
    assert json.loads(body)["status"] == 503
    return True


def test_while_the_views_redis_is_away_reads_get_503_and_then_the_same_values(up: Server) -> None:
    arrives(up, 48.75)
    with stopped(*up.pids("follower")):
        before = up.pids("views")
        os.kill(before[0], signal.SIGKILL)
        poll(partial(refused, up))
        another(up, "views", before)
        assert refused(up)  # it is empty
    poll(lambda: read(up, BIKE)["lat"] == 48.75)
    arrives(up, 49.0)


def test_a_killed_follower_misses_nothing(up: Server) -> None:
    arrives(up, 50.0)
    before = up.pids("follower")
    os.kill(before[0], signal.SIGKILL)
    ride(up, 50.25)
    assert get(up.port, BIKE)[0] == 200  # the last value is served meanwhile
    another(up, "follower", before)
    poll(lambda: read(up, BIKE)["lat"] == 50.25)


def test_a_reader_that_hangs_delays_no_post(up: Server) -> None:
    with stopped(*up.pids("reader")):
        for lat in 50.5, 50.75:
            ride(up, lat)
    poll(lambda: read(up, BIKE)["lat"] == 50.75)


def whole(server: Server, killed: int = 0) -> bool:
    """Whether the reader has both of its processes again, gunicorn's master and the one that serves."""
    pids = server.pids("reader")
    return len(pids) == 2 and killed not in pids


class Crowd:
    """Clients that read all the time. seen: statuses of the answers; failed: what happened instead of an answer."""

    def __init__(self, server: Server) -> None:
        self.server, self.ended = server, False
        self.seen: list[int] = []
        self.failed: list[Exception] = []
        self.threads = [threading.Thread(target=self.run) for _ in range(4)]

    def run(self) -> None:
        while not self.ended:
            try:
                with connect(self.server.port, 10) as connection:
                    while not self.ended:
                        self.seen.append(get(connection, BIKE)[0])
            except (OSError, EOFError) as error:
                self.failed.append(error)

    def __enter__(self) -> Crowd:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        for thread in self.threads:
            thread.join()

    def more(self) -> None:
        """Wait for further values."""
        count = len(self.seen)
        poll(lambda: self.seen[count:].count(200) > 20, what="values")


@pytest.mark.parametrize("victim", [0, 1], ids=["gunicorns_master", "the_process_that_serves"])
def test_while_the_reader_is_killed_each_read_gets_its_value_or_502(up: Server, victim: int) -> None:
    arrives(up, 51.0)
    with Crowd(up) as crowd:
        for _ in range(3):
            crowd.more()
            pid = up.pids("reader")[victim]
            os.kill(pid, signal.SIGKILL)
            poll(partial(whole, up, pid))
            crowd.more()
    assert crowd.failed == []
    assert set(crowd.seen) <= {200, 502}


@pytest.mark.nightly
def test_a_reload_replaces_reader_and_follower_and_fails_no_read(up: Server) -> None:
    arrives(up, 52.0)
    before = {name: up.pids(name) for name in ("views", "follower", "reader")}
    with Crowd(up) as crowd:
        crowd.more()
        subprocess.run([ROOT / "bin/sluice", "reload"], env=environment(up.home), check=True, timeout=120)
        crowd.more()
    assert (crowd.failed, set(crowd.seen)) == ([], {200})
    after = {name: up.pids(name) for name in before}
    assert after["views"] == before["views"]
    assert not {*before["follower"], *before["reader"]} & {*after["follower"], *after["reader"]}
    arrives(up, 52.25)


def test_with_views_off_nothing_of_it_runs(tmp: Path) -> None:
    with installation(tmp, {"INGEST_VIEWS": "off"}) as up:
        assert [up.pids(name) for name in ("views", "follower", "reader")] == [[], [], []]
        assert not [path for path in (tmp / "run").iterdir() if re.match("views|follower|reader", path.name)]
        unknown = get(up.port, "/gps/unknown?device=bike")
        answers = [get(up.port, f"{path}?device=bike") for path in views.VIEWS]
        assert {(status, body) for status, _, body in answers} == {(unknown[0], unknown[2])} == {(404, unknown[2])}
        assert post(up.port, "/gps/latest", b"x")[0] == 404
        assert "tally" not in up.said()  # nor does the first screen name it


@pytest.mark.nightly
def test_views_of_ones_own_are_served_beside_the_built_in_ones(tmp: Path) -> None:
    env = {}
    for name, text in ("records", RECORDS), ("routes", ROUTES), ("views", VIEWS):
        (tmp / f"my_{name}.py").write_text(text)
        env[f"INGEST_{name.upper()}"] = tmp / f"my_{name}.py"
    with installation(tmp, env) as up:
        for sku in "A-1", "A-2", "A-3":
            assert post(up.port, "/orders", json.dumps({"customer": "ann", "sku": sku}).encode())[0] == 200
        recent = "/orders/recent.v1?customer=ann"
        poll(lambda: [order["sku"] for order in read(up, recent)] == ["A-3", "A-2"])
        ride(up, 48.0)
        poll(lambda: read(up, "/gps/trail?device=bike")["lat"] == 48.0)  # replaced: no longer a feed
        assert read(up, BIKE)["lat"] == 48.0
        assert get(up.port, "/orders/recentxv1?customer=ann")[0] == 404
