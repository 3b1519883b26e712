"""Bodies that cannot be stored, and rows that wait for their destination: each display shows them, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import ROOT, Server, database, environment, poll, redis_server, running
from sluice.spool.claim import Claim
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from support.operator_verbs import drain, push, status, vote

pytestmark = pytest.mark.contract

GPS = b'{"device":"d","lat":1,"lon":2}'


@pytest.fixture
def redis(tmp: Path) -> Iterator[Server]:
    with redis_server(tmp, appendfsync="no") as server:
        yield server


def test_the_error_of_a_claim_is_gone_once_another_worker_has_settled_it(tmp: Path, redis: Server) -> None:
    push(redis, GPS, stream="gps")
    drain(tmp)
    with database(tmp / "ingest.db") as db:
        db.execute("CREATE TRIGGER broken BEFORE INSERT ON gps BEGIN SELECT * FROM absent; END")
    with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environment(tmp)) as worker:
        push(redis, GPS, stream="gps")
        poll(lambda: status(tmp)[1]["gps"]["error"])
        (claim,) = Inspector(str(redis.socket)).take_snapshot("gps").claims
        Outlet(str(redis.socket)).settle(Claim.from_id("gps", claim, 1))  # as a worker that got it when its lease ended
        poll(lambda: "is gone from Redis" in (tmp / "worker.out").read_text())
        poll(lambda: status(tmp)[1]["gps"]["error"] is None)
        assert worker.poll() is None


def test_a_worker_reports_its_errors_and_their_end(redis: Server) -> None:
    outlet, inspector = Outlet(str(redis.socket)), Inspector(str(redis.socket))
    for errors in {"votes": "why"}, {}:
        outlet.report_state((), errors)
        assert [process.errors for process in inspector.processes()] == [errors]
    outlet.report_state((), {"votes": "why"})
    outlet.report_state()
    assert [process.errors for process in inspector.processes()] == [{}]


def test_status_without_the_database_keeps_its_fields(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"))
    _, streams, (line,) = status(tmp)
    assert line.startswith("the database is unavailable: ")
    row = streams["votes"]
    assert (row["ready"], row["unpublished"], row["unpublished_seconds"], row["error"]) == (1, None, None, None)
