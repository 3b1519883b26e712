"""A reference client, standard library only. It keeps one connection, and handles every answer of Sluice.

It sends again what was not answered. Each post has a key, so it is stored once.

    client = Client("http://localhost:8080")
    client.post("/votes", {"poll": "cookies", "choice": "oreo"})

A client may be used by one thread.
"""

from __future__ import annotations

import http.client
import json
import time
import uuid
from urllib.parse import urlsplit


class Rejected(Exception):
    """The body was rejected, and would be rejected again; the text has the reason."""


class Client:
    """Posts to one Sluice, and waits as long as Retry-After says."""

    def __init__(self, url: str, patience: float = 600) -> None:
        """url: http(s)://host:port. patience: seconds to retry a body after a 429, a 5xx or no answer."""
        self.patience = patience
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection = kind(parts.netloc, timeout=30)

    def post(self, path: str, record: object, key: str | None = None) -> None:
        """Post a record, or a list of them. Raises: Rejected; TimeoutError after `patience` seconds.

        key: None: a new one; "": none, the content is enough.
        """
        body = json.dumps(record).encode()
        key = str(uuid.uuid4()) if key is None else key
        deadline = time.monotonic() + self.patience
        while True:
            status, wait, text = self.once(path, body, key)
            if status < 300:
                return
            if status != 429 and status < 500:
                raise Rejected(f"{status}: {text}")
            if time.monotonic() + wait > deadline:
                raise TimeoutError(f"gave up after {self.patience:g} s: {text}")
            time.sleep(wait)

    def once(self, path: str, body: bytes, key: str) -> tuple[int, float, str]:
        """Status, seconds to wait, and the text of one answer; 503 if there is none."""
        try:
            headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
            self.connection.request("POST", path, body, headers)
            answer = self.connection.getresponse()
            return answer.status, float(answer.headers.get("Retry-After", 1)), answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            return 503, 1.0, f"no answer: {error!r}"
