"""A disk that fills: posts are refused while Redis can still write, and all goes on once there is room."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from proving.harness import (
    ROOT,
    ask,
    environment,
    gateway,
    get,
    installation,
    poll,
    post,
    redis_server,
    running,
    strike,
)
from sluice.base import disk
from sluice.ledger import Observer
from sluice.settings import load_settings
from sluice.spool.errors import DISK_FULL
from sluice.store.registry import open_store
from sluice.store.types import Unavailable
from sluice.streams.built_in import STREAMS
from support.folders import needs
from support.list_items import kept
from worker import UNFIT

pytestmark = pytest.mark.contract

VOTE = b'{"poll":"cookies","choice":"oreo"}'


@pytest.fixture
def home(tmp: Path) -> Iterator[Path]:
    """A file system of 48 MiB, whose reserve is 6 MiB."""
    place = tmp / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m,mode=700", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here; it needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(home: Path, left: int) -> Path:
    """Leave only so many bytes free."""
    ballast, system = home / "ballast", os.statvfs(home)
    with open(ballast, "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, system.f_bavail * system.f_frsize - max(left, 1 << 20))
        file.seek(0, os.SEEK_END)
        with contextlib.suppress(OSError):  # others write meanwhile
            while not left:
                file.write(bytes(4096))
    return ballast


def test_posts_are_refused_while_redis_can_still_write_and_accepted_once_there_is_room(home: Path) -> None:
    with redis_server(home) as redis, gateway(home, redis) as gate:
        assert post(gate.socket, "/votes", VOTE)[0] == 200
        ballast = fill(home, 3 << 20)
        poll(lambda: post(gate.socket, "/votes", VOTE)[0] == 503)
        for status, headers, body in post(gate.socket, "/votes", VOTE), get(gate.socket, "/readyz"):
            assert status == 503 and DISK_FULL.encode() in body and int(headers["retry-after"]) > 0
        assert disk.spare_bytes(home) > -(4 << 20)
        assert any(
            "disk is almost full" in line
            for line in Observer(load_settings({"INGEST_HOME": str(home)})).ledger()["trouble"]
        )
        ballast.unlink()
        poll(lambda: post(gate.socket, "/votes", VOTE)[0] == 200)
        assert get(gate.socket, "/readyz")[0] == 200
        assert redis.process.poll() is None


def test_what_waits_needs_as_much_room_again(home: Path) -> None:
    with redis_server(home) as redis, gateway(home, redis) as gate:
        for _ in range(12):
            assert post(gate.socket, "/votes", bytes(1 << 20))[0] == 200
        fill(home, 16 << 20)  # the reserve, and 10 MiB
        poll(lambda: post(gate.socket, "/votes", VOTE)[0] == 503)
        subprocess.run(["redis-cli", "-s", redis.socket, "del", "ingest:{votes}"], check=True, capture_output=True)
        poll(lambda: post(gate.socket, "/votes", VOTE)[0] == 200)


def test_a_transaction_of_sqlite_leaves_half_of_the_reserve(home: Path) -> None:
    store = open_store(f"sqlite:///{home}/ingest.db", STREAMS)
    with pytest.raises(Unavailable, match="full"), store.transaction() as db:
        db.execute("CREATE TABLE large (body)")
        for _ in range(48):
            db.execute("INSERT INTO large VALUES (zeroblob(1000000))")
    assert disk.spare_bytes(home, 2) >= 0
    with store.transaction() as db:
        db.execute("CREATE TABLE small (body)")
    store.close()


@needs("formats")
def test_a_body_that_needs_more_of_the_disk_than_there_is_is_buried_and_those_beside_it_are_stored(home: Path) -> None:
    lines = b",".join([b'["1",""]'] * 100_000)
    large = kept(b'{"streams":[{"stream":{"t":"%b"},"values":[%b]}]}' % (b"x" * 300, lines), "/loki/api/v1/push")
    with redis_server(home) as redis, Redis(unix_socket_path=str(redis.socket)) as db:
        db.rpush("ingest:{logs}", b"first", large, b"third")
        with running([sys.executable, ROOT / "worker.py"], home / "worker.out", environment(home)):
            poll(lambda: ask(home, "SELECT seq FROM logs ORDER BY seq") == [(1,), (3,)])
            assert ask(home, "SELECT seq, reason, body, whole FROM dead_letters") == [(2, UNFIT, large, 1)]


@pytest.mark.nightly
def test_a_cell_whose_disk_was_full_to_the_last_byte_serves_again_once_there_is_room(home: Path) -> None:
    with installation(home) as up:
        assert post(up.port, "/votes", VOTE)[0] == 200
        ballast = fill(home, 0)
        status, headers, body = post(up.port, "/votes", bytes(200_000))  # nginx cannot keep it on its disk
        assert status == 503 and b"had no effect" in body and headers["retry-after"] == "1"
        # it writes the first body that it gets, and ends; without room, so does the next one
        poll(lambda: post(up.port, "/votes", VOTE)[0] == 503)
        for pid in up.pids("redis"):
            strike(pid, signal.SIGKILL)
        poll(lambda: get(up.port, "/readyz")[0] == 503)
        ballast.unlink()
        poll(lambda: post(up.port, "/votes", VOTE)[0] == 200)
        poll(lambda: ask(home, "SELECT count(*) FROM votes")[0][0] >= 2)
