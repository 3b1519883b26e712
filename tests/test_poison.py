"""A body that takes long, that hangs, or that ends the worker: it holds up no other body, and is buried in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis as client

import worker as program
from proving.harness import ROOT, Server, ask, environment, redis_server
from sluice import settings
from sluice.spool.contract import Keys
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.store import transaction_limits
from sluice.store.registry import open_store
from sluice.store.types import Unavailable
from sluice.streams import registry
from sluice.streams.built_in import STREAMS
from support.operator_verbs import sluice, status

pytestmark = pytest.mark.contract

LIMITS = registry.body_limits(settings.load_settings({}))
KEYS = Keys.for_stream("items")
# CPU_SECONDS: enough for what a worker does here, and short for a test
BURST = """
import sys, worker
from sluice.ops import replay
from sluice.ops.__main__ import main
from sluice.streams import guard
worker.CPU_SECONDS = replay.CPU_SECONDS = 0.4
guard.LOOK_SECONDS, guard.WAIT_SECONDS, guard.MORE_SECONDS = 0.05, 0.5, 0.5
sys.exit(main(["replay"]) if sys.argv[1:] == ["replay"] else worker.main(["burst"]))
"""
OWN = """
import argparse, os, re, sys, threading
from sluice.streams.record import Decoded, Record
from sluice.streams.registry import Stream

class Item(Record, kw_only=True):
    text: str

def decode(body, limits):
    if body == b"ends":
        os.abort()
    if body == b"hangs":
        re.match(rb"(a*)*b", b"a" * 40)
    if body == b"leaves":
        os._exit(0)
    if body == b"exits":
        sys.exit()
    if body == b"fails":
        sys.exit(3)
    if body == b"usage":
        argparse.ArgumentParser().parse_args(["--odd"])
    if body == b"interrupts":
        raise KeyboardInterrupt
    if body == b"panics":
        raise BaseException("as a library in Rust")
    if body == b"closes":
        raise GeneratorExit
    if body == b"returns":
        return None
    if body == b"waits":
        threading.Event().wait()
    if body == b"insists":
        while True:
            try:
                threading.Event().wait()
            except BaseException:
                pass
    return Decoded([Item(text=body.decode())])

STREAMS = {"items": Stream("items", Item, decode)}
"""


def push(server: Server, stream: str, *bodies: bytes) -> None:
    with client.Redis(unix_socket_path=str(server.socket)) as db:
        db.rpush(Keys.for_stream(stream).ready, *bodies)


def burst(tmp: Path, expire: Server | None = None, verb: str = "") -> int:
    """Run a worker until the lists are empty, or it ends; its status. expire: first end the leases of the dead one.

    verb: run this one instead.
    """
    if expire:
        Inspector(str(expire.socket)).release("items")
    env = environment(tmp, {"INGEST_RECORDS": tmp / "own.py"})
    done = subprocess.run([sys.executable, "-c", BURST, verb], env=env, cwd=ROOT, stderr=subprocess.PIPE, timeout=120)
    burst.log += done.stderr.decode()  # type: ignore[attr-defined]
    return done.returncode


@pytest.mark.parametrize(
    "kind, ends", [("ends", signal.SIGABRT), ("hangs", signal.SIGPROF), ("leaves", 0), ("insists", signal.SIGABRT)]
)
def test_a_body_that_ends_every_worker_is_buried_and_the_others_are_stored(kind: str, ends: int, tmp: Path) -> None:
    burst.log = ""  # type: ignore[attr-defined]
    (tmp / "own.py").write_text(OWN)
    bodies = b"a", b"b", kind.encode(), b"c", kind.encode(), b"d"
    with redis_server(tmp, appendfsync="no") as server:
        push(server, "items", *bodies)
        statuses = [burst(tmp)] + [burst(tmp, server) for _ in range(6)]
        # two whole deliveries; two of each of the bodies alone; then nothing is left
        assert statuses == [-ends] * 6 + [1]
        assert Inspector(str(server.socket)).take_snapshot("items").claims == {}
        with client.Redis(unix_socket_path=str(server.socket)) as db:
            assert not db.exists(KEYS.deliveries)
    assert ask(tmp, "SELECT text, seq FROM items ORDER BY seq") == [("a", 1), ("b", 2), ("c", 4), ("d", 6)]
    assert ask(tmp, "SELECT body, reason, whole, seq FROM dead_letters ORDER BY seq") == [
        (kind.encode(), program.DEADLY, 1, seq) for seq in (3, 5)
    ]
    log: str = burst.log  # type: ignore[attr-defined]
    assert "its first body is buried" in log and (kind == "leaves" or "own.py" in log)


RAISED = {
    "exits": "SystemExit", "fails": "SystemExit", "usage": "SystemExit", "interrupts": "KeyboardInterrupt",
    "panics": "BaseException", "closes": "GeneratorExit", "waits": "WaitedTooLong",
    "returns": "AttributeError",
}  # fmt: skip


def test_whatever_a_decoder_raises_or_waits_for_costs_its_own_body_alone(tmp: Path) -> None:
    """By the first worker that claims it, and again in a replay."""
    burst.log = ""  # type: ignore[attr-defined]
    (tmp / "own.py").write_text(OWN)
    dead = [(kind.encode(), f"the decoder failed: {RAISED[kind]}") for kind in RAISED]
    with redis_server(tmp, appendfsync="no") as server:
        push(server, "items", b"a", *[body for body, _ in dead], b"b")
        assert burst(tmp) == 1
        assert ask(tmp, "SELECT text FROM items ORDER BY seq") == [("a",), ("b",)]
        asked = "SELECT body, reason FROM dead_letters ORDER BY seq"
        assert ask(tmp, asked) == dead
        assert burst(tmp, verb="replay") == 1
        assert ask(tmp, asked) == dead


def test_a_letter_that_ends_a_replay_stays_and_the_others_are_stored(tmp: Path) -> None:
    burst.log = ""  # type: ignore[attr-defined]
    poison = "ends", "hangs", "leaves", "insists", *RAISED
    bodies = [word.encode() for kind in poison for word in (kind, f"after {kind}")]
    with redis_server(tmp, appendfsync="no") as server:
        (tmp / "own.py").write_text(OWN.replace("def decode(body, limits):", "def decode(body, limits):\n    1 / 0"))
        push(server, "items", *bodies)
        assert burst(tmp) == 1
        (tmp / "own.py").write_text(OWN)
        assert burst(tmp, verb="replay") == 1
    assert ask(tmp, "SELECT text FROM items ORDER BY seq") == [(f"after {kind}",) for kind in poison]
    deadly = "the process ended while it decoded this body"
    assert ask(tmp, "SELECT CAST(body AS TEXT), reason FROM dead_letters ORDER BY seq") == [
        (kind, f"the decoder failed: {RAISED[kind]}" if kind in RAISED else deadly) for kind in poison
    ]


def test_a_claim_that_a_worker_could_not_store_is_not_held_against_its_bodies(tmp: Path) -> None:
    """While the database is away, workers that are ended count as nothing."""
    (tmp / "own.py").write_text(OWN)
    with redis_server(tmp, appendfsync="no") as server:
        push(server, "items", b"a")
        outlet = Outlet(str(server.socket))
        for _ in range(9):
            claim = outlet.claim("items", lease=0)
        assert claim
        ours = program.Worker(outlet, f"sqlite:///{tmp}/nowhere.txt/x.db", {"items": STREAMS["votes"]}, LIMITS)
        (tmp / "nowhere.txt").touch()
        for _ in range(5):
            with pytest.raises(Unavailable):
                ours.persist(ours.states[0], claim)
        assert ours.outlet.redis.hget(KEYS.deliveries, f"{claim.id} alone") is None


def test_a_transaction_ends_between_two_bodies_and_the_other_streams_have_their_turn(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction takes longer than it may: so it has one body, and the vote is stored after one of them."""
    monkeypatch.setattr(transaction_limits, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(program, "SLOW_SECONDS", 0.0)  # every step is a slow one
    stored: list[str] = []
    with redis_server(tmp, appendfsync="no") as server:
        url = f"sqlite:///{tmp}/ingest.db"
        streams = {name: STREAMS[name] for name in ("logs", "votes")}
        ours = program.Worker(Outlet(str(server.socket)), url, streams, LIMITS)
        push(server, "logs", *[b"line"] * 5)

        def step(state: program.StreamState) -> bool:
            before = sum(state.persisted.buckets)
            more = program.Worker.step(ours, state)
            if sum(state.persisted.buckets) > before:
                stored.append(state.stream.name)
                if len(stored) == 1:
                    push(server, "votes", b'{"poll":"p","choice":"c"}')
            return more

        monkeypatch.setattr(ours, "step", step)
        ours.run(burst=True)
        assert stored == ["logs", "votes", "logs", "logs", "logs", "logs"]
        assert Inspector(str(server.socket)).take_snapshot("logs")[:3] == (5, 0, {})
    store = open_store(url, STREAMS)
    assert store.read_ledger("logs").bodies == 5
    store.close()


def test_the_write_lock_of_sqlite_is_not_held_while_a_worker_waits_for_redis(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as server:
        url = f"sqlite:///{tmp}/ingest.db"
        ours = program.Worker(Outlet(str(server.socket)), url, {"votes": STREAMS["votes"]}, LIMITS)
        ours.store = other = open_store(url, STREAMS)
        asked: list[str] = []

        class Watched(client.Redis):
            def execute_command(self, *words: Any, **options: Any) -> Any:
                assert not (other.db and other.db.in_transaction), words
                asked.append(words[0])
                return super().execute_command(*words, **options)

        ours.outlet.redis = Watched.from_pool(ours.outlet.redis.connection_pool)
        # larger than a claim that is read at once
        push(server, "votes", *[b'{"poll":"p","choice":"%s"}' % (b"x" * 400_000)] * 40)
        ours.run(burst=True)
        assert "LRANGE" in asked
    store = open_store(url, STREAMS)
    assert store.read_ledger("votes").bodies == 40
    store.close()


def test_the_operator_buries_the_claimed_bodies_or_one_of_them_and_replay_stores_them(tmp: Path) -> None:
    burst.log = ""  # type: ignore[attr-defined]
    (tmp / "own.py").write_text(OWN)
    env = {"INGEST_RECORDS": tmp / "own.py"}
    with redis_server(tmp, appendfsync="no") as server:
        push(server, "items", b"a", b"ends", b"b")
        assert burst(tmp) == -signal.SIGABRT
        assert sluice(tmp, "bury", "items", "4", "--yes", **env)[:2] == (2, "")
        assert sluice(tmp, "bury", "items", "2", "--yes", **env)[:2] == (0, "items: 1 bodies buried\n")
        push(server, "items", b"c")
        assert burst(tmp, server) == 0
        assert ask(tmp, "SELECT text, seq FROM items ORDER BY seq") == [("a", 1), ("b", 3), ("c", 4)]
        push(server, "items", b"ends", b"d")
        assert burst(tmp) == -signal.SIGABRT
        assert sluice(tmp, "bury", "items", "--yes", **env)[:2] == (0, "items: 2 bodies buried\n")
        # it counts as dead already, and the worker finds nothing left to store
        ledger = status(tmp, **env)[1]["items"]
        assert (ledger["claimed"], ledger["dead"], ledger["stored"], ledger["missing"]) == (0, 3, 3, 0)
        assert sluice(tmp, "bury", "items", "--yes", **env)[1] == "items: 0 bodies buried, the others are stored\n"
        assert burst(tmp, server) == 0
        (tmp / "own.py").write_text(OWN.replace("os.abort()", "pass"))
        assert sluice(tmp, "replay", **env)[0] == 0
        assert ask(tmp, "SELECT text FROM items ORDER BY seq") == [(x,) for x in ("a", "ends", "b", "c", "ends", "d")]
