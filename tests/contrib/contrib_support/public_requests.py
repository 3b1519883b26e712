"""Requests of public senders, found by a search for reports of what a gateway must take.

Each has the page that shows its form, and the columns that must come out. What failed at first is marked with `mended`:
what was mended for it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from contrib_support.hook_requests import FORM, JSON, multipart

AT = 1_795_864_023_000_000_000  # 2026-11-28T11:07:03Z
NOON = "2026-11-28T11:07:03Z"
SECONDS, MS = AT // 10**9, AT // 10**6
TEXT, XML = {"Content-Type": "text/plain;charset=UTF-8"}, {"Content-Type": "text/xml; charset=utf-8"}


class Case(NamedTuple):
    """A request. source: where its form is shown. rows: of each row, what must be in its columns."""

    sender: str
    source: str
    target: str
    fields: dict[str, str]
    body: Any
    rows: list[dict[str, Any]]
    mended: str = ""
    method: str = "POST"
    status: str = "200 OK"


def hook(
    sender: str, source: str, fields: dict[str, str], body: Any, event: str | None, id: str | None = None,
    time: int | None = None, mended: str = "", target: str = "", method: str = "POST", **more: Any,
) -> Case:  # fmt: skip
    """A webhook, whose row has the body as it was sent."""
    sent = json.dumps(body, ensure_ascii=False) if isinstance(body, dict | list) else body
    fields = JSON | fields if isinstance(body, dict | list) and "Content-Type" not in fields else fields
    row = {"event": event, "id": id, "time": time} | ({} if isinstance(sent, bytes) else {"body": sent}) | more
    return Case(sender, source, target or "/hooks/any", fields, sent, [row], mended, method)


PLEX = (
    b'--x1\r\nContent-Disposition: form-data; name="payload"\r\nContent-Type: application/json\r\n\r\n'
    b'{"event":"media.play","user":true,"Account":{"id":1}}\r\n--x1\r\nContent-Disposition: form-data; name="thumb"; '
    b'filename="thumb.jpg"\r\nContent-Type: image/jpeg\r\n\r\n\xff\xd8\xff\0\r\n--x1--\r\n'
)
RAZORPAY = {"entity": "event", "account_id": "acc_1", "event": "payment.captured", "payload": {}, "created_at": SECONDS}
TRELLO = {"action": {"id": "51f9424bcd6e040f3c002412", "type": "updateCard", "date": NOON}, "model": {"id": "4d5ea62f"}}
NOTION = {
    "id": "1782edd6-a853-4d4a-b02c-9c8c16f28e53", "timestamp": NOON, "workspace_id": "13950b26", "subscription_id":
    "29d75c0d", "integration_id": "0ef2e755", "type": "page.created", "attempt_number": 1, "entity": {"id": "153104cd"},
}  # fmt: skip
CHIRPSTACK = {"deduplicationId": "3ac7e3c4", "time": "2026-11-28T11:07:03.000000+00:00", "devAddr": "00189440"}
INTERCOM = {
    "type": "notification_event", "app_id": "a86dr8yl", "id": "notif_ccd8a4d0", "topic": "conversation.user.created",
    "delivery_attempts": 1, "created_at": SECONDS, "data": {"type": "notification_event_data"},
}  # fmt: skip
HUBSPOT = [{"eventId": 1, "portalId": 33, "occurredAt": MS, "subscriptionType": "contact.creation", "objectId": 123}]
OKTA = {
    "eventType": "com.okta.event_hook", "eventTypeVersion": "1.0", "cloudEventsVersion": "0.1", "source":
    "https://a.example/api/v1/eventHooks/who", "eventId": "b5a188b9", "eventTime": NOON, "data": {"events": []},
}  # fmt: skip
SPARKPOST = [{"msys": {"message_event": {"type": "delivery", "timestamp": str(SECONDS)}}}] * 2
ZENDESK = {"type": "zen:event-type:ticket.created", "account_id": 1, "id": "2b24ef10", "time": NOON, "event": {"a": 1}}

HOOKS = [
    hook(
        "Docker Hub",
        "docs.docker.com, Webhooks",
        {},
        {"push_data": {"tag": "latest"}, "repository": {"status": "Active"}},
        None,
    ),
    hook(
        "Harbor",
        "goharbor.io, Configure webhook notifications",
        {},
        {"type": "PUSH_ARTIFACT", "occur_at": SECONDS, "operator": "admin"},
        "PUSH_ARTIFACT",
        None,
        AT,
        "the time",
    ),
    hook(
        "Azure DevOps",
        "learn.microsoft.com, Service hooks events",
        {},
        {"subscriptionId": "0", "notificationId": 1, "id": "27646e0e", "eventType": "git.push", "createdDate": NOON},
        "git.push",
        None,
        AT,
        "the time",
    ),
    hook(
        "Travis CI",
        "docs.travis-ci.com, Configuring webhook notifications",
        FORM | {"Signature": "c2ln"},
        "payload=%7B%22id%22%3A1%2C%22type%22%3A%22push%22%2C%22state%22%3A%22passed%22%7D",
        "push",
    ),
    hook(
        "CircleCI",
        "circleci.com/docs, Webhooks reference",
        {"circleci-event-type": "workflow-completed"},
        {"type": "workflow-completed", "id": "3888f21b", "happened_at": NOON},
        "workflow-completed",
        None,
        AT,
        "the time",
    ),
    hook(
        "Buildkite",
        "buildkite.com/docs, Webhooks",
        {"X-Buildkite-Event": "build.finished"},
        {"event": "build.finished", "build": {"id": "f62a1b4d"}},
        "build.finished",
    ),
    hook(
        "Netlify",
        "docs.netlify.com, Deploy notifications",
        {"X-Netlify-Event": "deploy_created"},
        {"id": "65ab", "state": "ready", "created_at": NOON},
        "deploy_created",
        None,
        AT,
    ),
    hook(
        "Vercel",
        "vercel.com/docs, Webhooks API reference",
        {"x-vercel-signature": "s"},
        {"id": "uev_1", "type": "deployment.created", "createdAt": MS, "region": "sfo1"},
        "deployment.created",
        None,
        AT,
    ),
    hook(
        "Cloudflare",
        "developers.cloudflare.com, Configure webhooks",
        {"cf-webhook-auth": "s3cret"},
        {"text": "t", "ts": SECONDS, "alert_type": "universal_ssl_event_type"},
        "universal_ssl_event_type",
        None,
        AT,
    ),
    hook(
        "Datadog",
        "docs.datadoghq.com, Webhooks",
        {},
        {"body": "b", "event_type": "query_alert_monitor", "date": str(MS), "id": "1"},
        "query_alert_monitor",
        None,
        AT,
    ),
    hook(
        "New Relic",
        "docs.newrelic.com, Webhook integrations",
        {},
        {"id": "d1b1", "state": "ACTIVATED", "trigger": "STATE_CHANGE", "createdAt": MS},
        "STATE_CHANGE",
        None,
        AT,
    ),
    hook(
        "Opsgenie",
        "support.atlassian.com, Outgoing webhook",
        {},
        {"action": "Create", "alert": {"alertId": "052652ac"}, "integrationName": "w"},
        "Create",
    ),
    hook(
        "Pingdom",
        "pingdom.com, Webhooks",
        {},
        {"check_id": 1, "current_state": "DOWN", "state_changed_timestamp": SECONDS},
        None,
    ),
    hook(
        "UptimeRobot",
        "uptimerobot.com, Web-hook alert contacts",
        {},
        "",
        None,
        None,
        None,
        "",
        f"/hooks/any?monitorID=95&alertTypeFriendlyName=Down&alertDateTime={SECONDS}",
        "GET",
        query=f"monitorID=95&alertTypeFriendlyName=Down&alertDateTime={SECONDS}",
    ),
    hook(
        "Auth0",
        "auth0.com/docs, Custom log streams using webhooks",
        {},
        [{"log_id": "900", "data": {"date": NOON, "type": "s"}}, {"log_id": "901", "data": {"type": "f"}}],
        None,
    ),
    hook(
        "Intercom",
        "developers.intercom.com, Notification object",
        {},
        INTERCOM,
        "conversation.user.created",
        None,
        AT,
        "the event: its topic, not the word that is the same in each",
    ),
    hook("HubSpot", "developers.hubspot.com, Webhooks API", {}, HUBSPOT, "contact.creation", None, AT, "the time"),
    hook(
        "Trello",
        "developer.atlassian.com, Trello webhooks",
        {},
        TRELLO,
        "updateCard",
        None,
        None,
        "the event: action.type",
    ),
    hook(
        "Mailchimp",
        "mailchimp.com/developer, Sync audience data with webhooks",
        FORM,
        "type=subscribe&fired_at=2026-11-28+11%3A07%3A03&data%5Bid%5D=8a25ff1d98",
        "subscribe",
        None,
        AT,
        "the time",
    ),
    hook(
        "SparkPost",
        "developers.sparkpost.com, Webhooks",
        {"X-MessageSystems-Batch-ID": "84257f20"},
        SPARKPOST,
        None,
        "84257f20",
        None,
        "the id of the delivery",
    ),
    hook(
        "Mandrill",
        "mailchimp.com/developer, Transactional webhooks",
        FORM,
        "mandrill_events=%5B%7B%22event%22%3A%22send%22%7D%5D",
        None,
    ),
    hook(
        "Brevo",
        "developers.brevo.com, Transactional webhooks",
        {},
        {"event": "delivered", "id": 1, "date": "2026-11-28 13:07:03", "ts": SECONDS, "message-id": "<a>"},
        "delivered",
        None,
        AT,
    ),
    hook(
        "Vonage",
        "developer.vonage.com, Inbound SMS",
        {},
        "",
        "text",
        None,
        None,
        "",
        "/hooks/any?msisdn=447700900001&messageId=0A0000&text=Hi+there&type=text",
        "GET",
    ),
    hook(
        "Telnyx",
        "developers.telnyx.com, Receiving webhooks",
        {"telnyx-signature-ed25519": "s", "telnyx-timestamp": "1"},
        {"data": {"event_type": "message.received", "id": "b301ed3f", "occurred_at": NOON}},
        "message.received",
    ),
    hook(
        "Razorpay",
        "razorpay.com/docs, Validate and test webhooks",
        {"x-razorpay-event-id": "ev_1"},
        RAZORPAY,
        "payment.captured",
        "ev_1",
        AT,
        "the id of the delivery",
    ),
    hook(
        "Paystack",
        "paystack.com/docs, Webhooks",
        {},
        {"event": "charge.success", "data": {"id": 302961}},
        "charge.success",
    ),
    hook(
        "Adyen",
        "docs.adyen.com, Webhook structure",
        {},
        {"live": "false", "notificationItems": [{"NotificationRequestItem": {"eventCode": "AUTHORISATION"}}]},
        None,
    ),
    hook("Mollie", "docs.mollie.com, Webhooks", FORM, "id=tr_d0b0E3EA3v", None),
    hook(
        "PayPal",
        "developer.paypal.com, Webhooks",
        {"PAYPAL-TRANSMISSION-ID": "69cd13f0"},
        {"id": "WH-2W", "create_time": NOON, "event_type": "PAYMENT.SALE.COMPLETED"},
        "PAYMENT.SALE.COMPLETED",
        "69cd13f0",
        AT,
        "the time",
    ),
    hook(
        "Coinbase Commerce",
        "docs.cdp.coinbase.com, Webhooks",
        {"X-CC-Webhook-Signature": "s"},
        {"id": 1, "event": {"id": "24934862", "type": "charge:created"}},
        "charge:created",
        "24934862",
    ),
    hook(
        "Chargebee",
        "apidocs.chargebee.com, Events",
        {},
        {"id": "ev_1", "occurred_at": SECONDS, "object": "event", "event_type": "subscription_created"},
        "subscription_created",
        "ev_1",
        AT,
    ),
    hook("Recurly", "recurly.com/developers, Webhooks", XML, '<?xml version="1.0"?><new_account_notification/>', None),
    hook(
        "Okta",
        "developer.okta.com, Event hooks",
        {},
        OKTA,
        "com.okta.event_hook",
        "b5a188b9",
        AT,
        "the id of the delivery",
    ),
    hook("Plex", "support.plex.tv, Webhooks", {"Content-Type": "multipart/form-data; boundary=x1"}, PLEX, "media.play"),
    hook(
        "Jellyfin",
        "github.com/jellyfin/jellyfin-plugin-webhook",
        TEXT,
        f'{{"NotificationType":"PlaybackStart","UtcTimestamp":"{NOON}"}}',
        "PlaybackStart",
        None,
        AT,
        "event and time",
    ),
    hook("Emby", "emby.media, Webhooks", *multipart(data='{"Title":"t","Event":"playback.start"}'), "playback.start"),
    hook(
        "LINE",
        "developers.line.biz, Webhook event objects",
        {"x-line-signature": "s"},
        {"destination": "U1", "events": [{"type": "message", "webhookEventId": "01FZ"}]},
        None,
    ),
    hook(
        "Viber",
        "developers.viber.com, REST bot API",
        {},
        {"event": "message", "timestamp": MS, "message_token": 4912},
        "message",
        None,
        AT,
    ),
    hook(
        "Notion",
        "developers.notion.com, Webhooks",
        {},
        NOTION,
        "page.created",
        "1782edd6-a853-4d4a-b02c-9c8c16f28e53",
        AT,
        "the id of the delivery",
    ),
    hook(
        "Airtable", "airtable.com/developers, Webhooks", {}, {"base": {"id": "app1"}, "timestamp": NOON}, None, None, AT
    ),
    hook(
        "Plausible",
        "plausible.io/docs, Events API",
        TEXT,
        '{"name":"pageview","url":"https://a.example","domain":"a"}',
        None,
    ),
    hook(
        "ChirpStack",
        "chirpstack.io, HTTP integration",
        {},
        CHIRPSTACK,
        "up",
        None,
        AT,
        "the event: of the query",
        "/hooks/any?event=up",
        query="event=up",
    ),
    hook(
        "Helium",
        "docs.helium.com, HTTP integration",
        {},
        {"dev_eui": "8", "reported_at": MS, "type": "uplink"},
        "uplink",
        None,
        AT,
        "the time",
    ),
    hook(
        "Sigfox", "build.sigfox.com, Callbacks", FORM, f"id=4D3A&time={SECONDS}&seqNumber=7&data=00ff", None, None, AT
    ),
    hook(
        "DocuSign",
        "developers.docusign.com, Connect",
        {},
        {"event": "envelope-completed", "generatedDateTime": NOON, "data": {}},
        "envelope-completed",
        None,
        AT,
        "the time",
    ),
    hook(
        "Figma",
        "developers.figma.com, Webhooks",
        {},
        {"event_type": "FILE_UPDATE", "timestamp": NOON, "webhook_id": "22"},
        "FILE_UPDATE",
        None,
        AT,
    ),
    hook(
        "Basecamp",
        "github.com/basecamp/bc3-api, webhooks",
        {},
        {"id": 9007199254741622, "kind": "todo_created", "created_at": NOON},
        "todo_created",
        None,
        AT,
    ),
    hook("Zendesk", "developer.zendesk.com, Event webhooks", {}, ZENDESK, "zen:event-type:ticket.created", None, AT),
    hook(
        "Contentful",
        "contentful.com/developers, Webhooks",
        {
            "X-Contentful-Topic": "ContentManagement.Entry.publish",
            "Content-Type": "application/vnd.contentful.management.v1+json",
        },
        '{"sys":{"type":"Entry"}}',
        "ContentManagement.Entry.publish",
    ),
    hook(
        "Sanity",
        "sanity.io/docs, GROQ-powered webhooks",
        {"idempotency-key": "a1b2", "sanity-webhook-signature": "t=1,v1=s"},
        {"_id": "d"},
        None,
        "a1b2",
    ),
    hook(
        "RevenueCat",
        "revenuecat.com/docs, Webhooks",
        {},
        {"api_version": "1.0", "event": {"id": "1234", "type": "RENEWAL"}},
        "RENEWAL",
        "1234",
    ),
    hook(
        "Plaid",
        "plaid.com/docs, Webhooks",
        {},
        {"webhook_type": "ITEM", "webhook_code": "ERROR", "item_id": "w"},
        "ERROR",
        None,
        None,
        "the event",
    ),
    hook(
        "Onfido",
        "documentation.onfido.com, Webhooks",
        {},
        {"payload": {"resource_type": "check", "action": "check.completed"}},
        "check.completed",
    ),
    hook(
        "SonarQube",
        "docs.sonarsource.com, Webhooks",
        {},
        {"serverUrl": "u", "taskId": "AV", "status": "SUCCESS"},
        "SUCCESS",
    ),
    hook(
        "Nexus",
        "help.sonatype.com, Webhooks",
        {"X-Nexus-Webhook-Delivery": "7f4a6dde", "X-Nexus-Webhook-Id": "rm:repository"},
        {"timestamp": "2026-11-28T11:07:03.000+0000", "action": "CREATED"},
        "CREATED",
        "7f4a6dde",
        AT,
    ),
    hook(
        "Artifactory",
        "jfrog.com/help, Webhooks",
        {"X-JFrog-Event-Auth": "s3cret"},
        {"domain": "artifact", "event_type": "deployed"},
        "deployed",
    ),
    hook(
        "Weather Underground's stations",
        "support.weather.com, PWS upload protocol",
        {},
        "",
        None,
        None,
        None,
        "",
        "/hooks/any?ID=KCA1&PASSWORD=s3cret&dateutc=now&tempf=70.5",
        "GET",
        query="ID=KCA1&dateutc=now&tempf=70.5",
    ),
    hook(
        "Ruuvi Gateway",
        "docs.ruuvi.com, Data formats over HTTP",
        {},
        {"data": {"gw_mac": "AA", "timestamp": SECONDS, "tags": {}}},
        None,
    ),
]
COMMUNITY = {
    "esp8266id": "123", "software_version": "NRZ-2020-133",
    "sensordatavalues": [{"value_type": "SDS_P1", "value": "4.43"}, {"value_type": "temperature", "value": "21.5"}],
}  # fmt: skip
CADDY = {
    "level": "info", "ts": SECONDS, "logger": "http.log.access", "msg": "handled request", "request": {"method": "GET"},
    "status": 200,
}  # fmt: skip
EVENT = {
    "metadata": {"name": "a"},
    "reason": "BackOff",
    "message": "Back-off",
    "type": "Warning",
    "lastTimestamp": NOON,
}
SENSOR_LOGGER = {
    "messageId": 1, "sessionId": "s", "deviceId": "d",
    "payload": [{"name": "accelerometer", "time": AT, "values": {"x": 0.5, "y": 1}}],
}  # fmt: skip
OTHERS = [
    Case(
        "sensor.community",
        "github.com/opendata-stuttgart, Send data to own API",
        "/metrics?name=air",
        JSON,
        COMMUNITY,
        [
            {"field": "SDS_P1", "value": 4.43, "tags": {"esp8266id": "123", "software_version": "NRZ-2020-133"}},
            {"field": "temperature", "value": 21.5},
        ],
        "values by name in an array; an id is a tag",
    ),
    Case(
        "Ecowitt",
        "osswww.ecowitt.net, Customized upload",
        "/metrics?name=weather",
        FORM,
        "stationtype=GW1100A&dateutc=2026-11-28+11:07:03&tempf=68.2&humidity=40&model=GW1100",
        [
            {"field": "tempf", "value": 68.2, "time": AT, "tags": {"stationtype": "GW1100A", "model": "GW1100"}},
            {"field": "humidity", "value": 40},
        ],
        "the time: dateutc",
    ),
    Case(
        "ThingSpeak's update",
        "mathworks.com/help/thingspeak, Write data",
        "/metrics?name=room&api_key=s3cret&field1=73",
        {},
        "",
        [{"name": "room", "field": "field1", "value": 73, "tags": {}}],
        method="GET",
    ),
    Case(
        "PurpleAir",
        "community.purpleair.com, Local JSON",
        "/metrics?name=air",
        JSON,
        {"Geo": "PurpleAir-1", "current_temp_f": 70, "pm2_5_atm": 1.5},
        [{"field": "current_temp_f"}, {"field": "pm2_5_atm", "value": 1.5, "tags": {"Geo": "PurpleAir-1"}}],
    ),
    Case(
        "Sensor Logger",
        "github.com/tszheichoi/awesome-sensor-logger, HTTP push",
        "/metrics",
        JSON,
        SENSOR_LOGGER,
        [
            {
                "name": "accelerometer",
                "field": "x",
                "value": 0.5,
                "time": AT,
                "tags": {"deviceId": "d", "sessionId": "s"},
            },
            {"field": "y", "value": 1},
        ],
        "its payload",
    ),
    Case(
        "Vector, http sink",
        "vector.dev/docs, HTTP sink: codec json",
        "/logs",
        JSON,
        [{"message": "m", "timestamp": NOON, "host": "h", "source_type": "file"}],
        [{"message": "m", "time": AT}],
    ),
    Case(
        "Fluentd, out_http",
        "docs.fluentd.org, http output",
        "/logs",
        {"Content-Type": "application/x-ndjson"},
        '{"message":"a","level":"warn"}\n{"message":"b"}\n',
        [{"message": "a", "level": "warn"}, {"message": "b"}],
    ),
    Case(
        "Caddy",
        "caddyserver.com/docs, Logging",
        "/logs",
        JSON,
        CADDY,
        [{"message": "handled request", "level": "info", "time": AT}],
    ),
    Case(
        "kubernetes-event-exporter",
        "github.com/resmoio/kubernetes-event-exporter, Webhook",
        "/logs",
        JSON,
        EVENT,
        [{"message": "Back-off"}],
    ),
    Case(
        "GELF from Docker's driver by a relay",
        "go2docs.graylog.org, GELF",
        "/gelf",
        JSON,
        {"version": "1.1", "host": "h", "short_message": "s", "timestamp": SECONDS, "level": 6, "_container_name": "c"},
        [{"message": "s", "level": "info", "time": AT}],
        status="202 Accepted",
    ),
    Case(
        "ulogger",
        "github.com/bfabiszewski/ulogger-server, API",
        "/gps?device=phone",
        FORM,
        f"action=addpos&lat=48.5&lon=11.5&time={SECONDS}&altitude=500&accuracy=5&provider=gps&trackid=1",
        [{"device": "phone", "lat": 48.5, "altitude": 500.0, "time": AT}],
    ),
    Case(
        "PhoneTrack",
        "github.com/julien-nc/phonetrack, User guide",
        f"/gps?device=a&lat=48.5&lon=11.5&timestamp={SECONDS}&acc=5&bat=90",
        {},
        "",
        [{"device": "a", "accuracy": 5.0, "battery": 90.0, "time": AT}],
        method="GET",
    ),
    Case(
        "GPSWOX and others: OsmAnd with knots",
        "traccar.org/osmand",
        f"/traccar?id=123456&timestamp={SECONDS}&lat=48.5&lon=11.5&speed=10&batt=50",
        {},
        "",
        [{"device": "123456", "speed": 10 * 1852 / 3600, "battery": 50.0}],
        method="GET",
    ),
]
REQUESTS = HOOKS + OTHERS
