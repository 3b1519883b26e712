"""Tells the program `page` which request a gateway rejects, so that an operator sees it (`bin/sluice errors`)."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.http.routes import Reply
from sluice.settings import Settings

MOST_PATH = 200  # characters of a path that are told; nginx/sluice.conf has the same bound
MOST_TOLD = 100  # per second and process: as many as `page` keeps of a kind


def rejected_socket(home: Path) -> Path:
    """The socket at which nginx and the gateway tell the program `page` what they reject."""
    return home / "run/rejected.sock"


class PageNotifier:
    """Sends a datagram for a rejected request, at most MOST_TOLD a second, and never waits: unread ones are lost."""

    def __init__(self, s: Settings) -> None:
        self.path = str(rejected_socket(s.home))  # it need not exist yet
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.second = self.told = 0

    def tell(self, reply: Reply, path: str, environ: Mapping[str, Any] | None = None) -> None:
        """reply: made by `replies.problem`. path: of the route; environ has that of an unknown one, and the sender."""
        if self.may_tell():
            about = environ or {}
            reason = json.loads(b"".join(reply.chunks))["detail"]
            self.send(int(reply.status[:3]), path or about.get("PATH_INFO", ""), client_address(about), reason)

    def tell_malformed(self, status: int, reason: str, begin: bytes) -> None:
        """begin: the first bytes of a request that cannot be parsed."""
        if self.may_tell():
            path = re.match(rb"[A-Z]+ ([^\s?]+)", begin)
            found = "" if path is None else path[1].decode("latin-1")
            self.send(status, found, client_address({"fastlane.head": begin.partition(b"\r\n\r\n")[0]}), reason)

    def may_tell(self) -> bool:
        second = int(time.monotonic())
        if second != self.second:
            self.second, self.told = second, 0
        self.told += 1
        return self.told <= MOST_TOLD

    def send(self, status: int, path: str, whose: str, reason: str) -> None:
        entry = {"status": status, "path": path[:MOST_PATH], "from": whose, "reason": reason}
        with contextlib.suppress(OSError):
            self.socket.sendto(json.dumps(entry).encode(), self.path)


def client_address(environ: Mapping[str, Any]) -> str:
    """The address that nginx passes; "": it is a plain route, where nginx passes what the gateway needs only."""
    head: bytes = environ.get("fastlane.head", b"")
    found = re.search(rb"\r\nX-Real-IP: ([^\r]{0,64})", head)
    return found[1].decode("latin-1") if found else str(environ.get("HTTP_X_REAL_IP", ""))
