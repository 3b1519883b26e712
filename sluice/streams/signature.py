"""Signed webhooks: the worker checks the signature of a kept message before it decodes the body.

A signature covers the body and, with two of the schemes, a time and an id; the other header fields are not protected.
An attacker who records a message can send it again with its signature; TLS prevents the recording.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sluice import settings
from sluice.streams.message import Message, parse
from sluice.streams.record import Invalid, Limits, Record, Reject
from sluice.streams.registry import Stream


class Scheme(NamedTuple):
    """One way to sign with HMAC-SHA256.

    field: the name of the header field with the signature.
    key: converts a secret, as the sender displays it, to the key. Raises: ValueError.
    read: parses the value of that field. Returns the bytes that are signed before the body, and the signatures, of
        which one must match. Raises: ValueError.
    """

    field: str
    key: Callable[[str], bytes]
    read: Callable[[str, Message], tuple[bytes, list[bytes]]]


def github(value: str, message: Message) -> tuple[bytes, list[bytes]]:
    """sha256=HEX, over the body (docs.github.com, "Validating webhook deliveries")."""
    if not value.startswith("sha256="):
        raise ValueError
    return b"", [bytes.fromhex(value[7:])]


def stripe(value: str, message: Message) -> tuple[bytes, list[bytes]]:
    """t=SECONDS,v1=HEX,v1=HEX, over the seconds, a dot and the body (docs.stripe.com, "Verify signatures")."""
    pairs = [part.partition("=") for part in value.split(",")]
    (seconds,) = [number(text) for name, _, text in pairs if name == "t"]
    return f"{seconds}.".encode(), [bytes.fromhex(text) for name, _, text in pairs if name == "v1"]


def standard(value: str, message: Message) -> tuple[bytes, list[bytes]]:
    """v1,BASE64 v1,BASE64, over id, seconds and body with dots between them (standardwebhooks.com)."""
    name, seconds = message.field("webhook-id"), number(message.field("webhook-timestamp"))
    if "." in name:
        raise ValueError
    return f"{name}.{seconds}.".encode(), [b64decode(text[3:]) for text in value.split() if text.startswith("v1,")]


def number(text: str) -> str:
    """The text, if it is a number. A dot in it could shift the boundary between the number and the body."""
    if not re.fullmatch("[0-9]+", text):
        raise ValueError
    return text


SCHEMES = {
    "github": Scheme("X-Hub-Signature-256", str.encode, github),
    "stripe": Scheme("Stripe-Signature", str.encode, stripe),
    "standard": Scheme(
        "webhook-signature", lambda text: b64decode(text.removeprefix("whsec_"), validate=True), standard
    ),
}


def verify(item: bytes, scheme: Scheme, keys: list[bytes]) -> None:
    """Check that a list item is a message signed with one of the keys. Raises: Invalid."""
    message = parse(item)
    if message is None:
        raise Invalid("signature: there is no head; the route needs keep_head=True")
    if not message.body:  # the decoder would use the unsigned query string
        raise Invalid("signature: only a body can be signed")
    value = message.field(scheme.field)
    if not value:
        raise Invalid(f"signature: {scheme.field} is missing")
    try:
        before, given = scheme.read(value, message)
    except ValueError:
        raise Invalid(f"signature: {scheme.field} is not understood") from None
    made = [hmac.digest(key, before + message.body, "sha256") for key in keys]
    if not any(hmac.compare_digest(sent, valid) for sent in given for valid in made):
        raise Invalid("signature: wrong")


def signed(stream: Stream, secrets: str, scheme: str) -> Stream:
    """The stream with a check: a body that is not signed with one of the secrets is buried whole.

    Its routes must have keep_head=True.

    secrets: the path of a file with one secret per line; the old and the new one while a secret is replaced.
    scheme: github, stripe or standard (standardwebhooks.com).
    Raises: SettingError if the scheme is unknown, or the file has no valid secret.
    """
    name = f"the secret of the stream {stream.name!r}"
    rules = SCHEMES.get(scheme)
    if rules is None:
        raise settings.SettingError(f"scheme={scheme!r} is invalid: expected {', '.join(SCHEMES)}.")
    text = settings.secret(name, secrets)
    try:
        keys = [rules.key(line) for line in map(str.strip, text.splitlines()) if line]
    except ValueError:
        keys = []
    if not keys:
        raise settings.SettingError(f"{name}: {secrets} has no line with a secret of {scheme}.")

    def decode(item: bytes, limits: Limits) -> Iterable[Record | Reject]:
        try:
            verify(item, rules, keys)
        except Invalid as error:
            return (Reject(item, str(error), True),)
        return stream.decode(item, limits)

    return stream._replace(decode=decode, part=stream.decode)
