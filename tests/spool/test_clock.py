"""Redis's wall clock steps: leases and marks do not depend on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from proving import harness
from proving.clock import Clock
from sluice.spool.contract import LEASE_SECONDS, Keys
from sluice.spool.outlet import Outlet

pytestmark = pytest.mark.contract

KEYS = Keys.for_stream("s")


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_claim_is_delivered_again_within_its_lease_after_the_clock_has_stepped(step: int, tmp: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    clock = Clock(tmp, "")
    clock.move(max(0, -step))
    program = shutil.which("redis-server", path="/usr/bin:/usr/local/bin:/usr/sbin")
    assert program
    command = [program, "--port", "0", "--unixsocket", tmp / "r.sock", "--save", ""]
    environ = harness.environment(tmp) | {key: value for key, value in clock.environ.items() if key != "PATH"}
    with harness.running(command, tmp / "redis.out", environ):
        outlet = Outlet(str(tmp / "r.sock"))
        harness.poll(lambda: outlet.redis.ping())
        before, _ = outlet.redis.time()
        outlet.redis.rpush(KEYS.ready, b"x")
        first = outlet.claim("s")
        clock.move(max(0, step))
        after, _ = outlet.redis.time()
        assert abs(after - before - step) < 60
        again = outlet.claim("s") or harness.poll(lambda: outlet.claim("s"), seconds=60)
        assert first and again and (first.id, first.count) == (again.id, again.count)
        left = outlet.redis.zscore(KEYS.claims, again.id)
        assert left and left <= (after + LEASE_SECONDS + 60) * 1000
