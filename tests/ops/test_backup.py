"""bin/sluice backup and restore: a copy is the database of one moment, and neither leaves anything half done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from proving.harness import PATIENCE, ROOT, Server, environment, poll, redis_server, running
from proving.postgres import Postgres, postgres_server
from sluice.contrib.postgres.copies import run
from sluice.parsers import Keep
from sluice.store import copies
from sluice.store.copies import CannotCopy
from sluice.store.registry import open_store
from sluice.store.sqlite import copies as sqlite_copies
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Gps
from support.operator_verbs import drain, push, sluice, status, vote
from support.views_site import NOON, site

pytestmark = pytest.mark.contract

MANY = 400_000  # rows that make a copy take a while
# a copy of these rows is larger than a MiB, also compressed; for SQLite, and for PostgreSQL
NOISE = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) INSERT INTO votes "
    "(received_at, time, poll, choice, batch, seq) "
    "SELECT received_at, time, poll, hex(randomblob(20)), batch, seq FROM votes, n WHERE seq = 1",
    "INSERT INTO votes (received_at, time, poll, choice, batch, seq) SELECT received_at, time, poll, "
    "md5(i::text) || md5(random()::text), batch, seq FROM votes, generate_series(1, 40000) AS i WHERE seq = 1",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as found:
        yield found


class Home:
    """An installation with Redis and a database."""

    def __init__(self, tmp: Path, redis: Server, postgres: Postgres | None) -> None:
        self.tmp, self.redis, self.postgres = tmp, redis, postgres
        self.env: dict[str, object] = {}
        self.url = f"sqlite:///{tmp}/ingest.db"
        if postgres:
            postgres.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            self.url = self.env["INGEST_STORE"] = postgres.url
        self.file = tmp / "copy"

    def ask(self, sql: str) -> list[tuple]:
        """The rows of a query."""
        if self.postgres:
            return self.postgres.ask(sql)
        with contextlib.closing(apsw.Connection(str(self.tmp / "ingest.db"))) as db:
            db.set_busy_timeout(60_000)
            return db.execute(sql).fetchall()

    def choices(self) -> list[str]:
        """What is stored."""
        return [choice for (choice,) in self.ask("SELECT choice FROM votes ORDER BY batch, seq")]

    def sluice(self, *words: object) -> tuple[int, str, str]:
        """Run a verb."""
        return sluice(self.tmp, *map(str, words), **self.env)

    def put(self, *choices: object) -> None:
        """Accept votes and store them."""
        push(self.redis, *map(vote, choices))
        drain(self.tmp, **self.env)

    def fill(self) -> None:
        """Make the database large."""
        self.put("first")
        count = f"generate_series(1, {MANY})" if self.postgres else "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
        count += "" if self.postgres else f"SELECT i + 1 FROM n WHERE i < {MANY}) SELECT i FROM n)"
        self.ask(
            "INSERT INTO votes (received_at, time, poll, choice, batch, seq) "
            f"SELECT received_at, time, poll, 'a text that fills many pages', batch, seq FROM votes, {count} AS s"
        )

    def start(self, *words: object) -> contextlib.AbstractContextManager[subprocess.Popen]:
        """A verb in a process of its own, which the test may kill."""
        command = [sys.executable, "-m", "sluice.ops", *words]
        return running(command, self.tmp / "verb.out", environment(self.tmp, self.env))


@pytest.fixture(params=["sqlite", "postgres"])
def home(request: pytest.FixtureRequest, tmp: Path) -> Iterator[Home]:
    postgres = request.getfixturevalue("server") if request.param == "postgres" else None
    with redis_server(tmp, appendfsync="no") as redis:
        yield Home(tmp, redis, postgres)


def test_what_was_stored_after_the_backup_is_missing_and_the_rest_is_there_once(home: Home) -> None:
    home.put(1, 2, "", 3)
    code, out, _ = home.sluice("backup", home.file)
    assert (code, out) == (0, f"{home.file}: {home.file.stat().st_size:,} bytes\n")
    home.put(4, 5)
    push(home.redis, vote(6))
    code, out, said = home.sluice("restore", "--replace", home.file)
    assert (code, said) == (0, "")
    assert out == f"restored {home.file}\nvotes: 2 bodies were stored after this backup, and are missing\n"
    assert home.choices() == ["1", "2", "3"]
    drain(home.tmp, **home.env)  # of workers that run on, and of new ones
    assert home.choices() == ["1", "2", "3", "6"]
    code, ledger, _ = status(home.tmp, **home.env)
    found = {name: ledger["votes"][name] for name in ("accepted", "ready", "claimed", "stored", "dead", "missing")}
    assert found == {"accepted": 7, "ready": 0, "claimed": 0, "stored": 4, "dead": 1, "missing": 2}


def test_while_bodies_are_stored_a_copy_has_whole_batches_and_a_restore_loses_no_later_ones(home: Home) -> None:
    home.put("first")
    with running([sys.executable, ROOT / "worker.py"], home.tmp / "worker.out", environment(home.tmp, home.env)):
        for n in range(5):
            push(home.redis, *map(vote, range(n * 1000, n * 1000 + 1000)))
            assert home.sluice("backup", home.file)[0] == 0
        code, out, said = home.sluice("restore", "--replace", home.file)
        assert (code, said) == (0, "")
        push(home.redis, *map(vote, range(5000, 6000)))
        poll(lambda: home.choices()[-1] == "5999")
        _, ledger, _ = status(home.tmp, **home.env)
    stored = home.choices()
    assert len(set(stored)) == len(stored)
    assert 6001 - len(stored) == ledger["votes"]["missing"]
    (whole,) = home.ask(
        "SELECT count(*) FROM batches b WHERE bodies <> (SELECT count(*) FROM votes WHERE batch = b.id)"
    )
    assert whole == (0,)


def test_a_database_that_holds_bodies_is_not_replaced_unless_told(home: Home) -> None:
    home.put(1)
    home.sluice("backup", home.file)
    home.put(2)
    code, out, said = home.sluice("restore", home.file)
    assert (code, out, said.count("\n")) == (1, "", 1)
    assert "--replace" in said
    assert home.choices() == ["1", "2"]
    if home.postgres:
        home.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    else:
        for path in home.tmp.glob("ingest.db*"):
            path.unlink()
    assert home.sluice("restore", home.file)[0] == 0
    assert home.choices() == ["1"]


def test_a_killed_backup_leaves_the_copy_that_was_there(home: Home) -> None:
    home.fill()
    home.file.write_bytes(b"the last copy")
    with home.start("backup", home.file) as backup:
        poll(lambda: any(part.stat().st_size > 100_000 for part in home.tmp.glob("copy.*.part")), interval=0.0005)
        os.kill(backup.pid, signal.SIGKILL)
        backup.wait()
    assert home.file.read_bytes() == b"the last copy"
    (part,) = home.tmp.glob("copy.*.part")
    assert home.sluice("restore", "--replace", part)[0] == 1
    assert home.choices()[0] == "first"


def test_a_killed_restore_leaves_the_old_database(home: Home) -> None:
    home.fill()
    assert home.sluice("backup", home.file)[0] == 0
    home.ask("DELETE FROM votes WHERE choice <> 'first'")
    if not home.postgres:
        home.ask("VACUUM")
        home.ask("PRAGMA wal_checkpoint(TRUNCATE)")
    home.put("second")

    def begun() -> bool:
        if home.postgres:
            query = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'sluice' AND query LIKE 'COPY%votes%'"
            return bool(home.ask(query))
        return (home.tmp / "ingest.db-wal").stat().st_size > 2_000_000

    with home.start("restore", "--replace", home.file) as restore:
        poll(begun, interval=0.0005)
        os.kill(restore.pid, signal.SIGKILL)
        restore.wait()
    assert home.choices() == ["first", "second"]
    home.put("third")
    assert home.choices() == ["first", "second", "third"]
    assert status(home.tmp, **home.env)[2] == []


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]), ""),
        (
            lambda file: file.write_bytes(b"PGDMP" if file.read_bytes()[:6] == b"SQLite" else b"SQLite format 3\0"),
            "is a",
        ),
        (lambda file: file.write_bytes(b"{}"), "is no backup"),
        (lambda file: file.unlink(), "No such file"),
    ],
    ids=["cut", "other", "none", "absent"],
)
def test_what_is_not_a_whole_backup_is_refused_in_one_line(
    spoil: Callable[[Path], Any], words: str, home: Home
) -> None:
    home.put(*range(3000))
    home.sluice("backup", home.file)
    spoil(home.file)
    code, out, said = home.sluice("restore", "--replace", home.file)
    assert (code, out, said.count("\n")) == (1, "", 1)
    assert words in said
    assert len(home.choices()) == 3000


def test_the_copy_of_another_program_or_of_a_later_version_is_refused(home: Home) -> None:
    home.put(1)
    if home.postgres:
        home.ask("CREATE DATABASE other")
        command = [
            "pg_dump",
            "--format=custom",
            f"--file={home.file}",
            home.postgres.url.replace("/sluice?", "/other?"),
        ]
        subprocess.run(command, check=True)
        home.ask("DROP DATABASE other")
        words = "is no backup of Sluice"
    else:
        home.sluice("backup", home.file)
        with contextlib.closing(apsw.Connection(str(home.file))) as db:
            db.execute("PRAGMA user_version=99")
        words = "has layout 99"
    code, _, said = home.sluice("restore", "--replace", home.file)
    assert (code, said.count("\n")) == (1, 1)
    assert words in said
    assert home.choices() == ["1"]


def test_a_backup_that_cannot_be_made_is_one_line_and_leaves_no_file(home: Home) -> None:
    for file in home.tmp / "no/such/folder", home.file:  # and there is no database yet
        code, out, said = home.sluice("backup", file)
        assert (code, out, said.count("\n")) == (1, "", 1)
    assert list(home.tmp.glob("copy*")) == []
    home.put(1)
    absent, folder = home.tmp / "no/such/folder", home.tmp
    for words, said in (
        (("backup", absent), f"sluice: {absent}: No such file or directory\n"),
        (("backup", folder), f"sluice: {folder}: Is a directory\n"),
        (("restore", absent), f"sluice: {absent}: No such file or directory\n"),
        (("restore", folder), f"sluice: {folder}: Is a directory\n"),
    ):
        assert home.sluice(*words) == (1, "", said)
    assert list(home.tmp.parent.glob(f"{home.tmp.name}.*")) == []


def test_a_disk_that_fills_during_a_backup_leaves_the_copy_that_was_there(home: Home) -> None:
    home.put("first")
    disk = home.tmp / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here; it needs root")
    try:
        home.file = disk / "copy"
        assert home.sluice("backup", home.file)[0] == 0
        before = home.file.read_bytes()
        home.ask(NOISE[bool(home.postgres)])
        code, out, said = home.sluice("backup", home.file)
        assert (code, out, said.count("\n")) == (1, "", 1)
        assert ("No space left" if home.postgres else "the disk is full") in said
        assert [(file.name, file.read_bytes()) for file in disk.iterdir()] == [("copy", before)]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_copy_whose_end_is_missing_is_refused_and_the_database_is_as_it_was(home: Home) -> None:
    home.put("first")
    home.ask(NOISE[bool(home.postgres)])
    assert home.sluice("backup", home.file)[0] == 0
    home.put("later")
    os.truncate(home.file, home.file.stat().st_size * 9 // 10)
    code, out, said = home.sluice("restore", "--replace", home.file)
    assert (code, out, said.count("\n")) == (1, "", 1)
    assert home.choices()[0] == "first" and home.choices()[-1] == "later"


def test_a_restore_beside_a_writer_that_leaves_no_gap_changes_nothing(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_copies, "PATIENCE_SECONDS", 0.2)
    with redis_server(tmp, appendfsync="no") as redis:
        home = Home(tmp, redis, None)
        home.put("first")
        assert home.sluice("backup", home.file)[0] == 0
        with (
            contextlib.closing(apsw.Connection(str(tmp / "ingest.db"))) as writer,
            contextlib.closing(cast("Any", open_store(home.url, {}))) as store,
        ):
            store.open().set_busy_timeout(0)
            writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(
                CannotCopy, match="the database is as it was: another program has written to it for 0.2"
            ):
                sqlite_copies.restore(store, home.file, lambda share: None)
        assert home.choices() == ["first"]


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


def test_paths_are_relative_to_the_operators_directory(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        home = Home(tmp, redis, None)
        home.put(1)
        (tmp / "here").mkdir()
        command: list[Any] = [ROOT / "bin/sluice", "backup", "mine.db"]
        subprocess.run(command, env=environment(tmp), cwd=tmp / "here", check=True, timeout=60)
    assert (tmp / "here/mine.db").exists()


def test_the_password_is_in_no_command_line(monkeypatch: pytest.MonkeyPatch, tmp: Path) -> None:
    (tmp / "pg_dump").write_text(f'#!/bin/sh\necho "$@" "$PGPASSWORD" > {tmp}/given\n')
    (tmp / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp}:{os.environ['PATH']}")
    run("postgresql://me:s3cr3t@host/db", "pg_dump")
    given = (tmp / "given").read_text()
    assert given == "--dbname=user=me dbname=db host=host s3cr3t\n"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_views_follow_the_restored_database(kind: str, tmp: Path, request: pytest.FixtureRequest) -> None:
    def moved(second: int) -> Gps:
        return Gps(time=(NOON + second) * 10**9, device="bike", lat=1.5, lon=float(second))

    with site(request.getfixturevalue("server") if kind == "postgres" else None) as here:
        here.put("gps", [moved(1), moved(2)])
        here.caught_up()
        copies.backup(here.url, tmp / "copy", lambda share: None)
        here.put("gps", [moved(3)])
        here.caught_up()
        copies.restore(here.url, tmp / "copy", True, lambda share: None)
        # the views of each stream are built anew when the follower next looks at it
        poll(lambda: here.equal() and here.differences() == {}, what="views of the restored database")
        assert len(here.rows("gps")) == 2
        here.put("gps", [moved(4)])  # in PostgreSQL and SQLite it gets the id of the batch that is gone
        here.caught_up()
