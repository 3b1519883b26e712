"""Counts the requests that nginx rejects itself, and keeps the last ones that nginx or the gateway rejected.

Each comes in a datagram (nginx/sluice.conf, notifier.py); some are lost when there are too many. `page`
writes them to a file for `bin/sluice errors` and the status page. A path is made printable before it is kept, and no
body, query string or key is among what comes.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections import deque
from typing import Any

from sluice import registry, settings
from sluice.base import terminal
from sluice.base.connect import connect_client
from sluice.base.counters import Counts
from sluice.base.files import replace_file
from sluice.contrib.page.notifier import rejected_socket
from sluice.spool.contract import count_command

FILE = "errors.json"
KEPT = 100  # of a kind: status and reason
KINDS = 64
DATAGRAM = 8192  # bytes; 200 control characters, each as \u0000, take 1,200
TEXT = 300  # characters of a path or a reason that are kept

REASONS = {
    400: "malformed HTTP",
    401: "wrong API key or password",
    404: "no such file",
    405: "method not allowed",
    413: "the body is larger than INGEST_MAX_BODY",
    414: "the request line is too long",
    415: "not Prometheus remote write compressed with snappy",
    421: "Host is no name of this server (INGEST_HOSTS)",
    429: "INGEST_CLIENT_RATE",
    431: "the header fields are too long",
    501: "unknown transfer coding",
    502: "the gateway is down or closed the connection",
    503: "nginx could not write the body to its disk",
    504: "the gateway did not answer in time",
    505: "unknown HTTP version",
}


def rejection_reason(told: dict[str, Any]) -> str:
    """Why a request was rejected; `told` is its datagram."""
    status = told["status"]
    if "reason" in told:  # by the gateway: one sentence, without what it says to every client
        return re.sub(r"; (the request|it) had no effect\.$|\.$", "", str(told["reason"]).partition(": ")[0])
    if status == 400 and told.get("https") == "":
        return "HTTP on a port of HTTPS"
    if status == 401 and not told.get("given"):
        return "no API key or password"
    if status == 403 and told.get("name") and told.get("forbidden"):
        return "the key may not post to this path"
    if status == 403 and told.get("forwarded") and not told.get("foreign"):
        return "it came through a proxy on this machine (INGEST_PROXIES)"
    if status == 403:
        return "a page of another site (INGEST_CORS)" if told.get("foreign") else "the address has no access"
    if status == 429 and told.get("connections") == "REJECTED":
        return "INGEST_CLIENT_CONNECTIONS"
    if status == 429 and told.get("name"):
        return "the rate of the key, or INGEST_CLIENT_RATE"
    return REASONS.get(status, "rejected")


class Rejections:
    def __init__(self, s: settings.Settings, timeout: float) -> None:
        """timeout: seconds to wait for Redis."""
        self.counts = Counts()
        self.senders = [make(self.counts) for make in registry.load_hooks("senders")]
        self.redis: Any = connect_client(s.figures, timeout)
        self.file = s.home / "run" / FILE
        self.kinds: dict[tuple[int, str], deque[dict[str, Any]]] = {}
        self.lock = threading.Lock()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # what was kept survives a restart
            for entry in reversed(json.loads(self.file.read_text())):
                self.keep(entry)
        self.is_new = True
        place = rejected_socket(s.home)
        place.unlink(missing_ok=True)
        self.inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.inbox.bind(str(place))
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while True:
            try:
                self.add(self.inbox.recv(DATAGRAM))
            except Exception as error:  # one datagram is counted less
                terminal.complain(f"a rejected request is not counted: {error}")

    def add(self, datagram: bytes) -> None:
        """Count and keep one request. Raises: ValueError if the datagram is malformed."""
        told = json.loads(datagram[datagram.index(b"{") :].decode("utf-8", "replace"))
        if "reason" not in told:  # the gateway counts its own answers
            self.counts.counter(f"answered {told['status']} nginx").n += 1
            for count in self.senders:
                count.rejected(told["status"], told.get("name", ""))
        texts = {
            "path": told["path"],
            "reason": rejection_reason(told),
            "sender": " ".join(filter(None, (told.get("name"), told["from"]))),
        }
        entry = {name: terminal.printable(text)[:TEXT] for name, text in texts.items()}
        with self.lock:
            self.keep({"time": round(time.time(), 3), "status": int(told["status"])} | entry)

    def keep(self, entry: dict[str, Any]) -> None:
        kind = entry["status"], entry["reason"]
        if kind not in self.kinds and len(self.kinds) >= KINDS:
            kind = entry["status"], ""
        self.kinds.setdefault(kind, deque(maxlen=KEPT)).append(entry)
        self.is_new = True

    def write(self) -> None:
        """Write what is kept, newest first, if there is more than at the last call. Raises: OSError."""
        with self.lock:
            if not self.is_new:
                return
            entries = [entry for kept in self.kinds.values() for entry in kept]
            self.is_new = False
        newest_first = sorted(entries, key=lambda entry: entry["time"])[::-1]
        replace_file(self.file, json.dumps(newest_first, separators=(",", ":")))

    def report(self) -> None:
        """Add the counts to those in Redis. Raises: RedisError, OSError."""
        if delta := self.counts.delta():
            self.redis.execute_command(*count_command(delta))
            self.counts.confirm(delta)
