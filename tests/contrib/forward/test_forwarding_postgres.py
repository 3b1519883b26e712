"""Rows that are posted on, with PostgreSQL: two programs share its lock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proving.postgres import Postgres, postgres_server
from proving.receiver import Reply, receiving
from sluice.contrib.destinations.register import parse_rows
from sluice.contrib.destinations.registry import open_destinations
from sluice.contrib.forward.destination import Forward
from sluice.contrib.forward.program import Forwarder
from sluice.store.questions import find_letters
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.streams.built_in import STREAMS
from support.folders import needs
from support.store_contract import today, votes

pytestmark = [pytest.mark.contract, needs("postgres")]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as running:
        yield running


def test_rows_are_posted_buried_and_posted_again_and_one_program_at_a_time_posts(server: Postgres) -> None:
    with receiving(lambda post, number: Reply(200 if number else 410)) as receiver:
        row_destinations = open_destinations(parse_rows(f"votes=store+{receiver.url}#order=poll"), STREAMS)
        destinations = [each for each in row_destinations.destinations.values() if isinstance(each, Forward)]
        store = open_store(server.url, dict(STREAMS), row_destinations=row_destinations)
        first, second = (
            Forwarder(lambda: open_store(server.url, dict(STREAMS), make=False), destinations) for _ in range(2)
        )
        for each in first, second:
            each.lines[0].start_threads()
        store.persist(*votes("a", "b"))
        while first.turn():
            pass
        assert receiver.keys == ["votes:2"]
        assert not second.lines[0].held
        second.turn()
        assert not second.lines[0].held
        assert first.store
        first.store.close()  # as the connection of a program that has died
        assert replay_letters(store, find_letters(store), today).stored == 1
        while not second.lines[0].held or second.turn():
            second.turn()
        assert receiver.keys == ["votes:2", "votes:1"]
        assert server.ask("SELECT choice FROM votes ORDER BY 1") == [("a",), ("b",)]
        assert server.ask("SELECT (SELECT count(*) FROM batches_carried), (SELECT count(*) FROM batches_objects)") == [
            (0, 0)
        ]
        for each in second.store, store:
            assert each
            each.close()
