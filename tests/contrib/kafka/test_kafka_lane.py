"""Kafka's lane, whose answers are not ready at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.contrib.kafka.lane import KafkaLane
from sluice.fastlane.loop import FastLane
from support.lane_clients import CHUNKED, Client, plain, site

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def postponed() -> Iterator[Path]:
    """The socket of a site with Kafka's lane, whose answers are not ready at once."""
    with site("support.wsgi_apps:postponed", "-k", "sluice.contrib.kafka.lane.KafkaLane") as running:
        yield running.server.socket


def test_posts_that_are_answered_later_delay_only_their_own_clients_in_both_lanes(postponed: Path) -> None:
    with Client(postponed) as fast, Client(postponed) as slow, Client(postponed) as other:
        fast.send(plain(path="/waits"))
        slow.send(CHUNKED.replace(b"slow", b"waits"))
        for path in "/", "/", "/", "/release":
            other.send(plain(path=path))
            assert other.answer()[2] == b"plain"
        assert [client.answer()[2] for client in (fast, slow)] == [b"later", b"later"]


def test_a_turn_with_several_requests_for_kafka_waits_for_those_of_other_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[list[int]] = []

    def read(lane: Any, ready: list[tuple[int, int]]) -> None:
        turns.append([fd for fd, _ in ready])
        lane.pending += [(SimpleNamespace(fd=fd),) for fd, _ in ready]

    monkeypatch.setattr(FastLane, "read", read)
    lane = KafkaLane.__new__(KafkaLane)
    lane.poller = SimpleNamespace(poll=lambda timeout: [(2, 1), (9, 1)])
    for ready in [1, 2], [1, 2, 3]:
        lane.pending = []
        lane.read([(fd, 1) for fd in ready])
    assert turns == [[1, 2], [1, 2, 3], [9]]


def test_an_error_while_answers_wait_for_kafka_is_logged_and_does_not_end_the_wait() -> None:
    lane = KafkaLane.__new__(KafkaLane)
    logged: list[str] = []
    lane.log, lane.held, lane.slow_count = SimpleNamespace(exception=logged.append), {None: None}, 1  # type: ignore

    def broken() -> None:
        if logged:
            lane.held = {}
        raise RuntimeError("the poller fails")

    lane.again = broken  # type: ignore[method-assign]
    lane.retry()
    assert (logged, lane.slow_count) == (["Error in the loop"] * 2, 0)
