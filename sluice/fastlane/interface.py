"""What the lane and a WSGI application may know of each other. Standard library only: it is imported on any server.

PEP 3333 holds in the fast lane, with two exceptions. The callable that start_response returns (`write`) raises
NotImplementedError. Requests with the same path and the same names of fields, in their order, share one environ: the
application neither changes it nor keeps it after its call, but may note in it what is true of all these heads. The
application must wait for nothing but its commit: the loop and all clients wait with it. The rest is optional:

app.fastlane              the application's Options
environ["fastlane.head"]  bytes: the request's head as received, including its empty line. Absent in the slow lane
a lazy answer             an iterable that commits and calls start_response only when it is iterated. The lane iterates
                          the answers of a turn after the last call of the application: the first one commits for all
an answer's headers       the list is rendered once and recognised by its identity: make it at import, do not change it.
                          Without Content-Length, the lane adds the length of each body
an answer's waits         whether it may raise Later while it is iterated; only to a GET. What its client has sent
                          behind the request takes the slow lane. Default: False. Not in every lane: see FastLane.hold
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

MAX_BODY_BYTES = 1 << 20  # the application reads a longer body itself, in the slow lane


class Options(NamedTuple):
    """What an application asks for.

    max_body: bytes, up to MAX_BODY_BYTES. A longer body goes unread to the slow lane, where the application may reject
        it first.
    tick: called about once a second, between two turns of the loop.
    fields: of the header fields, environ has only these, such as "HTTP_ORIGIN", and CONTENT_TYPE, CONTENT_LENGTH, and
        what decides how a request is served (Host, Connection, Content-Encoding). None: all. A field that is not here
        costs least.
    rejected: called with status, detail and the first bytes of a request that gunicorn itself rejects, or that failed.
    plainness: asked once for all requests with the same path, fields, type and encoding of content, and with a query or
        without one. environ["fastlane.plain"] is what it returns, unless that is false.
    """

    max_body: int = MAX_BODY_BYTES
    tick: Callable[[], None] = lambda: None
    fields: Collection[str] | None = None
    plainness: Callable[[dict[str, Any], bool], object] = lambda environ, has_query: ""
    rejected: Callable[[int, str, bytes], None] = lambda status, detail, begin: None


class Later(Exception):
    """The answer is not ready. Its argument is environ["fastlane.head"].

    In the reader's lane the slow lane serves this request: it calls the application again, which may now wait with
    gevent.sleep.
    """
