"""Refresh ahead: one count a period, whoever asks, whatever dies."""

from __future__ import annotations

import functools
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from contrib_support.views_site import Site, site
from proving import harness
from proving.harness import PATIENCE
from proving.postgres import Postgres, postgres_server
from sluice.contrib.background import NICENESS
from sluice.contrib.views import Tally, contract, refresh, tally
from sluice.contrib.views.refresh import Refresher
from sluice.contrib.views.rows.registry import open_row_source
from sluice.parsers import Keep
from sluice.store.registry import open_store
from sluice.streams.record import Vote

pytestmark = pytest.mark.contract


@pytest.fixture
def client(tmp: Path) -> Iterator[redis.Redis]:
    socket = tmp / "r.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", ""]
    with harness.running(command, tmp / "redis.out", harness.environment(tmp)):
        found = redis.Redis(unix_socket_path=str(socket), socket_timeout=60)
        harness.poll(found.ping)
        yield found


class Counts:
    """Refreshes the tally `k` of a path, and counts how often it is counted; each count is the number of the counts."""

    def __init__(self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        view = tally("votes", key="poll", by="choice", period=60)
        self.client, self.key, self.runs = client, contract.kept_key("/t", view, "k"), 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        monkeypatch.setattr(Tally, "count", lambda view, source, key: self.count())
        client.set(contract.HOLDER, "mine")
        socket = client.connection_pool.connection_kwargs["path"]
        self.refresher = Refresher(socket, "sqlite:///none", {"/t": view}, {}, lambda: "mine")

    def count(self) -> bytes:
        self.runs += 1
        run = self.runs
        self.gate.wait(PATIENCE)
        if self.error:
            raise self.error
        return b"%d" % run

    def refresh(self) -> None:
        """What the threads of the refresher do for a key."""
        source: Any = None
        self.refresher.refresh(source, "/t", "k")

    def age(self) -> None:
        """Make the value just older than a period."""
        assert self.client.pexpire(self.key, 60_000 - 1)

    def value(self) -> Any:
        return self.client.get(self.key)

    def left(self) -> Any:
        """Milliseconds that the value still lives."""
        return self.client.pttl(self.key)


@pytest.fixture
def counts(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(client, monkeypatch)


@pytest.mark.parametrize("found", [b"old", b""])
def test_a_clock_of_redis_that_steps_back_keeps_no_value(found: bytes, counts: Counts) -> None:
    """Lifetimes in Redis end at a time of its wall clock, so they grow by as much as it steps back."""
    counts.client.set(counts.key, found, px=3600_000)
    counts.refresh()
    assert counts.value() == b"1"
    assert counts.left() <= 120_000


def test_a_cold_start_with_many_callers_counts_once(counts: Counts) -> None:
    counts.gate.clear()
    callers = [threading.Thread(target=counts.refresh) for _ in range(80)]
    for caller in callers:
        caller.start()
    harness.poll(lambda: counts.runs and sum(caller.is_alive() for caller in callers) == 1)
    counts.gate.set()
    for caller in callers:
        caller.join()
    assert (counts.runs, counts.value()) == (1, b"1")


def test_a_young_value_is_kept_and_lives_for_two_periods(counts: Counts) -> None:
    for _ in range(3):
        counts.refresh()
    assert (counts.runs, counts.value()) == (1, b"1")
    assert 60_000 < counts.left() <= 120_000


def test_after_a_period_one_caller_counts_while_the_old_value_is_there(counts: Counts) -> None:
    counts.refresh()
    counts.age()
    counts.gate.clear()
    first = threading.Thread(target=counts.refresh)
    first.start()
    harness.poll(lambda: counts.runs == 2)
    for _ in range(50):
        counts.refresh()
    assert counts.value() == b"1"
    counts.gate.set()
    first.join()
    counts.refresh()
    assert (counts.value(), counts.runs) == (b"2", 2)


def test_a_count_that_fails_leaves_the_old_value_and_is_tried_again_a_second_later(
    counts: Counts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    counts.refresh()
    counts.age()
    counts.error = OSError("the database is away")
    for _ in range(3):
        counts.refresh()
    assert (counts.value(), counts.runs) == (b"1", 2)
    counts.error = None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + refresh.FAILED_SECONDS)
    counts.refresh()
    assert counts.value() == b"3"
    assert [record.message[:30] for record in caplog.records] == ["tallies are not refreshed: OSE", "recovered"]


def test_a_count_that_ends_after_the_lease_has_passed_on_is_not_kept(counts: Counts) -> None:
    counts.gate.clear()
    slow = threading.Thread(target=counts.refresh)
    slow.start()
    harness.poll(lambda: counts.runs)
    counts.client.set(contract.HOLDER, "another")
    counts.client.set(counts.key, "newer")
    counts.gate.set()
    slow.join()
    assert counts.value() == b"newer"


def test_a_process_without_the_lease_leaves_the_questions_to_the_one_that_has_it(counts: Counts) -> None:
    asked, tokens = contract.asked_key("/t"), iter([*[""] * 10])
    reached = threading.Event()

    def token() -> str:
        try:
            return next(tokens)
        except StopIteration:
            reached.set()
            return "" if counts.client.llen(asked) else "mine"

    counts.client.rpush(asked, "k")
    counts.refresher.token, counts.refresher.every = token, 0.01
    counts.refresher.start()
    assert reached.wait(PATIENCE)
    counts.refresher.stop()
    assert (counts.client.llen(asked), counts.runs) == (1, 0)


def test_an_empty_value_is_kept_for_a_second_only(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "count", lambda view, source, key: b"")
    counts.refresh()
    monkeypatch.setattr(Tally, "count", lambda view, source, key: counts.count())
    counts.refresh()
    assert (counts.value(), counts.runs) == (b"", 0)
    assert counts.left() <= refresh.UNKNOWN_SECONDS * 1000


def refresher(here: Site) -> Refresher:
    """A refresher in this process, in the place of a follower that was killed."""
    here.kill(here.follower)
    here.client().set(contract.HOLDER, "mine")
    return Refresher(here.socket, here.url, here.views, here.streams, lambda: "mine")


@pytest.fixture
def polls() -> Iterator[Site]:
    with site(None) as found:
        found.put("votes", [Vote(poll="cookies", choice=choice) for choice in ("oreo", "fig", "oreo")])
        yield found


def ask(here: Site, key: str, path: str = "/votes/tally") -> Any:
    """Ask for a tally as the reader does; None while it is not there."""
    client = here.client()
    client.zadd(contract.wanted_key(path), {key: int(client.time()[0] * 1000)})
    value = client.get(contract.kept_key(path, here.views[path], key))
    if value is None:
        client.rpush(contract.asked_key(path), key)
    return value


def test_the_first_question_is_answered_with_a_fresh_count(polls: Site) -> None:
    found = json.loads(harness.poll(lambda: ask(polls, "cookies")))
    assert found.pop("as_of").endswith("Z")
    assert found == {"poll": "cookies", "total": 3, "choices": {"oreo": 2, "fig": 1}}
    polls.caught_up()


def test_other_processes_have_precedence_over_the_follower_and_its_counts(polls: Site) -> None:
    assert polls.follower
    process = Path(f"/proc/{polls.follower.pid}")

    def threads() -> list[int]:
        return [int(task.name) for task in (process / "task").iterdir()]

    harness.poll(lambda: len(threads()) > 2)
    ours = os.getpriority(os.PRIO_PROCESS, 0)  # these tests may run under nice(1); the lowest precedence is 19
    for thread in threads():
        assert os.getpriority(os.PRIO_PROCESS, thread) == min(ours + NICENESS, 19)
        assert os.sched_getscheduler(thread) == os.SCHED_BATCH
    group = process / "autogroup"
    if group.exists():  # the kernel has them; the harness gives each program a session of its own
        assert group.read_text().endswith(f" nice {NICENESS}\n")


def test_an_unknown_poll_is_empty(polls: Site) -> None:
    def known() -> bool:
        return ask(polls, "none") == b""

    harness.poll(known)


def test_a_tally_follows_the_database_while_clients_ask_and_is_forgotten_after_that(polls: Site) -> None:
    harness.poll(lambda: ask(polls, "cookies"))
    polls.put("votes", [Vote(poll="cookies", choice="fig")] * 5)
    harness.poll(lambda: json.loads(ask(polls, "cookies") or "{}").get("total") == 8)
    client = polls.client()
    assert int(client.hget(contract.REFRESHES, "/votes/tally")) >= 2
    kept = contract.kept_key("/votes/tally", polls.views["/votes/tally"], "cookies")
    harness.poll(lambda: not client.exists(contract.wanted_key("/votes/tally"), kept))


def test_a_database_that_is_replaced_is_counted_anew(polls: Site) -> None:
    harness.poll(lambda: ask(polls, "cookies"))
    polls.store.close()
    for path in polls.tmp.glob("ingest.db*"):
        path.unlink()
    polls.store = polls.connect()
    polls.put("votes", [Vote(poll="cookies", choice="fig")])
    harness.poll(lambda: json.loads(ask(polls, "cookies") or "{}").get("total") == 1)


def test_a_database_that_is_away_is_logged_once_for_all_keys(polls: Site) -> None:
    keys = [f"poll-{n}" for n in range(5)]
    polls.put("votes", [Vote(poll=key, choice="fig") for key in keys])
    harness.poll(lambda: all([ask(polls, key) for key in keys]))
    polls.store.close()
    polls.tmp.joinpath("ingest.db").rename(polls.tmp / "away")
    polls.tmp.joinpath("ingest.db").mkdir()
    harness.poll(lambda: not any([ask(polls, key) for key in keys]))  # each was tried for a period
    polls.tmp.joinpath("ingest.db").rmdir()
    polls.tmp.joinpath("away").rename(polls.tmp / "ingest.db")
    harness.poll(lambda: all([ask(polls, key) for key in keys]))
    lines = [line for line in (polls.tmp / "follower.out").read_text().splitlines() if "sluice.refresh" in line]
    # while the database comes back it may be missing for a moment, which is another trouble with another end
    assert len(lines) in (2, 3, 4), lines
    assert "unable to open" in lines[0]
    assert "recovered" in lines[-1]


def test_a_slow_count_in_sqlite_gets_an_index(polls: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "PERIOD_SHARE", 0.0)
    refresher(polls).start()
    harness.poll(lambda: ask(polls, "cookies"))

    def ask_store(query: str) -> str:
        with polls.store.transaction() as db:
            return str(list(db.execute(query)))

    harness.poll(lambda: "by_poll" in ask_store("SELECT name FROM sqlite_master"))
    query = "SELECT choice, count(*) FROM votes WHERE poll = 'cookies' AND choice IS NOT NULL GROUP BY 1"
    assert "COVERING INDEX votes$by_poll_choice" in ask_store(f"EXPLAIN QUERY PLAN {query}")


@pytest.mark.parametrize("keep", [Keep(None, {}), Keep(86_400, {})], ids=["plain", "partitioned"])
def test_in_postgresql_the_index_of_a_tally_holds_any_text(keep: Keep) -> None:
    with postgres_server(fsync="off") as server, site(server) as here:
        server.ask("DROP TABLE votes")
        here.store.close()
        here.store = open_store(here.url, here.streams, keep=keep)
        here.put("votes", [Vote(poll="cookies", choice="fig")])
        # a table of a few rows is read as a whole otherwise
        found = open_row_source(here.url + "&options=-c%20enable_seqscan%3Doff", here.streams)
        server.ask("CREATE INDEX votes_by_poll ON votes (batch); UPDATE pg_index SET indisvalid = false "
                   "WHERE indexrelid = 'votes_by_poll'::regclass")  # an interrupted one  # fmt: skip
        for _ in range(2):
            found.make_countable("votes", "poll", "choice")
        here.put("votes", [Vote(poll="cookies", choice="oreo"), Vote(poll=secrets.token_hex(5000), choice="fig")])
        assert len(here.rows("votes")) == 3
        assert found.count("votes", "poll", "choice", "cookies") == ({"fig": 1, "oreo": 1}, 2)
        used = "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname LIKE 'votes%'"
        found.close()  # an idle connection reports what it has read after ten seconds, one that ends at once
        harness.poll(lambda: server.ask(used)[0][0])


NOTICES = tally("notices", key="user", by="kind", period=1)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as found:
        yield found


@pytest.fixture
def two(server: Postgres) -> Iterator[Site]:
    """Two tallies with rows in PostgreSQL, and a refresher in this process."""
    with site(server) as found:
        found.put("votes", [Vote(poll="cookies", choice="oreo")])
        notice: Any = found.streams["notices"].record
        found.put("notices", [notice(user="ann", kind="like", object=1)])
        found.views["/notices/tally"] = NOTICES
        counting = refresher(found)
        counting.start()
        yield found
        counting.stop()


def test_a_key_that_no_database_can_hold_is_unknown_and_delays_no_other(two: Site) -> None:
    known: list[Any] = [two.client().rpush(contract.asked_key("/votes/tally"), f"\0{n}") for n in range(50)]
    assert len(known) == 50
    assert json.loads(harness.poll(lambda: ask(two, "cookies"), 3))["total"] == 1
    harness.poll(lambda: ask(two, "\0") == b"")


def test_a_count_that_takes_long_delays_no_other_tally(two: Site, server: Postgres) -> None:
    with two.store.transaction() as db:
        db.execute("LOCK TABLE votes IN ACCESS EXCLUSIVE MODE")  # counts wait for it
        for _ in range(2):  # a client that waits asks again
            ask(two, "cookies")
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'votes'::regclass"
        harness.poll(lambda: not two.client().llen(contract.asked_key("/votes/tally")))
        assert json.loads(harness.poll(lambda: ask(two, "ann", "/notices/tally")))["total"] == 1
        assert server.ask(waiting) == [(1,)]  # one thread counts, the other one is free
    assert json.loads(harness.poll(lambda: ask(two, "cookies")))["total"] == 1


def test_an_odd_row_of_another_program_ends_no_thread(polls: Site) -> None:
    insert = "INSERT INTO votes (received_at, time, poll, choice, batch, seq) VALUES ('', '', 'odd', {}, 1, 1)"
    with polls.store.transaction() as db:
        for choice in "CAST(x'ff41' AS TEXT)", "x'ff41'":
            db.execute(insert.format(choice))
    polls.put("votes", [Vote(poll="odd", choice="fig")])
    for _ in range(4):  # more than there are threads
        polls.client().delete(contract.kept_key("/votes/tally", polls.views["/votes/tally"], "odd"))
        assert json.loads(harness.poll(lambda: ask(polls, "odd")))["choices"]["fig"] == 1
    assert "Traceback" not in (polls.tmp / "follower.out").read_text()


def test_an_error_of_one_key_ends_no_thread_and_delays_no_other_key(
    polls: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    count = Tally.count

    def fail(self: Tally, source: Any, key: str) -> bytes:
        if key.startswith("poison"):
            raise LookupError(f"a defect that {key} shows")
        return count(self, source, key)

    monkeypatch.setattr(Tally, "count", fail)
    counting = refresher(polls)
    counting.start()
    for _ in range(5):
        polls.client().rpush(contract.asked_key("/votes/tally"), *(f"poison-{n}" for n in range(20)))
        assert json.loads(harness.poll(lambda: ask(polls, "cookies"), 3))["total"] == 3
    counting.stop()
    assert "a defect that poison-0 shows" in caplog.text


def test_the_counts_that_are_kept_have_a_bound(polls: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = refresher(polls)
    client, view = polls.client(), polls.views["/votes/tally"]
    now = int(client.time()[0] * 1000)
    for n in range(20):
        client.zadd(contract.wanted_key("/votes/tally"), {f"p{n}": now + n})
        client.set(contract.kept_key("/votes/tally", view, f"p{n}"), "x" * 10_000)
    monkeypatch.setattr(contract, "WANTED_KEYS", 15)
    counting.expiring("/votes/tally")
    assert client.zrange(contract.wanted_key("/votes/tally"), 0, -1) == [b"p%d" % n for n in range(5, 20)]
    client.config_set("maxmemory", 64 << 20)
    monkeypatch.setattr(refresh, "MEMORY_SHARE", 105_000 / (64 << 20))
    counting.expiring("/votes/tally")
    assert client.zrange(contract.wanted_key("/votes/tally"), 0, -1) == [b"p%d" % n for n in range(10, 20)]
    assert not client.exists(contract.kept_key("/votes/tally", view, "p9"))


MIXED = """
from sluice import Record, stream

class Mixed(Record):
    user: str
    kind: str
    object: int
    flag: bool
    size: float
    any: int | float | bool | str | dict
    note: dict | None = None

STREAMS = {"notices": stream("notices", Mixed)}
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_count_knows_keys_and_values_by_their_json(
    kind: str, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrib_support.views_site.RECORDS", MIXED)
    values: list[Any] = [1, 1.5, "1", "[1]", {"b": 1, "a": [2]}, "x y"]
    texts = ["1", "1.5", "[1]", '{"a":[2],"b":1}', "x y"]
    with site(server if kind == "postgres" else None) as here:
        record: Any = here.streams["notices"].record
        here.put("notices", [
            record(user="ann", kind="k", object=n, flag=n % 2 == 0, size=float(f"1e{20 + n}"), any=value)
            for n, value in enumerate(values)
        ])  # fmt: skip
        source = open_row_source(here.url, here.streams)
        count = functools.partial(source.count, "notices")
        assert count("user", "flag", "ann") == ({"true": 3, "false": 3}, 6)
        assert count("flag", "user", "true") == ({"ann": 3}, 3)
        assert count("size", "user", "1e20") == ({"ann": 1}, 1)
        assert count("user", "size", "ann")[0].keys() == {f"1e{n}" for n in range(20, 26)}
        assert count("object", "user", "3") == ({"ann": 1}, 1)
        for unknown in "03", "3.0", " 3", "\0", "9" * 30:
            assert count("object", "user", unknown) == ({}, 0)
        counted, total = count("user", "any", "ann")
        assert (counted.pop("1"), total) == (2, 6)
        assert sorted(counted) == sorted(texts[1:])
        for text in texts[1:3] + texts[4:]:
            assert count("any", "user", text) == ({"ann": 1}, 1), text
        source.close()


def test_a_count_has_the_choices_with_the_most_rows(two: Site, polls: Site) -> None:
    for here in two, polls:
        votes = [Vote(poll="many", choice=f"c{n}") for n in range(1_100)]
        here.put("votes", [*votes, *votes[1_050:], Vote(poll="many", choice="x" * 513)])
        source = open_row_source(here.url, here.streams)
        choices, total = source.count("votes", "poll", "choice", "many")
        assert (len(choices), total) == (1_000, 1_151)
        assert choices["c1099"] == 2 and "x" * 513 not in choices
        source.close()
        value = here.views["/votes/tally"]
        assert isinstance(value, Tally)
        kept = value.count(open_row_source(here.url, here.streams), "many")
        assert json.loads(kept)["total"] == 1_151 and value.may_serve(kept, kept)
