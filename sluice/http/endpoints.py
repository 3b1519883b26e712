"""Routes at their paths: what the gateway answers there, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from sluice.base.counters import Counter
from sluice.http import replies
from sluice.http.request import read
from sluice.http.routes import JSON, Reply, Route


class Endpoint:
    """A route at its path. max_body: bytes. in_json: which encoding it is for, if its answers have the encoding of
    their request.
    """

    __slots__ = (
        "acknowledged",
        "empty",
        "in_json",
        "keep_head",
        "max_body",
        "path",
        "read",
        "replies",
        "reply",
        "stream",
    )

    def __init__(
        self, path: str, route: Route, counter: Callable[[str], Counter], max_body: int, in_json: bool | None = None
    ) -> None:
        self.path, self.max_body, self.in_json = path, max_body, in_json
        self.stream, reply, self.keep_head, json_reply, _, _, empty = route
        self.empty = empty or json_reply is not None
        # Of a signed route, the gateway sets another one
        self.read: Callable[[dict[str, Any], bool, int], bytes] = read
        self.reply = json_reply if in_json and json_reply else reply
        self.replies = self.reply, replies.closing(self.reply)
        # Own counter: incrementing an attribute takes 20 ns, a dict's value 60 to 140
        self.acknowledged = counter(f"answered {self.reply.status[:3]} {path}")

    def error(self, reply: Reply) -> Reply:
        """An error in the form that this path's clients expect."""
        if reply is replies.EMPTY and self.empty:
            return self.reply
        return reply if self.in_json is None else replies.rpc_status(reply, self.in_json)


class Endpoints:
    """All endpoints. plain: those that the path alone names."""

    def __init__(
        self, routes: Mapping[str, Route], counter: Callable[[str], Counter], max_body: int, max_batch: int
    ) -> None:
        """counter: name -> a counter of the gateway. max_body, max_batch: bytes."""
        self.plain: dict[str, Endpoint] = {}
        self.rpc: dict[str, list[Endpoint]] = {}
        for path, route in routes.items():
            most = max_batch if route.batch else max_body
            if route.json:
                self.rpc[path] = [Endpoint(path, route, counter, most, in_json) for in_json in (False, True)]
            else:
                self.plain[path] = Endpoint(path, route, counter, most)

    def __iter__(self) -> Iterator[Endpoint]:
        return chain(self.plain.values(), *self.rpc.values())

    def by_encoding(self, environ: Mapping[str, Any]) -> Endpoint | None:
        """The endpoint at a path that is not in `plain`; None: there is none."""
        if environ["PATH_INFO"] not in self.rpc:
            return None
        in_json: bool = environ.get("CONTENT_TYPE", "").lower().startswith(JSON)
        return self.rpc[environ["PATH_INFO"]][in_json]
