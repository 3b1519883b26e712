"""Which path feeds which stream, and the answer that path's clients expect. Data only; standard library only."""

from __future__ import annotations

from typing import NamedTuple

JSON = "application/json"


class Reply(NamedTuple):
    """One whole answer, made once at import: what `start_response` takes, and the body's chunks."""

    status: str
    headers: list[tuple[str, str]]
    chunks: tuple[bytes, ...]


def reply(status: str, body: bytes = b"", content_type: str = JSON, *more: tuple[str, str]) -> Reply:
    """An answer with its length; a 204 has neither type nor length (RFC 9110, 8.6)."""
    if status.startswith("204"):
        return Reply(status, list(more), ())
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), *more]
    return Reply(status, headers, (body,))


class Route(NamedTuple):
    """Where a path's bodies go.

    stream: the name of the list and of the decoder that the worker will use.
    reply: the 2xx that this path's clients take for "got it"; none of them reads more into it.
    keep_head: the item is the whole HTTP message, because the decoder needs the target or a header.
    """

    stream: str
    reply: Reply
    keep_head: bool = False


OK = reply("200 OK", b'{"message":"OK"}')
NO_CONTENT = reply("204 No Content")

ROUTES: dict[str, Route] = {
    "/metrics": Route("metrics", OK),
    "/gps": Route("gps", OK),
    "/votes": Route("votes", OK),
    # InfluxDB writers take nothing but 204; precision stands in the query string
    "/write": Route("metrics", NO_CONTENT, keep_head=True),
    "/api/v2/write": Route("metrics", NO_CONTENT, keep_head=True),
    # OwnTracks reads the answer as a list of commands; the device's name may be in X-Limit-U and X-Limit-D
    "/owntracks": Route("gps", reply("200 OK", b"[]"), keep_head=True),
    # Overland keeps its batch and sends it again unless it reads this
    "/overland": Route("gps", reply("200 OK", b'{"result":"ok"}')),
    "/traccar": Route("gps", OK),
}
