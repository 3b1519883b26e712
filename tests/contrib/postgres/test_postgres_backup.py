"""bin/sluice backup, restore and move in PostgreSQL: the tests of every database, and those of PostgreSQL alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import PATIENCE, poll, redis_server
from proving.postgres import Postgres, postgres_server
from sluice.contrib.postgres.copies import run
from sluice.parsers import Keep
from sluice.store.registry import open_store
from sluice.streams.built_in import STREAMS
from support.backup_contract import *  # noqa: F403
from support.backup_contract import Home
from support.operator_verbs import drain, push, sluice, status, vote

pytestmark = pytest.mark.contract

METRICS = [
    {"name": "room", "value": 21.5, "tags": {"floor": "2", "ä": '"'}, "time": "2026-01-31T12:00:00.123456789Z"},
    {"name": "room", "value": "open\t\\N", "time": "2026-01-31T12:00:00Z"},
    {"name": "room", "value": True},
    {"name": "room", "value": 2**60},
]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as found:
        yield found


@pytest.fixture
def home(server: Postgres, tmp: Path) -> Iterator[Home]:
    with redis_server(tmp, appendfsync="no") as redis:
        yield Home(tmp, redis, server)


def test_a_copy_of_another_schema_is_refused(twin: Home) -> None:
    assert twin.postgres
    assert twin.sluice("backup", twin.file)[0] == 0
    twin.ask("CREATE SCHEMA other")
    twin.env["INGEST_STORE"] = f"{twin.url}&options=-csearch_path%3Dother"
    code, out, said = twin.sluice("restore", "--replace", twin.file)
    twin.ask("DROP SCHEMA other CASCADE")
    assert (code, out) == (1, "")
    assert "the copy is of the schema public, and the tables are in other" in said
    assert twin.choices() == ["1"]


def test_without_the_programs_of_postgresql_a_backup_names_their_package(twin: Home) -> None:
    path, twin.env["PATH"] = os.environ["PATH"], str(twin.tmp)
    code, out, said = twin.sluice("backup", twin.file)
    twin.env["PATH"] = path
    assert (code, out, said) == (1, "", "sluice: pg_dump is not installed; Debian has it in postgresql-client\n")


@pytest.fixture
def twin(server: Postgres, tmp: Path) -> Iterator[Home]:
    """An installation with PostgreSQL, in whose database other programs have objects too."""
    with redis_server(tmp, appendfsync="no") as redis:
        home = Home(tmp, redis, server)
        home.put(1)
        home.ask(
            "CREATE TABLE theirs (x int); CREATE VIEW shown AS SELECT choice FROM votes; INSERT INTO theirs VALUES (1)"
        )
        home.ask("CREATE INDEX mine ON votes (choice)")
        yield home
        server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def test_a_restore_takes_all_that_is_ours_back_and_nothing_of_others(twin: Home) -> None:
    assert twin.sluice("backup", twin.file)[0] == 0
    twin.ask("UPDATE theirs SET x = 2")
    twin.put(2)
    push(twin.redis, b'{"device":"a","lat":1,"lon":2}', stream="gps")  # the first one of its stream
    drain(twin.tmp, **twin.env)
    (given,) = twin.ask("SELECT max(id) FROM batches")
    twin.ask(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not again'; END $$;"
        "CREATE TRIGGER no BEFORE INSERT ON votes FOR EACH ROW EXECUTE FUNCTION no()"
    )
    code, out, said = twin.sluice("restore", "--replace", twin.file)
    assert (code, said) == (0, "")
    assert twin.choices() == ["1"] and twin.ask("SELECT count(*) FROM gps") == [(0,)]
    assert twin.ask("SELECT x FROM theirs") == [(2,)] and twin.ask("SELECT choice FROM shown") == [("1",)]
    assert twin.ask("SELECT tgenabled FROM pg_trigger WHERE tgname = 'no'") == [("O",)]
    twin.ask("DROP TRIGGER no ON votes")
    twin.put(3)
    assert twin.choices() == ["1", "3"]
    assert twin.ask("SELECT max(id) FROM batches") > [given]  # no id is given again


def test_tables_that_are_gone_are_created_as_they_were(twin: Home) -> None:
    twin.ask("DROP TABLE IF EXISTS gps CASCADE")  # only a new table gets partitions
    open_store(twin.url, STREAMS, keep=Keep(None, {"gps": 864_000})).close()
    push(twin.redis, b'{"device":"a","lat":1,"lon":2}', stream="gps")
    drain(twin.tmp, **twin.env)
    parts = "SELECT inhrelid::regclass::text, pg_get_expr(relpartbound, inhrelid) FROM pg_inherits JOIN pg_class ON "
    parts += "oid = inhrelid ORDER BY 1"
    indexes = "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
    before = twin.ask(parts), twin.ask(indexes), twin.ask("SELECT tableoid::regclass::text FROM gps")
    assert twin.sluice("backup", twin.file)[0] == 0
    # a partition goes with the age of its rows; PostgreSQL makes the indexes of one that is attached
    for lost in f"DROP TABLE {before[0][0][0]}", "DROP SCHEMA public CASCADE; CREATE SCHEMA public":
        twin.ask(lost)
        code, out, said = twin.sluice("restore", "--replace", twin.file)
        assert (code, said) == (0, "")
        assert (twin.ask(parts), twin.ask(indexes), twin.ask("SELECT tableoid::regclass::text FROM gps")) == before
    assert twin.choices() == ["1"] and twin.ask("SELECT to_regclass('theirs')::text") == [(None,)]
    twin.put(2)
    assert twin.choices() == ["1", "2"]


@pytest.mark.parametrize("here", [None, 86_400, 864_000, 8_640_000])
@pytest.mark.parametrize("copied", [None, 864_000])
def test_a_copy_with_other_partitions_than_the_table_is_restored(
    copied: int | None, here: int | None, twin: Home
) -> None:
    def make(age: int | None) -> None:
        twin.ask("DROP TABLE IF EXISTS gps CASCADE")  # only a new table gets partitions
        open_store(twin.url, STREAMS, keep=Keep(None, {"gps": age})).close()

    make(copied)
    push(twin.redis, *[b'{"device":"%d","lat":1,"lon":2}' % n for n in range(3)], stream="gps")
    drain(twin.tmp, **twin.env)
    assert twin.sluice("backup", twin.file)[0] == 0
    make(here)
    parts = "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE relkind = 'r'"
    before = {*twin.ask(parts)}
    code, _, said = twin.sluice("restore", "--replace", twin.file)
    assert (code, said) == (0, "")
    assert twin.ask("SELECT device FROM gps ORDER BY 1") == [("0",), ("1",), ("2",)]
    assert before <= {*twin.ask(parts)}
    strays = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'gps$%%' AND NOT relispartition"
    assert twin.ask(strays) == []
    twin.put(2)
    assert twin.choices() == ["1", "2"]


def test_a_restore_that_is_in_a_deadlock_is_tried_again(twin: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert twin.postgres
    assert twin.sluice("backup", twin.file)[0] == 0
    twin.put(2)
    twin.postgres.configure(deadlock_timeout="50ms")
    held, met = threading.Event(), list[str]()

    def meet() -> None:
        with twin.postgres.connect() as db:  # type: ignore[union-attr]
            db.execute("SET deadlock_timeout = '1min'")  # the other one is ended
            with db.transaction():
                db.execute("LOCK TABLE votes")
                held.set()
                poll(lambda: twin.ask("SELECT 1 FROM pg_locks WHERE NOT granted"))
                db.execute("LOCK TABLE batches_ranges")
                met.append("both")

    thread = threading.Thread(target=meet)
    thread.start()
    assert held.wait(PATIENCE)
    code, out, said = twin.sluice("restore", "--replace", twin.file)
    thread.join()
    assert (code, said, met) == (0, "", ["both"])
    assert twin.choices() == ["1"]


def test_the_password_is_in_no_command_line(monkeypatch: pytest.MonkeyPatch, tmp: Path) -> None:
    (tmp / "pg_dump").write_text(f'#!/bin/sh\necho "$@" "$PGPASSWORD" > {tmp}/given\n')
    (tmp / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp}:{os.environ['PATH']}")
    run("postgresql://me:s3cr3t@host/db", "pg_dump")
    given = (tmp / "given").read_text()
    assert given == "--dbname=user=me dbname=db host=host s3cr3t\n"


def rows(tmp: Path, stream: str, **env: object) -> list[dict[str, str | None]]:
    return [json.loads(line) for line in sluice(tmp, "rows", stream, "--json", **env)[1].splitlines()]


def test_rows_letters_keys_and_the_ledger_are_moved_and_a_repeat_is_still_one(tmp: Path, server: Postgres) -> None:
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    there = {"INGEST_STORE": server.url, "INGEST_KEEP": "3650d,votes=forever"}
    keyed = b"POST /votes HTTP/1.1\r\nIdempotency-Key: k1\r\n\r\n" + vote("once")
    with redis_server(tmp, appendfsync="no") as redis:
        push(redis, vote("ä\\\n\t"), b"nonsense \xff\x00", keyed)
        push(redis, b'{"device":"bike","lat":48.1,"lon":-1e-7,"time":"2026-01-31T12:00:00.5Z"}', stream="gps")
        push(redis, *(json.dumps(each).encode() for each in METRICS), stream="metrics")
        drain(tmp)
        before = {stream: rows(tmp, stream) for stream in ("votes", "gps", "metrics")}
        assert [len(found) for found in before.values()] == [2, 1, 4]
        push(redis, keyed, vote("later"))  # they wait during the move
        code, out, said = sluice(tmp, "move", f"{tmp}/ingest.db", **there)
        assert (code, said) == (0, "")
        assert {"votes: 2 rows", "metrics: 4 rows", "dead_letters: 1 rows"} <= set(out.splitlines())
        drain(tmp, **there)
        code, ledger, trouble = status(tmp, **there)
        assert (code, trouble) == (0, [])
        votes = ledger["votes"]
        assert [votes[name] for name in ("accepted", "stored", "dead", "duplicate", "missing")] == [5, 3, 1, 1, 0]
        assert [row["choice"] for row in rows(tmp, "votes", **there)] == ["later", "once", "ä\\\n\t"]
        (letter,) = json.loads(sluice(tmp, "dead", "--json", **there)[1])["letters"]
        assert (letter["body_base64"], letter["seq"]) == ("bm9uc2Vuc2Ug/wA=", 2)
        push(redis, b"nonsense, too")  # ids go on
        drain(tmp, **there)
        assert status(tmp, **there)[0] == 0
    ask = "SELECT name, tags, value, text, type, time, nanoseconds FROM metrics ORDER BY seq"
    found = server.ask(ask)
    assert [(row[2], row[3]) for row in found] == [(21.5, None), (None, "open\t\\N"), (1, None), (2**60, None)]
    assert found[0][6] == 789 and "12:00:00.123456" in str(found[0][5])
    position = rows(tmp, "gps", **there)[0]
    assert (position["lat"], position["lon"], position["time"]) == ("48.1", "-1e-07", "2026-01-31T12:00:00.500000Z")
    # a second time it is refused, and so is another cell's file
    assert sluice(tmp, "move", f"{tmp}/ingest.db", **there)[0] == 1
    assert sluice(tmp, "move", f"{tmp}/ingest.db")[0] == 2
