"""Why a spool is unavailable is in the log: the first cause, once, without secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import client

import worker as program
from proving.harness import free_port, redis_server
from sluice.spool.errors import SPOOL_ERRORS, in_one_line
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Limits
from support.folders import needs

pytestmark = pytest.mark.contract

SECRET = "hunter2"
CAUSES = {
    "wrong password": "invalid username-password pair",
    "nothing listens": "Connection refused",
    "no socket": "No such file or directory",
    "unknown host": "Name or service not known|Temporary failure in name resolution|No address associated",
}


@pytest.fixture(
    params=[pytest.param(cause, marks=needs("sentinel") if cause != "no socket" else ()) for cause in CAUSES]
)
def broken(request: pytest.FixtureRequest, tmp: Path) -> Iterator[tuple[str, str]]:
    """The address of a Redis that cannot be used, and what the log must say."""
    cause = CAUSES[request.param]
    if request.param == "wrong password":
        port = free_port()
        with redis_server(tmp, port=port) as redis:
            client.Redis(unix_socket_path=str(redis.socket)).config_set("requirepass", "right")
            yield f"redis://:{SECRET}@127.0.0.1:{port}", cause
    elif request.param == "no socket":
        yield str(tmp / "run/redis.sock"), cause
    else:
        host = "no-such-host.invalid" if request.param == "unknown host" else "127.0.0.1"
        yield f"redis://u:{SECRET}@{host}:{free_port()}", cause


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is in the log at the default level."""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert SECRET not in "".join(lines)
    return lines


def matches(cause: str, line: str) -> bool:
    return any(text in line for text in cause.split("|"))


def test_the_gateway_logs_why_it_refuses_bodies(broken: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    address, cause = broken
    inlet = Inlet(address)
    for _ in range(3):
        group = inlet.append("votes", b"x")
        inlet.commit(group)
        assert group.refused
        assert group.refused["votes"].reason == "Redis does not answer."  # clients need not know more
    assert inlet.unready_reason() == "Redis does not answer."
    votes, readyz = warnings(caplog)
    assert votes.startswith("votes: refusing bodies: Redis does not answer. (") and matches(cause, votes)
    assert readyz.startswith("/readyz: ") and matches(cause, readyz)


def test_the_worker_logs_why_it_cannot_take_bodies(broken: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    address, cause = broken
    turns: list[float] = []

    def acquire(timeout: float) -> None:
        turns.append(timeout)
        ours.stopping = len(turns) == 3

    ours = program.Worker(Outlet(address), "", STREAMS, Limits(1 << 20))
    ours.store = SimpleNamespace(db=None, row_destinations=SimpleNamespace(end=lambda store: None))  # type: ignore[assignment]
    ours.wake = SimpleNamespace(acquire=acquire)  # type: ignore[assignment]
    ours.run()
    (line,) = warnings(caplog)
    assert line.startswith("redis: Redis is unavailable: ") and matches(cause, line)


def test_the_operator_sees_why_nothing_is_known(broken: tuple[str, str]) -> None:
    address, cause = broken
    with pytest.raises(SPOOL_ERRORS) as raised:
        Inspector(address).take_snapshot("votes")
    assert matches(cause, in_one_line(raised.value)) and SECRET not in in_one_line(raised.value)


def test_the_log_says_when_redis_is_back_and_the_next_cause(tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    inlet = Inlet(str(tmp / "run/redis.sock"))

    def commit() -> Any:
        group = inlet.append("votes", b"x")
        inlet.commit(group)
        return group.refused

    assert commit()
    with redis_server(tmp) as redis:
        assert commit() is None
        redis.process.kill()
        redis.process.wait()
    assert commit()
    first, back, second = warnings(caplog)
    assert "No such file" in first
    assert back == "votes: accepting bodies again"
    assert "Connection" in second or "Error" in second
