"""Routes at their paths: what the gateway answers there, and what it counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import Any

from sluice import registry
from sluice.base.counters import Counter
from sluice.http import replies, request
from sluice.http.request import without_slashes as without_slashes
from sluice.http.routes import JSON, Reply, Route, pattern, varies
from sluice.settings import SettingError, Settings

MOST_PATHS = 1024  # of routes whose path varies that are looked up at once


def kept_field(name: str) -> tuple[str, str]:
    """A header field of kept heads: its name in environ, and the beginning of its line."""
    return request.environ_name(name), f"\r\n{name}: "


class Endpoint:
    """A route at its path.

    varies: its path stands for many; items have that of their request. taken: the methods that append. allowed: what a
    405 says of methods.
    max_body: bytes. in_json: which encoding it is for, if its answers have the encoding of their request.
    keeps_head: its items are messages. keeps_fields: with all fields of the request.
    kept: the fields, else; see `kept_field`.

    A contribution may set: read, which makes the item of a request (`request.read_item`); answer, which makes a reply
    that depends on the request of an environ and an item, or returns None; form, which makes an error in the encoding
    of its request, given `in_json`; methods: what answers other methods than POST, or returns None.
    """

    def __init__(
        self,
        path: str,
        route: Route,
        counter: Callable[[str], Counter],
        max_body: int,
        fields: Sequence[str] = (),
        in_json: bool | None = None,
    ) -> None:
        """fields: that a kept head has beside those of all routes."""
        self.path, self.max_body, self.in_json, self.stream = path, max_body, in_json, route.stream
        self.varies = varies(path)
        self.taken = frozenset(("POST", *route.methods, *(["GET"] if route.get else ())))
        self.allowed = ", ".join(sorted(self.taken))
        self.keeps_fields = route.keep_head or bool(route.signed)
        self.keeps_head = self.keeps_fields or route.fields is not None or self.varies
        names = dict.fromkeys((*request.PASSED, *fields, *(route.fields or ()), "Sluice-Sender"))
        self.kept = list(map(kept_field, names))
        self.empty = route.empty or route.json is not None
        self.read: Callable[[dict[str, Any], Endpoint], bytes] = request.read_item
        self.answer: Callable[[dict[str, Any], bytes], Reply | None] | None = None
        self.form: Callable[[Reply, bool], Reply] | None = None
        self.methods: dict[str, Callable[[dict[str, Any]], Reply | None]] = {}
        self.reply = route.json if in_json and route.json else route.reply
        self.replies = self.reply, replies.closing_reply(self.reply)
        # Own counter: incrementing an attribute takes 20 ns, a dict's value 60 to 140
        self.acknowledged = counter(f"answered {self.reply.status[:3]} {path}")

    def answering(self, environ: dict[str, Any], item: bytes) -> Endpoint:
        """The endpoint with the answer to this request."""
        reply = self.answer(environ, item) if self.answer else None
        if reply is None:
            return self
        answering = copy(self)
        answering.reply = reply
        return answering

    def error_reply(self, reply: Reply) -> Reply:
        """An error in the form that this path's clients expect."""
        if reply is replies.EMPTY and self.empty:
            return self.reply
        return self.form(reply, self.in_json) if self.form and self.in_json is not None else reply


class Endpoints:
    """All endpoints. plain: those that the path alone names, by the path of their route. by_path: the same, by the path
    of a request: of a route whose path varies, by the first MOST_PATHS that came.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        counter: Callable[[str], Counter],
        max_body: int,
        max_batch: int,
        fields: Sequence[str] = (),
    ) -> None:
        """counter: name -> a counter of the gateway. max_body, max_batch: bytes. fields: see `Endpoint`."""
        self.plain: dict[str, Endpoint] = {}
        self.rpc: dict[str, list[Endpoint]] = {}
        for path, route in routes.items():
            most = route.max_body or (max_batch if route.batch else max_body)
            if route.json:
                self.rpc[path] = [Endpoint(path, route, counter, most, fields, in_json) for in_json in (False, True)]
            else:
                self.plain[path] = Endpoint(path, route, counter, most, fields)
        self.by_path = {path: endpoint for path, endpoint in self.plain.items() if not endpoint.varies}
        self.varying = [(re.compile(pattern(path)), each) for path, each in self.plain.items() if each.varies]
        self.room = MOST_PATHS

    def __iter__(self) -> Iterator[Endpoint]:
        return chain(self.plain.values(), *self.rpc.values())

    def find_endpoint(self, environ: Mapping[str, Any]) -> Endpoint | None:
        """The endpoint of a request; None: there is none."""
        path = without_slashes(environ["PATH_INFO"])
        if path in self.rpc:
            in_json: bool = environ.get("CONTENT_TYPE", "").lower().startswith(JSON)
            return self.rpc[path][in_json]
        return self.by_path.get(path) or self.find_varying(path)

    def find_varying(self, path: str) -> Endpoint | None:
        """The endpoint of a path that stands for many; None: there is none."""
        for among, endpoint in self.varying:
            if among.fullmatch(path):
                if self.room:
                    self.room -= 1
                    self.by_path[path] = endpoint
                return endpoint
        return None

    def wanted_fields(self) -> set[str]:
        """The names in environ of the header fields that are looked at."""
        return {key for endpoint in self for key, _ in endpoint.kept}


def load_endpoints(routes: Mapping[str, Route], s: Settings, counter: Callable[[str], Counter]) -> Endpoints:
    """The endpoints with what contributions give them.

    Raises: SettingError if a route is signed and nothing checks it, or if a contribution finds something invalid.
    """
    endpoints = Endpoints(routes, counter, s.max_body, s.max_batch, registry.listed("fields"))
    for extend in registry.load_hooks("gateway"):
        extend(routes, endpoints, s)
    for path, route in routes.items():
        if route.signed and endpoints.plain[path].read is request.read_item:
            raise SettingError(f"INGEST_ROUTES: nothing here checks the signatures of {path}.")
    return endpoints
