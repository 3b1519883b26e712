"""The heads that clients send: of browsers and SDKs, each request with a trace parent and an id of its own.

Servers keep heads that they have parsed, so one head that all clients send measures the cache. In a file of requests,
no real head comes again before as many others as no cache of the gateway has (`CACHED_HEADS` in
sluice/fastlane/grammar.py).
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, Optional

POOL = 4096
MAX_ADDRESSES = 65_536
# The kinds of heads. Those of SAME, FRESH and KEYED differ in nothing but the values that are new in each request
ONE = "one head"  # the fields that the request needs
SAME = "one traced head"  # an SDK's, always the same
FRESH = "new traces"  # the same SDK's
KEYED = "new keys"  # the same SDK's, each with an Idempotency-Key of its own
REAL = "real heads"
# What senders of webhooks put there; those of the first two have an id and a signature of their own in each request
GITHUB, STRIPE, PLAIN = "GitHub's head", "Stripe's head", "a plain head"

Request = tuple[str, Optional[bytes]]  # target; body of a POST, None: a GET

CHROME = """Connection: keep-alive
{content}sec-ch-ua-platform: "{platform}"
User-Agent: Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{version}.0.0.0 Safari/537.36
sec-ch-ua: "Chromium";v="{version}", "Google Chrome";v="{version}", "Not?A_Brand";v="99"
traceparent: 00-{trace}-{span}-01
sec-ch-ua-mobile: ?0
x-request-id: {id}
Accept: */*
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: cors
Sec-Fetch-Dest: empty
Referer: http://localhost/{page}
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: {language}
Cookie: {cookie}
"""
FIREFOX = """User-Agent: Mozilla/5.0 ({system}; rv:{version}.0) Gecko/20100101 Firefox/{version}.0
Accept: */*
Accept-Language: {language}
Accept-Encoding: gzip, deflate, br, zstd
Referer: http://localhost/{page}
{content}traceparent: 00-{trace}-{span}-01
x-request-id: {id}
Connection: keep-alive
Cookie: {cookie}
Sec-Fetch-Dest: empty
Sec-Fetch-Mode: cors
Sec-Fetch-Site: same-origin
Priority: u=4
"""
SAFARI = """{content}Accept: */*
traceparent: 00-{trace}-{span}-00
x-request-id: {id}
Sec-Fetch-Site: same-origin
Accept-Language: {language}
Accept-Encoding: gzip, deflate
Sec-Fetch-Mode: cors
User-Agent: Mozilla/5.0 (iPhone; CPU iPhone OS 18_{minor} like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) \
Version/18.{minor} Mobile/15E148 Safari/604.1
Referer: http://localhost/{page}
Connection: keep-alive
Cookie: {cookie}
Sec-Fetch-Dest: empty
"""
OKHTTP = """{content}traceparent: 00-{trace}-{span}-01
X-Request-Id: {id}
Connection: Keep-Alive
Accept-Encoding: gzip
User-Agent: okhttp/4.{minor}.0
"""
REQUESTS = """User-Agent: python-requests/2.{minor}.3
Accept-Encoding: gzip, deflate
Accept: */*
Connection: keep-alive
{content}traceparent: 00-{trace}-{span}-01
tracestate: vendor={span}
X-Request-Id: {id}
"""
GO = """User-Agent: Go-http-client/1.1
{content}Traceparent: 00-{trace}-{span}-01
X-Request-Id: {id}
Accept-Encoding: gzip
"""
NODE = """connection: keep-alive
traceparent: 00-{trace}-{span}-01
x-request-id: {id}
baggage: session={cookie}
accept: application/json
{content}accept-language: *
sec-fetch-mode: cors
user-agent: node
accept-encoding: gzip, deflate
"""
JAVA = """Connection: keep-alive
{content}User-Agent: Java-http-client/21.0.{minor}
traceparent: 00-{trace}-{span}-01
X-Request-Id: {id}
"""
DART = """user-agent: Dart/3.{minor} (dart:io)
{content}accept-encoding: gzip
traceparent: 00-{trace}-{span}-01
x-request-id: {id}
"""
CURL = """User-Agent: curl/8.{minor}.1
Accept: */*
{content}traceparent: 00-{trace}-{span}-01
X-Request-Id: {id}
"""
WEBHOOKS = {
    GITHUB: """User-Agent: GitHub-Hookshot/{minor}a1b2c3
Accept: */*
X-GitHub-Delivery: {id}
X-GitHub-Event: push
X-GitHub-Hook-ID: 292430182
X-GitHub-Hook-Installation-Target-ID: 79929171
X-GitHub-Hook-Installation-Target-Type: repository
X-Hub-Signature: sha1={long}
X-Hub-Signature-256: sha256={longest}
{content}""",
    STRIPE: """User-Agent: Stripe/1.0 (+https://stripe.com/docs/webhooks)
Accept: */*; q=0.5, application/xml
Cache-Control: no-cache
Stripe-Signature: t=1766600000,v1={longest}
Accept-Encoding: gzip
{content}""",
    PLAIN: """User-Agent: curl/8.5.0
Accept: */*
{content}""",
}
CLIENTS = CHROME, OKHTTP, FIREFOX, REQUESTS, CHROME, GO, SAFARI, NODE, DART, JAVA, CURL
SYSTEMS = (
    ("Windows", "Windows NT 10.0; Win64; x64"), ("macOS", "Macintosh; Intel Mac OS X 10_15_7"),
    ("Linux", "X11; Linux x86_64"), ("Android", "Linux; Android 10; K"),
)  # fmt: skip
LANGUAGES = "en-US,en;q=0.9", "de-DE,de;q=0.9,en-US;q=0.8,en;q=0.7", "fr", "pt-BR,pt;q=0.8,en-US;q=0.5,en;q=0.3"


class Requests(NamedTuple):
    """A file of requests for users.c, and the number of addresses that its users have."""

    path: Path
    addresses: int


def kind(options: argparse.Namespace) -> str:
    """The kind of heads that these options choose."""
    return ONE if getattr(options, "one_head", False) else REAL


def requests(path: Path, some: Iterable[Request], kind: str, api_key: str = "") -> Requests:
    """Write these requests with heads of this kind, again and again until there are enough heads."""
    listed = list(some)
    fresh = kind in (FRESH, KEYED, REAL, GITHUB, STRIPE)
    count = len(listed) * (-(-POOL // len(listed)) if fresh else 1)
    with open(path, "wb") as file:
        file.writelines(
            request(target, body, kind, n, api_key) for n, (target, body) in zip(range(count), cycle(listed))
        )
    return Requests(path, MAX_ADDRESSES if kind == REAL else 1)


def request(target: str, body: bytes | None, kind: str, number: int, api_key: str = "") -> bytes:
    """One request. number: of its head."""
    content = "" if body is None else f"Content-Type: application/json\nContent-Length: {len(body)}\n"
    if api_key:
        content += f"X-API-Key: {api_key}\n"
    if kind == KEYED:
        content += f"Idempotency-Key: {hashlib.sha256(b'%d' % number).hexdigest()[:32]}\n"
    fields = content if kind == ONE else client(kind, number, content)
    method = "GET" if body is None else "POST"
    lines = f"{method} {target} HTTP/1.1\nHost: localhost\n{fields}\n"
    return lines.replace("\n", "\r\n").encode() + (body or b"")


def client(kind: str, number: int, content: str) -> str:
    """The fields of a client's request. What differs follows from the number. content: the fields of the body."""
    drawn = hashlib.sha512(b"%d" % (number if kind in (FRESH, REAL, GITHUB, STRIPE) else 0)).hexdigest()
    who = int(drawn[48:64], 16) if kind == REAL else 0
    platform, system = SYSTEMS[who % len(SYSTEMS)]
    usual = CLIENTS[number % len(CLIENTS)] if kind == REAL else OKHTTP
    return WEBHOOKS.get(kind, usual).format(
        content=content, trace=drawn[:32], span=drawn[32:48], platform=platform, system=system,
        id=f"{drawn[64:72]}-{drawn[72:76]}-4{drawn[76:79]}-a{drawn[79:82]}-{drawn[82:94]}",
        version=110 + who % 40, minor=who % 19, language=LANGUAGES[who // 64 % len(LANGUAGES)],
        page="map/" + f"{who:x}" * (who // 256 % 4), cookie="id=" + f"{who:016x}" * (1 + who // 1024 % 12),
        longest=drawn[:64], long=drawn[64:104],
    )  # fmt: skip
