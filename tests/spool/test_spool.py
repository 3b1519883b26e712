"""The Redis contract against real servers, alone and as a node of a cluster: PROTOCOL.md, section 4."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client

from sluice import sinks
from sluice.drill.harness import Server, environment, free_port, poll, redis_server, running, short_tmp
from sluice.sinks import Outcome
from sluice.spool import inlet as gateway_side
from sluice.spool import outlet as worker_side
from sluice.spool.contract import Claim, Keys
from sluice.spool.inlet import Backlog, Inlet, Refusal
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Lost, Outlet
from sluice.streams.record import Vote
from sluice.streams.registry import STREAMS

KEYS = Keys.of("s")


def raw(server: Server) -> Any:
    """A connection of one's own, to look behind the scenes."""
    return client.Redis(unix_socket_path=str(server.socket), socket_timeout=60)


@contextlib.contextmanager
def cluster_node(tmp: Path) -> Iterator[Server]:
    """A cluster of one node that holds all slots."""
    socket = tmp / "cluster.sock"
    command = ["redis-server", "--dir", tmp, "--unixsocket", socket, "--cluster-enabled", "yes", "--save", ""]
    # the cluster's bus listens on the port plus 10000 unless told
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
    """A server with nothing in it."""
    with raw(node) as db:
        db.flushall()
        db.config_resetstat()
    yield node


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy disk may take half a minute for one fsync."""
    monkeypatch.setattr(gateway_side, "TIMEOUT", 60.0)
    monkeypatch.setattr(worker_side, "TIMEOUT", 60.0)


@pytest.fixture
def own(tmp: Path) -> Iterator[Server]:
    """A server to be killed and filled."""
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
    """Append bodies and commit them at once; why they are refused, if they are."""
    batch = inlet.open
    for body in bodies:
        assert inlet.append(stream, body) is batch
    inlet.commit(batch)
    assert batch.done
    return (batch.refused or {}).get(stream)


def calls(server: Server, command: str) -> int:
    """How often a command was called, also within scripts."""
    return raw(server).info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)


def marks(server: Server) -> list[tuple[int, int]]:
    """(sequence number, microseconds) of all marks."""
    return [(int(seq), int(us)) for seq, us in (mark.split(b":") for mark in raw(server).zrange(KEYS.marks, 0, -1))]


def claim(outlet: Outlet, stream: str = "s", **bounds: float) -> Claim:
    """A claim where there is something to claim."""
    found = outlet.claim(stream, **bounds)  # type: ignore[arg-type]
    assert found
    return found


def drained(outlet: Outlet, stream: str = "s", **bounds: float) -> list[bytes]:
    """All bodies in order, claimed and settled, with consecutive sequence numbers."""
    bodies: list[bytes] = []
    first = int(outlet.redis.get(Keys.of(stream).claimed) or 0) + 1
    while taken := outlet.claim(stream, **bounds):  # type: ignore[arg-type]
        found = list(outlet.bodies(taken))
        assert (taken.first, taken.count) == (first + len(bodies), len(found))
        bodies += found
        outlet.settle(taken)
    return bodies


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


# append and commit


def test_bodies_lie_on_the_list_in_the_order_of_arrival(server: Server, inlet: Inlet) -> None:
    assert push(inlet, *numbers(5)) is None
    assert push(inlet, b"5") is None
    assert raw(server).lrange(KEYS.ready, 0, -1) == numbers(6)


def test_nothing_is_sent_before_the_commit(server: Server, inlet: Inlet) -> None:
    batch = inlet.append("s", b"a")
    assert not batch.done
    assert raw(server).keys("*") == []


def test_many_bodies_are_one_push(server: Server, inlet: Inlet) -> None:
    push(inlet, *numbers(1000))
    assert calls(server, "rpush") == 1
    assert raw(server).llen(KEYS.ready) == 1000


def test_a_batch_of_several_streams_is_one_push_each(server: Server, inlet: Inlet) -> None:
    for stream in "stst":
        inlet.append(stream, stream.encode())
    inlet.commit(inlet.open)
    assert calls(server, "rpush") == 2
    assert raw(server).lrange("ingest:{t}", 0, -1) == [b"t", b"t"]


def test_a_committed_batch_is_not_sent_again(server: Server, inlet: Inlet) -> None:
    batch = inlet.append("s", b"a")
    inlet.commit(batch)
    inlet.commit(batch)
    assert inlet.append("s", b"b") is not batch
    assert raw(server).llen(KEYS.ready) == 1


def test_any_bytes_arrive_as_they_were(inlet: Inlet, outlet: Outlet) -> None:
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
def test_of_eight_threads_every_acknowledged_body_is_on_the_list_once(
    interval: float, server: Server, inlet: Inlet
) -> None:
    acknowledged: list[bytes] = []

    def post(thread: int) -> None:
        for n in range(250):
            body = b"%d-%d" % (thread, n)
            batch = inlet.append("s", body)
            if not batch.done:
                inlet.commit(batch)
            if batch.done and batch.refused is None:
                acknowledged.append(body)

    threads = [threading.Thread(target=post, args=(n,)) for n in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    found = raw(server).lrange(KEYS.ready, 0, -1)
    assert len(acknowledged) == 2000
    assert sorted(found) == sorted(acknowledged)
    of_one = [body for body in found if body.startswith(b"3-")]
    assert of_one == [b"3-%d" % n for n in range(250)]
    assert calls(server, "rpush") <= 2000


def test_no_body_slips_into_a_batch_that_is_being_sent(server: Server, inlet: Inlet) -> None:
    committing = threading.Thread(target=lambda: inlet.commit(batch))

    class Bodies(dict):
        """Somebody commits at the very moment at which another body is appended."""

        def __getitem__(self, stream: str) -> list[bytes]:
            committing.start()
            committing.join(0.3)  # it must wait, so this cannot end sooner
            return super().__getitem__(stream)

    batch = inlet.append("s", b"a")
    batch.bodies = Bodies(batch.bodies)
    assert inlet.append("s", b"b") is batch
    committing.join()
    assert raw(server).lrange(KEYS.ready, 0, -1) == [b"a", b"b"]


# claim, renew, settle


def test_a_claim_takes_the_head_of_the_list_under_consecutive_numbers(inlet: Inlet, outlet: Outlet) -> None:
    assert outlet.claim("s") is None
    push(inlet, *numbers(7))
    one, two = claim(outlet, most=4), claim(outlet, most=4)
    assert [(x.first, x.count) for x in (one, two)] == [(1, 4), (5, 3)]
    assert [*outlet.bodies(one), *outlet.bodies(two)] == numbers(7)
    assert outlet.claim("s") is None
    assert one.id.split(":")[1] == "1"


@pytest.mark.parametrize("length", [0, 1, 80, 3000])
def test_a_list_that_is_renamed_and_one_that_moves_in_steps_give_the_same(
    length: int, server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector
) -> None:
    bodies = [b"%d" % n + b"x" * length for n in range(1000)]
    push(inlet, *bodies)
    push(inlet, *bodies, stream="t")
    assert drained(outlet) == bodies
    assert (calls(server, "rename"), calls(server, "lpop")) == (1, 0)
    assert drained(outlet, "t", most=997, size=100_000) == bodies
    assert calls(server, "lpop") > 0
    assert inspector.snapshot("s") == inspector.snapshot("t") == (1000, 0, {}, {}, 0, 0)


def test_a_claim_is_bounded_by_bodies_and_by_bytes(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *[b"x" * 1000] * 500)
    assert claim(outlet, most=7).count == 7
    some = claim(outlet, size=20_000)
    assert 20 <= some.count <= 20 + 32
    assert claim(outlet, size=1).count == 1
    push(inlet, b"y" * 100_000, stream="t")
    assert claim(outlet, "t", size=10).count == 1


def test_large_bodies_after_small_ones_do_not_all_come_in_one_step(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *[b"x"] * 511, *[b"y" * 50_000] * 600)
    taken = claim(outlet, size=1 << 20)
    assert taken.size <= (1 << 20) + 32 * 50_000


def test_a_large_claim_is_read_in_pieces(server: Server, inlet: Inlet) -> None:
    outlet = Outlet(str(server.socket), size=1000)
    bodies = [b"%03d" % n * 100 for n in range(21)]
    push(inlet, *bodies)
    taken = claim(outlet, size=10**6)
    assert list(outlet.bodies(taken)) == bodies
    assert calls(server, "lrange") == 3


def test_only_an_expired_claim_is_claimed_again_and_it_is_the_same(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *numbers(10))
    first = claim(outlet, most=6, lease=0.2)
    assert claim(outlet, lease=60).first == 7
    assert outlet.claim("s") is None
    again = poll(lambda: claim(outlet, lease=60))
    assert (again.id, again.first, again.count) == (first.id, 1, 6)
    assert list(outlet.bodies(again)) == numbers(6)
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


def test_settling_leaves_nothing_but_the_counter_and_a_mark(
    server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector
) -> None:
    push(inlet, *numbers(10))
    taken = claim(outlet)
    outlet.settle(taken)
    outlet.settle(taken)
    assert set(raw(server).keys("*")) == {KEYS.claimed.encode(), KEYS.marks.encode()}
    assert inspector.snapshot("s").claimed == 10
    assert len(marks(server)) == 1


def test_the_bodies_of_a_claim_that_is_gone_are_lost_not_fewer(inlet: Inlet, outlet: Outlet) -> None:
    push(inlet, *numbers(3))
    taken = claim(outlet)
    outlet.settle(taken)
    with pytest.raises(Lost):
        list(outlet.bodies(taken))


def test_scripts_that_redis_has_forgotten_are_sent_again(
    server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector
) -> None:
    for _ in range(3):
        inlet.lines.clear()  # so that a mark is due
        push(inlet, b"a")
        raw(server).script_flush()
        taken = claim(outlet)
        raw(server).script_flush()
        assert outlet.renew(taken, 30)
        raw(server).script_flush()
        outlet.settle(taken)
        raw(server).script_flush()
        assert inspector.snapshot("s").claims == {}


def test_large_sequence_numbers_stay_exact(server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector) -> None:
    raw(server).set(KEYS.claimed, 10**15)
    push(inlet, *numbers(3))
    taken = claim(outlet, most=2)
    assert (taken.first, taken.id.split(":")[1]) == (10**15 + 1, str(10**15 + 1))
    assert claim(outlet).first == 10**15 + 3
    outlet.settle(taken)
    assert inspector.snapshot("s").claimed == 10**15 + 3
    assert marks(server)[0][0] == 10**15 + 1


def test_what_another_tool_pushes_is_claimed_too(server: Server, inlet: Inlet, outlet: Outlet) -> None:
    raw(server).rpush(KEYS.ready, b"a")
    before = time.time()
    taken = claim(outlet)
    assert list(outlet.bodies(taken)) == [b"a"]
    # no mark dates it: the moment of the claim does
    assert before <= taken.received(1)[0] / 1e6 <= time.time()


def test_a_snapshot_shows_what_lies_where(server: Server, inlet: Inlet, outlet: Outlet, inspector: Inspector) -> None:
    assert inspector.snapshot("s") == (0, 0, {}, {}, 0, 0)
    assert outlet.waiting(["s", "t"]) == [False, False]
    before = time.time()
    push(inlet, *numbers(10))
    one, two = claim(outlet, most=2), claim(outlet, most=3)
    now = inspector.snapshot("s")
    assert now[:3] == (5, 5, {one.id: 2, two.id: 3})
    assert now.waiting.keys() == {one.id, two.id, ""}
    assert all(0 <= age <= time.time() - before for age in now.waiting.values())
    assert outlet.waiting(["s", "t"]) == [True, False]
    outlet.settle(one)
    assert inspector.snapshot("s")[:3] == (5, 5, {two.id: 3})
    raw(server).rpush("ingest:{somebody's}", "a")
    assert inspector.streams() == {"s", "somebody's"}


# marks


def test_a_body_is_dated_within_a_tenth_of_a_second(inlet: Inlet, outlet: Outlet) -> None:
    times: list[tuple[float, float]] = []
    end = time.time() + 1
    while time.time() < end:
        before = time.time()
        push(inlet, b"x")
        times.append((before, time.time()))
    taken = claim(outlet, most=10**6, size=10**9)
    assert taken.count == len(times)
    until = 0
    for seq, (before, after) in enumerate(times, 1):
        if seq >= until:  # as the worker asks
            received, until = taken.received(seq)
        assert received == taken.received(seq)[0]
        assert before - 0.101 <= received / 1e6 <= after
    assert until == taken.count + 1


def test_a_process_writes_at_most_ten_marks_a_second(server: Server, inlet: Inlet) -> None:
    start = time.monotonic()
    while len(marks(server)) < 4:
        push(inlet, b"x")
    assert time.monotonic() - start >= 0.3


def test_marks_that_date_nothing_any_more_are_trimmed(
    server: Server, inlet: Inlet, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "MARK_EVERY", 0.0)
    for body in numbers(100):
        push(inlet, body)
    assert len(marks(server)) == 100
    one, two = claim(outlet, most=30), claim(outlet, most=30)
    dates = [one.received(seq) for seq in range(1, 31)]
    outlet.settle(two)
    assert len(marks(server)) == 100  # the oldest claim is open
    outlet.renew(one, 0)
    again = claim(outlet)
    assert (again.id, [again.received(seq) for seq in range(1, 31)]) == (one.id, dates)
    outlet.settle(again)
    assert marks(server)[0][0] == 61
    assert len(marks(server)) == 40


def test_marks_do_not_pile_up_while_a_stream_is_refused(
    server: Server, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "MARK_EVERY", 0.0)
    inlet = Inlet(str(server.socket), 10)
    push(inlet, *numbers(10))
    for _ in range(50):
        assert push(inlet, b"x")
    assert len(marks(server)) == 2


# a backlog over its bound


def test_only_the_full_stream_is_refused(server: Server) -> None:
    inlet = Inlet(str(server.socket), 10)
    assert push(inlet, *numbers(10)) is None
    batch = inlet.append("s", b"too much")
    assert inlet.append("t", b"fine") is batch
    inlet.commit(batch)
    assert batch.refused == {"s": Refusal("The backlog is over its bound.", 1)}  # how fast it goes is not known yet
    assert raw(server).lrange("ingest:{t}", 0, -1) == [b"fine"]
    assert raw(server).llen(KEYS.ready) == 10


def test_a_backlog_is_bounded_by_bytes_too_and_only_that_stream_is_refused(
    server: Server, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_side, "MARK_EVERY", 0.0)
    inlet = Inlet(str(server.socket), 10**9, max_bytes=1 << 20)
    pushed = 0
    while (refused := push(inlet, b"x" * 10_000)) is None and pushed < 1000:
        pushed += 1
    assert refused == Refusal("The backlog is over its bound.", 1)
    assert 90 <= pushed <= 106  # a megabyte of them
    assert push(inlet, b"x" * 10_000, stream="t") is None
    assert push(inlet, b"small")  # whatever its size
    taken = claim(outlet)
    assert taken.count == pushed
    assert push(inlet, b"x" * 10_000) is None
    outlet.settle(taken)


def test_retry_after_is_the_excess_divided_by_the_drain_rate() -> None:
    line = Backlog("s")
    for second in range(60):
        line.marked(100 * second, 1000, b"%d" % (second * 10**6), 100_000)
    assert line.rate == pytest.approx(100, rel=0.01)
    assert [line.full(excess, "").retry_after for excess in (1, 99, 250, 10**6)] == [1, 1, 3, 60]


def watch(line: Backlog, *samples: tuple[float, int, int]) -> None:
    """Marks: (seconds, bodies claimed, bodies ready)."""
    for at, claimed, ready in samples:
        line.marked(claimed, ready, b"%d" % (at * 1e6), 100 * ready)


def test_the_drain_rate_is_known_from_the_first_samples_and_follows_those_of_the_last_ten_seconds() -> None:
    line = Backlog("s")
    watch(line, *((n / 10, 500 * n, 10**6) for n in range(4)))
    assert line.rate == pytest.approx(5000)
    watch(line, *((0.3 + n / 10, 1500 + 50 * n, 10**6) for n in range(1, 401)))
    assert line.rate == pytest.approx(500, rel=0.2)


def test_claims_that_take_everything_at_long_intervals_are_averaged() -> None:
    line = Backlog("s")
    for second in range(0, 20, 2):  # every two seconds all that lies there, 4,000 bodies
        watch(line, *((second + n / 10, 2000 * second, 200 * n) for n in range(1, 20)))
        watch(line, (second + 2, 2000 * (second + 2), 0))
    assert line.rate == pytest.approx(2000, rel=0.2)


def test_little_traffic_says_nothing_of_how_fast_a_backlog_would_go() -> None:
    line = Backlog("s")
    watch(line, *((60 * n, n, 0) for n in range(100)), (5941, 100, 10_000))
    watch(line, *((5941 + n / 10, 100 + 500 * n, 10_000) for n in range(1, 11)))
    assert line.rate == pytest.approx(5000)


def test_where_nobody_takes_anything_away_one_waits_the_longer_the_longer_that_is_so() -> None:
    line = Backlog("s")
    told = []
    for second in range(14):
        watch(line, (second, 0, 1000))
        told.append(line.full(1, "").retry_after)
    assert told == [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 60, 60, 60, 60]


def test_who_waited_as_told_gets_in(server: Server, outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    inlet = Inlet(str(server.socket), 100)
    push(inlet, *numbers(250))
    inlet.lines["s"].rate = 100.0
    monkeypatch.setattr(Backlog, "marked", lambda line, claimed, ready, us, size: setattr(line, "backlog", ready))
    told = push(inlet, b"late")
    assert told == Refusal("The backlog is over its bound.", 2)  # (250 - 100 + 1) / 100
    taken = claim(outlet, most=100 * told.retry_after)  # so much leaves meanwhile
    outlet.settle(taken)
    assert poll(lambda: push(inlet, b"late") is None, 2)


def test_who_is_refused_later_waits_longer(server: Server) -> None:
    inlet = Inlet(str(server.socket), 10)
    push(inlet, *numbers(10))
    inlet.lines["s"].rate = 10.0
    waits = [(push(inlet, *numbers(25)) or Refusal("", 0)).retry_after for _ in range(4)]
    assert waits == [3, 5, 8, 10]


# a full Redis


def test_a_full_redis_refuses_pushes_and_can_still_be_emptied(tmp: Path, inspector: Inspector) -> None:
    with redis_server(tmp, maxmemory="8mb") as server:
        inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
        pushed = 0
        while (refused := push(inlet, *[b"x" * 1000] * 100)) is None:
            pushed += 100
        assert refused.detail == "Redis is full."
        assert 1 <= refused.retry_after <= 60
        raw(server).config_set("maxmemory", "2mb")  # full for even the smallest body
        assert push(inlet, b"y", stream="t")
        assert "maxmemory" in (inlet.ready() or "")
        taken = 0
        while found := outlet.claim("s", most=500):
            assert outlet.renew(found)
            assert all(body == b"x" * 1000 for body in outlet.bodies(found))
            assert inspector.snapshot("s").claims == {found.id: found.count}
            outlet.settle(found)
            taken += found.count
        assert taken == pushed
        raw(server).config_set("maxmemory", "8mb")
        assert push(inlet, b"z") is None
        assert inlet.ready() is None


def test_a_full_redis_gives_a_claim_that_moves_in_steps_whole(tmp: Path, inspector: Inspector) -> None:
    with redis_server(tmp, maxmemory="8mb") as server:
        inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
        while push(inlet, *[b"x" * 1000] * 100) is None:
            pass
        before = inspector.snapshot("s").ready
        assert before > 1000
        taken = claim(outlet, most=900)
        assert len(list(outlet.bodies(taken))) == taken.count == 900
        assert inspector.snapshot("s")[:2] == (900, before - 900)


# a Redis that is away, killed, or emptied


def test_an_error_refuses_everybody_in_the_batch_and_nobody_after_it(own: Server, tmp: Path) -> None:
    inlet = Inlet(str(own.socket), 10**9)
    push(inlet, b"a")
    own.process.kill()
    own.process.wait()
    for stream in "sstu":
        batch = inlet.append(stream, b"b")
    inlet.commit(batch)
    assert batch.refused == dict.fromkeys("stu", Refusal("Redis does not answer.", 1))
    assert inlet.ready() == "Redis does not answer."
    with redis_server(tmp) as again:
        assert push(inlet, b"c") is None
        assert raw(again).lrange(KEYS.ready, 0, -1) == [b"a", b"c"]


def test_a_push_without_a_reply_is_not_sent_twice(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_side, "TIMEOUT", 0.2)
    inlet = Inlet(str(own.socket), 10**9)
    push(inlet, b"a")
    own.process.send_signal(signal.SIGSTOP)
    waking = threading.Timer(0.3, own.process.send_signal, [signal.SIGCONT])  # in time for whoever would try again
    waking.start()
    refused = push(inlet, b"b")
    waking.join()
    assert refused == Refusal("Redis does not answer.", 1)
    # it was sent, and is on the list: the client was told that nobody knew
    assert push(inlet, b"c") is None
    assert push(inlet, b"d") is None
    assert raw(own).lrange(KEYS.ready, 0, -1) == [b"a", b"b", b"c", b"d"]


def test_a_redis_that_takes_no_writes_is_quoted_with_its_reason(own: Server) -> None:
    inlet = Inlet(str(own.socket), 10**9)
    push(inlet, b"a")
    raw(own).execute_command("CONFIG", "SET", "min-replicas-to-write", "1")
    refused = push(inlet, b"b")
    assert refused
    assert refused.detail.startswith("Redis refuses to write: ")
    raw(own).execute_command("CONFIG", "SET", "min-replicas-to-write", "0")
    assert push(inlet, b"c") is None


def test_a_key_of_another_type_refuses_its_stream_only(server: Server, inlet: Inlet) -> None:
    raw(server).set(KEYS.ready, "not a list")
    batch = inlet.append("s", b"a")
    inlet.append("t", b"b")
    inlet.commit(batch)
    assert batch.refused
    assert set(batch.refused) == {"s"}
    raw(server).delete(KEYS.ready)
    assert push(inlet, b"c") is None


def test_a_signal_in_the_middle_of_a_reply_refuses_the_batch(
    server: Server, inlet: Inlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(inlet, b"a")

    def interrupted() -> None:
        raise KeyboardInterrupt

    batch = inlet.append("s", b"b")
    with monkeypatch.context() as patch:
        patch.setattr(inlet.redis, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            inlet.commit(batch)
    assert batch.done
    assert batch.refused
    # the reply that nobody read is not taken for that of the next batch
    raw(server).set(KEYS.ready + "x", "1")
    assert push(inlet, b"c") is None
    assert raw(server).lrange(KEYS.ready, 0, -1)[-1] == b"c"


def test_refusals_are_logged_once_a_change(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    inlet = Inlet(str(server.socket), 2)
    push(inlet, b"a", b"b")
    for _ in range(5):
        push(inlet, b"c")
    raw(server).delete(KEYS.ready)
    assert poll(lambda: push(inlet, b"d") is None)
    assert [record.getMessage() for record in caplog.records] == [
        "s: refusing: The backlog is over its bound.",
        "s: taken again",
    ]


def test_what_was_acknowledged_survives_a_kill_of_redis_and_what_was_settled_stays_away(tmp: Path) -> None:
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
                        taken = claim(outlet, most=8)
                        bodies = set(outlet.bodies(taken))
                        unknown |= bodies
                        outlet.settle(taken)
                        settled |= bodies
            deadly.join()
    with redis_server(tmp) as server:
        db, now = raw(server), Inspector(str(server.socket)).snapshot("s")
        claims = [db.lrange(KEYS.claim + name, 0, -1) for name in now.claims]
        there = [*db.lrange(KEYS.ready, 0, -1), *(body for bodies in claims for body in bodies)]
        assert len(settled) > 20
        assert len(there) == len(set(there))
        assert settled & set(there) == set()
        assert acknowledged - set(there) <= unknown
        assert now.ready + now.claimed >= len(acknowledged)


@pytest.mark.parametrize("how", ["flushed", "restarted with nothing"])
def test_ids_never_come_again_and_the_sink_takes_new_bodies_for_new(how: str, tmp: Path) -> None:
    seen: list[str] = []
    sink = sinks.connect(f"sqlite:///{tmp}/ingest.db", STREAMS)
    for _ in range(4):
        with redis_server(tmp) as server:
            inlet, outlet = Inlet(str(server.socket), 10**9), Outlet(str(server.socket))
            for _ in range(3):
                push(inlet, b"a", b"b", stream="votes")
                taken = claim(outlet, "votes")
                assert taken.first == 1 or how != "flushed"
                assert taken.id.startswith(raw(server).info("server")["run_id"] + ":")
                seen.append(taken.id)
                entries = [(taken.first, 0, b"a", Vote(poll="p", choice="a"))]
                assert sink.persist(taken, lambda entries=entries: entries) == Outcome(1, 0)  # type: ignore[misc]
                outlet.settle(taken)
                if how == "flushed":
                    raw(server).flushall()
        if how != "flushed":
            shutil.rmtree(tmp / "redis")
    assert len(set(seen)) == 12
    sink.close()


def test_a_worker_of_a_flushed_redis_finds_its_claim_lost(own: Server) -> None:
    inlet, outlet = Inlet(str(own.socket), 10**9), Outlet(str(own.socket))
    push(inlet, *numbers(5))
    taken = claim(outlet)
    raw(own).flushall()
    push(inlet, b"new")
    with pytest.raises(Lost):
        list(outlet.bodies(taken))
    assert not outlet.renew(taken)
    outlet.settle(taken)
    assert drained(outlet) == [b"new"]
