"""Recognises plain requests: HTTP/1.1, a strict head; POST with exactly one Content-Length, GET without. Declines all
others.
"""

from __future__ import annotations

import os
import re
from io import BytesIO
from typing import Any

from gunicorn.http.wsgi import base_environ

CACHED_HEADS = 1024  # 3 kB each
MAX_CACHED_BYTES = 1024  # a longer head is not cached
TARGET = len(b"GET ")  # where the target of a GET begins
TOKEN = rb"[!#$%&'*+.^`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2, without "_", which gunicorn may drop or reject
# The path needs no decoding and cannot be read as an authority; the query is printable ASCII without a fragment.
LINE = re.compile(rb"(POST|GET) ((?:/[A-Za-z0-9._~-]+)*/?)(?:\?([!\"$-~]*))? HTTP/1\.1")
FIELDS = re.compile(rb"((?:" + TOKEN + rb":[\t -~\x80-\xff]*\r\n)+)\r\n")
FIELD = re.compile(rb"(" + TOKEN + rb"):([\t -~\x80-\xff]*)\r\n")
LENGTH = re.compile(r"0|[1-9][0-9]{0,9}")
DECLINED = frozenset((b"TRANSFER-ENCODING", b"EXPECT", b"UPGRADE", b"HTTP2-SETTINGS", b"TRAILER", b"TE"))

# The environ without the body, the length of the body in bytes, and whether the connection stays open
ParsedHead = tuple[dict[str, Any], int, bool]
KEYS = b"\r\nIdempotency-Key: ", b"\r\nidempotency-key: "
# The cache of a listener. The head of a GET with a query is there without it and without the empty line, that of a POST
# with a key without its field and without the empty line
Heads = dict[bytes, ParsedHead]


class Grammar:
    """Parses plain heads as gunicorn's parser does, and declines all others."""

    def __init__(self, cfg: Any) -> None:
        """cfg: gunicorn's settings; its limits apply."""
        self.base = base_environ(cfg)
        self.base.update({"SCRIPT_NAME": "", "SERVER_PROTOCOL": "HTTP/1.1"})
        limits = cfg.limit_request_line, cfg.limit_request_field_size
        self.max_head = min(limit for limit in (*limits, 8190) if limit > 0)
        self.max_fields = cfg.limit_request_fields if cfg.limit_request_fields > 0 else 100
        self.schemes = {name.encode(): value for name, value in cfg.secure_scheme_headers.items()}

    def parse(self, head: bytes, server: Any, heads: Heads) -> ParsedHead | None:
        """Parse a head that is not in the cache, including its empty line. None: declined. The environ is shared.

        server: the listener's name from getsockname(). heads: of the listener.
        """
        if head.startswith(b"POST "):
            return self.parse_key(head, server, heads) or self.parse_new(head, head, server, heads)
        end = head.find(b" ", TARGET)
        at = head.find(b"?", TARGET, end)
        # the query of a GET names what is asked for, and seldom comes again; the rest does
        if at == -1 or len(head) > MAX_CACHED_BYTES or not head.startswith(b"GET "):
            return self.parse_new(head, head, server, heads)
        query = head[at + 1 : end].decode("latin-1")
        # printable ASCII without a fragment, as in LINE, but in half the time
        if len(head) > self.max_head or not query.isascii() or not query.isprintable() or "#" in query:
            return None
        key = head[:at] + head[end:-4]  # whatever a client sends ends with an empty line, so no head equals it
        parsed = heads.get(key) or self.parse_new(key + b"\r\n\r\n", key, server, heads)
        if parsed is None:
            return None
        environ = parsed[0]
        environ["QUERY_STRING"] = query
        environ["RAW_URI"] = f"{environ['PATH_INFO']}?{query}"
        environ["fastlane.head"] = head
        return parsed

    def parse_key(self, head: bytes, server: Any, heads: Heads) -> ParsedHead | None:
        """Parse the head of a POST with a key, which is new in each request; the rest is not. None: it is not so."""
        at = max(map(head.find, KEYS))
        if at == -1 or len(head) > MAX_CACHED_BYTES:
            return None
        end = head.find(b"\r\n", at + 2)
        value = head[at + len(KEYS[0]) : end].decode("latin-1")
        if not value.isascii() or not value.isprintable():
            return None
        key = head[:at] + head[end:-4]
        parsed = heads.get(key)
        if parsed is None:
            parsed = self.parse_new(key + b"\r\n\r\n", key, server, heads)
            if parsed is None or "HTTP_IDEMPOTENCY_KEY" in parsed[0]:  # a second one
                heads.pop(key, None)
                return None
        environ = parsed[0]
        environ["HTTP_IDEMPOTENCY_KEY"] = value.strip(" ")
        environ["fastlane.head"] = head
        return parsed

    def parse_new(self, head: bytes, key: bytes, server: Any, heads: Heads) -> ParsedHead | None:
        """Parse a head, and cache it under the key. None: declined."""
        line, _, block = head.partition(b"\r\n")
        match = LINE.fullmatch(line)
        if match is None or len(head) > self.max_head:
            return None
        method, target, query = match.groups()
        fields = self.fields(block, server)
        if not target or fields is None:
            return None
        environ, length, keep_alive = fields
        if (length < 0) != (method == b"GET"):
            return None
        environ["REQUEST_METHOD"] = method.decode()
        environ["PATH_INFO"] = target.decode()
        environ["QUERY_STRING"] = query.decode() if query else ""
        environ["RAW_URI"] = line[len(method) + 1 : -9].decode()
        environ["fastlane.head"] = head
        parsed = environ, max(0, length), keep_alive
        if len(key) <= MAX_CACHED_BYTES:
            if len(heads) >= CACHED_HEADS:
                heads.clear()
            heads[key] = parsed
        return parsed

    def fields(self, block: bytes, server: Any) -> ParsedHead | None:
        """Parse the fields, including the empty line. None: declined. Without Content-Length the length is -1."""
        match = FIELDS.fullmatch(block)
        fields = FIELD.findall(match[1]) if match else ()
        if not fields or len(fields) > self.max_fields:
            return None
        environ = self.base.copy()
        seen = set()
        scheme, host, keep_alive = "http", "", True
        for name, raw in fields:
            name = name.upper()
            if name in seen or name in DECLINED:
                return None
            seen.add(name)
            value = raw.strip(b" \t").decode("latin-1")
            if name == b"CONTENT-TYPE":
                environ["CONTENT_TYPE"] = value
                continue
            if name == b"CONTENT-LENGTH":
                environ["CONTENT_LENGTH"] = value
                continue
            if name == b"HOST":
                host = value
            elif name == b"CONNECTION":
                if value.lower() not in ("close", "keep-alive"):
                    return None
                keep_alive = value.lower() == "keep-alive"
            elif name in self.schemes:
                # over TCP gunicorn trusts it only from some addresses
                if not isinstance(server, str) or "wsgi.url_scheme" in environ:
                    return None
                scheme = environ["wsgi.url_scheme"] = "https" if value == self.schemes[name] else "http"
            environ["HTTP_" + name.decode().replace("-", "_")] = value
        length = environ.get("CONTENT_LENGTH")
        if length is not None and not LENGTH.fullmatch(length):
            return None
        if b"HOST" not in seen:
            return None
        name, port = served(server, host, scheme)
        environ |= {"SERVER_NAME": name, "SERVER_PORT": port, "REMOTE_ADDR": "", "wsgi.url_scheme": scheme}
        environ["wsgi.input"] = BytesIO()  # of requests without a body, if they share the environ
        return environ, -1 if length is None else int(length), keep_alive


def served(server: Any, host: str, scheme: str) -> tuple[str, str]:
    """SERVER_NAME and SERVER_PORT as gunicorn sets them: on a Unix socket they come from the Host field."""
    if not isinstance(server, str):
        return server[0], str(server[1])
    name, *port = server.split(":") if ":" in server else host.split(":")
    if not host and ":" not in server:
        return server, ""
    return name, port[0] if port else {"http": "80", "https": "443"}[scheme]


def remote(peer: Any) -> dict[str, str] | None:
    """The environ entries for a client's address from accept(); None: it has none, as on most Unix sockets."""
    if isinstance(peer, tuple):
        return {"REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1])}
    return {"REMOTE_ADDR": os.fsdecode(peer)} if peer else None
