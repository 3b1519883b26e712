"""Rows that wait for their destination, and bodies that cannot be stored: each display shows them, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import PATIENCE, ROOT, Server, database, environment, free_port, poll, redis_server, running
from sluice import settings
from sluice.contrib.page import exporter, page
from sluice.ledger import Observer
from support.operator_verbs import drain, push, sluice, status, vote

pytestmark = pytest.mark.contract
GPS = b'{"device":"d","lat":1,"lon":2}'


@pytest.fixture
def redis(tmp: Path) -> Iterator[Server]:
    with redis_server(tmp, appendfsync="no") as server:
        yield server


@pytest.mark.nightly
def test_what_cannot_be_stored_or_sent_is_shown_with_the_reason_until_it_is_mended(tmp: Path, redis: Server) -> None:
    push(redis, GPS, stream="gps")
    drain(tmp)
    place = f"clickhouse://127.0.0.1:{free_port()}/rows"
    env = {"INGEST_ROWS": f"votes={place.replace('//', '//me:secret@')}"}
    with database(tmp / "ingest.db") as db:  # as a right that is missing
        db.execute("CREATE TRIGGER broken BEFORE INSERT ON gps BEGIN SELECT * FROM absent; END")
    with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environment(tmp, env)):
        push(redis, GPS, stream="gps")
        push(redis, vote("a"), vote("b"))

        def shown() -> bool:
            _, streams, _ = status(tmp, **env)
            return bool(streams["votes"]["unpublished"] and streams["gps"]["error"])

        poll(shown)
        code, streams, trouble = status(tmp, **env)
        votes, gps = streams["votes"], streams["gps"]
        cause = f"the database is unavailable: {tmp}/ingest.db: no such table: main.absent"
        assert (code, votes["unpublished"], votes["stored"], gps["error"]) == (1, 2, 2, cause)
        assert 0 <= votes["unpublished_seconds"] < 60
        assert votes["unpublished_reason"] == f"{place}: ClickHouse: Connection refused"
        assert (streams["logs"]["unpublished"], streams["logs"]["unpublished_reason"], streams["logs"]["error"]) == (
            *(0, None),
            None,
        )
        assert f"bodies of gps cannot be stored: {cause}" in trouble
        waits = f"rows of votes wait for {place}: ClickHouse: Connection refused (2 bodies, "
        assert [line for line in trouble if line.startswith(waits)]
        assert waits in " ".join(sluice(tmp, "top", "--count", "1", **env)[1].split())
        s = settings.load_settings(environment(tmp, env | {"INGEST_VIEWS": "off"}))
        looked = page.Page(s).look()
        assert f"bodies of gps cannot be stored: {cause}" in looked["trouble"]
        assert [row["unpublished"] for row in looked["streams"] if row["stream"] == "votes"] == [2]
        assert b'sluice_unpublished_bodies{stream="votes"} 2.0' in exporter.exposition(Observer(s).look())
        assert "secret" not in str(looked) + str(trouble)
        with database(tmp / "ingest.db") as db:
            db.execute("DROP TRIGGER broken")
        poll(lambda: status(tmp, **env)[1]["gps"]["error"] is None)
        assert status(tmp, **env)[1]["gps"]["stored"] == 2


def test_after_a_worker_has_ended_nothing_waits_that_is_published(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"))
    env = {"INGEST_ROWS": f"votes=parquet://{tmp}/rows"}
    with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environment(tmp, env)) as worker:
        poll(lambda: list((tmp / "rows/votes").rglob("*.parquet")))
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
    with database(tmp / "ingest.db") as db:
        assert db.execute("SELECT * FROM batches_objects").fetchall() == []
