"""Sessions with PostgreSQL: whatever a server, a role or a pooler sets, a transaction has our settings."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from proving import harness
from proving.harness import ROOT, poll
from proving.postgres import Postgres, postgres_server, unprivileged
from sluice.contrib.views.rows.registry import open_row_source
from sluice.parsers import Keep
from sluice.store import transaction_limits
from sluice.store.questions import count_reasons, find_letters
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.types import Body, Epoch
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Decoded, Gps, Reject, Vote
from support.store_contract import body_with, claim, votes, watched

pytestmark = pytest.mark.contract

WEEK = Keep(7 * 86_400, {"votes": None})
PREFIX = "@%c %a@ "  # the session and its program, before each line of the log
PINNED = (
    "TimeZone", "DateStyle", "IntervalStyle", "standard_conforming_strings", "extra_float_digits", "bytea_output",
    "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path",
)  # fmt: skip
# what is said of a session outside its transactions
OUTSIDE = r"SELECT quote_ident\(current_schema|(RE)?SET statement_timeout|(CREATE|DROP) INDEX|BEGIN|COMMIT|ROLLBACK"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(log_statement="all", log_line_prefix=PREFIX, fsync="off") as running:
        yield running


@pytest.fixture
def pg(server: Postgres) -> Iterator[Postgres]:
    """The server, with an empty database and no settings of the role."""
    server.ask("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA public")
    yield server
    server.ask("ALTER ROLE sluice RESET ALL")


def gps(*ages: float) -> list[Body]:
    position = Gps(device="a", lat=1.0, lon=2.0)
    return [body_with(n, int((time.time() - age) * 1e6), b"", position) for n, age in enumerate(ages, 1)]


def use(pg: Postgres, url: str = "") -> None:
    """Do what workers, the follower, the reader and an operator do."""
    with contextlib.closing(open_store(url or pg.url, STREAMS, keep=WEEK)) as store:
        assert store.persist(*votes("a", "")) == (1, 1, False)
        assert store.persist(claim("gps", 2), gps(0, 30 * 86_400)) == (2, 0, False)
        assert replay_letters(store, find_letters(store), lambda letter: Decoded([Vote(poll="p", choice="é")]))[:3] == (
            1,
            1,
            0,
        )
        reject = Reject(b"\\x00\xff", "why", True)
        assert store.persist(claim("votes", 1, 9), [body_with(9, 0, b"\\x00", reject)]) == (0, 1, False)
        assert [letter.body for letter in find_letters(store)] == [b"\\x00\xff"]
        assert count_reasons(store) == [("votes", "why", 1)]
        while store.expire_stream("gps", gps(7 * 86_400)[0].received):
            pass
        assert store.read_ledger("gps").deleted == 1
        assert store.expire_letters(1) is False
        store.publish_figures("c1", {"x": 1}, [Epoch("votes", "votes", "c1", 1, 9, 0)])
        assert [(found.cell, found.seconds < 60) for found in store.read_cells()] == [("c1", True)]
        for n in range(transaction_limits.FOLD_BATCHES + 1):
            store.persist(*votes("a", first=20 + n))
        poll(store.fold_batches)
    with contextlib.closing(open_row_source(url or pg.url, STREAMS)) as rows:
        rows.index(["gps", "votes"])  # type: ignore[attr-defined]
        rows.make_countable("votes", "poll", "choice")
        assert rows.news()
        for stream, many in ("votes", 2 + 1 + transaction_limits.FOLD_BATCHES), ("gps", 1):
            position, found = rows.start(), 0
            with rows.snapshot():
                more = True
                while more:
                    pieces, position, more = rows.changes(stream, position, 10_000)
                    found += sum(map(len, pieces))
            assert found == many
        assert rows.count("votes", "poll", "choice", "p")[0]["é"] == 1


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 10)
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 2)


@pytest.mark.usefixtures("few")
def test_every_transaction_first_sets_what_our_sql_depends_on(pg: Postgres) -> None:
    said = len(pg.said())
    use(pg)
    log = re.split(r"^@", pg.said()[said:], flags=re.M)
    sessions: dict[str, list[str]] = {}
    for line in log:
        session, _, text = line.partition("@ ")
        found = re.search(r"LOG:  (?:statement|execute [^:]+): (.*)", text, re.S)
        if found and session.endswith(" sluice"):
            sessions.setdefault(session, []).append(found[1].strip())
    assert len(sessions) >= 3  # the store, the rows, the thread that makes indexes
    for statements in sessions.values():
        before = ""
        inside = False
        for statement in statements:
            if before == "BEGIN":
                assert all(f" {name} =" in f" {statement}" for name in PINNED), statement
            inside = (inside or statement == "BEGIN") and statement not in ("COMMIT", "ROLLBACK")
            pinned = statement.startswith("SET LOCAL TimeZone")
            assert inside or pinned or re.match(OUTSIDE, statement), statement
            before = statement


def test_no_other_module_connects_or_begins() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "sluice").rglob("*.py")
        if re.search(r"(psycopg|Session)\.connect\(|BEGIN ISO", path.read_text())
    ]
    assert found == ["sluice/contrib/postgres/session.py"]


HOSTILE = {
    "TimeZone": "'America/New_York'", "DateStyle": "'German'", "IntervalStyle": "'sql_standard'",
    "standard_conforming_strings": "off", "statement_timeout": "'2s'", "bytea_output": "'escape'",
    "idle_in_transaction_session_timeout": "'2s'", "default_transaction_isolation": "'serializable'",
    "extra_float_digits": "-10", "lock_timeout": "'1ms'", "client_encoding": "'LATIN1'", "search_path": "public, other",
}  # fmt: skip


@pytest.mark.usefixtures("few")
def test_no_setting_of_a_role_changes_what_is_stored(pg: Postgres) -> None:
    for name, value in HOSTILE.items():
        pg.ask(f"ALTER ROLE sluice SET {name} = {value}")
    use(pg)


@contextlib.contextmanager
def pooler(pg: Postgres) -> Iterator[str]:
    """pgbouncer in transaction mode, whose two connections other clients have used. The URL of the database."""
    port = harness.free_port()
    lines = {
        "listen_addr": "", "listen_port": port, "unix_socket_dir": pg.home, "auth_type": "any", "default_pool_size": 2,
        "pool_mode": "transaction", "server_reset_query": "", "logfile": "",
    }  # fmt: skip
    file = pg.home / "pgbouncer.ini"
    settings = "".join(f"{name} = {value}\n" for name, value in lines.items())
    url = f"host={pg.home} port={pg.port} dbname=sluice user=sluice"
    file.write_text(f"[databases]\nsluice = {url}\n[pgbouncer]\n{settings}")
    found = f"postgresql://sluice@/sluice?host={pg.home}&port={port}"
    command = [*unprivileged(), "pgbouncer", file]
    with harness.running(command, pg.home / "pgbouncer.out", harness.environment(pg.home)):
        poll(lambda: not psycopg.connect(found).close())  # type: ignore[func-returns-value]
        with psycopg.connect(found) as one, psycopg.connect(found) as two:
            for db in one, two:
                for name, value in HOSTILE.items():
                    if name != "client_encoding":  # pgbouncer gives it to each client
                        db.execute(f"SET {name} = {value}".encode())
        yield found


@pytest.mark.skipif(not shutil.which("pgbouncer"), reason="no pgbouncer: bin/provision test installs it")
@pytest.mark.usefixtures("few")
def test_a_pooler_in_transaction_mode_may_stand_in_between(pg: Postgres) -> None:
    with pooler(pg) as url:
        use(pg, url)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("when", ["before", "later"])
def test_what_is_deleted_may_be_published_to_replicas(pg: Postgres, when: str) -> None:
    if when == "later":
        open_store(pg.url, STREAMS, keep=WEEK).close()
        for table in "batches_ranges", "votes", '"gps$other"':
            pg.ask(f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")  # as it was made earlier
    pg.ask("CREATE PUBLICATION all_of_it FOR ALL TABLES")
    try:
        use(pg)
    finally:
        pg.ask("DROP PUBLICATION all_of_it")


def test_a_claim_may_take_longer_than_the_servers_limit_for_a_statement(pg: Postgres) -> None:
    pg.ask("ALTER ROLE sluice SET statement_timeout = '1s'")
    pg.ask("ALTER ROLE sluice SET idle_in_transaction_session_timeout = '1s'")
    old = "SELECT FROM pg_stat_activity WHERE query LIKE 'COPY%' AND clock_timestamp() > query_start + interval '1.2 s'"

    def wait() -> None:
        with pg.connect() as db:
            db.execute("SET statement_timeout = 0")
            poll(lambda: db.execute(old).fetchall(), what="the statement is old")

    with contextlib.closing(open_store(pg.url, STREAMS)) as store:
        assert store.persist(claim("gps", 1), [*watched(gps(0), wait), *gps(0)]) == (2, 0, False)


def test_the_url_says_after_which_time_a_connection_is_given_up(pg: Postgres) -> None:
    url = f"{pg.url}&tcp_user_timeout=7000&connect_timeout=9"
    store: Any = open_store(url, STREAMS)
    with contextlib.closing(store), contextlib.closing(open_row_source(url, STREAMS)) as rows:
        rows.news()
        for db in store.db, rows.db:
            given = db.info.get_parameters()
            assert (given["tcp_user_timeout"], given["connect_timeout"]) == ("7000", "9")
            assert given["keepalives_idle"] == "10"  # ours, which the URL does not name
