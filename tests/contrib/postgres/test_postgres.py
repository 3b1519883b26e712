"""The PostgreSQL store against a real server: the tests of every store, and those of PostgreSQL alone."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest

from contrib_support.outbox_contract import OutboxTests
from proving import harness
from proving.harness import PATIENCE
from proving.postgres import Postgres, postgres_server
from sluice import settings
from sluice.contrib.postgres import partitions
from sluice.contrib.postgres import store as postgres
from sluice.contrib.postgres.session import PINS, SERVER_ERRORS, is_server_error
from sluice.contrib.views.rows.registry import open_row_source
from sluice.parsers import Keep
from sluice.settings import SettingError
from sluice.spool.claim import Claim
from sluice.spool.errors import Lost
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.store.questions import DeadLetter, count_reasons, find_letters
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import Store
from sluice.store.tables import TABLES
from sluice.store.types import Body, Unavailable
from sluice.streams import registry
from sluice.streams.built_in import STREAMS
from sluice.streams.custom import stream
from sluice.streams.record import Decoded, Gps, Record, Reject, Vote
from sluice.streams.registry import Stream
from support.store_contract import StoreTests, Watched, body_with, patiently, votes, watched
from support.worker_contract import WorkerTests

pytestmark = pytest.mark.contract

MOST = registry.body_limits(settings.load_settings({}))
SECRET = "s3cr3t/with@all:of?it%#"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def pg(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    """The server, with an empty database. Workers wait for the end of what a thread does."""
    monkeypatch.setattr("sluice.contrib.postgres.store.DROP_SECONDS", 30)
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server


def claim(stream: str = "gps", count: int = 1, name: str = "run:1:1") -> Claim:
    return Claim(stream, name, 1, count, 100, [(1, 0)])


def gps(count: int, **bad: Gps) -> list[Body]:
    """That many positions; `b3=…` replaces the fourth."""
    records = (bad.get(f"b{n}", Gps(time=10**18, device=f"d{n}", lat=n / 10, lon=1.5)) for n in range(count))
    return [body_with(n + 1, 1_700_000_000_000_000 + n, b"body %d" % n, record) for n, record in enumerate(records)]


def decoded(stream: str, *items: bytes) -> list[Body]:
    return [
        Body.from_decoded(seq, 1_700_000_000_000_000, item, STREAMS[stream].decode(item, MOST))
        for seq, item in enumerate(items, 1)
    ]


def connect(pg: Postgres, **streams: Stream) -> Store:
    return open_store(pg.url, streams or STREAMS)


class PostgresStore:
    """The server as a Backend of `store_contract`."""

    def __init__(self, pg: Postgres) -> None:
        self.pg = pg
        self.url = pg.url

    def ask(self, sql: str) -> list[tuple]:
        return [tuple(map(simple, row)) for row in self.pg.ask(sql)]

    def set_layout(self, version: int) -> None:
        self.pg.ask(f"UPDATE batches_layout SET version = {version}")

    def clients(self) -> set[int]:
        others = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return {pid for (pid,) in self.pg.ask(others)}

    def refuse(self, table: str, column: str, value: str) -> None:
        self.pg.ask(f"ALTER TABLE {table} ADD CHECK ({column} <> '{value}')")

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with self.pg.connect() as db, db.transaction():
            db.execute("LOCK TABLE batches")
            yield


def simple(value: Any) -> Any:
    """A value as SQLite stores it."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    return int(value) if isinstance(value, bool) else value


class TestPostgres(StoreTests):
    @pytest.fixture
    def backend(self, pg: Postgres, monkeypatch: pytest.MonkeyPatch) -> PostgresStore:
        monkeypatch.setattr("sluice.contrib.postgres.session.PINS", PINS.replace("'5s'", "'200ms'"))
        return PostgresStore(pg)

    def test_the_views_are_told_of_rows_from_dead_letters(self, backend: PostgresStore, store: Store) -> None:
        store.persist(*votes("", ""))
        first, second = find_letters(store)
        replay_letters(store, [first], lambda letter: Decoded((), [Reject(letter.body, "not today", True)]), False)
        assert backend.ask("SELECT stream, batch FROM view_changes") == []
        replay_letters(store, [second], lambda letter: Decoded([Vote(poll="p", choice="a")]), False)
        assert backend.ask("SELECT stream, batch FROM view_changes") == [("votes", second.batch)]

    def test_only_one_worker_folds_or_prunes_at_a_time(self, backend: PostgresStore, store: Any) -> None:
        other: Any = open_store(backend.url, STREAMS)
        with other.transaction() as db:
            assert db.execute(postgres.TRY).fetchone() == (True,)
            assert (store.fold_batches(), store.expire_stream("votes", 0)) == (False, False)
        other.close()


class TestPostgresOutbox(OutboxTests):
    @pytest.fixture
    def backend(self, pg: Postgres) -> PostgresStore:
        return PostgresStore(pg)


def test_a_value_that_the_driver_refuses_is_no_error_of_the_server():
    errors = psycopg.DataError("a value"), psycopg.OperationalError("the connection is lost")
    assert [is_server_error(error) for error in errors] == [False, True]


def test_a_store_makes_its_tables_unless_it_is_told_not_to(pg: Postgres):
    with pytest.raises(Unavailable):
        open_store(pg.url, STREAMS, make=False)
    with contextlib.closing(open_store(pg.url, STREAMS)) as made:
        assert made.persist(*votes("a")) == (1, 0, False)


def test_the_name_of_a_partition_fits_whatever_the_name_of_its_table():
    for table in "votes", "x" * 63, "\u00e9" * 31:
        assert len(partitions.derived_name(table, "20260101").encode()) <= 63
    names = {partitions.derived_name("x" * 62 + end, suffix) for end in "ab" for suffix in ("other", "20260101")}
    assert len(names) == 4 and not any(map(str.isidentifier, names))


# --- what is stored --------------------------------------------------------------------------------------------------


def test_a_metric_keeps_its_nanoseconds_its_digits_and_its_type(pg: Postgres):
    line = b'm,a=b f=0.1,i=9007199254740993i,u=18446744073709551615u,s="21.5",t=t,e=1e308,z=5e-324 1766600000123456789'
    outcome = connect(pg).persist(claim("metrics"), decoded("metrics", line))
    assert outcome == (7, 0, False)
    time = "(time AT TIME ZONE 'UTC')::text"
    rows = pg.ask(f"SELECT field, value::text, text, type, tags::text, {time}, nanoseconds FROM metrics")
    assert {row[4:] for row in rows} == {('{"a": "b"}', "2025-12-24 18:13:20.123456", 789)}
    values = {row[0]: row[1:4] for row in rows}
    assert float(values.pop("e")[0]) == 1e308 and float(values.pop("z")[0]) == 5e-324
    assert values == {
        "f": ("0.1", None, "float"),
        "i": ("9007199254740993", None, "integer"),
        "u": ("18446744073709551615", None, "unsigned"),
        "s": (None, "21.5", "string"),
        "t": ("1", None, "boolean"),
    }


def test_times_before_and_after_2000_and_1970_are_exact(pg: Postgres):
    times = [-(2**63), -1, 0, 946_684_799_999_999_999, 946_684_800_000_000_000, 2**63 - 1]
    lines = b"\n".join(b"m,n=%d f=1 %d" % (n, time) for n, time in enumerate(times))
    connect(pg).persist(claim("metrics"), decoded("metrics", lines))
    found = pg.ask("SELECT extract(epoch FROM time) * 1000000000 + nanoseconds FROM metrics ORDER BY tags->>'n'")
    assert [int(row[0]) for row in found] == times


def test_a_record_without_a_time_gets_the_time_of_arrival(pg: Postgres):
    connect(pg).persist(claim(), decoded("gps", b'{"device":"a","lat":1,"lon":2}'))
    assert pg.ask("SELECT received_at = time, received_at = to_timestamp(1700000000) FROM gps") == [(True, True)]


def test_a_metric_without_a_time_gets_the_time_of_arrival_and_no_nanoseconds(pg: Postgres):
    connect(pg).persist(claim("metrics"), decoded("metrics", b'{"name":"room","value":1}'))
    assert pg.ask("SELECT received_at = time, nanoseconds FROM metrics") == [(True, 0)]


class Order(Record):
    sku: str
    count: int = 1
    paid: bool = False
    price: float | None = None
    note: int | str | None = None
    lines: list[dict[str, int]] = []


def test_a_user_defined_stream_has_one_column_per_field(pg: Postgres):
    orders = stream("order", Order)  # a word of SQL, too
    body = b'{"sku":"a","price":2,"note":"7","lines":[{"x":1}]}'
    bodies = [Body.from_decoded(1, 0, body, orders.decode(body, MOST))]
    assert connect(pg, order=orders).persist(claim("order"), bodies).records == 1
    assert pg.ask('SELECT sku, count, paid, price, note, lines, batch, seq FROM "order"') == [
        ("a", 1, False, 2.0, "7", [{"x": 1}], 1, 1)
    ]


def test_a_stream_of_ones_own_may_have_nanoseconds(pg: Postgres):
    class Tick(Record, kw_only=True):
        price: float

    ticks = stream("ticks", Tick, precision="ns")
    bodies = [Body.from_decoded(1, 0, b"", ticks.decode(b'{"price":1,"time":1767268800123456789}', MOST))]
    assert connect(pg, ticks=ticks).persist(claim("ticks"), bodies).records == 1
    assert pg.ask("SELECT extract(microseconds FROM time)::int, nanoseconds, price FROM ticks") == [(123456, 789, 1.0)]


def test_a_new_field_is_a_new_column(pg: Postgres):
    class Old(Record, kw_only=True):
        sku: str

    connect(pg, shop=stream("shop", Old)).persist(claim("shop"), [body_with(1, 0, b"", Old(sku="old"))])
    new = stream("shop", Order)
    made = new.record(sku="new", count=3)  # type: ignore[call-arg]
    connect(pg, shop=new).persist(claim("shop", name="2"), [body_with(1, 0, b"", made)])
    assert pg.ask("SELECT sku, count, lines FROM shop ORDER BY batch") == [("old", None, None), ("new", 3, [])]


def test_many_workers_may_create_the_tables_at_once(pg: Postgres):
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: patiently(lambda: connect(pg)), range(8)))
    assert len(opened) == 8
    made = {row[0] for row in pg.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    assert made == {*TABLES, "batches_layout", "view_changes", *STREAMS}


def test_a_role_that_cannot_create_tables_can_use_existing_ones(pg: Postgres):
    connect(pg).close()
    pg.ask(
        "DROP ROLE IF EXISTS writer; CREATE ROLE writer LOGIN; REVOKE CREATE ON SCHEMA public FROM public;"
        "GRANT USAGE ON SCHEMA public TO writer;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO writer"
    )
    try:
        store = open_store(pg.url.replace("//sluice@", "//writer@"), STREAMS)
        assert store.persist(claim(count=3), gps(3)).records == 3
        store.close()
    finally:
        pg.ask("DROP OWNED BY writer; DROP ROLE writer")


GRANT = (
    "DROP ROLE IF EXISTS writer; CREATE ROLE writer LOGIN; GRANT USAGE ON SCHEMA public TO writer;"
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO writer"
)


def test_batches_are_folded_while_another_role_always_stores_some(pg: Postgres, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 1)
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 2)
    connect(pg).close()
    pg.ask(GRANT)
    store = open_store(pg.url.replace("//sluice@", "//writer@"), STREAMS)
    with pg.connect() as one, pg.connect() as two:
        one.execute("BEGIN; UPDATE batches SET bodies = 1")
        for n in range(9):
            store.persist(claim(name=f"{n}:1:1"), gps(1))
        assert not store.fold_batches()
        two.execute("BEGIN; UPDATE batches SET bodies = 1 WHERE false")
        assert not store.fold_batches()
        one.execute("COMMIT")
        assert store.fold_batches() and store.fold_batches()
    assert pg.ask("SELECT count(*) FROM batches") == [(5,)]
    store.close()
    pg.ask("DROP OWNED BY writer; DROP ROLE writer")


@pytest.mark.parametrize("buried", [False, True], ids=["stored", "buried"])
def test_the_follower_goes_on_when_the_batch_of_its_position_is_folded_and_its_rows_are_deleted(
    pg: Postgres, monkeypatch: pytest.MonkeyPatch, buried: bool
):
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 1)
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 1)
    later = int((time.time() + 9) * 1e6)
    with (
        contextlib.closing(connect(pg)) as store,
        contextlib.closing(open_row_source(pg.url, STREAMS)) as rows,
    ):

        def read(position: str) -> tuple[str, int]:
            many, more = 0, True
            rows.news()
            with rows.snapshot():
                while more:
                    pieces, position, more = rows.changes("gps", position, 100)
                    many += sum(map(len, pieces))
            return position, many

        rejects = [body_with(1, 0, b"x", Reject(b"x", "no", True))]
        store.persist(claim(), rejects if buried else gps(1))
        position, many = read(rows.start())
        assert many == 1 - buried
        for n in range(2, 5):
            entry = body_with(n, 1_700_000_000_000_009, b"", Gps(device="a", lat=1.0, lon=2.0))
            store.persist(claim(name=f"run:{n}:1")._replace(first=n), [entry])
        store.expire_letters(later)
        harness.poll(store.fold_batches)
        while store.fold_batches():
            pass
        store.expire_stream("gps", 1_700_000_000_000_001)
        assert pg.ask("SELECT count(*) FROM batches") == [(1,)]
        assert read(position)[1] == 3


def test_a_column_of_another_type_stops_only_its_stream_with_an_error_that_names_it(pg: Postgres):
    pg.ask("CREATE TABLE gps (received_at timestamptz, lat real)")
    store = connect(pg)
    with pytest.raises(Unavailable, match="column lat of table gps has the type real, expected double precision"):
        store.persist(claim(count=3), gps(3))
    assert store.persist(claim("votes"), decoded("votes", b'{"poll":"a","choice":"b"}')).records == 1
    assert pg.ask("SELECT count(*) FROM dead_letters") == [(0,)]


def own(kind: Any) -> dict[str, Stream]:
    """A stream with one field of a type."""
    record: Any = msgspec.defstruct("Own", [("a", kind)], bases=(Record,), kw_only=True)
    return {"own": stream("own", record)}


@pytest.mark.parametrize(
    "kind, value, to, said",
    [
        (float, 1.5, "bigint", "bigint, expected double precision"),
        (int, 5, "double precision", "double precision, expected bigint"),
        (int, 5, "timestamptz USING to_timestamp(a)", "timestamp with time zone, expected bigint"),
        (str, "x", "json USING to_json(a)", "json, expected text"),
        (int, 5, "text", "text, expected bigint"),
        (float, 1.5, "real", "real, expected double precision"),
    ],
)
def test_a_column_whose_type_changes_between_two_transactions_gets_nothing(
    kind: Any, value: Any, to: str, said: str, pg: Postgres
):
    streams = own(kind)
    record: Any = streams["own"].record
    store = connect(pg, **streams)

    def put(n: int) -> None:
        body = Claim("own", f"run:{n}:1", n, 1, 100, [(n, 0)])
        assert store.persist(body, [body_with(n, 1_700_000_000_000_000, b"", record(a=value))]).records == 1

    put(1)
    pg.ask(f"ALTER TABLE own ALTER a TYPE {to}")
    for _ in range(2):
        with pytest.raises(Unavailable, match=re.escape(f"column a of table own has the type {said}")):
            put(2)
    assert pg.ask("SELECT count(*) FROM own") == [(1,)] and pg.ask("SELECT count(*) FROM dead_letters") == [(0,)]
    pg.ask("ALTER TABLE own DROP a")
    put(2)
    assert pg.ask("SELECT a FROM own ORDER BY seq") == [(None,), (value,)]


@pytest.mark.parametrize("column, kind", [("value", "numeric(20,3)"), ("time", "timestamptz(0)")])
def test_a_column_that_would_round_gets_nothing(column: str, kind: str, pg: Postgres):
    store = connect(pg)
    pg.ask(f"ALTER TABLE metrics ALTER {column} TYPE {kind}")
    with pytest.raises(Unavailable, match=f"column {column} of table metrics has the type"):
        store.persist(claim("metrics"), decoded("metrics", b"m a=1.23456 1700000000123456789"))


def test_a_letter_is_not_written_into_a_column_of_another_type(pg: Postgres):
    store = connect(pg)
    pg.ask("ALTER TABLE dead_letters ALTER received_at DROP DEFAULT, ALTER received_at TYPE bigint USING 0")
    with pytest.raises(Unavailable, match="column received_at of table dead_letters has the type bigint"):
        store.persist(claim("votes"), decoded("votes", b"{"))


def test_a_column_stays_as_it_is_until_the_transaction_has_ended(pg: Postgres):
    store = connect(pg)
    store.persist(claim(count=1), gps(1))

    def alter() -> None:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            pg.ask("SET lock_timeout = '50ms'; ALTER TABLE gps ALTER lat TYPE bigint")

    assert store.persist(claim(count=1, name="2"), watched(gps(1), alter)).records == 1


def test_another_schema_after_a_lost_connection_gets_nothing(pg: Postgres):
    role = pg.ask("SELECT quote_ident(current_user)")[0][0]
    store = connect(pg)
    store.persist(claim(count=1), gps(1))
    pg.ask(f"CREATE SCHEMA {role}")
    pg.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
    )
    with pytest.raises(Unavailable):
        store.persist(claim(count=1, name="2"), gps(1))
    try:
        for _ in range(2):
            with pytest.raises(Unavailable, match="is not the database that was used before"):
                store.persist(claim(count=1, name="2"), gps(1))
        assert pg.ask(f"SELECT count(*) FROM pg_class WHERE relnamespace = '{role}'::regnamespace") == [(0,)]
    finally:
        pg.ask(f"DROP SCHEMA {role}")
    assert store.persist(claim(count=1, name="2"), gps(1)).records == 1


def test_a_worker_uses_what_was_restored_from_a_copy_of_another_database(pg: Postgres):
    store = connect(pg)
    store.persist(claim(count=1), gps(1))
    pg.ask("UPDATE batches_identity SET id = 'of the copy'")
    store.persist(claim(count=1, name="2"), gps(1))
    store.close()
    assert store.persist(claim(count=1, name="3"), gps(1)).records == 1


# --- partitions ---


def parts(pg: Postgres, stream: str = "gps") -> dict[str, int]:
    """The partitions with their rows."""
    found = pg.ask(f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{stream}'::regclass")
    return {name: pg.ask(f"SELECT count(*) FROM {name}")[0][0] for (name,) in found}


def arriving(*ages: float) -> list[Body]:
    """Positions that arrived so many seconds ago."""
    now = time.time()
    position = Gps(time=None, device="a", lat=1.0, lon=2.0)
    return [body_with(seq, int((now - age) * 1e6), b"", position) for seq, age in enumerate(ages, 1)]


def test_a_table_whose_rows_have_an_age_is_partitioned_and_old_partitions_are_dropped(pg: Postgres):
    keep = Keep(None, {"gps": 600})
    store = open_store(pg.url, STREAMS, keep=keep)
    assert len(parts(pg)) == 5 and not parts(pg, "votes")  # of a minute each: now, three ahead, and other times
    store.persist(claim(count=4), arriving(0, 0, 0, 7 * 86_400))
    assert sorted(parts(pg).values()) == [0, 0, 0, 1, 3]
    assert parts(pg)['"gps$other"'] == 1
    while store.expire_stream("gps", int((time.time() - 600) * 1e6)):
        pass
    assert store.read_ledger("gps").deleted == 1
    pg.ask("CREATE TABLE early PARTITION OF gps FOR VALUES FROM (MINVALUE) TO ('2020-01-01')")
    store.persist(claim(count=3, name="early:1:1"), arriving(*[time.time()] * 3))
    assert store.expire_stream("gps", int((time.time() - 600) * 1e6))
    assert store.read_ledger("gps").deleted == 4
    assert sorted(parts(pg).values()) == [0, 0, 0, 0, 3]
    # with another age the next partitions begin where the last one ends, and existing tables stay as they are
    store.close()
    longer = open_store(pg.url, STREAMS, keep=Keep(86_400, {}))
    assert longer.persist(claim(count=2, name="other:1:1"), arriving(0, 0)).records == 2
    assert pg.ask("SELECT relkind FROM pg_class WHERE oid = 'votes'::regclass") == [("r",)]
    longer.close()


DAY = 86_400


@pytest.mark.parametrize(
    ("age", "period"),
    [
        (479, 60),
        (2399, 60),
        (2400, 300),
        (7199, 300),
        (7200, 900),
        (2 * DAY, 21_600),
        (56 * DAY, 7 * DAY),
        (240 * DAY, 30 * DAY),
    ],
)
def test_a_partition_is_at_most_an_eighth_of_the_age(pg: Postgres, age: int, period: int):
    with contextlib.closing(open_store(pg.url, STREAMS, keep=Keep(age, {}))) as store:
        for _ in range(2):
            with psycopg.connect(pg.url) as db:
                ends = [one.end for one in partitions.partitions(db, "gps")]
            assert {(end - start).total_seconds() for start, end in zip(ends, ends[1:])} == {period}
            for name in set(parts(pg)) - {'"gps$other"'}:
                pg.ask(f"DROP TABLE {name}")
            store.expire_stream("gps", 0)  # it makes them again


def test_a_partition_that_would_have_rows_of_the_default_one_is_left_out(pg: Postgres):
    keep = Keep(600, {})
    open_store(pg.url, STREAMS, keep=keep).close()
    for name in set(parts(pg)) - {'"gps$other"'}:
        pg.ask(f"DROP TABLE {name}")
    pg.ask("INSERT INTO gps (received_at, time, batch, seq) VALUES (now(), now(), 0, 0)")
    store = open_store(pg.url, STREAMS, keep=keep)
    store.expire_stream("gps", 0)
    assert 2 < len(parts(pg)) < 5
    assert store.persist(claim(), arriving(0)).records == 1
    pg.ask("UPDATE \"gps$other\" SET received_at = now() - interval '1 hour'")
    while store.expire_stream("gps", int((time.time() - 600) * 1e6)):
        pass
    assert parts(pg)['"gps$other"'] == 0
    store.close()


def test_the_views_are_read_from_a_partitioned_table(pg: Postgres, caplog: pytest.LogCaptureFixture):
    store = open_store(pg.url, STREAMS, keep=Keep(600, {}))
    store.persist(claim(count=2), arriving(0, 7 * 86_400))
    with contextlib.closing(open_row_source(pg.url, STREAMS)) as own:
        own.index(["gps"])  # type: ignore[attr-defined]
        own.news()
        with own.snapshot():
            assert sum(map(len, own.changes("gps", own.start(), 100).pieces)) == 2
    assert not caplog.records
    store.close()


def test_a_table_without_partitions_is_searched_for_old_rows_a_few_pages_at_a_time(
    pg: Postgres, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sluice.contrib.postgres.store.SWEEP_PAGES", 1)
    store = connect(pg)
    assert not store.expire_stream("gps", int(time.time() * 1e6))  # it is empty
    store.persist(claim(count=1000), arriving(*[100, 0] * 500))

    def live() -> bool:
        """The next process goes on where the last one was."""
        with contextlib.closing(connect(pg)) as other:
            return bool(other.expire_stream("gps", int((time.time() - 50) * 1e6)))

    steps = 1
    while live():
        assert store.read_ledger("gps").deleted < 500
        steps += 1
    assert steps == pg.ask("SELECT pg_relation_size('gps') / 8192")[0][0] > 3
    assert store.read_ledger("gps").deleted == 500
    store.close()


# --- rejected values -------------------------------------------------------------------------------------------------

RAISE = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF new.device = 'bad' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '%s'; END IF; RETURN new; END $$;
CREATE TRIGGER refuse %s ON gps FOR EACH ROW EXECUTE FUNCTION refuse()"""
FIRST = "INSERT INTO gps (received_at, time, device, batch, seq) VALUES (now(), now(), 'bad', 0, 0)"
BAD = Gps(time=0, device="bad", lat=-1.0, lon=2.0)
POISON = {
    "a NUL": ("", Gps(device="a\0", lat=1.0, lon=2.0), "invalid byte sequence"),
    "a surrogate": ("", Gps(device="\ud800", lat=1.0, lon=2.0), "surrogates not allowed"),
    "a text for a number": ("", Gps(device="a", lat="north", lon=2.0), "must be real number"),  # type: ignore[arg-type]
    "a time out of range": ("", Gps(time=2**90, device="a", lat=1.0, lon=2.0), "out of range|too large|too big"),
    "a check": ("ALTER TABLE gps ADD CHECK (lat >= 0)", BAD, "violates check constraint"),
    "a key": (f"ALTER TABLE gps ADD UNIQUE (device); {FIRST}", BAD, "duplicate key"),
    "a deferred key": (
        f"ALTER TABLE gps ADD UNIQUE (device) DEFERRABLE INITIALLY DEFERRED; {FIRST}",
        *(BAD, "duplicate key"),
    ),
    "a trigger": (RAISE % ("P0001", "BEFORE INSERT"), BAD, "not this one"),
    "a trigger behind": (RAISE % ("P0001", "AFTER INSERT"), BAD, "not this one"),
    "a trigger with its own error code": (RAISE % ("GPS01", "BEFORE INSERT"), BAD, "not this one"),
    "a row too large for its index": (
        "CREATE INDEX ON gps (device)",
        Gps(device="".join(random.Random(1).choices("abcdefghijklmnop", k=20_000)), lat=1.0, lon=2.0),
        "index row",
    ),
}


@pytest.mark.parametrize("name", POISON)
def test_a_value_that_the_database_rejects_is_buried_and_the_rest_is_stored(pg: Postgres, name: str):
    statement, bad, reason = POISON[name]
    store = connect(pg)
    pg.ask(statement)
    assert store.persist(claim(count=100), gps(100, b3=bad, b98=bad)) == (98, 2, False)
    assert pg.ask("SELECT count(*), count(DISTINCT seq) FROM gps WHERE batch > 0") == [(98, 98)]
    letters = find_letters(store, "true", 0, 1 << 62, 10, False)
    assert [(letter.seq, letter.body, letter.whole) for letter in letters] == [
        (4, b"body 3", True),
        (99, b"body 98", True),
    ]
    assert all(letter.reason.startswith("rejected by the database: ") for letter in letters)
    assert all(re.search(reason, letter.reason) for letter in letters)
    assert pg.ask("SELECT bodies, records FROM batches") == [(100, 98)]


def test_without_the_c_part_of_psycopg_the_same_values_are_buried(pg: Postgres):
    program = """
import sys
import psycopg
sys.path[:0] = sys.argv[2:]
from contrib.postgres.test_postgres import Gps, claim, connect, gps
from sluice.streams.built_in import STREAMS
from sluice.store.registry import open_store
assert psycopg.pq.__impl__ == "python"
time, type, text = dict(time=2**90, device="a", lat=1), dict(device="a", lat="x"), dict(device="\\ud800", lat=1)
bad = {f"b{n}": Gps(lon=2, **fields) for n, fields in ((1, time), (3, type), (4, text))}
print(open_store(sys.argv[1], STREAMS).persist(claim(count=6), gps(6, **bad)))
"""
    command = [
        sys.executable,
        "-c",
        program,
        pg.url,
        *(str(harness.ROOT / at) for at in (".", "tests", "tests/contrib")),
    ]
    env = os.environ | {"PSYCOPG_IMPL": "python"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "Outcome(records=3, letters=3, again=False)\n", done.stderr


def test_a_rejected_record_that_is_no_json_is_buried_as_it_is_shown(pg: Postgres):
    good, bad = Gps(device="a", lat=1.0, lon=2.0), Gps(device="\ud800", lat=1.0, lon=2.0)
    with contextlib.closing(connect(pg)) as store:
        assert store.persist(claim(), [body_with(1, 0, b"both", good, bad)]) == (1, 1, False)
        (letter,) = find_letters(store, "true", 0, 9, 1, False)
    assert letter.body.startswith(b"Gps(time=None, device='\\ud800', lat=1.0") and not letter.whole


def test_a_text_that_does_not_fit_into_its_column_is_buried(pg: Postgres):
    store = connect(pg)
    pg.ask("ALTER TABLE metrics ALTER name TYPE varchar(3)")
    bodies = b'{"name":"a","value":1}', b'{"name":"long","value":1}'
    assert store.persist(claim("metrics", len(bodies)), decoded("metrics", *bodies)) == (1, 1, False)
    reason = "rejected by the database: value too long for type character varying(3)"
    assert count_reasons(store, "true") == [("metrics", reason, 1)]


def test_a_reason_has_at_most_200_characters(pg: Postgres):
    store = connect(pg)
    pg.ask(RAISE.replace("not this one", "n" * 300) % ("P0001", "BEFORE INSERT"))
    store.persist(claim(), gps(1, b0=BAD))
    assert find_letters(store, "true", 0, 9, 1, False)[0].reason == "rejected by the database: ".ljust(200, "n")


def test_a_reason_never_quotes_a_row(pg: Postgres):
    store = connect(pg)
    pg.ask("ALTER TABLE gps ADD CHECK (device <> 'hush-hush')")
    store.persist(claim(), gps(1, b0=Gps(device="hush-hush", lat=1.0, lon=2.0)))
    assert "hush" not in find_letters(store, "true", 0, 9, 1, False)[0].reason


def test_many_dead_letters_are_buried_beside_their_rows(pg: Postgres):
    reject = Reject(b"x" * 300, "a reason with a \0 and a \ud800", True)
    bodies = [
        body_with(seq, 0, b"x" * 300, reject if seq % 2 else Gps(device="a", lat=1.0, lon=2.0)) for seq in range(1, 101)
    ]
    store = connect(pg)
    assert store.persist(claim(count=100), bodies) == (50, 50, False)
    assert [row[0] for row in pg.ask("SELECT seq FROM dead_letters ORDER BY id")] == list(range(1, 101, 2))
    assert pg.ask("SELECT DISTINCT reason FROM dead_letters") == [("a reason with a \\0 and a \\ud800",)]
    assert pg.ask("SELECT count(*) FROM gps") == [(50,)]


# --- the same claim twice --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_one_fails", [False, True])
def test_the_second_of_two_workers_with_one_claim_waits_for_the_first(pg: Postgres, first_one_fails: bool):
    first, second = connect(pg), connect(pg)

    def waiting() -> bool:
        return bool(pg.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    begun = threading.Event()

    def wait() -> None:
        begun.set()
        harness.poll(waiting, 60, "the second waits for the first")
        if first_one_fails:
            raise Lost("gone")

    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(first.persist, claim(count=10), watched(gps(10), wait))
        assert begun.wait(PATIENCE)
        outcome = patiently(lambda: second.persist(claim(count=10), gps(10)))
        if first_one_fails:
            assert isinstance(one.exception(60), Lost)
            assert outcome == (10, 0, False)
        else:
            assert one.result(60) == (10, 0, False)
            assert outcome == (0, 0, True)
    assert pg.ask("SELECT count(*), count(DISTINCT seq) FROM gps") == [(10, 10)]


def test_the_second_of_two_simultaneous_replays_skips_the_letters_of_the_first(pg: Postgres):
    body = b'{"device":"a","lat":1,"lon":2}'
    store, other = connect(pg), connect(pg)
    store.persist(claim(), [body_with(1, 0, body, Reject(body, "once", True))])
    letters = find_letters(store, "true", 0, 9, 9, False)

    def waiting() -> bool:
        return bool(pg.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    with ThreadPoolExecutor(1) as pool:
        later: list[Any] = []

        def replay_again() -> None:
            if not later:
                later.append(pool.submit(patiently, lambda: replay_letters(other, letters, decode, False)))
                harness.poll(waiting)

        def decode(letter: DeadLetter) -> Decoded:
            return Decoded(Watched([Gps(device="a", lat=1.0, lon=2.0)], replay_again))

        assert replay_letters(store, letters, decode, False)[:3] == (1, 1, 0)
        assert later[0].result(60)[:3] == (0, 0, 0)
    assert pg.ask("SELECT count(*) FROM gps") == [(1,)]
    assert pg.ask("SELECT records FROM batches") == [(1,)]


# --- the server is unavailable ---------------------------------------------------------------------------------------

AWAY = {
    "a full disk": RAISE % ("53100", "BEFORE INSERT"),
    "a deadlock": RAISE % ("40P01", "BEFORE INSERT"),
    "a serialization failure": RAISE % ("40001", "BEFORE INSERT"),
    "a time limit": RAISE % ("57014", "BEFORE INSERT"),
    "a trigger that is broken": RAISE.replace("RETURN ", "PERFORM nobody(); RETURN ") % ("P0001", "BEFORE INSERT"),
}


@pytest.mark.parametrize("name", AWAY)
def test_an_error_of_the_server_buries_nothing(pg: Postgres, name: str):
    store = connect(pg)
    pg.ask(AWAY[name])
    with pytest.raises(Unavailable):
        store.persist(claim(count=10), gps(10, b4=BAD))
    pg.ask("DROP TRIGGER refuse ON gps")
    assert pg.ask("SELECT (SELECT count(*) FROM batches), (SELECT count(*) FROM dead_letters)") == [(0, 0)]
    assert store.persist(claim(count=10), gps(10, b4=BAD)) == (10, 0, False)


def test_a_read_only_server_is_unavailable(pg: Postgres):
    store = connect(pg)
    pg.configure(default_transaction_read_only="on")
    harness.poll(lambda: pg.ask("SHOW default_transaction_read_only") == [("on",)])
    try:
        store.close()
        with pytest.raises(Unavailable, match="read-only"):
            store.persist(claim(count=10), gps(10))
    finally:
        with pg.connect() as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute("ALTER SYSTEM RESET default_transaction_read_only")
            db.execute("SELECT pg_reload_conf()")
        harness.poll(lambda: pg.ask("SHOW default_transaction_read_only") == [("off",)])
    assert store.persist(claim(count=10), gps(10)).records == 10


def test_the_error_classes_of_the_server_are_documented():
    listed = re.search(r"the classes (.*?)\.\n", (harness.ROOT / "docs/protocol/database.md").read_text())
    assert listed and set(re.findall(r"[0-9A-Z]{2,5}", listed[1])) == set(SERVER_ERRORS.pattern.split("|"))


def test_the_wait_for_a_locked_table_is_limited(pg: Postgres, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sluice.contrib.postgres.session.PINS", PINS.replace("'5s'", "'50ms'"))
    store = connect(pg)
    with pg.connect() as db, db.transaction():
        db.execute("LOCK TABLE gps")
        with pytest.raises(Unavailable, match="lock timeout"):
            store.persist(claim(count=10), gps(10))
    assert store.persist(claim(count=10), gps(10)).records == 10


@pytest.mark.nightly
def test_a_lost_backend_and_a_restarted_server_cost_one_attempt_each(pg: Postgres):
    store = connect(pg)
    pg.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice'")
    with pytest.raises(Unavailable):
        store.persist(claim(count=10), gps(10))
    assert store.persist(claim(count=10), gps(10)).records == 10
    pg.stop()
    try:
        for _ in "twice":
            with pytest.raises(Unavailable):
                store.persist(claim(count=10, name="2"), gps(10))
    finally:
        pg.start()
    assert store.persist(claim(count=10, name="2"), gps(10)).records == 10


def test_a_backend_killed_during_copy_leaves_no_rows(pg: Postgres):
    store = connect(pg)

    def kill() -> None:
        pg.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice'")

    with pytest.raises(Unavailable):
        store.persist(claim(count=10), [*watched(gps(5), kill), *gps(10)[5:]])
    assert pg.ask("SELECT (SELECT count(*) FROM batches), (SELECT count(*) FROM gps)") == [(0, 0)]
    assert store.persist(claim(count=10), gps(10)).records == 10


def test_every_commit_is_synchronous_whatever_the_server_default(pg: Postgres):
    store = connect(pg)
    pg.ask(
        "CREATE TABLE seen AS SELECT ''::text AS how WHERE false;"
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN new; END $$;"
        "CREATE TRIGGER look BEFORE INSERT ON gps FOR EACH ROW EXECUTE FUNCTION look()"
    )
    for n, how in enumerate(("off", "local", "remote_apply")):
        pg.ask(f"ALTER DATABASE sluice SET synchronous_commit = '{how}'")
        store.close()
        store.persist(claim(name=str(n)), gps(1))
    pg.ask("ALTER DATABASE sluice RESET synchronous_commit")
    assert pg.ask("SELECT how FROM seen") == [("on",), ("local",), ("remote_apply",)]


# --- the operator's conditions ---------------------------------------------------------------------------------------


def test_a_condition_may_have_a_percent_sign_and_end_with_a_comment(pg: Postgres):
    store = connect(pg)
    store.persist(claim(), [body_with(1, 5, b"x", Reject(b"x", "100 %s bad", True))])
    assert [x.received for x in find_letters(store, "reason LIKE '100 %s%' -- that one", 0, 9, 9, False)] == [5]
    assert count_reasons(store, "reason LIKE '%s bad'") == [("gps", "100 %s bad", 1)]


@pytest.mark.parametrize(
    "where",
    [
        *("nobody = 1", "1", "true) AS held; DROP TABLE gps; --", "reason = 'a\0b'", "id / 0 = 1", "%s"),
        "id IN (SELECT nextval('dead_letters_id_seq'))",
    ],
)
def test_an_invalid_condition_raises_and_changes_nothing(pg: Postgres, where: str):
    store = connect(pg)
    store.persist(claim(), [body_with(1, 0, b"x", Reject(b"x", "y", True))])
    for question in (lambda: find_letters(store, where, 0, 9, 9, False), lambda: count_reasons(store, where)):
        with pytest.raises(ValueError, match="not a condition"):
            question()
    assert pg.ask("SELECT count(*) FROM gps") == [(0,)]
    assert len(find_letters(store, "true", 0, 9, 9, False)) == 1


def test_an_operator_command_creates_no_tables(pg: Postgres):
    with pytest.raises(Unavailable, match="there are no tables yet"):
        open_store(pg.url, STREAMS, make=False)
    assert pg.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    connect(pg).persist(claim(count=3), gps(3))
    found = open_store(pg.url, STREAMS, make=False).read_ledger("gps", claims={"run:1:1": 3, "x:9:1": 1})
    assert found[:3] == (3, 0, {"run:1:1": 3, "x:9:1": 0})


# --- secrets ---------------------------------------------------------------------------------------------------------


QUOTED = "".join(f"%{byte:02X}" for byte in SECRET.encode())
URLS = {
    "wrong": f"postgresql://sluice:{QUOTED}@127.0.0.1:PORT/sluice",
    "as a parameter": f"postgresql://sluice@127.0.0.1:PORT/sluice?password={QUOTED}",
    "with no server": f"postgresql://sluice:{QUOTED}@127.0.0.1:1/sluice",
    "with no such host": f"postgresql://sluice:{QUOTED}@nowhere.invalid/sluice",
    "not quoted": f"postgresql://sluice:{SECRET}@127.0.0.1:PORT/sluice",
    "with a slash": "postgresql://sluice:s3cr3t/with@127.0.0.1:PORT/sluice",
    "with an at": "postgresql://sluice:s3cr3t@with@127.0.0.1:PORT/sluice",
    "with a hash": "postgresql://sluice:s3cr3t#with@127.0.0.1:PORT/sluice",
    "with a percent sign": "postgresql://sluice:s3cr3t%with@127.0.0.1:PORT/sluice",
    "with a word that looks like a parameter": "postgresql://sluice:x?with=s3cr3t@127.0.0.1:PORT/sluice",
    "with a question mark": "postgresql://sluice:s3cr3t?with@127.0.0.1:PORT/sluice",
    "with a colon and a slash": "postgresql://sluice:s3cr3t:with/@127.0.0.1:PORT/sluice",
    "beside a misspelt parameter": f"postgresql://sluice:{QUOTED}@127.0.0.1:PORT/sluice?pasword=s3cr3t",
}


@pytest.mark.parametrize("name", URLS)
def test_no_error_contains_a_password(pg: Postgres, name: str, caplog: pytest.LogCaptureFixture):
    pg.ask("ALTER ROLE sluice PASSWORD 'another'")
    with pytest.raises((Unavailable, SettingError)) as caught:
        open_store(URLS[name].replace("PORT", str(pg.port)), STREAMS)
    trace = "".join(traceback.format_exception(caught.value, chain=True))
    said = trace.rpartition(f"{caught.type.__name__}: ")[2] + caplog.text
    assert "PostgreSQL" in said
    assert not [part for part in ("s3cr3t", "with", "all", "it%") if part in said]


def test_the_workers_log_contains_neither_password_nor_rows(pg: Postgres):
    pg.ask("ALTER ROLE sluice PASSWORD 'another'")
    with harness.short_tmp() as tmp, harness.redis_server(tmp) as redis:
        Outlet(str(redis.socket)).redis.rpush("ingest:{gps}", b'{"device":"hush","lat":1,"lon":2}')
        env = harness.environment(tmp, {"INGEST_STORE": URLS["wrong"].replace("PORT", str(pg.port))})
        with harness.running([sys.executable, "worker.py"], tmp / "worker.out", env):
            harness.poll(lambda: "password authentication failed" in (tmp / "worker.out").read_text())
        said = (tmp / "worker.out").read_text()
    assert "s3cr3t" not in said and "%73" not in said and "hush" not in said


def test_tls_and_a_password_work_with_a_connection_string_of_libpq():
    with harness.short_tmp() as tmp, postgres_server() as pg:
        certificate = tmp / "server.crt"
        make = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost"
        command: list[Any] = [*make.split(), "-out", certificate, "-keyout", tmp / "server.key"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        for name in "server.crt", "server.key":
            mine = pg.home / "data" / name
            mine.write_bytes((tmp / name).read_bytes())
            mine.chmod(0o600)
            shutil.chown(mine, mine.parent.owner())
        (pg.home / "hba.conf").write_text("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
        pg.configure(ssl="on")
        pg.ask("ALTER ROLE sluice PASSWORD 'right/one'")
        url = f"postgresql://sluice:right%2Fone@localhost:{pg.port}/sluice?hostaddr=127.0.0.1"

        def tls() -> Store:
            return open_store(f"{url}&sslmode=verify-full&sslrootcert={certificate}", STREAMS)

        store = harness.poll(tls)  # the server may not have reloaded yet
        assert store.persist(claim(count=3), gps(3)).records == 3
        backends = "pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'sluice'"
        assert pg.ask(f"SELECT ssl FROM {backends}") == [(True,)]
        with pytest.raises(Unavailable, match="no encryption"):
            open_store(f"{url}&sslmode=disable", STREAMS)
        with pytest.raises(Unavailable, match="certificate"):
            open_store(f"{url}&sslmode=verify-full", STREAMS)


# --- many at once, and killed ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_every_body_is_stored_once_whichever_process_is_killed():
    with (
        harness.short_tmp() as tmp,
        harness.redis_server(tmp) as redis,
        postgres_server() as pg,
        contextlib.ExitStack() as ends,
    ):
        outlet = Outlet(str(redis.socket))
        env = harness.environment(tmp, {"INGEST_STORE": pg.url})
        workers: list[subprocess.Popen] = []
        pushed = 0

        def start() -> None:
            command = [sys.executable, "worker.py"]
            workers.append(ends.enter_context(harness.running(command, tmp / "worker.out", env)))

        def feed(bodies: int) -> None:
            nonlocal pushed
            items = [
                b'{"device":"%d","lat":%d,"lon":2}' % (n, 91 if n % 1000 == 7 else 1)
                for n in range(pushed, pushed + bodies)
            ]
            outlet.redis.rpush("ingest:{gps}", *items)
            pushed += bodies

        def stored() -> int:
            return pg.ask("SELECT coalesce(sum(bodies), 0)::bigint FROM batches")[0][0]

        def a_worker() -> None:
            random.choice([worker for worker in workers if worker.poll() is None]).kill()
            start()

        def backends() -> list[int]:
            return [pid for (pid,) in pg.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'sluice'")]

        def a_backend() -> None:
            pg.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluice'")

        def a_backend_hard() -> None:  # the server ends all the others then, and recovers
            os.kill(random.choice(backends()), signal.SIGKILL)

        def the_server() -> None:
            pg.stop()
            pg.start()

        def the_server_hard() -> None:
            pg.kill()
            pg.start()

        for _ in range(3):
            start()
        for kill in [a_worker, a_backend, a_backend_hard, the_server, the_server_hard, a_worker, a_worker]:
            feed(50_000)
            before = harness.poll(lambda: (stored(),))[0]
            more = partial(lambda before: stored() > before and backends(), before)
            harness.poll(more, 30, "bodies are stored")
            kill()
        harness.poll(
            lambda: Inspector(str(redis.socket)).take_snapshot("gps")[:3] == (pushed, 0, {}), 60, "all is settled"
        )
        assert pg.ask("SELECT count(*), count(DISTINCT device) FROM gps") == [(pushed - pushed // 1000,) * 2]
        assert pg.ask("SELECT count(*), count(DISTINCT seq) FROM dead_letters") == [(pushed // 1000,) * 2]
        assert pg.ask("SELECT sum(bodies), sum(records) FROM batches") == [(pushed, pushed - pushed // 1000)]
        said = (tmp / "worker.out").read_text()
        assert "the database is unavailable" in said and "Traceback" not in said and "psycopg" not in said


class TestWorkerWithPostgres(WorkerTests):
    @pytest.fixture
    def backend(self, pg: Postgres) -> PostgresStore:
        return PostgresStore(pg)
