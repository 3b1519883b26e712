"""The gateway's error replies, and variants of the routes' replies that close the client's connection."""

from __future__ import annotations

import json
import re
from functools import lru_cache

from sluice import registry
from sluice.http.routes import Reply, reply

# One line of printable ASCII: nginx can repeat no other text from a header field
LINE = re.compile("(?:[!-~](?:[ -~]{0,999}[!-~])?)?")


def problem(status: str, detail: str, *headers: tuple[str, str]) -> Reply:
    """An error as application/problem+json (RFC 9457)."""
    code, _, title = status.partition(" ")
    body = {"type": "about:blank", "title": title, "status": int(code), "detail": detail}
    return reply(status, json.dumps(body).encode(), "application/problem+json", *headers)


CODINGS = "gzip", "deflate", *(name for name in registry.declared_entries("codings") if not name.startswith("x-"))
NOT_FOUND = problem("404 Not Found", "There is no stream at this path.")
GET_ONLY = problem("405 Method Not Allowed", "This path accepts only GET and HEAD.", ("Allow", "GET, HEAD"))
NO_LENGTH = problem("400 Bad Request", "The length of the body is malformed or ambiguous; the request had no effect.")
CODED = problem("501 Not Implemented", "The only supported transfer coding is chunked; the request had no effect.")
CUT_OFF = problem("400 Bad Request", "The body is shorter than its Content-Length; the request had no effect.")
BAD_KEY = problem(
    "400 Bad Request",
    "Idempotency-Key is neither a quoted string nor up to 255 visible ASCII characters; the request had no effect.",
)
UNSUPPORTED = problem(
    "415 Unsupported Media Type",
    f"Content-Encoding is none of {', '.join(CODINGS)}; the request had no effect.",
    ("Accept-Encoding", ", ".join(CODINGS)),
)
EMPTY = problem("400 Bad Request", "The request has neither a body nor a query string; the request had no effect.")


@lru_cache(maxsize=32)
def not_allowed(methods: str) -> Reply:
    """methods: that the path takes, as in Allow."""
    words = " and ".join(methods.rsplit(", ", 1))
    return problem("405 Method Not Allowed", f"This path accepts only {words}.", ("Allow", methods))


@lru_cache(maxsize=2)
def too_large(max_body: int) -> Reply:
    return problem("413 Content Too Large", f"A body may have at most {max_body} bytes; the request had no effect.")


@lru_cache(maxsize=256)
def unavailable(detail: str, retry_after: int) -> Reply:
    """503; 413 if retrying is no use. retry_after: whole seconds, or 0."""
    if not retry_after:
        return problem("413 Content Too Large", detail)
    return problem("503 Service Unavailable", detail, ("Retry-After", str(retry_after)))


class Rejected(Exception):
    """Raised with the Reply that the client gets."""


def closing_reply(given: Reply) -> Reply:
    """The same reply with `Connection: close`, which only nginx can add for its clients.

    X-Accel-Redirect sends nginx to a location that repeats status, type and text (@sluice_200 … in nginx/sluice.conf).
    A reply that nginx cannot repeat is returned unchanged, and the connection stays open.
    """
    status, headers, chunks = given
    code, text = status[:3], b"".join(chunks).decode("latin-1")
    names = [name for name, _ in headers if name != "Content-Length"]
    repeatable = code in ("200", "201", "202", "204") and names == ([] if code == "204" else ["Content-Type"])
    if not repeatable or not LINE.fullmatch(text):
        return given
    more = ("X-Accel-Redirect", f"@sluice_{code}"), ("Sluice-Body", text)
    return reply(status, b"", dict(headers).get("Content-Type", ""), *more)
