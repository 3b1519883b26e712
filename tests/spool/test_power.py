"""Power failure, simulated: strace shows which bytes were synced to disk when an answer was sent.

The append-only file is then cut at the last synced byte, and a new Redis starts from the rest.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proving import harness
from proving.harness import ROOT, Server, connect, environment, gateway, poll, post, redis_server, running
from sluice import settings
from sluice.spool.contract import Keys
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.store.registry import open_store
from sluice.store.store import Store
from sluice.store.types import Body
from sluice.streams import registry
from sluice.streams.built_in import STREAMS
from worker import Worker

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed (Debian: strace)"),
]

VOTES = Keys.for_stream("votes")
LIMITS = registry.body_limits(settings.load_settings({}))
CALLS = "write,writev,pwrite64,pwritev,sendto,sendmsg,fsync,fdatasync"
CALL = re.compile(r"(\d+) +(?:(\w+)\((\d+)<([^>]*)>|<\.\.\. (\w+) resumed>)(.*)")


# --- reading strace ---


class Sent(NamedTuple):
    """A message sent through a socket, and the bytes of the file that were written and synced at that time."""

    text: str
    written: int
    synced: int


@contextlib.contextmanager
def traced(pid: int, out: Path) -> Iterator[None]:
    """strace traces a process and all its threads."""
    command = ["strace", "-f", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", out, "-p", pid]
    with running(command, out.with_suffix(".log"), environment(out.parent), signal.SIGINT):

        def attached() -> bool:
            if "not permitted" in out.with_suffix(".log").read_text():
                pytest.skip("strace may not attach to a process here (kernel.yama.ptrace_scope)")
            status = [Path(task, "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
            return not any("TracerPid:\t0\n" in text for text in status)

        poll(attached, what="strace holds all threads")
        yield


def sent(trace: Path, file: str, size: int) -> list[Sent]:
    """The messages sent through sockets, in order. file: the end of the file's name. size: of the file at the start.

    When a sync ends, the bytes written before it began are synced.
    """
    written = synced = size
    under_way: dict[str, tuple[str, str, str, int]] = {}  # thread -> call, file name, text so far, bytes it covers
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        match = CALL.match(line)
        if not match:
            continue
        thread, call, _, name, resumed, rest = match.groups()
        if resumed:
            call, name, before, covers = under_way.pop(thread, (resumed, "", "", 0))
            rest = before + rest
        else:
            covers = written
        if name.startswith("socket:") and not resumed:  # counts as sent when the call begins
            found.append(Sent(rest, written, synced))
        if rest.endswith("<unfinished ...>"):
            under_way[thread] = call, name, rest, covers
            continue
        result = re.search(r"\) += (\d+)$", rest)
        if not result or not name.endswith(file):
            continue
        if call in ("fsync", "fdatasync"):
            synced = max(synced, covers)
        else:
            written += int(result[1])
    return found


def pushed(log: bytes) -> list[tuple[int, bytes]]:
    """The bodies in an append-only file: (offset of the end of their push, body)."""
    found, at = [], 0
    while at < len(log):
        if log[at : at + 1] == b"#":  # an annotation
            at = log.index(b"\n", at) + 1
            continue
        words = []
        end = log.index(b"\r\n", at)
        count, at = int(log[at + 1 : end]), end + 2
        for _ in range(count):
            end = log.index(b"\r\n", at)
            size, at = int(log[at + 1 : end]), end + 2
            words.append(log[at : at + size])
            at += size + 2
        if words[0].upper() == b"RPUSH" and words[1] == VOTES.ready.encode():
            found += [(at, body) for body in words[2:]]
    return found


def log_of(home: Path) -> Path:
    """The append-only file that Redis writes to."""
    (path,) = (home / "redis/appendonlydir").glob("*.incr.aof")
    return path


def answered(events: list[Sent]) -> list[tuple[int, int, int]]:
    """The replies to pushes among the messages: (bodies on the list by this reply, written, synced).

    The reply to the push is the last one of a message. After a mark's reply it is sent by writev, which strace prints
    differently. A reply that is not greater than the last one belongs to another command.
    """
    found = [(0, 0, 0)]
    for text, written, synced in events:
        lengths = re.findall(r':(\d+)\\r\\n", (?:iov_len=)?\d+', text)
        if lengths and int(lengths[-1]) > found[-1][0]:
            found.append((int(lengths[-1]), written, synced))
    return found[1:]


class Crowd:
    """Clients that post votes one after the other, and record when each was acknowledged."""

    def __init__(self, where: Path, clients: int, pause: float = 0.0) -> None:
        self.where, self.pause = where, pause
        self.acknowledged: dict[str, float] = {}
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(clients)]

    def run(self, client: int) -> None:
        number = 0
        with contextlib.suppress(OSError, EOFError), connect(self.where) as connection:
            while not self.ended.wait(self.pause):
                number += 1
                choice = f"{client}-{number}"
                if post(connection, "/votes", b'{"poll":"p","choice":"%b"}' % choice.encode())[0] == 200:
                    self.acknowledged[choice] = time.monotonic()

    def __enter__(self) -> Crowd:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


def listed(redis: Server) -> set[str]:
    """The choices of the votes on the list."""
    bodies: Any = Outlet(str(redis.socket)).redis.lrange(VOTES.ready, 0, -1)
    return {body.decode().split('"')[7] for body in bodies}


def start_from_cut(redis: Path, home: Path, size: int) -> contextlib.AbstractContextManager[Server]:
    """A new Redis that starts from a copy of another one's append-only file, cut to `size` bytes."""
    shutil.copytree(redis, home / "redis")
    with open(log_of(home), "r+b") as file:
        file.truncate(size)
    return redis_server(home, appendfsync="no")


# --- the gateway's answers ---


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_with_always_no_answer_is_sent_before_the_fsync_that_covers_it(durability: str, tmp: Path) -> None:
    """With everysec some are, which proves that the test can detect it."""
    with redis_server(tmp, appendfsync=durability) as redis, gateway(tmp, redis) as gate:
        size = log_of(tmp).stat().st_size
        with traced(redis.pid, tmp / "trace"), Crowd(gate.socket, 8) as crowd:
            poll(lambda: len(crowd.acknowledged) >= 500)
        log = log_of(tmp).read_bytes()
    bodies = pushed(log)
    replies = answered(sent(tmp / "trace", "incr.aof", size))
    assert len(bodies) >= len(crowd.acknowledged) >= 500
    assert replies[-1][0] == len(bodies)
    # a reply is the length of the list; so many bodies must be within the synced bytes
    naked = [(length, synced) for length, _, synced in replies if bodies[length - 1][0] > synced]
    print(f"{durability}: {len(crowd.acknowledged)} answers, {len(replies)} replies of Redis, {len(naked)} not covered")
    assert (naked == []) == (durability == "always")


def test_with_always_a_log_cut_at_the_last_synced_byte_has_every_acknowledged_body(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="always") as redis, gateway(tmp, redis) as gate:
        size = log_of(tmp).stat().st_size
        with traced(redis.pid, tmp / "trace"), Crowd(gate.socket, 8) as crowd:
            poll(lambda: len(crowd.acknowledged) >= 300)
            redis.process.kill()  # while the clients post
            redis.process.wait()
        acknowledged = set(crowd.acknowledged)
    replies = answered(sent(tmp / "trace", "incr.aof", size))
    end = log_of(tmp).stat().st_size
    bodies = [body.decode().split('"')[7] for _, body in pushed(log_of(tmp).read_bytes()[: replies[-1][2]])]

    with start_from_cut(tmp / "redis", tmp / "last", replies[-1][2]) as redis:
        assert acknowledged <= listed(redis)
    # the same at earlier times, and if the disk has a part of the bytes that were not synced
    chance = random.Random(4)
    for n, (length, written, synced) in enumerate(chance.sample(replies, 5)):
        torn = chance.randint(synced, min(max(written, synced) + 50, end))
        with start_from_cut(tmp / "redis", tmp / str(n), torn) as redis:
            assert set(bodies[:length]) <= listed(redis)


def test_with_everysec_a_cut_loses_only_bodies_acknowledged_within_the_last_two_seconds(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="everysec") as redis, gateway(tmp, redis) as gate:
        size = log_of(tmp).stat().st_size
        with traced(redis.pid, tmp / "trace"), Crowd(gate.socket, 4, pause=0.005) as crowd:
            poll(lambda: crowd.acknowledged and max(crowd.acknowledged.values()) - begun(crowd) > 3.5)
            redis.process.kill()
            redis.process.wait()
            cut = time.monotonic()
    synced = sent(tmp / "trace", "incr.aof", size)[-1].synced
    with start_from_cut(tmp / "redis", tmp / "cut", synced) as redis:
        there = listed(redis)
    missing = crowd.acknowledged.keys() - there
    ages = [cut - crowd.acknowledged[choice] for choice in missing]
    print(f"{len(crowd.acknowledged)} acknowledged, {len(missing)} missing, {max(ages, default=0):.2f} s at most")
    assert 0 < len(missing) < len(crowd.acknowledged)
    assert max(ages) < 2


def begun(crowd: Crowd) -> float:
    return min(crowd.acknowledged.values())


# --- the worker's settle ---


def test_no_claim_is_settled_before_the_fsync_of_the_database_that_covers_it(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        inlet = Inlet(str(redis.socket), 1000)
        environ = environment(tmp, {"INGEST_SPOOL": redis.socket})
        with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environ) as process:
            push(inlet, ["first"])
            poll(lambda: stored(tmp) == ["first"])
            size = (tmp / "ingest.db-wal").stat().st_size
            with traced(process.pid, tmp / "trace"):
                for n in range(20):
                    push(inlet, [str(n)])
                    poll(lambda n=n: str(n) in stored(tmp))  # type: ignore[misc]
                poll(lambda: not Inspector(str(redis.socket)).take_snapshot("votes").claims)
    settled = [event for event in sent(tmp / "trace", "ingest.db-wal", size) if "UNLINK" in event.text]
    assert len(settled) == 20
    assert settled[-1].written > size
    assert [event for event in settled if event.synced != event.written] == []


# --- sequence numbers that Redis assigns again ---


def push(inlet: Inlet, choices: list[str]) -> None:
    """Push votes in one commit."""
    for choice in choices:
        group = inlet.append("votes", b'{"poll":"p","choice":"%b"}' % choice.encode())
    inlet.commit(group)
    assert group.refused is None


def stored(home: Path) -> list[str]:
    """The choices in the database."""
    return [choice for (choice,) in harness.ask(home, "SELECT choice FROM votes ORDER BY rowid")]


def drain(redis: Server, home: Path) -> None:
    """Run a worker until the list is empty."""
    url = f"sqlite:///{home}/ingest.db"
    worker = Worker(Outlet(str(redis.socket)), url, STREAMS, LIMITS)
    worker.run(burst=True)
    worker.stop()  # ends its thread


def step(redis: Server, store: Store, settle: bool) -> None:
    """Store one claim, whose lease ends at once; settle it or not."""
    outlet = Outlet(str(redis.socket))
    claim = outlet.claim("votes", max_bodies=3, lease=0.001)
    assert claim

    bodies = [
        Body.from_decoded(seq, claim.arrival_of(seq)[0], item, STREAMS["votes"].decode(item, LIMITS))
        for seq, item in enumerate(outlet.read_items(claim), claim.first)
    ]
    assert store.persist(claim, bodies).records == claim.count
    if settle:
        outlet.settle(claim)


def ends(log: bytes) -> list[int]:
    """Where to cut an append-only file: after each command, because Redis drops a partial one at the start."""
    return [0, *(match.start() for match in re.finditer(rb"\*\d+\r\n\$", log)), len(log)]


def test_wherever_the_log_is_cut_the_store_ignores_no_new_body_and_stores_no_old_one_again(tmp: Path) -> None:
    """Sequence numbers are then used again, in a new spool."""
    first = tmp / "first"
    with redis_server(first, appendfsync="always") as redis:
        inlet = Inlet(str(redis.socket), 1000)
        store = open_store(f"sqlite:///{first}/ingest.db", STREAMS)
        push(inlet, ["a1", "a2", "a3"])
        step(redis, store, settle=True)
        push(inlet, ["b1", "b2", "b3", "b4"])
        step(redis, store, settle=False)
        push(inlet, ["c1", "c2"])
        drain(redis, first)
        store.close()
        highest = Inspector(str(redis.socket)).take_snapshot("votes").taken
    before = stored(first)
    assert (highest, sorted(before)) == (9, ["a1", "a2", "a3", "b1", "b2", "b3", "b4", "c1", "c2"])
    assert len(before) == len(set(before))

    cuts = ends(log_of(first).read_bytes())
    assert len(cuts) > 15
    again = 0
    for n, cut in enumerate(cuts):
        home = tmp / str(n)
        home.mkdir()
        with harness.database(first / "ingest.db") as db:
            db.execute("VACUUM INTO ?", (str(home / "ingest.db"),))
        with start_from_cut(first / "redis", home, cut) as redis:
            new = [f"{n}-{i}" for i in range(9)]  # numbers 1 to 9 are all taken in the database
            again += Inspector(str(redis.socket)).take_snapshot("votes").taken < highest
            push(Inlet(str(redis.socket), 1000), new)
            drain(redis, home)
            left = Inspector(str(redis.socket)).take_snapshot("votes")
            assert (left.ready, left.claims) == (0, {})
        after = stored(home)
        assert [choice for choice in after if choice in new] == new, f"cut at {cut} of {cuts[-1]}"
        assert sorted(after) == sorted(before + new)
    assert again > 10  # most cuts did lose claims


def test_after_a_flushall_the_store_ignores_no_new_body(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        inlet = Inlet(str(redis.socket), 1000)
        for n in range(3):
            push(inlet, [f"{n}-{i}" for i in range(3)])
            drain(redis, tmp)
            Outlet(str(redis.socket)).redis.flushall()
        assert stored(tmp) == [f"{n}-{i}" for n in range(3) for i in range(3)]
