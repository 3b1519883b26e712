"""Turns the application's answers into bytes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from gunicorn.glogging import Logger
from gunicorn.http.wsgi import Response

from sluice.fastlane.connection import Connection

BROKEN = "500 Internal Server Error", [("Content-Length", "0")]
ACCESS_LOGS = "accesslog", "logconfig", "logconfig_dict", "logconfig_json", "syslog"
# A kept answer: who gets it, the answer, status and headers where they are known, whether to stay, the environ.
Pending = tuple["Connection", Iterable[bytes], Any, bool, dict[str, Any]]
Rendered = tuple[list[tuple[str, str]], str, bytes, bytes, int]


class Answers:
    """Renders the heads of answers. A headers list is rendered once and recognised by its identity."""

    def __init__(self, cfg: Any, log: Any) -> None:
        """cfg: gunicorn's settings. log: gunicorn's logger."""
        self.cfg = cfg
        self.log = log
        self.rendered: dict[int, Rendered] = {}
        # gunicorn's own logger writes an access log only when one is set
        self.logged = cfg.logger_class.access is not Logger.access or any(
            cfg.settings[name].get() for name in ACCESS_LOGS if name in cfg.settings
        )

    @staticmethod
    def closing(pending: list[Pending]) -> list[Pending]:
        """The same, but the last answer of each client closes, unless the slow lane has something to answer still."""
        last = {item[0]: number for number, item in enumerate(pending)}
        return [
            (conn, answer, started, keep_alive and (number < last[conn] or conn.declined is not None), environ)
            for number, (conn, answer, started, keep_alive, environ) in enumerate(pending)
        ]

    def render(self, status: str, headers: list[tuple[str, str]], body: bytes) -> Rendered:
        """An answer's head as bytes, for staying connected and for closing, and the length of its body.

        Remembered where the length does not depend on the body. Raises: whatever gunicorn says of a wrong header.
        """
        response = Response(SimpleNamespace(method="POST", version=(1, 1)), None, self.cfg)
        response.start_response(status, headers)
        # no Date and no Server: nginx puts its own in their place
        lines = [f"HTTP/1.1 {status}\r\n", *(f"{name}: {value}\r\n" for name, value in response.headers)]
        length = 0 if status[:3] in ("204", "304") else response.response_length
        sized = length is not None
        if not sized:
            length = len(body)
            lines.append(f"Content-Length: {length}\r\n")
        head = "".join(lines).encode("latin-1")
        entry = headers, status, head + b"\r\n", head + b"Connection: close\r\n\r\n", length
        if sized:
            if len(self.rendered) >= 256:
                self.rendered.clear()
            self.rendered[id(headers)] = entry
        return entry

    def log_access(self, status: str, headers: Any, body: bytes, environ: dict[str, Any], seconds: float) -> None:
        """gunicorn's access log, for those who want to pay for it."""
        response = SimpleNamespace(status=status, headers=headers, sent=len(body), response_length=len(body))
        names = [name for name in environ if name.startswith(("HTTP_", "CONTENT_"))]
        request = SimpleNamespace(headers=[(n.removeprefix("HTTP_").replace("_", "-"), environ[n]) for n in names])
        try:
            self.log.access(response, request, environ, timedelta(seconds=seconds))
        except Exception:  # a logger of somebody's own: the answers that follow are not its hostages
            self.log.exception("Error in the access log")
