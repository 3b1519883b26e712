"""Rows that wait for their destination, in SQLite; in PostgreSQL: tests/contrib/postgres/test_postgres.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrib_support.outbox_contract import OutboxTests
from proving.harness import short_tmp
from sluice import settings
from sluice.contrib.destinations import outbox
from sluice.contrib.destinations.registry import open_destinations
from sluice.streams.built_in import STREAMS
from support.sqlite_store import SqliteStore


class TestSqliteOutbox(OutboxTests):
    @pytest.fixture
    def backend(self) -> Iterator[SqliteStore]:
        with short_tmp() as tmp:
            yield SqliteStore(tmp)


def test_what_waits_is_published_and_objects_are_merged_now_and_then() -> None:
    s = settings.load_settings({"INGEST_ROWS": "logs=parquet:///a"})
    pauses = {chore.name: chore.pause for chore in outbox.outbox_chores(open_destinations(s.rows, STREAMS))}
    assert pauses == {"publishing of rows": outbox.PUBLISH_SECONDS, "merging of logs": outbox.TIDY_SECONDS}
