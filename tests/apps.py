"""Small WSGI applications: one that says what it was given, and one that does all that an application should not do."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Start = Callable[..., Any]


class Told:
    """A lazy answer that shares its batch with all that were made before the first of them was iterated."""

    batch: list[Told] = []
    number = 0

    def __init__(self, said: dict[str, Any], start: Start) -> None:
        self.said, self.start, self.batch = said, start, Told.batch
        Told.batch.append(self)

    def __iter__(self) -> Iterator[bytes]:
        if self.batch is Told.batch:
            Told.batch, Told.number = [], Told.number + 1
            for told in self.batch:
                told.said |= {"batch": Told.number, "size": len(self.batch)}
        body = json.dumps(self.said).encode()
        self.start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        yield body


def told(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Answers what the server told it: the lane, the batch, the process, the target, and the body's length and CRC."""
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
    return Told(said, start)


class Closing:
    """An answer with a close() that must be called once, whatever happens."""

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
    """Does what its path says."""
    name = environ["PATH_INFO"].strip("/").replace("-", "_")
    return globals().get(f"odd_{name}", plain)(environ, start)


def plain(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Length", "5")])
    return [b"plain"]


def odd_eager(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Starts at once, and does not know its length."""
    start("202 Accepted", [("Content-Type", "text/plain")])
    return [b"ea", b"", b"ger"]


def odd_generator(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", [])
    yield b"gener"
    yield b""
    yield environ["wsgi.input"].read()


def odd_headers_of_its_own(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """New lists, the same text: nothing may be remembered by mistake."""
    body = environ["wsgi.input"].read()
    start("200 OK", [("Content-Length", str(len(body))), ("X-Body", body.decode())])
    return [body]


EVERYBODYS = [("Content-Type", "text/plain")]


def odd_headers_of_everybody(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Always the same list, which says nothing of the length."""
    start("200 OK", EVERYBODYS)
    return [environ["wsgi.input"].read()]


def odd_closing(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    return Closing(start)


def odd_closing_late(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    return Closing(start, fails=True)


def odd_closed(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """How many answers were closed."""
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
    """Never starts."""
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
    """A header that HTTP cannot carry."""
    start("200 OK", [("X-Price", "\u20ac 5")])
    return [b"euro"]


def odd_split(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """A header that would be two."""
    start("200 OK", [("X-Name", "a\r\nX-Other: b")])
    return [b"split"]


def odd_length_of_words(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    start("200 OK", [("Content-Length", "five")])
    return [b"words"]


def odd_long(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """More than it announces."""
    start("200 OK", [("Content-Length", "3")])
    return [b"longer"]


def odd_short(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Less than it announces."""
    start("200 OK", [("Content-Length", "9")])
    return [b"short"]


EMPTY: list[tuple[str, str]] = []


def odd_no_content(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """A body where none may be; sometimes."""
    start("204 No Content", EMPTY)
    return [environ["wsgi.input"].read()]


def odd_hop(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Headers that are the server's."""
    start("200 OK", [("Connection", "close"), ("Transfer-Encoding", "chunked"), ("Content-Length", "3")])
    return [b"hop"]


def odd_wedged(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Never comes back."""
    while True:
        time.sleep(1)
