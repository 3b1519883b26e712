"""The wall clock of every process steps by an hour and by a year, ahead and back: all that is promised goes on.

Redis alone has a test of its own (`spool/test_clock.py`), deletion by age another one (`test_worker.py`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving.clock import PROGRAMS, Clock
from proving.harness import ROOT, Server, ask, database, get, installation, poll, post
from sluice.base import connect
from sluice.settings import SCRATCH_SOCKET
from sluice.spool.contract import LEASE_SECONDS, Keys
from support.folders import has

pytestmark = pytest.mark.nightly

VOTES = Keys.for_stream("votes")
HOUR, YEAR = 3600, 365 * 86_400
# each of them from where the one before has led; on PyPy, the programs that keep clocks are the same
STEPS = {"cpython": (HOUR, -HOUR, YEAR, -YEAR), "pypy": (YEAR, -YEAR)}
KEEP = "votes=30d,gps=30d,dead=30d"
VOTE = b'{"poll":"p","choice":"%b"}'
PARTS = "redis", "nginx", "gateway", "worker"
VIEWS = ("views", "follower", "reader") * has("views")
TABLES = "votes", "gps", "dead_letters"


@pytest.fixture(scope="module", params=["cpython", "pypy"])
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param == "pypy" and not (ROOT / ".venv-pypy").exists():
        pytest.skip("no PyPy: bin/provision pypy installs it")
    return str(request.param)


@pytest.fixture
def moved(tmp: Path, runtime: str) -> Iterator[tuple[Server, Clock]]:
    """An installation all of whose programs have a clock that can be moved."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    clock = Clock(tmp, os.environ["PATH"], PROGRAMS)
    env = {"INGEST_KEEP": KEEP, "INGEST_UNIQUE": "votes=30d", "INGEST_WORKERS": 2, "INGEST_RUNTIME": runtime}
    with installation(tmp, env | clock.environ) as up:
        poll(lambda: ask(up.home, "SELECT count(*) FROM batches"), what="the database")
        yield up, clock


def leases(spool: Any) -> list[float]:
    """The seconds until the leases of the claims of votes end, by Redis's clock."""
    seconds, micros = spool.time()
    return [end / 1000 - seconds - micros / 1e6 for _, end in spool.zrange(VOTES.claims, 0, -1, withscores=True)]


def rows(up: Server, table: str) -> int:
    return int(ask(up.home, f"SELECT count(*) FROM {table}")[0][0])


def keeps_its_promises(up: Server, clock: Clock, count: int, at: int) -> None:
    """Step, while workers hold a claim; then everything is done once more. count: of the steps. at: seconds ahead."""
    sockets = "run/redis.sock", *[SCRATCH_SOCKET] * has("views")
    spool, *scratch = (connect.connect_client(str(up.home / path), 10) for path in sockets)
    with database(up.home / "ingest.db") as db:
        db.execute("BEGIN IMMEDIATE")  # so the claim is not stored yet
        assert post(up.port, "/votes", VOTE % b"%d" % count)[0] == 200
        poll(lambda: spool.zcard(VOTES.claims), what="a claim")
        clock.move(at)
        poll(lambda: all(0 < end <= LEASE_SECONDS for end in leases(spool)), what="its lease ends in its time")
        db.execute("COMMIT")
    now = time.time()  # of this process, whose clock is right
    assert all(abs(int(client.time()[0]) - now - at) < 60 for client in (spool, *scratch))

    second = b"2020-01-01T00:00:%02d" % count
    assert post(up.port, "/gps", b'{"device":"bike","lat":1,"lon":2,"time":"%bZ"}' % second)[0] == 200
    assert post(up.port, "/votes", b"bad %d" % count)[0] == 200
    poll(lambda: [rows(up, table) for table in TABLES] == [count] * 3, what="all is stored once, and nothing expires")
    poll(lambda: not any(spool.zcard(keys.claims) for keys in (VOTES, Keys.for_stream("gps"))), what="it is settled")
    if has("views"):
        follows(up, second, count)
    assert get(up.port, "/readyz")[0] == 200


def follows(up: Server, second: bytes, count: int) -> None:
    from sluice.contrib.views import contract

    views: Any = connect.connect_client(str(up.home / SCRATCH_SOCKET), 10)
    poll(lambda: second in get(up.port, "/gps/latest?device=bike")[2], what="the view follows")
    poll(lambda: b'"%d":1' % count in get(up.port, "/votes/tally?poll=p")[2], what="the tally is counted anew")
    poll(lambda: 0 < views.pttl(contract.HOLDER) <= contract.LEASE_SECONDS * 1000, what="the follower's lease")


def test_every_promise_holds_after_each_step_of_the_clock_of_all_processes(
    moved: tuple[Server, Clock], runtime: str
) -> None:
    up, clock = moved
    keeps_its_promises(up, clock, 1, 0)  # now all processes run
    pids = {name: up.pids(name) for name in (*PARTS, *VIEWS)}
    at = 0
    for count, step in enumerate(STEPS[runtime], 2):
        at += step
        keeps_its_promises(up, clock, count, at)
    assert {name: up.pids(name) for name in pids} == pids  # none has ended
