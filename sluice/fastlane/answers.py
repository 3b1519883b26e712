"""Renders the application's answers to bytes, which the loop sends to nginx."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from gunicorn.http.wsgi import Response

from sluice.fastlane.connection import DECLINED, Connection

BROKEN = "500 Internal Server Error", [("Content-Length", "0")]
CONTENT_LENGTH = b"Content-Length: %d\r\n\r\n"  # the end of a head
CONTENT_LENGTHS = tuple(CONTENT_LENGTH % size for size in range(1024))  # formatting one takes 0.1 us
REQUEST = SimpleNamespace(method="POST", version=(1, 1))  # what Response asks of one: whether it may send chunks
MAX_RENDERED_HEADS = 256  # of answers, cached, each below 1 kB
# An answer that is not iterated yet: connection, answer, (status, headers) if already started, keep-alive, environ
Pending = tuple[Connection, Iterable[bytes], Any, bool, dict[str, Any]]
# headers and status as given, head for keep-alive, head for closing, length of the body in bytes. If the length is -1,
# the heads lack the Content-Length and the empty line
Rendered = tuple[list[tuple[str, str]], str, bytes, bytes, int]


class Answers:
    """Renders the heads of answers. A headers list is rendered once and recognised by its identity."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        self.rendered: dict[int, Rendered] = {}  # by the id of the headers list

    @staticmethod
    def closing(pending: list[Pending]) -> list[Pending]:
        """The same answers, but each client's last one closes, unless the slow lane has an answer to follow."""
        last = {item[0]: number for number, item in enumerate(pending)}
        return [
            (conn, answer, started, keep_alive and (number < last[conn] or conn.state == DECLINED), environ)
            for number, (conn, answer, started, keep_alive, environ) in enumerate(pending)
        ]

    def render(self, status: str, headers: list[tuple[str, str]]) -> Rendered:
        """Render an answer's head, and cache it. Raises: gunicorn's exceptions for an invalid header."""
        response = Response(REQUEST, None, self.cfg)
        response.start_response(status, headers)
        # without Date and Server: nginx sets its own
        lines = [f"HTTP/1.1 {status}\r\n", *(f"{name}: {value}\r\n" for name, value in response.headers)]
        length = 0 if status[:3] in ("204", "304") else response.response_length
        end = b"\r\n"
        if length is None:
            length, end = -1, b""
        head = "".join(lines).encode("latin-1")
        entry = headers, status, head + end, head + b"Connection: close\r\n" + end, length
        if len(self.rendered) >= MAX_RENDERED_HEADS:
            self.rendered.clear()
        self.rendered[id(headers)] = entry
        return entry
