"""Bytes as clients send them, and the two parsers that read them: the fast lane's and gunicorn's own.

A request is made from a string of choices, one byte each. No choices make the plainest request, so Hypothesis shrinks a
failure towards it. `tests/fastlane/test_grammar.py` lets Hypothesis choose. It also runs this file as a program that
chooses at random, generated_requests.py EXAMPLES SEED: that is faster, and PyPy has no Hypothesis here.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gunicorn.config import Config  # noqa: E402
from gunicorn.http.parser import RequestParser  # noqa: E402
from gunicorn.http.wsgi import create  # noqa: E402

from sluice.fastlane.connection import DECLINED, Connection, Listener  # noqa: E402
from sluice.fastlane.loop import FastLane  # noqa: E402

T = TypeVar("T")


class Choices:
    """Choices read from bytes; after the last byte, each choice is its first option."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, below: int) -> int:
        """A number from 0 to below - 1."""
        self.at += 1
        return self.data[self.at - 1] % below if self.at <= len(self.data) else 0

    def seldom(self) -> bool:
        """True one time in eight."""
        return self.number(256) >= 224

    def of(self, what: Sequence[T]) -> T:
        """One of these."""
        return what[self.number(len(what))]

    def place(self, size: int) -> int:
        """An offset from 0 to `size`."""
        return (self.number(256) * 256 + self.number(256)) % (size + 1)


METHODS = (b"PUT", b"post", b"Post", b"POSTS", b"PO ST", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI", b"", b"P#ST")
TARGETS = (
    b"/gps",
    b"/write?db=x&precision=s",
    b"/a/b/c.d-e_f~g/",
    b"/",
    b"/traccar?id=1&lat=48.1&lon=-11.6",
    b"/x??a=b?c",
    b"/x?" + bytes(range(36, 127)) + b'!"',
    b"//x",
    b"/a//b",
    b"//host:80/p",
    b"/a%20b",
    b"/%2e%2e/x",
    b"/%zz",
    b"/a#b",
    b"/a?b#c",
    b"/../x",
    b"/a;b=c",
    b"/a\tb",
    b"/a\x00b",
    b"/\xff",
    b"/a?\xe9",
    b"*",
    b"",
    b"?a",
    b"x",
    b"http://host/p?q",
    b"http:///p",
    b"http://[::1/p",
    b"host:80",
    b"/a:b",
    b"/x?a= b",
    b"/x?a[0]=1&{}|\\^`",
    b"/" + b"a" * 300,
    b"/" + b"a" * 4100,
    b"/?" + b"a" * 8190,
)
VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/1.10",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"http/1.1",
    b"HTTP/1.1 ",
    b" HTTP/1.1",
    b"HTTP/1,1",
    b"HTTP/11",
    b"HTTP/1.\xb2",
    b"",
)
ENDS = (b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"\r\n\r\n", b" \r\n", b"\x00\r\n", b"\r\n ", b"\r\n\t")
PLAIN = (
    b"Host: localhost",
    b"Content-Type: application/json",
    b"User-Agent: curl/7.88.1",
    b"Accept: */*",
    b"X-Real-IP: 192.0.2.1",
    b"Connection: keep-alive",
    b"Connection: close",
    b"Host: example.org:8080",
    b"host:",
    b"x-limit-u:u\t ",
    b"X-Empty:",
    b"X-Latin: \xe9\xdf\xb2\xa0",
    b"X-Blank: \t a \t b \t ",
    b"CONTENT-TYPE:text/plain",
    b"connection: CLOSE",
    b"!#$%&'*+.^`|~: token",
    b"Host: [::1]:80",
    b"Host: :",
    b"Content-Encoding: gzip",
    b"X-Forwarded-Ssl: on",
    b"X-Forwarded-Proto: http",
    b"X-Long: " + b"y" * 500,
)
ODD = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding:\x0cchunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding\t: chunked",
    b" Transfer-Encoding: chunked",
    b"Transfer-Encoding:",
    b"Transfer_Encoding: chunked",
    b"transfer-encoding: CHUNKED",
    b"X: y\nTransfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"X: y\r\n Transfer-Encoding: chunked",
    b"TE: trailers",
    b"Trailer: X",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
    b"Connection: upgrade",
    b"Connection: keep-alive, close",
    b"Connection: Host",
    b"Connection:",
    b"Proxy-Connection: close",
    b"Content-Length: 0",
    b"Content-Length : 1",
    b"Content_Length: 1",
    b"Content-Length",
    b"Host: other",
    b": no name",
    b"no colon",
    b"sp ace: 1",
    b"under_score: 1",
    b"SCRIPT_NAME: /gps",
    b"Script-Name: /gps",
    b"PATH_INFO: /x",
    b"X\xdf: 1",
    b"X(y): 1",
    b"X: \x00",
    b"X: \x7f",
    b"X: a\x01b",
    b"X: y\r\n folded",
    b"X: y\r\n\tfolded",
    b"X-Forwarded-Proto: https",
    b"X-Forwarded-Proto: http",
    b"X-Forwarded-Protocol: ssl",
    b"Content-Type: a, b",
    b"Range: bytes=0-1",
    b"X: " + b"z" * 8200,
    b"",
)
LENGTHS = (
    b"Content-Length: %d",
    b"content-length:%d",
    b"Content-Length: \t%d\t ",
    b"Content-Length: +%d",
    b"Content-Length: -%d",
    b"Content-Length: 0%d",
    b"Content-Length: 0x%x",
    b"Content-Length: %d, %d",
    b"Content-Length: %d,%d",
    b"Content-Length: %d_0",
    b"Content-Length: %d.0",
    b"Content-Length: %d 1",
    b"Content-Length: \x0b%d",
    b"Content-Length: %d\x00",
    b"Content-Length: \xb2",
    b"Content-Length: \xd9\xa3",
    b"Content-Length:",
    b"Content-Length: %d\r\nContent-Length: %d",
    b"Content-Length: %d\r\nContent-Length: 1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: " + b"9" * 5000,
    b"Content-Length: 1048577",
    b"Content-Length: 4294967295",
    b"Content-Length : %d",
    b"Content-Length\t: %d",
    b"Content_Length: %d",
    b"Content-Length: %d\r\n 0",
    b"Content-Length: %d;x=y",
    b"Content-Length: '%d'",
    b"Content-Length: chunked",
    b"X-Length: %d",
)
BODIES = (
    b'{"poll":"cookies","choice":"oreo"}',
    b"",
    b"x",
    b"\r\n",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"3\r\nabc\r\n0\r\n\r\n",
    b'3;a="\r\n"\r\nabc\r\n0\r\nX: y\r\n\r\n',
    b"POST /gps HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
    b"GET /admin HTTP/1.1\r\nX: ",
    b"a" * 300,
    bytes(range(256)),
)


def one(choices: Choices) -> bytes:
    """One request: plain unless chosen otherwise."""
    method = choices.of(METHODS) if choices.seldom() else (b"POST", b"POST", b"POST", b"GET")[choices.number(4)]
    target = choices.of(TARGETS) if choices.seldom() else TARGETS[choices.number(7)]
    version = choices.of(VERSIONS) if choices.seldom() else b"HTTP/1.1"
    body = BODIES[choices.number(len(BODIES))] if method != b"GET" or choices.seldom() else b""
    fields = [PLAIN[0]]
    for _ in range(choices.number(5)):
        field = choices.of(ODD) if choices.seldom() else choices.of(PLAIN)
        # a field is repeated only if that is chosen
        name = field.split(b":")[0].lower()
        if choices.seldom() or all(name != other.split(b":")[0].lower() for other in fields):
            fields.append(field)
    length = choices.of(LENGTHS) if choices.seldom() else LENGTHS[choices.number(3)]
    if method == b"GET" and not choices.seldom():
        length = b"Accept-Language: en"
    size = len(body) + (choices.number(7) - 3 if choices.seldom() else 0)
    fields.insert(choices.number(len(fields) + 1), length % ((max(size, 0),) * length.count(b"%")))
    lines = [b" ".join((method, target, version)), *fields, b""]
    data = b""
    for line in lines:
        data += line + (choices.of(ENDS) if choices.number(256) >= 250 else b"\r\n")
    return data + body


def stream(choices: Choices) -> bytes:
    """The bytes of one connection: a few requests, sometimes damaged."""
    data = bytearray().join(one(choices) for _ in range(1 + choices.number(3)))
    for _ in range(choices.number(4) if choices.seldom() else 0):
        at = choices.place(len(data))
        kind = choices.number(6)
        if kind == 0:
            data[at : at + 1] = bytes([choices.number(256)])
        elif kind == 1:
            data[at:at] = choices.of((b" ", b"\t", b"\r", b"\n", b"\r\n", b"\x00", b":", b"_", b"\xff", b"0", b"/"))
        elif kind == 2:
            del data[at : at + 1 + choices.number(8)]
        elif kind == 3:
            data[at:at] = data[at : at + choices.number(40)]
        elif kind == 4:
            del data[at:]
        else:
            data[:0] = choices.of((b"\r\n", b"\n", b" ", b"\x00", b"\xef\xbb\xbf", b"\r\n\r\n"))
    return bytes(data)


def pieces(choices: Choices, data: bytes) -> list[bytes]:
    """The data in the pieces in which it arrives: usually one."""
    cuts = sorted(choices.place(len(data)) for _ in range(choices.number(3) if choices.seldom() else 0))
    return [part for part in (data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])) if part]


class Recorder(FastLane):
    """A fast lane without sockets. Equal heads share their environ, as in gateway and reader; each call is recorded."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        self.log: Any = None
        self.max_requests = sys.maxsize
        self.environs: list[dict[str, Any]] = []

        def app(environ: dict[str, Any], start: Any) -> tuple[bytes]:
            self.environs.append(environ.copy())
            return (b"",)

        self.wsgi = app
        self.prepare()
        self.poller = SimpleNamespace(modify=lambda fd, events: None)


class Place:
    """The circumstances of a request: settings, client address, listener."""

    def __init__(self, peer: Any, server: Any, **settings: Any) -> None:
        self.peer = peer
        self.cfg = Config()
        for name, value in settings.items():
            self.cfg.set(name, value)
        self.lane = Recorder(self.cfg)
        self.listener = Listener(None, server, {})

    def fast(self, parts: list[bytes]) -> tuple[list[dict[str, Any]], bool, bytes]:
        """The fast lane's result for the parts: the environs, whether it closes, and the bytes that it leaves."""
        lane = self.lane
        lane.admitted = 0  # the previous connection may have left some
        conn = Connection(SimpleNamespace(fileno=lambda: 3), self.peer, self.listener)  # type: ignore[arg-type]
        environs = lane.environs = []
        for at, part in enumerate(parts):
            lane.take(conn, part)
            pending, lane.pending, lane.declined = lane.pending, [], []
            if pending and not pending[-1][3]:
                return environs, True, b""
            if conn.state == DECLINED:
                return environs, False, b"".join(conn.pieces + parts[at + 1 :])
        return environs, False, b"".join(conn.pieces)

    def check(self, parts: list[bytes]) -> int:
        """Compare the fast lane with gunicorn's parser; returns the number of requests that the lane parsed.

        Raises: AssertionError where they differ; gunicorn's exception for a request that only the fast lane took.
        """
        environs, closes, left = self.fast(parts)
        parser = RequestParser(self.cfg, iter([b"".join(parts)]), self.peer)
        sock = SimpleNamespace(send=lambda data: None)
        request = None
        for environ in environs:
            assert request is None or not request.should_close(), "the fast lane stays, gunicorn closes"
            request = next(parser)
            _, expected = create(request, sock, self.peer, self.listener.name, self.cfg)
            given, body = environ["wsgi.input"].read(), request.body.read()
            assert given == body, f"body {given!r} instead of {body!r}"
            for key in "wsgi.input", "wsgi.errors", "gunicorn.socket", "wsgi.early_hints", "fastlane.head":
                environ.pop(key, None), expected.pop(key, None)
            assert environ == expected
        if request is not None and not closes:
            rest = parser.unreader.read()
            assert left == rest, f"next request begins at {left!r} instead of {rest!r}"
        if closes:
            assert request is not None and request.should_close(), "the fast lane closes, gunicorn stays"
        return len(environs)


def places() -> list[Place]:
    """Where requests arrive. The first is Sluice's own."""
    unix, tcp, stranger = "/run/gateway-0.sock", ("127.0.0.1", 8000), ("192.0.2.9", 50000)
    own: dict[str, Any] = {"limit_request_line": 8190, "limit_request_fields": 32768, "secure_scheme_headers": {}}
    return [
        Place("", unix, **own),
        Place("", unix),
        Place(("127.0.0.1", 40000), tcp),
        Place(stranger, tcp),
        Place(stranger, tcp, forwarded_allow_ips="*"),
        Place(("::1", 40000, 0, 0), ("::1", 8000, 0, 0), **own),
        Place("/run/client.sock", "/run/with:colon.sock", **own),
        Place(b"\0client", unix, **own),
        Place("", unix, limit_request_line=60, limit_request_fields=3, limit_request_field_size=40),
        Place("", unix, limit_request_fields=3),
        Place("", unix, limit_request_line=0, limit_request_fields=0, limit_request_field_size=0),
        Place("", unix, strip_header_spaces=True, permit_obsolete_folding=True, header_map="dangerous"),
        Place("", unix, casefold_http_method=True, permit_unconventional_http_method=True, header_map="refuse"),
        Place("", unix, forwarder_headers="*", permit_unconventional_http_version=True, workers=3),
    ]


class Everywhere:
    """Checks the property, for choices or for bytes; counts the requests that the fast lane parsed."""

    def __init__(self) -> None:
        self.places = places()
        self.seen: Counter[str] = Counter()

    def agree(self, data: bytes) -> None:
        """Check the property for one string of choices."""
        choices = Choices(data)
        wire = stream(choices)
        parts = pieces(choices, wire)
        place = choices.of(self.places) if choices.number(2) else self.places[0]
        taken = place.check(parts)
        self.seen["examples"] += 1
        self.seen["taken"] += bool(taken)
        self.seen["requests"] += taken

    def agree_on(self, wire: bytes) -> int:
        """Check the property for these bytes, at every place; returns the number of requests taken at the first one."""
        return [place.check([wire]) for place in self.places][0]


def main(examples: int, seed: int) -> None:
    """Check random examples, and print their counts."""
    everywhere, rng = Everywhere(), random.Random(seed)
    for number in range(examples):
        choices = bytes(rng.choices(range(256), k=rng.randrange(64)))
        try:
            everywhere.agree(choices)
        except BaseException:
            wire = stream(Choices(choices))
            print(f"seed {seed}, example {number}: choices {choices!r} make {wire!r}", file=sys.stderr)
            raise
    assert everywhere.seen["taken"] > examples // 4, everywhere.seen
    print(dict(everywhere.seen))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
