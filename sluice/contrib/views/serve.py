"""The WSGI callable between nginx and the views' Redis: it answers GET for what has been stored. It runs on any WSGI
server.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl

from sluice import settings
from sluice.contrib import views
from sluice.contrib.views.contract import KEY_BYTES
from sluice.contrib.views.reads import BUILDING, DOWN, FULL, GroupReads, Question, ServedView
from sluice.fastlane.interface import Later, Options
from sluice.http import replies
from sluice.http.replies import Rejected
from sluice.http.routes import JSON, Reply, reply

SETTINGS = settings.load_or_exit()
READS = GroupReads(SETTINGS.scratch_redis)
MAX_KEYS = 100  # of one request
MAX_BYTES = 8 << 20  # of an answer with several keys
HEAVY_BYTES = 1 << 16  # of an answer
LEARNED_SECONDS = 60.0  # after which the size of a view's answers is learned again
PATIENCE_SECONDS = 10.0  # that a request waits for the first count of a tally; nginx waits 15
POLL_SECONDS = 0.005, 0.2  # between two looks for it, at first and at last: an eighth of the time that it has taken
WAITING_KEYS = 4  # of one request that are counted at a time, so one that names a hundred does not delay those with one
TRIES = 3  # reads of a view whose generation changes
OK = "200 OK"
# who may read differs by address, and a browser must not take a stored text for another type
PRIVATE = ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")
HEADERS = [("Content-Type", JSON), *PRIVATE]

NOT_FOUND = replies.problem("404 Not Found", "There is no view at this path.")
NO_KEY = replies.problem("404 Not Found", "Nothing is stored under this key.", *PRIVATE)
TOO_LONG = "The answer has more than 8 MiB: ask for fewer keys at a time."
NOT_COUNTED = "The count is not ready."


class ViewEndpoint:
    __slots__ = ("key", "largest", "learned", "max_limit", "ok", "path", "view")

    def __init__(self, path: str, view: views.View) -> None:
        self.path = path
        self.view = ServedView(path, view)
        self.key = view.key
        self.max_limit = view.max_limit
        self.ok = READS.counts.counter(f"{path} 200")
        self.largest, self.learned = 0, 0.0  # bytes of the largest answer for a key; when it was made (monotonic)

    def parameters(self, query: str) -> tuple[list[bytes], int]:
        """The keys that a query names, and the limit of a feed. Raises: Rejected."""
        pairs: Sequence[Sequence[str]]
        if query.isascii() and "%" not in query and "+" not in query:  # without parse_qsl, which takes 1.5 us
            if "&" not in query:
                name, _, value = query.partition("=")
                if name == self.key and len(value) <= KEY_BYTES:
                    return [value.encode()], self.max_limit
            pairs = [pair.partition("=")[::2] for pair in query.split("&")]
        else:
            try:
                text = query.encode("latin-1").decode()
                pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
            except UnicodeDecodeError:
                raise Rejected(bad_request("The query string is not UTF-8.")) from None
        keys = [value.encode() for name, value in pairs if name == self.key]
        if not 0 < len(keys) <= MAX_KEYS:
            raise Rejected(bad_request(f"This path needs the parameter {self.key!r}, at most {MAX_KEYS} times."))
        if max(map(len, keys)) > KEY_BYTES:
            raise Rejected(bad_request(f"The parameter {self.key!r} has at most {KEY_BYTES} bytes."))
        limits = [value for name, value in pairs if name == "limit"] if self.max_limit else []
        if not limits:
            return keys, self.max_limit
        if not re.fullmatch("[0-9]{1,4}", limits[-1]) or not 1 <= int(limits[-1]) <= self.max_limit:
            raise Rejected(bad_request(f"The parameter 'limit' is an integer from 1 to {self.max_limit}."))
        return keys, int(limits[-1])


class ViewAnswer:
    """The answer to a question. Iterating it sends the round trip, unless another answer did, and only then calls
    start_response: a server that iterates answers late reads many values at once.
    """

    __slots__ = ("endpoint", "head", "keys", "limit", "method", "question", "start_response")

    def __init__(self, endpoint: ViewEndpoint, environ: dict[str, Any], start_response: Callable[..., Any]) -> None:
        self.endpoint, self.start_response = endpoint, start_response
        self.method, self.head = environ["REQUEST_METHOD"], environ.get("fastlane.head")
        self.keys, self.limit = endpoint.parameters(environ["QUERY_STRING"])
        self.question = READS.add(endpoint.view, self.keys)

    def __iter__(self) -> Iterator[bytes]:
        endpoint, question = self.endpoint, self.question
        trip, generation, names = question
        del self.question  # the server may keep this answer until all are sent, and the trip has the values of many
        view = endpoint.view
        if not trip.done:
            READS.fetch(trip)
        body: bytes | None = None
        if len(names) == 1 and trip.states.get(view.state) == generation:  # as usual, without `values`
            body = view.value(trip, names[0], self.limit)
        if not body:
            try:
                values = self.values(question)
                if len(values) == 1 and not values[0]:
                    raise Rejected(NO_KEY)
            except Rejected as rejected:
                return iter(start_answer(rejected.args[0], endpoint.path, self.start_response, self.method))
            body = values[0] or b""
            if len(values) > 1:
                body = b"[%b]" % b",".join([value or b"null" for value in values])
            if not view.state:
                READS.want(view.path, [key for key, value in zip(self.keys, values) if value])
        elif not view.state:
            READS.want(view.path, self.keys)
        if (size := len(body) // len(names)) > endpoint.largest:
            endpoint.largest, endpoint.learned = size, time.monotonic()
        if self.head:  # in the fast lane, which adds the length
            endpoint.ok.n += 1
            self.start_response(OK, HEADERS)
            return iter((body,))
        return iter(start_answer(reply(OK, body, JSON, *PRIVATE), endpoint.path, self.start_response, self.method))

    @property
    def waits(self) -> bool:
        """Whether it may have to wait until the database has counted."""
        return not self.endpoint.view.state

    @property
    def heavy(self) -> bool:
        """Whether it is more than nginx may take at once.

        By the largest answer of this view in a minute: small reads, which anybody can mix in, make none of them light.
        """
        endpoint = self.endpoint
        if time.monotonic() > endpoint.learned + LEARNED_SECONDS:
            endpoint.largest = 0  # the next answer tells
        return len(self.keys) * endpoint.largest > HEAVY_BYTES

    def values(self, question: Question) -> list[bytes | None]:
        """The JSON of each key, None or empty if it is unknown. Raises: Rejected, if there is no answer; Later."""
        view, (trip, generation, names) = self.endpoint.view, question
        values: list[bytes | None] = []
        tries, most = TRIES, MAX_KEYS
        began = since = time.monotonic()  # since: when the first key without a value became the first one
        while True:
            if not trip.done:
                READS.fetch(trip)
            if trip.failed:
                raise Rejected(replies.unavailable(DOWN, 1))
            state = trip.states.get(view.state)
            if state != generation:  # another one is served
                tries -= 1
                reason = view.follow(state) if tries else BUILDING
            else:
                some = [view.value(trip, name, self.limit) for name in names]
                if None in some and view.state and trip.states[view.crowded] == generation:
                    raise Rejected(replies.unavailable(FULL, 1))  # the key may have rows, but had no room
                known = some.index(None) if self.waits and None in some else len(some)
                values += some[:known]
                if len(self.keys) > 1 and sum([len(value or b"") for value in values]) > MAX_BYTES:
                    raise Rejected(bad_request(TOO_LONG))
                if len(values) == len(self.keys):
                    return values
                reason, tries = "", TRIES
                if known < len(some):
                    most, now = WAITING_KEYS, time.monotonic()
                    since = now if known else since
                    keys = self.keys[len(values) : len(values) + most]
                    asked = READS.ask(view.path, [key for key, value in zip(keys, some[known:]) if value is None])
                    if self.head:
                        raise Later(self.head)
                    if not asked:  # else the next trip has the question
                        gevent: Any = sys.modules.get("gevent")  # where it is, only this greenlet waits
                        (gevent or time).sleep(min(max(POLL_SECONDS[0], (now - since) / 8), POLL_SECONDS[1]))
                    reason = "" if now - began < PATIENCE_SECONDS else NOT_COUNTED
            if reason:
                raise Rejected(replies.unavailable(reason, 1))
            keys = self.keys[len(values) : len(values) + most]
            trip, generation, names = READS.add(view, keys)  # frees the last trip


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """PEP 3333: answer with what is stored under the keys of a view."""
    method = environ["REQUEST_METHOD"]
    try:
        endpoint = ENDPOINTS[environ["PATH_INFO"]]
    except KeyError:
        return start_answer(NOT_FOUND, "", start_response, method)
    if method != "GET" and method != "HEAD":
        return start_answer(replies.GET_ONLY, endpoint.path, start_response, method)
    try:
        return ViewAnswer(endpoint, environ, start_response)
    except Rejected as rejected:
        return start_answer(rejected.args[0], endpoint.path, start_response, method)


def start_answer(given: Reply, path: str, start_response: Callable[..., Any], method: str) -> Iterable[bytes]:
    """Answer. path: of a view; "" counts all other paths together."""
    READS.counts.counter(f"{path} {given.status[:3]}").n += 1
    start_response(given.status, given.headers)
    return given.chunks if method != "HEAD" else ()  # not every server omits the body of an answer to HEAD


def bad_request(detail: str) -> Reply:
    return replies.problem("400 Bad Request", detail)


ENDPOINTS = {path: ViewEndpoint(path, view) for path, view in views.load_views(SETTINGS).items()}
app.fastlane = Options(tick=READS.tick, fields=())  # type: ignore[attr-defined]
