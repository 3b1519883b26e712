"""What worker.py must do, whatever its database: each promise once. The rest is in tests/test_worker.py."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_client

from proving.harness import PATIENCE, ROOT, Server, environment, poll, redis_server, running
from sluice.spool.claim import Claim
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from support.store_contract import Backend

COMMAND = [sys.executable, str(ROOT / "worker.py")]
HEAD = "POST /votes HTTP/1.1\r\nIdempotency-Key: {}\r\n\r\n"


class Home:
    """A Redis and a database, between which workers run."""

    def __init__(self, tmp: Path, redis: Server, backend: Backend) -> None:
        self.tmp, self.backend = tmp, backend
        self.env = environment(tmp, {"INGEST_STORE": backend.url})
        self.redis = redis_client.Redis(unix_socket_path=str(redis.socket))
        self.outlet, self.inspector = Outlet(str(redis.socket)), Inspector(str(redis.socket))

    def push(self, *choices: object, key: str = "") -> None:
        head = HEAD.format(key) if key else ""
        bodies = [head + json.dumps({"poll": "p", "choice": str(choice)}) for choice in choices]
        self.redis.rpush("ingest:{votes}", *bodies)

    def burst(self) -> int:
        """Returns: the status of a worker that has drained the lists."""
        return subprocess.run([*COMMAND, "burst"], env=self.env, cwd=ROOT, capture_output=True, timeout=120).returncode

    def worker(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        return running(COMMAND, self.tmp / "worker.out", self.env)

    def choices(self) -> list[str]:
        """Sorted as numbers."""
        return sorted((choice for (choice,) in self.backend.ask("SELECT choice FROM votes")), key=int)

    def claims(self) -> dict[str, int]:
        return self.inspector.take_snapshot("votes").claims

    def expire(self) -> None:
        """End the leases of all claims."""
        for name in self.claims():
            self.outlet.renew(Claim("votes", name, 0, 0, 0, []), 0)

    def stored(self) -> int:
        """Bodies that are counted as stored."""
        return int(self.backend.ask("SELECT coalesce(sum(last - first + 1), 0) FROM batches_ranges")[0][0])


def numbers(count: int) -> list[str]:
    return list(map(str, range(count)))


@pytest.mark.contract
class WorkerTests:
    """A subclass has a fixture `backend`."""

    @pytest.fixture
    def home(self, tmp: Path, backend: Backend) -> Iterator[Home]:
        with redis_server(tmp, appendfsync="no") as redis:
            yield Home(tmp, redis, backend)

    def test_a_burst_stores_each_body_once_and_leaves_no_claim(self, home: Home) -> None:
        home.push(*range(3000))
        assert home.burst() == 0
        assert home.choices() == numbers(3000) and home.stored() == 3000
        assert home.claims() == {} and home.redis.llen("ingest:{votes}") == 0
        assert home.burst() == 0
        assert home.stored() == 3000

    def test_an_invalid_body_is_buried_and_the_others_are_stored(self, home: Home) -> None:
        home.push(0)
        home.redis.rpush("ingest:{votes}", b"{")
        home.push(1)
        assert home.burst() == 1
        assert home.choices() == numbers(2)
        assert home.backend.ask("SELECT body FROM dead_letters") == [(b"{",)]

    def test_of_bodies_with_one_key_the_first_is_stored(self, home: Home) -> None:
        home.push(0, key="a")
        home.push(1, key="b")
        assert home.burst() == 0
        home.push(2, 3, key="a")
        assert home.burst() == 0
        assert home.choices() == numbers(2)

    def test_the_claim_of_a_dead_worker_is_stored_by_another_one(self, home: Home) -> None:
        home.push(*range(10))
        claim = home.outlet.claim("votes", lease=0.1)
        assert claim and home.burst() == 0
        assert home.choices() == numbers(10)
        assert home.backend.ask("SELECT claim, bodies FROM batches") == [(claim.id, 10)]

    def test_a_claim_that_is_delivered_again_is_stored_once(self, home: Home) -> None:
        assert home.burst() == 0  # makes the tables
        with home.worker() as first:
            with home.backend.away():
                home.push(*range(50))
                poll(home.claims)
                first.send_signal(signal.SIGSTOP)
            home.expire()
            first.send_signal(signal.SIGCONT)  # it may be in a transaction, for which another one waits
            assert home.burst() == 0  # by another one
            home.push(*range(50, 60))
            poll(lambda: home.choices() == numbers(60) and not home.claims())
        assert home.stored() == 60

    def test_a_worker_that_is_killed_at_any_moment_loses_and_doubles_nothing(self, home: Home) -> None:
        pushed, over = 0, threading.Event()

        def feed() -> None:
            nonlocal pushed
            while not over.wait(0.002):
                home.push(*range(pushed, pushed + 20))
                pushed += 20

        assert home.burst() == 0
        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            for _ in range(4):
                with home.worker() as process:
                    before = home.stored()
                    poll(lambda before=before: home.stored() > before)  # type: ignore[misc]
                    process.kill()
                    process.wait()
                home.expire()
        finally:
            over.set()
            feeding.join()
        assert home.burst() == 0
        assert home.choices() == numbers(pushed) and home.stored() == pushed

    def test_a_signal_ends_a_worker_after_its_claim(self, home: Home) -> None:
        home.push(*range(60_000))
        with home.worker() as process:
            poll(home.stored)
            process.terminate()
            assert process.wait(PATIENCE) == 0
        assert home.claims() == {}
        assert home.stored() + home.redis.llen("ingest:{votes}") == 60_000
        assert home.burst() == 0
        assert home.choices() == numbers(60_000)

    def test_while_the_database_cannot_be_written_bodies_wait(self, home: Home) -> None:
        assert home.burst() == 0
        with home.worker():
            with home.backend.away():
                home.push(*range(5))
                poll(home.claims)
            poll(lambda: home.choices() == numbers(5) and not home.claims())
        assert home.stored() == 5
