"""Makes the list item of a WSGI request, for the gateway: its body, or the whole HTTP message.

The decoder must see the path that chose the route, so the head has PATH_INFO: no other form of the target is looked at.
No body can pass for a whole message: one that looks like it is kept as a whole message, too. A request that has a key
is kept whole: the worker looks there for the key. So is one with a query string beside its body, which may name the
device, and a form with spaces. A body of a named API key has at least a head that says its name. Nothing is looked up
here.
"""

from __future__ import annotations

import re
from typing import Any

from sluice.http.replies import BAD_KEY, CODED, CUT_OFF, EMPTY, NO_LENGTH, UNSUPPORTED, Rejected, too_large

# The fields with a key of the request, in the order in which they count
KEYED = (b"idempotency-key", b"webhook-id", b"x-github-delivery", b"ce-id", b"x-amz-firehose-request-id")
# The field in which nginx puts the name of the API key; it takes away one that a client sends (nginx/sluice.conf)
SENDER, SENT_BY = "HTTP_SLUICE_SENDER", b"\r\nSluice-Sender: "
FIELDS = frozenset(f"HTTP_{name.decode().upper().replace('-', '_')}" for name in KEYED) | {SENDER}  # of `examine`
# The values of Content-Encoding, and whether a body needs its head: its first bytes do not show its compression
SNAPPY = "snappy", "x-snappy-framed"
ENCODINGS = {"identity": False, "gzip": False, "x-gzip": False, "zstd": False, "deflate": True}
ENCODINGS |= dict.fromkeys(SNAPPY, True)
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
MULTIPART = "multipart/form-data"
COUNTED = "io.prometheus.write.v2.Request"  # in a Content-Type; see sluice/http/written.py
DELIVERED = "HTTP_X_AMZ_FIREHOSE_REQUEST_ID"  # see sluice/http/own.py
# see `plainness`
PLAIN, BODY_ONLY, KEY_AND_BODY, SENDER_AND_BODY = "plain", "body only", "key and body", "sender and body"
START = re.compile(rb"POST (/[^ \r\n]*) HTTP/1\.[01]\r\n")  # of a whole HTTP message, its path and query


sender_heads: dict[str, bytes] = {}  # by name; functools.cache takes 0.2 µs on PyPy


class OwnAnswer(Exception):
    """Raised with keep_head: the answer to this request depends on it."""


def read(environ: dict[str, Any], keep_head: bool, max_body: int) -> bytes:
    """The item for the list: the body, or the query string if the body is empty; the whole message with keep_head, if
    the request has a key or a query string, or if the body looks like a message or is a form with spaces.

    max_body: bytes. Raises: Rejected, OwnAnswer.
    """
    plain = environ.get("fastlane.plain")
    if plain is BODY_ONLY or plain is KEY_AND_BODY or plain is SENDER_AND_BODY:  # most need nothing of what follows
        if plain is KEY_AND_BODY:
            keep_head = is_keyed(environ)
        body: bytes = environ["wsgi.input"].read()
        if not 0 < len(body) <= max_body:
            raise Rejected(too_large(max_body) if body else EMPTY)
        if plain is SENDER_AND_BODY:
            name = environ[SENDER]
            return (sender_heads.get(name) or sender_head(name)) + body
        return head(environ) + body if keep_head or (body.startswith(b"POST /") and START.match(body)) else body
    if not plain:
        keep_head = examine(environ, keep_head)
    elif "HTTP_IDEMPOTENCY_KEY" in environ:
        keep_head = is_keyed(environ)
    elif SENDER in environ:
        keep_head = True
    length = environ.get("CONTENT_LENGTH") or "0"
    if "HTTP_TRANSFER_ENCODING" in environ or not length.isdecimal():
        if not environ.get("wsgi.input_terminated") or "CONTENT_LENGTH" in environ:
            raise Rejected(NO_LENGTH)
        if environ["HTTP_TRANSFER_ENCODING"].strip().lower() != "chunked":
            raise Rejected(CODED)
        body = environ["wsgi.input"].read(max_body + 1)
        if len(body) > max_body:
            raise Rejected(too_large(max_body))
    else:
        try:
            size = int(length)
        except ValueError:  # thousands of digits
            raise Rejected(too_large(max_body)) from None
        if size > max_body:
            raise Rejected(too_large(max_body))
        body = environ["wsgi.input"].read(size)
        if len(body) != size:
            raise Rejected(CUT_OFF)
    if not body:
        query: str = environ.get("QUERY_STRING", "")
        if not query:
            raise Rejected(EMPTY)
        if not keep_head:
            return query.encode("latin-1")
    elif not keep_head and (environ.get("QUERY_STRING") or is_spaced_form(environ, body)):
        keep_head = True
    return head(environ) + body if keep_head or (body.startswith(b"POST /") and START.match(body)) else body


def without_slashes(environ: dict[str, Any]) -> dict[str, Any] | None:
    """The request without repeated slashes in its path, where nginx does not see them, either: many senders join a base
    URL that ends with a slash, and a path. None: it has none.
    """
    if "//" not in environ["PATH_INFO"]:
        return None
    same = {**environ, "PATH_INFO": re.sub("/+", "/", environ["PATH_INFO"])}
    same.pop("fastlane.head", None)  # the decoder finds itself by the path in the head
    return same


def is_spaced_form(environ: dict[str, Any], body: bytes) -> bool:
    """Whether a body says that it is a form and is not encoded as one: only the head tells it from a line of text."""
    return (
        environ.get("CONTENT_TYPE", "").lower().startswith(FORM) and not body.startswith((b"{", b"[")) and b" " in body
    )


def examine(environ: dict[str, Any], keep_head: bool) -> bool:
    """Whether the whole message is kept: also one that has a key, or a body that only its head explains.

    Raises: Rejected if the head is invalid, whatever the body is; OwnAnswer.
    """
    encoding = environ.get("HTTP_CONTENT_ENCODING", "").lower()
    is_encoded = ENCODINGS.get(encoding, False)
    if encoding and encoding not in ENCODINGS:
        listed = codings(encoding)
        if len(listed) > MAX_CODINGS or not ENCODINGS.keys() >= {*listed}:
            raise Rejected(UNSUPPORTED)
        is_encoded = any(ENCODINGS[coding] for coding in listed)
    content_type: str = environ.get("CONTENT_TYPE", "")
    keep_head = (
        is_keyed(environ)
        or keep_head
        or SENDER in environ
        or "HTTP_WEBHOOK_ID" in environ
        or "HTTP_X_GITHUB_DELIVERY" in environ
        or "HTTP_CE_ID" in environ
        or DELIVERED in environ
        or is_encoded
        or content_type.lower().startswith(MULTIPART)
    )
    if COUNTED in content_type or DELIVERED in environ:
        raise OwnAnswer(keep_head)
    return keep_head


def is_keyed(environ: dict[str, Any]) -> bool:
    """Whether a request has an Idempotency-Key. Raises: Rejected if that is malformed."""
    value: str | None = environ.get("HTTP_IDEMPOTENCY_KEY")
    if value is None:
        return False
    if not idempotency_key(value):
        raise Rejected(BAD_KEY)
    return True


def codings(encoding: str) -> list[str]:
    """The codings that a Content-Encoding lists, in the order in which they were applied (RFC 9110, 8.4)."""
    return [coding.strip() for coding in encoding.split(",")]


def plainness(environ: dict[str, Any], has_query: bool, keep_head: bool) -> str:
    """What is known of all heads with these fields, this type and this encoding: PLAIN if `examine` finds nothing but a
    key and a sender in them; BODY_ONLY, KEY_AND_BODY or SENDER_AND_BODY if there is nothing else to look at, either;
    else "".

    environ: of the fast lane, so the body has the length that the head says.
    """
    others = {name: value for name, value in environ.items() if name not in ("HTTP_IDEMPOTENCY_KEY", SENDER)}
    try:
        if examine(others, keep_head) != keep_head:
            return ""
    except (Rejected, OwnAnswer):
        return ""
    if has_query or environ.get("CONTENT_TYPE", "").lower().startswith(FORM):
        return PLAIN
    if "HTTP_IDEMPOTENCY_KEY" in environ:
        return KEY_AND_BODY
    return SENDER_AND_BODY if SENDER in environ and not keep_head else BODY_ONLY


def idempotency_key(value: str) -> str:
    """The key in the field Idempotency-Key; "" if it is malformed."""
    if match := QUOTED.fullmatch(value):
        key = re.sub(r"\\(.)", r"\1", match[1]) if "\\" in value else match[1]
    else:
        key = value if BARE.fullmatch(value) else ""
    return key if len(key) <= KEY_CHARACTERS else ""


def head(environ: dict[str, Any]) -> bytes:
    """The head: as received if the server has it (`fastlane.head`), else rebuilt with the same fields, from the decoded
    path and the query.
    """
    received: bytes | None = environ.get("fastlane.head")
    if received is not None:
        return received
    query = environ.get("QUERY_STRING")
    lines = [f"POST {environ['PATH_INFO']}{'?' + query if query else ''} HTTP/1.1"]
    for name in "CONTENT_TYPE", "CONTENT_LENGTH":
        if environ.get(name):
            lines.append(f"{name.replace('_', '-').title()}: {environ[name]}")
    for name, value in environ.items():
        if name.startswith("HTTP_") and name != "HTTP_TRANSFER_ENCODING":
            lines.append(f"{name[5:].replace('_', '-').title()}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def sender_head(name: str) -> bytes:
    """A head that says of a body only who sent it; b"" for "", which is nobody."""
    made = b"POST / HTTP/1.1%b%b\r\n\r\n" % (SENT_BY, name.encode("latin-1")) if name else b""
    return sender_heads.setdefault(name, made)
