"""`serve.app` on every server that it supports, with a real views' Redis, follower and database."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contrib_support.views_site import NOON, Site
from contrib_support.views_site import site as installation
from proving import harness
from proving.harness import Server, connect, get, poll, post
from proving.harness import request as send
from sluice.contrib.views import contract, parts
from sluice.contrib.views.kinds.latest import ORDER_BYTES
from sluice.streams.record import Gps, Metric, Vote
from support.runtimes import GUNICORN, SERVERS, is_problem, simple_server

pytestmark = pytest.mark.contract

KEYS = ["bike", "a b", "50%", "a+b&c=d", "\u00e9\u20ac", "x" * 512, ""]
LANE = "fastlane"


@pytest.fixture(scope="module")
def stored() -> Iterator[Site]:
    """An installation with some rows; its follower runs."""
    with installation(None) as site:
        site.put(
            "gps",
            [
                *(Gps(time=(NOON + n) * 10**9, device="bike", lat=n + 0.5, lon=2.25) for n in range(8)),
                *(Gps(time=NOON * 10**9, device=key, lat=1.5, lon=2.25) for key in KEYS if key != "bike"),
            ],
        )
        values: list[tuple[str, float]] = [("b", 1.5), ("a", 2.5), ("c", 3.5)]
        site.put(
            "metrics",
            [
                Metric(time=NOON * 10**9, name="room", tags={"id": tag}, field="value", value=value, type="float")
                for tag, value in values
            ],
        )
        site.put("votes", [Vote(time=None, poll="cookies", choice=choice) for choice in ("oreo", "fig", "oreo")])
        notice: Any = site.streams["notices"].record
        site.put("notices", [notice(time=NOON * 10**9, user="ann", kind="like", object=n % 6) for n in range(9)])
        site.caught_up()
        yield site


@dataclass
class Reader:
    """The application on one server."""

    name: str
    where: int | Path
    server: Server
    site: Site

    def json(self, target: str) -> Any:
        """The JSON of an answer."""
        status, headers, body = get(self.where, target)
        assert (status, headers["content-type"]) == (200, "application/json"), body
        return json.loads(body)


@contextlib.contextmanager
def reader(site: Site, name: str, runtime: str = "cpython") -> Iterator[Reader]:
    if name in GUNICORN:
        args = ("--threads", 4) if name == "gthread" else ()
        worker = parts.LANE if name == LANE else GUNICORN[name]
        with harness.reader(site.tmp, runtime, worker, site.env, args) as server:
            yield Reader(name, server.socket, server, site)
    else:
        with simple_server("sluice.contrib.views.serve", name, runtime, site.tmp, site.env) as server:
            yield Reader(name, server.port, server, site)


EACH = {"cpython-fastlane", "cpython-validated", "pypy-fastlane"}  # for each change; the others at night
PARAMETERS = [
    pytest.param(p.values, id=p.id, marks=p.marks if p.id in EACH else [*p.marks, pytest.mark.nightly]) for p in SERVERS
]


@pytest.fixture(scope="module", params=PARAMETERS)
def installed(stored: Site, request: pytest.FixtureRequest) -> Iterator[Reader]:
    with reader(stored, *request.param) as found:
        yield found


@pytest.fixture
def any_server(installed: Reader) -> Iterator[Reader]:
    """Afterwards, that the application raised nothing during the test."""
    before = len(installed.server.said())
    yield installed
    assert "Traceback" not in installed.server.said()[before:]


@pytest.fixture
def lane(stored: Site) -> Iterator[Reader]:
    """Of each test: some tests start a reader of their own in this home, which then takes the sockets."""
    with reader(stored, LANE) as found:
        yield found


def quoted(key: str) -> str:
    return urllib.parse.quote_plus(key)


def test_the_answer_is_the_value_of_the_view(any_server: Reader) -> None:
    site = any_server.site
    for key, text in site.expected("/gps/latest").items():
        assert get(any_server.where, f"/gps/latest?device={quoted(key)}")[2].decode() == text
    for path in "/gps/trail", "/notices/feed", "/notices/all":
        for key, texts in site.expected(path).items():
            target = f"{path}?{site.views[path].key}={quoted(key)}"
            assert get(any_server.where, target)[2].decode() == f"[{','.join(texts)}]"
    rooms = any_server.json("/metrics/latest?name=room")
    assert [(room["tags"]["id"], room["value"]) for room in rooms] == [("a", 2.5), ("b", 1.5), ("c", 3.5)]
    tally = any_server.json("/votes/tally?poll=cookies")
    assert re.fullmatch(r"20..-..-..T..:..:..\....Z", tally.pop("as_of"))
    assert tally == {"poll": "cookies", "total": 3, "choices": {"oreo": 2, "fig": 1}}


def test_what_is_read_is_neither_cached_nor_taken_for_another_type(any_server: Reader) -> None:
    for target, status in ("device=bike", 200), ("device=bike&device=none", 200), ("device=none", 404):
        given, headers, _ = get(any_server.where, f"/gps/latest?{target}")
        assert (given, headers["cache-control"], headers["x-content-type-options"]) == (status, "no-store", "nosniff")


def test_a_number_is_a_key_by_its_text(any_server: Reader) -> None:
    assert any_server.json("/notices/object?object=5")["object"] == 5
    assert get(any_server.where, "/notices/object?object=05")[0] == 404


def test_limit_is_the_number_of_items_of_a_feed(any_server: Reader) -> None:
    trail = any_server.json("/gps/trail?device=bike")
    assert [item["lat"] for item in trail] == [7.5, 6.5, 5.5, 4.5, 3.5]
    assert any_server.json("/gps/trail?device=bike&limit=2") == trail[:2]
    assert any_server.json("/gps/trail?limit=5&device=bike") == trail
    assert any_server.json("/gps/trail?device=bike&limit=0&limit=5&limit=1") == trail[:1]  # the last one counts
    for limit in "0", "6", "-1", "two", "", "99999", "1.0":
        is_problem(get(any_server.where, f"/gps/trail?device=bike&limit={limit}"), 400)


def test_several_keys_get_one_array_with_null_for_each_unknown_one(any_server: Reader) -> None:
    bike = any_server.json("/gps/latest?device=bike")
    assert any_server.json("/gps/latest?device=bike&device=nobody&device=bike&device=") == [
        bike, None, bike, any_server.json("/gps/latest?device=")
    ]  # fmt: skip
    assert any_server.json("/gps/trail?device=nobody&device=bike&limit=1") == [None, [bike]]
    assert any_server.json("/metrics/latest?name=room&name=x") == [any_server.json("/metrics/latest?name=room"), None]
    known, unknown = any_server.json("/votes/tally?poll=cookies&poll=nobody")
    assert (known["total"], unknown) == (3, None)
    assert any_server.json("/gps/latest?device=x&device=y") == [None, None]
    assert any_server.json("/gps/latest?" + "&".join(["device=bike"] * 100)) == [bike] * 100
    longest = "x" * 512
    assert any_server.json(f"/gps/latest?device={longest}&device=y") == [
        any_server.json(f"/gps/latest?device={longest}"), None
    ]  # fmt: skip


def test_other_parameters_are_ignored(any_server: Reader) -> None:
    bike = any_server.json("/gps/latest?device=bike")
    assert any_server.json("/gps/latest?_=17&device=bike&limit=many") == bike


@pytest.mark.parametrize("path", ["/gps/latest", "/gps/trail", "/metrics/latest", "/votes/tally"])
def test_an_unknown_key_gets_404_and_a_missing_one_400(any_server: Reader, path: str) -> None:
    key = any_server.site.views[path].key
    is_problem(get(any_server.where, f"{path}?{key}=nobody"), 404)
    assert get(any_server.where, f"{path}?{key}=&x=%20")[0] == get(any_server.where, f"{path}?{key}=&x=1")[0] != 400
    for query in "", "?", "?x=1", f"?x{key}=1", f"?{key}={'x' * 513}", "?" + "&".join([f"{key}=1"] * 101):
        is_problem(get(any_server.where, path + query), 400)


def test_a_key_is_text(any_server: Reader) -> None:
    for path in "/gps/latest?device=%ff%fe", "/votes/tally?poll=%ed%a0%80":
        is_problem(get(any_server.where, path), 400)
    # gunicorn refuses it, with an answer of its own
    assert send(any_server.where, b"GET /gps/latest?device=\xff HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 400
    is_problem(get(any_server.where, "/gps/latest?device=%00"), 404)


def test_head_has_the_same_head_and_no_body(any_server: Reader) -> None:
    for target in "/gps/latest?device=bike", "/gps/latest?device=nobody", "/gps/latest":
        head = send(any_server.where, f"HEAD {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status, headers, body = get(any_server.where, target)
        assert head[0] == status and head[2] == b""
        assert head[1]["content-length"] == headers["content-length"] == str(len(body))


def test_another_method_gets_405_and_another_path_404(any_server: Reader) -> None:
    headers = is_problem(post(any_server.where, "/gps/latest?device=bike", b"x"), 405)
    assert headers["allow"] == "GET, HEAD"
    is_problem(get(any_server.where, "/gps/nothing?device=bike"), 404)
    is_problem(get(any_server.where, "/"), 404)


def test_without_redis_reads_get_503_and_continue_when_it_is_back(any_server: Reader) -> None:
    client, path = any_server.site.client(), Path(any_server.site.socket)
    away = path.with_suffix(".away")
    client.ping()  # this connection stays
    path.rename(away)
    try:
        client.client_kill_filter(_type="normal", skipme=True)
        headers = is_problem(get(any_server.where, "/gps/latest?device=bike"), 503)
        assert headers["retry-after"] == "1"
    finally:
        away.rename(path)
    poll(lambda: any_server.json("/gps/latest?device=bike"))


def test_while_redis_is_suspended_reads_get_503(any_server: Reader) -> None:
    pid = any_server.site.client().info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        is_problem(get(any_server.where, "/gps/latest?device=bike"), 503)
    finally:
        os.kill(pid, signal.SIGCONT)
    poll(lambda: any_server.json("/gps/latest?device=bike"))


@pytest.mark.parametrize("state", ["", "full"])
def test_a_view_that_is_not_served_gets_503(any_server: Reader, state: str) -> None:
    site, client, name = any_server.site, any_server.site.client(), contract.state_key("/gps/latest")
    before = any_server.json("/gps/latest?device=bike")
    with site.paused_follower():  # one that takes the lease just now would begin a generation for a missing state
        generation = client.get(name)
        client.set(name, state) if state else client.delete(name)
        try:
            headers = is_problem(get(any_server.where, "/gps/latest?device=bike"), 503)
            assert headers["retry-after"] == "1"
            assert any_server.json("/gps/trail?device=bike")
        finally:
            client.set(name, generation)
    assert any_server.json("/gps/latest?device=bike") == before


def test_answers_are_right_while_generations_change(any_server: Reader) -> None:
    site, client = any_server.site, any_server.site.client()
    name = contract.state_key("/gps/trail")
    expected = any_server.json("/gps/trail?device=bike")
    before = client.get(name)
    client.sadd(contract.REBUILD, "/gps/trail")
    while client.get(name) == before:
        assert any_server.json("/gps/trail?device=bike") == expected
    poll(lambda: not client.exists(contract.generation_prefix("/gps/trail", before.decode()) + "bike"))
    assert any_server.json("/gps/trail?device=bike") == expected
    assert site.differences() == {}


# --- in the fast lane ------------------------------------------------------------------------------------------------


def ask(*targets: str) -> bytes:
    return b"".join(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for target in targets)


def test_the_reads_of_a_turn_share_one_round_trip(lane: Reader) -> None:
    client = lane.site.client()
    lane.json("/gps/latest?device=bike")

    def calls() -> int:
        stats: Any = client.info("commandstats")
        return stats["cmdstat_mget"]["calls"]

    before = calls()
    with connect(lane.where) as connection:
        connection.sendall(ask(*(f"/gps/latest?device={n}" for n in range(99)), "/gps/latest?device=bike"))
        answers = [harness.answer(connection) for _ in range(100)]
    assert [status for status, _, _ in answers] == [404] * 99 + [200]
    assert calls() == before + 1


def test_a_view_whose_generation_changes_at_each_read_gets_503(lane: Reader) -> None:
    site, client, name = lane.site, lane.site.client(), contract.state_key("/gps/latest").encode()
    over = threading.Event()
    with site.paused_follower():
        before = client.get(name)
        mark = contract.fingerprint(site.views["/gps/latest"]).encode()

        changes = b"CLIENT REPLY OFF\r\n" + b"".join(b"SET %b %b-%d\r\n" % (name, mark, n) for n in range(10_000))

        def change() -> None:
            with connect(Path(site.socket)) as redis:
                while not over.is_set():
                    redis.sendall(changes)
                redis.sendall(b"CLIENT REPLY ON\r\n")
                assert redis.recv(5) == b"+OK\r\n"

        thread = threading.Thread(target=change)
        thread.start()
        try:
            poll(lambda: b"being built" in get(lane.where, "/gps/latest?device=bike")[2])
        finally:
            over.set()
            thread.join()
            client.set(name, before)
    assert lane.json("/gps/latest?device=bike")


def reads(client: Any, field: str, number: int) -> bool:
    """Whether so many reads are counted. Two reads may be counted by two reports."""
    return bool(client.hget(contract.READS, field) == b"%d" % number)


def test_reads_are_counted_by_view_and_status(lane: Reader) -> None:
    for user in "ann", "nobody", "none":
        get(lane.where, f"/notices/all?user={user}&limit=3&only=here")
    get(lane.where, "/notices/all")
    client = lane.site.client()
    for status, number in (404, 2), (400, 1):  # which no other test gets here
        poll(functools.partial(reads, client, f"/notices/all {status}", number))


@pytest.mark.parametrize("server", [LANE, "sync"])
def test_a_read_that_waits_for_a_first_count_does_not_keep_redis_busy(server: str, stored: Site) -> None:
    client, target = stored.client(), f"/votes/tally?poll={server}"

    def calls() -> int:
        stats: Any = client.info("commandstats")
        return stats["cmdstat_mget"]["calls"]

    reads: list[str] = []

    def read() -> None:
        while not over.is_set():  # a reader whose Redis takes longer than a second says 503
            reads.append(target)
            with contextlib.suppress(OSError, EOFError):
                get(waiting.where, target)

    over, thread = threading.Event(), threading.Thread(target=read)
    with reader(stored, server) as waiting:
        with stored.paused_follower():
            first = contract.asked_key("/votes/tally")
            before, asked = calls(), client.llen(first)
            thread.start()
            try:
                poll(lambda: client.llen(first) >= asked + 2)  # it asks once in a second
                assert 2 <= calls() - before <= 100 * len(reads)  # 82 in the 10 s that a read waits
            finally:
                over.set()
        thread.join()


def test_a_full_redis_refuses_the_first_count_of_a_tally_and_no_other_read(stored: Site) -> None:
    client = stored.client()
    with reader(stored, LANE) as lane:
        stored.kill(stored.follower)  # it would make room
        client.config_set("maxmemory", 1 << 19)
        with connect(lane.where) as connection:
            try:
                connection.sendall(ask("/votes/tally?poll=new"))
                for _ in range(20):
                    assert lane.json("/gps/trail?device=bike")
            finally:
                client.config_set("maxmemory", 0)
                stored.start_follower()
            assert harness.answer(connection)[0] == 404  # counted once the refresher was asked again


def test_a_reader_that_starts_while_no_view_is_served_answers_503(stored: Site) -> None:
    client, names = (
        stored.client(),
        [contract.state_key(path) for path in ("/gps/latest", "/gps/trail", "/metrics/latest")],
    )
    before = client.mget(names)
    client.delete(*names)
    with reader(stored, LANE) as lane:
        try:
            for target in "/gps/latest?device=bike", "/gps/trail?device=bike", "/metrics/latest?name=room":
                is_problem(get(lane.where, target), 503)
                is_problem(get(lane.where, target), 503)
        finally:
            client.mset(dict(zip(names, before)))
        assert lane.json("/gps/trail?device=bike")


def test_a_view_that_was_built_for_another_declaration_is_not_read(stored: Site, tmp: Path) -> None:
    """Between the two steps of a reload, reader and follower have different declarations."""
    other = tmp / "other.py"
    other.write_text("from sluice.contrib.views import latest\nVIEWS = {'/gps/trail': latest('gps', key='device')}")
    (tmp / "run").mkdir()
    (tmp / "run/views.sock").symlink_to(stored.tmp / "run/views.sock")
    with harness.reader(tmp, env=stored.env | {"INGEST_VIEWS": other}) as server:
        is_problem(get(server.socket, "/gps/trail?device=bike"), 503)
        assert get(server.socket, "/gps/latest?device=bike")[0] == 200


def test_a_first_count_delays_only_those_who_ask_for_it() -> None:
    with installation(None) as site, reader(site, LANE) as lane:
        site.put("votes", [Vote(time=None, poll="cookies", choice="oreo")])
        site.put("gps", [Gps(time=NOON * 10**9, device="bike", lat=1.5, lon=2.5)])
        site.caught_up()
        site.kill(site.follower)
        with connect(lane.where) as first, connect(lane.where) as second:
            first.sendall(ask("/votes/tally?poll=cookies", "/gps/latest?device=bike", "/votes/tally?poll=nobody"))
            second.sendall(ask("/votes/tally?poll=cookies"))
            poll(lambda: site.client().llen(contract.asked_key("/votes/tally")) >= 2)
            assert lane.json("/gps/latest?device=bike")["lat"] == 1.5
            site.start_follower()
            answers = [harness.answer(first) for _ in range(3)]
            assert [status for status, _, _ in answers] == [200, 200, 404]
            assert [json.loads(body)["total"] for _, _, body in (answers[0], harness.answer(second))] == [1, 1]
            assert json.loads(answers[1][2])["device"] == "bike"
            poll(lambda: reads(site.client(), "/gps/latest 200", 2))


def test_a_read_of_a_hundred_first_counts_asks_for_few_of_them_at_a_time(lane: Reader) -> None:
    """Whoever asks for one would wait behind the hundred of each."""
    asked, client = contract.asked_key("/votes/tally"), lane.site.client()
    with connect(lane.where) as many, connect(lane.where) as one:
        with lane.site.paused_follower():
            many.sendall(ask("/votes/tally?" + "&".join(f"poll=first-{n}" for n in range(100))))
            poll(lambda: client.llen(asked))
            one.sendall(ask("/votes/tally?poll=alone"))
            poll(lambda: b"alone" in client.lrange(asked, 0, -1))
            before: Any = client.lrange(asked, 0, -1)
        assert len(set(before[: before.index(b"alone")])) < 10
        assert harness.answer(one)[0] == 404
        assert json.loads(harness.answer(many)[2]) == [None] * 100


def test_keys_without_rows_that_readers_invent_take_no_memory(lane: Reader) -> None:
    client, wanted = lane.site.client(), contract.wanted_key("/votes/tally")
    for n in range(3):
        target = "/votes/tally?poll=cookies&" + "&".join(f"poll=invented-{n}-{m}" for m in range(50))
        # the first count of 51 keys may take longer than a read waits for it
        poll(lambda: lane.json(target)[1:] == [None] * 50)  # noqa: B023
    poll(lambda: client.zscore(wanted, "cookies"))
    assert [key for key in client.zrange(wanted, 0, -1) if b"invented" in key] == []
    assert poll(lambda: not list(client.scan_iter("*invented*")))


def test_a_missing_key_of_a_view_that_refused_keys_is_not_unknown(lane: Reader) -> None:
    client, name = lane.site.client(), contract.crowded_key("/gps/latest")
    client.set(name, client.get(contract.state_key("/gps/latest")))
    try:
        assert is_problem(get(lane.where, "/gps/latest?device=nobody"), 503)["retry-after"] == "1"
        is_problem(get(lane.where, "/gps/latest?device=bike&device=nobody"), 503)
        assert lane.json("/gps/latest?device=bike")
        is_problem(get(lane.where, "/gps/trail?device=nobody"), 404)
    finally:
        client.delete(name)
    is_problem(get(lane.where, "/gps/latest?device=nobody"), 404)


def test_an_answer_for_several_keys_has_a_bound(lane: Reader) -> None:
    client = lane.site.client()
    name = contract.generation_prefix("/gps/latest", client.get(contract.state_key("/gps/latest")).decode()) + "large"
    client.set(name, "0" * ORDER_BYTES + json.dumps("x" * 100_000))
    try:
        assert len(lane.json("/gps/latest?" + "&".join(["device=large"] * 80))) == 80
        is_problem(get(lane.where, "/gps/latest?" + "&".join(["device=large"] * 90)), 400)
    finally:
        client.delete(name)
