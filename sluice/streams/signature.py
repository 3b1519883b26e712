"""Signed webhooks: whether a kept message comes from who knows the secret, before anything of it is decoded.

Only the body is signed, and with two of the schemes a time and a name; the rest of the head is anybody's word. Who
overhears a message can send it again with its signature; TLS keeps it from being overheard.
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

    field: the name of the field with the signature.
    key: from a secret as its user is given it to the bytes that sign. Raises: ValueError.
    read: from that field's value and the message to what is signed before the body, and the signatures, any of which
        will do. Raises: ValueError if they are none.
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
    """t=SECONDS,v1=HEX,v1=HEX, over the seconds, a point and the body (docs.stripe.com, "Verify signatures")."""
    pairs = [part.partition("=") for part in value.split(",")]
    (seconds,) = [number(text) for name, _, text in pairs if name == "t"]
    return f"{seconds}.".encode(), [bytes.fromhex(text) for name, _, text in pairs if name == "v1"]


def standard(value: str, message: Message) -> tuple[bytes, list[bytes]]:
    """v1,BASE64 v1,BASE64, over name, seconds and body with points between (standardwebhooks.com)."""
    name, seconds = message.field("webhook-id"), number(message.field("webhook-timestamp"))
    if "." in name:
        raise ValueError
    return f"{name}.{seconds}.".encode(), [b64decode(text[3:]) for text in value.split() if text.startswith("v1,")]


def number(text: str) -> str:
    """The text, if it is a number. With a point in it, the body's beginning could pass for what stands before it."""
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
    """See that a list item is a message which one of the keys has signed. Raises: Invalid."""
    message = parse(item)
    if message is None:
        raise Invalid("signature: there is no head; the route needs keep_head=True")
    if not message.body:  # the query string would be taken for it
        raise Invalid("signature: only a body can be signed")
    value = message.field(scheme.field)
    if not value:
        raise Invalid(f"signature: {scheme.field} is missing")
    try:
        before, given = scheme.read(value, message)
    except ValueError:
        raise Invalid(f"signature: {scheme.field} is not understood") from None
    made = [hmac.digest(key, before + message.body, "sha256") for key in keys]
    if not any(hmac.compare_digest(one, other) for one in given for other in made):
        raise Invalid("signature: wrong")


def signed(stream: Stream, secrets: str, scheme: str) -> Stream:
    """The same stream, but a body that none of the secrets has signed is buried whole, with that reason.

    Its routes keep the head.

    secrets: the path of a file with one secret a line; the new one and the old one while they change.
    scheme: github, stripe or standard (standardwebhooks.com).
    Raises: SettingError if the file or the scheme makes no sense.
    """
    name = f"the secret of the stream {stream.name!r}"
    rules = SCHEMES.get(scheme)
    if rules is None:
        raise settings.SettingError(f"scheme={scheme!r} is none of {', '.join(SCHEMES)}")
    text = settings.secret(name, secrets)
    try:
        keys = [rules.key(line) for line in map(str.strip, text.splitlines()) if line]
    except ValueError:
        keys = []
    if not keys:
        raise settings.SettingError(f"{name}: {secrets} has not one of {scheme} a line")

    def decode(item: bytes, bounds: Limits) -> Iterable[Record | Reject]:
        try:
            verify(item, rules, keys)
        except Invalid as error:
            return (Reject(item, str(error), True),)
        return stream.decode(item, bounds)

    return stream._replace(decode=decode, part=stream.decode)
