"""bin/sluice backup and restore in SQLite. tests/contrib/postgres/test_postgres_backup.py: in PostgreSQL."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from proving.harness import ROOT, environment, redis_server
from sluice.store.copies import CannotCopy
from sluice.store.registry import open_store
from sluice.store.sqlite import copies as sqlite_copies
from support.backup_contract import *  # noqa: F403
from support.backup_contract import Home

pytestmark = pytest.mark.contract


@pytest.fixture
def home(tmp: Path) -> Iterator[Home]:
    with redis_server(tmp, appendfsync="no") as redis:
        yield Home(tmp, redis, None)


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


def test_paths_are_relative_to_the_operators_directory(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        home = Home(tmp, redis, None)
        home.put(1)
        (tmp / "here").mkdir()
        command: list[Any] = [ROOT / "bin/sluice", "backup", "mine.db"]
        subprocess.run(command, env=environment(tmp), cwd=tmp / "here", check=True, timeout=60)
    assert (tmp / "here/mine.db").exists()
