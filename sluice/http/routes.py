"""What a route is: the stream and the success answer of a path. Data only; standard library only."""

from __future__ import annotations

import re
from typing import NamedTuple

JSON = "application/json"
VARYING = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}|/\*$")  # what varies in a path


class Reply(NamedTuple):
    """An answer: the arguments of `start_response`, and the chunks of the body. Made at import."""

    status: str
    headers: list[tuple[str, str]]
    chunks: tuple[bytes, ...]


def reply(status: str, body: bytes = b"", content_type: str = JSON, *more: tuple[str, str]) -> Reply:
    """An answer with Content-Type and Content-Length; a 204 has neither (RFC 9110, 8.6)."""
    if status.startswith("204"):
        return Reply(status, list(more), ())
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), *more]
    return Reply(status, headers, (body,))


def varies(path: str) -> bool:
    """Whether the path of a route stands for many: {name} is one segment, /* at the end any others, or none."""
    return VARYING.search(path) is not None


def pattern(path: str) -> str:
    """A pattern of the paths that a route's path stands for, for Python and nginx."""
    made, at = "", 0
    for part in VARYING.finditer(path):
        made += re.escape(path[at : part.start()]) + ("[^/]+" if part[1] else "(?:/.*)?")
        at = part.end()
    return made + re.escape(path[at:])


class Route(NamedTuple):
    """The destination of a path's bodies.

    stream: the name of the list and of the worker's decoder.
    reply: the 2xx that this path's clients expect once the body is on the list.
    keep_head: the item is the whole HTTP message, without credentials.
    json: the 2xx for a request in JSON, if answers have the encoding of their request, as OTLP's do. Then `reply` is
        in protobuf, errors are google.rpc.Status, and a request without a body is valid.
    signed: SCHEME:FILE, as in `streams.signature.signed`: the gateway answers 401 unless the body is signed with one of
        the secrets in this file and, if the scheme signs a time, within five minutes. The item is the whole message.
    empty: a request without a body is valid, and is not put on the list.
    batch: its senders collect records, so a body may have `Settings.max_batch` bytes; else `Settings.max_body`.
    fields: the header fields that its decoder reads, beside those that the gateway reads (`request.PASSED`). The item
        is an HTTP message with the target and these fields; None: it is the body, where that says all.
    get: a GET with a query is a POST without a body, for trackers that send nothing else.
    methods: others that are a POST, such as PUT.
    max_body: bytes that a body may have; 0: as `batch` says.
    """

    stream: str
    reply: Reply
    keep_head: bool = False
    json: Reply | None = None
    signed: str = ""
    batch: bool = False
    empty: bool = False
    fields: tuple[str, ...] | None = None
    get: bool = False
    methods: tuple[str, ...] = ()
    max_body: int = 0


OK = reply("200 OK", b'{"message":"OK"}')
NO_CONTENT = reply("204 No Content")
