"""Power failure, as far as it can be had without pulling a plug: strace shows what was on disk when an answer left.

The log is then cut where the disk was sure of it, and a new Redis starts on what is left.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluice import settings, sinks
from sluice.drill.harness import ROOT, Server, connect, environment, gateway, poll, post, redis_server, running
from sluice.spool.contract import Keys
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.streams import registry
from worker import Worker

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed (Debian: strace)")

VOTES = Keys.of("votes")
MOST = registry.limits(settings.load({}))
CALLS = "write,writev,pwrite64,pwritev,sendto,sendmsg,fsync,fdatasync"
CALL = re.compile(r"(\d+) +(?:(\w+)\((\d+)<([^>]*)>|<\.\.\. (\w+) resumed>)(.*)")


# --- what strace saw ---


class Sent(NamedTuple):
    """Something that left through a socket, and how many bytes had been written to the file and synced by then."""

    text: str
    written: int
    synced: int


@contextlib.contextmanager
def traced(pid: int, out: Path) -> Iterator[None]:
    """strace of a process and all its threads."""
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
    """What left through sockets, in order. file: what the file's name ends with. size: that it had at the beginning.

    A sync covers what was written before it began, from when it has ended.
    """
    written = synced = size
    under_way: dict[str, tuple[str, str, str, int]] = {}  # thread -> call, name, its text so far, what it will cover
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
        if name.startswith("socket:") and not resumed:  # it leaves when the call begins
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
    """The bodies in a log of Redis: where in it the command ends that pushed them, and the body."""
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
    """The file that Redis appends to."""
    (path,) = (home / "redis/appendonlydir").glob("*.incr.aof")
    return path


def answered(events: list[Sent]) -> list[tuple[int, int, int]]:
    """The replies to pushes among what left: (bodies on the list by this reply, written, synced).

    The push's is the last of a flight. Behind a mark's it leaves by writev, whose text is another. What says no more
    than was known is the reply to something else.
    """
    found = [(0, 0, 0)]
    for text, written, synced in events:
        lengths = re.findall(r':(\d+)\\r\\n", (?:iov_len=)?\d+', text)
        if lengths and int(lengths[-1]) > found[-1][0]:
            found.append((int(lengths[-1]), written, synced))
    return found[1:]


class Crowd:
    """Clients that post votes one after the other, and note when each was acknowledged."""

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


def start_on_the_rest(redis: Path, home: Path, size: int) -> contextlib.AbstractContextManager[Server]:
    """A new Redis on a copy of another one's log, cut to so many bytes."""
    shutil.copytree(redis, home / "redis")
    with open(log_of(home), "r+b") as file:
        file.truncate(size)
    return redis_server(home, appendfsync="no")


# --- the gateway's answers ---


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_with_always_no_answer_leaves_before_the_fsync_that_covers_it(durability: str, tmp: Path) -> None:
    """With everysec they do: so this test sees it when they do."""
    with redis_server(tmp, appendfsync=durability) as redis, gateway(tmp, redis) as gate:
        size = log_of(tmp).stat().st_size
        with traced(redis.pid, tmp / "trace"), Crowd(gate.socket, 8) as crowd:
            poll(lambda: len(crowd.acknowledged) >= 500, 60)
        log = log_of(tmp).read_bytes()
    bodies = pushed(log)
    replies = answered(sent(tmp / "trace", "incr.aof", size))
    assert len(bodies) >= len(crowd.acknowledged) >= 500
    assert replies[-1][0] == len(bodies)
    # a reply says how many bodies are on the list; so many must lie in what was synced
    naked = [(length, synced) for length, _, synced in replies if bodies[length - 1][0] > synced]
    print(f"{durability}: {len(crowd.acknowledged)} answers, {len(replies)} replies of Redis, {len(naked)} not covered")
    assert (naked == []) == (durability == "always")


def test_with_always_a_log_cut_at_the_last_synced_byte_holds_all_that_was_acknowledged(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="always") as redis, gateway(tmp, redis) as gate:
        size = log_of(tmp).stat().st_size
        with traced(redis.pid, tmp / "trace"), Crowd(gate.socket, 8) as crowd:
            poll(lambda: len(crowd.acknowledged) >= 300, 60)
            redis.process.kill()  # in the middle of it
            redis.process.wait()
        acknowledged = set(crowd.acknowledged)
    replies = answered(sent(tmp / "trace", "incr.aof", size))
    end = log_of(tmp).stat().st_size
    bodies = [body.decode().split('"')[7] for _, body in pushed(log_of(tmp).read_bytes()[: replies[-1][2]])]

    with start_on_the_rest(tmp / "redis", tmp / "last", replies[-1][2]) as redis:
        assert acknowledged <= listed(redis)
    # the same at any earlier moment, and where the disk has a part of what was not synced
    chance = random.Random(4)
    for n, (length, written, synced) in enumerate(chance.sample(replies, 5)):
        torn = chance.randint(synced, min(max(written, synced) + 50, end))
        with start_on_the_rest(tmp / "redis", tmp / str(n), torn) as redis:
            assert set(bodies[:length]) <= listed(redis)


def test_with_everysec_what_a_cut_costs_was_acknowledged_within_the_last_two_seconds(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="everysec") as redis, gateway(tmp, redis) as gate:
        size = log_of(tmp).stat().st_size
        with traced(redis.pid, tmp / "trace"), Crowd(gate.socket, 4, pause=0.005) as crowd:
            poll(lambda: crowd.acknowledged and max(crowd.acknowledged.values()) - begun(crowd) > 3.5, 30)
            redis.process.kill()
            redis.process.wait()
            cut = time.monotonic()
    synced = sent(tmp / "trace", "incr.aof", size)[-1].synced
    with start_on_the_rest(tmp / "redis", tmp / "rest", synced) as redis:
        there = listed(redis)
    missing = crowd.acknowledged.keys() - there
    ages = [cut - crowd.acknowledged[choice] for choice in missing]
    print(f"{len(crowd.acknowledged)} acknowledged, {len(missing)} missing, {max(ages, default=0):.2f} s at most")
    assert 0 < len(missing) < len(crowd.acknowledged)
    assert max(ages) < 2


def begun(crowd: Crowd) -> float:
    return min(crowd.acknowledged.values())


# --- the worker's ---


def test_nothing_is_settled_before_the_fsync_of_the_database_that_covers_it(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        inlet = Inlet(str(redis.socket), 1000)
        environ = environment(tmp, {"INGEST_REDIS": redis.socket})
        with running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environ) as process:
            push(inlet, ["first"])
            poll(lambda: stored(tmp) == ["first"])
            size = (tmp / "ingest.db-wal").stat().st_size
            with traced(process.pid, tmp / "trace"):
                for n in range(20):
                    push(inlet, [str(n)])
                    poll(lambda n=n: str(n) in stored(tmp))  # type: ignore[misc]
                poll(lambda: not Inspector(str(redis.socket)).snapshot("votes").claims)
    settled = [event for event in sent(tmp / "trace", "ingest.db-wal", size) if "UNLINK" in event.text]
    assert len(settled) == 20
    assert settled[-1].written > size
    assert [event for event in settled if event.synced != event.written] == []


# --- Redis's sequence goes back ---


def push(inlet: Inlet, choices: list[str]) -> None:
    """Votes, in one commit."""
    for choice in choices:
        batch = inlet.append("votes", b'{"poll":"p","choice":"%b"}' % choice.encode())
    inlet.commit(batch)
    assert batch.refused is None


def stored(home: Path) -> list[str]:
    """The choices in the database."""
    with contextlib.closing(sqlite3.connect(f"file:{home}/ingest.db?mode=ro", uri=True)) as database:
        return [choice for (choice,) in database.execute("SELECT choice FROM votes ORDER BY rowid")]


def drain(redis: Server, home: Path) -> None:
    """All that a worker does until the list is empty."""
    url = f"sqlite:///{home}/ingest.db"
    Worker(Outlet(str(redis.socket)), url, registry.STREAMS, MOST).run(drain=True)


def step(redis: Server, sink: sinks.Sink, settle: bool) -> None:
    """One claim, which is stored, and settled or not. Its lease has ended at once."""
    outlet = Outlet(str(redis.socket))
    claim = outlet.claim("votes", max_bodies=3, lease=0.001)
    assert claim

    def entries() -> Iterator[sinks.Entry]:
        for seq, body in enumerate(outlet.bodies(claim), claim.first):
            for thing in registry.STREAMS["votes"].decode(body, MOST):
                yield seq, claim.received(seq)[0], body, thing

    assert sink.persist(claim, entries).records == claim.count
    if settle:
        outlet.settle(claim)


def ends(log: bytes) -> list[int]:
    """Where a log of Redis may be cut: behind each command, for a torn one is dropped at the start."""
    return [0, *(match.start() for match in re.finditer(rb"\*\d+\r\n\$", log)), len(log)]


def test_wherever_redis_goes_back_to_no_new_body_is_ignored(tmp: Path) -> None:
    """Sequence numbers come again then; claims do not."""
    first = tmp / "first"
    with redis_server(first, appendfsync="always") as redis:
        inlet = Inlet(str(redis.socket), 1000)
        sink = sinks.connect(f"sqlite:///{first}/ingest.db", registry.STREAMS)
        push(inlet, ["a1", "a2", "a3"])
        step(redis, sink, settle=True)
        push(inlet, ["b1", "b2", "b3", "b4"])
        step(redis, sink, settle=False)
        push(inlet, ["c1", "c2"])
        drain(redis, first)
        sink.close()
        highest = Inspector(str(redis.socket)).snapshot("votes").claimed
    before = stored(first)
    assert (highest, sorted(before)) == (9, ["a1", "a2", "a3", "b1", "b2", "b3", "b4", "c1", "c2"])
    assert len(before) == len(set(before))

    cuts = ends(log_of(first).read_bytes())
    assert len(cuts) > 15
    again = 0
    for n, cut in enumerate(cuts):
        home = tmp / str(n)
        home.mkdir()
        with contextlib.closing(sqlite3.connect(first / "ingest.db")) as database:
            database.execute("VACUUM INTO ?", (str(home / "ingest.db"),))
        with start_on_the_rest(first / "redis", home, cut) as redis:
            new = [f"{n}-{i}" for i in range(9)]  # numbers 1 to 9 are all taken in the database
            again += Inspector(str(redis.socket)).snapshot("votes").claimed < highest
            push(Inlet(str(redis.socket), 1000), new)
            drain(redis, home)
            left = Inspector(str(redis.socket)).snapshot("votes")
            assert (left.ready, left.claims) == (0, {})
        after = stored(home)
        assert [choice for choice in after if choice in new] == new, f"cut at {cut} of {cuts[-1]}"
        assert set(before) <= set(after)
    assert again > 10  # it did go back


def test_a_redis_that_is_emptied_while_it_runs_makes_the_sink_ignore_nothing(tmp: Path) -> None:
    with redis_server(tmp, appendfsync="no") as redis:
        inlet = Inlet(str(redis.socket), 1000)
        for n in range(3):
            push(inlet, [f"{n}-{i}" for i in range(3)])
            drain(redis, tmp)
            Outlet(str(redis.socket)).redis.flushall()
        assert stored(tmp) == [f"{n}-{i}" for n in range(3) for i in range(3)]
