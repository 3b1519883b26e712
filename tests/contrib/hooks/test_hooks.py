"""Webhooks from nginx to the database: what needs a key, a signature or a size, and what is stored of it."""

from __future__ import annotations

import base64
import hmac
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from proving.harness import ROOT, Server, ask, environment, get, installation, poll, post, request, short_tmp
from support.access import KEY, private
from support.folders import needs

pytestmark = [pytest.mark.contract, needs("access")]
SECRET = "It's-a-secret"
LINES = f"github scheme=github secret={SECRET} size=25m answer=204\nbox scheme=token secret=t0ken parameter=key\n"
BODY = b'{"action":"opened","sender":{"login":"x"}}'
KEYED = {"X-API-Key": KEY}


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    with short_tmp() as tmp:
        private(tmp / "keys", f"{KEY} name=ours streams=hooks,/votes\n")
        private(tmp / "hooks", LINES)
        files = {"INGEST_API_KEYS": tmp / "keys", "INGEST_HOOKS": tmp / "hooks"}
        with installation(tmp / "var", files, ready=False) as server:
            ready = f"GET /readyz HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n".encode()
            poll(lambda: request(server.port, ready)[0] == 200, 300)
            yield server


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, "sha256").hexdigest()}


def rows(up: Server, hook: str, count: int) -> list[tuple[Any, ...]]:
    sql = "SELECT path, event, id, query, head, body, raw, sender FROM hooks WHERE hook = ? ORDER BY seq"
    return poll(lambda: found if len(found := ask(up.home, sql, hook)) == count else [])


def send(up: Server, method: str, target: str, body: bytes = b"") -> int:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    return request(up.port, head.encode() + body)[0]


def test_a_signature_is_the_credential_of_its_hook_and_of_no_other(up: Server) -> None:
    fields = {"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d-1"}
    assert post(up.port, "/hooks/github", BODY, signed(BODY) | fields)[0] == 204
    assert post(up.port, "/hooks/github", BODY, signed(BODY) | fields)[0] == 204  # again
    large = b'"' + b"x" * (20 << 20) + b'"'
    assert post(up.port, "/hooks/github/large", large, signed(large))[0] == 204
    status, headers, body = post(up.port, "/hooks/github", BODY, signed(BODY, "other") | KEYED)
    assert (status, headers["www-authenticate"], json.loads(body)["detail"]) == (
        401, "Webhook", "Signature: wrong; the request had no effect."
    )  # fmt: skip
    assert post(up.port, "/hooks/github", BODY, KEYED)[0] == 401
    assert get(up.port, "/hooks/box?v=1&key=t0ken")[0] == 200
    assert get(up.port, "/hooks/box?v=1&key=t1ken")[0] == 401
    assert [post(up.port, path, BODY, signed(BODY))[0] for path in ("/hooks/other", "/votes")] == [401, 401]
    first, second = rows(up, "github", 2)
    assert first[:4] == ("", "issues", "d-1", None) and first[5:] == (BODY.decode(), None, "")
    assert second[0] == "large" and len(second[5]) == len(large)
    assert [row[3] for row in rows(up, "box", 1)] == ["v=1"]


def test_a_hook_without_a_line_needs_a_key_and_its_row_has_none(up: Server) -> None:
    assert post(up.port, "/hooks/meter/a", BODY, KEYED | {"Cookie": "a=s3cret", "X-Meter-Event": "tick"})[0] == 200
    assert send(up, "PUT", "/hooks/meter/b/", b"\xff\0") == send(up, "GET", "/hooks/meter?kwh=1&token=s3cret") == 200
    assert get(up.port, f"/hooks/meter?kwh=2&api_key={KEY}")[0] == get(up.port, f"/hooks/meter?u=x&p={KEY}")[0] == 200
    login = base64.b64encode(f"me:{KEY}".encode()).decode()
    assert post(up.port, "/hooks/meter", BODY, {"Authorization": f"Basic {login}"})[0] == 200
    assert post(up.port, f"/votes?api_key={KEY}&x=1", b'{"poll":"a","choice":"b"}')[0] == 200
    found = rows(up, "meter", 6)
    assert [row[0] for row in found] == ["a", "b", "", "", "", ""]
    assert [row[3] for row in found] == [None, None, "kwh=1", "kwh=2", "u=x", None]
    assert (json.loads(found[0][4])["x-meter-event"], found[0][1], found[1][5:7]) == ("tick", "tick", (None, "/wA="))
    assert {row[7] for row in found} == {"ours"}
    poll(lambda: ask(up.home, "SELECT 1 FROM votes"))
    kept = b"".join(file.read_bytes() for file in up.home.rglob("*") if file.is_file() and file.parent.name != "etc")
    assert not re.findall(rb"s3cret|t0ken|%b|%b" % (KEY.encode(), login.encode()), kept)


def test_a_probe_or_a_challenge_is_answered_and_has_no_row(up: Server) -> None:
    assert send(up, "OPTIONS", "/hooks/any") == send(up, "HEAD", "/hooks/any") == send(up, "GET", "/hooks/any") == 200
    asked = f"/hooks/any?hub.mode=subscribe&hub.challenge=12345&api_key={KEY}"
    assert get(up.port, asked)[::2] == (200, b"12345")
    assert get(up.port, "/hooks/any?hub.mode=subscribe&hub.challenge=1")[0] == 401
    assert send(up, "DELETE", "/hooks/any") == 405 and send(up, "POST", "/hooks", BODY) == 403
    assert send(up, "GET", "/.well-known/fastly/logging/challenge") == 403  # no line names Fastly
    assert ask(up.home, "SELECT * FROM hooks WHERE hook = 'any'") == []


@pytest.mark.nightly
def test_a_reload_reads_the_file_again_and_an_error_in_it_changes_nothing(up: Server) -> None:
    file = up.home.parent / "hooks"
    verb = [str(ROOT / "bin/sluice"), "reload", "--nginx", "--notice", "0"]
    env = environment(up.home, {"INGEST_HOOKS": file})
    private(file, LINES + "late scheme=github\n")
    failed = subprocess.run(verb, env=env, capture_output=True, text=True, timeout=60)
    assert (failed.returncode, "line 3 of" in failed.stderr) == (2, True), failed.stderr
    private(file, LINES + f"late scheme=github secret={SECRET}\n* refused\n")
    subprocess.run(verb, env=env, check=True, capture_output=True, timeout=120)
    assert post(up.port, "/hooks/late", BODY, signed(BODY))[0] == 200
    assert post(up.port, "/hooks/meter", BODY, KEYED)[0] == 404
