"""worker.py against a private Redis: every body is stored once, even if processes are killed or the store fails.

support.worker_contract has what holds with each database.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis as client

import worker as program
from proving import harness
from proving.harness import (
    PATIENCE,
    ROOT,
    Server,
    ask,
    database,
    environment,
    free_port,
    gateway,
    post,
    redis_server,
    running,
)
from sluice import settings
from sluice.account import Publisher
from sluice.base import times
from sluice.base.counters import SECONDS, Counts
from sluice.spool import outlet
from sluice.spool.claim import Claim
from sluice.spool.contract import CELL, LAYOUT, LAYOUT_KEY, LEASE_SECONDS
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import MAX_BODIES, Outlet
from sluice.store import bookkeeping, chores, expiry, transaction_limits
from sluice.store.chores import Chore, Chores
from sluice.store.decoding import Group, decode_claim
from sluice.store.questions import find_letters
from sluice.store.registry import open_store
from sluice.store.store import RowDestinations, Store
from sluice.store.types import Body, NewerTables, Outcome, Unavailable
from sluice.streams import registry
from sluice.streams.built_in import STREAMS, load_streams
from sluice.streams.record import Decoded, Limits, Reject
from sluice.streams.registry import Stream
from support.folders import needs
from support.operator_verbs import sluice
from support.store_contract import NOON

pytestmark = pytest.mark.contract

poll = harness.poll
LIMITS = registry.body_limits(settings.load_settings({}))
COMMAND = [sys.executable, str(ROOT / "worker.py")]


@pytest.fixture
def redis(tmp: Path) -> Iterator[Server]:
    with redis_server(tmp, appendfsync="no") as server:  # fsyncs of Redis would only slow these tests down
        yield server


def raw(server: Server) -> Any:
    return client.Redis(unix_socket_path=str(server.socket), socket_timeout=60)


def vote(choice: object) -> bytes:
    return json.dumps({"poll": "p", "choice": str(choice)}).encode()


def push(server: Server, *choices: object) -> None:
    """RPUSH votes, as any tool may."""
    with raw(server) as db:
        db.rpush("ingest:{votes}", *map(vote, choices))


def commit(server: Server, *choices: object) -> None:
    """Push votes as the gateway does."""
    inlet = Inlet(str(server.socket))
    for choice in choices:
        group = inlet.append("votes", vote(choice))
    inlet.commit(group)
    assert group.refused is None


@contextlib.contextmanager
def worker(tmp: Path, env: dict[str, object] | None = None, log: str = "worker.out") -> Iterator[Server]:
    """A running worker."""
    with running(COMMAND, tmp / log, environment(tmp, env)) as process:
        yield Server(process, tmp / log, tmp)


def drain(tmp: Path, env: dict[str, object] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "burst"], env=environment(tmp, env), capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def choices(tmp: Path) -> list[str]:
    return [choice for (choice,) in ask(tmp, "SELECT choice FROM votes ORDER BY rowid")]


@contextlib.contextmanager
def locked(tmp: Path) -> Iterator[None]:
    """Another connection holds the write lock of the database."""
    with database(tmp / "ingest.db") as db:
        db.execute("BEGIN IMMEDIATE")
        yield


def claims(server: Server, stream: str = "votes") -> dict[str, int]:
    return Inspector(str(server.socket)).take_snapshot(stream).claims


def create_database(tmp: Path) -> None:
    """Create the database and its tables."""
    assert drain(tmp).returncode == 0


def expire(server: Server, claim: str) -> None:
    """End the lease of a claim."""
    Outlet(str(server.socket)).renew(Claim("votes", claim, 0, 0, 0, []), 0)


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(n) for n in range(start, start + count)]


def test_a_lone_body_is_stored_within_a_tenth_of_a_second(tmp: Path, redis: Server) -> None:
    with worker(tmp):
        number = itertools.count()

        def soon() -> bool:
            start, choice = time.monotonic(), str(next(number))
            push(redis, choice)
            poll(lambda: choices(tmp)[-1] == choice)
            return time.monotonic() - start < 0.1

        poll(lambda: all(soon() for _ in range(10)))  # ten in a row; while the machine is busy, they may take longer


def test_a_drain_that_buries_a_body_exits_with_status_1(tmp: Path, redis: Server) -> None:
    push(redis, "a", "", "b")
    done = drain(tmp)
    assert done.returncode == 1
    assert done.stderr.partition(" ")[2] == "sluice.worker: votes: 1 buried; `bin/sluice dead` lists them\n"
    assert choices(tmp) == ["a", "b"]
    assert drain(tmp).returncode == 0


def test_a_wrong_argument_or_setting_is_reported_in_one_line_with_status_2(tmp: Path) -> None:
    def refused(*words: str, **env: object) -> str:
        done = subprocess.run([*COMMAND, *words], env=environment(tmp, env), capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert refused("sing") == "usage: worker.py [run | burst]\n"
    assert "INGEST_STORE" in refused(INGEST_STORE="mysql://")
    assert "INGEST_RECORDS" in refused(INGEST_RECORDS="no_such_module")
    (tmp / "unfit.py").write_text(
        "from sluice import stream\nfrom sluice.streams.record import Vote\n"
        "STREAMS = {'batches': stream('batches', Vote)}"
    )
    assert "the stream name 'batches' is reserved" in refused(INGEST_RECORDS=tmp / "unfit.py")


def test_a_signal_stops_the_worker_after_the_present_batch_and_leaves_no_claim(tmp: Path, redis: Server) -> None:
    for start in range(0, 100_000, 10_000):
        push(redis, *range(start, start + 10_000))
    for number in signal.SIGTERM, signal.SIGINT:
        before = len(choices(tmp))
        with worker(tmp) as running:
            poll(lambda before=before: len(choices(tmp)) > before)  # type: ignore[misc]
            running.process.send_signal(number)
            assert running.process.wait(PATIENCE) == 0
        found = choices(tmp)
        assert found == numbers(len(found))
        bodies = [count for (count,) in ask(tmp, "SELECT bodies FROM batches")]
        assert len(found) == sum(bodies)
        assert claims(redis) == {}
        assert raw(redis).llen("ingest:{votes}") == 100_000 - len(found)
    assert drain(tmp).returncode == 0
    assert choices(tmp) == numbers(100_000)


def test_a_second_signal_stops_the_worker_at_once_and_loses_nothing(tmp: Path, redis: Server) -> None:
    create_database(tmp)
    with locked(tmp), worker(tmp) as running:
        push(redis, "a")
        poll(lambda: claims(redis))

        def stopped() -> bool:
            running.process.terminate()
            return running.process.poll() is not None

        poll(stopped)
        assert running.process.returncode == 128 + signal.SIGTERM  # 0 would mean that the first signal sufficed
    for name in claims(redis):
        expire(redis, name)
    assert drain(tmp).returncode == 0
    assert choices(tmp) == ["a"]


def test_a_stop_ends_the_lease_of_a_claim_that_is_not_stored(tmp: Path, redis: Server) -> None:
    (tmp / "full").write_text("a file where the folder should be")
    with worker(tmp, {"INGEST_STORE": f"sqlite:///{tmp}/full/ingest.db"}) as running:
        push(redis, "a")
        poll(lambda: "the database is unavailable" in running.said())
        (name,) = claims(redis)
        running.process.terminate()
        assert running.process.wait(PATIENCE) == 0
    claim = Outlet(str(redis.socket)).claim("votes")  # before its lease would have ended
    assert claim and claim.id == name


@pytest.mark.nightly
def test_a_killed_worker_loses_nothing_and_stores_nothing_twice(tmp: Path, redis: Server) -> None:
    pushed = 0
    over = threading.Event()

    def post() -> None:
        nonlocal pushed
        while not over.wait(0.001):
            push(redis, *range(pushed, pushed + 50))
            pushed += 50

    posting = threading.Thread(target=post)
    posting.start()
    chance = random.Random(7)
    try:
        for n in range(14):
            with worker(tmp) as running:
                if n % 2:  # at any moment, including the start
                    time.sleep(chance.random() / 2)
                else:  # at any moment while it stores
                    before = len(choices(tmp))
                    poll(lambda before=before: len(choices(tmp)) > before)  # type: ignore[misc]
                    time.sleep(chance.random() / 50)
                running.process.kill()
            for name in claims(redis):
                expire(redis, name)
    finally:
        over.set()
        posting.join()
    assert drain(tmp).returncode == 0
    assert pushed > 1000
    assert sorted(choices(tmp), key=int) == numbers(pushed)
    # not of `batches`: bodies that were delivered again are stored one by one, and old batches are folded
    assert ask(tmp, "SELECT sum(last - first + 1) FROM batches_ranges") == [(pushed,)]


@pytest.mark.parametrize("newer", ["Redis", "database", "database, later"])
def test_a_worker_refuses_a_newer_layout_in_one_line_and_leaves_the_bodies(
    newer: str, tmp: Path, redis: Server
) -> None:
    create_database(tmp)
    assert raw(redis).get(LAYOUT_KEY) == b"%d" % LAYOUT
    if newer != "Redis":
        with database(tmp / "ingest.db") as db:
            db.execute("PRAGMA user_version=4")
    place, known = ("Redis", LAYOUT) if newer == "Redis" else (f"{tmp}/ingest.db", 3)
    if newer != "database, later":
        commit(redis, 1, 2)
        raw(redis).set(LAYOUT_KEY, LAYOUT + (newer == "Redis"))
    else:  # the database comes back in another layout while a worker holds a claim
        (tmp / "ingest.db").rename(tmp / "hidden.db")
        (tmp / "ingest.db").write_text("somebody's letters " * 100)
        commit(redis, 1, 2)
        with worker(tmp, log="later.out") as running:
            poll(lambda: "the database is unavailable" in running.said())
            (tmp / "hidden.db").rename(tmp / "ingest.db")
            assert running.process.wait(PATIENCE) == 2
            assert running.said().splitlines()[-1].startswith(f"sluice: {place} has layout 4, and this version")
    refused = drain(tmp)
    assert (refused.returncode, refused.stderr) == (
        2,
        f"sluice: {place} has layout {known + 1}, and this version of Sluice knows only {known}: update Sluice\n",
    )
    raw(redis).set(LAYOUT_KEY, LAYOUT)
    left = Inspector(str(redis.socket)).take_snapshot("votes")
    assert left.ready + sum(left.claims.values()) == 2


@pytest.mark.nightly
def test_workers_leave_the_figures_of_their_cell_every_few_seconds(tmp: Path, redis: Server) -> None:
    commit(redis, 1, 3)
    lines: set[tuple[str, str, int]] = set()

    def left() -> int:
        for cell, seen, figures in ask(tmp, "SELECT cell, seen, figures FROM batches_cells"):
            stored = [row["stored"] for row in json.loads(figures)["streams"] if row["stream"] == "votes"]
            lines.add((cell, seen, *stored))
        return len(lines)

    with worker(tmp, {"INGEST_CELL": "c1"}), worker(tmp, {"INGEST_CELL": "c1"}, "other.out"):
        poll(lambda: left() > 2, seconds=60)
    assert {(cell, stored) for cell, _, stored in lines} <= {("c1", 0), ("c1", 2)}
    assert ask(tmp, "SELECT stream, cell, first, last FROM batches_epochs") == [("votes", "c1", 1, 2)]
    assert raw(redis).get(CELL) == b"c1"


@pytest.mark.parametrize(("is_shared", "kept"), [(False, b"c2"), pytest.param(True, b"c1", marks=needs("sentinel"))])
def test_a_cell_has_the_name_that_a_redis_elsewhere_has(is_shared: bool, kept: bytes, tmp: Path) -> None:
    port = free_port()
    with redis_server(tmp, port=port, bind="127.0.0.1") as server:
        raw(server).set(CELL, "c1")
        env: dict[str, object] = {"INGEST_CELL": "c2"}
        env |= {"INGEST_SPOOL": f"redis://127.0.0.1:{port}"} if is_shared else {}
        with worker(tmp, env) as running:
            poll(lambda: ask(tmp, "SELECT cell FROM batches_cells") == [(kept.decode(),)])
        assert raw(server).get(CELL) == kept
        assert ("this is the cell c1, as its list says, not c2" in running.said()) == is_shared


def test_a_worker_says_that_its_database_is_another_one_and_publishes_its_settings(tmp: Path, redis: Server) -> None:
    for name, keep, others in ("ingest", "1h", 0), ("other", "forever", 1), ("other", "2h", 1), ("ingest", "3h", 2):
        commit(redis, 1)
        env = {"INGEST_STORE": f"sqlite:///{tmp}/{name}.db", "INGEST_KEEP": f"votes={keep}"}
        done = subprocess.run(
            [sys.executable, ROOT / "worker.py", "burst"], env=environment(tmp, env), capture_output=True, text=True
        )
        with open(tmp / "said", "a") as said:
            said.write(done.stderr)
        assert (tmp / "said").read_text().count("INGEST_STORE is another database than before") == others
        with database(tmp / f"{name}.db") as db:
            ((figures,),) = db.execute("SELECT figures FROM batches_cells").fetchall()
        published = json.loads(str(figures))["settings"]
        assert published["keep"]["votes"] == {"1h": 3600, "forever": None, "2h": 7200, "3h": 10_800}[keep]
        assert published["unique"]["votes"] == 86_400 and published["rows"] == {}


@pytest.mark.parametrize("error", [NewerTables("the database", 9, 8), Unavailable("locked")])
def test_a_worker_that_cannot_leave_its_line_goes_on_unless_the_tables_are_newer(
    error: Exception, tmp: Path, redis: Server
) -> None:
    class Last(Publisher):
        def publish(self, store: Store[Any], last: bool = False) -> None:
            raise error

    publisher = Last(Inspector(str(redis.socket)), STREAMS, "c1", keep=True)
    ours = program.Worker(Outlet(str(redis.socket)), f"sqlite:///{tmp}/ingest.db", STREAMS, LIMITS, publisher)
    push(redis, "a")
    with pytest.raises(NewerTables) if isinstance(error, NewerTables) else contextlib.nullcontext():
        ours.run(burst=True)
    assert choices(tmp) == ["a"]


def test_a_worker_leaves_its_last_line_only_when_it_has_drained(tmp: Path, redis: Server) -> None:
    last: list[bool] = []

    class Last(Publisher):
        def publish(self, store: Store[Any], is_last: bool = False) -> None:
            last.append(is_last)
            super().publish(store, is_last)

    publisher = Last(Inspector(str(redis.socket)), STREAMS, "c1", keep=True)
    ours = program.Worker(Outlet(str(redis.socket)), f"sqlite:///{tmp}/ingest.db", STREAMS, LIMITS, publisher)
    push(redis, "a")
    ours.run(burst=True)
    assert choices(tmp) == ["a"]
    assert last[-1] and not any(last[:-1])


def test_two_workers_share_a_backlog(tmp: Path, redis: Server) -> None:
    for start in range(0, 60_000, 10_000):
        push(redis, *range(start, start + 10_000))
    made_by = [worker(tmp, log=f"{n}.out") for n in range(2)]
    with made_by[0], made_by[1]:
        poll(lambda: len(choices(tmp)) >= 60_000)
    assert sorted(choices(tmp), key=int) == numbers(60_000)


def test_a_worker_that_loses_its_lease_while_it_persists_stores_nothing_twice(tmp: Path, redis: Server) -> None:
    create_database(tmp)
    with worker(tmp, log="first.out") as first:
        with locked(tmp):
            push(redis, *range(100))
            (name,) = poll(lambda: claims(redis))
            first.process.send_signal(signal.SIGSTOP)
        expire(redis, name)
        with worker(tmp, log="second.out"):
            poll(lambda: len(choices(tmp)) == 100 and not claims(redis))
        first.process.send_signal(signal.SIGCONT)
        push(redis, "later")
        poll(lambda: "later" in choices(tmp))
        assert first.process.poll() is None
    assert choices(tmp) == [*numbers(100), "later"]
    assert ask(tmp, "SELECT claim FROM batches ORDER BY id")[0] == (name,)


@pytest.mark.nightly
def test_two_workers_on_two_copies_of_a_list_store_each_body_once_and_what_is_pushed_to_either(tmp: Path) -> None:
    """A master that was cut off and its promoted replica, each with a worker: they choose other boundaries."""
    with redis_server(tmp) as one:
        create_database(tmp)
        commit(one, *range(20_000))
    homes = [tmp / "one", tmp / "two"]
    for home in homes:
        shutil.copytree(tmp / "redis", home / "redis")
    env: dict[str, object] = {"INGEST_STORE": f"sqlite:///{tmp}/ingest.db"}
    with redis_server(homes[0]) as one, redis_server(homes[1]) as two:
        assert Outlet(str(two.socket)).claim("votes", max_bodies=777, lease=0)
        commit(one, *range(20_000, 20_100))  # the same sequence numbers as
        commit(two, *range(20_100, 20_200))
        with worker(homes[0], env), worker(homes[1], env):
            poll(lambda: not claims(one) and not claims(two) and len(choices(tmp)) >= 20_200)
    assert sorted(choices(tmp), key=int) == numbers(20_200)
    assert ask(tmp, "SELECT sum(bodies), sum(records) FROM batches") == [(20_200, 20_200)]


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_a_claim_and_the_prefetched_one_are_stored_once_if_their_worker_hangs_or_dies(
    then: int, tmp: Path, redis: Server
) -> None:
    for start in range(0, 60_000, 10_000):
        push(redis, *range(start, start + 10_000))
    with worker(tmp, log="first.out") as first:

        def held() -> bool:
            first.process.send_signal(signal.SIGSTOP)
            if len(claims(redis)) == 2:
                return True
            first.process.send_signal(signal.SIGCONT)
            return False

        poll(held)
        names = list(claims(redis))
        for name in names:
            expire(redis, name)
        with worker(tmp, log="second.out"):
            leases = partial(raw(redis).zmscore, "ingest:{votes}:claims", names)
            # wait until the second worker has claimed one of them
            poll(lambda: any(end is None or end > time.time() * 1000 for end in leases()))
            first.process.send_signal(then)
            poll(lambda: len(choices(tmp)) >= 60_000 and not claims(redis))
    assert sorted(choices(tmp), key=int) == numbers(60_000)


def test_the_next_claim_is_requested_after_the_bodies_are_read_and_before_they_are_stored(redis: Server) -> None:
    open_claims: list[int] = []

    class Reader(Outlet):
        def read_items(self, claim: Claim) -> list[bytes]:
            found = super().read_items(claim)
            open_claims.append(len(claims(redis)))
            return found

    class Store:
        def persist(self, claim: Claim, bodies: list[Body], limits: Limits) -> Outcome:
            poll(lambda: len(claims(redis)) == 2)
            assert len(bodies) == claim.count
            return Outcome(claim.count, 0)

    ours = program.Worker(Reader(str(redis.socket)), "", STREAMS, LIMITS)
    ours.store = Store()  # type: ignore[assignment]
    (state,) = [state for state in ours.states if state.stream.name == "votes"]
    state.max_bodies = MAX_BODIES
    push(redis, *range(2 * MAX_BODIES + 1))
    assert ours.step(state)
    assert state.prefetched
    assert open_claims == [1]
    ours.release()


def test_the_prefetched_claim_is_kept_while_the_one_before_it_is_stored(
    redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "RENEW_SECONDS", 0.01)

    class Store:
        db = None
        row_destinations = RowDestinations()

        def persist(self, claim: Claim, bodies: list[Body], limits: Limits) -> Outcome:
            if claim.count == MAX_BODIES:
                (name,) = poll(lambda: claims(redis).keys() - {claim.id})
                expire(redis, name)
                poll(lambda: raw(redis).zscore("ingest:{votes}:claims", name) > time.time() * 1000)
                ours.stop()
            return Outcome(claim.count, 0)

    ours = program.Worker(Outlet(str(redis.socket)), "", {"votes": STREAMS["votes"]}, LIMITS)
    ours.store = Store()  # type: ignore[assignment]
    ours.states[0].max_bodies = MAX_BODIES
    push(redis, *range(MAX_BODIES + 1))
    ours.run()
    assert claims(redis) == {}


def test_a_lost_reply_holds_up_no_later_renewal(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(outlet, "TIMEOUT_SECONDS", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp / "redis.sock"))
        silent.listen()
        ours = Outlet(str(tmp / "redis.sock"))

        def renew() -> None:
            for step in partial(ours.renew, Claim("votes", "spool:7:1", 7, 4, 0, [(6, 600)])), ours.report_state:
                with contextlib.suppress(client.RedisError):
                    step()

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()


def test_bodies_that_take_long_are_claimed_one_by_one() -> None:
    state = program.StreamState(STREAMS["votes"], Outlet("unused.sock"))
    state.size_next_claim(1, 100.0)
    assert state.max_bodies == 1


def decode(claim: Claim, stream: Stream, *items: bytes, seconds: float = 60.0) -> Group:
    return decode_claim(claim, items, stream, LIMITS, Counts().histogram("decode_seconds votes", SECONDS), seconds)


def test_each_body_has_the_time_of_the_last_mark_before_it() -> None:
    marked = Claim("votes", "spool:7:1", 7, 4, 0, [(6, 600), (8, 800), (9, 900)])
    group = decode(marked, STREAMS["votes"], *(vote(n) for n in range(4)))
    assert [(body.seq, body.received) for body in group.bodies] == [(7, 600), (8, 800), (9, 900), (10, 900)]


def test_a_body_whose_decoder_raises_is_buried() -> None:
    def broken(body: bytes, limits: Limits) -> Decoded:
        raise ValueError("the second record")

    claim = Claim("votes", "epoch:1:1", 1, 1, 0, [(1, 1)])
    (body,) = decode(claim, STREAMS["votes"]._replace(decode=broken), b"x").bodies
    assert body.rejects == (Reject(b"x", "the decoder failed: ValueError", True),) and not body.records


def test_a_worker_that_stops_stores_the_claim_that_it_has_prefetched(redis: Server) -> None:
    stored: list[int] = []

    class Store:
        db = None
        row_destinations = RowDestinations()

        def persist(self, claim: Claim, bodies: list[Body], limits: Limits) -> Outcome:
            stored.append(len(bodies))
            if len(stored) == 1:
                ours.stop()
            return Outcome(claim.count, 0)

    streams = {name: STREAMS[name] for name in ("votes", "logs")}
    ours = program.Worker(Outlet(str(redis.socket)), "", streams, LIMITS)
    ours.store = Store()  # type: ignore[assignment]
    ours.states[0].max_bodies = MAX_BODIES
    push(redis, *range(MAX_BODIES + 1))
    raw(redis).rpush("ingest:{logs}", b"x")  # which it has not claimed
    ours.run()
    assert stored == [MAX_BODIES, 1]
    assert claims(redis) == {}


def test_a_body_is_decoded_once_and_before_the_transaction_begins(redis: Server, tmp: Path) -> None:
    """Whatever is odd in it, and though the database rejects one of its rows."""
    url = f"sqlite:///{tmp}/ingest.db"
    with contextlib.closing(open_store(url, STREAMS)) as store, store.transaction() as db:
        sql = "CREATE TRIGGER t BEFORE INSERT ON votes WHEN new.choice = '3' BEGIN SELECT RAISE(ABORT, 'no'); END"
        store.run_sql(db, sql)
    seen: list[tuple[bytes, bool]] = []

    def counted(item: bytes, limits: Limits) -> Decoded:
        seen.append((item, bool(ours.store and ours.store.db and ours.store.db.in_transaction)))
        return STREAMS["votes"].decode(item, limits)

    stream = STREAMS["votes"]._replace(decode=counted, decoder=None)  # of a user's own
    ours = program.Worker(Outlet(str(redis.socket)), url, {"votes": stream}, LIMITS)
    bodies = [b"bad\n" + b"\n".join(map(vote, range(9))), vote(9), vote(9), b'{"poll":NaN}']
    raw(redis).rpush("ingest:{votes}", *bodies)
    ours.run(burst=True)
    assert seen == [(body, False) for body in bodies]
    assert sorted(choices(tmp)) == sorted([*"01245678", "9", "9"])
    with contextlib.closing(open_store(url, STREAMS)) as store:
        assert [letter.seq for letter in find_letters(store)] == [1, 1, 4]


def test_a_body_is_buried_while_a_worker_decodes_it(redis: Server, tmp: Path) -> None:
    decoding, buried = threading.Event(), threading.Event()

    def slow(item: bytes, limits: Limits) -> Decoded:
        decoding.set()
        assert buried.wait(PATIENCE)
        return STREAMS["votes"].decode(item, limits)

    url = f"sqlite:///{tmp}/ingest.db"
    ours = program.Worker(Outlet(str(redis.socket)), url, {"votes": STREAMS["votes"]._replace(decode=slow)}, LIMITS)
    push(redis, "a")
    thread = threading.Thread(target=ours.run, args=(True,))
    thread.start()
    assert decoding.wait(PATIENCE)
    try:
        assert sluice(tmp, "bury", "votes", "--yes")[:2] == (0, "votes: 1 bodies buried\n")
    finally:
        buried.set()
        thread.join()
    with contextlib.closing(open_store(url, STREAMS)) as store:
        assert [letter.reason for letter in find_letters(store)] == ["buried by the operator"]
    assert choices(tmp) == [] and claims(redis) == {}


def test_a_claim_of_large_bodies_is_stored_in_groups(redis: Server, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_limits, "HELD_BYTES", 3 * 10 * transaction_limits.RECORD_BYTES)
    url = f"sqlite:///{tmp}/ingest.db"
    ours = program.Worker(Outlet(str(redis.socket)), url, {"votes": STREAMS["votes"]}, LIMITS)
    raw(redis).rpush("ingest:{votes}", *(b"\n".join(map(vote, range(10))) for _ in range(7)))
    ours.run(burst=True)
    assert len(choices(tmp)) == 70
    with database(tmp / "ingest.db") as db:
        sizes = [bodies for (bodies,) in db.execute("SELECT bodies FROM batches ORDER BY id")]
    assert sum(sizes) == 7 and max(sizes) <= 3


def test_a_claim_that_is_already_in_the_store_is_only_settled(tmp: Path, redis: Server) -> None:
    create_database(tmp)
    with worker(tmp, log="first.out") as first:
        with locked(tmp):
            push(redis, *range(50))
            (name,) = poll(lambda: claims(redis))
            first.process.send_signal(signal.SIGSTOP)
        # as if another worker had stored it and died before it settled it
        with database(tmp / "ingest.db") as db:
            db.execute("INSERT INTO batches VALUES (1, ?, 'votes', 1, 50, 50, 'now')", (name,))
        first.process.send_signal(signal.SIGCONT)
        poll(lambda: not claims(redis))
    assert choices(tmp) == []


def test_a_worker_folds_batches_and_deletes_rows_by_age(tmp: Path, redis: Server) -> None:
    create_database(tmp)
    with database(tmp / "ingest.db") as db, db:
        some = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
        db.execute(some + "INSERT INTO batches SELECT n, 's-1:'||n||':1', 'votes', n, 1, 1, '' FROM n", (8_000,))
        columns = "(received_at, time, poll, choice, voter, batch, seq)"
        row = "'2020-01-01T00:00:00.000Z', '2020-01-01T00:00:00.000Z', 'p', 'old', NULL, n, n"
        now = "strftime('%Y-%m-%dT%H:%M:%fZ')"
        db.execute(some + f"INSERT INTO votes {columns} SELECT {row} FROM n", (12_000,))
        db.execute(some + f"INSERT INTO votes {columns} SELECT {now}, {now}, 'p', 'new', NULL, n, n FROM n", (2,))
    with worker(tmp, {"INGEST_KEEP": "10m"}):
        poll(lambda: ask(tmp, "SELECT count(*) FROM batches") < [(6_000,)])
        poll(lambda: ask(tmp, "SELECT count(*) FROM votes") == [(2,)])
        push(redis, "a")
        poll(lambda: choices(tmp)[-1] == "a")


def test_old_rows_are_looked_for_once_in_a_fiftieth_of_their_age_but_at_least_once_an_hour() -> None:
    s = settings.load_settings({"INGEST_KEEP": "gps=100s,votes=365d"})
    pauses = {
        chore.name: chore.pause
        for chore in chores.worker_chores(
            {name: STREAMS[name] for name in ("gps", "votes", "logs")}, s.keep, RowDestinations()
        )
    }
    rows = "deleting old rows of {}".format
    others = {
        "folding of batches": chores.FOLD_SECONDS,
        "deleting old keys": chores.LEFT_SECONDS / 50,
    }
    assert pauses == others | {rows("gps"): 2, rows("votes"): 3600}


AVAILABLE: Any = SimpleNamespace(db=True)  # a store


@pytest.mark.parametrize("error, why", [(Unavailable("away"), "not done: away"), (RuntimeError("x"), "RuntimeError")])
def test_a_chore_that_fails_delays_only_itself(error: Exception, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    done: list[str] = []

    def fails(store: Store) -> bool:
        clock[0] += 13
        raise error

    def works(store: Store) -> bool:
        clock[0] += 1
        done.append("works")
        return True

    said: dict[str, str | None] = {}
    ours = Chores([Chore("a", fails, 10), Chore("b", works, 10), Chore("c", works, 10)], said.__setitem__)
    monkeypatch.setattr(chores, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for _ in range(4):
        ours.do_next(AVAILABLE)
    assert done == ["works"]  # a second of work, so the next chore is due in ten
    assert (ours.chores[0].due, ours.due) == (13 + 10 * 13, 14 + 10 * 1)
    assert said.keys() == {"a", "b"} and said["b"] is None and (said["a"] or "").endswith(why)


def test_a_chore_is_due_at_once_while_there_is_more_and_after_ten_times_what_a_failure_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 100.0
    answers: list[bool | Exception] = [True, False, Unavailable("locked"), Unavailable("away")]
    took = iter([1, 1, 1, 30])

    def step(_: Store) -> bool:
        nonlocal clock
        clock += next(took)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    chore = Chore("a chore", step, 50)
    ours = Chores([chore], lambda name, why: None)
    monkeypatch.setattr(chores, "time", SimpleNamespace(monotonic=lambda: clock))
    pauses = []
    while answers:
        clock = max(chore.due, ours.due, clock)
        ours.do_next(AVAILABLE)
        pauses.append(chore.due - clock)
    assert pauses == [0, 50, 50, 300]


@pytest.mark.nightly
def test_leases_are_renewed_while_the_store_is_locked(tmp: Path, redis: Server) -> None:
    create_database(tmp)
    with worker(tmp) as running:
        with locked(tmp):
            push(redis, "a")
            (name,) = poll(lambda: claims(redis))
            lease = partial(raw(redis).zscore, "ingest:{votes}:claims", name)  # when it ends, milliseconds
            first = lease()
            poll(lambda: "the database is unavailable" in running.said())
            left: list[float] = []  # of the lease, milliseconds

            def renewed_twice() -> bool:
                left.append(lease() - 1000 * time.time())
                return bool(lease() > first + 1000 * LEASE_SECONDS / 2)

            poll(renewed_twice)
            assert min(left) > 0
            assert Outlet(str(redis.socket)).claim("votes") is None
            push(redis, "b")
        poll(lambda: choices(tmp) == ["a", "b"])
        assert ask(tmp, "SELECT claim FROM batches ORDER BY id")[0] == (name,)
        poll(lambda: "recovered" in running.said())
        assert [line.partition(": ")[2] for line in running.said().splitlines()] == [
            f"votes: the database is unavailable: {tmp}/ingest.db: database is locked",
            "votes: recovered",
        ]


def test_the_worker_retries_until_the_store_can_be_opened(tmp: Path, redis: Server) -> None:
    (tmp / "full").write_text("a file where the folder should be")
    env: dict[str, object] = {"INGEST_STORE": f"sqlite:///{tmp}/full/ingest.db"}
    with worker(tmp, env) as running:
        push(redis, "a")
        poll(lambda: "the database is unavailable" in running.said())
        (tmp / "full").unlink()
        poll(lambda: choices(tmp / "full") == ["a"])
        assert running.said().count("is unavailable") == 1


def test_a_stream_with_a_broken_table_does_not_delay_the_others(tmp: Path, redis: Server) -> None:
    create_database(tmp)
    with database(tmp / "ingest.db") as db:
        db.execute("DROP TABLE votes")
        db.execute("CREATE VIEW votes AS SELECT 1 AS one")
    with worker(tmp) as running:
        push(redis, *range(10))
        poll(lambda: "votes: the database is unavailable" in running.said())
        raw(redis).rpush("ingest:{gps}", b'{"device":"d","lat":1,"lon":2}')
        poll(lambda: ask(tmp, "SELECT device FROM gps") == [("d",)])
        assert claims(redis).values()
        with database(tmp / "ingest.db") as db:
            db.execute("DROP VIEW votes")
        poll(lambda: choices(tmp) == numbers(10))
        assert "gps" not in running.said()


def test_a_stored_claim_is_counted_and_ends_the_waits_and_the_next_one_is_twice_as_large(redis: Server) -> None:
    answers: list[Outcome | None] = [Outcome(100, 0), Outcome(200, 0), None, Outcome(1, 0), None]

    class Store:
        def transaction(self, read: bool) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def persist(self, claim: Claim, bodies: list[Body], limits: Limits) -> Outcome:
            if answer := answers.pop(0):
                return answer
            raise Unavailable("locked")

    ours = program.Worker(Outlet(str(redis.socket)), "", STREAMS, LIMITS)
    ours.store = Store()  # type: ignore[assignment]
    (state,) = [state for state in ours.states if state.stream.name == "votes"]
    state.max_bodies = 100
    state.decoded.sum = 1000.0  # of earlier claims
    push(redis, *range(500))
    sizes = []
    while answers:
        state.retry_at = 0.0
        ours.try_step(state)
        sizes.append(state.max_bodies)
    assert sizes == [200, 400, 400, program.FIRST_BODIES, program.FIRST_BODIES]  # after a failure, a body alone
    assert state.backoff == program.BACKOFF_SECONDS[0]
    assert state.errors.n == 2
    assert 0 < state.persisted.sum < 60
    ours.release()


def test_a_claim_that_cannot_be_stored_is_tried_again_after_longer_and_longer_times(
    redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=time.sleep))
    state = program.StreamState(STREAMS["votes"], Outlet(str(redis.socket)))
    pauses = []
    for _ in range(9):
        state.postpone()
        pauses.append(state.retry_at - 100)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])


def test_a_key_that_is_not_as_it_should_be_delays_only_its_stream(tmp: Path, redis: Server) -> None:
    raw(redis).zadd("ingest:{logs}:claims", {"not a claim": 0})  # by some tool
    with worker(tmp) as running_worker:
        push(redis, "a")
        poll(lambda: choices(tmp) == ["a"])
        poll(lambda: "logs: an error, tried again" in running_worker.log.read_text())
        raw(redis).delete("ingest:{logs}:claims")
        raw(redis).rpush("ingest:{logs}", b"x")
        poll(lambda: ask(tmp, "SELECT message FROM logs") == [("x",)])


@pytest.mark.parametrize("broken", ["renew", "report_state", "has_work"])
def test_no_error_ends_the_loop_or_the_renewal_of_leases(
    broken: str, tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "RENEW_SECONDS", 0.01)
    outlet = Outlet(str(redis.socket))
    failed = [0]
    whole = getattr(outlet, broken)

    def odd(*given: Any, **named: Any) -> Any:
        failed[0] += 1
        if failed[0] <= 2:
            raise KeyError("odd")
        return whole(*given, **named)

    monkeypatch.setattr(outlet, broken, odd)
    ours = program.Worker(outlet, f"sqlite:///{tmp}/ingest.db", {"votes": STREAMS["votes"]}, LIMITS)
    if broken == "renew":
        push(redis, "held")
        ours.states[0].claim = outlet.claim("votes")
        ours.states[0].retry_at = time.monotonic() + 3600
    thread = threading.Thread(target=ours.run)
    thread.start()
    poll(lambda: failed[0] > 2)
    if broken != "renew":
        push(redis, "a")
        poll(lambda: choices(tmp) == ["a"])
    ours.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_an_unexpected_error_delays_only_its_stream(tmp: Path, redis: Server, caplog: pytest.LogCaptureFixture) -> None:
    stored: list[str] = []
    failures = iter([True, True, True, False])

    class Store:
        db = None
        row_destinations = RowDestinations()

        def transaction(self, read: bool) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def persist(self, claim: Claim, bodies: list[Body], limits: Limits) -> Outcome:
            if claim.stream == "votes" and next(failures):
                raise ZeroDivisionError
            stored.append(claim.stream)
            return Outcome(claim.count, 0)

    ours = program.Worker(Outlet(str(redis.socket)), "", STREAMS, LIMITS)
    ours.store = Store()  # type: ignore[assignment]
    push(redis, "a")
    raw(redis).rpush("ingest:{gps}", b"x")
    thread = threading.Thread(target=ours.run)
    thread.start()
    poll(lambda: len(stored) == 2)
    ours.stop()
    thread.join()
    assert stored == ["gps", "votes"]
    said = [record for record in caplog.records if "ZeroDivisionError" in record.getMessage()]
    assert len(said) == 1  # however often it is tried


def test_the_worker_recovers_when_redis_is_killed_and_started_again(tmp: Path) -> None:
    with contextlib.ExitStack() as stack:
        with redis_server(tmp) as first:
            running = stack.enter_context(worker(tmp))
            push(first, "a")
            poll(lambda: choices(tmp) == ["a"])
            # Redis is killed while bodies are READY and, most of the time, while the worker stores some
            for start in range(0, 50_000, 10_000):
                push(first, *range(start, start + 10_000))
            first.process.kill()
        poll(lambda: "Redis is unavailable" in running.said())
        with redis_server(tmp) as second:
            push(second, "b")
            poll(lambda: "b" in choices(tmp))
            poll(lambda: not claims(second))
            # each once; a claim that is taken again, as its lease ended meanwhile, is stored behind others
            assert sorted(choices(tmp)) == sorted(["a", *numbers(50_000), "b"])
            poll(lambda: "redis: recovered" in running.said())
            # for the lost connection, for one that is reset as the server ends, for the missing socket
            assert running.said().count("Redis is unavailable") <= 3
            assert running.process.poll() is None
            running.process.terminate()
            assert running.process.wait(PATIENCE) == 0


def test_without_redis_the_worker_waits_longer_and_longer_and_each_time_from_the_first_wait(tmp: Path) -> None:
    waits: list[float] = []
    redis = contextlib.ExitStack()

    class Wake:
        """The lock at which the worker waits."""

        def acquire(self, timeout: float) -> None:
            waits.append(timeout)
            if len(waits) == 9:
                redis.enter_context(redis_server(tmp))
            elif timeout == program.IDLE_SECONDS:
                redis.close()
            elif len(waits) == 12:
                ours.stopping = True

    ours = program.Worker(Outlet(str(tmp / "run/redis.sock")), "", STREAMS, LIMITS)
    ours.store = SimpleNamespace(db=None, row_destinations=RowDestinations())  # type: ignore[assignment]
    ours.wake = Wake()  # type: ignore[assignment]
    with redis:
        ours.run()
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, program.IDLE_SECONDS, 0.1, 0.2]


def test_an_idle_worker_only_looks_whether_there_is_work(redis: Server) -> None:
    turns: list[str] = []

    class Looker(Outlet):
        def has_work(self, streams: list[str]) -> list[bool]:
            turns.append("look")
            ours.stopping = len(turns) > 10
            return super().has_work(streams)

        def request_claim(self, *given: Any) -> Any:
            turns.append("claim")
            return super().request_claim(*given)

    push(redis, "a")
    assert Outlet(str(redis.socket)).claim("votes")  # another worker has it
    ours = program.Worker(Looker(str(redis.socket)), "", STREAMS, LIMITS)
    ours.store = SimpleNamespace(db=None, row_destinations=RowDestinations())  # type: ignore[assignment]
    ours.wake = SimpleNamespace(acquire=lambda timeout: turns.append("wait"))  # type: ignore[assignment]
    ours.run()
    # it may claim what another worker has as soon as that one's lease has ended
    assert turns == [*["look", "claim", "wait"] * 4, "look", "wait"]


def test_the_worker_waits_between_looks_while_a_claim_cannot_be_stored(redis: Server) -> None:
    turns: list[str] = []

    class Looker(Outlet):
        def has_work(self, streams: list[str]) -> list[bool]:
            turns.append("look")
            return super().has_work(streams)

    class Store:
        db = None
        row_destinations = RowDestinations()

        def persist(self, claim: Claim, bodies: list[Body], limits: Limits) -> Outcome:
            turns.append("persist")
            raise Unavailable("locked")

    def wait(timeout: float) -> None:
        turns.append("wait")
        ours.stopping = len(turns) > 4

    ours = program.Worker(Looker(str(redis.socket)), "", STREAMS, LIMITS)
    ours.store = Store()  # type: ignore[assignment]
    ours.wake = SimpleNamespace(acquire=wait)  # type: ignore[assignment]
    push(redis, "a")
    ours.run()
    assert turns == ["look", "persist", "wait", "look", "wait"]


def test_the_worker_waits_for_a_redis_that_is_not_started_yet(tmp: Path) -> None:
    with worker(tmp) as running:
        poll(lambda: "Redis is unavailable" in running.said())
        with redis_server(tmp) as server:
            push(server, "a")
            poll(lambda: choices(tmp) == ["a"])
            running.process.terminate()
            assert running.process.wait(PATIENCE) == 0


OWN = """
import msgspec
from sluice.streams.record import Decoded, Record
from sluice.streams.registry import Stream

class Item(Record, kw_only=True):
    text: str

def decode(body, limits):
    if body == b"at once":
        raise RuntimeError("no")
    words = []
    for word in body.decode().split():
        if word == "halfway":
            raise RuntimeError("no")
        words.append(Item(text=word))
    return Decoded(words)

STREAMS = {"items": Stream("items", Item, decode)}
"""


def test_if_a_user_decoder_raises_only_its_body_is_buried(tmp: Path, redis: Server) -> None:
    (tmp / "own.py").write_text(OWN)
    bodies = [b"a b", b"at once", b"c", b"d halfway e", b"\xff", b"f"]
    raw(redis).rpush("ingest:{items}", *bodies)
    done = drain(tmp, {"INGEST_RECORDS": tmp / "own.py"})
    assert done.returncode == 1
    assert 'raise RuntimeError("no")' in done.stderr
    # no record of a body that failed halfway is stored, because a replay would store it again
    assert ask(tmp, "SELECT text, seq FROM items ORDER BY rowid") == [("a", 1), ("b", 1), ("c", 3), ("f", 6)]
    assert ask(tmp, "SELECT body, reason, whole FROM dead_letters ORDER BY id") == [
        (b"at once", "the decoder failed: RuntimeError", 1),
        (b"d halfway e", "the decoder failed: RuntimeError", 1),
        (b"\xff", "the decoder failed: UnicodeDecodeError", 1),
    ]


SLOW = """
import time
from sluice.streams.record import Decoded, Record
from sluice.streams.registry import Stream

class Item(Record, kw_only=True):
    text: str

def decode(body, limits):
    SPEND
    return Decoded([Item(text="slow")])

STREAMS = {"slow": Stream("slow", Item, decode)}
"""


@pytest.mark.parametrize(
    "spend", ["time.sleep(0.02)", "end = time.thread_time() + 0.02\n    while time.thread_time() < end: pass"],
    ids=["waits", "computes"],
)  # fmt: skip
def test_a_stream_that_is_slow_to_decode_does_not_delay_the_others(spend: str, tmp: Path, redis: Server) -> None:
    (tmp / "own.py").write_text(SLOW.replace("SPEND", spend))
    raw(redis).rpush("ingest:{slow}", *[b"x"] * 1000)
    with worker(tmp, {"INGEST_RECORDS": tmp / "own.py"}):
        poll(lambda: claims(redis, "slow"))
        push(redis, "quick")
        poll(lambda: choices(tmp) == ["quick"])
        assert raw(redis).llen("ingest:{slow}") > 800
        poll(lambda: len(ask(tmp, "SELECT 1 FROM batches WHERE stream = 'slow'")) > 1)
    first, second, *_ = [bodies for (bodies,) in ask(tmp, "SELECT bodies FROM batches WHERE stream = 'slow'")]
    assert max(first, second) <= 51  # as many as take a second; on a busy machine fewer


def test_the_stream_of_the_readme_works(tmp: Path, redis: Server) -> None:
    readme = (ROOT / "README.md").read_text()
    for name, text in re.findall(r"```python\n# (my_\w+\.py)\n(.*?)```", readme, re.DOTALL):
        (tmp / name).write_text(text)
    env: dict[str, object] = {
        "INGEST_ROUTES": tmp / "my_routes.py",
        "INGEST_RECORDS": tmp / "my_records.py",
    }
    with gateway(tmp, redis, env=env) as web, worker(tmp, env):
        (body,) = re.findall(r"curl -d '(.*?)' localhost:8080/orders", readme)
        assert post(web.socket, "/orders", body.encode())[0] == 200
        assert post(web.socket, "/orders", b"sku=B")[0] == 200
        found = poll(lambda: len(rows := ask(tmp, "SELECT sku, count, seq FROM orders")) == 2 and rows)
    assert found == [("A-1", 3, 1), ("B", 1, 2)]


# CPU and memory


def cpu(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def peak(pid: int) -> int:
    """The peak memory of a process, in MB."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) // 1000


def test_an_idle_worker_takes_less_than_one_percent_of_a_core(tmp: Path, redis: Server) -> None:
    with worker(tmp) as running:
        push(redis, "a")
        poll(lambda: choices(tmp) == ["a"])

        def turns() -> float:
            return raw(redis).info("commandstats")["cmdstat_exists"]["calls"] / len(STREAMS)

        def share() -> float:
            """Of a core, over 50 turns. While the machine is busy, a turn may take more CPU."""
            start, before, first = time.monotonic(), cpu(running.pid), turns()
            poll(lambda: turns() >= first + 50)
            return (cpu(running.pid) - before) / (time.monotonic() - start)

        poll(lambda: share() < 0.01)


LINES = b"".join(b'm,host=h%d value=%d,text="%b" %d\n' % (n % 9, n, b"x" * 200, n) for n in range(31_000))


def nested(n: int, times: int, coded: Callable[[bytes], bytes] = gzip.compress) -> bytes:
    """A log with so many times 20,000 lists."""
    return coded(b'{"time":%d,"message":"m","a":[%b]}' % (1_767_268_800 + n, b",".join([NESTED] * times)))


NESTED = b",".join([b"[]"] * 20_000)  # as a list of Python it takes 27 times as much
ARRAYS = b"\x82\xa7message\xa1m\xa1a\xdd" + (1_000_000).to_bytes(4, "big") + b"\x90" * 1_000_000
LOADS: dict[str, tuple[str, list[bytes], str, int]] = {
    # stream, bodies, table, rows afterwards
    "a long backlog": ("votes", [vote(n) for n in range(200_000)], "votes", 200_000),
    "the largest bodies": ("votes", [vote("x" * 1_000_000)] * 60, "votes", 60),
    "the largest bodies after small ones": ("votes", [vote("x")] * 31 + [vote("x" * 1_000_000)] * 60, "votes", 91),
    "invalid bodies of the largest size": ("votes", [b"x" * (1 << 20)] * 60, "dead_letters", 60),
    "large bodies of many records": ("votes", [b"\n".join([vote(n) for n in range(25_000)])] * 8, "votes", 200_000),
    "bodies that inflate to nothing but zeros": ("votes", [gzip.compress(bytes(50 << 20))] * 40, "dead_letters", 40),
    "bodies that inflate to many records": (
        "metrics",
        [gzip.compress(LINES + b"m v=%d\n" % n) for n in range(3)],
        "metrics",
        3 * (2 * 31_000 + 1),
    ),
    "bodies that inflate to many invalid records": (
        "metrics",
        [gzip.compress(b"m v=1\n" + (b"nonsense " * 9 + b"\n") * 90_000)] * 4,
        "metrics",
        4,
    ),
    "bodies that inflate to nested lists": ("logs", [nested(n, 1) for n in range(200)], "logs", 200),
    "large bodies of nested lists": ("logs", [nested(n, 15, bytes) for n in range(5)], "logs", 5),
    "MessagePack of a million arrays": ("logs", [gzip.compress(ARRAYS)], "dead_letters", 1),
}


@pytest.mark.nightly
@needs("formats")
@pytest.mark.parametrize("load", LOADS)
def test_the_worker_stays_below_100_mb_with(load: str, tmp: Path, redis: Server) -> None:
    stream, bodies, table, rows = LOADS[load]
    with raw(redis) as db:
        for start in range(0, len(bodies), 10_000):
            db.rpush("ingest:{%s}" % stream, *bodies[start : start + 10_000])
    with worker(tmp) as running:
        poll(lambda: ask(tmp, f"SELECT count(*) FROM {table}") == [(rows,)], seconds=300)
        poll(lambda: not raw(redis).exists("ingest:{%s}" % stream, "ingest:{%s}:claims" % stream))
        assert peak(running.pid) < 100


@pytest.mark.nightly
def test_the_worker_stays_below_100_mb_while_the_store_searches_for_a_rejected_row(tmp: Path, redis: Server) -> None:
    create_database(tmp)
    with database(tmp / "ingest.db") as db:
        db.execute(
            "CREATE TRIGGER t BEFORE INSERT ON votes WHEN new.choice = '7777' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    body = gzip.compress(b"\n".join([vote(n) for n in range(65_000)]))
    raw(redis).rpush("ingest:{votes}", body, body)
    with worker(tmp) as running:
        poll(lambda: ask(tmp, "SELECT count(*) FROM votes") == [(129_998,)], seconds=300)
        assert ask(tmp, "SELECT count(*), min(whole), max(whole) FROM dead_letters") == [(2, 0, 0)]
        assert peak(running.pid) < 100


@pytest.mark.parametrize("name", ["votes", "dead"])
def test_a_clock_that_jumps_ahead_deletes_nothing_that_is_kept(
    name: str, tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, now, ahead = 86_400, time.time, [0.0]
    monkeypatch.setattr(program.time, "time", lambda: now() + ahead[0])
    commit(redis, *range(10))
    raw(redis).rpush("ingest:{votes}", b"bad", b"bad")
    ours = program.Worker(Outlet(str(redis.socket)), f"sqlite:///{tmp}/ingest.db", {"votes": STREAMS["votes"]}, LIMITS)
    ours.run(burst=True)
    assert ours.store
    left = partial(ask, tmp, f"SELECT count(*) FROM {'votes' if name == 'votes' else 'dead_letters'}")
    before, first = left(), expiry.Expiry(name, 30 * day)
    while first.step(ours.store):
        pass
    for each in first, expiry.Expiry(name, 30 * day):  # also after a restart
        for ahead[0] in 40 * day, 400 * day, -3600:
            while each.step(ours.store):
                pass
            assert left() == before
    ahead[0] = 40 * day
    code, out, said = sluice(tmp, "expire", INGEST_KEEP=f"{name}=30d")
    assert (code, f"{name}: 0 deleted" in out) == (0, True)
    assert f"{name}: the clock is 39 d ahead of the last deletion; if it is right: --catch-up" in said
    assert sluice(tmp, "expire", "--catch-up", INGEST_KEEP=f"{name}=30d")[0] == 0
    assert left() == [(1 if name == "votes" else 0,)]  # SQLite keeps the last row


def test_what_an_outage_has_left_is_deleted_at_twice_the_pace_of_time(
    tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    class Recording:
        def read_horizon(self, name: str) -> int:
            return NOON

        def latest_boot(self) -> None:
            return None

        def set_horizons(self, horizons: dict[str, int]) -> None:
            pass

        def read_settings(self, kind: str) -> list[Any]:
            return []

        def expire_stream(self, name: str, before: int) -> bool:
            steps.append(before - NOON)
            return False

    passed = [0.0]
    monkeypatch.setattr(expiry, "time", SimpleNamespace(time=lambda: NOON / 1e6 + 100_000 + 3600))
    monkeypatch.setattr(expiry.times, "uptime_seconds", lambda: passed[0])
    votes, store = expiry.Expiry("votes", 3600), Recording()
    for passed[0] in 0.0, 1000.0, 40_000.0, 60_000.0:
        votes.step(store)  # type: ignore[arg-type]
    assert steps == [0, 2000 * 10**6, 80_000 * 10**6, 100_000 * 10**6]


class Machine:
    """Its clock and its uptime. boots: so often. passes: for all that looks at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = self.up = 0.0
        self.boots, now, up = 1, time.time, times.uptime_seconds
        patch.setattr(time, "time", lambda: now() + self.clock)
        for module in times, bookkeeping:
            patch.setattr(module, "uptime_seconds", lambda: up() + self.up)
            patch.setattr(module, "boot_id", lambda: f"boot {self.boots}")

    def passes(self, seconds: float) -> None:
        self.clock, self.up = self.clock + seconds, self.up + seconds

    def is_off(self, seconds: float) -> None:
        self.clock, self.up, self.boots = self.clock + seconds, 0.0, self.boots + 1


@pytest.mark.parametrize("rest", ["between two bursts", "off for a day"])
def test_bursts_alone_delete_by_age_and_suspect_no_clock(
    rest: str, tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each worker lives for a moment, and the machine may be off for most of the day."""
    machine = Machine(monkeypatch)
    env = {"INGEST_UNIQUE": "10m", "INGEST_KEEP": "votes=10m,gps=10m,dead=10m"}
    config = settings.load_settings(environment(tmp, env))
    streams = load_streams(config)

    def left() -> list[int]:
        tables = "votes", "gps", "dead_letters", "batches_keys"
        return [ask(tmp, f"SELECT count(*) FROM {table}")[0][0] for table in tables]

    found = []
    for life in range(8):
        if life == 0:
            commit(redis, 1, 2)
            raw(redis).rpush("ingest:{votes}", b"bad")
            raw(redis).rpush(
                "ingest:{gps}", b'{"device":"a","lat":1,"lon":2,"time":1}', b'{"device":"b","lat":1,"lon":2}'
            )
        ours = program.Worker(Outlet(str(redis.socket)), config.store, streams, LIMITS, keep=config.keep)
        ours.run(burst=True)
        found.append(left())
        if rest == "off for a day":
            machine.passes(60)
            machine.is_off(86_340)
        else:
            machine.passes(240)
    assert found[0] == [2, 2, 1, 1]
    assert found[-1] == [1, 1, 0, 0]  # SQLite keeps the last row
    assert "clock" not in caplog.text


def test_a_clock_that_has_moved_is_said_once_and_so_is_that_it_was_caught_up(
    tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sluice.worker")
    machine, store = Machine(monkeypatch), open_store(f"sqlite:///{tmp}/ingest.db", STREAMS)
    machine.passes(3600)
    first = expiry.Expiry("votes", 86_400)
    first.step(store)
    machine.clock += 7200
    for _ in range(6):
        first.step(store)
        machine.passes(1800)
    assert [text for text in caplog.messages if "votes: " in text] == [
        "votes: the clock is 2 h ahead of what has passed since the last deletion by age; catching up",
        "votes: deletion by age has caught up",
    ]
    store.close()
