"""For any bytes the fast lane declines, or it agrees with gunicorn's own parser: method, target, headers, body, and
where the next request begins. `support/generated_requests.py` makes the bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import re
import runpy
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from proving import harness
from sluice.fastlane import grammar, loop
from sluice.fastlane.connection import RECEIVING, WAITING, Connection
from sluice.fastlane.interface import Options
from support import generated_requests
from support.request_cases import BODY, DECLINED, FIVE, SMUGGLED, TAKEN, post
from support.runtimes import RUNTIMES
from support.table_of_cases import check_each_row

EXAMPLES = 2_500  # Hypothesis takes four times as long for an example as that program alone
RANDOM_EXAMPLES = {"cpython": 20_000, "pypy": 5_000}
QUICK = settings(
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
TAME = st.binary(max_size=64)  # Hypothesis prefers short strings, and few choices make few odd requests
WILD = st.binary(min_size=48, max_size=48)


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """How many times the examples of an ordinary run."""
    return int(request.config.getoption("--examples"))


@pytest.mark.parametrize("choices", [TAME, WILD], ids=["tame", "wild"])
def test_generated_requests_are_declined_or_parsed_as_gunicorn_parses_them(
    choices: st.SearchStrategy[bytes], times: int
) -> None:
    everywhere, examples = generated_requests.Everywhere(), EXAMPLES * times

    @settings(QUICK, max_examples=examples)
    @given(choices)
    def agree(data: bytes) -> None:
        everywhere.agree(data)

    agree()
    seen = everywhere.seen
    assert seen["examples"] >= examples
    # many requests are parsed, and many declined
    assert examples // 5 < seen["taken"] < examples * 0.9, seen


BEGINNINGS = b"", b"POST ", b"POST /gps HTTP/1.1\r\n", b"POST /gps HTTP/1.1\r\nContent-Length:"


def test_arbitrary_bytes_are_declined_or_parsed_as_gunicorn_parses_them(times: int) -> None:
    everywhere = generated_requests.Everywhere()

    @settings(QUICK, max_examples=EXAMPLES // 2 * times)
    @given(st.binary(max_size=200), st.sampled_from(BEGINNINGS))
    def agree(data: bytes, before: bytes) -> None:
        everywhere.agree_on(before + data)

    agree()


@pytest.fixture(scope="module")
def everywhere() -> generated_requests.Everywhere:
    return generated_requests.Everywhere()


@check_each_row("name", DECLINED)
def test_an_ambiguous_request_is_declined(everywhere: generated_requests.Everywhere, name: str) -> None:
    assert everywhere.agree_on(DECLINED[name]) == 0
    # also after a plain request, and after one whose head is cached
    assert everywhere.agree_on(SMUGGLED + DECLINED[name]) == 1
    assert everywhere.agree_on(SMUGGLED + DECLINED[name] + SMUGGLED) == 1


@check_each_row("name", TAKEN)
def test_a_plain_request_is_taken(everywhere: generated_requests.Everywhere, name: str) -> None:
    data, requests = TAKEN[name]
    for _ in "parsed", "remembered":
        assert everywhere.agree_on(data) == requests


@check_each_row("name", TAKEN)
def test_a_request_in_two_pieces_is_the_same_request(everywhere: generated_requests.Everywhere, name: str) -> None:
    data, _ = TAKEN[name]
    for cut in range(1, len(data)):
        everywhere.places[0].check([data[:cut], data[cut:]])


def test_the_cache_of_heads_has_a_limit(everywhere: generated_requests.Everywhere) -> None:
    place = everywhere.places[0]
    largest = 0
    for number in range(3_000):
        largest = max(largest, len(place.listener.heads))
        assert place.check([post(b"X%d: 1" % number, FIVE, body=BODY)]) == 1
        assert place.check([post(b"X: %d" % number, line=b"GET /gps/latest HTTP/1.1")]) == 1
        assert place.check([post(b"X: 1", line=b"GET /gps/trail?limit=%d HTTP/1.1" % number)]) == 1
    assert 1000 < largest <= 1024
    assert place.check([post(b"X: 1", FIVE, body=BODY)]) == 1
    before = len(place.listener.heads)
    assert place.check([post(b"X: " + b"y" * 5_000, FIVE, body=BODY)]) == 1
    assert place.check([post(b"X: " + b"y" * 5_000, line=b"GET /gps/latest HTTP/1.1")]) == 1
    assert len(place.listener.heads) == before


def test_real_heads_outnumber_the_cache_and_are_taken(everywhere: generated_requests.Everywhere, tmp: Path) -> None:
    heads = runpy.run_path(str(harness.ROOT / "bench/rig/heads.py"))  # the package is for bench/.venv
    file = heads["requests"](
        tmp / "requests", [("/write", b"up value=1"), ("/gps/latest?device=a", None)], heads["REAL"]
    )
    found = re.findall(rb"(?:POST|GET) .*?\r\n\r\n", file.path.read_bytes(), re.DOTALL)
    assert len(set(found)) == len(found) > 2 * grammar.CACHED_HEADS
    assert [everywhere.agree_on(head + b"up value=1" * head.startswith(b"POST")) for head in found[:50]] == [1] * 50


def test_with_script_name_in_the_environment_every_request_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPT_NAME", "/gps")
    assert generated_requests.Everywhere().agree_on(SMUGGLED) == 0


def test_gunicorns_limits_are_exact() -> None:
    get = b"GET /gps/latest HTTP/1.1"

    def takes(*fields: bytes, **limits: int) -> bool:
        place = generated_requests.Place("", "/run/gateway-0.sock", **limits)
        return len(place.fast([post(*fields, line=get)])[0]) == 1

    def numbered(count: int) -> list[bytes]:
        return [b"X%d: 1" % number for number in range(count)]

    for count, limit in (0, 100), (1, 1), (50, 50):
        assert takes(*numbered(limit - 1), limit_request_fields=count)  # one more is Host
        assert not takes(*numbered(limit), limit_request_fields=count)
    room = 4094 - len(post(b"X: ", line=get))
    for size in 0, 4094:
        assert takes(b"X: ".ljust(3 + room, b"y"), limit_request_line=size)
        assert takes(b"X: ".ljust(4 + room, b"y"), limit_request_line=size) == (not size)
    assert not takes(limit_request_field_size=1)
    place = generated_requests.Place("", "/run/gateway-0.sock", limit_request_line=100)
    for more in 0, 1:  # the query counts
        head = post(line=b"GET /gps/latest?%b HTTP/1.1" % (b"x" * (100 + more - len(post(line=get)) - 1)))
        assert len(place.fast([head])[0]) == 1 - more


def heads_of(place: generated_requests.Place) -> dict[bytes, Any]:
    """The heads in the cache."""
    return {key: parsed for key, parsed in place.listener.heads.items() if key.endswith(b"\r\n\r\n")}


def shapes_of(place: generated_requests.Place) -> list[bytes]:
    return [key for key, kept in place.listener.heads.items() if isinstance(kept, grammar.Template)]


def test_heads_are_kept_up_to_a_length_and_a_number() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    room = grammar.MAX_CACHED_BYTES - len(post(b"X: ", b"Content-Length: 0"))
    heads = [post(name + b": " + b"y" * (room + more), b"Content-Length: 0") for name, more in ((b"X", 1), (b"Y", 0))]
    place.fast(heads)
    assert list(heads_of(place)) == heads[1:]
    for number in range(grammar.CACHED_HEADS):
        place.fast([post(b"X%d: 1" % number, b"Content-Length: 0")])
    assert len(place.listener.heads) < grammar.CACHED_HEADS
    for number in range(grammar.CACHED_HEADS):
        place.fast([post(b"Z: %d" % number, b"Content-Length: 0")])  # none comes again
    assert len(heads_of(place)) < grammar.CACHED_HEADS // 2


def test_a_cached_head_keeps_no_body() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    place.fast([SMUGGLED] * 3)
    kept = [parsed[0] for parsed in place.listener.heads.values() if isinstance(parsed, tuple)]
    kept += [template.environ for template in place.listener.heads.values() if isinstance(template, grammar.Template)]
    assert len(kept) == 2
    assert not any(environ["wsgi.input"] for environ in kept)


def test_heads_that_differ_in_values_only_have_one_shape_and_each_gets_its_own_values() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    names = b"Idempotency-Key", b"idempotency-key", b"User-Agent"
    values = b'"a"', b"b ", b"", b"a\tb", b"\xc3\xa4", b"c"
    heads = [post(name + b": " + value, FIVE, body=BODY) for value in values for name in names] * 2
    assert place.check([*heads, post(FIVE, body=BODY)]) == len(heads) + 1
    shapes = len(shapes_of(place))
    others = [post(names[2] + b": %d" % n, b"Content-Length: %d" % n, body=b"x" * n) for n in range(1, 9)]
    gets = [post(line=b"GET /gps/latest?device=%d HTTP/1.1" % n) for n in range(9)]
    assert place.check([*others, *gets]) == 17
    assert len(shapes_of(place)) == shapes + 1
    for first, second in (names[:2], names[1::-1], (names[0], names[0])):
        assert place.check([post(first + b": 1", second + b": 2", FIVE, body=BODY)]) == 0
    for line in b"User-Agent", b"Content-Length", b"0", b" 0", b"Content-Length: 0", b"User-Agent\n: 1":
        assert place.check([post(line, FIVE, body=BODY)]) == 0
    assert place.check([post(FIVE, body=BODY), heads[0]]) == 2


def test_a_get_whose_query_differs_gets_its_own_query_and_nothing_else() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    queries = b"?device=a", b"?device=b&limit=1", b"?device=%C3%A9", b"?", b"??a=/", b"", b"?device=a"
    fields = b"X: 1", b"Referer: /?b=1 end", b"Referer: /?c=2 end", b"X: 2"
    for query, field in itertools.product(queries * 2, fields * 2):
        assert place.check([post(field, line=b"GET /gps/latest%b HTTP/1.1" % query)]) == 1
        for bad in b"?device=\xe9", b"?device=a#b", b"?device=a b":
            assert place.check([post(field, line=b"GET /gps/latest%b HTTP/1.1" % bad)]) == 0
    long = b"GET /gps/latest?%b HTTP/1.1" % (b"a" * 8190)
    assert place.check([post(b"X: 1", line=long)]) == 0


def test_a_post_whose_idempotency_key_differs_gets_its_own_key_and_nothing_else() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    keys = b"a", b"b", b' "b c"\t', b"", b"caf\xc3\xa9", b"Idempotency-Key: x", b"a"
    fields = b"X: 1", b"X: 2", b"X: Idempotency-Key: 2"
    for key, field, body in itertools.product(keys * 2, fields * 2, (b"", BODY)):
        length = b"Content-Length: %d" % len(body)
        assert place.check([post(field, b"Idempotency-Key: " + key, length, b"Y: 1", body=body)]) == 1
        for bad in b"a\x7f", b"a\x00", b"a\rb", b"a\nb", b"a\r\nIdempotency-Key: b":
            assert place.check([post(field, b"Idempotency-Key: " + bad, length, b"Y: 1", body=body)]) == 0
    assert place.check([post(FIVE, b"Idempotency-Key: " + b"a" * 8190, body=BODY)]) == 0


def test_posts_that_differ_in_some_values_each_get_their_own_and_nothing_else() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    before = place.check([post(b"X: 0", b"Y: 0", FIVE, body=BODY)])
    assert before == 1
    values = b"1", b' "b c"\t', b"", b"\xc3\xa4", b"X: 2", b"1"
    for x, y, body in itertools.product(values, values * 2, (b"", BODY, BODY * 2)):
        length = b"Content-Length: %d" % len(body)
        assert place.check([post(b"X: " + x, b"Y:" + y, length, b"Z: 1", body=body)]) == 1
        for bad in b"a\x7f", b"a\x00", b"a\rb", b"a\nb", b"a\r\nX: 1", b"a\r\nContent-Length: 0":
            assert place.check([post(b"X: " + x, b"Y:" + bad, length, b"Z: 1", body=body)]) == 0
            assert place.check([post(b"X: " + bad, b"Y:" + y, length, b"Z: 1", body=body)]) == 0
        for bad in b"05", b"+5", b"5,5", b"", b"5 5", b"12345678901":
            assert place.check([post(b"X: " + x, b"Y:" + y, b"Content-Length: " + bad, b"Z: 1", body=body)]) == 0
        lines = b"X: " + x, b"Y:" + y, length
        assert place.check([post(*lines, b"Z: 2", body=body)]) == 1
        assert place.check([post(*lines, b"Z: 1", b"Connection: close", body=body)]) == 1
        assert place.check([post(*lines, b"Z: 1", b"Connection: upgrade", body=body)]) == 0
    assert place.check([post(b"X: " + b"a" * 8190, b"Y:1", FIVE, b"Z: 1", body=BODY)]) == 0


def test_a_line_that_looks_like_the_key_of_another_step_is_declined() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    for number in range(3):
        assert place.check([post(b"X: %d" % number, FIVE, body=BODY)]) == 1
    for key in list(place.listener.heads):
        assert place.check([key + b"\r\n\r\n"]) == 0


def test_the_templates_of_a_line_have_a_limit() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    line = b"POST /gps HTTP/1.1"
    for number in range(3 * grammar.MAX_TEMPLATES):
        for value in range(3):
            assert place.check([post(b"X%d: %d" % (number, value), FIVE, body=BODY)]) == 1
        assert len(place.listener.heads[line]) == min(number + 1, grammar.MAX_TEMPLATES)


def test_an_application_gets_the_fields_that_it_names() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    place.lane.wsgi.fastlane = Options(fields={"HTTP_ORIGIN"})  # type: ignore[attr-defined]
    place.lane.prepare()
    for number in range(4):
        fields = b"Origin: %d" % number, b"X-Id: %d" % number, b"Content-Type: a/%d" % number, FIVE
        (environ,), *_ = place.fast([post(*fields, body=BODY)])
        assert environ["fastlane.head"] == post(*fields)
        assert (environ["HTTP_ORIGIN"], environ["CONTENT_TYPE"]) == (str(number), f"a/{number}")
        assert {key for key in environ if key.startswith("HTTP_")} == {"HTTP_ORIGIN", "HTTP_HOST"}
    for line in b"X-Id", b"X-Id : 1", b"X-Id: \x00", b" X-Id: 1", b"Transfer-Encoding: chunked":
        assert not place.fast([post(line, FIVE, body=BODY)])[0]


def test_a_head_is_parsed_as_if_none_had_been_parsed_before() -> None:
    rng, cfg = random.Random(1), Config()
    heads: grammar.Heads = {}
    fields = {"HTTP_ORIGIN", "HTTP_IDEMPOTENCY_KEY"}
    cached = grammar.Grammar(cfg, fields)
    plain = [
        b"Origin: a",
        b"Idempotency-Key: a",
        b"X-Id: 1",
        b"Content-Type: a/b",
        b"Accept: */*",
        b"Connection: close",
    ]
    values = b"", b"5", b" b", b"a b", b"close", b"\xe9", b"\x00", b"a\rb", b"a\nb", b"a: b", b"HTTP/1.1"

    def parsed(by: grammar.Grammar, head: bytes, heads: grammar.Heads) -> Any:
        found = heads.get(head) or by.parse(head, "/run/x.sock", heads)
        return found and ({name: found[0][name] for name in found[0] if not name.startswith("wsgi.")}, *found[1:])

    def changed(head: bytes) -> bytes:
        lines = head[:-4].split(b"\r\n")
        at = rng.randrange(len(lines))
        start, sign, _ = lines[at].partition(rng.choice((b"?", b": ")))
        kind = rng.randrange(6)
        if kind == 0:
            lines[at] = start + sign + rng.choice(values)
        elif kind == 1:
            lines.insert(at, lines[-1])
        elif kind == 2:
            lines[at : at + 1] = []
        elif kind == 3:
            place = rng.randrange(len(lines[at]) or 1)
            lines[at] = lines[at][:place] + lines[at][place + 1 :]
        elif kind == 4:
            lines[0] = b"%b /gps?%b HTTP/1.1" % (rng.choice((b"GET", b"POST")), rng.choice(values))
        return b"\r\n".join([*lines, b"", b""])

    taken = 0
    for _ in range(20_000):
        line = rng.choice((b"POST /gps HTTP/1.1", b"POST /gps?a=b HTTP/1.1", b"GET /gps? HTTP/1.1"))
        length = [b"Content-Length: 5"] if line.startswith(b"POST") else []
        head = b"\r\n".join([line, b"Host: x", *rng.sample(plain, rng.randrange(3)), *length, b"", b""])
        for each in (head, changed(head)):
            end = each.find(b"\r\n\r\n") + 4
            result = parsed(cached, each[:end], heads)
            assert result == parsed(grammar.Grammar(cfg, fields), each[:end], {}), each
            taken += result is not None
    assert taken > 25_000
    many = b"".join(b"X-Id: %d\r\n" % n for n in range(2)), b"".join(b"X%d: 1\r\n" % n for n in range(101))
    for some in many:
        for name in re.findall(rb"[^:\n]+(?=:)", some):  # each of them is known
            assert parsed(cached, post(name + b": 1", FIVE), heads)
        assert not parsed(cached, post(some[:-2], FIVE), heads)


def test_requests_of_one_shape_share_a_dictionary_that_keeps_no_body() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    get = post(line=b"GET /gps/latest?device=bike HTTP/1.1")
    joined(place, SMUGGLED, SMUGGLED, get, get)
    environs = [item[4] for item in place.lane.pending]
    assert environs[0] is environs[1]
    bodies = [environ["wsgi.input"] for environ in environs]
    assert [body and body.read() for body in bodies] == [None, None, b"", b""]


def joined(place: generated_requests.Place, *parts: bytes) -> Connection:
    """A connection in the fast lane that has sent these parts."""
    place.lane.poller = SimpleNamespace(**dict.fromkeys(("register", "unregister", "modify"), lambda *_: None))
    conn = Connection(SimpleNamespace(fileno=lambda: 3), "", place.listener)  # type: ignore[arg-type]
    place.lane.join(conn)
    for part in parts:
        place.lane.take(conn, part)
    return conn


def test_connections_that_end_leave_no_bytes_admitted() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    for parts in [SMUGGLED], [SMUGGLED[:-1]], [], [SMUGGLED[:-1], SMUGGLED[-1:]]:
        place.lane.leave(joined(place, *parts))
        assert place.lane.admitted == 0


def test_bodies_are_admitted_up_to_exactly_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    monkeypatch.setattr(loop, "MAX_ADMITTED_BYTES", 10)
    first, second, third, fourth = (joined(place, post(b"Content-Length: %d" % size)) for size in (8, 2, 2, 1))
    assert [each.state for each in (first, second, third, fourth)] == [RECEIVING, RECEIVING, WAITING, WAITING]
    place.lane.take(second, b"xx")
    assert [each.state for each in (third, fourth)] == [RECEIVING, WAITING]


def test_the_lane_accepts_no_more_than_worker_connections() -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock")
    lane = place.lane
    lane.alive, lane.worker_connections, lane.slow_count = True, 2, 1
    lane.listeners = {5: place.listener}
    accepting: list[int] = []
    for _ in range(2):
        lane.poller = SimpleNamespace(register=lambda fd, events: accepting.append(fd))
        lane.start_accepting()
        joined(place)
    assert accepting == [5]


@pytest.fixture
def clients() -> Iterator[tuple[loop.FastLane, list[socket.socket]]]:
    """A lane, and three clients whose requests it has not read."""
    place = generated_requests.Place("", "/run/gateway-0.sock")
    with contextlib.ExitStack() as stack:
        place.lane.poller = stack.enter_context(select.epoll())
        ours: list[socket.socket] = []
        for _ in range(3):
            client, server = map(stack.enter_context, socket.socketpair())
            server.setblocking(False)
            place.lane.join(Connection(server, "", place.listener))
            client.sendall(SMUGGLED)
            ours.append(client)
        place.lane.signalled = False
        yield place.lane, ours


def test_before_a_slow_commit_the_lane_reads_what_comes_meanwhile(
    clients: tuple[loop.FastLane, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, (_, _, last) = clients
    monkeypatch.setattr(loop, "MAX_GATHER_SECONDS", 3600.0)
    lane.answered, lane.commit_seconds = 3, 0.8
    lane.read(lane.poller.poll(0)[:1])
    assert len(lane.pending) == 1
    lane.gather()
    assert len(lane.pending) == 3
    lane.commit_seconds = 0.0  # the time is over
    last.sendall(SMUGGLED)
    lane.gather()
    assert len(lane.pending) == 3


def test_a_client_that_sends_no_more_gets_its_answer_after_a_slow_commit(
    clients: tuple[loop.FastLane, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, ours = clients
    monkeypatch.setattr(loop, "MAX_GATHER_SECONDS", 3600.0)
    lane.alive, lane.nr, lane.answered, lane.commit_seconds = True, 0, 3, 0.8
    for client in ours:
        client.shutdown(socket.SHUT_WR)
    lane.read(lane.poller.poll(0)[:1])
    lane.gather()
    assert len(lane.connections) == 3
    lane.pending = [(conn, (b"x",), ("200 OK", []), True, {}) for conn, *_ in lane.pending]
    lane.finish()
    assert [client.recv(99)[:12] for client in ours] == [b"HTTP/1.1 200"] * 3
    lane.read(lane.poller.poll(0))
    assert not lane.connections


def test_a_single_client_waits_for_no_others(
    clients: tuple[loop.FastLane, list[socket.socket]],
) -> None:
    lane, _ = clients
    lane.answered, lane.commit_seconds = 1, 3600.0
    lane.read(lane.poller.poll(0)[:1])
    lane.gather()
    assert len(lane.pending) == 1


@pytest.mark.parametrize(
    ("count", "seconds", "is_slow"),
    [(1, 0.0009, False), (1, 0.0012, True), (100, 0.0019, False), (100, 0.0022, True)],
)
def test_a_commit_is_slow_by_its_time_beside_that_of_the_answers(
    count: int, seconds: float, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = generated_requests.Place("", "/run/gateway-0.sock").lane
    clock = [100.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])

    def answer(pending: Any) -> None:
        clock[0] += seconds

    lane.alive, lane.nr = True, 0
    lane.pending = [SimpleNamespace()] * count  # type: ignore[list-item]
    monkeypatch.setattr(lane, "answer", answer)
    lane.flush()
    assert lane.answered == count
    assert (lane.commit_seconds > 0) == is_slow


SIGNAL = 9  # the descriptor of the wake-up pipe


@pytest.mark.parametrize(
    ("descriptor", "change", "waits"),
    [(3, {}, True), (3, {"slow_count": 1}, False), (3, {"until": 0.0}, False),
     (SIGNAL, {}, False)],
    ids=["nothing", "slow lane", "a second has passed", "signal"],
)  # fmt: skip
def test_a_turn_waits_for_more_requests_unless_gevent_has_something_to_do(
    descriptor: int, change: dict[str, Any], waits: bool
) -> None:
    lane = generated_requests.Place("", "/run/gateway-0.sock").lane
    lane.PIPE, lane.listeners, lane.until = (SIGNAL, SIGNAL + 1), {}, math.inf
    for name, value in change.items():
        setattr(lane, name, value)
    asked: list[float] = []

    def poll(timeout: float) -> list[tuple[int, int]]:
        asked.append(timeout)
        return [] if timeout else [(descriptor, 1)]

    lane.poller = SimpleNamespace(poll=poll)
    lane.turn()
    assert asked == ([0, math.inf] if waits else [0])


def test_the_main_greenlet_waits_until_a_signal_and_says_until_when() -> None:
    lane = generated_requests.Place("", "/run/gateway-0.sock").lane
    lane.PIPE, lane.signalled, before = os.pipe(), True, time.monotonic()
    os.write(lane.PIPE[1], b"1")
    lane.wait(3600.0)
    for end in lane.PIPE:
        os.close(end)
    assert lane.until >= before + 3600
    assert not lane.signalled


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("keepalive", 0),
        ("proxy_protocol", True),
        ("protocol", "uwsgi"),
        ("http2_cleartext", "both"),
        ("accesslog", "-"),
    ],
)
def test_with_a_setting_that_only_gunicorn_supports_every_request_is_declined(setting: str, value: object) -> None:
    place = generated_requests.Place("", "/run/gateway-0.sock", **{setting: value})
    assert place.fast([SMUGGLED]) == ([], False, SMUGGLED)


@pytest.mark.contract
@pytest.mark.parametrize("runtime", RUNTIMES)  # PyPy has an older gunicorn
def test_random_requests_are_declined_or_parsed_as_gunicorn_parses_them(runtime: str, times: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    command = [harness.PYTHON[runtime], generated_requests.__file__, str(RANDOM_EXAMPLES[runtime] * times), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300 * times)
    assert done.returncode == 0, done.stderr
