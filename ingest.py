"""The WSGI callable between nginx and the list: check, append, answer. It runs on any WSGI server."""

from __future__ import annotations

import atexit
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from sluice import settings
from sluice.spool.inlet import Batch, Inlet, Refusal
from sluice.streams.routes import NO_CONTENT, OK, ROUTES, Reply, Route, reply

SETTINGS = settings.load_or_exit()
if SETTINGS.routes:
    ROUTES.update(settings.extension("INGEST_ROUTES", SETTINGS.routes).ROUTES)
INLET = Inlet(str(SETTINGS.redis), replicas=SETTINGS.replicas, max_bytes=SETTINGS.max_backlog_bytes)
MAX_BODY = SETTINGS.max_body
append, commit, counts = INLET.append, INLET.commit, INLET.counts
# While it is there, nginx is about to hang up on idle clients, and good answers are the last on their connection
CLOSING = SETTINGS.home / "run/closing"


def parting(given: Reply) -> Reply:
    """The same answer given by nginx, which adds `Connection: close`: only nginx can, and only if told to here.

    Status, type and a line of text are what it is told (@sluice_200 … in nginx/sluice.conf). An answer that has more to
    it stays as it is, and so does the connection.
    """
    status, headers, chunks = given
    code, text = status[:3], b"".join(chunks).decode("latin-1")
    names = [name for name, _ in headers if name != "Content-Length"]
    said = code in ("200", "201", "202", "204") and names == ([] if code == "204" else ["Content-Type"])
    if not said or not re.fullmatch("(?:[!-~](?:[ -~]{0,999}[!-~])?)?", text):
        return given
    more = ("X-Accel-Redirect", f"@sluice_{code}"), ("Sluice-Body", text)
    return reply(status, b"", dict(headers).get("Content-Type", ""), *more)


class Endpoint:
    """A route at its path, with the count of its good answers. An attribute's own: counting takes 20 ns so."""

    __slots__ = ("answered", "keep_head", "path", "replies", "reply", "stream")

    def __init__(self, path: str, route: Route) -> None:
        self.path = path
        self.stream, self.reply, self.keep_head = route
        self.replies = self.reply, parting(self.reply)
        self.answered = counts.counter(f"answered {self.reply.status[:3]} {path}")


atexit.register(INLET.report, last=True)
ENDPOINTS = {path: Endpoint(path, route) for path, route in ROUTES.items()}


def problem(status: str, detail: str, *headers: tuple[str, str]) -> Reply:
    """An error as RFC 9457 has it."""
    code, _, title = status.partition(" ")
    body = {"type": "about:blank", "title": title, "status": int(code), "detail": detail}
    return reply(status, json.dumps(body).encode(), "application/problem+json", *headers)


NOT_FOUND = problem("404 Not Found", "No stream is fed from this path.")
POST_ONLY = problem("405 Method Not Allowed", "Data is sent here with POST.", ("Allow", "POST"))
GET_ONLY = problem("405 Method Not Allowed", "This path only answers GET.", ("Allow", "GET, HEAD"))
NO_LENGTH = problem("400 Bad Request", "The length of the body is not given in a form that can be trusted.")
CUT_OFF = problem("400 Bad Request", "The body is shorter than announced; nothing was queued.")
EMPTY = problem("400 Bad Request", "There is neither a body nor a query string; nothing was queued.")
TOO_LARGE = problem("413 Content Too Large", f"A body may have {MAX_BODY} bytes at most.")


@lru_cache(maxsize=256)
def unavailable(refused: Refusal) -> Reply:
    """The answer to every request of a stream that a batch could not put on the list."""
    return problem("503 Service Unavailable", refused.detail, ("Retry-After", str(refused.retry_after)))


def readyz() -> Reply:
    """Whether Redis answers and takes writes."""
    why = INLET.ready()
    return unavailable(Refusal(why, 1)) if why else OK


PROBES: dict[str, Callable[[], Reply]] = {"/healthz": lambda: OK, "/readyz": readyz, "/ping": lambda: NO_CONTENT}


class Answer:
    """The answer of an appended body. Iterating it commits the batch, unless somebody has, and then starts the
    response: PEP 3333 lets start_response wait for the first chunk. A server that keeps answers back commits many
    bodies at once.
    """

    __slots__ = ("batch", "route", "start")

    def __init__(self, batch: Batch, route: Endpoint, start: Callable[..., Any]) -> None:
        self.batch = batch
        self.route = route
        self.start = start

    def __iter__(self) -> Iterator[bytes]:
        batch, route = self.batch, self.route
        if not batch.done:
            commit(batch)
        if batch.refused is not None and route.stream in batch.refused:
            return iter(refuse(unavailable(batch.refused[route.stream]), route.path, self.start))
        given = route.reply
        route.answered.n += 1
        self.start(given.status, given.headers)
        return iter(given.chunks)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """PEP 3333: put the body on its stream's list and say "got it" once it is there."""
    route = ENDPOINTS.get(environ["PATH_INFO"])
    if route is None:
        return probe(environ, start_response)
    if environ["REQUEST_METHOD"] != "POST":
        return answer(POST_ONLY, route.path, environ, start_response)
    length = environ.get("CONTENT_LENGTH") or "0"
    if "HTTP_TRANSFER_ENCODING" in environ or not length.isdecimal():
        if not environ.get("wsgi.input_terminated") or "CONTENT_LENGTH" in environ:
            return refuse(NO_LENGTH, route.path, start_response)
        body = environ["wsgi.input"].read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            return refuse(TOO_LARGE, route.path, start_response)
    elif length == "0":
        body = b""
    else:
        size = int(length) if len(length) < 20 else MAX_BODY + 1  # int() raises for thousands of digits
        if size > MAX_BODY:
            return refuse(TOO_LARGE, route.path, start_response)
        body = environ["wsgi.input"].read(size)
        if len(body) != size:
            return refuse(CUT_OFF, route.path, start_response)
    if not body:
        body = environ.get("QUERY_STRING", "").encode("latin-1")
        if not body:
            return refuse(EMPTY, route.path, start_response)
        if route.keep_head:
            body = b""
    if route.keep_head:
        body = head(environ) + body
    return Answer(append(route.stream, body), route, start_response)


def refuse(given: Reply, path: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer at once; nothing was appended. path: of a route or a health check; others are counted together."""
    counts.counter(f"answered {given.status[:3]} {path}").n += 1
    start_response(given.status, given.headers)
    return given.chunks


def tick() -> None:
    """Once a second: tell what was counted, and see whether answers are to be the last on their connection."""
    INLET.report()
    closing = os.path.exists(CLOSING)
    for endpoint in ENDPOINTS.values():
        endpoint.reply = endpoint.replies[closing]


app.max_body = MAX_BODY  # type: ignore[attr-defined]  # the fast lane asks before it reads a longer one
app.tick = tick  # type: ignore[attr-defined]  # and calls this once a second


def probe(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """What is asked with GET: the health checks, and nothing else."""
    path = environ["PATH_INFO"]
    look = PROBES.get(path)
    if look is None:
        return answer(NOT_FOUND, "", environ, start_response)
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return answer(GET_ONLY, path, environ, start_response)
    return answer(look(), path, environ, start_response)


def answer(given: Reply, path: str, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer at once, whatever the method. Not every server leaves the body of an answer to HEAD away."""
    chunks = refuse(given, path, start_response)
    return chunks if environ["REQUEST_METHOD"] != "HEAD" else ()


def head(environ: dict[str, Any]) -> bytes:
    """The request's head: as received where the server has it (`fastlane.head`), else put together from environ."""
    kept: bytes | None = environ.get("fastlane.head")
    if kept is not None:
        return kept
    target = environ.get("RAW_URI")
    if target is None:
        query = environ.get("QUERY_STRING")
        target = environ["PATH_INFO"] + ("?" + query if query else "")
    lines = [f"POST {target} HTTP/1.1"]
    for name in "CONTENT_TYPE", "CONTENT_LENGTH":
        if environ.get(name):
            lines.append(f"{name.replace('_', '-').title()}: {environ[name]}")
    for name, value in environ.items():
        if name.startswith("HTTP_") and name != "HTTP_TRANSFER_ENCODING":
            lines.append(f"{name[5:].replace('_', '-').title()}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
