"""Signatures as their senders document them are valid, and no others are."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import NamedTuple

import pytest

from support.folders import needs

pytestmark = needs("access")
BODY = b'{"event_type":"ping","data":{"success":true}}'
AT = 1_731_705_121
URL = "https://mycompany.com", "/myapp.php?foo=1&bar=2"
SLASH_COMMAND = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
CALL = b"CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212"


class Case(NamedTuple):
    """A signed request; at: when."""

    scheme: str
    secret: str
    fields: dict[str, str]
    body: bytes
    at: int = AT
    target: str = "/hooks/a"
    base: str = ""


def hexadecimal(secret: str, data: bytes) -> str:
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def in_base64(secret: str, data: bytes) -> str:
    return base64.b64encode(hmac.new(secret.encode(), data, hashlib.sha256).digest()).decode()


CASES = {
    # standardwebhooks.com and docs.svix.com, "Verifying webhooks manually": the same example
    "standard": Case("standard", "whsec_plJ3nmyCDGBKInavdOK15jsl", {
        "webhook-id": "msg_loFOjxBNrRLzqYUf", "webhook-timestamp": "1731705121",
        "webhook-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="}, BODY),
    "svix": Case("svix", "whsec_plJ3nmyCDGBKInavdOK15jsl", {
        "svix-id": "msg_loFOjxBNrRLzqYUf", "svix-timestamp": "1731705121",
        "svix-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="}, BODY),
    # docs.github.com, "Validating webhook deliveries", "Testing the webhook payload validation"
    "github": Case("github", "It's a Secret to Everybody", {
        "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
        b"Hello, World!"),
    # docs.slack.dev, "Verifying requests from Slack"
    "slack": Case("slack", "8f742231b10e8888abcd99yyyzzz85a5", {
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"},
        SLASH_COMMAND, 1_531_420_618),
    # twilio.com/docs, "Webhooks Security", with the numbers of twilio-python's own test
    "twilio": Case("twilio", "12345", {
        "X-Twilio-Signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8=", "Content-Type": "application/x-www-form-urlencoded"},
        CALL, AT, URL[1], URL[0]),
    "twilio, host": Case("twilio", "12345", {
        "X-Twilio-Signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8=", "Content-Type": "application/x-www-form-urlencoded",
        "Host": "mycompany.com"}, CALL, AT, URL[1]),
    # docs.stripe.com, "Verify signatures manually"
    "stripe": Case("stripe", "whsec_a", {
        "Stripe-Signature": f"t={AT},v1={hexadecimal('whsec_a', b'%d.' % AT + BODY)},v0=6ffbb59b"}, BODY),
    # shopify.dev, "Deliver webhooks through HTTPS"
    "shopify": Case("shopify", "hush", {"X-Shopify-Hmac-Sha256": in_base64("hush", BODY)}, BODY),
    # developers.zoom.us, "Verify webhook events"
    "zoom": Case("zoom", "z", {
        "x-zm-request-timestamp": str(AT), "x-zm-signature": "v0=" + hexadecimal("z", b"v0:%d:" % AT + BODY)}, BODY),
    # docs.gitlab.com, "Webhooks", "Validate payloads by using a secret token"
    "gitlab": Case("gitlab", "s3cret", {"X-Gitlab-Token": "s3cret"}, BODY),
    "token": Case("token", "s3cret", {"Authorization": "Bearer s3cret"}, BODY),
    "token in a query": Case("token parameter=key", "s3cret", {}, b"", AT, "/hooks/a?key=s3cret&v=1"),
    # core.telegram.org/bots/api, setWebhook
    "telegram": Case("token field=X-Telegram-Bot-Api-Secret-Token", "s3cret",
                     {"X-Telegram-Bot-Api-Secret-Token": "s3cret"}, BODY),
    "basic": Case("basic", "jane:s3cret", {"Authorization": "Basic amFuZTpzM2NyZXQ="}, BODY),
    # linear.app/developers/webhooks; typeform.com/developers, "Secure your webhooks"; developer.pagerduty.com
    "linear": Case("hmac field=Linear-Signature", "k", {"Linear-Signature": hexadecimal("k", BODY)}, BODY),
    "typeform": Case("hmac field=Typeform-Signature", "k", {
        "Typeform-Signature": "sha256=" + in_base64("k", BODY)}, BODY),
    "pagerduty": Case("hmac field=X-PagerDuty-Signature", "k", {
        "X-PagerDuty-Signature": f"v1={'0' * 64},v1={hexadecimal('k', BODY)}"}, BODY),
    # developer.calendly.com, "Webhook signatures"
    "calendly": Case("stripe field=Calendly-Webhook-Signature", "k", {
        "Calendly-Webhook-Signature": f"t={AT},v1={hexadecimal('k', b'%d.' % AT + BODY)}"}, BODY),
}  # fmt: skip


def verdict(case: Case, secret: str = "", body: bytes | None = None, at: int = 0) -> str:
    """What is said of the signature; "": it is valid."""
    from sluice.contrib.access.signature import Request, Wrong, check_signature
    from sluice.contrib.hooks.config import scheme_of

    name, *places = case.scheme.split()
    words = dict(place.split("=") for place in places) | {"scheme": name, "secret": secret or case.secret}
    scheme, keys = scheme_of({key: [value] for key, value in words.items()})
    fields = {key.lower(): value for key, value in case.fields.items()}
    request = Request(
        lambda name: fields.get(name.lower(), ""), case.body if body is None else body, case.target, case.base
    )
    try:
        check_signature(scheme, keys, request, at or case.at)
    except Wrong as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize("name", CASES)
def test_a_signature_of_its_documentation_is_valid_and_no_other_is(name: str) -> None:
    case = CASES[name]
    assert verdict(case) == ""
    other = "whsec_AAAA" if "whsec_p" in case.secret else "other:one"
    assert verdict(case, other) == "signature: wrong"
    assert verdict(case._replace(fields={}, target="/hooks/a")).endswith("is missing")
    signs = "token" not in case.scheme and case.scheme not in ("basic", "gitlab")
    if signs:
        assert verdict(case, body=case.body + b"&a=b") == "signature: wrong"
    else:
        assert verdict(case, body=b"other") == ""
    timed = case.scheme.split()[0] in ("standard", "svix", "slack", "stripe", "zoom")
    for seconds in -301, 301:
        assert verdict(case, at=case.at + seconds) == (
            "signature: its time is more than five minutes off" if timed else ""
        )
    assert verdict(case, at=case.at + 299) == verdict(case, at=case.at - 299) == ""


def test_a_body_that_is_no_form_of_twilio_has_its_hash_in_the_url() -> None:
    body = b'{"a":1}'
    target = f"/hooks/a?bodySHA256={hashlib.sha256(body).hexdigest()}"
    made = base64.b64encode(hmac.digest(b"12345", (URL[0] + target).encode(), "sha1")).decode()
    case = Case(
        "twilio", "12345", {"X-Twilio-Signature": made, "Content-Type": "application/json"}, body, AT, target, URL[0]
    )
    assert verdict(case) == ""
    assert verdict(case, body=b"{}") == "signature: X-Twilio-Signature is not understood"
