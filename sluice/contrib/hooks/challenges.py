"""What a sender asks before it sends, or to see whether the receiver is its owner's; each from its documentation.

`ask` answers what comes without a body, before a signature is looked at: there is none. `answer` answers what comes
with one, after the signature. What is answered has no row. It runs on PyPy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from sluice.contrib.hooks.config import Hook
from sluice.http.replies import NOT_FOUND, problem
from sluice.http.request import MAX_PARAMETERS
from sluice.http.routes import JSON, Reply, reply

MOST = 16_384  # bytes of a body that may be a challenge
MOST_TEXT = 4096  # characters of a text that is sent back
# A browser must not take for a page what a stranger made this server send back
PLAIN = "text/plain; charset=utf-8"
NOSNIFF = ("X-Content-Type-Options", "nosniff")
FORBIDDEN = problem("403 Forbidden", "The token is not that of this hook; the request had no effect.")
HOOK_SECRET, OKTA, TWITCH = (
    "HTTP_X_HOOK_SECRET",
    "HTTP_X_OKTA_VERIFICATION_CHALLENGE",
    "HTTP_TWITCH_EVENTSUB_MESSAGE_TYPE",
)
FIELDS = HOOK_SECRET, OKTA, TWITCH  # in environ
QUERIES = (
    "hallenge=",
    "validationToken=",
    "challenge_code=",
    "echostr=",
    "crc_token=",
    "verify=",
)  # what asks in a query


def ask(hook: Hook, environ: Mapping[str, Any], query: str) -> Reply | None:
    """The answer to a request without a body, or whose query asks; None: it asks nothing."""
    known = hook.challenges
    if OKTA in environ and "okta" in known:
        return in_json({"verification": environ[OKTA]})
    if HOOK_SECRET in environ and "asana" in known:  # Asana's handshake
        return reply("204 No Content", b"", "", ("X-Hook-Secret", str(environ[HOOK_SECRET])))
    if not any(name in query for name in QUERIES):
        return None
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS))
    except ValueError:
        return None
    if "validationToken" in given and "microsoft" in known:  # Microsoft Graph
        return as_text(given["validationToken"])
    if environ["REQUEST_METHOD"] != "GET":
        return None
    if given.get("hub.mode") in ("subscribe", "unsubscribe") and "hub.challenge" in given:
        if "meta" not in known and "strava" not in known:
            return None
        sent, expected = given.get("hub.verify_token", "").encode(), hook.verify.encode()
        if hook.verify and not hmac.compare_digest(sent, expected):
            return FORBIDDEN
        if "strava" in known and ("meta" not in known or "strava" in str(environ["PATH_INFO"]).lower()):
            return in_json({"hub.challenge": given["hub.challenge"]})
        return as_text(given["hub.challenge"])  # Meta, WebSub
    if "fitbit" in known and hook.verify and given.keys() == {"verify"}:  # also with a wrong code, which must get a 404
        is_right = hmac.compare_digest(given["verify"].encode(), hook.verify.encode())
        return reply("204 No Content", b"", "") if is_right else NOT_FOUND
    if "wechat" in known and given.keys() >= {"signature", "timestamp", "nonce", "echostr"}:
        signed = "".join(sorted((hook.verify, given["timestamp"], given["nonce"])))
        expected = hashlib.sha1(signed.encode(errors="replace")).hexdigest().encode()  # noqa: S324
        if hook.verify and not hmac.compare_digest(given["signature"].encode(), expected):
            return FORBIDDEN
        return as_text(given["echostr"])
    if "ebay" in known and hook.verify and "challenge_code" in given:
        signed = f"{given['challenge_code']}{hook.verify}{hook.url}{environ['PATH_INFO']}"
        return in_json({"challengeResponse": hashlib.sha256(signed.encode(errors="replace")).hexdigest()})
    if "x" in known and "crc_token" in given and hook.secret:
        made = hmac.digest(hook.secret.encode(), given["crc_token"].encode(errors="replace"), "sha256")
        return in_json({"response_token": f"sha256={b64encode(made).decode()}"})
    if given.keys() == {"challenge"} and "dropbox" in known:  # Dropbox, Nylas
        return as_text(given["challenge"])
    return None


def answer(hook: Hook, environ: Mapping[str, Any], body: bytes) -> Reply | None:
    """The answer to a body that asks; None: it does not.

    Each one that asks has the word challenge (Slack, Lark, monday, Twitch) or validation (Zoom, Event Grid), but
    Discord's.
    """
    known = hook.challenges
    if len(body) > MOST:
        return None
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(sent, list) and len(sent) == 1:
        return validated(sent[0]) if "eventgrid" in known else None
    if not isinstance(sent, dict):
        return None
    challenge = sent.get("challenge")
    if isinstance(challenge, str) and len(challenge) <= MOST_TEXT:
        if environ.get(TWITCH) == "webhook_callback_verification":
            return as_text(challenge) if "twitch" in known else None
        if "smartsheet" in known and sent.keys() == {"challenge", "webhookId"}:
            return in_json({"smartsheetHookResponse": challenge})
        if "slack" in known and (sent.get("type") == "url_verification" or len(sent) == 1):  # Slack, Lark; monday
            return in_json({"challenge": challenge})
    if sent.get("lifecycle") == "PING" and "smartthings" in known:
        challenge = inner(sent, "pingData").get("challenge")
        if isinstance(challenge, str) and len(challenge) <= MOST_TEXT:
            return in_json({"pingData": {"challenge": challenge}})
    if sent.get("event") == "endpoint.url_validation" and "zoom" in known and hook.secret:
        token = inner(sent, "payload").get("plainToken")
        if isinstance(token, str):
            made = hmac.digest(hook.secret.encode(), token.encode(errors="replace"), "sha256").hex()
            return in_json({"plainToken": token, "encryptedToken": made})
    if sent.get("type") == 1 and "application_id" in sent and "discord" in known:
        return in_json({"type": 1})
    return None


def validated(event: object) -> Reply | None:
    """The answer to an event of Azure Event Grid that asks."""
    if not isinstance(event, dict) or event.get("eventType") != "Microsoft.EventGrid.SubscriptionValidationEvent":
        return None
    code = inner(event, "data").get("validationCode")
    return in_json({"validationResponse": code}) if isinstance(code, str) and len(code) <= MOST_TEXT else None


def inner(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = members.get(name)
    return found if isinstance(found, dict) else {}


def in_json(members: dict[str, Any]) -> Reply:
    return reply("200 OK", json.dumps(members).encode(), JSON, NOSNIFF)


def as_text(text: str) -> Reply:
    return reply("200 OK", text[:MOST_TEXT].encode(errors="replace"), PLAIN, NOSNIFF)


def fastly(services: list[str]) -> Reply:
    """The answer to Fastly's challenge: the hashes of the services that may send here; * is any."""
    lines = ["*" if service == "*" else hashlib.sha256(service.encode()).hexdigest() for service in services]
    return reply("200 OK", "".join(f"{line}\n" for line in lines).encode(), PLAIN)
