"""Signatures of webhooks: the schemes, and the check that gateway and worker share. It runs on PyPy.

A signature covers the body and, with two of the schemes, a time and an id; the other header fields are not protected.
An attacker who records a message can send it again with its signature; TLS prevents the recording.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

from sluice.http.endpoints import Endpoint, Endpoints, kept_field
from sluice.http.replies import Rejected, problem
from sluice.http.request import read, variable
from sluice.http.routes import Route
from sluice.places import installing
from sluice.settings import SettingError, secret

MAX_AGE_SECONDS = 300  # Standard Webhooks and Stripe: five minutes, either way
PRIME = 2**255 - 19  # of edwards25519
OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# y of the points of small order. If one of them is a public key, anybody can sign for it
SMALL = frozenset(y % PRIME for y in (0, 1, -1, OF_ORDER_8, -OF_ORDER_8))
MOST_GIVEN = 8  # signatures in a field that are looked at: a sender with several keys makes one with each
Get = Callable[[str], str]


class PublicKey:
    """A key of ed25519 (RFC 8032). Its library is not needed for secrets, and there is none for PyPy."""

    def __init__(self, raw: bytes) -> None:
        """Raises: ValueError, ImportError, SettingError."""
        if len(raw) == 32 and (int.from_bytes(raw, "little") & (1 << 255) - 1) % PRIME in SMALL:
            raise SettingError("the public key has a small order, so anybody can sign for it")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self.key = Ed25519PublicKey.from_public_bytes(raw)

    def has_made(self, signature: bytes, data: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self.key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


Key = Union[bytes, PublicKey]  # a secret, or the public key of the sender


class Scheme(NamedTuple):
    """One way to sign: with HMAC-SHA256, or with ed25519.

    field: the name of the header field with the signature.
    key: converts a secret, as the sender displays it, to the key. Raises: ValueError.
    read: parses the value of that field; `get` returns another one by its name. Returns the bytes that are signed
        before the body, the signatures, of which one must match, and when it was signed, in seconds since 1970, if that
        is signed too. Raises: ValueError.
    """

    field: str
    key: Callable[[str], Key]
    read: Callable[[str, Get], tuple[bytes, list[bytes], int | None]]


def github(value: str, get: Get) -> tuple[bytes, list[bytes], int | None]:
    """sha256=HEX, over the body (docs.github.com, "Validating webhook deliveries")."""
    if not value.startswith("sha256="):
        raise ValueError
    return b"", [bytes.fromhex(value[7:])], None


def stripe(value: str, get: Get) -> tuple[bytes, list[bytes], int | None]:
    """t=SECONDS,v1=HEX,v1=HEX, over the seconds, a dot and the body (docs.stripe.com, "Verify signatures")."""
    pairs = [part.partition("=") for part in value.split(",")]
    (seconds,) = [number(text) for name, _, text in pairs if name == "t"]
    return f"{seconds}.".encode(), [bytes.fromhex(text) for name, _, text in pairs if name == "v1"], int(seconds)


def standard(value: str, get: Get) -> tuple[bytes, list[bytes], int | None]:
    """v1,BASE64 v1a,BASE64, over id, seconds and body with dots between them (standardwebhooks.com).

    v1 is an HMAC of 32 bytes, v1a a signature of ed25519 of 64, so neither can pass for the other.
    """
    name, seconds = get("webhook-id"), number(get("webhook-timestamp"))
    if "." in name:
        raise ValueError
    given = []
    for version, _, text in (part.partition(",") for part in value.split()):
        if version in ("v1", "v1a"):
            with contextlib.suppress(ValueError):  # others may be valid
                given.append(b64decode(text))
    return f"{name}.{seconds}.".encode(), given, int(seconds)


def number(text: str) -> str:
    """The text, if it is a number. A dot in it could shift the boundary between the number and the body."""
    if not re.fullmatch("[0-9]{1,19}", text):
        raise ValueError
    return text


def standard_key(text: str) -> Key:
    """whsec_BASE64, a secret, or whpk_BASE64, a public key. Raises: ValueError, ImportError, SettingError."""
    if text.startswith("whpk_"):
        return PublicKey(b64decode(text[5:], validate=True))
    raw = b64decode(text.removeprefix("whsec_"), validate=True)
    if not raw:  # anybody could sign with it
        raise ValueError
    return raw


SCHEMES = {
    "github": Scheme("X-Hub-Signature-256", str.encode, github),
    "stripe": Scheme("Stripe-Signature", str.encode, stripe),
    "standard": Scheme("webhook-signature", standard_key, standard),
}

FIELDS = ("webhook-id", "webhook-timestamp", *(scheme.field for scheme in SCHEMES.values()))


class Wrong(Exception):
    """Raised with the reason: the signature is missing or not valid."""


def load(where: str, name: str, file: str) -> tuple[Scheme, list[Key]]:
    """A scheme, and the keys in a file with one per line. where: what has the secret. Raises: SettingError."""
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise SettingError(f"{where}: {name!r} is no scheme: expected {', '.join(SCHEMES)}.")
    try:
        keys = [scheme.key(line) for line in map(str.strip, secret(where, file).splitlines()) if line]
    except ImportError:
        raise SettingError(f"{where}: a public key needs cryptography: {installing('webhooks')} installs it.") from None
    except ValueError as error:
        if isinstance(error, SettingError):
            raise SettingError(f"{where}: {error}.") from None
        keys = []
    if not keys:
        raise SettingError(f"{where}: {file} has no line with a secret of {name}.")
    return scheme, keys


def check(scheme: Scheme, keys: list[Key], get: Get, body: bytes, now: float | None = None) -> None:
    """Check that a body is signed with one of the keys. now: Unix time, if the age counts. Raises: Wrong."""
    if not body:  # the decoder would use the unsigned query string
        raise Wrong("signature: only a body can be signed")
    value = get(scheme.field)
    if not value:
        raise Wrong(f"signature: {scheme.field} is missing")
    try:
        before, given, signed_at = scheme.read(value, get)
    except ValueError:
        raise Wrong(f"signature: {scheme.field} is not understood") from None
    if now is not None and signed_at is not None and abs(now - signed_at) > MAX_AGE_SECONDS:
        raise Wrong("signature: older than five minutes")
    if not any(has_made(key, given[:MOST_GIVEN], before + body) for key in keys):
        raise Wrong("signature: wrong")


def has_made(key: Key, given: list[bytes], data: bytes) -> bool:
    """Whether one of the given signatures is that of a key."""
    if isinstance(key, PublicKey):
        return any(key.has_made(sent, data) for sent in given if len(sent) == 64)
    valid = hmac.digest(key, data, "sha256")
    return any(hmac.compare_digest(sent, valid) for sent in given)


def load_signed(routes: Mapping[str, Route]) -> dict[str, tuple[Scheme, list[Key]]]:
    """The scheme and the keys of each route with `signed`. Raises: SettingError."""
    found = {}
    for path, route in routes.items():
        if route.signed:
            name, _, file = route.signed.partition(":")
            found[path] = load(f"INGEST_ROUTES: the secret of {path}", name, file)
    return found


def extend(routes: Mapping[str, Route], endpoints: Endpoints) -> None:
    """Let the gateway check the bodies of routes with `signed`. Raises: SettingError."""
    for path, (scheme, keys) in load_signed(routes).items():
        endpoint = endpoints.plain[path]
        endpoint.read = reading(scheme, keys)
        endpoint.kept += map(kept_field, FIELDS)


def reading(scheme: Scheme, keys: list[Key]) -> Callable[[dict[str, Any], Endpoint], bytes]:
    """`request.read` for a route with `signed`: a body that is not signed, or too long ago, gets 401."""

    def signed_read(environ: dict[str, Any], endpoint: Endpoint) -> bytes:
        def get(name: str) -> str:
            return str(environ.get(variable(name), ""))

        item = read(environ, endpoint)
        try:
            check(scheme, keys, get, item.partition(b"\r\n\r\n")[2], time.time())
        except Wrong as wrong:
            detail = f"S{str(wrong)[1:]}; the request had no effect."
            raise Rejected(problem("401 Unauthorized", detail, ("WWW-Authenticate", "Webhook"))) from None
        return item

    return signed_read
