"""bin/sluice backup and restore: a copy is the database of one moment, and neither leaves anything half done.

A module with these tests has the fixture `home`: tests/ops/test_backup.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from proving.harness import ROOT, Server, environment, poll, running
from proving.postgres import Postgres
from support.folders import needs
from support.operator_verbs import drain, push, sluice, status, vote

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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
        pytest.param(
            lambda file: file.write_bytes(b"PGDMP" if file.read_bytes()[:6] == b"SQLite" else b"SQLite format 3\0"),
            "is a",
            marks=needs("postgres"),  # without it a copy of PostgreSQL is no backup at all
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
