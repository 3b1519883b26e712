"""The files in examples/, each as somebody would use it."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import runpy
import shutil
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import pytest
import tomllib

import utils
from utils import ROOT, Server, ask, installation, post, short_tmp

EXAMPLES = ROOT / "examples"
poll = partial(utils.poll, seconds=30)


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    mine = {"INGEST_ROUTES": EXAMPLES / "my_routes.py", "INGEST_RECORDS": EXAMPLES / "my_records.py"}
    with short_tmp() as tmp, installation(tmp, mine) as server:
        yield server


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """One that takes three bodies at once, then one a second, and answers 429 in between."""
    with short_tmp() as tmp, installation(tmp, {"INGEST_CLIENT_RATE": 1}) as server:
        yield server


def all_stored(server: Server, poll_name: str, count: int) -> bool:
    """Whether the choices 0, 1, … are there, each once; waits for as many."""
    sql = f"SELECT choice FROM votes WHERE poll = '{poll_name}' ORDER BY rowid"
    poll(lambda: len(ask(server.home, sql)) >= count)
    return sorted(ask(server.home, sql)) == [(str(n),) for n in range(count)]


def test_the_shell_line_waits_as_it_is_told(slow: Server) -> None:
    for n in range(5):
        body = json.dumps({"poll": "sh", "choice": str(n)})
        command = [str(EXAMPLES / "post.sh"), f"http://localhost:{slow.port}/votes", body]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith('{"message":"OK"}')
    assert all_stored(slow, "sh", 5)


def test_the_python_client_waits_as_it_is_told_and_knows_what_is_refused_for_good(slow: Server) -> None:
    module = runpy.run_path(str(EXAMPLES / "client.py"))
    client, seen = module["Client"](f"http://localhost:{slow.port}"), []
    once = client.once

    def watched(path: str, body: bytes) -> tuple[int, float, str]:
        seen.append(once(path, body))
        return seen[-1]

    client.once = watched
    for n in range(5):
        client.post("/votes", {"poll": "py", "choice": str(n)})
    assert (429, 1.0) in [answer[:2] for answer in seen]
    assert all_stored(slow, "py", 5)
    with pytest.raises(module["Refused"], match="404"):
        client.post("/nowhere", {})
    client.patience = 0
    with pytest.raises(TimeoutError, match="put off"):
        for _ in range(9):
            client.post("/votes", {})


def test_the_python_client_says_that_it_does_not_know_when_there_is_no_answer() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        module = runpy.run_path(str(EXAMPLES / "client.py"))
        client = module["Client"](f"http://127.0.0.1:{server.getsockname()[1]}")
        client.connection.timeout = 0.2
        with pytest.raises(module["Unknown"]):
            client.post("/votes", {})


@pytest.mark.skipif(not shutil.which("node"), reason="no node here")
def test_the_javascript_client_waits_as_it_is_told_and_knows_what_is_refused_for_good(slow: Server) -> None:
    script = """
        import { post, Refused } from "%s";
        const statuses = [], real = fetch;
        globalThis.fetch = async (...all) => { const a = await real(...all); statuses.push(a.status); return a; };
        for (let n = 0; n < 5; n++) await post("%s/votes", { poll: "js", choice: String(n) });
        try { await post("%s/nowhere", {}, 60); } catch (error) { statuses.push(error instanceof Refused); }
        console.log(JSON.stringify(statuses));
    """
    url = f"http://localhost:{slow.port}"
    code = script % (EXAMPLES / "client.mjs", url, url)
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    statuses = json.loads(done.stdout)
    assert 429 in statuses
    assert statuses[-1] is True
    assert all_stored(slow, "js", 5)


def test_telegraf_s_configuration_leads_to_a_path_that_takes_what_it_sends(up: Server) -> None:
    (output,) = tomllib.loads((EXAMPLES / "telegraf.conf").read_text())["outputs"]["influxdb"]
    assert output["skip_database_creation"] is True
    assert urlsplit(output["urls"][0]).port == 8080
    line = b"cpu,cpu=cpu-total,host=a usage_idle=97.5 1767268800000000000\n"
    headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Encoding": output["content_encoding"]}
    assert post(up.port, "/write?db=telegraf", gzip.compress(line), headers)[0] == 204
    assert poll(lambda: ask(up.home, "SELECT value FROM metrics WHERE field = 'usage_idle'")) == [(97.5,)]


def test_owntracks_configuration_leads_to_a_position_of_that_device(up: Server) -> None:
    settings = json.loads((EXAMPLES / "owntracks.otrc").read_text())
    assert (settings["_type"], settings["mode"]) == ("configuration", 3)  # 3: HTTP
    target = urlsplit(settings["url"])
    location = {"_type": "location", "lat": 48.1, "lon": 11.6, "tst": 1767268800, "tid": settings["tid"]}
    status, _, text = post(up.port, f"{target.path}?{target.query}", json.dumps(location).encode())
    assert (status, text) == (200, b"[]")
    device = f"jane/{settings['deviceId']}"
    assert poll(lambda: ask(up.home, f"SELECT lat, lon FROM gps WHERE device = '{device}'")) == [(48.1, 11.6)]


def test_a_stream_of_one_s_own_is_ten_lines(up: Server) -> None:
    lines = [
        line
        for name in ("my_routes.py", "my_records.py")
        for line in (EXAMPLES / name).read_text().splitlines()
        if line and not line.startswith('"""')
    ]
    assert len(lines) <= 10
    assert post(up.port, "/orders", b'{"sku":"A-1","count":3}')[0] == 200
    assert poll(lambda: ask(up.home, "SELECT sku, count FROM orders")) == [("A-1", 3)]
    printed = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    assert all(line in printed for line in lines)  # the README shows these files
