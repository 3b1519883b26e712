"""INGEST_REPLICAS against a master and a replica: what a failover keeps, with WAIT and without."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import redis as client

from proving.harness import ROOT, Server, free_port, gateway, get, poll, post, redis_server, short_tmp, stopped
from sluice import settings
from sluice.account import Publisher
from sluice.spool import contract
from sluice.spool import inlet as gateway_side
from sluice.spool.contract import Keys
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.store.registry import open_store
from sluice.streams import registry
from sluice.streams.built_in import STREAMS
from worker import Worker

pytestmark = pytest.mark.contract

VOTES = Keys.for_stream("votes")
LIMITS = registry.body_limits(settings.load_settings({}))
VOTE = b'{"poll":"p","choice":"%d"}'


class Pair(NamedTuple):
    """A master and its replica, with a client for each."""

    master: Server
    replica: Server
    at_master: Any
    at_replica: Any

    def replica_stopped(self) -> contextlib.AbstractContextManager[None]:
        """The replica is stopped and gets no writes."""
        return stopped(self.replica.pid)

    def cut_off(self) -> None:
        """The replica loses its master and gets no more writes."""
        self.at_replica.replicaof("127.0.0.1", "1")  # no server listens there

    def fail_over(self) -> None:
        """Kill the master (SIGKILL) and promote the replica."""
        self.master.process.kill()
        self.master.process.wait()
        self.at_replica.replicaof("NO", "ONE")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(gateway_side, "CONFIRM_MS", 2500)  # for a machine that is busy
    port = free_port()
    with (
        short_tmp() as one, short_tmp() as two,
        redis_server(one, port=port, bind="127.0.0.1", repl_diskless_sync_delay=0) as master,
        redis_server(two) as replica,
    ):  # fmt: skip
        at = [client.Redis(unix_socket_path=str(server.socket), socket_timeout=30) for server in (master, replica)]
        at[1].replicaof("127.0.0.1", str(port))
        # until its append-only file has been rewritten, the replica does not exit on SIGTERM
        poll(lambda: (info := at[1].info())["master_link_status"] == "up" and not info["aof_rewrite_in_progress"])
        poll(lambda: at[0].wait(1, 1) == 1)
        yield Pair(master, replica, *at)


def push(inlet: Inlet, body: bytes) -> bool:
    """Commit a body. Returns: whether it was accepted. A refused one is on the list, too."""
    group = inlet.append("votes", body)
    inlet.commit(group)
    return group.refused is None


def test_a_body_that_too_few_replicas_confirm_gets_503_and_retries_add_no_copies(pair: Pair) -> None:
    with short_tmp() as tmp, gateway(tmp, pair.master, env={"INGEST_REPLICAS": 1}) as gate:
        # the replica has 0.4 s: on a busy machine, some of those before and after get 503, too
        poll(lambda: post(gate.socket, "/votes", VOTE % 1)[0] == 200)
        refused = gate.said().count("refusing")
        with pair.replica_stopped():
            answers = [post(gate.socket, "/votes", VOTE % 2) for _ in range(10)]
            assert {status for status, _, _ in answers} == {503}
            assert {headers["retry-after"] for _, headers, _ in answers} == {"1"}
            assert b"Fewer than 1 replicas of Redis keep up." in answers[0][2]
            assert gate.said().count("refusing") == refused + 1
        poll(lambda: post(gate.socket, "/votes", VOTE % 3)[0] == 200)
        # the first of the ten was pushed before its WAIT failed
        assert pair.at_replica.lrange(VOTES.ready, 0, -1).count(VOTE % 2) == 1
        assert gate.said().count("accepting bodies again") == gate.said().count("refusing")
        counted = "refused votes Fewer than 1 replicas of Redis keep up"
        poll(lambda: int(pair.at_master.hget("ingest:counts", counted) or 0) >= 10)


def test_a_claim_and_a_snapshot_are_confirmed_by_as_many_replicas_as_are_required(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "REPLICAS_MS", 20_000)
    inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
    poll(lambda: push(inlet, b"a"))
    assert Inspector(str(pair.master.socket)).take_snapshot("votes", 1).confirmed
    assert Outlet(str(pair.master.socket), replicas=1).claim("votes")
    monkeypatch.setattr(contract, "REPLICAS_MS", 100)
    with pair.replica_stopped():
        assert not Inspector(str(pair.master.socket)).take_snapshot("votes", 1).confirmed
        assert Inspector(str(pair.master.socket)).take_snapshot("votes").confirmed


def test_a_gateway_is_ready_only_if_replicas_confirm_and_a_new_one_asks_before_it_pushes(pair: Pair) -> None:
    with short_tmp() as tmp, gateway(tmp, pair.master, env={"INGEST_REPLICAS": 1}) as gate:
        poll(lambda: get(gate.socket, "/readyz")[0] == 200)
        with pair.replica_stopped():  # nothing is posted
            poll(lambda: get(gate.socket, "/readyz")[0] == 503)
            status, _, body = get(gate.socket, "/readyz")
            assert status == 503 and b"Fewer than 1 replicas of Redis keep up." in body
        poll(lambda: get(gate.socket, "/readyz")[0] == 200)
    pair.cut_off()
    poll(lambda: pair.at_master.info()["connected_slaves"] == 0)
    with short_tmp() as tmp, gateway(tmp, pair.master, env={"INGEST_REPLICAS": 1}) as gate:
        assert post(gate.socket, "/votes", VOTE % 1)[0] == 503
        assert pair.at_master.llen(VOTES.ready) == 0
        assert get(gate.socket, "/readyz")[0] == 503


def test_the_first_push_of_a_connection_waits_for_a_replica_that_is_late(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "CONFIRM_MS", 60_000)
    monkeypatch.setattr(gateway_side, "TIMEOUT_SECONDS", 60)
    accepted: list[bool] = []
    inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
    thread = threading.Thread(target=lambda: accepted.append(push(inlet, b"a")))
    with pair.replica_stopped():
        pair.at_master.set("other", 1)
        thread.start()
        poll(lambda: accepted or any("b" in each["flags"] for each in pair.at_master.client_list()))
    thread.join()
    assert accepted == [True]


def test_the_first_check_of_a_connection_says_that_replicas_confirm(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "CONFIRM_MS", 60_000)
    monkeypatch.setattr(gateway_side, "TIMEOUT_SECONDS", 60)
    assert Inlet(str(pair.master.socket), 10**9, replicas=1).unready_reason() is None


def test_after_a_lost_connection_a_thread_connects_and_bodies_are_refused_at_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
    assert push(inlet, b"a")
    monkeypatch.setattr(Inlet, "reconnect", lambda self: None)
    path, away = pair.master.socket, pair.master.socket.with_suffix(".away")
    path.rename(away)
    pair.at_master.client_kill_filter(_type="normal", skipme=True)
    for body in b"b", b"c":
        assert not push(inlet, body)
        assert inlet.unready_reason() == "Redis does not answer."
    assert inlet.away
    away.rename(path)
    inlet.redis.connect()
    inlet.away = False  # what the thread would do now
    assert push(inlet, b"d")
    assert pair.at_replica.lrange(VOTES.ready, 0, -1) == [b"a", b"d"]


def test_a_master_that_has_become_a_replica_refuses_every_body(pair: Pair) -> None:
    inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
    poll(lambda: push(inlet, b"a"))
    pair.at_master.replicaof("127.0.0.1", "1")  # no server listens there
    assert [push(inlet, b"b") for _ in range(2)] == [False, False]
    assert b"b" not in pair.at_master.lrange(VOTES.ready, 0, -1)


@pytest.mark.nightly
def test_a_failover_to_a_replica_that_lags_under_load_loses_no_acknowledged_body(pair: Pair) -> None:
    inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
    safe: list[bytes] = []

    over = threading.Event()

    def hammer() -> None:
        while not over.is_set() and push(inlet, b"%d" % len(safe)):
            safe.append(b"%d" % len(safe))

    thread = threading.Thread(target=hammer)
    thread.start()
    poll(lambda: len(safe) > 200)
    pair.cut_off()
    count = len(safe)
    poll(lambda: not thread.is_alive() or len(safe) > count + 3)  # the second condition would be a failure
    over.set()
    thread.join()
    pair.fail_over()
    assert pair.at_replica.lrange(VOTES.ready, 0, -1)[: len(safe)] == safe


def test_without_wait_a_failover_to_a_replica_that_lags_loses_acknowledged_bodies(pair: Pair) -> None:
    inlet = Inlet(str(pair.master.socket), 10**9)
    pair.cut_off()
    assert push(inlet, b"lost")
    pair.fail_over()
    assert pair.at_replica.llen(VOTES.ready) == 0


@pytest.mark.skipif(not shutil.which("gcc"), reason="it needs gcc")
def test_a_replica_that_syncs_each_write_confirms_it_only_then(tmp_path: Path) -> None:
    library, disk = tmp_path / "slow_sync.so", tmp_path / "disk"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, ROOT / "bench/slow_sync.c"], check=True)
    disk.write_bytes(bytes(16))
    port = free_port()
    with contextlib.ExitStack() as stack:
        one, two = (stack.enter_context(short_tmp()) for _ in range(2))
        config = {"port": port, "bind": "127.0.0.1", "repl_diskless_sync_delay": 0}
        master = stack.enter_context(redis_server(one, **config))
        with mock.patch.dict(os.environ, {"LD_PRELOAD": str(library), "SLOW_SYNC": str(disk)}):
            replica = stack.enter_context(redis_server(two, appendfsync="no"))
        at_master, at_replica = (
            client.Redis(unix_socket_path=str(server.socket), socket_timeout=30) for server in (master, replica)
        )
        at_replica.replicaof("127.0.0.1", str(port))
        poll(lambda: (info := at_replica.info())["master_link_status"] == "up" and not info["aof_rewrite_in_progress"])

        def set_delay(seconds: int) -> None:
            with disk.open("r+b") as file:
                file.write(struct.pack("=Q", seconds * 10**9))

        set_delay(3600)
        at_master.set("a", 1)
        assert at_master.wait(1, 30_000) == 1
        set_delay(0)
        at_replica.config_set("appendfsync", "always")
        at_master.set("a", 2)
        assert at_master.wait(1, 30_000) == 1
        set_delay(3600)
        at_master.set("a", 3)
        assert at_master.wait(1, 1000) == 0


def stored(server: Server, url: str, replicas: int = 0) -> list[str]:
    """Store one claim, as a worker does; returns the choices of all votes in the database."""
    worker = Worker(Outlet(str(server.socket), replicas=replicas), url, STREAMS, LIMITS)
    worker.step(next(state for state in worker.states if state.stream.name == "votes"))
    store: Any = worker.store
    found = [choice for (choice,) in store.db.execute("SELECT choice FROM votes ORDER BY choice")]
    store.close()
    return found


def test_a_claim_that_too_few_replicas_confirm_is_stored_after_the_failover(pair: Pair, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ingest.db"
    inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
    poll(lambda: push(inlet, VOTE % 1))  # the replica has 0.4 s, and may need longer on a busy machine
    pair.cut_off()
    with pytest.raises(client.RedisError, match="fewer than 1 replicas confirmed a claim"):
        stored(pair.master, url, replicas=1)
    pair.fail_over()
    assert {*stored(pair.replica, url)} == {"1"}


@pytest.mark.nightly
def test_bodies_that_too_few_replicas_confirmed_and_a_failover_lost_are_not_missing(pair: Pair, tmp_path: Path) -> None:
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/ingest.db", STREAMS)) as store:

        def ledger(server: Server) -> list[int]:
            """Leave the figures in the database, as a worker does, and read them there."""
            inspector = Inspector(str(server.socket))
            Publisher(inspector, ["votes"], "c1", keep=False, replicas=int(server is pair.master)).publish(
                store, last=True
            )
            (votes,) = store.read_cells()[0].figures["streams"]
            return [votes[state] for state in ("accepted", "ready", "stored", "missing")]

        inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
        assert push(inlet, VOTE % 1)
        assert ledger(pair.master) == [1, 1, 0, 0]
        assert push(inlet, VOTE % 2)
        assert ledger(pair.master) == [2, 2, 0, 0]
        pair.cut_off()
        assert not push(inlet, VOTE % 3)
        assert ledger(pair.master) == [3, 3, 0, 0]
        pair.fail_over()
        assert ledger(pair.replica) == [2, 2, 0, 0]
        pair.at_replica.flushall()  # now those that were accepted are missing
        assert push(Inlet(str(pair.replica.socket), 10**9), VOTE % 4)
        assert ledger(pair.replica) == [3, 1, 0, 2]


def test_without_wait_bodies_whose_claim_the_replica_lacks_are_stored_once_and_new_ones_too(
    pair: Pair, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/ingest.db"
    inlet = Inlet(str(pair.master.socket), 10**9, replicas=1)
    assert push(inlet, VOTE % 1)
    assert push(inlet, VOTE % 2)
    pair.cut_off()
    inlet = Inlet(str(pair.master.socket), 10**9)
    assert push(inlet, VOTE % 3)  # the replica lacks this body, and will give its number to another one
    assert stored(pair.master, url) == ["1", "2", "3"]
    pair.fail_over()
    assert push(Inlet(str(pair.replica.socket), 10**9), VOTE % 4)
    assert pair.at_replica.lrange(VOTES.ready, 0, -1) == [VOTE % 1, VOTE % 2, VOTE % 4]
    for _ in range(2):  # the first claim has the bodies that the database has already
        found = stored(pair.replica, url)
    assert found == ["1", "2", "3", "4"]


@pytest.mark.nightly
def test_a_redis_that_was_a_replica_and_is_the_master_again_gives_its_numbers_to_a_new_spool(
    pair: Pair, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/ingest.db"
    assert push(Inlet(str(pair.master.socket), 10**9, replicas=1), VOTE % 1)
    pair.cut_off()
    assert push(Inlet(str(pair.master.socket), 10**9), VOTE % 2)
    assert stored(pair.master, url) == ["1", "2"]
    # the replica, which lacks vote 2, becomes the master; before anyone writes to it, the first one takes over again
    pair.at_replica.replicaof("NO", "ONE")
    port = free_port()
    pair.at_replica.config_set("port", port)
    pair.at_master.replicaof("127.0.0.1", str(port))
    poll(lambda: pair.at_master.info()["master_link_status"] == "up")
    pair.at_master.replicaof("NO", "ONE")
    assert push(Inlet(str(pair.master.socket), 10**9), VOTE % 3)
    assert pair.at_master.lrange(VOTES.ready, 0, -1) == [VOTE % 1, VOTE % 3]
    for _ in range(2):
        found = stored(pair.master, url)
    assert found == ["1", "2", "3"]
