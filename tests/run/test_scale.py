"""How many workers there are: the rules by themselves, and in a running bin/up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sluice.drill.harness import Server, ask, installation, poll, post
from sluice.run.scale import Look, Rules


def decided(rules: Rules, *looks: tuple[int, float, float]) -> list[int]:
    """What each of some looks (workers, age, cpu) changed."""
    found = [rules.decide(Look(*look)) for look in looks]
    return [decision.change if decision else 0 for decision in found]


CALM, BUSY, LATE, EXTREME = (0.0, 0.1), (0.0, 0.95), (3.0, 0.5), (60.0, 0.9)


@pytest.fixture
def rules() -> Rules:
    return Rules(1, 8)


@pytest.mark.parametrize("alarm", [BUSY, LATE])
def test_a_threshold_that_holds_for_two_looks_in_a_row_is_one_worker_more(
    rules: Rules, alarm: tuple[float, float]
) -> None:
    assert decided(rules, (2, *alarm), (2, *alarm), (3, *alarm), (3, *alarm)) == [0, 1, 0, 1]


def test_an_extreme_is_three_workers_more(rules: Rules) -> None:
    assert decided(rules, (1, *EXTREME), (1, *EXTREME)) == [0, 3]


@pytest.mark.parametrize("alarm", [BUSY, LATE, EXTREME])
def test_a_single_spike_never_scales(rules: Rules, alarm: tuple[float, float]) -> None:
    assert not any(decided(rules, *[(2, *alarm), (2, 0.0, 0.6)] * 50))


def test_a_long_calm_is_one_worker_fewer_at_a_time(rules: Rules) -> None:
    changes = decided(rules, *[(4, *CALM)] * (2 * Rules.DOWN))
    assert changes == ([0] * (Rules.DOWN - 1) + [-1]) * 2


def test_a_calm_that_is_interrupted_begins_anew(rules: Rules) -> None:
    almost = [(4, *CALM)] * (Rules.DOWN - 1)
    assert not any(decided(rules, *almost, (4, *LATE), *almost))


def test_where_one_fewer_would_have_too_much_to_do_nobody_leaves(rules: Rules) -> None:
    assert not any(decided(rules, *[(2, 0.0, 0.4)] * 100))


def test_there_are_never_more_or_fewer_than_is_set() -> None:
    rules = Rules(2, 4)
    assert decided(rules, (3, *EXTREME), (3, *EXTREME)) == [0, 1]
    assert not any(decided(rules, *[(4, *EXTREME)] * 10, *[(2, *CALM)] * 100))


def test_what_could_not_be_seen_counts_for_nothing(rules: Rules) -> None:
    assert decided(rules, (1, *LATE)) == [0]
    rules.clear()
    assert decided(rules, (1, *LATE)) == [0]


def test_a_decision_says_why(rules: Rules) -> None:
    rules.decide(Look(1, *LATE))
    decision = rules.decide(Look(1, *LATE))
    assert decision
    assert decision.why == "the oldest body waits 3.0 s, a worker takes 50% of a core, 2 looks above 2 s"


def test_when_bodies_wait_another_worker_is_started_and_stores_them(tmp: Path) -> None:
    with installation(tmp, {"INGEST_WORKERS": "auto:1-2"}) as up:
        (first,) = poll(lambda: up.pids("worker-0"))
        assert vote(up) == 200
        poll(lambda: stored(tmp) == 1)  # it has nothing left to do, and holds nothing
        assert not up.pids("worker-1")
        os.kill(first, signal.SIGSTOP)
        assert vote(up) == 200
        poll(lambda: up.pids("worker-1"), 30, "another worker")
        poll(lambda: stored(tmp) == 2, 30, "the body to be stored")
        poll(lambda: "1 -> 2 workers: the oldest body waits" in up.said())


def vote(up: Server) -> int:
    """Post a vote; the status."""
    return post(up.port, "/votes", b'{"poll":"p","choice":"c"}')[0]


def stored(home: Path) -> int:
    """Votes in the database."""
    return len(ask(home, "SELECT 1 FROM votes"))
