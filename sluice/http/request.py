"""Makes the list item of a WSGI request, for the gateway: its body, or an HTTP message.

A message has the request line and the fields of `PASSED` and of the route, or all fields if the route keeps the head,
but never credentials. The decoder must see the path that chose the route, so the line has that path: no other form of
the target is looked at. No body can pass for a message: one that looks like it is kept as a message, too. A request
that has a key is kept as one: the worker looks there for the key. So is one with a query string beside its body, which
may name the device, and a form with spaces. A body of a named API key has at least a head that says its name. Nothing
is looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from sluice import registry
from sluice.http.replies import BAD_KEY, CODED, CUT_OFF, EMPTY, NO_LENGTH, UNSUPPORTED, Rejected, too_large

# The fields with a key of the request, in the order in which they count
KEYED: tuple[str, ...] = ("Idempotency-Key", "webhook-id", "X-GitHub-Delivery", "ce-id", *registry.listed("keys"))
# What nginx passes on every path, and a kept head has
PASSED = (
    "Content-Type", "Content-Encoding", "Idempotency-Key", "webhook-id", "X-GitHub-Delivery", "ce-id", "ce-source",
)  # fmt: skip
# The field in which nginx puts the name of the API key; it takes away one that a client sends
SENDER, SENT_BY = "HTTP_SLUICE_SENDER", b"\r\nSluice-Sender: "
# No head that is kept has these, and nginx passes none on: the list would store them
CREDENTIALS = (
    "Authorization", "Proxy-Authorization", "Cookie", "X-API-Key", "DD-API-KEY", "X-Amz-Firehose-Access-Key",
)  # fmt: skip
# Fields of a whole head that are taken away: credentials, and what describes how the body came
LEFT_OUT = re.compile(
    rb"^(?:%b|Transfer-Encoding):[^\n]*\n" % "|".join(CREDENTIALS).encode(), re.IGNORECASE | re.MULTILINE
)
# Parameters that are a credential, or can be one
IN_QUERY = re.compile(r"(?:^|&)(?:api_key=[^&]*|p=[A-Za-z0-9_-]{32,46}(?=&|$))")
NOT_KEPT = {f"HTTP_{name.upper().replace('-', '_')}" for name in (*CREDENTIALS, "Transfer-Encoding")}
MAX_KEPT_HEADS = 1024  # 1 kB each
# The values of Content-Encoding, and whether a body needs its head: its first bytes do not show its compression
ENCODINGS = {"identity": False, "gzip": False, "x-gzip": False, "deflate": True}
ENCODINGS |= {name: not coding.magic for name, coding in registry.declared_entries("codings").items()}
# Some senders, many of them in Java, name the charset here; PHP's say none. No coding has such a name (IANA, "HTTP
# Content Coding Registry"), so their bodies are as they are
ENCODINGS |= dict.fromkeys(("utf-8", "utf8", "none"), False)
MAX_CODINGS = 2  # in a list: pygelf and graypy say "gzip,deflate" of either
# A String (RFC 8941, 3.3.3), or else visible ASCII without quotation marks; a server joins repeated fields with commas
KEY_CHARACTERS = 255
QUOTED = re.compile(r'"([ !#-\[\]-~]*(?:\\["\\][ !#-\[\]-~]*)*)"')
BARE = re.compile(r"[!#-+\--~]+")
MAX_PARAMETERS = 100  # of a query string or a form that is taken apart
FORM = "application/x-www-form-urlencoded"
# see `plainness`
PLAIN, BODY_ONLY, SENDER_AND_BODY = "plain", "body only", "sender and body"
START = re.compile(rb"POST (/[^ \r\n]*) HTTP/1\.[01]\r\n")  # of an HTTP message, its path and query

sender_heads: dict[str, bytes] = {}  # by name; functools.cache takes 0.2 µs on PyPy
kept_heads: dict[bytes, bytes] = {}  # by the head as received, which has the path and so the route


class KeyedHead(NamedTuple):
    """What the kept heads of one shape have in common, beside the key; see `plainness`.

    before: what stands before the key. fields: those behind it, as in `Reading.kept`.
    """

    before: str
    fields: tuple[tuple[str, str], ...]

    def encode_head(self, environ: dict[str, Any]) -> bytes:
        """The head of a request. Raises: Rejected if its key is malformed."""
        key: str = environ["HTTP_IDEMPOTENCY_KEY"]
        if not idempotency_key(key):
            raise Rejected(BAD_KEY)
        head = self.before + key
        for name, begin in self.fields:
            if value := environ[name]:
                head += begin + value
        return (head + "\r\n\r\n").encode("latin-1")


class Reading(Protocol):
    """What an endpoint says of the items of its requests; see `sluice.http.endpoints.Endpoint`."""

    path: str
    varies: bool
    max_body: int
    keeps_head: bool
    keeps_fields: bool
    kept: list[tuple[str, str]]


def without_slashes(path: str) -> str:
    """A path without repeated slashes, where nginx does not see them, either: many senders join a base URL that ends
    with a slash, and a path.
    """
    return re.sub("/+", "/", path) if "//" in path else path


def environ_name(name: str) -> str:
    """The name in environ of a header field."""
    name = name.upper().replace("-", "_")
    return name if name == "CONTENT_TYPE" else f"HTTP_{name}"


# Whose bodies only their head explains: fields of the environ, and the beginnings of their values
OPENED = [
    (environ_name(name), value.lower())
    for name, _, value in (key.partition(": ") for key in registry.declared_entries("openers"))
]
NEEDED = {environ_name(name) for name in KEYED[1:]} | {name for name, value in OPENED if not value}
NEEDED_VALUES = [(name, value) for name, value in OPENED if value]


def read_item(environ: dict[str, Any], endpoint: Reading) -> bytes:
    """The item for the list: the body, or the query string if the body is empty; a message if the endpoint keeps heads,
    if the request has a key or a query string, or if the body looks like a message or is a form with spaces.

    Raises: Rejected.
    """
    plain = environ.get("fastlane.plain")
    keep_head, max_body = endpoint.keeps_head, endpoint.max_body
    if plain is BODY_ONLY or plain is SENDER_AND_BODY or plain.__class__ is KeyedHead:  # most need no more than this
        begin = b""
        if plain is SENDER_AND_BODY:
            name = environ[SENDER]
            begin = sender_heads.get(name) or sender_head(name)
        elif isinstance(plain, KeyedHead):
            begin = plain.encode_head(environ)
        body: bytes = environ["wsgi.input"].read()
        if not 0 < len(body) <= max_body:
            raise Rejected(too_large(max_body) if body else EMPTY)
        if begin:
            return begin + body
    else:
        if not plain:
            keep_head = needs_head(environ, keep_head)
        elif "HTTP_IDEMPOTENCY_KEY" in environ:
            keep_head = is_keyed(environ)
        elif SENDER in environ:
            keep_head = True
        body = read_body(environ, max_body)
        if not body:
            query: str = without_keys(environ.get("QUERY_STRING", ""))
            if not query:
                raise Rejected(EMPTY)
            if not keep_head:
                return query.encode("latin-1")
        elif not keep_head and (environ.get("QUERY_STRING") or is_spaced_form(environ, body)):
            keep_head = True
    return (
        message_head(environ, endpoint) + body
        if keep_head or (body.startswith(b"POST /") and START.match(body))
        else body
    )


def read_body(environ: dict[str, Any], max_body: int) -> bytes:
    """The body, which may be empty. max_body: bytes. Raises: Rejected."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if "HTTP_TRANSFER_ENCODING" in environ or not length.isdecimal():
        if not environ.get("wsgi.input_terminated") or "CONTENT_LENGTH" in environ:
            raise Rejected(NO_LENGTH)
        if environ["HTTP_TRANSFER_ENCODING"].strip().lower() != "chunked":
            raise Rejected(CODED)
        body: bytes = environ["wsgi.input"].read(max_body + 1)
        if len(body) > max_body:
            raise Rejected(too_large(max_body))
        return body
    try:
        size = int(length)
    except ValueError:  # thousands of digits
        raise Rejected(too_large(max_body)) from None
    if size > max_body:
        raise Rejected(too_large(max_body))
    body = environ["wsgi.input"].read(size)
    if len(body) != size:
        raise Rejected(CUT_OFF)
    return body


def is_spaced_form(environ: dict[str, Any], body: bytes) -> bool:
    """Whether a body says that it is a form and is not encoded as one: only the head tells it from a line of text."""
    return (
        environ.get("CONTENT_TYPE", "").lower().startswith(FORM) and not body.startswith((b"{", b"[")) and b" " in body
    )


def needs_head(environ: dict[str, Any], keep_head: bool) -> bool:
    """Whether the message is kept: also one that has a key, or a body that only its head explains.

    Raises: Rejected if the head is invalid, whatever the body is.
    """
    encoding = environ.get("HTTP_CONTENT_ENCODING", "").lower()
    codings = listed_codings(encoding) if encoding else []
    if len(codings) > MAX_CODINGS or not ENCODINGS.keys() >= {*codings}:
        raise Rejected(UNSUPPORTED)
    return (
        is_keyed(environ)
        or keep_head
        or SENDER in environ
        or any(ENCODINGS[coding] for coding in codings)
        or not NEEDED.isdisjoint(environ)
        or any(environ.get(key, "").lower().startswith(value) for key, value in NEEDED_VALUES)
    )


def is_keyed(environ: dict[str, Any]) -> bool:
    """Whether a request has an Idempotency-Key. Raises: Rejected if that is malformed."""
    value: str | None = environ.get("HTTP_IDEMPOTENCY_KEY")
    if value is None:
        return False
    if not idempotency_key(value):
        raise Rejected(BAD_KEY)
    return True


def listed_codings(encoding: str) -> list[str]:
    """The codings that a Content-Encoding lists, in the order in which they were applied (RFC 9110, 8.4)."""
    return [coding.strip() for coding in encoding.split(",")]


def plainness(environ: dict[str, Any], has_query: bool, endpoint: Reading) -> str | KeyedHead:
    """What is known of all heads with these fields, this type and this encoding: PLAIN if `needs_head` finds nothing
    but a key and a sender in them; BODY_ONLY, SENDER_AND_BODY or a KeyedHead if there is nothing else to look at,
    either; else "".

    environ: of the fast lane, so the body has the length that the head says.
    """
    others = {name: value for name, value in environ.items() if name not in ("HTTP_IDEMPOTENCY_KEY", SENDER)}
    try:
        if needs_head(others, endpoint.keeps_head) != endpoint.keeps_head:
            return ""
    except Rejected:
        return ""
    if has_query or environ.get("CONTENT_TYPE", "").lower().startswith(FORM):
        return PLAIN
    if "HTTP_IDEMPOTENCY_KEY" in environ:
        return PLAIN if endpoint.keeps_fields else keyed_head(environ, endpoint)
    return SENDER_AND_BODY if SENDER in environ and not endpoint.keeps_head else BODY_ONLY


def keyed_head(environ: dict[str, Any], endpoint: Reading) -> KeyedHead:
    """Before the key stand type and encoding only, which these heads have in common."""
    present = [(key, begin) for key, begin in endpoint.kept if key in environ]
    at = next(at for at, (key, _) in enumerate(present) if key == "HTTP_IDEMPOTENCY_KEY")
    same = "".join(begin + environ[key] for key, begin in present[:at] if environ[key])
    return KeyedHead(f"POST {endpoint.path} HTTP/1.1{same}{present[at][1]}", tuple(present[at + 1 :]))


def idempotency_key(value: str) -> str:
    """The key in the field Idempotency-Key; "" if it is malformed."""
    if BARE.fullmatch(value):
        key = value
    else:
        match = QUOTED.fullmatch(value)
        key = re.sub(r"\\(.)", r"\1", match[1]) if match else ""
    return key if len(key) <= KEY_CHARACTERS else ""


def message_head(environ: dict[str, Any], endpoint: Reading) -> bytes:
    """The head of the item."""
    received: bytes | None = environ.get("fastlane.head")
    if received is None:
        return make_head(environ, endpoint, None)
    kept = kept_heads.get(received)
    if kept is None:
        kept = make_head(environ, endpoint, received)
        if "HTTP_IDEMPOTENCY_KEY" not in environ:  # such a head comes once
            if len(kept_heads) >= MAX_KEPT_HEADS:
                kept_heads.clear()
            kept_heads[received] = kept
    return kept


def make_head(environ: dict[str, Any], endpoint: Reading, received: bytes | None) -> bytes:
    """The same. received: the head as the server got it; None: the server does not tell."""
    query = without_keys(environ.get("QUERY_STRING", ""))
    path = endpoint.path if not endpoint.varies else real_path(environ)
    line = f"POST {path}?{query} HTTP/1.1" if query else f"POST {path} HTTP/1.1"
    if endpoint.keeps_fields and received is not None:
        return line.encode("latin-1") + b"\r\n" + LEFT_OUT.sub(b"", received.partition(b"\r\n")[2])
    kept: Iterable[tuple[str, str]] = endpoint.kept
    if endpoint.keeps_fields:
        kept = [
            (key, f"\r\n{key.removeprefix('HTTP_').replace('_', '-').title()}: ") for key in environ if is_kept(key)
        ]
    fields = [begin + environ[key] for key, begin in kept if key in environ and environ[key]]
    return f"{line}{''.join(fields)}\r\n\r\n".encode("latin-1")


def without_keys(query: str) -> str:
    """A query string without an API key: `api_key`, and `p` if it can be one."""
    if "p" not in query or not IN_QUERY.search(query):
        return query
    return IN_QUERY.sub("", query).lstrip("&")


def real_path(environ: dict[str, Any]) -> str:
    """The path of a request to a route whose path varies, as it can stand in a request line."""
    return quote(without_slashes(environ["PATH_INFO"]).encode("latin-1"), "/!$&'()*+,;=:@")


def is_kept(key: str) -> bool:
    """Whether a whole head has the field with this name in environ."""
    return key.startswith(("HTTP_", "CONTENT_")) and key not in NOT_KEPT


def sender_head(name: str) -> bytes:
    """A head that says of a body only who sent it; b"" for "", which is nobody."""
    made = b"POST / HTTP/1.1%b%b\r\n\r\n" % (SENT_BY, name.encode("latin-1")) if name else b""
    return sender_heads.setdefault(name, made)
