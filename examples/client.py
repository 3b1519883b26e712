"""A reference client, standard library only: one kept connection, and what to do with each answer.

    client = Client("http://localhost:8080")
    client.post("/votes", {"poll": "cookies", "choice": "oreo"})

A client is for one thread.
"""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit


class Refused(Exception):
    """The body was not taken and never will be as it stands; the text says why."""


class Unknown(Exception):
    """Nobody knows whether the body was taken. Send it again if twice is better than never."""


class Client:
    """Posts to one Sluice, and waits when it is told to."""

    def __init__(self, url: str, patience: float = 600) -> None:
        """url: http(s)://host:port. patience: seconds that a body is tried for while it is put off."""
        self.patience = patience
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection = kind(parts.netloc, timeout=30)

    def post(self, path: str, record: object) -> None:
        """Post a record, or a list of them. Raises: Refused, Unknown, TimeoutError when patience ends."""
        body = json.dumps(record).encode()
        deadline = time.monotonic() + self.patience
        while True:
            status, wait, text = self.once(path, body)
            if status < 300:
                return
            if status not in (429, 503):
                raise (Unknown if status >= 500 else Refused)(f"{status}: {text}")
            if time.monotonic() + wait > deadline:
                raise TimeoutError(f"put off for {self.patience:g} s: {text}")
            time.sleep(wait)

    def once(self, path: str, body: bytes) -> tuple[int, float, str]:
        """Status, seconds to wait, and the text of one answer. Raises: Unknown if there is none."""
        sent = False
        try:
            self.connection.connect() if self.connection.sock is None else None
            sent = True
            self.connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = self.connection.getresponse()
            return answer.status, float(answer.headers.get("Retry-After", 1)), answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            if sent:
                raise Unknown(f"no answer: {error!r}") from error
            return 503, 1.0, f"cannot connect: {error}"
