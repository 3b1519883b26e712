"""Signatures of webhooks: the schemes, and the check that gateway and worker share. It runs on PyPy.

A signature covers the body and, with some schemes, a time, an id or the URL; the other header fields are not protected.
An attacker who records a message can send it again with its signature; TLS prevents the recording. A token signs
nothing: who knows it may send anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Union
from urllib.parse import parse_qsl

from sluice.contrib.secret_file import read_secret
from sluice.http.endpoints import Endpoint, Endpoints, kept_field
from sluice.http.replies import Rejected, problem
from sluice.http.request import MAX_PARAMETERS, environ_name, read_item
from sluice.http.routes import Reply, Route
from sluice.places import installing
from sluice.settings import SettingError, Settings

MAX_AGE_SECONDS = 300  # Standard Webhooks and Stripe: five minutes, either way
PRIME = 2**255 - 19  # of edwards25519
OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# y of the points of small order. If one of them is a public key, anybody can sign for it
SMALL = frozenset(y % PRIME for y in (0, 1, -1, OF_ORDER_8, -OF_ORDER_8))
MAX_FIELDS = 1000  # of a form
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


class Request(NamedTuple):
    """What may be signed. get: a header field by its name; "": there is none. target: path and query.

    base: of the URL as the sender knows it, such as https://a.example; "": it is not known.
    """

    get: Get
    body: bytes
    target: str = ""
    base: str = ""


class Given(NamedTuple):
    """What a request says of its signature.

    signed: what may be signed, of which one must be. signatures: of which one must match. at: when it was signed, in
    seconds since 1970, if that is signed, too.
    """

    signed: Sequence[bytes]
    signatures: Sequence[bytes]
    at: int | None = None


def hmac_sha256(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def hmac_sha1(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha1")


def itself(key: bytes, data: bytes) -> bytes:
    """The "signature" of a token."""
    return key


class Scheme(NamedTuple):
    """One way to sign, or to show a token.

    fields: the names of the header fields that may have the signature; the first that is there has. ?NAME is a
        parameter of the query.
    key: converts a secret, as the sender displays it, to the key. Raises: ValueError.
    read: parses the value of that field. Raises: ValueError.
    sign: makes the signature of data. needs_body: without a body nothing is signed. more: other fields that are read.
    """

    fields: tuple[str, ...]
    key: Callable[[str], Key]
    read: Callable[[str, Request], Given]
    sign: Callable[[bytes, bytes], bytes] = hmac_sha256
    needs_body: bool = True
    more: tuple[str, ...] = ()

    @property
    def is_token(self) -> bool:
        return self.sign is itself


def github_signature(value: str, request: Request) -> Given:
    """sha256=HEX, over the body (docs.github.com, "Validating webhook deliveries"); Meta's, Bitbucket's, too."""
    if not value.startswith("sha256="):
        raise ValueError
    return Given([request.body], [bytes.fromhex(value[7:])])


def shopify(value: str, request: Request) -> Given:
    """BASE64, over the body (shopify.dev, "Deliver webhooks through HTTPS")."""
    return Given([request.body], [b64decode(value, validate=True)])


def encoded(value: str, request: Request) -> Given:
    """HEX or BASE64 over the body, perhaps behind sha256= or v1=: as Gitea, Linear, Sentry, Typeform, PagerDuty."""
    found = []
    for text in value.split(","):
        text = re.sub("^(?:sha256|v1)=", "", text.strip())
        found.append(bytes.fromhex(text) if re.fullmatch("[0-9a-fA-F]{64}", text) else b64decode(text, validate=True))
    return Given([request.body], found)


def stripe_signature(value: str, request: Request) -> Given:
    """t=SECONDS,v1=HEX,v1=HEX, over the seconds, a dot and the body (docs.stripe.com, "Verify signatures")."""
    pairs = [part.partition("=") for part in value.split(",")]
    (seconds,) = [checked_number(text) for name, _, text in pairs if name == "t"]
    signatures = [bytes.fromhex(text) for name, _, text in pairs if name == "v1"]
    return Given([f"{seconds}.".encode() + request.body], signatures, int(seconds))


def slack(field: str, value: str, request: Request) -> Given:
    """v0=HEX, over v0, the seconds and the body with colons between them (docs.slack.dev, "Verifying requests from
    Slack"; developers.zoom.us, "Verify webhook events"). field: with the seconds.
    """
    if not value.startswith("v0="):
        raise ValueError
    seconds = checked_number(request.get(field))
    return Given([f"v0:{seconds}:".encode() + request.body], [bytes.fromhex(value[3:])], int(seconds))


def twilio(value: str, request: Request) -> Given:
    """BASE64 of HMAC-SHA1, over the URL and, of a form, its fields in the order of their names; else the URL has a hash
    of the body (twilio.com/docs, "Webhooks Security"). The URL is that of Twilio's settings.
    """
    is_form = request.get("Content-Type").lower().startswith("application/x-www-form-urlencoded")
    fields = b""
    if request.body and is_form:
        text = request.body.decode("utf-8", "surrogateescape")
        pairs = set(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
        fields = "".join(name + sent for name, sent in sorted(pairs)).encode("utf-8", "surrogateescape")
    elif request.body:
        hashed = dict(parse_qsl(request.target.partition("?")[2])).get("bodySHA256", "")
        if not hmac.compare_digest(hashed.encode(), hashlib.sha256(request.body).hexdigest().encode()):
            raise ValueError
    host = request.get("Host")
    ports = ("", ":443"), ("", ":80")
    bases = [f"{kind}://{host}{port}" for kind, some in zip(("https", "http"), ports) for port in some]
    urls = [request.base] if request.base else bases
    return Given([(url + request.target).encode("latin-1") + fields for url in urls], [b64decode(value, validate=True)])


def token(value: str, request: Request) -> Given:
    """The secret itself, perhaps behind Bearer, Token or another such word."""
    return Given([b""], [re.sub("^(?:Bearer|Token|ApiKey|Splunk|GoogleLogin auth=) *", "", value).encode("latin-1")])


def basic(value: str, request: Request) -> Given:
    """NAME:PASSWORD (RFC 7617)."""
    kind, _, text = value.partition(" ")
    if kind.lower() != "basic":
        raise ValueError
    return Given([b""], [b64decode(text.strip(), validate=True)])


def standard(value: str, request: Request) -> Given:
    """v1,BASE64 v1a,BASE64, over id, seconds and body with dots between them (standardwebhooks.com). Svix has other
    names of the same fields.

    v1 is an HMAC of 32 bytes, v1a a signature of ed25519 of 64, so neither can pass for the other.
    """
    prefix = "webhook" if request.get("webhook-signature") else "svix"
    name, seconds = request.get(f"{prefix}-id"), checked_number(request.get(f"{prefix}-timestamp"))
    if "." in name:
        raise ValueError
    given = []
    for version, _, text in (part.partition(",") for part in value.split()):
        if version in ("v1", "v1a"):
            with contextlib.suppress(ValueError):  # others may be valid
                given.append(b64decode(text))
    return Given([f"{name}.{seconds}.".encode() + request.body], given, int(seconds))


def checked_number(text: str) -> str:
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


SLACK, ZOOM = "X-Slack-Request-Timestamp", "x-zm-request-timestamp"
STANDARD = ("webhook-signature", "svix-signature"), ("webhook-id", "webhook-timestamp", "svix-id", "svix-timestamp")
SCHEMES = {
    "github": Scheme(("X-Hub-Signature-256",), str.encode, github_signature),
    "stripe": Scheme(("Stripe-Signature",), str.encode, stripe_signature),
    "standard": Scheme(STANDARD[0], standard_key, standard, more=STANDARD[1]),
    "shopify": Scheme(("X-Shopify-Hmac-Sha256",), str.encode, shopify),
    "slack": Scheme(("X-Slack-Signature",), str.encode, partial(slack, SLACK), more=(SLACK,)),
    "zoom": Scheme(("x-zm-signature",), str.encode, partial(slack, ZOOM), more=(ZOOM,)),
    "twilio": Scheme(("X-Twilio-Signature",), str.encode, twilio, hmac_sha1, False),
    "gitlab": Scheme(("X-Gitlab-Token",), str.encode, token, itself, False),
    "token": Scheme(("Authorization",), str.encode, token, itself, False),
    "basic": Scheme(("Authorization",), str.encode, basic, itself, False),
    "hmac": Scheme(("X-Signature",), str.encode, encoded),
}


def fields_of(scheme: Scheme) -> tuple[str, ...]:
    """The header fields that a scheme reads."""
    return *(name for name in scheme.fields if not name.startswith("?")), *scheme.more


class Wrong(Exception):
    """Raised with the reason: the signature is missing or not valid."""


def load_scheme(where: str, name: str, file: str) -> tuple[Scheme, list[Key]]:
    """A scheme, and the keys in a file with one per line. where: what has the secret. Raises: SettingError."""
    scheme = SCHEMES.get(name)
    if scheme is None or scheme.is_token:  # which a kept head would have
        signing = (name for name, scheme in SCHEMES.items() if not scheme.is_token)
        raise SettingError(f"{where}: {name!r} is no scheme that signs: expected {', '.join(signing)}.")
    try:
        keys = [scheme.key(line) for line in map(str.strip, read_secret(where, file).splitlines()) if line]
    except ImportError:
        raise SettingError(f"{where}: a public key needs cryptography: {installing('webhooks')} installs it.") from None
    except ValueError as error:
        if isinstance(error, SettingError):
            raise SettingError(f"{where}: {error}.") from None
        keys = []
    if not keys:
        raise SettingError(f"{where}: {file} has no line with a secret of {name}.")
    return scheme, keys


def check_signature(scheme: Scheme, keys: Sequence[Key], request: Request, now: float | None = None) -> None:
    """Check that a request is signed with one of the keys. now: Unix time, if the age counts. Raises: Wrong."""
    if scheme.needs_body and not request.body:  # the decoder would use the unsigned query string
        raise Wrong("signature: only a body can be signed")
    field = next((name for name in scheme.fields if value_of(name, request)), scheme.fields[0])
    value = value_of(field, request)
    if not value:
        raise Wrong(f"signature: {field} is missing")
    try:
        given = scheme.read(value, request)
    except ValueError:
        raise Wrong(f"signature: {field} is not understood") from None
    if now is not None and given.at is not None and abs(now - given.at) > MAX_AGE_SECONDS:
        raise Wrong("signature: its time is more than five minutes off")
    if not any(has_made(scheme, key, given.signatures[:MOST_GIVEN], data) for key in keys for data in given.signed):
        raise Wrong("signature: wrong")


def value_of(field: str, request: Request) -> str:
    """The value of a header field, or of a parameter ?NAME; "": there is none."""
    if not field.startswith("?"):
        return request.get(field)
    try:
        return dict(parse_qsl(request.target.partition("?")[2], max_num_fields=MAX_PARAMETERS)).get(field[1:], "")
    except ValueError:
        return ""


def has_made(scheme: Scheme, key: Key, signatures: Sequence[bytes], data: bytes) -> bool:
    """Whether one of the given signatures is that of a key."""
    if isinstance(key, PublicKey):
        return any(key.has_made(sent, data) for sent in signatures if len(sent) == 64)
    valid = scheme.sign(key, data)
    return any(hmac.compare_digest(sent, valid) for sent in signatures)


def load_signed(routes: Mapping[str, Route]) -> dict[str, tuple[Scheme, list[Key]]]:
    """The scheme and the keys of each route with `signed`. Raises: SettingError."""
    found = {}
    for path, route in routes.items():
        if route.signed:
            name, _, file = route.signed.partition(":")
            found[path] = load_scheme(f"INGEST_ROUTES: the secret of {path}", name, file)
    return found


def check_signed_routes(routes: Mapping[str, Route], endpoints: Endpoints, s: Settings) -> None:
    """Let the gateway check the bodies of routes with `signed`. Raises: SettingError."""
    for path, (scheme, keys) in load_signed(routes).items():
        endpoint = endpoints.plain[path]
        endpoint.read = read_signed(scheme, keys)
        endpoint.kept += map(kept_field, fields_of(scheme))


def read_signed(scheme: Scheme, keys: list[Key]) -> Callable[[dict[str, Any], Endpoint], bytes]:
    """`request.read` for a route with `signed`: a body that is not signed, or too long ago, gets 401."""

    def signed_read(environ: dict[str, Any], endpoint: Endpoint) -> bytes:
        def get(name: str) -> str:
            return str(environ.get(environ_name(name), ""))

        item = read_item(environ, endpoint)
        try:
            check_signature(scheme, keys, Request(get, item.partition(b"\r\n\r\n")[2], target_of(environ)), time.time())
        except Wrong as wrong:
            raise Rejected(unauthorized(wrong)) from None
        return item

    return signed_read


def target_of(environ: Mapping[str, Any]) -> str:
    """Path and query of a request, as they were sent."""
    return str(environ.get("RAW_URI") or environ["PATH_INFO"])


def unauthorized(wrong: Wrong) -> Reply:
    """The 401 of a request without a valid signature."""
    detail = f"S{str(wrong)[1:]}; the request had no effect."
    return problem("401 Unauthorized", detail, ("WWW-Authenticate", "Webhook"))
