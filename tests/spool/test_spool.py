"""The Redis contract (docs/protocol/spool.md) against a standalone server and a node of a cluster."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client
from redis.connection import AbstractConnection

from proving.harness import Server, environment, free_port, poll, redis_server, running, short_tmp, stopped
from sluice.account import Publisher
from sluice.spool import contract
from sluice.spool import inlet as gateway_side
from sluice.spool.backlog import Backlog
from sluice.spool.claim import Claim, Window
from sluice.spool.contract import Keys
from sluice.spool.errors import Lost, Refusal
from sluice.spool.inlet import Group, Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import MAX_BYTES, Outlet
from sluice.store.registry import open_store
from sluice.store.types import Body, Outcome
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Vote

pytestmark = pytest.mark.contract

KEYS = Keys.for_stream("s")


def raw(server: Server) -> Any:
    """A client for the test's own use."""
    return client.Redis(unix_socket_path=str(server.socket), socket_timeout=60)


@contextlib.contextmanager
def cluster_node(tmp: Path) -> Iterator[Server]:
    """A cluster of one node, which has all slots."""
    socket = tmp / "cluster.sock"
    command = ["redis-server", "--dir", tmp, "--unixsocket", socket, "--cluster-enabled", "yes", "--save", ""]
    # by default, the cluster bus listens on the port plus 10000
    ports = ["--port", free_port(), "--cluster-port", free_port(), "--bind", "127.0.0.1"]
    with running([*command, *ports], tmp / "cluster.out", environment(tmp)) as process:
        server = Server(process, tmp / "cluster.out", tmp, sockets=[socket])
        poll(lambda: raw(server).execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383))
        poll(lambda: raw(server).execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield server


@pytest.fixture(scope="module", params=["alone", "cluster"])
def node(request: pytest.FixtureRequest) -> Iterator[Server]:
    alone = request.param == "alone"
    with short_tmp() as tmp, redis_server(tmp, appendfsync="no") if alone else cluster_node(tmp) as server:
        yield server


@pytest.fixture
def server(node: Server) -> Iterator[Server]:
    """An empty server."""
    with raw(node) as db:
        db.flushall()
        db.config_resetstat()
    yield node


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy disk may take half a minute for one fsync."""
    monkeypatch.setattr(gateway_side, "TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(contract, "TIMEOUT_SECONDS", 60.0)


@pytest.fixture
def own(tmp: Path) -> Iterator[Server]:
    """A server that the test may kill or fill."""
    with redis_server(tmp) as server:
        yield server


@pytest.fixture
def inlet(server: Server) -> Inlet:
    return Inlet(str(server.socket), 10**9)


@pytest.fixture
def outlet(server: Server) -> Outlet:
    return Outlet(str(server.socket))


@pytest.fixture
def inspector(server: Server) -> Inspector:
    return Inspector(str(server.socket))


def push(inlet: Inlet, *bodies: bytes, stream: str = "s") -> Refusal | None:
    """Append bodies and commit them in one group; their refusal, if they are refused."""
    group = inlet.open
    for body in bodies:
        assert inlet.append(stream, body) is group
    inlet.commit(group)
    assert group.done
    return (group.refused or {}).get(stream)


def calls(server: Server, command: str) -> int:
    """The number of calls of a command, including those within scripts."""
    return raw(server).info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)


def marks(server: Server) -> list[tuple[int, int]]:
    """(sequence number, microseconds) of all marks."""
    return [(int(seq), int(us)) for seq, us in (mark.split(b":") for mark in raw(server).zrange(KEYS.marks, 0, -1))]


def claim(outlet: Outlet, stream: str = "s", **limits: float) -> Claim:
    """A claim of a stream that has something to claim."""
    found = outlet.claim(stream, **limits)  # type: ignore[arg-type]
    assert found
    return found


def drained(outlet: Outlet, stream: str = "s", **limits: float) -> list[bytes]:
    """Claim and settle everything: all bodies in order. Checks that the sequence numbers are consecutive."""
    bodies: list[bytes] = []
    first = int(outlet.redis.get(Keys.for_stream(stream).taken) or 0) + 1
    while taken := outlet.claim(stream, **limits):  # type: ignore[arg-type]
        found = list(outlet.read_items(taken))
        assert (taken.first, taken.count) == (first + len(bodies), len(found))
        bodies += found
        outlet.settle(taken)
    return bodies


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


# append and commit


def test_bodies_are_on_the_list_in_the_order_of_arrival(server: Server, inlet: Inlet) -> None:
    assert push(inlet, *numbers(5)) is None
    assert push(inlet, b"5") is None
    assert raw(server).lrange(KEYS.ready, 0, -1) == numbers(6)


def test_nothing_is_sent_before_the_commit(server: Server, inlet: Inlet) -> None:
    group = inlet.append("s", b"a")
    assert not group.done
    assert raw(server).keys("*") == []


def test_bodies_of_any_length_are_sent_unchanged(server: Server, inlet: Inlet) -> None:
    bodies = [b"x" * size for size in (0, 1, 9, 10, *(len(gateway_side.LENGTHS) + n for n in (-1, 0, 1)), 100_000)]
    assert push(inlet, *bodies) is None
    assert raw(server).lrange(KEYS.ready, 0, -1) == bodies
    assert 0 < inlet.seconds.sum < 60


def test_a_list_may_be_limited_to_one_body(server: Server) -> None:
    inlet = Inlet(str(server.socket), 1)
    assert push(inlet, b"a") is None
    assert push(inlet, b"b")


def test_bodies_that_wait_are_read_up_to_a_limit(inlet: Inlet, inspector: Inspector) -> None:
    push(inlet, *numbers(20))
    for limit in 0, 1, 2, 20, 21:
        found = list(inspector.waiting("s", 1, limit))
        assert [(seq, state, body) for seq, state, body in found] == [
            (number + 1, "ready", b"%d" % number) for number in range(min(limit, 20))
        ]


def test_the_bodies_of_a_batch_are_sent_in_one_push(server: Server, inlet: Inlet) -> None:
    push(inlet, *numbers(1000))
    assert calls(server, "rpush") == 1
    assert raw(server).llen(KEYS.ready) == 1000


def test_a_batch_of_several_streams_is_sent_in_one_push_per_stream(server: Server, inlet: Inlet) -> None:
    for stream in "stst":
        inlet.append(stream, stream.encode())
    inlet.commit(inlet.open)
    assert calls(server, "rpush") == 2
    assert raw(server).lrange("ingest:{t}", 0, -1) == [b"t", b"t"]


def test_a_committed_batch_is_not_sent_again(server: Server, inlet: Inlet) -> None:
    group = inlet.append("s", b"a")
    inlet.commit(group)
    inlet.commit(group)
    assert inlet.append("s", b"b") is not group
    assert raw(server).llen(KEYS.ready) == 1


def test_a_body_may_contain_any_bytes(inlet: Inlet, outlet: Outlet) -> None:
    chance = random.Random(1)
    bodies = [b"", b"\r\n", b"$3\r\n", bytes(range(256)), b"x" * (1 << 20)]
    bodies += [chance.randbytes(chance.randrange(300)) for _ in range(500)]
    push(inlet, *bodies)
    assert drained(outlet) == bodies


def test_a_stream_may_have_any_name(inlet: Inlet, outlet: Outlet) -> None:
    for stream in "straße", "a b", "x:claimed", "日本":
        assert push(inlet, b"a", b"b", stream=stream) is None
        assert drained(outlet, stream) == [b"a", b"b"]


@pytest.mark.parametrize("interval", [0.005, 1e-6])
def test_every_body_that_eight_threads_commit_is_on_the_list_once(
    interval: float, server: Server, inlet: Inlet
) -> None:
    acknowledged: list[bytes] = []
    begun = threading.Barrier(9)  # at a microsecond, bin/test --coverage cannot install its trace functions

    def post(thread: int) -> None:
        begun.wait()
        for n in range(250):
            body = b"%d-%d" % (thread, n)
            group = inlet.append("s", body)
            if not group.done:
                inlet.commit(group)
            if group.done and group.refused is None:
                acknowledged.append(body)

    threads = [threading.Thread(target=post, args=(n,)) for n in range(8)]
    before = sys.getswitchinterval()
    for thread in threads:
        thread.start()
    sys.setswitchinterval(interval)
    try:
        begun.wait()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    found = raw(server).lrange(KEYS.ready, 0, -1)
    assert len(acknowledged) == 2000
    assert sorted(found) == sorted(acknowledged)
    of_one = [body for body in found if body.startswith(b"3-")]
    assert of_one == [b"3-%d" % n for n in range(250)]


def test_no_body_is_added_to_a_batch_that_is_being_sent(server: Server, inlet: Inlet) -> None:
    committing = threading.Thread(target=lambda: inlet.commit(group))

    class Bodies(dict):
        """Another thread starts to commit just when a body is appended."""

        def __getitem__(self, stream: str) -> list[bytes]:
            committing.start()
            committing.join(0.3)  # the commit must wait for this append, so it cannot end within the timeout
            return super().__getitem__(stream)

    group = inlet.append("s", b"a")
    group.items = Bodies(group.items)
    assert inlet.append("s", b"b") is group
    committing.join()
    assert raw(server).lrange(KEYS.ready, 0, -1) == [b"a", b"b"]


def test_a_request_of_a_batch_is_answered_only_after_redis_has_replied(server: Server, inlet: Inlet) -> None:
    push(inlet, b"first")  # connects
    on_the_list = []

    def answer(group: Group) -> None:
        """As ingest.py does. CLIENT PAUSE lets the test's own client read."""
        if not group.done:
            inlet.commit(group)
        on_the_list.append(raw(server).llen(KEYS.ready))

    def paused() -> bool:
        """Whether Redis has the push and has not executed it; `b`: the client is blocked."""
        return any("gateway" in each["name"] and "b" in each["flags"] for each in raw(server).client_list())

    group = inlet.append("s", b"a")
    assert inlet.append("s", b"b") is group
    threads = [threading.Thread(target=answer, args=(group,)) for _ in range(2)]
    raw(server).client_pause(60_000, all=False)
    try:
        threads[0].start()
        poll(paused)
        assert not group.done
        threads[1].start()
        assert raw(server).llen(KEYS.ready) == 1
        assert on_the_list == []
    finally:
        raw(server).client_unpause()
    for thread in threads:
        thread.join()
    assert on_the_list == [3, 3]
    assert group.refused is None


# claim, renew, settle


def test_a_claim_takes_the_head_of_the_list_under_consecutive_numbers(inlet: Inlet, outlet: Outlet) -> None:
    assert outlet.claim("s") is None
    push(inlet, *numbers(7))
    one, two = claim(outlet, max_bodies=4), claim(outlet, max_bodies=4)
    assert [(x.first, x.count) for x in (one, two)] == [(1, 4), (5, 3)]
    assert [*outlet.read_items(one), *outlet.read_items(two)] == numbers(7)
    assert outlet.claim("s") is None
    assert one.id.split(":")[1] == "1"


@pytest.mark.parametrize("length", [0, 1, 80, 3000])
def test_a_claim_by_rename_and_a_claim_in_pieces_have_the_same_bodies(
    length: int, server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector
) -> None:
    bodies = [b"%d" % n + b"x" * length for n in range(1000)]
    push(inlet, *bodies)
    push(inlet, *bodies, stream="t")
    assert drained(outlet) == bodies
    assert (calls(server, "rename"), calls(server, "lpop")) == (1, 0)
    assert drained(outlet, "t", max_bodies=997, max_bytes=100_000) == bodies
    assert calls(server, "lpop") > 0
    assert inspector.take_snapshot("s")[:6] == inspector.take_snapshot("t")[:6] == (1000, 0, {}, {}, 0, 0)


def test_a_claim_is_limited_in_bodies_and_in_bytes(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *[b"x" * 1000] * 500)
    assert claim(outlet, max_bodies=7).count == 7
    some = claim(outlet, max_bytes=20_000)
    assert 20 <= some.count <= 20 + 32
    assert claim(outlet, max_bytes=1).count == claim(outlet, max_bytes=1000).count == 1
    push(inlet, b"y" * 100_000, stream="t")
    assert claim(outlet, "t", max_bytes=10).count == 1
    push(inlet, *[b"z" * 10_000] * 40, stream="u")
    assert claim(outlet, "u", max_bodies=40, max_bytes=20_000).count < 40


def test_a_step_of_large_bodies_after_small_ones_exceeds_the_limit_by_little(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *[b"x"] * 511, *[b"y" * 50_000] * 600)
    taken = claim(outlet, max_bytes=1 << 20)
    assert taken.size <= (1 << 20) + 32 * 50_000


def test_a_large_claim_is_read_and_settled_in_parts(server: Server, inlet: Inlet, outlet: Outlet) -> None:
    bodies = [b"%010d" % n * 30_000 for n in range(45)]
    push(inlet, *bodies)
    taken: Claim | None = claim(outlet, max_bytes=10**8)
    found: list[list[bytes]] = []
    while taken:
        found.append(outlet.read_items(taken))
        assert sum(map(len, found[-1])) <= MAX_BYTES
        taken = outlet.settle(taken, taken.first + len(found[-1]))
    assert sum(found, []) == bodies
    assert len(found) > 3
    assert raw(server).keys(KEYS.claim + "*") == []


def test_the_rest_of_a_claim_is_a_claim_with_its_lease_deliveries_and_marks(
    server: Server, inlet: Inlet, outlet: Outlet
) -> None:
    push(inlet, *numbers(10))
    claim(outlet, lease=0)
    whole = claim(outlet)
    assert whole.deliveries == 2
    outlet.count_attempt(whole)
    lease = raw(server).zscore(KEYS.claims, whole.id)
    rest = outlet.settle(whole, 4)
    assert rest and rest[:4] == ("s", whole.id.replace(":1:", ":4:"), 4, 7)
    assert outlet.read_items(rest) == numbers(7, 3)
    assert raw(server).zrange(KEYS.claims, 0, -1, withscores=True) == [(rest.id.encode(), lease)]
    assert raw(server).hgetall(KEYS.deliveries) == {rest.id.encode(): b"1"}
    assert outlet.settle(whole, 2) is None  # by another worker, which has lost it
    assert outlet.settle(rest) is None
    assert raw(server).keys("*claim*") == raw(server).keys(KEYS.deliveries) == []


@pytest.mark.parametrize("size", [1, 80, 1500, 40_000])
def test_a_claim_that_takes_a_list_just_below_its_limit_counts_every_body_once(
    size: int, server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector
) -> None:
    """The bodies are below the limit, the list with its overhead is above it: the last LPOP gets a partial step."""
    limit = 600_000
    bodies = [b"x" * size] * min((limit - 1) // size, 20_011)
    push(inlet, *bodies)
    limit = min(limit, raw(server).memory_usage(KEYS.ready, samples=0) - 1)
    assert len(bodies) * size < limit
    taken = claim(outlet, max_bodies=10**6, max_bytes=limit)
    assert calls(server, "rename") == 0
    assert raw(server).llen(KEYS.claim + taken.id) == taken.count == len(bodies)
    assert inspector.take_snapshot("s").taken == len(bodies)
    assert list(outlet.read_items(taken)) == bodies


def test_only_an_expired_claim_is_claimed_again_and_it_is_the_same(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *numbers(10))
    first = claim(outlet, max_bodies=6, lease=0.2)
    assert claim(outlet, lease=60).first == 7
    assert outlet.claim("s") is None
    again = poll(lambda: claim(outlet, lease=60))
    assert (again.id, again.first, again.count) == (first.id, 1, 6)
    assert again.size > 0
    assert list(outlet.read_items(again)) == numbers(6)
    assert outlet.claim("s") is None


def test_an_expired_claim_comes_before_new_bodies(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, b"a")
    first = claim(outlet, lease=0)
    push(inlet, b"b")
    assert claim(outlet).id == first.id


def test_a_renewed_claim_is_not_claimed_again_and_a_settled_one_cannot_be_renewed(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, b"a")
    taken = claim(outlet, lease=0)
    assert outlet.renew(taken, 60)
    assert outlet.claim("s") is None
    outlet.settle(taken)
    assert not outlet.renew(taken, 60)
    assert outlet.claim("s") is None


def test_a_lease_ends_after_its_time_by_redis_clock(server: Server, inlet: Inlet, outlet: Outlet) -> None:
    def now() -> float:
        seconds, microseconds = raw(server).time()
        return seconds + microseconds / 1e6

    def again() -> None:
        outlet.renew(taken, 0)
        claim(outlet, lease=6000)

    push(inlet, b"a")
    taken = claim(outlet, lease=0)
    for lease in again, lambda: outlet.renew(taken, 6000):
        before = now()
        lease()
        ((_, end),) = raw(server).zrange(KEYS.claims, 0, -1, withscores=True)
        assert before - 0.001 <= end / 1000 - 6000 <= now()  # whole milliseconds


def test_settle_leaves_only_the_counter_and_one_mark(
    server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector
) -> None:
    push(inlet, *numbers(10))
    taken = claim(outlet)
    outlet.settle(taken)
    outlet.settle(taken)
    left = KEYS.taken, KEYS.marks, KEYS.epochs, KEYS.history, contract.LAYOUT_KEY
    assert set(raw(server).keys("*")) == {key.encode() for key in left}
    assert inspector.take_snapshot("s").taken == 10
    assert len(marks(server)) == 1


def test_an_epoch_is_forgotten_when_its_last_body_is_claimed(server: Server, outlet: Outlet) -> None:
    present = raw(server).info("replication")["master_replid"] + "-1"
    raw(server).zadd(KEYS.epochs, {"old": 1, present: 3})
    raw(server).rpush(KEYS.ready, *numbers(4))
    assert claim(outlet).epoch == "old"
    assert raw(server).zrange(KEYS.epochs, 0, -1, withscores=True) == [(present.encode(), 3.0)]


def test_reading_a_claim_that_is_gone_raises_lost(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *numbers(3))
    taken = claim(outlet)
    outlet.settle(taken)
    with pytest.raises(Lost):
        list(outlet.read_items(taken))


def test_a_claim_is_known_by_its_id(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *numbers(9))
    claim(outlet, max_bodies=5)
    taken = claim(outlet)
    again = Claim.from_id("s", taken.id, 4)
    assert again == Claim("s", taken.id, 6, 4, 0, [])
    assert (again.end, again.epoch) == (10, taken.epoch)
    assert list(outlet.read_items(again)) == numbers(4, 5)


def test_a_script_flush_does_no_harm(server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector) -> None:
    for _ in range(3):
        inlet.backlogs.clear()  # so that a mark is due
        push(inlet, b"a")
        raw(server).script_flush()
        taken = claim(outlet)
        raw(server).script_flush()
        assert outlet.renew(taken, 30)
        raw(server).script_flush()
        outlet.settle(taken)
        raw(server).script_flush()
        assert inspector.take_snapshot("s").claims == {}


def test_large_sequence_numbers_stay_exact(server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector) -> None:
    raw(server).set(KEYS.taken, 10**15)
    push(inlet, *numbers(3))
    taken = claim(outlet, max_bodies=2)
    assert (taken.first, taken.id.split(":")[1]) == (10**15 + 1, str(10**15 + 1))
    assert claim(outlet).first == 10**15 + 3
    outlet.settle(taken)
    assert inspector.take_snapshot("s").taken == 10**15 + 3
    assert marks(server)[0][0] == 10**15 + 1


def test_a_body_that_another_tool_pushed_is_claimed_and_dated_by_the_claim(
    server: Server, inlet: Inlet, outlet: Outlet
) -> None:
    raw(server).rpush(KEYS.ready, b"a")
    before = time.time()
    taken = claim(outlet)
    assert list(outlet.read_items(taken)) == [b"a"]
    # there is no mark, so the time of the claim dates it
    assert before <= taken.arrival_of(1)[0] / 1e6 <= time.time()


def test_a_snapshot_shows_the_state_of_a_stream(
    server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector
) -> None:
    assert inspector.take_snapshot("s") == (0, 0, {}, {}, 0, 0, [], True, "", None)
    assert outlet.has_work(["s", "t"]) == [False, False]
    before = time.time()
    push(inlet, *numbers(10))
    one, two = claim(outlet, max_bodies=2), claim(outlet, max_bodies=3)
    now = inspector.take_snapshot("s")
    assert now[:3] == (5, 5, {one.id: 2, two.id: 3})
    assert now.ages.keys() == {one.id, two.id, ""}
    assert all(0 <= age <= time.time() - before for age in now.ages.values())
    assert outlet.has_work(["s", "t"]) == [True, False]
    outlet.settle(one)
    assert inspector.take_snapshot("s")[:3] == (5, 5, {two.id: 3})
    push(inlet, bytes(100_000))
    claim(outlet)
    claimed = inspector.take_snapshot("s")
    assert claimed.ready == 0 and (claimed.size or 0) > 100_000
    raw(server).rpush("ingest:{another}", "a")
    assert inspector.list_streams() == {"s", "another"}


# marks


def test_the_age_of_the_list_is_that_of_its_first_body(
    server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "MARK_SECONDS", 0.0)

    def now() -> int:
        seconds, microseconds = raw(server).time()
        return int(seconds * 10**6 + microseconds)

    push(inlet, b"a")
    claim(outlet)
    ((_, first),) = marks(server)
    poll(lambda: now() > first + 100_000)
    push(inlet, b"b")
    (_, (_, second)) = marks(server)
    before = now()
    ages = inspector.take_snapshot("s").ages
    assert before - second <= ages[""] * 1e6 <= now() - second


def test_a_mark_dates_the_bodies_from_its_own_sequence_number_up_to_the_next_mark() -> None:
    taken = Claim("s", "run:11:0", 11, 10, 0, marks=[(8, 100), (14, 200), (17, 300)])
    dates = {seq: taken.arrival_of(seq) for seq in (11, 13, 14, 16, 17, 20)}
    assert dates == {11: (100, 14), 13: (100, 14), 14: (200, 17), 16: (200, 17), 17: (300, 21), 20: (300, 21)}


def test_a_body_is_dated_within_a_tenth_of_a_second(inlet: Inlet, outlet: Outlet) -> None:
    times: list[tuple[float, float]] = []
    end = time.time() + 1
    while time.time() < end:
        before = time.time()
        push(inlet, b"x")
        times.append((before, time.time()))
    taken = claim(outlet, max_bodies=10**6, max_bytes=10**9)
    assert taken.count == len(times)
    until = 0
    for seq, (before, after) in enumerate(times, 1):
        if seq >= until:  # as the worker asks
            received, until = taken.arrival_of(seq)
        assert received == taken.arrival_of(seq)[0]
        assert before - 0.101 <= received / 1e6 <= after
    assert until == taken.count + 1


def test_a_process_writes_at_most_ten_marks_a_second(server: Server, inlet: Inlet) -> None:
    start = time.monotonic()
    while len(marks(server)) < 4:
        push(inlet, b"x")
    assert time.monotonic() - start >= 0.3


def test_a_process_reports_its_counts_once_in_an_interval(
    server: Server, inlet: Inlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "REPORT_SECONDS", 3600.0)
    push(inlet, b"x")
    push(inlet, b"x")  # reports the first one
    reported = calls(server, "hincrby")
    assert reported
    push(inlet, *numbers(10))
    push(inlet, b"x")
    inlet.report_counts()
    assert calls(server, "hincrby") == reported
    inlet.counts.due = 0.0
    inlet.report_counts()  # without a commit
    assert calls(server, "hincrby") > reported


def test_a_push_that_is_refused_beside_a_report_of_counts_is_refused(server: Server, inlet: Inlet) -> None:
    """The reply to the counts comes first, and is none to the push."""
    push(inlet, b"a")
    inlet.counts.due, inlet.backlogs["s"].mark_due = 0.0, 1e18  # counts and bodies alone are sent
    raw(server).set(KEYS.ready, "not a list")
    assert push(inlet, b"b")
    assert calls(server, "hincrby")


def test_settle_trims_marks_that_no_body_needs(
    server: Server, inlet: Inlet, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "MARK_SECONDS", 0.0)
    for body in numbers(100):
        push(inlet, body)
    assert len(marks(server)) == 100
    one, two = claim(outlet, max_bodies=30), claim(outlet, max_bodies=30)
    dates = [one.arrival_of(seq) for seq in range(1, 31)]
    outlet.settle(two)
    assert len(marks(server)) == 100  # the oldest claim is still open
    outlet.renew(one, 0)
    again = claim(outlet)
    assert (again.id, [again.arrival_of(seq) for seq in range(1, 31)]) == (one.id, dates)
    outlet.settle(again)
    assert marks(server)[0][0] == 61
    assert len(marks(server)) == 40


def test_a_refused_stream_collects_no_marks(server: Server, outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_side, "MARK_SECONDS", 0.0)
    inlet = Inlet(str(server.socket), 10)
    push(inlet, *numbers(10))
    for _ in range(50):
        assert push(inlet, b"x")
    assert len(marks(server)) == 2


def test_a_claim_has_each_mark_once(
    server: Server, inlet: Inlet, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "MARK_SECONDS", 0.0)
    for body in numbers(3):
        push(inlet, body)
    given = marks(server)
    assert len(given) == 3
    assert claim(outlet).marks == given


# a full backlog


def test_only_the_full_stream_is_refused(server: Server) -> None:
    inlet = Inlet(str(server.socket), 10)
    assert push(inlet, *numbers(10)) is None
    group = inlet.append("s", b"too much")
    assert inlet.append("t", b"fine") is group
    inlet.commit(group)
    assert group.refused == {"s": Refusal("The backlog is over its limit.", 1)}  # the drain rate is unknown
    assert raw(server).lrange("ingest:{t}", 0, -1) == [b"fine"]
    assert raw(server).llen(KEYS.ready) == 10


def test_a_backlog_over_its_limit_in_bytes_is_refused_and_other_streams_are_not(
    server: Server, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "MARK_SECONDS", 0.0)
    inlet = Inlet(str(server.socket), 10**9, max_bytes=1 << 20)
    pushed = 0
    while (refused := push(inlet, b"x" * 10_000)) is None and pushed < 1000:
        pushed += 1
    assert refused == Refusal("The backlog is over its limit.", 1)
    assert 90 <= pushed <= 106  # 1 MiB of 10 kB bodies
    assert push(inlet, b"x" * 10_000, stream="t") is None
    assert push(inlet, b"small")  # the size of the new body does not matter
    taken = claim(outlet)
    assert taken.count == pushed
    assert push(inlet, b"x" * 10_000) is None
    outlet.settle(taken)


def test_small_bodies_after_a_large_one_are_counted_by_their_own_size(server: Server) -> None:
    inlet = Inlet(str(server.socket), 10**9, max_bytes=8 << 20)
    assert push(inlet, bytes(1 << 20)) is None
    inlet.backlogs["s"].mark_due = 0.0
    assert push(inlet, b"small") is None  # it reads the size of the list, one large body
    inlet.backlogs["s"].mark_due = 1e18
    assert push(inlet, *numbers(600)) is None
    assert push(inlet, *numbers(600)) is None
    assert push(inlet, bytes(8 << 20)) is None
    assert push(inlet, b"small")  # 9 MiB, without another look at the list


def test_retry_after_is_the_excess_divided_by_the_drain_rate() -> None:
    backlog = Backlog("s")
    for second in range(60):
        backlog.update_from_mark(100 * second, 1000, b"%d" % (second * 10**6), 100_000)
    assert backlog.rate == pytest.approx(100, rel=0.01)
    assert [backlog.make_refusal(excess, "").retry_after for excess in (1, 99, 250, 10**6)] == [1, 1, 3, 60]
    assert Backlog("s").make_refusal(10, "").retry_after == 1  # nothing is known yet
    backlog.rate = 0.5
    assert [backlog.make_refusal(excess, "").retry_after for excess in (1, 20)] == [2, 40]


def watch(backlog: Backlog, *samples: tuple[float, int, int]) -> None:
    """Marks: (seconds, bodies claimed, bodies ready)."""
    for at, claimed, ready in samples:
        backlog.update_from_mark(claimed, ready, b"%d" % (at * 1e6), 100 * ready)


def test_the_drain_rate_is_known_after_two_samples_and_averages_the_last_ten_seconds() -> None:
    backlog = Backlog("s")
    watch(backlog, *((n / 10, 500 * n, 10**6) for n in range(4)))
    assert backlog.rate == pytest.approx(5000)
    watch(backlog, *((0.3 + n / 10, 1500 + 50 * n, 10**6) for n in range(1, 401)))
    assert backlog.rate == pytest.approx(500, rel=0.2)


def test_claims_of_the_whole_list_at_long_intervals_are_averaged() -> None:
    backlog = Backlog("s")
    for second in range(0, 20, 2):  # a claim of the whole list, 4,000 bodies, every two seconds
        watch(backlog, *((second + n / 10, 2000 * second, 200 * n) for n in range(1, 20)))
        watch(backlog, (second + 2, 2000 * (second + 2), 0))
    assert backlog.rate == pytest.approx(2000, rel=0.2)


def test_light_traffic_does_not_lower_the_drain_rate() -> None:
    backlog = Backlog("s")
    watch(backlog, *((60 * n, n, 0) for n in range(100)), (5941, 100, 10_000))
    watch(backlog, *((5941 + n / 10, 100 + 500 * n, 10_000) for n in range(1, 11)))
    assert backlog.rate == pytest.approx(5000)


def test_a_list_that_was_emptied_exactly_does_not_lower_the_drain_rate() -> None:
    backlog = Backlog("s")
    watch(backlog, (0, 0, 1000), (1, 500, 1000), (2, 1000, 5), (3, 1005, 5), (4, 1010, 5))
    assert backlog.rate == pytest.approx(500)


def test_retry_after_grows_while_nothing_drains() -> None:
    backlog = Backlog("s")
    told = []
    for second in range(14):
        watch(backlog, (second, 0, 1000))
        told.append(backlog.make_refusal(1, "").retry_after)
    assert told == [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 60, 60, 60, 60]


def test_a_client_that_waits_for_retry_after_is_accepted(
    server: Server, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    inlet = Inlet(str(server.socket), 100)
    push(inlet, *numbers(250))
    inlet.backlogs["s"].rate = 100.0
    monkeypatch.setattr(
        Backlog, "update_from_mark", lambda backlog, claimed, ready, us, size: setattr(backlog, "length", ready)
    )
    told = push(inlet, b"late")
    assert told == Refusal("The backlog is over its limit.", 2)  # (250 - 100 + 1) / 100
    taken = claim(outlet, max_bodies=100 * told.retry_after)  # as many as drain in that time
    outlet.settle(taken)
    assert poll(lambda: push(inlet, b"late") is None, 2)


def test_retry_after_grows_with_each_refusal(server: Server) -> None:
    inlet = Inlet(str(server.socket), 10)
    push(inlet, *numbers(10))
    inlet.backlogs["s"].rate = 10.0
    waits = [(push(inlet, *numbers(25)) or Refusal("", 0)).retry_after for _ in range(4)]
    assert waits == [3, 5, 8, 10]


def test_retry_after_counts_the_refusals_of_all_gateway_processes(server: Server) -> None:
    first, second = (Inlet(str(server.socket), 10, gateways=2) for _ in range(2))
    push(first, *numbers(10))
    waits = []
    for inlet in (first, second) * 2:
        push(inlet, b"x") if "s" not in inlet.backlogs else None
        inlet.backlogs["s"].rate = 10.0
        waits.append((push(inlet, *numbers(25)) or Refusal("", 0)).retry_after)
    assert waits == [5, 6, 10, 11]


def test_a_small_stream_waits_longer_the_longer_redis_is_full_of_others(server: Server) -> None:
    inlet = Inlet(str(server.socket), 10**9)
    try:
        raw(server).config_set("maxmemory", 1)
        assert push(inlet, b"x") == Refusal("Redis is full.", 1)
        inlet.full_since -= 20
        late = push(inlet, b"x")
        assert late and late.retry_after >= 20
        raw(server).config_set("maxmemory", 0)
        assert push(inlet, b"x") is None
        raw(server).config_set("maxmemory", 1)
        assert push(inlet, b"x") == Refusal("Redis is full.", 1)
    finally:
        raw(server).config_set("maxmemory", 0)


def test_a_gateway_without_replicas_does_not_wait_for_any(server: Server, inlet: Inlet) -> None:
    push(inlet, b"a")
    assert "cmdstat_wait" not in raw(server).info("commandstats")


# processes


def test_only_connections_of_gateways_and_workers_are_processes(server: Server, inspector: Inspector) -> None:
    names = "other:gateway:1", "sluice", "sluice:gateway", "sluice:gateway:2", "sluice:worker:3"
    clients = [client.Redis(unix_socket_path=str(server.socket), client_name=name) for name in names]
    assert all(each.ping() for each in clients)
    assert [(each.role, each.pid) for each in inspector.processes()] == [("gateway", 2), ("worker", 3)]


# following


def test_one_body_that_was_stored_between_two_looks_is_counted(
    inlet: Inlet, outlet: Outlet, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, seen = inspector.follow("s")
    assert where == "sequence number 1"
    push(inlet, b"x")
    outlet.settle(claim(outlet))
    monkeypatch.setattr("sluice.spool.inspector.time", None)  # it need not wait
    assert next(seen) == 1


# a full Redis


def test_a_full_redis_refuses_pushes_and_can_still_be_drained(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server(tmp, maxmemory="8mb") as server:
        inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
        inspector = Inspector(str(server.socket))
        pushed = 0
        while (refused := push(inlet, *[b"x" * 1000] * 100)) is None:
            pushed += 100
        assert refused.reason == "Redis is full."
        assert 1 <= refused.retry_after <= 60
        backlog = inlet.backlogs["s"]
        backlog.rate = backlog.length // 20 / 30  # a twentieth of the list leaves it in 30 seconds, one body more later
        with monkeypatch.context() as patch:
            patch.setattr(Backlog, "update_from_mark", lambda *mark: None)
            assert push(inlet, *[b"x" * 1000] * 100) == Refusal("Redis is full.", 31)
            backlog.rate = (backlog.length // 20 + 1.5) / 30  # so does one body more, but not two
            assert push(inlet, *[b"x" * 1000] * 100) == Refusal("Redis is full.", 30)
        raw(server).config_set("maxmemory", "2mb")  # full for even the smallest body
        assert push(inlet, b"y", stream="t")
        assert "maxmemory" in (inlet.unready_reason() or "")
        taken = 0
        while found := outlet.claim("s", max_bodies=500):
            assert outlet.renew(found)
            assert all(body == b"x" * 1000 for body in outlet.read_items(found))
            assert inspector.take_snapshot("s").claims == {found.id: found.count}
            outlet.settle(found)
            taken += found.count
        assert taken == pushed
        raw(server).config_set("maxmemory", "8mb")
        assert push(inlet, b"z") is None
        assert inlet.unready_reason() is None


def test_a_claim_in_pieces_is_complete_in_a_full_redis(tmp: Path) -> None:
    with redis_server(tmp, maxmemory="8mb") as server:
        inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
        inspector = Inspector(str(server.socket))
        while push(inlet, *[b"x" * 1000] * 100) is None:
            pass
        before = inspector.take_snapshot("s").ready
        assert before > 1000
        taken = claim(outlet, max_bodies=900)
        assert len(list(outlet.read_items(taken))) == taken.count == 900
        assert inspector.take_snapshot("s")[:2] == (900, before - 900)


# epochs: what names the numbers of a history of the list


def epochs(server: Server) -> dict[str, int]:
    """The epochs of the list, each with its first number that is not claimed."""
    return {name.decode(): int(first) for name, first in raw(server).zrange(KEYS.epochs, 0, -1, withscores=True)}


def test_a_restart_begins_a_spool_and_bodies_of_before_keep_theirs(own: Server, tmp: Path) -> None:
    inlet, outlet = Inlet(str(own.socket), 10**9), Outlet(str(own.socket))
    push(inlet, *numbers(10))
    opened = claim(outlet, max_bodies=4)
    own.process.kill()
    own.process.wait()
    with redis_server(tmp) as again:
        inlet, outlet = Inlet(str(again.socket), 10**9), Outlet(str(again.socket))
        push(inlet, *numbers(3, 10))
        old, new = epochs(again)
        assert (old, epochs(again)) == (opened.epoch, {old: 5, new: 11})
        outlet.renew(opened, 0)
        assert claim(outlet)[:4] == opened[:4]  # delivered again, as it was
        rest, later = claim(outlet), claim(outlet)  # a claim has bodies of one spool
        assert [(one.epoch, one.first, one.count) for one in (rest, later)] == [(old, 5, 6), (new, 11, 3)]
        assert [*outlet.read_items(rest), *outlet.read_items(later)] == numbers(9, 4)
        push(inlet, b"x")
        assert claim(outlet).epoch == new
        assert epochs(again) == {new: 15}


def test_restarts_without_a_body_in_between_leave_one_spool(own: Server, tmp: Path) -> None:
    push(Inlet(str(own.socket), 10**9), b"a")
    (first,) = epochs(own)
    own.process.kill()
    own.process.wait()
    names = []
    for _ in range(3):
        with redis_server(tmp) as again:
            inlet = Inlet(str(again.socket), 10**9)
            inlet.backlogs["s"] = Backlog("s")
            inlet.is_full(inlet.backlogs["s"], 1e18)  # a mark without a push
            old, name = epochs(again)
            assert old == first
            names.append(name)
    assert len(set(names)) == 3


def test_deleting_the_counter_begins_a_spool(server: Server, inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *numbers(3))
    before = claim(outlet)
    raw(server).delete(KEYS.taken)
    push(inlet, b"x")
    after = claim(outlet)
    assert (before.first, after.first) == (1, 1)
    assert before.epoch != after.epoch
    assert Inspector(str(server.socket)).take_snapshot("s").history == [Window(after.epoch, 1, 2, 1)]


def test_a_purge_past_the_end_of_a_spool_leaves_the_next_one(own: Server, tmp: Path) -> None:
    push(Inlet(str(own.socket), 10**9), *numbers(5))
    own.process.kill()
    own.process.wait()
    with redis_server(tmp) as again:
        push(Inlet(str(again.socket), 10**9), *numbers(5, 5))
        old, new = epochs(again)
        inspector = Inspector(str(again.socket))
        inspector.purge("s", inspector.take_snapshot("s")._replace(ready=7))
        taken = claim(Outlet(str(again.socket)))
        assert (taken.epoch, taken.first, taken.count) == (new, 8, 3)
        assert epochs(again) == {new: 11}
        history = Inspector(str(again.socket)).take_snapshot("s").history
        assert history == [Window(old, 1, 6), Window(new, 6, 11, 10)]  # kept for the ledger


def test_a_purge_leaves_bodies_that_have_the_numbers_of_those_that_the_operator_saw(own: Server, tmp: Path) -> None:
    inspector = Inspector(str(own.socket))
    push(Inlet(str(own.socket), 10**9), *numbers(5))
    seen = inspector.take_snapshot("s")
    raw(own).flushall()
    push(Inlet(str(own.socket), 10**9), *numbers(5, 5))
    assert (inspector.purge("s", seen), inspector.take_snapshot("s").ready) == (0, 5)
    seen = inspector.take_snapshot("s")
    own.process.kill()
    own.process.wait()
    with redis_server(tmp) as again:
        raw(again).ltrim(KEYS.ready, 0, 1)  # its log has lost the end
        push(Inlet(str(again.socket), 10**9), *numbers(5, 10))
        inspector = Inspector(str(again.socket))
        assert (inspector.purge("s", seen), inspector.take_snapshot("s").ready) == (2, 5)


def test_a_list_without_an_epoch_has_no_history(own: Server) -> None:
    raw(own).rpush(KEYS.ready, b"from a tool")
    snapshot = Inspector(str(own.socket)).take_snapshot("s")
    assert (snapshot.ready, snapshot.history) == (1, [])


def test_bodies_that_a_redis_took_without_their_mark_are_refused(
    server: Server, inlet: Inlet, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(inlet, b"a")
    inlet.backlogs["s"].mark_due = 0.0
    monkeypatch.setattr(inlet.backlogs["s"], "mark", ("EVAL", "return redis.error_reply('READONLY a replica')", 0))
    refused = push(inlet, b"b")
    assert refused
    assert refused.reason == "Redis refuses to write: a replica"
    monkeypatch.undo()
    assert push(inlet, b"c") is None
    assert len(marks(server)) == 2  # the next push is marked, without waiting for the interval


@pytest.mark.parametrize("through", ["ready", "report", "refused push"])
def test_the_first_push_after_a_lost_connection_or_an_error_is_marked(through: str, own: Server, tmp: Path) -> None:
    inlet = Inlet(str(own.socket), 10**9)
    push(inlet, b"a")
    inlet.backlogs["s"].mark_due = 1e18
    if through == "refused push":
        raw(own).config_set("min-replicas-to-write", 1)
        assert push(inlet, b"x")
        raw(own).config_set("min-replicas-to-write", 0)
        assert push(inlet, b"b") is None
        assert [seq for seq, _ in marks(own)] == [1, 2]
        return
    own.process.kill()
    own.process.wait()
    inlet.unready_reason() if through == "ready" else inlet.report_counts(last=True)
    with redis_server(tmp) as again:
        assert push(inlet, b"b") is None
        assert [seq for seq, _ in marks(again)] == [1, 2]
        assert len(epochs(again)) == 2


@pytest.mark.parametrize("lost", ["nothing", "the last writes"])
def test_after_a_kill_each_body_is_stored_once_and_new_ones_with_lost_numbers_too(lost: str, tmp: Path) -> None:
    """Bodies are stored, then Redis is killed and starts again, from all of its log or from an older copy of it. The
    ledger then shows none as missing but those that were lost before they were stored.
    """

    def ledger() -> list[int]:
        """Leave the figures in the database, and read them there."""
        Publisher(Inspector(str(server.socket)), ["votes"], "c1", keep=False).publish(store, last=True)
        ((_, _, figures),) = store.read_cells()
        (votes,) = figures["streams"]
        return [votes[state] for state in ("accepted", "ready", "stored", "missing")]

    def work(outlet: Outlet, **limits: float) -> None:
        while taken := outlet.claim("votes", **limits):  # type: ignore[arg-type]
            bodies = [
                Body(seq, 0, item, (Vote(poll="p", choice=item.decode()),))
                for seq, item in enumerate(outlet.read_items(taken), taken.first)
            ]
            store.persist(taken, bodies)
            outlet.settle(taken)

    store = open_store(f"sqlite:///{tmp}/ingest.db", STREAMS)
    with redis_server(tmp) as server:
        inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
        push(inlet, *numbers(10), stream="votes")
        assert claim(outlet, "votes", max_bodies=3, lease=0)  # of a worker that dies
        copied = tmp / "copy"
        shutil.copytree(tmp / "redis", copied)
        push(inlet, *numbers(10, 10), stream="votes")
        work(outlet, max_bodies=8)
        work(outlet, max_bodies=8)
        push(inlet, *numbers(2, 20), stream="votes")
        assert ledger() == [22, 2, 20, 0]
    if lost != "nothing":
        shutil.rmtree(tmp / "redis")
        copied.rename(tmp / "redis")
    with redis_server(tmp) as server:
        inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
        push(inlet, *numbers(10, 30), stream="votes")
        work(outlet, max_bodies=4)  # other boundaries than before
        assert ledger() == [32, 0, 32, 0] if lost == "nothing" else [32, 0, 30, 2]
    db: Any = store.db
    found = [int(choice) for (choice,) in db.execute("SELECT choice FROM votes ORDER BY CAST(choice AS INTEGER)")]
    assert found == [*range(22 if lost == "nothing" else 20), *range(30, 40)]
    store.close()


# a Redis that is stopped, killed or emptied


def test_a_lost_connection_refuses_the_whole_batch_and_not_the_next_one(own: Server, tmp: Path) -> None:
    inlet = Inlet(str(own.socket), 10**9)
    push(inlet, b"a")
    own.process.kill()
    own.process.wait()
    for stream in "sstu":
        group = inlet.append(stream, b"b")
    inlet.commit(group)
    assert group.refused == dict.fromkeys("stu", Refusal("Redis does not answer.", 1))
    assert inlet.unready_reason() == "Redis does not answer."
    with redis_server(tmp) as again:
        assert push(inlet, b"c") is None
        assert raw(again).lrange(KEYS.ready, 0, -1) == [b"a", b"c"]


def test_a_push_whose_reply_is_late_is_not_sent_again(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_side, "TIMEOUT_SECONDS", 0.2)
    inlet = Inlet(str(own.socket), 10**9)
    push(inlet, b"a")
    own.process.send_signal(signal.SIGSTOP)
    waking = threading.Timer(0.3, own.process.send_signal, [signal.SIGCONT])  # soon enough for a retry to succeed
    waking.start()
    refused = push(inlet, b"b")
    waking.join()
    assert refused == Refusal("Redis does not answer.", 1)
    # the push was executed after the timeout: a body that gets this 503 may be on the list
    poll(lambda: not inlet.away)
    assert push(inlet, b"c") is None
    assert push(inlet, b"d") is None
    assert raw(own).lrange(KEYS.ready, 0, -1) == [b"a", b"b", b"c", b"d"]


def test_while_a_reply_is_missing_everything_is_refused_and_nothing_is_sent(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "TIMEOUT_SECONDS", 0.2)
    inlet, away = Inlet(str(own.socket), 10**9), Refusal("Redis does not answer.", 1)
    poll(lambda: push(inlet, b"a") is None)  # on a busy machine, a reply takes longer
    with stopped(own.pid):
        assert push(inlet, b"b") == away
        for body in numbers(20):
            assert push(inlet, body) == away
            assert inlet.unready_reason() == away.reason
            inlet.report_counts(last=True)
    poll(lambda: not inlet.away)
    poll(lambda: inlet.unready_reason() is None)
    poll(lambda: push(inlet, b"c") is None)
    assert [*dict.fromkeys(raw(own).lrange(KEYS.ready, 0, -1))] == [b"a", b"b", b"c"]


def test_a_redis_that_is_killed_while_it_hangs_is_found_again(
    own: Server, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "TIMEOUT_SECONDS", 0.2)
    inlet = Inlet(str(own.socket), 10**9)
    with stopped(own.pid):
        assert inlet.unready_reason() == "Redis does not answer."
        own.process.kill()
        own.process.wait()
    with redis_server(tmp):
        poll(lambda: push(inlet, b"a") is None)


def test_the_readiness_checks_of_one_turn_ask_redis_once(server: Server, inlet: Inlet) -> None:
    assert [inlet.unready_reason() for _ in range(20)] == [None] * 20
    assert calls(server, "set") < 20


def test_the_refusal_quotes_the_reason_of_a_redis_that_rejects_writes(own: Server) -> None:
    inlet = Inlet(str(own.socket), 10**9)
    push(inlet, b"a")
    raw(own).execute_command("CONFIG", "SET", "min-replicas-to-write", "1")
    refused = push(inlet, b"b")
    assert refused
    assert refused.reason.startswith("Redis refuses to write: ")
    raw(own).execute_command("CONFIG", "SET", "min-replicas-to-write", "0")
    assert push(inlet, b"c") is None


def test_a_key_of_the_wrong_type_refuses_only_its_stream(server: Server, inlet: Inlet) -> None:
    raw(server).set(KEYS.ready, "not a list")
    group = inlet.append("s", b"a")
    inlet.append("t", b"b")
    inlet.commit(group)
    assert group.refused
    assert set(group.refused) == {"s"}
    raw(server).delete(KEYS.ready)
    assert push(inlet, b"c") is None


def test_a_signal_during_the_reply_refuses_the_batch(
    server: Server, inlet: Inlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(inlet, b"a")

    def interrupted() -> None:
        raise KeyboardInterrupt

    group = inlet.append("s", b"b")
    with monkeypatch.context() as patch:
        patch.setattr(inlet.redis, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            inlet.commit(group)
    assert group.done
    assert group.refused
    # the next group does not read the reply that was left unread
    assert push(inlet, b"c") is None
    assert inlet.backlogs["s"].length == raw(server).llen(KEYS.ready) == 3
    assert raw(server).lrange(KEYS.ready, 0, -1)[-1] == b"c"


@pytest.mark.parametrize("read", ["a claim", "a snapshot", "has_work", "a report"])
def test_a_signal_during_a_reply_leaves_none_for_the_next_command(
    read: str, server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    push(inlet, b"a")
    reads: dict[str, Callable[[], Any]] = {
        "a claim": lambda: outlet.claim("empty"),
        "a snapshot": lambda: inspector.take_snapshot("empty"),
        "has_work": lambda: outlet.has_work(["empty", "empty"]),
        "a report": outlet.report_state,
    }
    reads[read]()  # connects
    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reads[read]()
    assert outlet.has_work(["s", "empty"]) == [True, False]
    assert inspector.take_snapshot("s").ready == 1
    assert claim(outlet).count == 1
    raw(server).set("ingest:counts", "not a hash")
    outlet.counts.counter("stored s").n += 1
    with pytest.raises(client.ResponseError):
        outlet.report_state()


def test_a_command_that_cannot_be_sent_gives_its_connection_back(
    inlet: Inlet, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise client.ConnectionError

    push(inlet, b"a")
    outlet.redis.connection_pool.max_connections = 1
    assert not outlet.claim("empty")  # connects
    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", broken)
        with pytest.raises(client.ConnectionError):
            outlet.claim("s")
    assert claim(outlet).count == 1


def test_a_refusal_is_logged_when_it_starts_and_when_it_ends(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    inlet = Inlet(str(server.socket), 2)
    push(inlet, b"a", b"b")
    for _ in range(5):
        push(inlet, b"c")
    raw(server).delete(KEYS.ready)
    assert poll(lambda: push(inlet, b"d") is None)
    assert [record.getMessage() for record in caplog.records] == [
        "s: refusing bodies: The backlog is over its limit.",
        "s: accepting bodies again",
    ]


def test_after_redis_is_killed_acknowledged_bodies_are_there_and_settled_ones_are_not(tmp: Path) -> None:
    acknowledged, settled, unknown = set[bytes](), set[bytes](), set[bytes]()
    for round in range(6):
        with redis_server(tmp, appendfsync="always") as server:
            inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
            deadly = threading.Timer(0.1 + round / 50, server.process.kill)
            deadly.start()
            for n in range(10**6):
                body = b"%d-%d" % (round, n)
                if push(inlet, body):
                    break
                acknowledged.add(body)
                with contextlib.suppress(client.RedisError):
                    if n % 10 == 9:
                        taken = claim(outlet, max_bodies=8)
                        bodies = set(outlet.read_items(taken))
                        unknown |= bodies
                        outlet.settle(taken)
                        settled |= bodies
            deadly.join()
    with redis_server(tmp) as server:
        db, now = raw(server), Inspector(str(server.socket)).take_snapshot("s")
        claims = [db.lrange(KEYS.claim + name, 0, -1) for name in now.claims]
        there = [*db.lrange(KEYS.ready, 0, -1), *(body for bodies in claims for body in bodies)]
        assert len(settled) > 20
        assert len(there) == len(set(there))
        assert settled & set(there) == set()
        assert acknowledged - set(there) <= unknown
        assert now.ready + now.taken >= len(acknowledged)


@pytest.mark.parametrize("how", ["flushed", "restarted empty"])
def test_claim_ids_are_never_used_again_so_the_store_stores_new_bodies(how: str, tmp: Path) -> None:
    seen: list[str] = []
    store = open_store(f"sqlite:///{tmp}/ingest.db", STREAMS)
    for _ in range(4):
        with redis_server(tmp) as server:
            inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
            for _ in range(3):
                push(inlet, b"a", b"b", stream="votes")
                taken = claim(outlet, "votes")
                assert taken.first == 1 or how != "flushed"
                assert taken.id.startswith(raw(server).info("replication")["master_replid"] + "-")
                seen.append(taken.id)
                bodies = [Body(taken.first, 0, b"a", (Vote(poll="p", choice="a"),))]
                assert store.persist(taken, bodies) == Outcome(1, 0)
                outlet.settle(taken)
                if how == "flushed":
                    raw(server).flushall()
        if how != "flushed":
            shutil.rmtree(tmp / "redis")
    assert len(set(seen)) == 12
    store.close()


def test_a_claim_is_lost_when_redis_is_flushed(own: Server) -> None:
    inlet, outlet = Inlet(str(own.socket), 10**9), Outlet(str(own.socket))
    push(inlet, *numbers(5))
    taken = claim(outlet)
    raw(own).flushall()
    push(inlet, b"new")
    with pytest.raises(Lost):
        list(outlet.read_items(taken))
    assert not outlet.renew(taken)
    outlet.settle(taken)
    assert drained(outlet) == [b"new"]
