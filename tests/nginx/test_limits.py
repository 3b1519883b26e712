"""Each row of the table of limits in docs/protocol/http.md, tried while the running system serves other clients."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as client

from proving import harness
from proving.harness import Server, connect, installation, nginx, post, request, short_tmp, stopped
from sluice import settings
from sluice.run import configure
from sluice.spool import inlet
from sluice.spool.inspector import Inspector
from sluice.streams.built_in import STREAMS
from support.folders import needs

poll = harness.poll
HEAD = b"Host: localhost\r\n"
SETTINGS = {
    "INGEST_DURABILITY": "no",  # a single client would wait for an fsync per body
    "INGEST_MAX_MEMORY": "48m",
}
TIGHT = {"INGEST_CLIENT_CONNECTIONS": "3"}
SHORT = [
    ("client_header_timeout 30s", "client_header_timeout 2s"),
    ("client_body_timeout 30s", "client_body_timeout 2s"),
    ("keepalive_timeout 75s", "keepalive_timeout 1s"),
]
PACED = b'{"poll":"paced","choice":"%b"}' % (b"x" * 12_000)  # 2,000 of these reach the limit in bytes
A_MILLION_SEVENS = """
local sevens = {}
for n = 1, 5000 do sevens[n] = '7' end
for n = 1, 200 do redis.call('RPUSH', KEYS[1], unpack(sevens)) end
"""


class Site:
    """A running installation, and a second nginx in front of it with tight limits (`tight`)."""

    def __init__(self, server: Server, tight: Server) -> None:
        self.port, self.tight, self.home = server.port, tight.port, server.home
        self.server = server
        self.neighbours = 0

    def ask(self, sql: str, *values: object) -> list[tuple]:
        return harness.ask(self.home, sql, *values)

    def serves(self, port: int = 0) -> bool:
        """Assert that another client's body on another stream is accepted at once."""
        body = b'{"device":"neighbour %d","lat":48.1,"lon":11.6}' % self.neighbours
        assert post(port or self.port, "/gps", body)[0] == 200
        self.neighbours += 1
        return True

    def stores(self) -> None:
        """Wait until all those bodies are stored."""
        many = (self.neighbours,)
        poll(lambda: self.ask("SELECT count(*) FROM gps WHERE device LIKE 'neighbour%'")[0] == many)

    def empty(self) -> bool:
        """Whether the worker has stored all bodies."""
        keys = [f"ingest:{{{name}}}{claims}" for name in STREAMS for claims in ("", ":claims")]
        with client.Redis(unix_socket_path=str(self.home / "run/redis.sock")) as db:
            return not db.exists(*keys)

    def buried(self, path: str, body: bytes, encoding: str = "identity") -> str:
        """Post a body that is buried; returns the reason."""
        (last,) = self.ask("SELECT coalesce(max(id), 0) FROM dead_letters")[0]
        assert post(self.port, path, body, {"Content-Encoding": encoding})[0] in (200, 204)
        self.serves()
        ((reason,),) = poll(lambda: self.ask("SELECT reason FROM dead_letters WHERE id > ?", last))
        return reason

    def without_worker(self) -> contextlib.AbstractContextManager[None]:
        """The worker is stopped."""
        return stopped(*self.server.pids("worker"))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with short_tmp() as tmp, short_tmp() as other, installation(tmp, SETTINGS) as server:
        (other / "run").mkdir()
        for path in server.sockets:
            (other / "run" / path.name).symlink_to(path)
        text = configure.nginx_configuration(settings.load_settings({}))["nginx.conf"]
        (connections,) = re.findall(r"worker_connections \d+", text)
        change = ((connections, "worker_connections 64"), *SHORT)
        with nginx(other, TIGHT, change) as tight:
            site = Site(server, tight)
            site.serves()
            site.stores()  # now the tables exist
            yield site


def vote(size: int) -> bytes:
    return json.dumps({"poll": "p", "choice": "x" * size}).encode()


def status(answer: harness.Answer) -> int:
    assert answer[1]["content-type"] == "application/problem+json"
    return answer[0]


def burst(port: int, target: str, count: int, body: bytes) -> list[tuple[int, int]]:
    """Post a body many times at once, on fifty connections: status and Retry-After (0: none) of each answer."""
    one = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    found: list[tuple[int, int]] = []
    with contextlib.ExitStack() as held:
        shares = [len(range(n, count, 50)) for n in range(min(50, count))]
        lines = [held.enter_context(connect(port, 30)) for _ in shares]
        senders = [
            threading.Thread(target=line.sendall, args=(one * share,))
            for line, share in zip(lines, shares, strict=True)
        ]
        for sender in senders:  # nginx reads no further request of a connection before it has answered
            sender.start()
        for line, share in zip(lines, shares, strict=True):
            data = b""
            while data.count(b"HTTP/1.1 ") < share or not data.endswith(b"}"):
                data += line.recv(1 << 20)
            for head in data.split(b"HTTP/1.1 ")[1:]:
                wait = re.search(rb"Retry-After: (\d+)", head)
                found.append((int(head[:3]), int(wait[1]) if wait else 0))
        for sender in senders:
            sender.join()
    return found


def closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes the connection without an answer, within `seconds`."""
    if not select.select([connection], [], [], seconds)[0]:
        return False
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def memory(site: Site, name: str, what: str) -> list[int]:
    """The memory of each process of a program, in kB. what: the field in proc(5)."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in site.server.pids(name)]
    return [int(found[1]) for text in texts if (found := re.search(rf"{what}:\s+(\d+) kB", text))]


def begun_bodies(site: Site) -> int:
    """Bytes of nginx's files of bodies, which have no name."""
    size = 0
    for pid in site.server.pids("nginx"):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if "/tmp/body/" in str(file.readlink()):
                    size += 512 * file.stat().st_blocks
    return size


# One function per row of the table; it returns its observation for the report


def a_body(site: Site) -> str:
    with connect(site.port) as connection:  # no byte of the body is sent
        connection.sendall(b"POST /votes HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % ((1 << 20) + 1))
        seen = status(harness.answer(connection))
    assert seen == 413
    assert post(site.port, "/votes", vote((1 << 20) - 27))[0] == 200
    return "413; one byte less: 200"


def a_batch(site: Site) -> str:
    with connect(site.port) as connection:
        connection.sendall(b"POST /write HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % ((8 << 20) + 1))
        seen = status(harness.answer(connection))
    assert seen == 413
    assert post(site.port, "/write", b"batch value=1".ljust(8 << 20))[0] == 204
    return "413; one byte less: 204"


def a_request_line(site: Site) -> str:
    seen = status(request(site.port, b"POST /votes?" + b"a" * 8000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n"))
    assert seen == 414
    assert post(site.port, "/votes?" + "a" * 7900)[0] == 200
    return "8,021 bytes: 414; 7,921: 200"


def header_fields(site: Site) -> str:
    one = b"POST /votes HTTP/1.1\r\n" + HEAD
    assert status(request(site.port, one + b"X: " + b"a" * 8000 + b"\r\n\r\n")) == 431
    assert status(request(site.port, one + (b"X: " + b"a" * 7500 + b"\r\n") * 5 + b"\r\n")) == 431
    assert post(site.port, "/votes", vote(1), {"X": "a" * 7900})[0] == 200
    return "8,003 bytes, or 5 of 7,500: 431; 7,903: 200"


def a_backlog_in_bodies(site: Site) -> str:
    with site.without_worker(), client.Redis(unix_socket_path=str(site.home / "run/redis.sock")) as db:
        assert post(site.port, "/metrics", b"7")[0] == 200
        for _ in range(10):  # Redis stores a 7 in two bytes, so the limit in bytes does not act
            db.eval(A_MILLION_SEVENS, 1, "ingest:{metrics}")
        given = poll(lambda: [answer for answer in [post(site.port, "/metrics", b"7")] if answer[0] == 503])
        assert status(given[0]) == 503
        ready = db.llen("ingest:{metrics}")
        assert ready - inlet.MAX_BACKLOG_BODIES < 100  # those posted before the gateway saw the backlog
        site.serves()
        inspector = Inspector(str(site.home / "run/redis.sock"))
        inspector.purge("metrics", inspector.take_snapshot("metrics"))
    poll(lambda: post(site.port, "/metrics", b"7")[0] == 200)
    return f"{ready:,} bodies: 503; other streams, and once they are purged: 200"


def paced(site: Site) -> str:
    """Clients that are refused wait as long as Retry-After says, and send again."""

    def refused(count: int) -> list[int]:
        return [wait for code, wait in burst(site.port, "/votes", count, PACED) if code == 503]

    # The gateway first sees a second in which nothing drains, then the drain rate, which stays about the same
    with site.without_worker():
        poll(lambda: max(refused(200), default=0) > 1)
    poll(lambda: post(site.port, "/votes", vote(1))[0] == 200 and site.empty())
    with site.without_worker():
        waits = poll(lambda: refused(5000))
        assert min(waits) == 1
        while max(waits) == 1:  # Retry-After grows with each refusal, at the drain rate
            assert len(waits) < 100_000
            waits += refused(5000)
        first = waits
        site.serves()
    rounds = 0
    while waits:
        start, again = time.monotonic(), []
        for wait in sorted(set(waits)):
            time.sleep(max(0, start + wait - time.monotonic()))  # as Retry-After says
            again += refused(waits.count(wait))
        waits, rounds = again, rounds + 1
    assert rounds <= 10  # one, unless the machine is busy with something else
    return f"{len(first)} clients waited {min(first)} to {max(first)} s: all accepted, the last at try {rounds}"


def a_backlog_in_bytes(site: Site) -> str:
    with site.without_worker():
        taken = 0
        while (answer := post(site.port, "/votes", vote(900_000)))[0] == 200:
            taken += 900_000
            assert taken < 40 << 20
        assert status(answer) == 503
        for _ in range(3):
            site.serves()
    poll(site.empty)
    poll(lambda: post(site.port, "/votes", vote(1))[0] == 200)
    return f"503 after {taken >> 20} MiB; other streams: 200; {paced(site)}"


def all_backlogs(site: Site) -> str:
    with site.without_worker():
        taken = 0
        for target in "/votes", "/metrics", "/gps":
            while (answer := post(site.port, target, vote(900_000)))[0] == 200:
                taken += 900_000
        assert b"Redis is full" in answer[2]
        assert int(answer[1]["retry-after"]) > 0
        with client.Redis(unix_socket_path=str(site.home / "run/redis.sock")) as db:
            db.config_set("maxmemory", "24mb")  # Redis is full while the worker claims
    poll(site.empty)
    with client.Redis(unix_socket_path=str(site.home / "run/redis.sock")) as db:
        db.config_set("maxmemory", "48mb")
    return f"503 after {taken >> 20} MiB; once the worker has drained the lists: 200"


def connections(site: Site) -> str:
    with contextlib.ExitStack() as held:
        idle = [held.enter_context(connect(site.tight)) for _ in range(200)]
        site.serves(site.tight)
        gone = sum(closed(connection, 0) for connection in idle)
        assert gone
        for _ in range(200):  # none of these connections is idle
            held.enter_context(connect(site.tight)).sendall(b"POST /votes HT")
        site.serves()
        start = time.monotonic()
        poll(lambda: site.serves(site.tight))
        waited = time.monotonic() - start
    return f"{gone} of 200 idle ones closed; beside 200 incomplete requests, a new one: 200 after {waited:.1f} s"


def requests_under_way(site: Site) -> str:
    def fourth() -> list[harness.Answer]:
        with contextlib.ExitStack() as held:
            for _ in range(3):
                slow = held.enter_context(connect(site.tight))
                slow.sendall(b"POST /votes HTTP/1.1\r\n" + HEAD + b"Content-Length: 10\r\n\r\nx")
            return [answer for answer in [post(site.tight, "/votes", vote(1))] if answer[0] == 429]

    (seen,) = poll(fourth)
    assert int(seen[1]["retry-after"]) > 0
    poll(lambda: post(site.tight, "/votes", vote(1))[0] == 200)
    return "the fourth: 429; once the others are closed: 200"


def a_slow_head(site: Site) -> str:
    with connect(site.tight) as connection:
        start = time.monotonic()
        for byte in b"POST /votes HTTP/1.1\r\nX: " + b"x" * 200:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(bytes([byte]))
            if closed(connection, 0.1):
                break
        else:
            raise AssertionError("not closed at the 224th byte")
    site.serves(site.tight)
    return f"2 s: closed after {time.monotonic() - start:.1f} s of a byte each 0.1 s"


def a_slow_body(site: Site) -> str:
    (before,) = site.ask("SELECT count(*) FROM votes WHERE poll = 'slow'")[0]
    body = b"poll=slow&choice=" + b"x" * 8
    head = b"POST /votes HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    with connect(site.tight) as silent, connect(site.tight) as slow:
        silent.sendall(head + body[:-1])
        slow.sendall(head)
        for byte in body:
            slow.sendall(bytes([byte]))
            select.select([slow], [], [], 0.1)
        assert harness.answer(slow)[0] == 200
        assert closed(silent, 20)
    site.serves(site.tight)
    poll(lambda: site.ask("SELECT count(*) FROM votes WHERE poll = 'slow'")[0] == (before + 1,))
    first = memory(site, "nginx", "VmRSS")
    with contextlib.ExitStack() as held:
        for _ in range(100):
            begun = held.enter_context(connect(site.port))
            begun.sendall(b"POST /votes HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000000\r\n\r\n" + b"x" * 900_000)
        site.serves()
        each = (sum(memory(site, "nginx", "VmRSS")) - sum(first)) // 100
        on_disk = poll(lambda: (size := begun_bodies(site)) >= 80_000_000 and size) // 100_000
    assert each < 100 and on_disk < 1100
    return (
        "2 s: silence closed, nothing accepted; a byte each 0.1 s for 2.5 s: 200; "
        f"each of 100 begun ones of 900 kB: {each} kB of memory, {on_disk} kB of disk"
    )


def an_idle_connection(site: Site) -> str:
    with connect(site.tight) as connection:
        poll(lambda: post(connection, "/votes", vote(1))[0] == 200)
        start = time.monotonic()
        assert closed(connection, 30)
    return f"1 s: closed after {time.monotonic() - start:.1f} s"


def an_inflation_bomb(site: Site) -> str:
    bomb = gzip.compress(bytes(64 << 20), 9)
    reason = site.buried("/votes", bomb)
    assert reason == "gzip: inflates to more than 8388608 bytes"
    return f"{len(bomb) >> 10} KiB to 64 MiB: {reason}"


def members_of_a_gzip_file_frames_of_zstd(site: Site) -> str:
    reason = site.buried("/votes", gzip.compress(b"") * 1001)
    assert reason == "gzip: more than 1000 members"
    return f"1,001: {reason}"


def records_in_a_body(site: Site) -> str:
    reason = site.buried("/write", gzip.compress(b"limits value=1\n" * 66_536))
    assert site.ask("SELECT count(*) FROM metrics WHERE name = 'limits'") == [(65_536,)]
    return f"65,536 stored, 1,000: {reason}"


def keys_in_an_object(site: Site) -> str:
    keys = b",".join(b'"%d":""' % n for n in range(120_000))
    for body in b'{"name":"keys","fields":{%b}}', b'{"name":"keys","value":1,"tags":{%b}}':
        reason = site.buried("/metrics", gzip.compress(body % keys))
        assert reason == "record larger than 1048576 bytes"
    line = site.buried("/write", b"keys,%b v=1" % keys[:400_000].replace(b":", b"="))
    assert line == "line longer than 262144 bytes"
    form = site.buried("/votes", gzip.compress(b"poll=p&choice=" + b"x" * 1_200_000))
    assert form == "form larger than 1048576 bytes"
    many = b",".join(b'"%d":1' % n for n in range(380_000))
    post(site.port, "/gps", gzip.compress(b'{"device":"keys","lat":1,"lon":1,%b}' % many, 1))
    poll(lambda: site.ask("SELECT 1 FROM gps WHERE device = 'keys'"))
    return f"120,000 fields or tags: {reason}; {line}; {form}; 380,000 unknown ones: stored"


def values_in_a_record_of_messagepack(site: Site) -> str:
    reasons = []
    for count in 131_068, 131_069:  # beside the record, its two names and its message
        body = b"\x82\xa7message\xa4many\xa1a\xdd" + (count - 1).to_bytes(4, "big") + b"\x90" * (count - 1)
        (last,) = site.ask("SELECT coalesce(max(id), 0) FROM dead_letters")[0]
        assert post(site.port, "/logs", body)[0] == 200
        poll(site.empty)
        reasons += site.ask("SELECT reason FROM dead_letters WHERE id > ?", last)
    assert reasons == [("msgpack: more than 131072 values in a record",)]
    return f"131,073: {reasons[0][0]}"


def fields_of_a_form(site: Site) -> str:
    reason = site.buried("/votes", b"&".join([b"a=1"] * 1001))
    assert reason == "form has more than 1000 fields"
    return f"1,001: {reason}"


def parts_of_a_histogram(site: Site) -> str:
    point = {"timeUnixNano": "1767268800000000000", "count": "0", "bucketCounts": ["0"] * 10_001}
    metric = {"name": "parts", "histogram": {"aggregationTemporality": 2, "dataPoints": [point]}}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]})
    reason = site.buried("/v1/metrics", body.encode())
    assert reason == "data point with more than 10000 parts"
    return f"10,001: {reason}"


def objects_and_arrays_in_a_body(site: Site) -> str:
    line = b'{"message":"nested","many":[%b{}]}\n' % (b"{}," * 99_998)
    reason = site.buried("/logs", gzip.compress(line * 20))
    ((stored,),) = site.ask("SELECT count(*) FROM logs WHERE message = 'nested'")
    assert stored == 6  # each of 100,000, of which eight cost a record of 65,536
    return f"{stored} records of 100,000 stored, 14: {reason}"


def parts_of_a_span(site: Site) -> str:
    span = {"traceId": "01" * 16, "spanId": "01" * 8, "name": "parts", "startTimeUnixNano": "1767268800000000000"}
    span |= {"endTimeUnixNano": "1767268800000000001", "events": [{}] * 10_001}  # type: ignore[dict-item]
    reason = site.buried("/v1/traces", json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())
    assert reason == "span with more than 10000 events and links"
    return f"10,001: {reason}"


def coordinates_of_a_point(site: Site) -> str:
    place = '{"type":"Feature","geometry":{"type":"Point","coordinates":[1,%s2]},"properties":{"device_id":"a"}}'
    reason = site.buried("/overland", ('{"locations":[%s]}' % (place % (" " * 600))).encode())
    assert reason == "coordinates too long"
    return f"600 bytes: {reason}"


def nested_json(site: Site) -> str:
    reason = site.buried("/votes", b'{"poll":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert reason == "not JSON: nested too deeply"
    return reason


def a_number_of_10_000_digits(site: Site) -> str:
    reason = site.buried("/metrics", b'{"name":"n","value":%b}' % (b"1" * 10_000))
    assert "range" in reason
    return reason


def a_nul(site: Site) -> str:
    reason = site.buried("/votes", rb'{"poll":"p","choice":"a\u0000b"}')
    assert reason == "text with a NUL"
    return reason


def invalid_utf_8(site: Site) -> str:
    reason = site.buried("/votes", b'{"poll":"p","choice":"\xff"}')
    assert reason.startswith("not UTF-8: ")
    return reason


def claims(site: Site, body: bytes, count: int) -> list[int]:
    """Post a body `count` times while the worker is stopped. Returns: the number of bodies of each claim afterwards."""
    with site.without_worker():
        (before,) = site.ask("SELECT coalesce(max(id), 0) FROM batches")[0]
        assert {code for code, _ in burst(site.port, "/votes", count, body)} == {200}
    poll(site.empty)
    found = [n for (n,) in site.ask("SELECT bodies FROM batches WHERE stream = 'votes' AND id > ?", before)]
    assert sum(found) == count
    return found


def bodies_in_a_claim(site: Site) -> str:
    largest = max(claims(site, vote(1), 20_000))  # claims double from 64 bodies on
    assert largest == 5000
    return f"20,000 bodies: at most {largest:,} in a claim"


def bytes_in_a_claim(site: Site) -> str:
    largest = max(claims(site, vote(1_000_000), 20))
    assert largest <= 5
    peak = max(memory(site, "worker", "VmHWM")) // 1000
    # 100 for rows; the objects of a body with half a million of them take more, and so does what coverage traces
    assert peak < 120 + 20 * ("coverage" in sys.modules)
    return f"20 bodies of 1 MB: at most {largest} in a claim; the worker's peak after all of the above: {peak} MB"


def read(site: Site, query: str) -> int:
    """The status of a read."""
    return harness.request(site.port, f"GET /gps/latest?{query} HTTP/1.1\r\n".encode() + HEAD + b"\r\n")[0]


def keys_of_a_read(site: Site) -> str:
    found = [read(site, "&".join(["device=a"] * count)) for count in (100, 101)]
    assert found == [200, 400]
    return "101: 400"


def a_key_of_a_read(site: Site) -> str:
    found = [read(site, "device=" + "a" * size) for size in (512, 513)]
    assert found == [404, 400]
    return "513 bytes: 400"


LIMITS: list[Callable[[Site], str]] = [
    *(a_body, a_batch, a_request_line, header_fields, a_backlog_in_bodies, a_backlog_in_bytes, all_backlogs),
    *(connections, requests_under_way, a_slow_head, a_slow_body, an_idle_connection),
    *(an_inflation_bomb, members_of_a_gzip_file_frames_of_zstd),
    *(records_in_a_body, keys_in_an_object, values_in_a_record_of_messagepack, fields_of_a_form),
    *(parts_of_a_histogram, objects_and_arrays_in_a_body, parts_of_a_span, coordinates_of_a_point, nested_json),
    *(a_number_of_10_000_digits, a_nul, invalid_utf_8, bodies_in_a_claim, bytes_in_a_claim),
    *(keys_of_a_read, a_key_of_a_read),
]
# tests/test_poison.py has the time of a body, tests/contrib/formats/test_bombs.py what a body or a part of it becomes
ROWS = dict(
    zip(
        LIMITS,
        re.findall(
            r"^\| (?!the time of a body |what a )(.*?) \| (.*?) ?\| (.*?) \| (.*?) \|$",
            (harness.ROOT / "docs/protocol/http.md").read_text().partition("\n## Limits\n")[2].partition("\n## ")[0],
            re.M,
        )[1:],
        strict=True,
    )
)


def test_the_table_has_these_rows_in_this_order() -> None:
    names = [re.sub("[^a-z0-9]+", "_", row[0].lower()) for row in ROWS.values()]
    assert names == [limit.__name__ for limit in LIMITS]


@pytest.mark.contract
@needs("access", "formats", "views")
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.__name__)
def test_a_limit_holds_and_other_clients_are_served(
    limit: Callable[[Site], str], site: Site, record_property: Callable[[str, object], None]
) -> None:
    seen = limit(site)
    site.serves()
    site.stores()
    name, setting, bound, answer = (cell.replace("`", "") for cell in ROWS[limit])
    head = ("limit", "set by", "unless set", "beyond it", "seen")
    cells = (name, setting, bound, answer.partition(";")[0], seen)
    record_property("row", ("Limits", head, cells))
