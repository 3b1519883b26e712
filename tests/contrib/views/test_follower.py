"""The follower against real databases: whatever is killed, every view equals its definition, and check agrees."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from contrib_support.views_site import NOON, Site, site
from proving import harness
from proving.harness import PATIENCE
from proving.postgres import Postgres, postgres_server
from sluice import settings
from sluice.contrib.background import SCHEDSTAT, waited_seconds
from sluice.contrib.views import contract, feed, follower, lease
from sluice.contrib.views.client import LeaseLost, ViewsClient
from sluice.contrib.views.kinds.latest import EACH, LATEST, MAX_EACH, ORDER_BYTES, each_json
from sluice.contrib.views.link import Command
from sluice.contrib.views.rows.registry import open_row_source
from sluice.contrib.views.rows.source import PIECE_BYTES
from sluice.store.questions import DeadLetter, find_letters
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.types import Unavailable
from sluice.streams.record import Decoded, Gps, Metric, Reject
from support.store_contract import watched
from support.table_of_cases import check_each_row

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(request.getfixturevalue("server") if request.param == "postgres" else None) as found:
        yield found


@pytest.fixture
def sqlite() -> Iterator[Site]:
    with site(None) as found:
        yield found


@pytest.fixture
def postgres(server: Postgres) -> Iterator[Site]:
    with site(server) as found:
        yield found


SCRIPTS = {"LATEST": LATEST, "EACH": EACH, "WRITE": contract.WRITE}


def position(device: str, second: int, lat: float = 1.5) -> Gps:
    return Gps(time=(NOON + second) * 10**9, device=device, lat=lat, lon=2.25)


def test_a_stored_row_is_in_every_view_of_its_stream(here: Site) -> None:
    here.put("gps", [position("bike", 1), position("bike", 3), position("bike", 2), position("car", 1)])
    tags = {"room": "a"}
    values: list[tuple[str, float | int | str, str]] = [("t", 20.5, "float"), ("n", 3, "integer"), ("s", "x", "string")]
    here.put(
        "metrics",
        [
            Metric(time=NOON * 10**9 + n, name="air", tags=tags, field=field, value=value, type=kind)
            for n, (field, value, kind) in enumerate(values)
        ],
    )
    here.caught_up()
    assert here.actual("/gps/latest")["bike"].startswith('{"device":"bike","time":"2026-01-01T12:00:03.000')
    assert len(here.actual("/metrics/latest")["air"]) == 3


def test_series_are_equal_whatever_the_order_of_their_tags(here: Site) -> None:
    for n, tags in enumerate([{"a": "1", "b": "2"}, {"b": "2", "a": "1"}]):
        here.put("metrics", [Metric(time=NOON * 10**9 + n, name="m", tags=tags, field="f", value=n, type="integer")])
    here.caught_up()
    (only,) = here.actual("/metrics/latest")["m"]
    assert '"value":1' in only


def test_an_older_value_that_is_committed_later_does_not_win(postgres: Site) -> None:
    slow, done = postgres.connect(), threading.Event()
    claim, bodies = postgres.claim("gps", [position("bike", 5, lat=5.0), position("bike", 9, lat=9.0)])
    blocked = [*watched(bodies[:1], lambda: done.wait(PATIENCE)), bodies[1]]
    thread = threading.Thread(target=lambda: slow.persist(claim, blocked))
    thread.start()
    harness.poll(lambda: open_transactions(postgres))
    postgres.put("gps", [position("bike", 7, lat=7.0), position("car", 1)])
    postgres.caught_up()
    assert '"lat":7.0' in postgres.actual("/gps/latest")["bike"]
    done.set()
    thread.join()
    slow.close()
    postgres.caught_up()
    assert '"lat":9.0' in postgres.actual("/gps/latest")["bike"]
    assert len(postgres.actual("/gps/trail")["bike"]) == 3


def open_transactions(here: Site) -> bool:
    """Whether a transaction holds an id of `batches` that is not committed."""
    with here.store.transaction() as db:
        held = db.execute(
            "SELECT count(*) FROM pg_locks WHERE relation = 'batches'::regclass AND mode = 'RowExclusiveLock'"
        )
        return held.fetchone()[0] > 0


def test_the_ids_of_batches_settle_when_the_transactions_of_their_time_have_ended(postgres: Site) -> None:
    for n in range(5):
        postgres.put("gps", [position("bike", n)])
    client = postgres.client()

    def settled() -> bool:
        state = client.get(contract.state_key("/gps/latest")).decode()
        return client.hget(contract.info_key("/gps/latest", state), "position").startswith(b"[5, []")

    harness.poll(settled)


def test_a_position_stays_short_while_somebody_leaves_a_transaction_open(postgres: Site) -> None:
    postgres.put("gps", [position("bike", 0)])
    postgres.caught_up()
    idle, slow = postgres.connect(), postgres.connect()
    opened, done = threading.Event(), threading.Event()
    with contextlib.closing(slow), contextlib.closing(idle), idle.transaction() as db:
        db.execute("UPDATE batches SET records = 0 WHERE false")
        claim, bodies = postgres.claim("gps", [position("van", 1)])

        def wait() -> None:
            opened.set()
            done.wait(PATIENCE)

        thread = threading.Thread(target=lambda: slow.persist(claim, watched(bodies, wait)))
        thread.start()
        opened.wait(PATIENCE)
        for n in range(40):
            postgres.put("gps", [position("bike", n)])
            postgres.put("metrics", [Metric(time=NOON * 10**9, name="m", tags={}, field="f", value=1, type="integer")])
        postgres.caught_up()
        client = postgres.client()
        state = client.get(contract.state_key("/gps/latest")).decode()
        place = json.loads(client.hget(contract.info_key("/gps/latest", state), "position"))
        assert place[0] > 40 and place[1] == [2]
        done.set()
        thread.join()
        postgres.caught_up()
        assert postgres.actual("/gps/latest").keys() == {"bike", "van"}


def test_a_follower_that_has_not_read_changes_that_were_deleted_builds_its_views_anew(
    postgres: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.contrib.postgres.store.KEEP_CHANGES", 2)
    postgres.put("gps", [position("bike", 1)])
    postgres.caught_up()
    before = postgres.client().get(contract.state_key("/gps/latest"))
    postgres.kill(postgres.follower)
    with postgres.store.transaction() as db:
        late = "(received_at, time, device, lat, lon, batch, seq) VALUES (now(), now(), 'late', 1, 1, 1, 9)"
        db.execute(f"INSERT INTO gps {late}")
        for _ in range(5):
            db.execute("INSERT INTO view_changes (stream, batch) VALUES ('gps', 1)")
    postgres.store.fold_batches()
    with postgres.store.transaction() as db:
        assert db.execute("SELECT count(*) FROM view_changes").fetchone() == (2,)
    postgres.start_follower()
    postgres.caught_up()
    assert postgres.actual("/gps/latest").keys() == {"bike", "late"}
    assert postgres.client().get(contract.state_key("/gps/latest")) != before


def test_a_batch_is_folded_when_no_lower_id_can_appear(postgres: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 1)
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 2)
    slow, opened, done = postgres.connect(), threading.Event(), threading.Event()
    claim, bodies = postgres.claim("gps", [position("bike", 5)])

    def wait() -> None:
        opened.set()
        done.wait(PATIENCE)

    thread = threading.Thread(target=lambda: slow.persist(claim, watched(bodies, wait)))
    thread.start()
    opened.wait(PATIENCE)
    for n in range(3):
        postgres.put("gps", [position("car", n)])
    assert not postgres.store.fold_batches()
    done.set()
    thread.join()
    slow.close()
    assert postgres.store.fold_batches()
    postgres.caught_up()


def test_a_follower_that_returns_after_its_batches_were_folded_continues(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 1)
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 1)
    here.put("gps", [position("bike", 1)])
    here.caught_up()
    before = here.client().get(contract.state_key("/gps/latest"))
    here.kill(here.follower)
    for n in range(2, 7):
        here.put("gps", [position("bike", n), position(f"car-{n}", 1)])
    while here.store.fold_batches():
        pass
    here.start_follower()
    here.caught_up()
    assert here.client().get(contract.state_key("/gps/latest")) == before


def test_a_view_keeps_what_was_deleted_by_age(here: Site) -> None:
    here.settings = settings.load_settings({"INGEST_KEEP": "1m"})
    with contextlib.closing(open_store(here.url, here.streams, keep=here.settings.keep)) as store:  # partitions
        here.put("gps", [position("car", 1), position("bike", 7)])
        here.put("gps", [position("bike", 5), position("boat", 1)])
        here.put("gps", [position("bike", 6)])
        here.caught_up()
        state = here.client().get(contract.state_key("/gps/latest"))
        while store.expire_stream("gps", (NOON + 3600) * 10**6):
            pass
        assert here.store.read_ledger("gps").deleted > 3
    assert here.differences() == {}
    here.put("gps", [position("plane", 1)])
    harness.poll(lambda: "plane" in here.actual("/gps/latest"))
    assert here.actual("/gps/latest").keys() == {"car", "bike", "boat", "plane"}
    assert here.differences() == {}
    assert here.client().get(contract.state_key("/gps/latest")) == state
    here.client().set(contract.generation_prefix("/gps/latest", state.decode()) + "plane", "0" * ORDER_BYTES + "{}")
    assert here.differences() == {"/gps/latest": ["plane"]}


def test_replayed_dead_letters_appear(here: Site) -> None:
    here.put("gps", [position("bike", 1)])
    here.put("gps", [], [b'{"device":"bike","lat":"bad","lon":1}', b'{"device":"car","lat":3,"lon":4}'])
    here.put("gps", [position("bike", 2)])
    here.caught_up()
    letters = find_letters(here.store)
    assert len(letters) == 1
    replayed = replay_letters(here.store, letters, lambda letter: Decoded([position("bike", 8, lat=8.0)]))
    assert replayed.stored == 1
    here.caught_up()
    assert '"lat":8.0' in here.actual("/gps/latest")["bike"]


def test_rows_that_are_not_read_to_the_end_leave_no_cursor(postgres: Site) -> None:
    """The garbage collector would close it, perhaps within another query, which would then wait for itself."""
    postgres.put("gps", [position("bike", n) for n in range(10_001)])
    with contextlib.closing(open_row_source(postgres.url, postgres.streams)) as own:
        own.news()
        with pytest.raises(LeaseLost), own.snapshot():
            changes = own.changes("gps", own.start(), follower.CHUNK_ROWS)
            for _ in changes.pieces:
                raise LeaseLost
        assert isinstance(changes.pieces, Generator)
        assert inspect.getgeneratorstate(changes.pieces) == inspect.GEN_CLOSED


def test_a_lost_redis_is_filled_again(here: Site) -> None:
    here.put("gps", [position(f"d{n % 7}", n) for n in range(100)])
    here.caught_up()
    here.kill(here.redis)
    here.put("gps", [position("late", 1)])
    here.start_redis()
    here.caught_up()
    here.client().flushall()
    here.caught_up()


def test_a_killed_follower_continues_where_it_was(here: Site) -> None:
    here.put("gps", [position("bike", 1)])
    here.caught_up()
    before = here.client().get(contract.state_key("/gps/latest"))
    here.kill(here.follower)
    here.put("gps", [position("bike", 2)])
    here.start_follower()
    here.caught_up()
    assert here.client().get(contract.state_key("/gps/latest")) == before


def test_another_database_is_followed_from_its_first_row(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1), position("gone", 1)])
    sqlite.caught_up()
    sqlite.kill(sqlite.follower)
    sqlite.store.close()
    for path in sqlite.tmp.glob("ingest.db*"):
        path.unlink()
    sqlite.store = sqlite.connect()
    sqlite.put("gps", [position("car", 1), position("car", 2), position("car", 3)])
    sqlite.start_follower()
    sqlite.caught_up()


@check_each_row("place", ["7 8 9 10 run:1:gps", '{"x":1}', "\xff"])
def test_the_position_in_another_kind_of_database_is_none_in_this_one(place: str, here: Site) -> None:
    here.put("gps", [position("bike", 1), position("car", 1)])
    here.caught_up()
    here.kill(here.follower)
    client, path = here.client(), "/gps/latest"
    before = client.get(contract.state_key(path))
    client.hset(contract.info_key(path, before.decode()), "position", place)
    here.start_follower()
    harness.poll(lambda: client.get(contract.state_key(path)) not in (before, None))
    here.put("gps", [position("bike", 2)])
    here.caught_up()


def test_a_database_that_is_replaced_under_the_follower_is_noticed(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    sqlite.store.close()
    for path in sqlite.tmp.glob("ingest.db*"):
        path.unlink()
    sqlite.store = sqlite.connect()
    sqlite.put("gps", [position("car", 1)])
    sqlite.caught_up()


def test_a_rebuild_is_served_only_when_it_is_complete(here: Site) -> None:
    here.put("gps", [position(f"d{n % 50}", n) for n in range(3000)])
    here.caught_up()
    client = here.client()
    before = client.get(contract.state_key("/gps/latest"))
    client.sadd(contract.REBUILD, "/gps/latest")
    seen = []

    def switched() -> bool:
        seen.append(len(here.actual("/gps/latest") or ()))
        return client.get(contract.state_key("/gps/latest")) != before

    harness.poll(switched)
    assert set(seen[:-1]) <= {50}
    here.caught_up()

    def swept() -> bool:
        return not list(client.scan_iter(contract.generation_prefix("/gps/latest", before.decode()) + "*"))

    harness.poll(swept, what="the old generation's keys to be deleted")


def test_a_second_follower_waits_for_the_first(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    first = sqlite.follower
    holder = sqlite.client().get(contract.HOLDER)
    sqlite.start_follower()
    assert sqlite.client().get(contract.HOLDER) == holder
    sqlite.kill(first)
    sqlite.put("gps", [position("bike", 2)])
    sqlite.caught_up()
    assert sqlite.client().get(contract.HOLDER) != holder


def test_the_lease_of_a_living_holder_is_taken_by_nobody(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE", 600_000)  # it does not end by itself, however busy the machine is
    socket = tmp / "r.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", ""]
    with harness.running(command, tmp / "redis.out", harness.environment(tmp)):
        first, second = ViewsClient(str(socket)), ViewsClient(str(socket))
        harness.poll(lambda: first.ask(("PING",)))
        token = lease.take_lease(first)
        assert [lease.take_lease(second) for _ in range(2)] == ["", ""]
        assert second.ask(("GET", contract.HOLDER)) == [token.encode()]
        first.close()
        assert harness.poll(lambda: lease.take_lease(second)) != token
        second.close()


def test_a_follower_that_was_stopped_changes_nothing_after_another_has_taken_over(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    assert sqlite.follower
    client, first = sqlite.client(), sqlite.follower
    os.kill(first.pid, signal.SIGSTOP)
    holder = client.get(contract.HOLDER)
    sqlite.start_follower()
    harness.poll(lambda: client.get(contract.HOLDER) not in (None, holder))
    sqlite.put("gps", [position("bike", 2)])
    os.kill(first.pid, signal.SIGCONT)
    sqlite.caught_up()
    harness.poll(lambda: "starts over" in (sqlite.tmp / "follower.out").read_text())
    sqlite.caught_up()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_without_the_lease_changes_nothing(tmp: Path, name: str) -> None:
    """Also in an emptied Redis, where a position without its rows would hide them for ever."""
    socket = tmp / "r.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", ""]
    with harness.running(command, tmp / "redis.out", harness.environment(tmp)):
        link = ViewsClient(str(socket))
        harness.poll(lambda: link.ask(("PING",)))
        call = ("EVAL", SCRIPTS[name], 3, contract.HOLDER, "a", "b", "mine", "2", "1", "5", "x")
        with pytest.raises(LeaseLost):
            link.ask(call)
        assert link.ask(("DBSIZE",)) == [0]
        link.ask(("SET", contract.HOLDER, "another"), ("SET", "b", "kept"))
        with pytest.raises(LeaseLost):
            link.ask(call)
        assert link.ask(("DBSIZE",), ("GET", "b")) == [2, b"kept"]
        link.close()


def test_a_feed_is_not_written_once_another_follower_has_the_lease(
    sqlite: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    assert sqlite.follower
    sqlite.kill(sqlite.follower)
    client = sqlite.client()
    generation = client.get(contract.state_key("/gps/trail")).decode()
    key = contract.generation_prefix("/gps/trail", generation) + "bike"
    before = client.get(key)
    late = follower.Follower(sqlite.socket, sqlite.url, sqlite.views, sqlite.streams)
    harness.poll(lambda: late.token or late.take_over() and late.token)
    read = late.read

    def overtaken(window: list[Command], keys: list[str]) -> list[Any]:
        found = read(window, keys)
        client.set(contract.HOLDER, "another")
        client.set(contract.TAKEN, "another")
        return found

    monkeypatch.setattr(late, "read", overtaken)
    sqlite.put("gps", [position("bike", 2)])
    with pytest.raises(LeaseLost):
        late.turn()
    assert client.get(key) == before
    late.client.close()
    late.source.close()


@pytest.mark.nightly
def test_a_view_without_room_refuses_new_keys_and_all_others_go_on(sqlite: Site) -> None:
    sqlite.put("votes", [])
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    client, states = sqlite.client(), {path: contract.state_key(path) for path in ("/gps/latest", "/gps/trail")}
    before = client.mget(states.values())
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 2_000_000)
    for n in range(10):
        sqlite.put("gps", [position(f"device-{n}-{m}", m) for m in range(1000)])
    sqlite.put("gps", [position("bike", 2), position("late", 2)])
    sqlite.put("metrics", [Metric(time=NOON * 10**9, name="m", tags={}, field="f", value=1, type="integer")])
    for path, generation in zip(states, before):
        harness.poll(lambda path=path: "12:00:02" in str(sqlite.actual(path)["bike"]))  # type: ignore[misc]
        # a turn says so after its rows
        harness.poll(lambda path=path, name=generation: client.get(contract.crowded_key(path)) == name)  # type: ignore[misc]
        assert 100 < len(sqlite.actual(path)) < 10_000 and "late" not in sqlite.actual(path)
    harness.poll(lambda: "m" in sqlite.actual("/metrics/latest"))
    assert sqlite.differences() == {}
    assert client.mget(states.values()) == before
    assert client.info("memory")["used_memory"] < 0.95 * client.info("memory")["maxmemory"]
    assert (sqlite.tmp / "follower.out").read_text().count("takes no new keys") == 2
    client.config_set("maxmemory", 0)  # there is room: they are built again
    sqlite.caught_up()
    assert client.get(contract.crowded_key("/gps/latest")) != client.get(contract.state_key("/gps/latest"))


def test_a_key_of_latest_has_the_newest_series_only(here: Site) -> None:
    def series(n: int, second: int = 0) -> Metric:
        time = (NOON + n + second) * 10**9
        return Metric(time=time, name="m", tags={"n": str(n)}, field="f", value=n, type="integer")

    here.put("metrics", [series(n) for n in range(900)])
    here.put("metrics", [series(n) for n in range(900, MAX_EACH * 2 + 200)])
    here.put("metrics", [series(7, 10_000)])
    here.caught_up()
    client = here.client()
    key = (
        contract.generation_prefix("/metrics/latest", client.get(contract.state_key("/metrics/latest")).decode()) + "m"
    )
    assert client.hlen(key) <= 2 * MAX_EACH
    parts = [part for pair in client.hgetall(key).items() for part in pair]
    shown = [item["value"] for item in json.loads(each_json(parts, 0))]
    assert sorted(shown) == [7, *range(MAX_EACH + 201, MAX_EACH * 2 + 200)]


def test_a_follower_that_starts_while_the_memory_is_full_makes_room(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    sqlite.kill(sqlite.follower)
    client = sqlite.client()
    client.config_set("maxmemory", 1 << 19)
    sqlite.put("gps", [position("bike", 2)])
    sqlite.start_follower()
    harness.poll(lambda: client.get(contract.state_key("/gps/latest")) == contract.FULL)
    client.config_set("maxmemory", 0)
    client.sadd(contract.REBUILD, *sqlite.views)
    sqlite.caught_up()


def test_a_key_longer_than_the_limit_is_in_no_view(sqlite: Site) -> None:
    sqlite.put("gps", [position("x" * (contract.KEY_BYTES + 1), 1), position("y" * contract.KEY_BYTES, 1)])
    harness.poll(lambda: sqlite.differences() == {}, what="all views are served")
    assert list(sqlite.actual("/gps/latest")) == ["y" * contract.KEY_BYTES]


def test_a_declaration_that_changed_is_built_anew(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", n) for n in range(20)])
    sqlite.caught_up()
    assert sqlite.follower
    sqlite.follower.terminate()
    sqlite.follower.wait()
    text = (sqlite.tmp / "views.py").read_text()
    (sqlite.tmp / "views.py").write_text(text.replace("cap=5", "cap=7"))
    sqlite.views["/gps/trail"] = feed("gps", key="device", cap=7)
    sqlite.start_follower()
    sqlite.caught_up()
    assert len(sqlite.actual("/gps/trail")["bike"]) == 7


class Chaos:
    """Random steps on an installation."""

    def __init__(self, here: Site, seed: int) -> None:
        self.here, self.random = here, random.Random(seed)
        self.notice: Any = here.streams["notices"].record

    def records(self, stream: str) -> list[Any]:
        choose = self.random
        second = lambda: (NOON + choose.randrange(40)) * 10**9 if choose.random() < 0.9 else None  # noqa: E731
        count = choose.choice([1, 2, 5, 30])
        if stream == "gps":
            return [
                Gps(time=second(), device=f"d{choose.randrange(4)}", lat=float(choose.randrange(3)), lon=0.5)
                for _ in range(count)
            ]
        if stream == "metrics":
            return [
                Metric(
                    time=NOON * 10**9 + choose.randrange(3000), name=f"m{choose.randrange(2)}", type="integer",
                    tags={"b": "1", "a": str(choose.randrange(2))}, field="f", value=choose.randrange(5),
                )
                for _ in range(count)
            ]  # fmt: skip
        return [
            self.notice(
                time=second(), user=f"u{choose.randrange(3)}", kind=choose.choice("ab"), object=choose.randrange(4),
                note=choose.choice([None, {"y": 1, "x": choose.randrange(2)}]),
            )
            for _ in range(count)
        ]  # fmt: skip

    def put(self) -> None:
        stream = self.random.choice(["gps", "metrics", "notices"])
        self.here.put(stream, self.records(stream))

    def bury(self) -> None:
        claim, bodies = self.here.claim("gps", self.records("gps"))
        bodies[0] = bodies[0].with_results((), [Reject(b"{}", "bad", True)])
        self.here.store.persist(claim, bodies)

    def redeliver(self) -> None:
        if self.here.claims:
            claim, bodies = self.random.choice(self.here.claims)
            assert self.here.store.persist(claim, bodies).again

    def replay(self) -> None:
        def decode(letter: DeadLetter) -> Decoded:
            return Decoded(self.records("gps"))

        replay_letters(self.here.store, find_letters(self.here.store, limit=2), decode)

    def out_of_order(self) -> None:
        """Two transactions at once, where the database can; the one that began first commits last."""
        if self.here.url.startswith("sqlite"):
            return self.put()
        slow, opened, done = self.here.connect(), threading.Event(), threading.Event()
        claim, bodies = self.here.claim("gps", self.records("gps"))

        def wait() -> None:
            opened.set()
            done.wait(PATIENCE)

        thread = threading.Thread(target=lambda: slow.persist(claim, watched(bodies, wait)))
        thread.start()
        opened.wait(PATIENCE)
        for _ in range(self.random.randrange(1, 4)):
            self.put()
        done.set()
        thread.join()
        slow.close()

    def kill_follower(self) -> None:
        self.here.kill(self.here.follower)
        self.put()
        self.here.start_follower()

    def kill_redis(self) -> None:
        self.here.kill(self.here.redis)
        self.put()
        self.here.start_redis()

    def fold(self) -> None:
        self.here.store.fold_batches()

    def rebuild(self) -> None:
        self.here.client().sadd(contract.REBUILD, *self.here.views)

    def run(self, steps: int) -> None:
        usual: list[Callable[[], None]] = [
            *(self.put, self.bury, self.redeliver, self.replay, self.out_of_order, self.fold)
        ]
        rare: list[Callable[[], None]] = [self.kill_follower, self.kill_redis, self.rebuild]
        for _ in range(steps):
            self.random.choice(rare if self.random.random() < 0.12 else usual)()
            if self.random.random() < 0.1:
                self.here.caught_up()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_after_any_interleaving_every_view_equals_a_rebuild(
    here: Site, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 2)
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 1)
    Chaos(here, seed).run(50)
    here.caught_up()
    served = {path: here.actual(path) for path in here.views if path != "/votes/tally"}
    old = here.client().mget([contract.state_key(path) for path in served])
    here.client().sadd(contract.REBUILD, *served)
    harness.poll(lambda: not {*old} & {*here.client().mget([contract.state_key(path) for path in served])})
    assert {path: here.actual(path) for path in served} == served


def test_rows_read_in_many_small_chunks_give_the_same_views(sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reducers and the scripts compare alike: the result does not depend on how rows are divided."""
    assert sqlite.follower
    sqlite.follower.terminate()
    sqlite.follower.wait()
    Chaos(sqlite, 99).put()
    chaos = Chaos(sqlite, 100)
    for _ in range(60):
        chaos.put()
    monkeypatch.setattr(follower, "CHUNK_ROWS", 3)
    own = follower.Follower(sqlite.socket, sqlite.url, sqlite.views, sqlite.streams)
    with contextlib.closing(own.client), contextlib.closing(own.source):
        harness.poll(lambda: not (own.turn() if own.token else own.take_over()) and own.token)
        sqlite.caught_up()


def test_the_follower_rests_after_a_turn_that_waited_for_a_processor() -> None:
    assert follower.pause_seconds(busy=True, waited=0.0) == 0.0
    assert follower.pause_seconds(busy=False, waited=0.0) == follower.IDLE_SECONDS
    assert follower.pause_seconds(busy=True, waited=0.03) == 0.06
    assert follower.pause_seconds(busy=False, waited=0.03) == 0.06
    assert follower.pause_seconds(busy=False, waited=60.0) == follower.REST_SECONDS


def test_a_thread_knows_how_long_it_waited_for_a_processor() -> None:
    if not SCHEDSTAT.exists():
        pytest.skip("this kernel does not count it")
    found: list[float] = []

    def wait() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:  # on the same processor
            try:
                harness.poll(lambda: sum(range(1000)) and waited_seconds() > 0.01)
                found.append(waited_seconds())
            finally:
                other.kill()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found and found[0] > 0.01


ODD_ROWS = {
    "sqlite": [
        "'2026-01-01T12:00:09Z', 'whole', 1.0, 1.0, 1, 100",
        "'2026-01-01 12:00:09', 'local', 1.0, 1.0, 1, 101",
        "'yesterday', 'no time', 1.0, 1.0, 1, 102",
        "'9999-12-31T00:00:00.000Z', 'far', 1.0, 1.0, 1, 103",
        "'2026-01-01T12:00:00.000Z', 'number', 1.0, 1.0, 1, 'x'",
        "'2026-01-01T12:00:00.000Z', 'negative', 1.0, 1.0, 1, -1",
        "'2026-01-01T12:00:00.000Z', CAST(x'ff41' AS TEXT), 1.0, 1.0, 1, 104",
        "x'00ff', 'no text', 1.0, 1.0, 1, 105",
        "'2026-01-01T12:00:01.000Z', x'00ff', CAST(x'ff' AS TEXT), x'ff', 1, 106",
    ],
    "postgres": [
        "'2026-01-01T12:00:09Z', 'whole', 1.0, 1.0, 1, 100",
        "'infinity', 'for ever', 1.0, 1.0, 1, 101",
        "'-infinity', 'never', 1.0, 1.0, 1, 102",
        "'294000-01-01Z', 'far', 1.0, 1.0, 1, 103",
        "'0044-03-15Z BC', 'ides', 'NaN', 'Infinity', 1, 104",
    ],
}


@pytest.mark.parametrize("kind", ODD_ROWS)
def test_odd_rows_of_another_program_end_nothing_and_are_in_no_view(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    here = request.getfixturevalue(kind)
    here.put("gps", [position("bike", 1)])
    here.caught_up()
    state = here.client().get(contract.state_key("/gps/latest"))
    with here.store.transaction() as db:
        for row in ODD_ROWS[kind]:
            arrived = "'2026-01-01T12:00:00.000Z'"
            db.execute(f"INSERT INTO gps (received_at, time, device, lat, lon, batch, seq) VALUES ({arrived}, {row})")
        if kind == "postgres":
            db.execute("INSERT INTO view_changes (stream, batch) VALUES ('gps', 1)")
    here.put("gps", [position("bike", 2), position("car", 1)])
    for path in "/gps/latest", "/gps/trail":
        harness.poll(lambda path=path: here.actual(path).keys() == {"bike", "car", "whole"})  # type: ignore[misc]
    assert '"time":"2026-01-01T12:00:02.000' in here.actual("/gps/latest")["bike"]
    assert here.differences() == {}
    assert here.client().get(contract.state_key("/gps/latest")) == state
    said = (here.tmp / "follower.out").read_text()
    assert "left out of the views" in said and "Traceback" not in said


def test_a_view_that_cannot_be_written_holds_up_no_other(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    client = sqlite.client()
    key = contract.generation_prefix("/gps/latest", client.get(contract.state_key("/gps/latest")).decode()) + "car"
    client.rpush(key, "of another type")
    sqlite.put("gps", [position("car", 1)])
    sqlite.put("metrics", [Metric(time=NOON * 10**9, name="m", tags={}, field="f", value=1, type="integer")])
    harness.poll(lambda: "car" in sqlite.actual("/gps/trail") and "m" in sqlite.actual("/metrics/latest"))
    said = (sqlite.tmp / "follower.out").read_text()
    assert said.count("/gps/latest: rows are not applied") == 1
    client.delete(key)
    sqlite.caught_up()
    harness.poll(lambda: "/gps/latest: recovered" in (sqlite.tmp / "follower.out").read_text())


def test_a_stream_that_cannot_be_read_holds_up_no_other(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    with sqlite.store.transaction() as db:
        db.execute("ALTER TABLE notices RENAME TO hidden")
        db.execute("CREATE VIEW notices AS SELECT missing(1) AS time, 1 AS batch, 1 AS seq, 1 AS rowid")
    sqlite.put("gps", [position("car", 1)])
    harness.poll(lambda: "car" in sqlite.actual("/gps/latest"))
    with sqlite.store.transaction() as db:
        db.execute("DROP VIEW notices")
        db.execute("ALTER TABLE hidden RENAME TO notices")
    notice: Any = sqlite.streams["notices"].record
    sqlite.put("notices", [notice(time=NOON * 10**9, user="ann", kind="a", object=1)])
    sqlite.caught_up()


def test_an_unexpected_error_ends_no_follower(sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sqlite.follower
    sqlite.kill(sqlite.follower)
    own = follower.Follower(sqlite.socket, sqlite.url, sqlite.views, sqlite.streams)
    look, left = own.source.news, [LookupError("of a defect")] * 3

    def news() -> bool:
        if left:
            raise left.pop()
        return look()

    monkeypatch.setattr(own.source, "news", news)
    thread = threading.Thread(target=own.run)
    thread.start()
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    own.stop()
    thread.join()
    assert not left


def test_rows_are_read_by_their_bytes(here: Site) -> None:
    text = secrets.token_hex(100_000)
    for n in range(0, 40, 10):
        here.put("gps", [position(f"{n + m}{text}", n) for m in range(10)])
    found = 0
    with contextlib.closing(open_row_source(here.url, here.streams)) as own:
        own.news()
        at, more = own.start(), True
        with own.snapshot():
            while more:
                changes = own.changes("gps", at, follower.CHUNK_ROWS)
                for piece in changes.pieces:
                    found += len(piece)
                    assert sum(len(row[2]) for row in piece) < PIECE_BYTES + 32 * len(text)
                at, more = changes.position, changes.more
    assert found == 40


def test_the_lease_is_renewed_while_a_turn_waits(postgres: Site) -> None:
    assert postgres.follower
    postgres.kill(postgres.follower)
    postgres.put("gps", [position("bike", 1)])
    own = follower.Follower(postgres.socket, postgres.url, postgres.views, postgres.streams)
    client, thread = postgres.client(), threading.Thread(target=own.run)
    with postgres.store.transaction() as db, client.monitor() as monitor:
        db.execute("LOCK TABLE gps IN ACCESS EXCLUSIVE MODE")
        thread.start()
        harness.poll(lambda: own.token)
        token, renewed = own.token, 0
        for command in monitor.listen():
            renewed += token in command["command"] and "PEXPIRE" in command["command"].upper()
            if renewed * lease.BEAT_SECONDS > 2 * contract.LEASE_SECONDS:
                break
    postgres.caught_up()
    assert own.token == token
    own.stop()
    thread.join()


@pytest.mark.parametrize("folded", [False, True])
def test_a_follower_whose_last_row_was_deleted_by_age_continues(
    here: Site, folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 1)
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 1)
    here.put("gps", [position("bike", 1), position("old", 1)])
    here.caught_up()
    state = here.client().get(contract.state_key("/gps/latest"))
    here.kill(here.follower)
    for n in range(2, 6):
        here.put("gps", [position("bike", n)])
    with contextlib.closing(
        open_store(here.url, here.streams, keep=settings.load_settings({"INGEST_KEEP": "1m"}).keep)
    ) as store:
        while store.expire_stream("gps", (NOON + 3600) * 10**6):
            pass
    while folded and here.store.fold_batches():
        pass
    here.start_follower()
    here.put("gps", [position("bike", 9)])
    harness.poll(lambda: "12:00:09" in here.actual("/gps/latest")["bike"])
    assert here.actual("/gps/latest").keys() == {"bike", "old"}
    assert here.client().get(contract.state_key("/gps/latest")) == state


def test_a_database_that_lacks_the_last_row_for_another_reason_is_read_anew(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1), position("gone", 1)])
    sqlite.put("gps", [position("car", 1), position("last", 1)])
    sqlite.caught_up()
    sqlite.kill(sqlite.follower)
    with sqlite.store.transaction() as db:
        db.execute("DELETE FROM gps WHERE device IN ('gone', 'last')")
    with contextlib.suppress(Unavailable), sqlite.store.transaction() as db:
        db.execute("COMMIT")
        db.execute("VACUUM")
    for n in range(3):
        sqlite.put("gps", [position("boat", n)])
    sqlite.start_follower()
    harness.poll(lambda: sqlite.actual("/gps/latest").keys() == {"bike", "car", "boat"})
    sqlite.caught_up()


def test_times_before_1970_have_their_order(here: Site) -> None:
    for second in -5, -3, -4, 2, 1:
        here.put("gps", [position("bike", second - NOON), position(f"at {second}", second - NOON)])
        here.caught_up()
    assert '"time":"1970-01-01T00:00:02.000' in here.actual("/gps/latest")["bike"]


def test_values_of_an_earlier_layout_are_built_again(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    sqlite.kill(sqlite.follower)
    client, name = sqlite.client(), contract.state_key("/gps/latest")
    generation = client.get(name).decode()
    other = "00000000" + generation[8:]
    client.rename(contract.info_key("/gps/latest", generation), contract.info_key("/gps/latest", other))
    client.set(name, other)
    sqlite.start_follower()
    harness.poll(lambda: (client.get(name) or b"").startswith(generation[:8].encode()))
    sqlite.caught_up()


def test_a_view_that_does_not_fit_is_not_tried_at_once_after_a_lost_lease(sqlite: Site) -> None:
    sqlite.kill(sqlite.follower)
    client = sqlite.client()
    client.flushall()
    client.set(contract.state_key("/gps/trail"), contract.FULL)
    own = follower.Follower(sqlite.socket, sqlite.url, sqlite.views, sqlite.streams)
    with contextlib.closing(own.client), contextlib.closing(own.source):
        harness.poll(own.take_over)
        assert own.retries == {"/gps/trail": (0.0, follower.RETRY_SECONDS[0])}
        later = own.retries["/gps/trail"] = time.monotonic() + 30, 40.0
        client.delete(contract.HOLDER)
        harness.poll(own.take_over)
        assert own.retries == {"/gps/trail": later}
        own.retries["/gps/trail"] = float("inf"), 40.0  # it was being built
        client.delete(contract.HOLDER)
        harness.poll(own.take_over)
        assert time.monotonic() < own.retries["/gps/trail"][0] <= time.monotonic() + 40


@pytest.mark.nightly
def test_a_feed_that_fills_the_memory_is_rebuilt_seldom(sqlite: Site) -> None:
    sqlite.put("gps", [position("bike", 1)])
    sqlite.caught_up()
    client = sqlite.client()
    for n in range(6):  # old keys that grow
        sqlite.put("gps", [position(f"{m:0400}", n) for m in range(600)])
        if not n:
            sqlite.caught_up()
            client.config_set("maxmemory", client.info("memory")["used_memory"] + 600_000)
    harness.poll(lambda: client.get(contract.state_key("/gps/trail")) == contract.FULL)
    sqlite.put("gps", [position("late", 1)])
    harness.poll(lambda: client.get(contract.state_key("/gps/latest")))
    said = (sqlite.tmp / "follower.out").read_text()
    assert said.count("/gps/trail is not served: the memory is full") <= 2
    assert "starts over" not in said
