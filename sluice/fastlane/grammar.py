"""Recognises plain requests: POST, HTTP/1.1, a strict head, exactly one Content-Length. Declines all others."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from gunicorn.http.wsgi import base_environ

TOKEN = rb"[!#$%&'*+.^`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2, without "_", which gunicorn may drop or reject
# The path needs no decoding and cannot be read as an authority; the query is printable ASCII without a fragment.
REQUEST = re.compile(
    rb"POST ((?:/[A-Za-z0-9._~-]+)*/?)(?:\?([!\"$-~]*))? HTTP/1\.1\r\n((?:" + TOKEN + rb":[\t -~\x80-\xff]*\r\n)+)\r\n"
)
FIELD = re.compile(rb"(" + TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r\n")
LENGTH = re.compile(r"0|[1-9][0-9]{0,9}")
DECLINED = frozenset((b"TRANSFER-ENCODING", b"EXPECT", b"UPGRADE", b"HTTP2-SETTINGS", b"TRAILER", b"TE"))


class ParsedHead(NamedTuple):
    """The environ without the body, the length of the body in bytes, and whether the connection stays open."""

    environ: dict[str, Any]
    length: int
    keep_alive: bool


class Grammar:
    """Parses plain heads as gunicorn's parser does, and declines all others."""

    def __init__(self, cfg: Any) -> None:
        """cfg: gunicorn's settings; its limits apply."""
        self.base = base_environ(cfg)
        self.base.update({"REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "SERVER_PROTOCOL": "HTTP/1.1"})
        limits = cfg.limit_request_line, cfg.limit_request_field_size
        self.max_head = min(limit for limit in (*limits, 8190) if limit > 0)
        self.max_fields = cfg.limit_request_fields if cfg.limit_request_fields > 0 else 100
        self.schemes = {name.encode(): value for name, value in cfg.secure_scheme_headers.items()}

    def parse(self, head: bytes, server: Any) -> ParsedHead | None:
        """Parse a head, including its empty line. None: declined.

        server: the listener's name from getsockname().
        """
        match = REQUEST.fullmatch(head)
        if match is None or len(head) > self.max_head:
            return None
        target, query, block = match.groups()
        fields = FIELD.findall(block)
        if not target or len(fields) > self.max_fields:
            return None
        environ = self.base.copy()
        seen = set()
        scheme, host, keep_alive = "http", "", True
        for name, raw in fields:
            name = name.upper()
            if name in seen or name in DECLINED:
                return None
            seen.add(name)
            value = raw.decode("latin-1")
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
        if not LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "")):
            return None
        name, port = served(server, host, scheme)
        environ |= {
            "PATH_INFO": target.decode(),
            "QUERY_STRING": query.decode() if query else "",
            "RAW_URI": head[5 : head.index(b" ", 5)].decode(),
            "SERVER_NAME": name,
            "SERVER_PORT": port,
            "REMOTE_ADDR": "",
            "wsgi.url_scheme": scheme,
            "fastlane.head": head,
        }
        return ParsedHead(environ, int(environ["CONTENT_LENGTH"]), keep_alive)


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
