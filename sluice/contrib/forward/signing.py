"""Signatures of what is posted on, as Standard Webhooks has them (github.com/standard-webhooks/standard-webhooks)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Sequence

PREFIX = "whsec_"
LEAST_BYTES = 24  # of a secret


class Secrets:
    """The secrets in a file, one a line: the file is read again when it has changed.

    With two of them a request has two signatures, so that a receiver can change its secret.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen = (0, 0)
        self.keys: list[bytes] = []

    def read(self) -> Sequence[bytes]:
        """Raises: OSError, ValueError."""
        found = os.stat(self.path)
        seen = found.st_mtime_ns, found.st_ino
        if seen != self.seen:
            with open(self.path, encoding="ascii") as file:
                self.keys = [key_of(line.strip()) for line in file if line.strip()]
            if not self.keys:
                raise ValueError("it has no secret")
            self.seen = seen
        return self.keys


def key_of(secret: str) -> bytes:
    """Raises: ValueError, which does not quote the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or len(key) < LEAST_BYTES:
        raise ValueError(f"a secret is {PREFIX} and the base64 of at least {LEAST_BYTES} bytes")
    return key


def signatures(keys: Sequence[bytes], name: str, seconds: int, body: bytes) -> str:
    """The value of webhook-signature. name: webhook-id. seconds: webhook-timestamp."""
    signed = b"%b.%d.%b" % (name.encode(), seconds, body)
    made = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(each).decode()}" for each in made)
