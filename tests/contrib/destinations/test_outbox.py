"""Rows that wait for their destination, in SQLite; in PostgreSQL: tests/contrib/postgres/test_postgres.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrib_support.outbox_contract import OutboxTests
from proving.harness import short_tmp
from support.sqlite_store import SqliteStore


class TestSqliteOutbox(OutboxTests):
    @pytest.fixture
    def backend(self) -> Iterator[SqliteStore]:
        with short_tmp() as tmp:
            yield SqliteStore(tmp)
