"""A database file as a Backend of store_contract."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest


class SqliteStore:
    """A database file. It is opened with apsw, as the store does: two copies of SQLite release each other's locks."""

    def __init__(self, tmp: Path) -> None:
        self.path = tmp / "ingest.db"
        self.url = f"sqlite:///{self.path}"

    def ask(self, sql: str) -> list[tuple]:
        with contextlib.closing(apsw.Connection(str(self.path))) as db:
            db.set_busy_timeout(10_000)
            return db.execute(sql).fetchall()

    def clients(self) -> set[int]:
        return set()  # a transaction ends with its process

    def set_layout(self, version: int) -> None:
        self.ask(f"PRAGMA user_version={version}")

    def refuse(self, table: str, column: str, value: str) -> None:
        self.ask(
            f"CREATE TRIGGER t BEFORE INSERT ON {table} WHEN new.{column} = '{value}' "
            "BEGIN SELECT RAISE(ABORT, 'not in this house'); END"
        )

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with contextlib.closing(apsw.Connection(str(self.path))) as db, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sluice.store.sqlite.store.BUSY_SECONDS", 0.1)
            db.execute("BEGIN IMMEDIATE")
            yield
