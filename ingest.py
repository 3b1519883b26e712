"""The WSGI callable between nginx and the list: check, append, answer. It runs on any WSGI server."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sluice import settings
from sluice.contrib.access import signature
from sluice.contrib.formats import influx_probes as influx
from sluice.fastlane.interface import Options
from sluice.http import own, replies, request
from sluice.http.endpoints import Endpoint, Endpoints
from sluice.http.replies import Rejected
from sluice.http.request import OwnAnswer
from sluice.http.routes import OK, Reply
from sluice.http.tell import Teller
from sluice.routes import load_routes
from sluice.spool import open_inlet
from sluice.spool.inlet import Group

SETTINGS = settings.load_or_exit()
CLOSING, DRAINING = SETTINGS.closing, SETTINGS.draining
INLET = open_inlet(SETTINGS.spool, SETTINGS.figures, SETTINGS.replicas, SETTINGS.max_memory // 2, SETTINGS.gateways)
append, commit, counts = INLET.append, INLET.commit, INLET.counts
TELLER = Teller(SETTINGS.rejected)
tell = TELLER.tell


class PostAnswer:
    """The answer to an appended body. Iterating it commits the group, unless another answer did, and only then calls
    start_response, as PEP 3333 allows: a server that iterates answers late commits many bodies at once.
    """

    __slots__ = ("endpoint", "group", "start_response")

    def __init__(self, group: Group, endpoint: Endpoint, start_response: Callable[..., Any]) -> None:
        self.group = group
        self.endpoint = endpoint
        self.start_response = start_response

    def __iter__(self) -> Iterator[bytes]:
        group, endpoint = self.group, self.endpoint
        if not group.done:
            commit(group)
        if group.refused is not None and endpoint.stream in group.refused:
            reply = replies.unavailable(*group.refused[endpoint.stream])
            tell(reply, endpoint.path)  # the environ is not kept for this
            return iter(respond(endpoint.error(reply), endpoint.path, self.start_response))
        reply = endpoint.reply
        endpoint.acknowledged.n += 1
        self.start_response(reply.status, reply.headers)
        return iter(reply.chunks)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """PEP 3333: append the body to its stream's list, and answer once it is there."""
    endpoint = PLAIN.get(environ["PATH_INFO"]) or ENDPOINTS.by_encoding(environ)
    if endpoint is None:
        same = request.without_slashes(environ)
        return app(same, start_response) if same else probe(environ, start_response)
    if environ["REQUEST_METHOD"] != "POST":
        reply = replies.not_posted(environ)
        if reply is not replies.POST_ONLY:
            return respond(reply, "", start_response)
        tell(reply, endpoint.path, environ)
        return respond(reply, endpoint.path, start_response, environ["REQUEST_METHOD"])
    try:
        try:
            item = endpoint.read(environ, endpoint.keep_head, endpoint.max_body)
        except OwnAnswer as answer:
            item, endpoint = own.read(environ, endpoint, answer.args[0])
    except Rejected as rejected:
        reply = endpoint.error(rejected.args[0])
        if reply is not endpoint.reply:
            tell(rejected.args[0], endpoint.path, environ)
        return respond(reply, endpoint.path, start_response)
    return PostAnswer(append(endpoint.stream, item), endpoint, start_response)


def plainness(environ: dict[str, Any], has_query: bool) -> str:
    """What a head need not be asked; see `request.plainness`."""
    endpoint = PLAIN.get(environ["PATH_INFO"]) or ENDPOINTS.by_encoding(environ)
    return request.plainness(environ, has_query, endpoint.keep_head) if endpoint else ""


def respond(reply: Reply, path: str, start_response: Callable[..., Any], method: str = "POST") -> Iterable[bytes]:
    """Answer without appending. path: of a route or a probe; "" counts all other paths together."""
    counts.counter(f"answered {reply.status[:3]} {path}").n += 1
    start_response(reply.status, reply.headers)
    return reply.chunks if method != "HEAD" else ()  # not every server omits the body of an answer to HEAD


def probe(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer what senders ask besides; for /readyz and /ready ask Redis whether it accepts writes, unless draining."""
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path == "/query" and method in ("GET", "POST"):
        return respond(influx.query(environ), path, start_response)
    if path not in PROBES:
        tell(replies.NOT_FOUND, "", environ)
        return respond(replies.NOT_FOUND, "", start_response, method)
    if method not in ("GET", "HEAD"):
        return respond(replies.GET_ONLY, path, start_response, method)
    if path == "/ping":
        return respond(influx.ping(environ), path, start_response, method)
    reason = None
    if path in ("/readyz", "/ready"):
        is_draining = os.path.exists(DRAINING)
        reason = "This cell is draining; bin/sluice undrain puts it back." if is_draining else INLET.ready()
    return respond(replies.unavailable(reason, 1) if reason else PROBES[path], path, start_response, method)


def malformed(status: int, detail: str, begin: bytes) -> None:
    """A request that gunicorn has answered instead of this program, because it could not parse it, or that failed."""
    counts.counter(f"answered {status} ").n += 1
    TELLER.tell_malformed(status, detail, begin)


def tick() -> None:
    """Once a second: report the counts; look at the disk; while CLOSING exists, let replies close connections."""
    INLET.report()
    if SETTINGS.has_own_redis:
        INLET.check_disk(SETTINGS.home / "redis")
    is_closing = os.path.exists(CLOSING)
    for endpoint in ENDPOINTS:
        endpoint.reply = endpoint.replies[is_closing]


ROUTES = load_routes(SETTINGS.routes)
ENDPOINTS = Endpoints(ROUTES, counts.counter, SETTINGS.max_body, SETTINGS.max_batch)
PLAIN = ENDPOINTS.plain
for at, known in signature.load_signed(ROUTES).items():
    PLAIN[at].read, PLAIN[at].keep_head = signature.reading(*known), True
PROBES = {"/health": influx.HEALTH, "/healthz": OK, "/readyz": OK, "/ready": influx.READY, "/ping": influx.PING}
FIELDS = request.FIELDS | signature.FIELDS
app.fastlane = Options(SETTINGS.max_body, tick, True, FIELDS, plainness, malformed)  # type: ignore[attr-defined]
atexit.register(INLET.report, last=True)
