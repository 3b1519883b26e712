"""The WSGI callable between nginx and the list: check, append, answer. It runs on any WSGI server."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sluice import registry, settings
from sluice.fastlane.interface import Options
from sluice.http import replies, request
from sluice.http.endpoints import Endpoint, load_endpoints, without_slashes
from sluice.http.replies import Rejected
from sluice.http.routes import OK, Reply
from sluice.routes import load_routes
from sluice.spool import open_spool
from sluice.spool.inlet import Group, Inlet

SETTINGS = settings.load_or_exit()
CLOSING, DRAINING = SETTINGS.closing, SETTINGS.draining
INLET: Inlet = open_spool(
    "inlet:Inlet", SETTINGS.spool, SETTINGS.figures,
    replicas=SETTINGS.replicas, max_bytes=SETTINGS.max_memory // 2, gateways=SETTINGS.gateways,
)  # fmt: skip
append, commit, counts = INLET.append, INLET.commit, INLET.counts
TELLERS = [make(SETTINGS) for make in registry.load_hooks("rejections")]


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
            return iter(start_answer(endpoint.error_reply(reply), endpoint.path, self.start_response))
        reply = endpoint.reply
        endpoint.acknowledged.n += 1
        self.start_response(reply.status, reply.headers)
        return iter(reply.chunks)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """PEP 3333: append the body to its stream's list, and answer once it is there."""
    endpoint = PLAIN.get(environ["PATH_INFO"]) or ENDPOINTS.find_endpoint(environ)
    if endpoint is None:
        return answer_probe(environ, start_response)
    if environ["REQUEST_METHOD"] != "POST" and environ["REQUEST_METHOD"] not in endpoint.taken:
        return answer_method(environ, endpoint, start_response)
    try:
        item = endpoint.read(environ, endpoint)
    except Rejected as rejected:
        reply = endpoint.error_reply(rejected.args[0])
        if reply is not endpoint.reply and reply.status >= "3":  # a challenge is answered, and has no effect
            tell(rejected.args[0], endpoint.path, environ)
        return start_answer(reply, endpoint.path, start_response)
    if endpoint.answer is not None:
        endpoint = endpoint.answering(environ, item)
    return PostAnswer(append(endpoint.stream, item), endpoint, start_response)


def answer_method(environ: dict[str, Any], endpoint: Endpoint, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a method that does not append."""
    method = environ["REQUEST_METHOD"]
    reply = endpoint.methods[method](environ) if method in endpoint.methods else None
    if reply is not None:
        return start_answer(reply, "", start_response)
    reply = replies.not_allowed(endpoint.allowed)
    tell(reply, endpoint.path, environ)
    return start_answer(reply, endpoint.path, start_response, method)


def plainness(environ: dict[str, Any], has_query: bool) -> object:
    """What a head need not be asked; see `request.plainness`."""
    endpoint = ENDPOINTS.find_endpoint(environ)
    return request.plainness(environ, has_query, endpoint) if endpoint else ""


def start_answer(reply: Reply, path: str, start_response: Callable[..., Any], method: str = "POST") -> Iterable[bytes]:
    """Answer without appending. path: of a route or a probe; "" counts all other paths together."""
    counts.counter(f"answered {reply.status[:3]} {path}").n += 1
    start_response(reply.status, reply.headers)
    return reply.chunks if method != "HEAD" else ()  # not every server omits the body of an answer to HEAD


def answer_probe(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer what senders ask besides, at a path that has no route."""
    path, method = without_slashes(environ["PATH_INFO"]), environ["REQUEST_METHOD"]
    reply = PROBES[path](environ, unready_reply) if path in PROBES else replies.NOT_FOUND
    if reply is replies.NOT_FOUND:
        tell(reply, "", environ)
        path = ""
    return start_answer(reply or replies.GET_ONLY, path, start_response, method)


def unready_reply() -> Reply | None:
    """The 503 of a gateway that is draining, or whose Redis takes no writes; None: it is ready."""
    is_draining = os.path.exists(DRAINING)
    reason = "This cell is draining; bin/sluice undrain puts it back." if is_draining else INLET.unready_reason()
    return replies.unavailable(reason, 1) if reason else None


def answer_healthz(environ: dict[str, Any], unready: Callable[[], Reply | None]) -> Reply | None:
    return OK if environ["REQUEST_METHOD"] in ("GET", "HEAD") else None


def answer_readyz(environ: dict[str, Any], unready: Callable[[], Reply | None]) -> Reply | None:
    return unready() or OK if environ["REQUEST_METHOD"] in ("GET", "HEAD") else None


def tell(reply: Reply, path: str, environ: dict[str, Any] | None = None) -> None:
    """Tell contributions what is rejected. path: of the route; environ has that of an unknown one."""
    for teller in TELLERS:
        teller.tell(reply, path, environ)


def count_malformed(status: int, detail: str, begin: bytes) -> None:
    """A request that gunicorn has answered instead of this program, because it could not parse it, or that failed."""
    counts.counter(f"answered {status} ").n += 1
    for teller in TELLERS:
        teller.tell_malformed(status, detail, begin)


def tick_second() -> None:
    """Once a second: report the counts; look at the disk; while CLOSING exists, let replies close connections."""
    INLET.report_counts()
    if SETTINGS.has_own_redis:
        INLET.check_disk(SETTINGS.home / "redis")
    is_closing = os.path.exists(CLOSING)
    for endpoint in ENDPOINTS:
        endpoint.reply = endpoint.replies[is_closing]


ENDPOINTS = load_endpoints(load_routes(SETTINGS.routes), SETTINGS, counts.counter)
PLAIN = ENDPOINTS.by_path
PROBES: dict[str, Callable[..., Reply | None]] = {"/healthz": answer_healthz, "/readyz": answer_readyz}
PROBES |= {path: entry.load() for path, entry in registry.declared_entries("probes").items()}
app.fastlane = Options(  # type: ignore[attr-defined]
    SETTINGS.max_body, tick_second, ENDPOINTS.wanted_fields(), plainness, count_malformed
)
atexit.register(INLET.report_counts, last=True)
