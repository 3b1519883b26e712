"""The libraries of Svix, Stripe and Slack sign and verify: sign.py reads JSON and writes JSON.

Given secret, body, id and time (seconds), it prints the header fields with which each library signs the body. Given
`ours`, header fields that Sluice has made, it prints whether Svix's library takes them for the body, and for another.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import Any


def signed(secret: str, body: str, id: str, time: int) -> dict[str, dict[str, str]]:
    import stripe
    from slack_sdk.signature import SignatureVerifier
    from svix.webhooks import Webhook

    at = datetime.fromtimestamp(time, timezone.utc)
    made = stripe.WebhookSignature._compute_signature(f"{time}.{body}", secret)
    fields = {
        "svix": {"svix-id": id, "svix-timestamp": str(time), "svix-signature": Webhook(secret).sign(id, at, body)},
        "stripe": {"Stripe-Signature": f"t={time},v1={made}"},
        "slack": {
            "X-Slack-Request-Timestamp": str(time),
            "X-Slack-Signature": SignatureVerifier(secret).generate_signature(timestamp=str(time), body=body) or "",
        },
    }
    stripe.WebhookSignature.verify_header(body, fields["stripe"]["Stripe-Signature"], secret, 300)  # raises
    return fields


def verified(secret: str, body: str, fields: dict[str, str]) -> bool:
    from svix.webhooks import Webhook, WebhookVerificationError

    try:
        Webhook(secret).verify(body, fields)
    except WebhookVerificationError:
        return False
    return True


def main() -> None:
    sent: dict[str, Any] = json.load(sys.stdin)
    ours = sent.pop("ours", None)
    if ours is None:
        print(json.dumps(signed(**sent)))
    else:
        print(json.dumps([verified(sent["secret"], body, ours) for body in (sent["body"], sent["body"] + " ")]))


if __name__ == "__main__":
    main()
