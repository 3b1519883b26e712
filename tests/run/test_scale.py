"""INGEST_WORKERS=auto: the rules alone, and the workers of a running bin/up."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from supervisor.states import RUNNING_STATES

from sluice import settings
from sluice.drill.harness import Server, ask, environment, installation, poll, post
from sluice.run.scale import Pool, Reading, Rules, step


def decided(rules: Rules, *readings: tuple[int, float, float]) -> list[int]:
    """The change after each reading (workers, age, cpu)."""
    found = [rules.decide(Reading(*reading)) for reading in readings]
    return [decision.change if decision else 0 for decision in found]


CALM, BUSY, LATE, EXTREME = (0.0, 0.1), (0.0, 0.95), (3.0, 0.5), (60.0, 0.9)


@pytest.fixture
def rules() -> Rules:
    return Rules(1, 8)


@pytest.mark.parametrize("alarm", [BUSY, LATE])
def test_a_threshold_crossed_in_two_consecutive_readings_adds_one_worker(
    rules: Rules, alarm: tuple[float, float]
) -> None:
    assert decided(rules, (2, *alarm), (2, *alarm), (3, *alarm), (3, *alarm)) == [0, 1, 0, 1]


def test_an_extreme_adds_three_workers(rules: Rules) -> None:
    assert decided(rules, (1, *EXTREME), (1, *EXTREME)) == [0, 3]


@pytest.mark.parametrize("alarm", [BUSY, LATE, EXTREME])
def test_a_single_spike_changes_nothing(rules: Rules, alarm: tuple[float, float]) -> None:
    assert not any(decided(rules, *[(2, *alarm), (2, 0.0, 0.6)] * 50))


def test_a_long_calm_removes_one_worker_at_a_time(rules: Rules) -> None:
    changes = decided(rules, *[(4, *CALM)] * (2 * Rules.DOWN))
    assert changes == ([0] * (Rules.DOWN - 1) + [-1]) * 2


def test_an_interrupted_calm_starts_over(rules: Rules) -> None:
    almost = [(4, *CALM)] * (Rules.DOWN - 1)
    assert not any(decided(rules, *almost, (4, *LATE), *almost))


def test_no_worker_stops_while_one_fewer_would_be_overloaded(rules: Rules) -> None:
    assert not any(decided(rules, *[(2, 0.0, 0.4)] * 100))


def test_the_number_of_workers_stays_within_its_limits() -> None:
    rules = Rules(2, 4)
    assert decided(rules, (3, *EXTREME), (3, *EXTREME)) == [0, 1]
    assert not any(decided(rules, *[(4, *EXTREME)] * 10, *[(2, *CALM)] * 100))


def test_a_failed_reading_starts_the_count_over(rules: Rules, tmp: Path) -> None:
    assert decided(rules, (1, *LATE)) == [0]
    step(Pool(settings.load(environment(tmp))), rules)  # no supervisord answers there
    assert decided(rules, (1, *LATE), (1, *LATE)) == [0, 1]


def test_a_decision_gives_its_reason(rules: Rules) -> None:
    rules.decide(Reading(1, *LATE))
    decision = rules.decide(Reading(1, *LATE))
    assert decision
    assert decision.why == "the oldest body has waited 3.0 s, mean CPU of a worker 50%, 2 readings above 2 s"


def test_while_bodies_wait_another_worker_starts_and_stores_them(tmp: Path) -> None:
    with installation(tmp, {"INGEST_WORKERS": "auto:1-2"}) as up:
        (first,) = poll(lambda: up.pids("worker-0"))
        assert vote(up) == 200
        poll(lambda: stored(tmp) == 1)  # it has nothing left to do, and holds nothing
        assert not up.pids("worker-1")
        os.kill(first, signal.SIGSTOP)
        assert vote(up) == 200
        poll(lambda: up.pids("worker-1"), 30, "another worker")
        poll(lambda: stored(tmp) == 2, 30, "the body to be stored")
        poll(lambda: "1 -> 2 workers: the oldest body has waited" in up.said())
        os.kill(first, signal.SIGCONT)  # so that the stop need not wait for it


def test_a_change_starts_and_stops_the_workers_with_the_highest_numbers(tmp: Path) -> None:
    with installation(tmp, {"INGEST_WORKERS": "auto:1-4"}) as up:
        pool = Pool(settings.load(environment(tmp)))

        def running() -> list[str]:
            return [one["name"] for one in pool.members() if one["state"] in RUNNING_STATES]

        assert running() == ["worker-0"]
        for change, number in (3, 4), (-1, 3), (-2, 1):
            pool.change(change)
            assert running() == [f"worker-{n}" for n in range(number)]
        poll(lambda: pool.change(1))  # once one of the others has ended
        (busy,) = poll(lambda: up.pids(running()[1]))
        os.kill(busy, signal.SIGSTOP)  # supervisord has to wait for it
        pool.change(-1)
        poll(lambda: pool.change(1))
        assert len(running()) == 2
        with contextlib.suppress(ProcessLookupError):
            os.kill(busy, signal.SIGCONT)


def vote(up: Server) -> int:
    """Post a vote; the status."""
    return post(up.port, "/votes", b'{"poll":"p","choice":"c"}')[0]


def stored(home: Path) -> int:
    """Votes in the database."""
    return len(ask(home, "SELECT 1 FROM votes"))
