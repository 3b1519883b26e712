"""Requests of public senders of webhooks, each from its own documentation, and the row that must come of each."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Sent(NamedTuple):
    """A request. row: what must be in its row; None: it gets an answer, and no row."""

    sender: str
    path: str
    fields: dict[str, str]
    body: bytes | str
    row: dict[str, Any] | None
    method: str = "POST"
    answer: bytes = b""


def multipart(**fields: str) -> tuple[dict[str, str], str]:
    """The fields and the body of a form."""
    part = '--x1\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    parts = [part.format(name, text) for name, text in fields.items()]
    return {"Content-Type": "multipart/form-data; boundary=x1"}, "".join(parts) + "--x1--\r\n"


ALERTS = (
    '{"receiver":"web","status":"firing","alerts":[{"status":"firing","labels":{"alertname":"Down"},"startsAt":'
    '"2026-11-28T11:00:00Z","fingerprint":"a1"}],"groupKey":"{}:{alertname=\\"Down\\"}","version":"4"}'
)
STRIPE = json.dumps(
    {"id": "evt_1NG8Du2eZvKYlo2CUI79vXWy", "object": "event", "created": 1795864023, "type": "invoice.paid"}, indent=2
)
KUMA = multipart(data='{"heartbeat":{"status":0},"monitor":{"name":"web"},"msg":"down"}')
MAILGUN = multipart(sender="a@b.example", subject="Hi", timestamp="1795864023", token="t1", signature="s1")
SNS = (
    '{"Type":"SubscriptionConfirmation","MessageId":"165545c9-2a5c-472c-8df2-7ff2be2b3b1b","Token":"2336","TopicArn":'
    '"arn:aws:sns:us-west-2:123456789012:MyTopic","SubscribeURL":"https://sns.example/","Timestamp":"2026-11-28T11:07:03Z"}'
)
EVENT_GRID = (
    '[{"id":"2d1781af-3a4c-4d7c-bd0c-e34b19da4e66","topic":"/s","subject":"","data":{"validationCode":"512d38b6"},'
    '"eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","eventTime":"2026-11-28T11:07:03Z","dataVersion":"1"}]'
)
CREATED = (
    '[{"id":"831e1650-001e","topic":"/s","subject":"/blobs/a","data":{"url":"https://a"},'
    '"eventType":"Microsoft.Storage.BlobCreated","eventTime":"2026-11-28T11:07:03Z","dataVersion":""}]'
)
PUB_SUB = (
    '{"message":{"attributes":{"key":"value"},"data":"SGVsbG8=","messageId":"2070443601311540","publishTime":'
    '"2026-11-28T11:07:03Z"},"subscription":"projects/p/subscriptions/s"}'
)
SLACK = (
    '{"token":"x","team_id":"T1","api_app_id":"A1","event":{"type":"app_mention","text":"hi"},"type":"event_callback",'
    '"event_id":"Ev0LAN670R","event_time":1795864023}'
)
DISCORD = '{"id":"846462639134605312","application_id":"1","type":2,"token":"unique","version":1}'

SENDERS = [
    Sent("Alertmanager", "/hooks/alerts", JSON, ALERTS, {"event": "firing", "id": None}),
    Sent(
        "Grafana",
        "/hooks/grafana",
        JSON,
        '{"receiver":"a","status":"resolved","state":"ok","orgId":1,"title":"x"}',
        {"event": "resolved", "id": None},
    ),
    Sent(
        "Uptime Kuma, JSON", "/hooks/kuma", JSON, '{"heartbeat":null,"monitor":null,"msg":"Testing"}', {"event": None}
    ),
    Sent("Uptime Kuma, form", "/hooks/kuma", *KUMA, {"event": None, "body": KUMA[1]}),
    Sent(
        "GitHub",
        "/hooks/github",
        JSON
        | {
            "X-GitHub-Event": "push",
            "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "X-GitHub-Hook-ID": "292430182",
            "X-Hub-Signature-256": "sha256=d57c",
            "User-Agent": "GitHub-Hookshot/1",
        },
        '{"action":"x","sender":{"login":"a"}}',
        {
            "event": "push",
            "id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "head": {
                "content-type": "application/json",
                "x-github-event": "push",
                "user-agent": "GitHub-Hookshot/1",
                "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
                "x-github-hook-id": "292430182",
                "x-hub-signature-256": "sha256=d57c",
            },
        },
    ),
    Sent(
        "GitHub, form",
        "/hooks/github",
        FORM | {"X-GitHub-Event": "ping"},
        "payload=%7B%22zen%22%3A%22a%22%7D",
        {"event": "ping"},
    ),
    Sent(
        "GitLab",
        "/hooks/gitlab",
        JSON
        | {
            "X-Gitlab-Event": "Push Hook",
            "X-Gitlab-Token": "s3cret",
            "Idempotency-Key": "f5e5f430-f57b",
            "X-Gitlab-Event-UUID": "13792a34",
            "X-Gitlab-Webhook-UUID": "02affd2d",
        },
        '{"object_kind":"push"}',
        {
            "event": "Push Hook",
            "id": "f5e5f430-f57b",
            "head": {
                "content-type": "application/json",
                "x-gitlab-event": "Push Hook",
                "idempotency-key": "f5e5f430-f57b",
                "x-gitlab-event-uuid": "13792a34",
                "x-gitlab-webhook-uuid": "02affd2d",
            },
        },
    ),
    Sent(
        "GitLab before 17.4",
        "/hooks/gitlab",
        JSON | {"X-Gitlab-Event": "Job Hook", "X-Gitlab-Event-UUID": "13792a34"},
        "{}",
        {"event": "Job Hook", "id": "13792a34"},
    ),
    Sent(
        "Gitea",
        "/hooks/gitea",
        JSON
        | {
            "X-Gitea-Event": "push",
            "X-Gitea-Delivery": "f6266f16",
            "X-GitHub-Event": "push",
            "X-GitHub-Delivery": "f6266f16",
            "X-Gitea-Signature": "ab",
        },
        "{}",
        {"event": "push", "id": "f6266f16"},
    ),
    Sent(
        "Bitbucket",
        "/hooks/bitbucket",
        JSON | {"X-Event-Key": "repo:push", "X-Request-UUID": "9a3f", "X-Hook-UUID": "c1"},
        "{}",
        {"event": "repo:push", "id": "9a3f"},
    ),
    Sent(
        "Jira",
        "/hooks/jira",
        JSON | {"X-Atlassian-Webhook-Identifier": "aw-1"},
        '{"timestamp":1795864023000,"webhookEvent":"jira:issue_updated","issue_event_type_name":"issue_generic"}',
        {"event": "jira:issue_updated", "id": "aw-1", "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "Stripe",
        "/hooks/stripe",
        JSON | {"Stripe-Signature": "t=1,v1=a"},
        STRIPE,
        {"event": "invoice.paid", "id": "evt_1NG8Du2eZvKYlo2CUI79vXWy", "time": 1_795_864_023 * 10**9, "body": STRIPE},
    ),
    Sent(
        "Shopify",
        "/hooks/shopify",
        JSON
        | {
            "X-Shopify-Topic": "orders/create",
            "X-Shopify-Webhook-Id": "b54557e4",
            "X-Shopify-Hmac-Sha256": "XWm=",
            "X-Shopify-Shop-Domain": "a.example",
        },
        '{"id":820982911946154508}',
        {"event": "orders/create", "id": "b54557e4"},
    ),
    Sent(
        "WooCommerce",
        "/hooks/woo",
        JSON | {"X-WC-Webhook-Topic": "order.created", "X-WC-Webhook-ID": "6", "X-WC-Webhook-Delivery-ID": "a1b2"},
        '{"id":727}',
        {"event": "order.created", "id": "a1b2"},
    ),
    Sent(
        "Slack",
        "/hooks/slack",
        JSON | {"X-Slack-Request-Timestamp": "1795864020"},
        SLACK,
        {"event": "event_callback", "id": "Ev0LAN670R", "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "Slack asks",
        "/hooks/slack",
        JSON,
        '{"token":"J","challenge":"3eZbrw1a","type":"url_verification"}',
        None,
        answer=b'{"challenge": "3eZbrw1a"}',
    ),
    Sent(
        "Slack, a command",
        "/hooks/slack/commands",
        FORM,
        "command=%2Fweather&text=94070&team_id=T1",
        {"path": "commands", "body": "command=%2Fweather&text=94070&team_id=T1", "event": None},
    ),
    Sent(
        "Slack, a button",
        "/hooks/slack",
        FORM,
        "payload=%7B%22type%22%3A%22block_actions%22%7D",
        {"event": "block_actions"},
    ),
    Sent(
        "Discord",
        "/hooks/discord",
        JSON | {"X-Signature-Ed25519": "ab", "X-Signature-Timestamp": "1"},
        DISCORD,
        {"id": "846462639134605312"},
    ),
    Sent(
        "Twilio",
        "/hooks/twilio/sms",
        FORM | {"I-Twilio-Idempotency-Token": "4b8f", "X-Twilio-Signature": "RS="},
        "MessageSid=SM1&MessageStatus=delivered&To=%2B1",
        {"event": "delivered", "id": "4b8f", "path": "sms"},
    ),
    Sent(
        "SendGrid",
        "/hooks/sendgrid",
        JSON,
        '[{"event":"delivered","sg_event_id":"a"},{"event":"open","sg_event_id":"b"}]',
        {"event": None, "id": None},
    ),
    Sent(
        "SendGrid, one",
        "/hooks/sendgrid",
        JSON,
        '[{"email":"a","timestamp":1795864023,"event":"open"}]',
        {"event": "open", "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "Mailgun",
        "/hooks/mailgun",
        JSON,
        '{"signature":{"token":"t","signature":"s"},"event-data":{"event":"failed","id":"ncV2XwymRUKbPek_MIM-Gw"}}',
        {"event": "failed", "id": "ncV2XwymRUKbPek_MIM-Gw"},
    ),
    Sent("Mailgun, a message", "/hooks/mailgun", *MAILGUN, {"body": MAILGUN[1], "time": 1_795_864_023 * 10**9}),
    Sent(
        "Postmark",
        "/hooks/postmark",
        JSON,
        '{"RecordType":"Bounce","ID":42,"Type":"HardBounce"}',
        {"event": "HardBounce"},
    ),
    Sent(
        "Segment",
        "/hooks/segment",
        JSON | {"Authorization": "Basic a2V5Og=="},
        '{"type":"track","event":"Signed Up","messageId":"m-1","timestamp":"2026-11-28T11:07:03Z","userId":"u"}',
        {"event": "track", "id": None, "time": 1_795_864_023 * 10**9, "head": {"content-type": "application/json"}},
    ),
    Sent(
        "PostHog",
        "/hooks/posthog/batch/",
        JSON,
        '{"api_key":"k","batch":[{"event":"E"}]}',
        {"path": "batch", "id": None},
    ),
    Sent(
        "The Things Stack",
        "/hooks/ttn/uplink-message",
        JSON | {"X-Tts-Domain": "eu1.example"},
        '{"end_device_ids":{"device_id":"a"},"received_at":"2026-11-28T11:07:03Z"}',
        {"path": "uplink-message", "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "Sentry",
        "/hooks/sentry",
        JSON
        | {
            "Sentry-Hook-Resource": "event_alert",
            "Request-ID": "a1",
            "Sentry-Hook-Timestamp": "1795864023",
            "Sentry-Hook-Signature": "ab",
        },
        '{"action":"triggered","data":{"event":{}}}',
        {"event": "event_alert", "id": None},
    ),
    Sent(
        "PagerDuty",
        "/hooks/pagerduty",
        JSON | {"X-PagerDuty-Signature": "v1=ab", "X-Webhook-Id": "PKT9NNX"},
        '{"event":{"id":"01CHY5WTSFKFH","event_type":"incident.triggered","occurred_at":"2026-11-28T11:07:03Z"}}',
        {"event": "incident.triggered", "id": "01CHY5WTSFKFH"},
    ),
    Sent(
        "Linear",
        "/hooks/linear",
        JSON | {"Linear-Delivery": "234d1a4e", "Linear-Event": "Issue"},
        '{"action":"create","type":"Issue","webhookTimestamp":1795864023000}',
        {"event": "Issue", "id": "234d1a4e", "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "Zoom",
        "/hooks/zoom",
        JSON | {"x-zm-request-timestamp": "1795864023"},
        '{"event":"meeting.started","event_ts":1795864023000,"payload":{}}',
        {"event": "meeting.started", "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "Typeform",
        "/hooks/typeform",
        JSON | {"Typeform-Signature": "sha256=ab"},
        '{"event_id":"LtWXD3crgy","event_type":"form_response","form_response":{"form_id":"lT4Z3j"}}',
        {"event": "form_response", "id": "LtWXD3crgy"},
    ),
    Sent(
        "Calendly",
        "/hooks/calendly",
        JSON | {"Calendly-Webhook-Signature": "t=1,v1=ab"},
        '{"event":"invitee.created","created_at":"2026-11-28T11:07:03.000000Z","payload":{}}',
        {"event": "invitee.created", "id": None, "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "Paddle",
        "/hooks/paddle",
        JSON | {"Paddle-Signature": "ts=1;h1=ab"},
        '{"event_id":"evt_01hv8x29","event_type":"transaction.paid","occurred_at":"2026-11-28T11:07:03Z",'
        '"notification_id":"ntf_01"}',
        {"event": "transaction.paid", "id": "evt_01hv8x29"},
    ),
    Sent(
        "Square",
        "/hooks/square",
        JSON | {"x-square-hmacsha256-signature": "ab="},
        '{"merchant_id":"6SSW7HV8K2ST5","type":"payment.created","event_id":"6a8f5f28","created_at":"2026-11-28T11:07:03Z"}',
        {"event": "payment.created", "id": "6a8f5f28"},
    ),
    Sent(
        "Telegram",
        "/hooks/telegram",
        JSON | {"X-Telegram-Bot-Api-Secret-Token": "s3cret"},
        '{"update_id":10000,"message":{"date":1441645532,"text":"/start"}}',
        {"id": "10000", "head": {"content-type": "application/json"}},
    ),
    Sent(
        "WhatsApp",
        "/hooks/whatsapp",
        JSON | {"X-Hub-Signature-256": "sha256=ab"},
        '{"object":"whatsapp_business_account","entry":[{"id":"0","changes":[]}]}',
        {"event": "whatsapp_business_account"},
    ),
    Sent(
        "WhatsApp asks",
        "/hooks/whatsapp?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=meatyhamhock",
        {},
        "",
        None,
        "GET",
        b"1158201444",
    ),
    Sent(
        "Strava asks",
        "/hooks/strava?hub.verify_token=STRAVA&hub.challenge=15f7d1a91c1f&hub.mode=subscribe",
        {},
        "",
        None,
        "GET",
        b'{"hub.challenge": "15f7d1a91c1f"}',
    ),
    Sent(
        "Strava",
        "/hooks/strava",
        JSON,
        '{"aspect_type":"update","event_time":1795864023,"object_type":"activity"}',
        {"time": 1_795_864_023 * 10**9, "id": None},
    ),
    Sent(
        "Amazon SNS",
        "/hooks/sns",
        {
            "Content-Type": "text/plain; charset=UTF-8",
            "x-amz-sns-message-type": "SubscriptionConfirmation",
            "x-amz-sns-message-id": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b",
        },
        SNS,
        {"event": "SubscriptionConfirmation", "id": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b"},
    ),
    Sent("Amazon SNS, body", "/hooks/sns", {}, SNS, {"id": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b"}),
    Sent(
        "Event Grid asks",
        "/hooks/grid",
        JSON | {"aeg-event-type": "SubscriptionValidation"},
        EVENT_GRID,
        None,
        answer=b'{"validationResponse": "512d38b6"}',
    ),
    Sent(
        "Event Grid",
        "/hooks/grid",
        JSON | {"aeg-event-type": "Notification"},
        CREATED,
        {"event": "Microsoft.Storage.BlobCreated", "id": "831e1650-001e", "time": 1_795_864_023 * 10**9},
    ),
    Sent("Pub/Sub", "/hooks/pubsub", JSON, PUB_SUB, {"id": "2070443601311540"}),
    Sent(
        "Microsoft Graph asks",
        "/hooks/graph?validationToken=Validation%3A+Testing+client",
        {"Content-Type": "text/plain"},
        "",
        None,
        answer=b"Validation: Testing client",
    ),
    Sent(
        "Twitch asks",
        "/hooks/twitch",
        JSON | {"Twitch-Eventsub-Message-Type": "webhook_callback_verification"},
        '{"challenge":"pogchamp-kappa","subscription":{"id":"f1"}}',
        None,
        answer=b"pogchamp-kappa",
    ),
    Sent(
        "Twitch",
        "/hooks/twitch",
        JSON | {"Twitch-Eventsub-Message-Id": "befa7b53", "Twitch-Eventsub-Subscription-Type": "channel.follow"},
        "{}",
        {"event": "channel.follow", "id": "befa7b53"},
    ),
    Sent("Dropbox asks", "/hooks/dropbox?challenge=abc123", {}, "", None, "GET", b"abc123"),
    Sent(
        "Okta asks",
        "/hooks/okta",
        {"x-okta-verification-challenge": "xyz"},
        "",
        None,
        "GET",
        b'{"verification": "xyz"}',
    ),
    Sent(
        "Standard Webhooks",
        "/hooks/any",
        JSON | {"webhook-id": "msg_1", "webhook-timestamp": "1795864023"},
        '{"type":"contact.created"}',
        {"event": "contact.created", "id": "msg_1", "time": 1_795_864_023 * 10**9},
    ),
    Sent("Svix", "/hooks/any", JSON | {"svix-id": "msg_2"}, '{"type":"a"}', {"event": "a", "id": "msg_2"}),
    Sent(
        "CloudEvents, fields",
        "/hooks/ce",
        JSON
        | {
            "ce-id": "1",
            "ce-source": "/a",
            "ce-type": "com.a",
            "ce-specversion": "1.0",
            "ce-time": "2026-11-28T11:07:03Z",
        },
        "{}",
        {"event": "com.a", "id": "1", "time": 1_795_864_023 * 10**9},
    ),
    Sent(
        "CloudEvents, body",
        "/hooks/ce",
        {"Content-Type": "application/cloudevents+json"},
        '{"specversion":"1.0","id":"9","source":"/a","type":"com.b"}',
        {"event": "com.b", "id": "9"},
    ),
    Sent(
        "EventBridge",
        "/hooks/eb",
        JSON,
        '{"version":"0","id":"6a7e8feb","detail-type":"EC2 State","source":"aws.ec2",'
        '"time":"2026-11-28T11:07:03Z","detail":{}}',
        {"event": "EC2 State", "id": "6a7e8feb"},
    ),
    Sent(
        "Google Drive",
        "/hooks/drive",
        {
            "X-Goog-Channel-ID": "c1",
            "X-Goog-Resource-State": "sync",
            "Content-Length": "0",
            "X-Goog-Channel-Token": "s3cret",
        },
        "",
        {"body": "", "head": {"x-goog-channel-id": "c1", "x-goog-resource-state": "sync"}},
    ),
    Sent("Sonarr", "/hooks/sonarr", JSON, '{"eventType":"Download","instanceName":"Sonarr"}', {"event": "Download"}),
    Sent("AirGradient", "/hooks/airgradient", JSON, '{"wifi":-46,"rco2":447}', {"event": None, "time": None}),
    Sent(
        "Garmin inReach",
        "/hooks/garmin",
        JSON,
        '{"Version":"2.0","Events":[{"imei":"3","messageCode":0}]}',
        {"id": None},
    ),
    Sent(
        "GoatCounter",
        "/hooks/goat?p=/x&t=T&s=1920,1080,1",
        {},
        "",
        {"query": "p=/x&t=T&s=1920,1080,1", "body": ""},
        "GET",
    ),
    Sent("Matomo", "/hooks/matomo", FORM, "idsite=1&rec=1&action_name=a", {"body": "idsite=1&rec=1&action_name=a"}),
    Sent(
        "a camera",
        "/hooks/camera/front",
        {"Content-Type": "image/jpeg"},
        b"\xff\xd8\xff\0",
        {"path": "front", "body": None, "raw": "/9j/AA=="},
        "PUT",
    ),
    Sent(
        "a meter",
        "/hooks/meter?id=7&token=s3cret&kwh=1.5",
        {"Authorization": "Bearer s3cret", "Cookie": "a=s3cret"},
        "",
        {"query": "id=7&kwh=1.5", "head": {}},
        "GET",
    ),
    Sent("a wiki", "/hooks/w%C3%AFki/a%20b/", {}, "hi", {"hook": "wïki", "path": "a b", "body": "hi"}),
    Sent(
        "another project",
        "/hooks/other",
        {"X-Acme-Event": "thing.done", "X-Acme-Delivery": "d-1"},
        "{}",
        {"event": "thing.done", "id": "d-1"},
    ),
]
