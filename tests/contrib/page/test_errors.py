"""The last rejected requests, nginx's own and the gateway's: `bin/sluice errors` and the file of the status page."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from proving import harness
from proving.harness import connect, get, installation, request, stopped
from sluice import settings
from sluice.contrib.page.notifier import MOST_TOLD, PageNotifier, rejected_socket
from sluice.contrib.page.rejections import KEPT, Rejections, rejection_reason
from sluice.http.replies import NOT_FOUND
from support import access, operator_verbs

poll = harness.poll
KEY = f"X-API-Key: {access.KEY}\r\n"
EVIL = "/\x1b[31m\u202e\x00\n" + "x" * 5000


def listed(home: Path, *words: str) -> list[dict[str, Any]]:
    status, out, _ = operator_verbs.sluice(home, "errors", "--json", *words)
    return json.loads(out) if status == 0 else []


def kinds(home: Path) -> set[tuple[int, str, str, str]]:
    return {(row["status"], row["path"], row["reason"], row["sender"]) for row in listed(home)}


def send(port: int, head: str, body: bytes = b"") -> int:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return request(port, f"{head}\r\nHost: localhost\r\n{length}\r\n".encode() + body)[0]


@pytest.mark.nightly
def test_each_rejected_request_is_listed_with_its_reason(tmp: Path) -> None:
    env = {"INGEST_API_KEYS": access.keys(tmp), "INGEST_CLIENT_CONNECTIONS": 3, "INGEST_MAX_BODY": 1000}
    with installation(tmp / "home", env, ready=False) as up:
        home = tmp / "home"
        poll(rejected_socket(home).exists)  # what nginx tells earlier, nobody hears
        ok = f"POST /votes?token=s3cret HTTP/1.1\r\n{KEY}"
        poll(lambda: send(up.port, ok + "X: y", b'{"poll":"p","choice":"c"}') == 200)
        assert send(up.port, "POST /votes?token=s3cret HTTP/1.1", b"s3cret") == 401
        assert send(up.port, "POST /votes HTTP/1.1\r\nX-API-Key: s3cret", b"s3cret") == 401
        assert send(up.port, f"POST /votes HTTP/1.1\r\n{KEY}Sec-Fetch-Site: cross-site", b"x") == 403
        assert send(up.port, f"POST /votes HTTP/1.1\r\n{KEY}X: y", b"x" * 1001) == 413
        assert send(up.port, f"POST /votes HTTP/1.1\r\n{KEY}X: y") == 400
        assert send(up.port, f'POST /votes HTTP/1.1\r\n{KEY}Idempotency-Key: "', b"x") == 400
        assert send(up.port, f"POST /nowhere HTTP/1.1\r\n{KEY}X: y", b"x") == 404
        assert send(up.port, f"GET /owntracks HTTP/1.1\r\n{KEY}X: y") == 405
        assert request(up.port, b"nonsense\r\n\r\n")[0] == 400
        # no such request passes nginx, as far as is known; the gateway's own parser rejects it
        for fields, status in ("Content-Length: s3cret", 400), ("X: " + "s3cret" * 20_000, 431):
            head = f"POST /votes?token=s3cret HTTP/1.1\r\nHost: localhost\r\nX-Real-IP: 10.1.2.3\r\n{fields}\r\n\r\n"
            assert (
                request(settings.load_settings({"INGEST_HOME": str(home)}).gateway_sockets[0], head.encode())[0]
                == status
            )
        with contextlib.ExitStack() as held:

            def refused() -> bool:
                # another one each time: nginx may still count a request that has its answer, and then rejects this one
                line = held.enter_context(connect(up.port))
                line.sendall(f"{ok}Host: localhost\r\nContent-Length: 9\r\n\r\n".encode())
                return send(up.port, ok + "X: y", b"x") == 429

            poll(refused)
        with stopped(*up.pids("redis")):
            poll(lambda: send(up.port, ok + "X: y", b"x") == 503)
        wanted = {
            (401, "/votes", "no API key or password", "127.0.0.1"),
            (401, "/votes", "wrong API key or password", "127.0.0.1"),
            (403, "/votes", "a page of another site (INGEST_CORS)", "127.0.0.1"),
            (413, "/votes", "the body is larger than INGEST_MAX_BODY", "127.0.0.1"),
            (429, "/votes", "INGEST_CLIENT_CONNECTIONS", "127.0.0.1"),
            (400, "", "malformed HTTP", "127.0.0.1"),
            (400, "/votes", "The request has neither a body nor a query string", ""),
            (404, "/nowhere", "There is no stream at this path", "127.0.0.1"),
            (405, "/owntracks", "This path accepts only POST", "127.0.0.1"),
            (400, "/votes", "The request is not well-formed HTTP", "10.1.2.3"),
            (431, "/votes", "The header fields are too long", "10.1.2.3"),
            (503, "/votes", "Redis does not answer", ""),
        }
        poll(lambda: wanted <= kinds(home))
        held_file = home / "run/errors.json"
        assert stat.S_IMODE((home / "run").stat().st_mode) == 0o700
        assert "s3cret" not in held_file.read_text()
        assert access.KEY not in held_file.read_text()
        assert get(up.port, "/status/errors.json")[0] == 200
        assert listed(home, "--sender", "10.0.0") == []
        status, out, _ = operator_verbs.sluice(home, "errors", "--limit", "2")
        assert (status, len(out.splitlines())) == (0, 3)
        # what was kept survives the program
        os.kill(up.pids("page")[0], signal.SIGKILL)
        send(up.port, "POST /again HTTP/1.1", b"x")
        poll(lambda: send(up.port, "POST /again HTTP/1.1", b"x") == 401 and "/again" in held_file.read_text())
        assert wanted <= kinds(home)


def test_a_list_is_bounded_and_has_no_control_characters(tmp: Path) -> None:
    s = settings.load_settings({"INGEST_HOME": str(tmp)})
    rejected_socket(s.home).parent.mkdir()
    kept = Rejections(s, 1.0)
    evil = NOT_FOUND, "", {"PATH_INFO": EVIL, "HTTP_X_REAL_IP": "192.0.2.1\x1b"}
    teller = PageNotifier(s)
    for _ in range(3 * MOST_TOLD):
        teller.tell(*evil)
    for n in range(3 * KEPT):
        told = {"status": 429, "path": f"/{n}", "from": "192.0.2.1", "connections": "PASSED"}
        kept.add(b"<190>Nov 26 12:00:00 nginx: " + json.dumps(told).encode())
    for n in range(3 * KEPT):  # reasons that nobody makes
        kept.add(json.dumps({"status": 400, "path": "/", "from": "::1", "reason": f"{n}"}).encode())

    def has_come() -> bool:
        kept.write()
        return any(row["status"] == 404 for row in listed(tmp))

    poll(has_come)
    found = listed(tmp)
    assert [row["path"] for row in found if row["status"] == 429] == [
        f"/{n}" for n in reversed(range(2 * KEPT, 3 * KEPT))
    ]
    assert len(found) <= 4 * KEPT
    texts = [row[name] for row in found for name in ("path", "reason", "sender")]
    assert all(text.isprintable() and len(text) <= 300 for text in texts)
    assert any("\\x1b[31m\\u202e\\x00\\n" in text for text in texts)
    out = operator_verbs.sluice(tmp, "errors", "--limit", "1000")[1]
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "https, why", [("", "HTTP on a port of HTTPS"), ("on", "malformed HTTP"), (None, "malformed HTTP")]
)
def test_http_on_the_port_of_https_has_a_reason_of_its_own(https: str | None, why: str) -> None:
    assert (
        rejection_reason({"status": 400, "path": "", "from": "::1"} | ({} if https is None else {"https": https}))
        == why
    )


def test_a_rejection_waits_for_nobody(tmp: Path) -> None:
    s = settings.load_settings({"INGEST_HOME": str(tmp)})
    PageNotifier(s).tell(NOT_FOUND, "", {"PATH_INFO": "/"})
    assert operator_verbs.sluice(tmp, "errors")[0] == 1


@pytest.mark.parametrize("content", [b"", b'[{"time":1,', b"\xff"])
def test_a_list_that_a_power_failure_has_cut_off_is_none(content: bytes, tmp: Path) -> None:
    (tmp / "run").mkdir()
    (tmp / "run/errors.json").write_bytes(content)
    status, out, error = operator_verbs.sluice(tmp, "errors")
    assert (status, out, len(error.splitlines())) == (1, "", 1)
