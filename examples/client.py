"""A reference client, standard library only. It keeps one connection, and handles every answer of Sluice.

    client = Client("http://localhost:8080")
    client.post("/votes", {"poll": "cookies", "choice": "oreo"})

A client may be used by one thread.
"""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit


class Rejected(Exception):
    """The body was rejected, and would be rejected again; the text has the reason."""


class Unknown(Exception):
    """Unknown whether the body was accepted. Send it again only if a duplicate is better than a loss."""


class Client:
    """Posts to one Sluice, and waits as long as Retry-After says."""

    def __init__(self, url: str, patience: float = 600) -> None:
        """url: http(s)://host:port. patience: seconds to retry a body after a 429 or 503."""
        self.patience = patience
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection = kind(parts.netloc, timeout=30)

    def post(self, path: str, record: object) -> None:
        """Post a record, or a list of them. Raises: Rejected, Unknown; TimeoutError after `patience` seconds."""
        body = json.dumps(record).encode()
        deadline = time.monotonic() + self.patience
        while True:
            status, wait, text = self.once(path, body)
            if status < 300:
                return
            if status not in (429, 503):
                raise (Unknown if status >= 500 else Rejected)(f"{status}: {text}")
            if time.monotonic() + wait > deadline:
                raise TimeoutError(f"gave up after {self.patience:g} s: {text}")
            time.sleep(wait)

    def once(self, path: str, body: bytes) -> tuple[int, float, str]:
        """Status, seconds to wait, and the text of one answer. Raises: Unknown if there is no answer."""
        sent = False
        try:
            if self.connection.sock is None:
                self.connection.connect()
            sent = True
            self.connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = self.connection.getresponse()
            return answer.status, float(answer.headers.get("Retry-After", 1)), answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            if sent:
                raise Unknown(f"no answer: {error!r}") from error
            return 503, 1.0, f"cannot connect: {error}"
