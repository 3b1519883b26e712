"""Small WSGI applications: `echo` describes the request that it got, `odd` breaks one rule per path."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent

from sluice.fastlane.interface import Later, Options

Start = Callable[..., Any]


class Echo:
    """A lazy answer. Its batch is all answers that are made before the first of them is iterated."""

    batch: list[Echo] = []
    number = 0

    def __init__(self, said: dict[str, Any], start: Start) -> None:
        self.said, self.start, self.batch = said, start, Echo.batch
        Echo.batch.append(self)

    def __iter__(self) -> Iterator[bytes]:
        if self.batch is Echo.batch:
            Echo.batch, Echo.number = [], Echo.number + 1
            for other in self.batch:
                other.said |= {"batch": Echo.number, "size": len(self.batch)}
        body = json.dumps(self.said).encode()
        self.start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        yield body


def echo(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Answers with the lane, the batch, the process, the target, and the body's length and CRC."""
    body = environ["wsgi.input"].read()
    said = {
        "lane": "fast" if "fastlane.head" in environ else "slow",
        "pid": os.getpid(),
        "method": environ["REQUEST_METHOD"],
        "path": environ["PATH_INFO"],
        "query": environ["QUERY_STRING"],
        "length": len(body),
        "crc": zlib.crc32(body),
    }
    return Echo(said, start)


class Closing:
    """An answer whose close() must be called exactly once."""

    closed = 0

    def __init__(self, start: Start, fails: bool = False) -> None:
        self.start = start
        self.fails = fails

    def __iter__(self) -> Iterator[bytes]:
        if self.fails:
            raise RuntimeError("the answer that fails")
        self.start("200 OK", [("Content-Length", "5")])
        return iter((b"close",))

    def close(self) -> None:
        Closing.closed += 1


def odd(environ: dict[str, Any], start: Start) -> Iterable[Any]:
    """Calls the function that its path names."""
    name = environ["PATH_INFO"].strip("/").replace("-", "_")
    return globals().get(f"odd_{name}", plain)(environ, start)


def plain(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Length", "5")])
    return [b"plain"]


def odd_ignores(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Ignores that its body is malformed."""
    with contextlib.suppress(Exception):
        environ["wsgi.input"].read()
    return plain(environ, start)


def odd_eager(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Starts at once, without a Content-Length."""
    start("202 Accepted", [("Content-Type", "text/plain")])
    return [b"ea", b"", b"ger"]


class odd_large:
    """A megabyte of its own, made when the answer is iterated."""

    heavy = True

    def __init__(self, environ: dict[str, Any], start: Start) -> None:
        self.start = start

    def __iter__(self) -> Iterator[bytes]:
        self.start("200 OK", [])
        yield bytes(1 << 20)


def odd_generator(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    return generated(environ["wsgi.input"].read(), start)


def generated(body: bytes, start: Start) -> Iterator[bytes]:
    """Starts when it is iterated; then environ is no longer that of its request."""
    start("200 OK", [])
    yield b"gener"
    yield b""
    yield body


def odd_own_headers(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """A new headers list with each answer: the cache must not confuse them."""
    body = environ["wsgi.input"].read()
    start("200 OK", [("Content-Length", str(len(body))), ("X-Body", body.decode())])
    return [body]


def odd_collections(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Answers with how often this process looks for cycles, and among how many objects it does not."""
    said = f"{gc.get_threshold()[0]} {gc.get_freeze_count()}".encode()
    start("200 OK", [("Content-Length", str(len(said)))])
    return [said]


SHARED = [("Content-Type", "text/plain")]


def odd_shared_headers(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """The same headers list with each answer, without a Content-Length."""
    start("200 OK", SHARED)
    return [environ["wsgi.input"].read()]


def odd_closing(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    return Closing(start)


def odd_closing_late(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    return Closing(start, fails=True)


def odd_closed(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """The number of closed answers."""
    body = str(Closing.closed).encode()
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def odd_raises(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    raise RuntimeError("the application that raises")


def odd_raises_late(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Length", "5")])
    yield b"abc"
    raise RuntimeError("the answer that breaks off")


def odd_silent(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Never calls start_response."""
    return [b"silent"]


def odd_nothing(environ: dict[str, Any], start: Start) -> Any:
    return None


def odd_text(environ: dict[str, Any], start: Start) -> Iterable[Any]:
    start("200 OK", [("Content-Length", "4")])
    return ["text"]


def odd_no_status(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start(None, [])
    return [b""]


def odd_no_headers(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", None)
    return [b""]


def odd_euro(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """A header that Latin-1 cannot encode."""
    start("200 OK", [("X-Price", "\u20ac 5")])
    return [b"euro"]


def odd_split(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """A header with a line end."""
    start("200 OK", [("X-Name", "a\r\nX-Other: b")])
    return [b"split"]


def odd_malformed_length(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Length", "five")])
    return [b"words"]


def odd_long(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """A body longer than its Content-Length."""
    start("200 OK", [("Content-Length", "3")])
    return [b"longer"]


def odd_short(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """A body shorter than its Content-Length."""
    start("200 OK", [("Content-Length", "9")])
    return [b"short"]


EMPTY: list[tuple[str, str]] = []


def odd_no_content(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """204, with the request's body as its body."""
    start("204 No Content", EMPTY)
    return [environ["wsgi.input"].read()]


def odd_hop(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Hop-by-hop headers, which only the server may set."""
    start("200 OK", [("Connection", "close"), ("Transfer-Encoding", "chunked"), ("Content-Length", "3")])
    return [b"hop"]


class Waiting:
    """An answer that is not ready before a POST to /release; the body has the number of times that it was iterated."""

    released = False
    waits = True

    def __init__(self, environ: dict[str, Any], start: Start) -> None:
        self.start, self.tries, self.head = start, 0, environ.get("fastlane.head")
        self.posted = environ["REQUEST_METHOD"] == "POST"  # then it is a commit to Kafka

    def __iter__(self) -> Iterator[bytes]:
        self.tries += 1
        if not Waiting.released and (self.head or self.posted):
            raise Later(self.head)
        while not Waiting.released:
            gevent.sleep(0.02)
        self.start("200 OK", [("Content-Length", "5")])
        return iter((b"later" if self.posted == (self.tries > 1) else b"wrong",))


def odd_waits(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    Waiting.released = Waiting.released and "fastlane.head" not in environ
    return Waiting(environ, start)


def postponed(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """For Kafka's lane: answers POSTs later, in both lanes."""
    return {"/waits": Waiting, "/release": odd_release, "/echo": echo}.get(environ["PATH_INFO"], plain)(environ, start)


def odd_release(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    Waiting.released = True
    return plain(environ, start)


def odd_wedged(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Never returns."""
    while True:
        time.sleep(1)


def failing_tick(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Its tick raises."""
    return plain(environ, start)


def tick() -> None:
    raise RuntimeError("the tick fails")


failing_tick.fastlane = Options(tick=tick)  # type: ignore[attr-defined]
