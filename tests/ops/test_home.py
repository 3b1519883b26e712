"""A home knows its settings, its name and its database, whatever the shell of its operator knows."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from proving.harness import ROOT, Server, ask, environment, redis_server
from sluice import settings
from sluice.base.files import read_file, replace_file
from sluice.home_settings import FILE, load_for_start
from sluice.run import configure
from sluice.run.services import contents
from sluice.run.up import check_home, check_places
from sluice.store.registry import open_store
from sluice.store.types import Unavailable
from sluice.streams.built_in import STREAMS
from support.folders import needs
from support.operator_verbs import push, sluice, vote

pytestmark = pytest.mark.contract


@pytest.fixture
def redis(tmp: Path) -> Iterator[Server]:
    with redis_server(tmp, appendfsync="no") as server:
        yield server


def start(tmp: Path, **env: object) -> settings.Settings:
    """What a start of bin/up leaves in the home."""
    s = settings.load_settings(environment(tmp, env))
    configure.write_configuration(s)
    return s


def burst(tmp: Path, **env: object) -> str:
    """What it says."""
    command = [sys.executable, "worker.py", "burst"]
    done = subprocess.run(command, env=environment(tmp, env), cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stderr


def dump(file: Path) -> list[tuple]:
    with contextlib.closing(apsw.Connection(str(file))) as db:
        tables = "batches", "batches_identity", "batches_expired", "batches_horizons", "dead_letters", "votes"
        return [row for table in tables for row in db.execute(f"SELECT '{table}', * FROM {table}").fetchall()]


def test_a_verb_has_the_settings_of_the_last_start_and_the_environment_overrides_them(tmp: Path, redis: Server) -> None:
    """As in cron, where only INGEST_HOME is set: an old file is still where the default is."""
    push(redis, vote("former"))
    burst(tmp)
    start(tmp, INGEST_STORE=f"sqlite:///{tmp}/other.db", INGEST_KEEP="votes=30d")
    push(redis, vote("latter"), b"bad")
    burst(tmp)
    assert ask(tmp, "SELECT choice FROM votes") == [("former",)]
    assert "votes: 0 deleted" in sluice(tmp, "expire")[1]
    assert "(3 bytes)\n  neither JSON" in sluice(tmp, "dead")[1]
    assert sluice(tmp, "backup", str(tmp / "copy"))[0] == 0
    copy = (tmp / "copy").read_bytes()
    assert b"latter" in copy and b"former" not in copy
    kept = tmp / settings.STARTED
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "INGEST_HOME=" not in kept.read_text()
    assert "votes: 0 deleted" not in sluice(tmp, "expire", INGEST_KEEP="gps=30d")[1]
    start(tmp, INGEST_STORE=f"sqlite:///{tmp}/other.db")
    assert sluice(tmp, "expire")[1] == "INGEST_KEEP keeps everything.\n"


@needs("postgres")
def test_the_verb_settings_says_what_each_is_from_what_it_is_for_and_what_changes_next(tmp: Path) -> None:
    file = tmp / FILE
    store = "postgresql://ann:secret@h/db"
    file.write_text(f"INGEST_KEEP=30d\nINGEST_MAX_BODY=2m\nINGEST_STORE='{store}'\n")

    def shown(*words: str, **env: object) -> list[list[str]]:
        code, out, complaints = sluice(tmp, "settings", *words, INGEST_VIEWS="", **env)
        assert (code, complaints) == (0, "")
        return [re.split("  +", line) for line in out.splitlines()]

    head, *before = shown()
    assert head == ["setting", "value", "from", "what it is for"]
    assert ["INGEST_KEEP", "30d", "settings", "age at which rows and dead letters are deleted"] in before
    assert ["INGEST_STORE", "postgresql://ann:…@h/db", "settings", "the database"] in before
    configure.write_configuration(load_for_start(environment(tmp, {"INGEST_LOG": "json"})))
    file.write_text(f"INGEST_KEEP=60d\nINGEST_STORE='{store}'\n")
    after = shown(INGEST_REPLICAS="2")
    assert [line[:3] for line in after[1:]] == [
        ["INGEST_HOME", str(tmp), "environment"],
        ["INGEST_REPLICAS", "2", "environment"],
        ["INGEST_MAX_BODY", "2m", "last start"],
        ["INGEST_STORE", "postgresql://ann:…@h/db", "settings"],
        ["INGEST_KEEP", "30d", "last start"],
        ["INGEST_LOG", "json", "last start"],
        [f"INGEST_KEEP: the next start has 60d, from {file}."],
    ]
    everything = [line[0] for line in shown("--all")[1:-1]]
    assert everything == settings.variables()


REFUSED = [
    *(("status",), ("dead",), ("replay",), ("discard", "--yes"), ("expire",), ("backup", "copy")),
    *(("restore", "--replace", "copy"), ("purge", "--missing", "--yes", "votes")),
]


def test_a_verb_refuses_a_database_that_is_not_the_one_of_the_cell(tmp: Path, redis: Server) -> None:
    start(tmp)
    push(redis, vote("a"), b"bad")
    burst(tmp)
    copy = tmp / "copy"
    assert sluice(tmp, "backup", str(copy))[0] == 0
    other = {"INGEST_STORE": f"sqlite:///{tmp}/other.db", "INGEST_KEEP": "votes=30d", "INGEST_SPOOL": redis.socket}
    burst(tmp, INGEST_HOME=tmp / "other", **other)  # another cell stores there
    before = dump(tmp / "other.db"), copy.read_bytes()
    for words in REFUSED:
        code, _, complaints = sluice(tmp, *(str(copy) if word == "copy" else word for word in words), **other)
        assert code == (1 if words[0] in ("status", "purge") else 2), words
        (line,) = complaints.splitlines()
        assert line.startswith(f"sluice: INGEST_STORE is not the database in which the cell of {tmp} stores")
        assert (dump(tmp / "other.db"), copy.read_bytes()) == before, words
    assert "purged" not in sluice(tmp, "status")[1]


def test_no_new_database_takes_the_place_of_one_that_is_missing(tmp: Path, redis: Server) -> None:
    """Its disk is not mounted, perhaps."""
    start(tmp)
    push(redis, vote("a"))
    burst(tmp)
    away = tmp / "away"
    (tmp / "ingest.db").rename(away)
    push(redis, vote("b"))
    said = burst(tmp)
    line = f"sluice: INGEST_STORE: {tmp}/ingest.db is missing, where the cell of {tmp} has stored: put it back or mount"
    assert said.startswith(line) and len(said.splitlines()) == 1
    with pytest.raises(settings.SettingError, match="put it back or mount its disk"):
        check_places(settings.load_settings(environment(tmp, {})))
    with pytest.raises(Unavailable, match="there is no database yet"):  # it was unmounted after the check
        open_store(f"sqlite:///{tmp}/ingest.db", STREAMS, used=True)
    assert not (tmp / "ingest.db").exists()
    away.rename(tmp / "ingest.db")
    burst(tmp)
    assert ask(tmp, "SELECT choice FROM votes") == [("a",), ("b",)]
    for path in tmp.glob("ingest.db*"):
        path.unlink()
    (tmp / settings.STORE).unlink()
    assert "INGEST_STORE is another database than before" in burst(tmp)
    assert (tmp / "ingest.db").exists()


def test_no_home_is_made_where_a_disk_should_be_mounted(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp / "disk a").mkdir()
    fstab = tmp / "fstab"
    fstab.write_text(f"# comment\n\nUUID=1 / ext4 defaults 0 1\nUUID=2 {tmp}/disk\\040a ext4 nofail 0 2\n")
    monkeypatch.setattr("sluice.run.home.FSTAB", fstab)
    home = tmp / "disk a/sluice"
    with pytest.raises(
        settings.SettingError, match=r"INGEST_HOME: no disk is mounted at .*/disk a, as /etc/fstab says"
    ):
        check_home(home)
    assert not home.exists()
    mounts = tmp / "mounts"
    mounts.write_text(f"/dev/sdb {tmp}/disk\\040a ext4 rw 0 0\n")
    monkeypatch.setattr("sluice.run.home.MOUNTS", mounts)
    check_home(home)
    assert home.is_dir()


def test_no_verb_opens_a_database_without_asking_whose_it_is() -> None:
    """`restore` opens the one that it has just written."""
    modules = [
        *(ROOT / "sluice/ops").glob("*.py"),
        *(ROOT / "sluice/contrib").rglob("verb.py"),
        ROOT / "sluice/ledger.py",
    ]
    opening = {path.name for path in modules if "open_store(" in path.read_text()}
    asking = {path.stem for path in modules if "open_cell_store(" in path.read_text()}
    assert opening == {"restore.py"}
    assert asking >= {"dead", "replay", "discard", "bury", "expire", "status", "backup", "restore", "ledger"}


def test_a_start_with_another_database_makes_it_the_one_of_the_cell(tmp: Path, redis: Server) -> None:
    start(tmp)
    burst(tmp)
    start(tmp, INGEST_STORE=f"sqlite:///{tmp}/other.db")
    burst(tmp)
    assert sluice(tmp, "status")[0] == 0


def test_the_name_of_a_cell_stays_when_its_home_is_moved(tmp: Path) -> None:
    home = tmp / "first"
    name = start(home).cell
    shutil.copytree(home, tmp / "second")
    shutil.rmtree(home)
    assert start(tmp / "second").cell == name
    assert start(tmp / "second", INGEST_CELL="mine").cell == "mine"
    assert start(tmp / "third").cell not in (name, "mine")


@pytest.mark.parametrize("first", ["worker.py burst", "bin/sluice restore"])
def test_a_database_is_private_whichever_program_makes_it(first: str, tmp: Path, redis: Server) -> None:
    before = os.umask(0o022)
    try:
        burst(tmp)
        if first == "bin/sluice restore":
            assert sluice(tmp, "backup", str(tmp / "copy"))[0] == 0
            for file in tmp.glob("ingest.db*"):
                file.unlink()
            subprocess.run(
                [ROOT / "bin/sluice", "restore", tmp / "copy"],
                env=environment(tmp),
                check=True,
                stdout=subprocess.PIPE,
                timeout=60,
            )
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp / "ingest.db", tmp / settings.STORE)}
    assert set(found.values()) == {0o600}


def test_a_file_is_replaced_without_following_a_link(tmp: Path) -> None:
    (tmp / "precious").write_text("precious")
    (tmp / "status.json.new").symlink_to(tmp / "precious")
    replace_file(tmp / "status.json", "figures")
    assert ((tmp / "precious").read_text(), (tmp / "status.json").read_text()) == ("precious", "figures")
    assert not (tmp / "status.json").is_symlink()


def test_what_is_no_file_is_not_read(tmp: Path) -> None:
    """A pipe would hang whoever opens it, as `bin/provision services` does as root in the home of another user."""
    os.mkfifo(tmp / "pipe")
    assert contents(tmp) == {}
    (tmp / "link").symlink_to("/etc/passwd")
    for name in "pipe", "link":
        with pytest.raises(OSError, match="no file|symbolic"):
            read_file(tmp / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("way", ["of another user", "writable by all", "a link of another user"])
def test_a_home_is_refused_whose_ancestor_another_user_may_replace(way: str, tmp: Path) -> None:
    parent, home = tmp / "parent", tmp / "parent/between/home"
    home.mkdir(parents=True)
    check_home(home)
    if way == "of another user":
        os.chown(parent, 12345, -1)
    elif way == "writable by all":
        parent.chmod(0o777)
    else:
        (tmp / "link").symlink_to(parent)
        os.chown(tmp / "link", 12345, -1, follow_symlinks=False)
        home = tmp / "link/between/home"
    with pytest.raises(settings.SettingError, match="INGEST_HOME: .*(parent|link)"):
        check_home(home)
    if way == "writable by all":
        parent.chmod(0o1777)  # as /tmp
        check_home(home)
