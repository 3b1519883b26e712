"""Keys in PostgreSQL: the tests of every database, and those of PostgreSQL alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import worker as program
from proving.harness import redis_server
from proving.postgres import Postgres, postgres_server
from sluice.spool.outlet import Outlet
from sluice.streams.record import Limits
from support.keys_contract import *  # noqa: F403
from support.keys_contract import VOTE, Here, fix, keyed
from support.operator_verbs import push

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as running:
        yield running


@pytest.fixture
def url(server: Postgres) -> str:
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server.url


def test_two_workers_that_store_the_same_keys_in_another_order_wait_for_each_other_and_do_not_deadlock(
    server: Postgres, tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    bodies = [fix(f"d{n}") for n in range(2_000)]
    claims = bodies, bodies[::-1]
    streams = {"gps": Here(server.url).streams["gps"]}
    decode, both = streams["gps"].decode, threading.Barrier(2)

    def decode_together(item: bytes, limits: Limits) -> Any:
        if item in (bodies[0], bodies[-1]):
            both.wait()
        return decode(item, limits)

    streams["gps"] = streams["gps"]._replace(decode=decode_together)
    url = f"{server.url}&options=-c%20deadlock_timeout%3D10ms"
    with redis_server(tmp, appendfsync="no") as redis:
        push(redis, *claims[0], *claims[1], stream="gps")
        workers = [program.Worker(Outlet(str(redis.socket)), url, streams, Limits()) for _ in claims]
        for worker in workers:
            worker.states[0].max_bodies = len(bodies)
        threads = [threading.Thread(target=worker.run, args=(True,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [worker.states[0].errors.n for worker in workers] == [0, 0] and "deadlock" not in caplog.text
    assert server.ask("SELECT count(*), count(DISTINCT device) FROM gps") == [(len(bodies), len(bodies))]
    ledger = Here(server.url).store.read_ledger("gps")
    assert (ledger.bodies, ledger.duplicate, ledger.dead) == (2 * len(bodies), len(bodies), 0)


@pytest.mark.nightly
def test_a_key_that_expires_while_it_is_put_again_is_put(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    here, other = Here(server.url), Here(server.url, epoch="other")
    assert here.put("votes", keyed("a", VOTE)) == (1, 0)
    run = here.store.run_sql

    def late(db: Any, sql: str, values: Any = ()) -> Any:
        if "FROM batches_keys WHERE key IN" in sql:  # it was there when it was put, and is not any more
            other.store.expire_keys(b"", {"votes": int(time.time()) + 60})
        return run(db, sql, values)

    with monkeypatch.context() as between:
        between.setattr(here.store, "run_sql", late)
        assert here.put("votes", keyed("a", VOTE), keyed("b", VOTE)) == (2, 0)
    assert here.put("votes", keyed("a", VOTE), keyed("b", VOTE)) == (0, 0)
