"""Rows that wait for their destination, in SQLite; in PostgreSQL: tests/contrib/postgres/test_postgres.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrib_support.outbox_contract import OutboxTests
from proving.harness import short_tmp
from sluice import settings
from sluice.contrib.destinations import outbox
from sluice.contrib.destinations.registry import open_destinations
from sluice.store.types import Body
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Reject, Vote
from support.sqlite_store import SqliteStore
from support.store_contract import NOON


class TestSqliteOutbox(OutboxTests):
    @pytest.fixture
    def backend(self) -> Iterator[SqliteStore]:
        with short_tmp() as tmp:
            yield SqliteStore(tmp)


def test_what_waits_is_published_and_objects_are_merged_now_and_then() -> None:
    s = settings.load_settings({"INGEST_ROWS": "logs=parquet:///a"})
    pauses = {chore.name: chore.pause for chore in outbox.outbox_chores(open_destinations(s.rows, STREAMS))}
    assert pauses == {"publishing of rows": outbox.PUBLISH_SECONDS, "merging of logs": outbox.TIDY_SECONDS}


def test_bodies_are_split_into_lists_of_so_many_records() -> None:
    def body(seq: int, records: int, rejects: int = 0) -> Body:
        made = [Vote(poll="p", choice=f"{seq}.{n}") for n in range(records)]
        return Body(seq, NOON, b"", made, [Reject(b"", str(n)) for n in range(rejects)])

    bodies = [body(1, 1), body(2, 5, 2), body(3, 0), body(4, 1), body(5, 0, 1)]
    pieces = [*outbox.split_bodies(bodies, 4)]
    assert [[(part.seq, len(part.records), len(part.rejects)) for part in piece] for piece in pieces] == [
        [(1, 1, 0), (2, 3, 0)], [(2, 2, 2)], [(4, 1, 0), (5, 0, 1)],
    ]  # fmt: skip
    assert [record for piece in pieces for part in piece for record in part.records] == [
        record for whole in bodies for record in whole.records
    ]
