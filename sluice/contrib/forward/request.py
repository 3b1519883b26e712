"""What is posted of a row: the fields and the body. Of a hook they are its own, of any other row they are JSON."""

from __future__ import annotations

import time

import msgspec

from sluice.contrib.forward.client import Fields
from sluice.contrib.forward.destination import Entry, address_of, body_of
from sluice.contrib.forward.signing import Secrets, signatures
from sluice.contrib.forward.target import Target

# Fields of a kept head that are not passed on: of a connection, credentials, and those that are set here
NOT_PASSED = {
    *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"),
    *("expect", "proxy-connection", "authorization", "proxy-authorization", "cookie"),
    *("idempotency-key", "sluice-sender"),
}
SIGNED = "webhook-id", "webhook-timestamp", "webhook-signature"


class Requests:
    """Makes the requests to one receiver. Threads share it."""

    def __init__(self, target: Target) -> None:
        self.login = target.login.encode()
        self.secrets = Secrets(target.secret) if target.secret else None

    def make(self, entry: Entry) -> tuple[Fields, bytes]:
        """Raises: OSError, ValueError if the secrets cannot be read."""
        body, fields = entry.value, [("Content-Type", b"application/json")]
        if entry.is_request:
            row = msgspec.json.decode(body)
            body, fields = body_of(row), [("X-Original-URI", address_of(row).encode())]
            fields += [(name, value.encode()) for name, value in row["head"].items() if name not in NOT_PASSED]
        if self.secrets:
            seconds = int(time.time())
            made = entry.key, str(seconds), signatures(self.secrets.read(), entry.key, seconds, body)
            fields = [field for field in fields if field[0].lower() not in SIGNED]
            fields += [(name, value.encode()) for name, value in zip(SIGNED, made)]
        if self.login:
            fields.append(("Authorization", self.login))
        if not any(name.lower() == "user-agent" for name, _ in fields):
            fields.append(("User-Agent", b"Sluice"))
        return [*fields, ("Idempotency-Key", entry.key.encode())], body
