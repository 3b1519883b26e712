"""The files in examples/, each used as its own text says."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import random
import re
import runpy
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import tomllib

from proving import harness
from proving.harness import ROOT, Server, ask, chain, get, installation, post, redis_server, short_tmp
from support.folders import needs
from support.runtimes import RUNTIMES

pytestmark = pytest.mark.contract

EXAMPLES = ROOT / "examples"
poll = harness.poll


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    mine = {"INGEST_ROUTES": EXAMPLES / "my_routes.py", "INGEST_RECORDS": EXAMPLES / "my_records.py"}
    with short_tmp() as tmp, installation(tmp, mine) as server:
        yield server


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """A cell that accepts three bodies at once, then one per second, and answers 429 to all others."""
    with short_tmp() as tmp, chain(tmp, {"INGEST_CLIENT_RATE": 1}) as server:
        yield server


def all_stored(server: Server, poll_name: str, count: int) -> bool:
    """Whether the choices 0 to count - 1 of a poll are stored, each once; waits for `count` rows."""
    sql = f"SELECT choice FROM votes WHERE poll = '{poll_name}' ORDER BY rowid"
    poll(lambda: len(ask(server.home, sql)) >= count)
    return sorted(ask(server.home, sql)) == [(str(n),) for n in range(count)]


@needs("formats")
def test_a_sender_of_cloudevents_asks_first_and_its_binary_events_have_their_time(up: Server) -> None:
    asked = b"OPTIONS /orders HTTP/1.1\r\nHost: localhost\r\nWebHook-Request-Origin: events.example\r\n\r\n"
    status, headers, _ = harness.request(up.port, asked)
    assert (status, headers["webhook-allowed-origin"], headers["webhook-allowed-rate"]) == (200, "events.example", "*")
    fields = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-time": "2026-01-01T12:00:00Z"}
    for _ in range(2):  # the second one has the key of the first
        assert post(up.port, "/orders", b'{"sku":"timed"}', fields)[0] == 200
    assert post(up.port, "/orders", b'{"sku":"timed"}', fields | {"ce-id": "2", "ce-time": "soon"})[0] == 200
    poll(lambda: len(ask(up.home, "SELECT 1 FROM orders WHERE sku = 'timed'")) == 2)
    ((first,), (second,)) = ask(up.home, "SELECT time FROM orders WHERE sku = 'timed' ORDER BY time")
    assert first == "2026-01-01T12:00:00.000Z" < second


@needs("formats")
def test_firehose_delivers_to_a_stream_of_ones_own(up: Server) -> None:
    data = base64.b64encode(b'{"sku":"delivered"}\n').decode()
    body = json.dumps({"requestId": "ed4a", "timestamp": 1767268800000, "records": [{"data": data}] * 2}).encode()
    for _ in range(2):  # the second one has the key of the first
        status, _, answer = post(up.port, "/orders", body, {"X-Amz-Firehose-Request-Id": "ed4a"})
        assert (status, json.loads(answer)["requestId"]) == (200, "ed4a")
    assert post(up.port, "/orders", b'{"sku":"behind"}')[0] == 200
    poll(lambda: ask(up.home, "SELECT 1 FROM orders WHERE sku = 'behind'"))
    assert len(ask(up.home, "SELECT 1 FROM orders WHERE sku = 'delivered'")) == 2


def test_the_shell_script_waits_for_retry_after(slow: Server) -> None:
    for n in range(4):
        body = json.dumps({"poll": "sh", "choice": str(n)})
        command = [str(EXAMPLES / "post.sh"), f"http://localhost:{slow.port}/votes", body]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith('{"message":"OK"}')
    assert all_stored(slow, "sh", 4)


def test_the_python_client_waits_for_retry_after_and_raises_rejected_on_a_4xx(slow: Server) -> None:
    module = runpy.run_path(str(EXAMPLES / "client.py"))
    client, seen = module["Client"](f"http://localhost:{slow.port}"), []
    once = client.once

    def watched(path: str, body: bytes, key: str) -> tuple[int, float, str]:
        seen.append(once(path, body, key))
        return seen[-1]

    client.once = watched
    count = 0
    while (429, 1.0) not in [answer[:2] for answer in seen]:
        client.post("/votes", {"poll": "py", "choice": str(count)})
        count += 1
    assert all_stored(slow, "py", count)
    with pytest.raises(module["Rejected"], match="404"):
        client.post("/nowhere", {})
    client.patience = 0
    with pytest.raises(TimeoutError, match="gave up"):
        for _ in range(9):
            client.post("/votes", {})


def in_python(url: str, record: dict[str, str]) -> None:
    runpy.run_path(str(EXAMPLES / "client.py"))["Client"](url).post("/votes", record)


def in_javascript(url: str, record: dict[str, str]) -> None:
    code = f'import {{ post }} from "{EXAMPLES}/client.mjs"; await post("{url}/votes", {json.dumps(record)});'
    subprocess.run(["node", "--input-type=module", "-e", code], timeout=60, check=True)


def in_shell(url: str, record: dict[str, str]) -> None:
    subprocess.run([str(EXAMPLES / "post.sh"), f"{url}/votes", json.dumps(record)], timeout=60, check=True)


def request_of(connection: socket.socket) -> bytes:
    """Read a request with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", data)
    assert length
    return data + harness.receive(connection, data.index(b"\r\n\r\n") + 4 + int(length[1]) - len(data))


@pytest.mark.parametrize("send", [in_python, in_javascript, in_shell])
def test_a_client_sends_again_what_was_not_answered_and_it_is_stored_once(
    up: Server, send: Callable[[str, dict[str, str]], None]
) -> None:
    name = send.__name__
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server, ThreadPoolExecutor(1) as client:
        posted = client.submit(send, f"http://127.0.0.1:{server.getsockname()[1]}", {"poll": name, "choice": "0"})
        for attempt in range(3):
            with contextlib.closing(server.accept()[0]) as connection:
                status, _, text = harness.request(up.port, request_of(connection))
                assert status == 200
                # curl repeats after no answer at all only if it is told to, so it gets a 502
                reply = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                if attempt == 2:
                    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(text) + text
                if attempt == 2 or send is in_shell:
                    connection.sendall(reply)
        posted.result()
    assert all_stored(up, name, 1)


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
def test_the_javascript_client_waits_for_retry_after_and_throws_rejected_on_a_4xx(slow: Server) -> None:
    script = """
        import { post, Rejected } from "%s";
        const statuses = [], real = fetch;
        globalThis.fetch = async (...all) => { const a = await real(...all); statuses.push(a.status); return a; };
        let count = 0;
        while (!statuses.includes(429)) await post("%s/votes", { poll: "js", choice: String(count++) });
        try { await post("%s/nowhere", {}, 60); } catch (error) { statuses.push(error instanceof Rejected); }
        console.log(JSON.stringify([count, ...statuses]));
    """
    url = f"http://localhost:{slow.port}"
    code = script % (EXAMPLES / "client.mjs", url, url)
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    count, *statuses = json.loads(done.stdout)
    assert statuses[-2:] == [404, True]
    assert all_stored(slow, "js", count)


@needs("formats")
def test_telegrafs_configuration_posts_to_a_path_that_accepts_its_format(up: Server) -> None:
    (output,) = tomllib.loads((EXAMPLES / "telegraf.conf").read_text())["outputs"]["influxdb"]
    assert output["skip_database_creation"] is True
    assert urlsplit(output["urls"][0]).port == 8080
    line = b"cpu,cpu=cpu-total,host=a usage_idle=97.5 1767268800000000000\n"
    headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Encoding": output["content_encoding"]}
    assert post(up.port, "/write?db=telegraf", gzip.compress(line), headers)[0] == 204
    assert poll(lambda: ask(up.home, "SELECT value FROM metrics WHERE field = 'usage_idle'")) == [(97.5,)]


@needs("formats")
def test_the_owntracks_configuration_stores_positions_of_its_device(up: Server) -> None:
    settings = json.loads((EXAMPLES / "owntracks.otrc").read_text())
    assert (settings["_type"], settings["mode"]) == ("configuration", 3)  # 3: HTTP
    target = urlsplit(settings["url"])
    location = {"_type": "location", "lat": 48.1, "lon": 11.6, "tst": 1767268800, "tid": settings["tid"]}
    status, _, text = post(up.port, f"{target.path}?{target.query}", json.dumps(location).encode())
    assert (status, text) == (200, b"[]")
    device = f"jane/{settings['deviceId']}"
    assert poll(lambda: ask(up.home, f"SELECT lat, lon FROM gps WHERE device = '{device}'")) == [(48.1, 11.6)]


def test_a_user_defined_stream_takes_ten_lines(up: Server) -> None:
    lines = [
        line
        for name in ("my_routes.py", "my_records.py")
        for line in (EXAMPLES / name).read_text().splitlines()
        if line and not line.startswith('"""')
    ]
    assert len(lines) <= 10
    assert post(up.port, "/orders", b'{"sku":"A-1","count":3}')[0] == 200
    assert poll(lambda: ask(up.home, "SELECT count FROM orders WHERE sku = 'A-1'")) == [(3,)]
    printed = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    assert all(line in printed for line in lines)  # the README shows these files


@needs("views")
@pytest.mark.nightly
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_feed_of_notifications_has_the_last_100_different_ones_newest_first(runtime: str) -> None:
    mine: dict[str, object] = dict.fromkeys(
        ("INGEST_ROUTES", "INGEST_RECORDS", "INGEST_VIEWS"), EXAMPLES / "notifications.py"
    )
    times = [f"2026-01-01T12:{n // 60:02}:{n % 60:02}.000Z" for n in range(600)]
    random.Random(11).shuffle(times)
    sent = [
        {"user": "jane", "kind": "like", "actor": f"user {n % 13}", "object": f"photo {n % 10}", "time": time}
        for n, time in enumerate(times)
    ]
    newest: dict[tuple[str, ...], str] = {}
    for one in sent:
        item = one["kind"], one["actor"], one["object"]
        newest[item] = max(newest.get(item, ""), one["time"])
    assert len(newest) > 100
    expected = sorted(((time, *item) for item, time in newest.items()), reverse=True)[:100]

    def feed() -> list[tuple[str, ...]]:
        status, _, body = get(server.port, "/notifications/feed?user=jane")
        assert status in (200, 404, 503)
        fields = itemgetter("time", "kind", "actor", "object")
        found = [fields(one) for one in json.loads(body)] if status == 200 else []
        assert len(found) <= 100
        assert len({one[1:] for one in found}) == len(found)
        assert found == sorted(found, key=itemgetter(0), reverse=True)
        return found

    with short_tmp() as tmp, installation(tmp, mine | {"INGEST_RUNTIME": runtime}) as server:
        # The reader may be the last one to start; until then nginx answers 502
        poll(lambda: get(server.port, "/notifications/feed?user=jane")[0] == 404, what="the reader to start")
        for at in range(0, 600, 10):
            body = json.dumps([*sent[at : at + 10], sent[at] | {"user": "joe"}]).encode()
            assert post(server.port, "/notifications", body)[0] == 200
            feed()
        poll(lambda: feed() == expected)
        assert get(server.port, "/notifications/feed?user=nobody")[0] == 404
        assert get(server.port, "/notifications/feed")[0] == 400


@pytest.fixture(scope="module")
def mini_redis() -> Iterator[Server]:
    with short_tmp() as tmp, redis_server(tmp, appendfsync="no") as server:
        yield server


@pytest.fixture
def mini(mini_redis: Server) -> dict:
    """The names of examples/mini.py, and its Redis, empty."""
    redis.Redis(unix_socket_path=str(mini_redis.socket)).flushall()
    return runpy.run_path(str(EXAMPLES / "mini.py"))


def rows(path: Path) -> list[bytes]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return [body for (body,) in db.execute("SELECT body FROM bodies ORDER BY rowid")]


def test_mini_stores_each_body_once(mini_redis: Server, mini: dict, tmp: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "mini.py"), str(mini_redis.socket), str(tmp / "mini.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"16 threads posted 8,000 bodies; {tmp}/mini.db holds 8,000 from ")
    assert sorted(rows(tmp / "mini.db")) == sorted(b'{"n":%d}' % n for n in range(8000))
    assert redis.Redis(unix_socket_path=str(mini_redis.socket)).keys("mini:*") == []


def test_mini_sends_all_waiting_bodies_in_one_push(mini_redis: Server, mini: dict) -> None:
    gateway = mini["Gateway"](str(mini_redis.socket))
    with ThreadPoolExecutor(20) as clients:
        with gateway.turn:  # as if another batch were under way
            posts = [clients.submit(gateway.post, b"%d" % n) for n in range(20)]
            poll(lambda: len(gateway.open.bodies) == 20)
            gateway.redis.config_resetstat()
        for done in posts:
            done.result()
    assert gateway.redis.info("commandstats")["cmdstat_rpush"]["calls"] == 1
    assert sorted(gateway.redis.lrange(mini["READY"], 0, -1)) == sorted(b"%d" % n for n in range(20))


def test_mini_reports_a_lost_redis_to_every_client_of_the_batch(mini: dict, tmp: Path) -> None:
    gateway = mini["Gateway"](str(tmp / "nothing.sock"))
    batch = gateway.append(b"one")
    assert gateway.append(b"two") is batch
    for _ in batch.bodies:
        with pytest.raises(redis.ConnectionError):
            gateway.commit(batch)


def test_mini_does_not_push_again_after_a_lost_reply(mini_redis: Server, mini: dict) -> None:
    gateway, other = mini["Gateway"](str(mini_redis.socket)), redis.Redis(unix_socket_path=str(mini_redis.socket))
    other.client_pause(60_000, all=False)  # writes only
    with ThreadPoolExecutor(1) as client:
        posted = client.submit(gateway.post, b"x")
        (waiting,) = poll(lambda: [one for one in other.client_list() if one["cmd"] == "rpush"])
        other.client_kill_filter(_id=waiting["id"])
        other.client_unpause()
        with pytest.raises(redis.ConnectionError):
            posted.result()
    assert other.llen(mini["READY"]) == 0


@pytest.mark.parametrize("step", ["store", "settle"])
def test_mini_stores_the_claim_of_a_killed_worker_once(mini_redis: Server, mini: dict, tmp: Path, step: str) -> None:
    gateway, path = mini["Gateway"](str(mini_redis.socket)), tmp / "mini.db"
    for n in range(3):
        gateway.post(b"%d" % n)
    killed = f"""if True:
        import os, sys
        sys.path.insert(0, {str(EXAMPLES)!r})
        import mini
        mini.{step} = lambda *_: os.kill(os.getpid(), 9)
        mini.work(mini.Redis(unix_socket_path={str(mini_redis.socket)!r}), mini.database({str(path)!r}), lease=0)
    """
    assert subprocess.run([sys.executable, "-c", killed], timeout=60, check=False).returncode == -signal.SIGKILL
    assert gateway.redis.exists(mini["READY"]) == 0
    assert len(rows(path)) == (3 if step == "settle" else 0)
    gateway.post(b"3")
    db = mini["database"](path)
    mini["work"](gateway.redis, db)
    db.close()
    assert rows(path) == [b"0", b"1", b"2", b"3"]
    assert gateway.redis.keys("mini:*") == []


def test_mini_stores_what_is_posted_again_with_its_key_once(mini_redis: Server, mini: dict, tmp: Path) -> None:
    gateway, db = mini["Gateway"](str(mini_redis.socket)), mini["database"](tmp / "mini.db")
    for body in (b'{"key":"a"}', b'{"key":"b"}', b'{"key":"a","again":1}', b"x", b"x", b"1", b"1"):
        gateway.post(body)
    mini["work"](gateway.redis, db)
    gateway.post(b'{"key":"b"}')
    mini["work"](gateway.redis, db)
    assert rows(tmp / "mini.db") == [b'{"key":"a"}', b'{"key":"b"}', b"x", b"x", b"1", b"1"]


@pytest.mark.nightly
def test_mini_leaves_a_claim_alone_while_its_lease_runs(mini_redis: Server, mini: dict) -> None:
    gateway = mini["Gateway"](str(mini_redis.socket))
    gateway.post(b"x")
    id, bodies = mini["claim"](gateway.redis, lease=0)
    assert (id, [b"x"]) == mini["claim"](gateway.redis, lease=3600) == (id, bodies)
    assert mini["claim"](gateway.redis) == (None, [])
