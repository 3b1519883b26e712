"""INGEST_WORKERS=auto: the rules in a model of the workers, and the workers of a running bin/up."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import RedisError

from proving.harness import environment, installation, poll, redis_server
from proving.postgres import postgres_server
from sluice import settings
from sluice.contrib.autoscale.scale import READING_SECONDS, Pool, Reading, Rules, Work, scale_once
from sluice.parsers import Range

EACH = 950  # bodies/s that one worker of the model stores


class Model:
    """Workers that store one stream, and the rules that decide on their number."""

    def __init__(self, most: int = 8) -> None:
        self.rules = Rules(Range(1, most))
        self.at, self.workers, self.work = 0.0, 1, Work(0, 0, 0.0, 0)
        self.history: list[int] = []  # workers after each reading
        self.late: list[float] = []  # when a body that arrived would have waited longer than the target
        self.why: list[str] = []

    def run(
        self, seconds: float, arrive: float, store: Callable[[int], float] = lambda n: EACH * n, errors: int = 0
    ) -> list[int]:
        """The workers after each reading. arrive, store: bodies/s. errors: per reading."""
        history: list[int] = []
        for _ in range(int(seconds / READING_SECONDS)):
            self.at += READING_SECONDS
            waiting, able = self.work.waiting + arrive * READING_SECONDS, store(self.workers) * READING_SECONDS
            done = min(waiting, able)
            took = self.workers * READING_SECONDS * (done / able) if able else 0.0
            self.work = Work(
                int(waiting - done), self.work.stored + int(done), self.work.seconds + took, self.work.errors + errors
            )
            if waiting - done > Rules.TARGET_SECONDS * store(self.workers):
                self.late.append(self.at)
            if decision := self.rules.decide(Reading(self.at, self.workers, {"s": self.work})):
                self.workers += decision.change
                self.why.append(decision.reason)
            history.append(self.workers)
        self.history += history
        return history


@pytest.fixture
def model() -> Model:
    return Model()


def test_as_many_workers_come_as_a_load_needs_and_they_go_with_it(model: Model) -> None:
    assert set(model.run(300, 500)) == {1}
    busy = model.run(300, 3000)
    assert busy.index(2 if 2 in busy else 4) * READING_SECONDS <= 20  # the first ones
    assert 4 <= busy[-1] <= 5
    calm = model.run(600, 500)
    assert calm[-1] == 1
    assert max(a - b for a, b in zip(calm, calm[1:])) == 1  # one at a time, each after a minute
    assert [calm.index(n) for n in range(busy[-1] - 1, 0, -1)][0] * READING_SECONDS >= 60


def test_no_body_is_late_for_longer_than_a_minute_while_the_load_doubles_and_halves(model: Model) -> None:
    for rate in 500, 1000, 2000, 4000, 2000, 1000, 3000, 500:
        began = model.at
        model.run(300, rate)
        assert [at for at in model.late if at > began + 60] == []
    assert model.history[-1] == 1


@pytest.mark.parametrize("rate", [500, 3000])
@pytest.mark.parametrize("errors", [1, 0], ids=["refuses", "hangs"])
def test_no_worker_starts_for_a_database_that_is_away(model: Model, errors: int, rate: float) -> None:
    before = model.run(120, rate)[-1]
    away = model.run(300, rate, lambda n: 0, errors)
    assert max(away) <= before
    assert away[-1] == 1  # they have nothing to do
    assert max(model.run(60, rate)) > 1  # they help to catch up


def test_workers_come_as_soon_as_the_database_has_been_back_for_ten_seconds(model: Model) -> None:
    model.run(60, 500)
    model.run(300, 500, lambda n: 0, errors=1)
    began = model.at
    back = model.run(300, 500)
    assert back.index(4) * READING_SECONDS <= 12
    assert [at for at in model.late if at > began + 60] == []


def test_no_worker_starts_while_the_database_rejects_each_second_attempt(model: Model) -> None:
    assert set(model.run(300, 3000, errors=1)) == {1}


def test_workers_that_store_no_more_stop_again_and_are_not_tried_for_ten_minutes(model: Model) -> None:
    def locked(workers: int) -> float:
        return EACH

    tried = model.run(900, 3000, locked)
    assert max(tried) > 1
    assert model.why[-1].endswith("no more than before: the database is the bottleneck")
    stopped = tried.index(1, tried.index(max(tried)))
    assert stopped * READING_SECONDS <= 60
    assert set(tried[stopped : stopped + int(Rules.HOLD_SECONDS / READING_SECONDS)]) == {1}
    assert model.run(Rules.HOLD_SECONDS + 60, 3000)[-1] >= 4  # then the database stores more


def test_a_worker_that_adds_its_share_stays_though_the_next_one_adds_nothing(model: Model) -> None:
    assert model.run(300, 5000, lambda n: EACH * min(n, 4))[-1] == 4


def test_a_single_reading_changes_nothing(model: Model) -> None:
    model.run(60, 500)
    model.run(READING_SECONDS, 3000)
    assert model.late
    assert set(model.run(60, 100)) == {1}


def test_a_load_that_alternates_does_not_change_the_workers_forever(model: Model) -> None:
    for _ in range(30):
        model.run(10, 2.6 * EACH)
        model.run(10, 0.8 * EACH)
    assert len(set(model.history[len(model.history) // 2 :])) == 1


def test_the_number_of_workers_stays_within_its_limits() -> None:
    assert max(Model(3).run(600, 9000)) == 3


def test_a_burst_that_one_worker_stores_in_time_needs_no_other(model: Model) -> None:
    for _ in range(50):
        model.run(READING_SECONDS, 1.5 * EACH)
        model.run(2 * READING_SECONDS, 0)
    assert set(model.history) == {1}


def test_a_failed_reading_starts_the_averages_over(model: Model) -> None:
    class Failing:
        def replace(self) -> None:
            raise RedisError

    for _ in range(20):
        assert set(model.run(READING_SECONDS * (Rules.WINDOW_READINGS[0] - 1), 3000)) == {1}
        scale_once(Failing(), model.rules)  # type: ignore[arg-type]


def test_a_decision_gives_its_reason(model: Model) -> None:
    model.run(30, 3000)
    assert model.why[0] == "bodies wait 25.9 s, workers store 950 bodies/s and are busy for 100%"


# --- real workers ----------------------------------------------------------------------------------------------------

RECORDS = """
import time
from sluice import Record, stream
class Slow(Record, kw_only=True):
    n: int
def parse(line):
    time.sleep({pause})
    return Slow(n=int(line))
STREAMS = {{"slow": stream("slow", Slow, parse)}}
"""


def push(home: Path, count: int, stream: str = "slow") -> None:
    """Append bodies to a stream's list, as any tool may."""
    with redis.Redis(unix_socket_path=str(home / "run/redis.sock")) as link:
        link.rpush(f"ingest:{{{stream}}}", *range(count))


@pytest.mark.nightly
def test_workers_that_fall_behind_get_others_that_help(tmp: Path) -> None:
    (tmp / "slow.py").write_text(RECORDS.format(pause=0.001))
    with postgres_server() as database:
        env = {"INGEST_WORKERS": "auto:1-4", "INGEST_STORE": database.url, "INGEST_RECORDS": tmp / "slow.py"}
        with installation(tmp, env) as up:
            poll(lambda: up.pids("worker") and up.pids("scale"))
            push(tmp, 100_000, "without_decoder")
            push(tmp, 20_000)
            # on a busy machine one worker stores less, so more are added at once
            poll(lambda: re.search("1 -> [234] workers: bodies wait", up.said()), what="more workers")
            assert [pid for pid in up.pids("scale") if b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            poll(lambda: database.ask("SELECT count(*) FROM slow") == [(20_000,)], 120, "all bodies to be stored")


@pytest.fixture
def pool(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    (tmp / "slow.py").write_text(RECORDS.format(pause=0))
    env = {"INGEST_RECORDS": tmp / "slow.py", "INGEST_WORKERS": "auto:1-4"}
    for name, value in environment(tmp, env).items():
        monkeypatch.setenv(name, value)
    with redis_server(tmp, appendfsync="no"):
        found = Pool(settings.load_settings())
        yield found
        found.close()


@pytest.mark.contract
def test_workers_are_added_replaced_and_stopped_after_their_batches(pool: Pool, tmp: Path) -> None:
    pool.change(2)
    assert pool.size == 3
    push(tmp, 1000)
    poll(lambda: pool.read().streams["slow"].stored == 1000)
    first, second = pool.children
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    pool.replace()
    assert first not in pool.children
    assert pool.size == 3
    pool.change(-1)
    assert pool.size == 2
    poll(lambda: second.pid in [process.pid for process in pool.spool.processes()])  # then it catches signals
    pool.close()
    assert pool.size == 1
    assert second.returncode == 0


@pytest.mark.contract
def test_a_reading_counts_what_workers_store_and_what_fails_of_streams_with_a_decoder(pool: Pool, tmp: Path) -> None:
    push(tmp, 7, "without_decoder")
    push(tmp, 100)
    reading = pool.read()
    assert "without_decoder" not in reading.streams
    assert (reading.workers, reading.streams["slow"]) == (1, Work(100, 0, 0.0, 0))
    (tmp / "ingest.db").mkdir()  # SQLite cannot open it
    pool.change(1)
    poll(lambda: pool.read().streams["slow"].errors)
    assert pool.read().streams["slow"][:3] == (100, 0, 0.0)
    (tmp / "ingest.db").rmdir()
    poll(lambda: pool.read().streams["slow"].seconds)
    assert pool.read().streams["slow"][:2] == (0, 100)
