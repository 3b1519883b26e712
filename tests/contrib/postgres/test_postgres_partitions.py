"""Partitions in PostgreSQL: nobody waits for them, and they take no other stream's rows."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest

from proving.harness import poll
from proving.postgres import Postgres, postgres_server
from sluice.contrib.postgres import partitions
from sluice.contrib.postgres.session import open_connection
from sluice.contrib.views.rows.registry import open_row_source
from sluice.parsers import Keep
from sluice.store.questions import find_last_rows
from sluice.store.registry import open_store
from sluice.store.types import Body, Unavailable
from sluice.streams.built_in import STREAMS
from sluice.streams.custom import stream
from sluice.streams.record import Gps, Vote
from support.store_contract import body_with, claim, decoded, patiently

pytestmark = pytest.mark.contract

KEEP = Keep(600, {})
MINUTE_AGO = 60.0
DAY = 86_400
NAMED = b"POST /gps HTTP/1.1\r\nSluice-Sender: acme\r\n\r\n" + b'{"device":"d","lat":1,"lon":2}'


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as running:
        yield running


@pytest.fixture
def pg(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """The server, with an empty database. Workers wait for the end of what a thread does."""
    server.ask("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA public")
    monkeypatch.setattr("sluice.contrib.postgres.store.DROP_SECONDS", 30)
    yield server
    server.ask("ALTER ROLE sluice RESET ALL")


def gps(*ages: float, first: int = 1) -> list[Body]:
    """Positions that arrived so many seconds ago."""
    position = Gps(device="a", lat=1.0, lon=2.0)
    return [body_with(n, int((time.time() - age) * 1e6), b"", position) for n, age in enumerate(ages, first)]


def parts(pg: Postgres) -> list[partitions.Partition]:
    with contextlib.closing(open_connection(pg.url)) as db, db.begin():
        return partitions.partitions(db, "gps")


def without_partitions(pg: Postgres) -> None:
    for part in parts(pg):
        pg.ask(f"DROP TABLE {part.name}")


def before(age: float) -> int:
    return int((time.time() - age) * 1e6)


def test_rows_are_stored_while_a_reader_keeps_partitions_from_being_made_or_dropped(pg: Postgres) -> None:
    with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
        store.persist(claim("gps", 1), gps(0))
    old = parts(pg)[0]
    for part in parts(pg)[1:]:
        pg.ask(f"DROP TABLE {part.name}")
    with pg.connect() as reader, reader.transaction():
        reader.execute("SELECT FROM gps")
        with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
            assert store.persist(claim("gps", 2, 2), gps(0, -60, first=2)) == (2, 0, False)
            assert not store.expire_stream("gps", before(600))
            assert parts(pg) == [old]
    with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
        store.expire_stream("gps", before(600))
        assert len(parts(pg)) > 2


def test_the_last_rows_are_those_of_the_newest_partitions_that_have_rows(pg: Postgres) -> None:
    with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
        store.persist(claim("gps", 4), gps(DAY, 0, 0, 0))
        columns, rows = find_last_rows(store, "gps", 3, 40)
        assert [row[columns.index("seq")] for row in rows] == ["4", "3", "2"]
        assert [row[columns.index("seq")] for row in find_last_rows(store, "gps", 9, 40)[1]][-1] == "1"


def test_the_last_rows_are_found_without_a_look_at_the_others(pg: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []
    with contextlib.closing(open_store(pg.url, STREAMS)) as store:
        store.persist(claim("gps", 1), gps(0))
        pg.ask(
            "INSERT INTO gps (received_at, time, device, lat, lon, batch, seq) "
            "SELECT now(), now(), repeat('x', 500), 1, 2, 1, n FROM generate_series(2, 20000) AS n"
        )
        run = store.run_sql

        def noted(db: Any, sql: str, values: Any = ()) -> Any:
            asked.append((sql, values))
            return run(db, sql, values)

        monkeypatch.setattr(store, "run_sql", noted)
        assert find_last_rows(store, "gps", 2, 9)[1][0][-2] == "20000"
        ((sql, values),) = [each for each in asked if " ctid " in each[0]]
        with store.transaction() as db:
            plan = "\n".join(row[0] for row in run(db, f"EXPLAIN (ANALYZE, TIMING off) {sql}", values))
        (seen,) = re.findall(r"Tid (?:Range )?Scan on gps .*actual rows=(\d+)", plan)
        assert int(seen) < 1000, plan


def test_a_reader_delays_the_end_of_a_partition_and_no_row(pg: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.contrib.postgres.store.DROP_SECONDS", 0)
    with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
        pg.ask("CREATE TABLE early PARTITION OF gps FOR VALUES FROM (MINVALUE) TO ('2020-01-01')")
        store.persist(claim("gps", 1), gps(time.time()))
        with pg.connect() as reader, reader.transaction():
            reader.execute("SELECT FROM gps")
            assert not store.expire_stream("gps", before(600))  # a thread tries
            assert store.persist(claim("gps", 1, 2), gps(0, first=2)) == (1, 0, False)
            assert not store.expire_stream("gps", before(600))
            assert store.read_ledger("gps").deleted == 0
        monkeypatch.setattr("sluice.contrib.postgres.store.DROP_SECONDS", 30)
        while store.expire_stream("gps", before(600)):
            pass
        assert store.read_ledger("gps").deleted == 1


def test_a_late_row_of_a_partition_that_is_dropped_is_counted(pg: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    dropping = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'DROP TABLE%' AND pid <> pg_backend_pid()"
    with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
        pg.ask("CREATE TABLE early PARTITION OF gps FOR VALUES FROM (MINVALUE) TO ('2020-01-01')")
        store.persist(claim("gps", 1), gps(time.time()))
        with pg.connect() as other, other.transaction(), monkeypatch.context() as patched:
            other.execute("INSERT INTO gps (received_at, time, batch, seq) VALUES ('2019-01-01', now(), 0, 0)")
            patched.setattr("sluice.contrib.postgres.store.DROP_SECONDS", 0)
            with contextlib.suppress(Unavailable):  # it gives up soon, and does not wait for this row
                store.expire_stream("gps", before(600))
            poll(lambda: store.dropping is None or store.dropping.done() or pg.ask(dropping))  # type: ignore[attr-defined]
        patiently(partial(store.expire_stream, "gps", before(600)))
        assert (pg.ask("SELECT count(*) FROM gps"), store.read_ledger("gps").deleted) == ([(0,)], 2)


@pytest.mark.parametrize("ahead", [0, 20 * 365], ids=["right", "ahead"])
def test_a_partition_is_dropped_when_its_last_row_is_old(pg: Postgres, ahead: int) -> None:
    """Its first row is old earlier, by up to an eighth of the age. ahead: days that the worker's clock is."""
    with contextlib.closing(open_store(pg.url, STREAMS, keep=Keep(10 * DAY, {}))) as store:
        for name, start, end in ("old", 20.0, 11.0), ("turning", 11.0, 9.5):
            begin, behind = (
                f"timestamptz 'epoch' + interval '{int(time.time() - days * DAY)} seconds'" for days in (start, end)
            )
            pg.ask(f"CREATE TABLE {name} PARTITION OF gps FOR VALUES FROM ({begin}) TO ({behind})")
        store.persist(claim("gps", 3), gps(12 * DAY, 10.5 * DAY, 9.7 * DAY))
        while store.expire_stream("gps", before((10 - ahead) * DAY)):
            pass
        assert [part.name for part in parts(pg)][0] == "turning"
        assert (store.read_ledger("gps").deleted, pg.ask("SELECT seq FROM gps ORDER BY 1")) == (1, [(2,), (3,)])


def test_a_clock_ahead_of_the_server_drops_no_partition_of_its_present(pg: Postgres) -> None:
    with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
        store.persist(claim("gps", 2), gps(0, time.time()))
        there = parts(pg)
        turns = 0
        while store.expire_stream("gps", before(-20 * 365 * 86_400)):
            turns += 1
            assert turns < 20  # not for ever
        assert (store.read_ledger("gps").deleted, parts(pg)) == (1, there)


def test_names_are_of_utc_whatever_the_time_zone_of_the_server(pg: Postgres) -> None:
    pg.ask("ALTER ROLE sluice SET TimeZone = 'America/New_York'")
    pg.ask("ALTER ROLE sluice SET DateStyle = 'German'")
    open_store(pg.url, STREAMS, keep=KEEP).close()
    assert [part.name for part in parts(pg)] == [f'"gps${part.start:%Y%m%dt%H%M%S}"' for part in parts(pg)]
    assert parts(pg)[0].start <= datetime.now(timezone.utc) < parts(pg)[1].end


def test_partitions_far_ahead_leave_no_gap(pg: Postgres) -> None:
    open_store(pg.url, STREAMS, keep=KEEP).close()
    without_partitions(pg)
    pg.ask("CREATE TABLE ahead PARTITION OF gps FOR VALUES FROM ('2090-01-01') TO ('2090-02-01')")
    pg.ask("CREATE TABLE early PARTITION OF gps FOR VALUES FROM (MINVALUE) TO ('2020-01-01')")
    with contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store:
        store.expire_stream("gps", before(10 * 365 * 86_400))
        store.persist(claim("gps", 2), gps(0, 60))
    assert pg.ask('SELECT count(*) FROM "gps$other"') == [(1,)]
    assert {"ahead", "early"} < {part.name for part in parts(pg)}


def test_a_stream_may_have_any_name_beside_a_stream_with_partitions_and_a_tally(pg: Postgres) -> None:
    long = "x" * 62
    names = "gps", "gps_other", "gps_batch_idx", "votes", "votes_by_poll", long + "a", long + "b"
    streams = {name: stream(name, type(name, (Vote,), {})) for name in names}
    with contextlib.closing(open_row_source(pg.url, streams)) as rows:
        with contextlib.closing(open_store(pg.url, streams, keep=KEEP)) as store:
            for name in names:
                vote = streams[name].record(poll="p", choice="c")  # type: ignore[call-arg]
                entries = [body_with(n, int(arrived), b"", vote) for n, arrived in ((1, 0), (2, time.time() * 1e6))]
                assert store.persist(claim(name, 2), entries) == (2, 0, False)
                rows.make_countable(name, "poll", "choice")
            while store.expire_stream("gps", before(600)):
                pass
            deleted = {name: store.read_ledger(name).deleted for name in names}
        assert deleted == {name: int(name == "gps") for name in names}
        assert [rows.count(name, "poll", "choice", "p") for name in names[:2]] == [({"c": 1}, 1), ({"c": 2}, 2)]
    indexed = "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%% ON ONLY %% btree (hashtext%%'"
    assert pg.ask(indexed.replace("%%", "%")) == [(len(names),)]


def test_rows_are_stored_while_a_tally_gets_its_index_and_a_build_that_was_ended_goes_on(pg: Postgres) -> None:
    building = (
        "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%' AND query LIKE '%hashtext%' "
        "AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
    )
    invalid = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"

    def build(rows: Any) -> None:
        with contextlib.suppress(Unavailable):
            rows.make_countable("votes", "poll", "choice")

    with (
        contextlib.closing(open_store(pg.url, STREAMS, keep=KEEP)) as store,
        contextlib.closing(open_row_source(pg.url, STREAMS)) as rows,
        contextlib.closing(open_connection(pg.url)) as other,
    ):
        vote = Vote(poll="p", choice="c")
        assert store.persist(claim("votes", 1), [body_with(1, int(time.time() * 1e6), b"", vote)])[0] == 1
        with contextlib.suppress(RuntimeError), other.begin():
            other.execute('LOCK TABLE "votes$other" IN ROW EXCLUSIVE MODE')  # a build waits for the end of this
            thread = threading.Thread(target=build, args=(rows,))
            thread.start()
            ((pid,),) = poll(lambda: pg.ask(building), what="the build waits")
            entry = body_with(2, int(time.time() * 1e6), b"", vote)
            assert store.persist(claim("votes", 1, first=2), [entry])[0] == 1
            pg.ask(f"SELECT pg_terminate_backend({pid})")
            thread.join(30)
            raise RuntimeError
        assert pg.ask(invalid)
        rows.make_countable("votes", "poll", "choice")
        assert pg.ask(invalid) == []
        attached = "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('{}')"
        assert pg.ask(attached.format('"votes$by_poll"')) == pg.ask(attached.format("votes"))


def test_a_table_of_the_same_name_in_another_schema_is_left_alone(pg: Postgres) -> None:
    pg.ask("CREATE SCHEMA other; CREATE TABLE other.gps (mine text); CREATE TABLE other.batches (mine text)")
    pg.ask("ALTER ROLE sluice SET search_path = public, other")
    with contextlib.closing(open_store(pg.url, STREAMS)) as store:
        assert store.persist(claim("gps", 1), gps(0)) == (1, 0, False)
    assert pg.ask("SELECT count(*) FROM public.gps, public.batches") == [(1,)]
    columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'other' ORDER BY 1"
    assert pg.ask(columns) == [("batches", "mine"), ("gps", "mine")]


def test_a_partitioned_table_gets_the_column_of_the_sender(pg: Postgres) -> None:
    store = open_store(pg.url, STREAMS, keep=KEEP)
    store.persist(claim("gps", 1), gps(MINUTE_AGO))
    store.close()
    pg.ask("ALTER TABLE gps DROP COLUMN sender")
    store = open_store(pg.url, STREAMS, keep=KEEP)
    store.persist(claim("gps", 1, first=2), decoded(STREAMS["gps"], [NAMED], 2))
    store.close()
    assert pg.ask("SELECT sender FROM gps ORDER BY seq") == [("",), ("acme",)]
