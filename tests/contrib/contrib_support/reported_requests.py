"""Requests as public reports show them: issues of the senders, of programs that receive them, and the senders' own
pages. `source` says where; the bodies are as shown there, shortened, with the time and the ids of the tests.

`mended` says what of it was refused or stored poorly before.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any, NamedTuple

from contrib_support.hook_requests import FORM, JSON

AT = 1_795_864_023_000_000_000  # 2026-11-28T11:07:03Z
NOON = "2026-11-28T11:07:03Z"
SECONDS, MS = AT // 10**9, AT // 10**6
NDJSON, TEXT = {"Content-Type": "application/x-ndjson"}, {"Content-Type": "text/plain"}
# What a line of INGEST_HOOKS says of the names that these requests have
LINES = """\
ebay challenge=ebay verify=0123456789-0123456789-0123456789 url=https://a.example
fitbit challenge=fitbit verify=848a8s4das68d4ad4as86d4asdsad8asd
twitter scheme=hmac field=x-twitter-webhooks-signature secret=consumer-secret challenge=x
wechat challenge=wechat verify=token
"""


class Report(NamedTuple):
    """A request. rows: of each row, in its order, what must be in its columns; none: it is answered only.

    answer: what the body of the answer must be; None: it is not looked at.
    """

    sender: str
    source: str
    target: str
    fields: dict[str, str]
    body: bytes
    rows: list[dict[str, Any]]
    mended: str = ""
    method: str = "POST"
    status: int = 200
    answer: bytes | None = None


def sent(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


def hook(
    sender: str, source: str, name: str, fields: dict[str, str], body: Any, mended: str = "", **row: Any
) -> Report:
    """A webhook at /hooks/`name`: one row with the body as it was sent."""
    content = sent(body)
    return Report(sender, source, f"/hooks/{name}", fields, content, [{"body": content.decode()} | row], mended)


def asked(sender: str, source: str, target: str, answer: bytes | None, mended: str = "", **more: Any) -> Report:
    """A question that has no row."""
    more = {"method": "GET", "fields": {}, "body": b""} | more
    return Report(sender, source, target, rows=[], mended=mended, answer=answer, **more)


def logs(
    sender: str, source: str, target: str, fields: dict[str, str], body: Any, *rows: dict[str, Any], **more: Any
) -> Report:
    return Report(sender, source, target, fields, sent(body), [*rows], **more)


EBAY = hashlib.sha256(b"123" + b"0123456789-0123456789-0123456789" + b"https://a.example/hooks/ebay").hexdigest()
X = base64.b64encode(hmac.digest(b"consumer-secret", b"9b4507b3-9040-4669-9ca3-6b94edb50553", "sha256")).decode()
WECHAT = hashlib.sha1("".join(sorted(["token", "1372163077", "1372399923"])).encode()).hexdigest()  # noqa: S324
HIKVISION = (
    b'--boundary\r\nContent-Disposition: form-data; name="MoveDetection.xml"; filename="MoveDetection.xml"\r\n'
    b"Content-Type: application/xml\r\nContent-Length: 122\r\n\r\n"
    b'<?xml version="1.0" encoding="UTF-8"?>\r\n<EventNotificationAlert version="2.0"><eventType>VMD</eventType>'
    b"</EventNotificationAlert>\r\n--boundary--\r\n"
)
POSTMAN = (
    b'------WebKitFormBoundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name="auth_key"\r\n\r\n79bde0\r\n'
    b'------WebKitFormBoundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name="data"\r\n\r\n'
    b'[{"key":"humidity", "value":55}]\r\n------WebKitFormBoundary7MA4YWxkTrZu0gW--\r\n'
)
HASURA = {
    "created_at": NOON, "delivery_info": {"current_retry": 0, "max_retries": 3}, "event": {"data": {"new": {}, "old":
    None}, "op": "INSERT", "session_variables": {"x-hasura-role": "admin"}}, "id": "8f2b6d5e-6f5c-4d8e",
    "table": {"name": "users", "schema": "public"}, "trigger": {"name": "author_trigger"},
}  # fmt: skip
WISE = {
    "data": {"resource": {"type": "transfer", "id": 111}, "current_state": "processing", "occurred_at": NOON},
    "subscription_id": "01234567-89ab", "event_type": "transfers#state-change", "schema_version": "4.0.0",
    "sent_at": NOON,
}  # fmt: skip
MINIO = {
    "EventName": "s3:ObjectCreated:Put", "Key": "bucket/a.txt", "Records": [{"eventVersion": "2.0", "eventSource":
    "minio:s3", "eventTime": NOON, "eventName": "s3:ObjectCreated:Put", "userIdentity": {"principalId": "minio"}}],
}  # fmt: skip
FLUX = {
    "involvedObject": {"kind": "GitRepository", "namespace": "flux-system", "name": "flux-system"}, "severity": "info",
    "timestamp": NOON, "message": "Fetched revision: main/731f7ead", "reason": "info", "reportingController":
    "source-controller", "reportingInstance": "source-controller-7c7b47f5f-8bhrp",
}  # fmt: skip
FALCO = {
    "output": "14:33:48.105952346: Error File below / opened for writing", "priority": "Error", "rule":
    "Write below root", "source": "syscall", "tags": ["filesystem"], "time": "2026-11-28T11:07:03.000000000Z",
    "output_fields": {"evt.time": AT, "user.name": "root"},
}  # fmt: skip
AUDIT = {
    "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": [
        {"level": "Metadata", "auditID": f"77e58433-{n}", "stage": "RequestReceived", "requestURI": "/apis", "verb":
         "list", "user": {"username": "kubecfg"}, "requestReceivedTimestamp": NOON} for n in (1, 2)],
}  # fmt: skip
FORWARDED = {
    "id": 0, "attributes": {"batteryLevel": 53, "distance": 0, "totalDistance": 5922.96, "motion": False}, "deviceId":
    1, "type": None, "protocol": "osmand", "serverTime": "2026-11-28T11:07:05.770+0000", "deviceTime":
    "2026-11-28T11:07:03.000+0000", "fixTime": "2026-11-28T11:07:03.000+0000", "outdated": False, "valid": True,
    "latitude": 21.1416013, "longitude": 99.6410078, "altitude": 0, "speed": 10, "course": 90, "address": None,
    "accuracy": 2200, "network": None,
}  # fmt: skip
LOGPLEX = "".join(
    f"{len(line)} {line}"
    for line in (f"<174>1 2026-11-28T11:07:03+00:00 host erlang console - Hi from erlang {n}\n" for n in (1, 2))
)
VERCEL = [
    {"id": "1573817187330377061717300000", "message": "done", "timestamp": MS, "type": "stdout", "projectId": "abc"},
    {"id": "1573817250283254651097202070", "message": "START RequestId: 643af4e3\nEND", "timestamp": MS},
]
TWO_ON_A_LINE = (
    '{"create":{"_index":"fluent-bit","_type":"_doc"}}\n'
    f'{{"@timestamp":"{NOON}","log":"a log line"}}{{"@timestamp":"{NOON}","log":"another log line"}}\n'
)
WAZUH = {
    "timestamp": "2026-11-28T11:07:03.000+0000", "rule": {"level": 5, "description": "sshd: authentication failed"},
    "agent": {"id": "000"}, "id": "1580123327.49031", "full_log": "Nov 28 11:07:03 a sshd[1]: Failed", "location": "a",
}  # fmt: skip
HYPERSWITCH = {
    "merchant_id": "merchant_1710609960", "event_id": "evt_018e48d5ad6c73d5a289342e6132b224", "event_type":
    "payment_succeeded", "content": {"type": "payment_details", "object": {"status": "succeeded"}}, "timestamp": NOON,
}  # fmt: skip
CONFIRMATION = {
    "lifecycle": "CONFIRMATION", "executionId": "8F8FA33E-2A5B-4BC5-826C-4B2AB73FE9DD", "appId": "fd9949ee",
    "locale": "en", "version": "0.1.0", "confirmationData": {"confirmationUrl": "https://a.example/"}, "settings": {},
}  # fmt: skip
PING = {
    "lifecycle": "PING",
    "executionId": "b328f242",
    "locale": "en",
    "version": "1.0.0",
    "pingData": {"challenge": "1a904d57"},
}
MATTERMOST = (
    "channel_id=hawos4dqtby53pd64o4a4cmeoo&channel_name=town-square&team_domain=someteam&team_id=kwoknj9nwpypzgzy78wkw516qe"
    f"&post_id=axdygg1957njfe5pu38saikdho&text=some+text+here&timestamp={SECONDS}&token=zmigewsanbbsdf59xnmduzypjc"
    "&trigger_word=some&user_name=somename"
)
ROCKBLOCK = (
    "imei=300234010753370&serial=12345&momsn=12345&transmit_time=26-11-28+11%3A07%3A03&iridium_latitude=52.3867"
    "&iridium_longitude=0.2938&iridium_cep=8&data=48656c6c6f"
)
SUPABASE = {
    "type": "UPDATE", "table": "app_users", "schema": "public", "record": {"id": "c9871038", "username": "1"},
    "old_record": {"id": "c9871038", "username": "1"}, "commit_timestamp": NOON, "errors": None,
}  # fmt: skip
AMBIENT = (
    "&PASSKEY=3B876B897AA9C20A443F4875AFBE2C55&stationtype=AMBWeatherPro_V5.2.5&dateutc=2026-11-28+11:07:03"
    "&tempf=59.7&humidity=92"
)

REPORTS = [
    hook(
        "Wise",
        "docs.wise.com, Transfer state change",
        "wise",
        JSON | {"X-Delivery-Id": "a1b2c3d4-e5f6", "X-Signature-SHA256": "t7FM", "X-Test-Notification": "true"},
        WISE,
        "the id of the delivery and its time",
        event="transfers#state-change",
        id="a1b2c3d4-e5f6",
        time=AT,
    ),
    hook(
        "Hasura",
        "hasura.io/docs, Event Trigger Payload",
        "hasura",
        JSON,
        HASURA,
        "the event and its id",
        event="author_trigger",
        id="8f2b6d5e-6f5c-4d8e",
        time=AT,
    ),
    hook(
        "MinIO, an event",
        "minio/minio-dotnet#332",
        "minio",
        JSON,
        MINIO,
        "the event",
        event="s3:ObjectCreated:Put",
        id=None,
    ),
    hook(
        "MinIO, its ping",
        "minio/minio#9453",
        "minio-webhook",
        {"User-Agent": "Go-http-client/1.1"},
        b"",
        event=None,
        head={"user-agent": "Go-http-client/1.1"},
    ),
    asked("MinIO looks", "minio/minio#14507", "/hooks/minio", b"", method="HEAD"),
    hook("Flux", "sngular/gitops-webhook, README", "flux", FORM, FLUX, time=AT),
    hook(
        "SmartThings, confirmation",
        "developer.smartthings.com, Lifecycles",
        "st",
        JSON,
        CONFIRMATION,
        "the event: lifecycle",
        event="CONFIRMATION",
    ),
    asked(
        "SmartThings asks",
        "developer.smartthings.com, Lifecycles",
        "/hooks/st",
        b'{"pingData": {"challenge": "1a904d57"}}',
        "the answer",
        method="POST",
        fields=JSON,
        body=sent(PING),
    ),
    asked(
        "Smartsheet asks",
        "developers.smartsheet.com, Webhook verification",
        "/hooks/sheet",
        b'{"smartsheetHookResponse": "d78dd1d3-01ce"}',
        "the answer",
        method="POST",
        fields=JSON | {"Smartsheet-Hook-Challenge": "d78dd1d3-01ce"},
        body=b'{"challenge":"d78dd1d3-01ce","webhookId":1234567890}',
    ),
    asked(
        "WeChat asks",
        "gzb1985/doumibook_weixin#1",
        f"/hooks/wechat?signature={WECHAT}&echostr=5894412749035375647&timestamp=1372163077&nonce=1372399923",
        b"5894412749035375647",
        "the answer",
    ),
    Report(
        "WeChat, a message",
        "gzb1985/doumibook_weixin#1",
        "/hooks/weixin?signature=5f0d1eaf&timestamp=1372152898&nonce=1371541367",
        {"Content-Type": "text/xml"},
        b"<xml><MsgType>text</MsgType></xml>",
        [{"query": "signature=5f0d1eaf&timestamp=1372152898&nonce=1371541367"}],
    ),
    asked(
        "eBay asks",
        "eBay/event-notification-nodejs-sdk#9",
        "/hooks/ebay?challenge_code=123",
        sent({"challengeResponse": EBAY}),
        "the answer",
    ),
    asked(
        "X asks",
        "docs.x.com, Webhooks",
        "/hooks/twitter?crc_token=9b4507b3-9040-4669-9ca3-6b94edb50553",
        sent({"response_token": f"sha256={X}"}),
        "the answer",
    ),
    asked(
        "Fitbit asks",
        "ocariot/api-gateway, wiki: GET fitbit subscriber",
        "/hooks/fitbit?verify=848a8s4das68d4ad4as86d4asdsad8asd",
        b"",
        "the answer",
        status=204,
    ),
    asked(
        "Fitbit asks with a wrong code",
        "ocariot/api-gateway, wiki: GET fitbit subscriber",
        "/hooks/fitbit?verify=wrong",
        None,
        "the answer",
        status=404,
    ),
    hook(
        "Mattermost, outgoing webhook",
        "developers.mattermost.com, Outgoing webhooks",
        "mattermost",
        FORM,
        MATTERMOST,
        time=AT,
    ),
    hook(
        "Ghost",
        "TryGhost/Ghost#24499",
        "ghost",
        JSON | {"X-Ghost-Signature": "sha256=ab, t=1"},
        {"event": "post.published", "post": {"current": {"id": "1"}, "previous": {}}},
        event="post.published",
    ),
    hook("Supabase", "supabase/supabase-js#640", "supabase", JSON, SUPABASE, "the time", event="UPDATE", time=AT),
    hook(
        "hyperswitch",
        "juspay/hyperswitch#4176",
        "pay",
        JSON,
        HYPERSWITCH,
        event="payment_succeeded",
        id="evt_018e48d5ad6c73d5a289342e6132b224",
        time=AT,
    ),
    hook("RockBLOCK", "docs.groundcontrol.com, Receiving MO messages", "rockblock", FORM, ROCKBLOCK, event=None),
    hook(
        "Particle",
        "docs.particle.io, Webhooks",
        "particle",
        JSON,
        {"event": "Temperature", "data": "25", "published_at": NOON, "coreid": "1234567890abcdef"},
        "the time",
        event="Temperature",
        time=AT,
    ),
    hook(
        "Hikvision",
        "iobroker-community-adapters/ioBroker.hikvision-alarmserver#5",
        "camera",
        {"Content-Type": "multipart/form-data; boundary=boundary"},
        HIKVISION,
        event=None,
    ),
    hook(
        "ESP8266, a form in parts",
        "esp8266/Arduino#3034",
        "esp",
        {
            "Postman-Token": "9b910ed2",
            "Content-Type": "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
        },
        POSTMAN,
        event=None,
    ),
    hook("ESP8266, no Content-Type", "esp8266/Arduino#2129", "esp/1", {}, 'val={"val":"prue"}', path="1"),
    hook("Tasmota, WebQuery", "arendst/Tasmota#13209", "tasmota", {}, '{"some":"message"}'),
    hook("Tasmota, a space before the body", "arendst/Tasmota#15721", "tasmota", TEXT, ' {"type":"a"}', event="a"),
    Report(
        "emoncms, input/post",
        "jim-easterbrook/pywws#30",
        f"/hooks/emoncms/input/post.json?node=1&time={SECONDS}&json={{power:150,light:78}}&apikey=s3cret",
        {},
        b"",
        [{"path": "input/post.json", "query": f"node=1&time={SECONDS}&json={{power:150,light:78}}"}],
        method="GET",
    ),
    Report(
        "emoncms, input/bulk",
        "emoncms/emoncms#485",
        '/hooks/emoncms/input/bulk.json?data=[[0,1,{"power":10,"voltage":240}],[10,1,{"power":11}]]',
        {},
        b"",
        [{"query": 'data=[[0,1,{"power":10,"voltage":240}],[10,1,{"power":11}]]'}],
        method="GET",
    ),
    Report(
        "Traccar, forward.url",
        "traccar/traccar#1811",
        "/hooks/gprmc/Data?id=3550&code=0x0000&gprmc=$GPRMC,081836,A,3751.65,S",
        {},
        b"",
        [{"path": "Data", "query": "id=3550&code=0x0000&gprmc=$GPRMC,081836,A,3751.65,S"}],
        method="GET",
    ),
    Report(
        "Ambient Weather, & behind ?",
        "tlskinneriv/hassio-addons#21",
        f"/hooks/ambient?{AMBIENT}",
        {},
        b"",
        [{"query": AMBIENT}],
        method="GET",
    ),
    Report(
        "Ambient Weather, as metrics",
        "bachya/ecowitt2mqtt#697",
        f"/metrics?name=weather{AMBIENT}",
        {},
        b"",
        [{"field": "tempf", "value": 59.7, "time": AT}, {"field": "humidity", "value": 92}],
        method="GET",
    ),
    hook(
        "Heroku, a drain as a hook",
        "heroku/logplex, README.http_drains",
        "heroku",
        {
            "Content-Type": "application/logplex-1",
            "Logplex-Msg-Count": "2",
            "Logplex-Frame-Id": "09C557EAFCFB6CF2740EE62F62971098",
            "Logplex-Drain-Token": "d.s3cret",
        },
        LOGPLEX,
        "the id of the delivery",
        id="09C557EAFCFB6CF2740EE62F62971098",
    ),
    hook("Wazuh", "wazuh/wazuh#27114", "wazuh", JSON, WAZUH, time=AT),
    # --- logs
    logs(
        "Heroku, a drain",
        "heroku/logplex, README.http_drains",
        "/logs",
        {
            "Content-Type": "application/logplex-1",
            "Logplex-Msg-Count": "2",
            "Logplex-Frame-Id": "09C557EAFCFB6CF2740EE62F62971098",
        },
        LOGPLEX,
        *({"message": f"Hi from erlang {n}", "service": "erlang", "level": "info", "time": AT} for n in (1, 2)),
    ),
    logs(
        "Vercel, a drain in NDJSON",
        "vercel/docs#1506",
        "/logs",
        NDJSON | {"x-zeit-signature": "s"},
        "\n".join(json.dumps(each) for each in VERCEL),
        {"message": "done", "time": AT},
        {"message": "START RequestId: 643af4e3\nEND", "time": AT},
    ),
    logs(
        "Falco, http_output",
        "falcosecurity/falco#2127",
        "/logs",
        JSON,
        FALCO,
        {"message": "14:33:48.105952346: Error File below / opened for writing", "level": "error", "time": AT},
    ),
    logs("Kubernetes, audit webhook", "kubernetes/kubernetes#45919", "/logs", JSON, AUDIT, {"time": AT}, {"time": AT}),
    logs(
        "Flux, as a log",
        "fluxcd/flux2, discussion 6100",
        "/logs",
        JSON,
        FLUX,
        {"message": "Fetched revision: main/731f7ead", "level": "info", "time": AT},
    ),
    logs(
        "Wazuh, as a log",
        "wazuh/wazuh#22686",
        "/logs",
        JSON,
        WAZUH,
        {"message": "Nov 28 11:07:03 a sshd[1]: Failed", "time": AT},
    ),
    logs(
        "Fluent Bit, json_stream",
        "fluent/fluent-bit-docs#300",
        "/logs",
        JSON,
        f'{{"date":{SECONDS}.0,"log":"a"}}{{"date":{SECONDS}.0,"log":"b"}}',
        {"message": "a", "time": AT},
        {"message": "b"},
    ),
    logs(
        "Fluent Bit, a space between",
        "fluent/fluent-bit#577",
        "/logs",
        JSON,
        '{"log":"a"} {"log":"b"}',
        {"message": "a"},
        {"message": "b"},
    ),
    logs(
        "Fluent Bit, lines with CR",
        "fluent/fluent-bit#5810",
        "/logs",
        JSON,
        '{"log":"1"}\r\n{"log":"2"}\r\n',
        {"message": "1"},
        {"message": "2"},
    ),
    logs(
        "Fluent Bit, pretty lines",
        "fluent/fluent-bit#4011",
        "/logs",
        JSON,
        '{ "message": "say" }{ "message": "hello"}',
        {"message": "say"},
        {"message": "hello"},
    ),
    logs(
        "Logstash, json",
        "openobserve/openobserve#2330",
        "/logs",
        JSON,
        {
            "@timestamp": "2026-11-28T11:07:03.000Z",
            "@version": "1",
            "message": "m",
            "host": {"name": "a"},
            "event": {"original": "m"},
        },
        {"message": "m", "time": AT},
    ),
    logs(
        "Logstash, objects over lines",
        "logstash-plugins/logstash-input-http#110",
        "/logs",
        JSON,
        '{ "event": {\n   "message": "one"\n  }\n}\n{ "event": {\n   "message": "two"\n  }\n}\n',
        {"message": "one"},
        {"message": "two"},
    ),
    logs(
        "Logstash, _bulk as text/plain",
        "logstash-plugins/logstash-output-elasticsearch#552",
        "/_bulk",
        {"Content-Type": "text/plain; charset=ISO-8859-1", "User-Agent": "Manticore 0.6.0"},
        f'{{"index":{{"_index":"logstash","_type":"logs"}}}}\n{{"message":"m","@timestamp":"{NOON}"}}\n',
        {"message": "m", "time": AT},
    ),
    logs(
        "Fluent Bit, two objects on a line of _bulk",
        "fluent/fluent-bit#5132",
        "/_bulk",
        NDJSON,
        TWO_ON_A_LINE,
        {"message": "a log line", "time": AT},
        {"message": "another log line", "time": AT},
    ),
    logs(
        "Fluentd, _bulk by PUT",
        "uken/fluent-plugin-elasticsearch#301",
        "/logstash-2026.11.28/_bulk",
        JSON,
        '{"index":{"_id":"1"}}\n{"message":"m","@timestamp":"2026-11-28T11:07:03.000000000+00:00"}\n',
        {"message": "m", "time": AT},
        method="PUT",
    ),
    asked("Filebeat asks for the license", "elastic/kibana#95309", "/_license", None, "the answer"),
    asked("Logstash asks for the license", "Websoft9/docker-library#51", "/_xpack", None, "the answer"),
    asked("Docker's Splunk driver looks", "moby/moby#24652", "/services/collector/event/1.0", b"", method="OPTIONS"),
    # --- metrics
    Report(
        "KairosDB, one value",
        "kairosdb/kairosdb#110",
        "/metrics",
        JSON,
        sent({"name": "tim.test", "timestamp": SECONDS, "value": 18, "tags": {"host": "loadbalancer"}}),
        [{"name": "tim.test", "value": 18, "time": AT, "tags": {"host": "loadbalancer"}}],
    ),
    Report(
        "KairosDB, datapoints",
        "kairosdb/kairosdb#205",
        "/metrics",
        JSON,
        sent([{"name": "archive.file", "datapoints": [[MS, 123], [MS, 13.2]], "tags": {"host": "server1"}}]),
        [{"name": "archive.file", "value": 123, "time": AT, "tags": {"host": "server1"}}, {"value": 13.2}],
        "its array of values",
    ),
    Report(
        "VictoriaMetrics, a line of its import",
        "VictoriaMetrics, docs: vmctl, JSON line format",
        "/metrics",
        JSON,
        sent({"metric": {"__name__": "galaxy_uptime", "instance": "m1"}, "values": [8, 9], "timestamps": [MS, MS]}),
        [{"name": "galaxy_uptime", "value": 8, "time": AT, "tags": {"instance": "m1"}}, {"value": 9}],
        "its arrays of values",
    ),
    Report(
        "VictoriaMetrics, /api/v1/import",
        "timeless_metrics, docs: TimelessMetrics.HTTP",
        "/api/v1/import",
        {},
        b'{"metric":{"__name__":"cpu_usage","host":"web-1"},"values":[73.2],"timestamps":[%d]}\n'
        b'{"metric":{"__name__":"mem","host":"web-1"},"values":[1],"timestamps":[%d]}\n' % (MS, MS),
        [{"name": "cpu_usage", "value": 73.2, "time": AT}, {"name": "mem"}],
        "the path",
        status=204,
    ),
    Report(
        "Pushgateway, by curl",
        "google/mtail#679",
        "/metrics/job/some_job",
        FORM,
        b"some_metric 3.14\n",
        [{"name": "some_metric", "value": 3.14, "tags": {"job": "some_job"}}],
    ),
    Report(
        "prom-client without a job",
        "prometheus/client_js#502",
        "/metrics",
        TEXT | {"Content-Type": "text/plain; version=0.0.4"},
        b'# HELP a b\n# TYPE a counter\na{x="1"} 2\n',
        [{"name": "a", "value": 2, "tags": {"x": "1"}}],
    ),
    Report(
        "prometheus-push-client, OpenMetrics",
        "gistart/prometheus-push-client#2",
        "/metrics/job/b",
        {"Content-Type": "application/openmetrics-text; version=1.0.0; charset=utf-8"},
        b"# TYPE a counter\na_total 1.0\n# EOF\n",
        [{"name": "a_total", "value": 1.0, "tags": {"job": "b"}}],
    ),
    Report(
        "ThingsBoard's telemetry",
        "RavenSystem/esp-homekit-devices#1271",
        "/metrics?name=room",
        {},
        b'{"temp":21.5,"hum":40}',
        [{"name": "room", "field": "temp", "value": 21.5}, {"field": "hum", "value": 40}],
    ),
    Report(
        "SensorGrid",
        "NUKnightLab/SensorGrid#36",
        "/metrics?name=node",
        JSON,
        sent(
            {
                "ver": 1,
                "net": 4,
                "orig": 10,
                "id": 200,
                "bat": 4.11,
                "ram": 20731,
                "timestamp": 502430779,
                "data": [63, 52],
            }
        ),
        [
            {"field": "ver"},
            {"field": "net"},
            {"field": "orig"},
            {"field": "id"},
            {"field": "bat", "value": 4.11},
            {"field": "ram"},
        ],
    ),
    # --- gps
    Report(
        "Traccar, forward.json, flat",
        "traccar/traccar#4529",
        "/gps",
        JSON,
        sent(FORWARDED),
        [{"device": "1", "lat": 21.1416013, "lon": 99.6410078, "time": AT, "accuracy": 2200.0, "bearing": 90.0}],
        "its time",
    ),
    Report(
        "GPSLogger to Traccar's server",
        "mendhak/gpslogger#600",
        f"/traccar?id=myid&lat=48.5&lon=11.5&timestamp={NOON}&speed=10&hdop=1",
        {},
        b"",
        [{"device": "myid", "lat": 48.5, "time": AT}],
        method="GET",
    ),
    Report(
        "OsmAnd as GPS-Tracker has it",
        "eusonlito/GPS-Tracker#75",
        f"/traccar?lat=48.5&lon=11.5&timestamp={SECONDS}&speed=1&direction=90&id=7&maker=api&hdop=1",
        {},
        b"",
        [{"device": "7", "time": AT}],
        method="GET",
    ),
    Report(
        "OwnTracks, a waypoint",
        "owntracks/ios#630",
        "/owntracks",
        JSON | {"X-Limit-U": "otr", "X-Limit-D": "HT"},
        sent(
            {
                "rad": 1000,
                "tst": SECONDS,
                "_type": "waypoint",
                "lon": -122.0232,
                "topic": "owntracks/otr/HT/waypoint",
                "lat": 37.337601,
                "desc": "Here",
                "_http": True,
            }
        ),
        [],
    ),
    Report(
        "OwnTracks, a transition",
        "owntracks/android#631",
        "/owntracks",
        JSON | {"X-Limit-U": "u", "X-Limit-D": "px"},
        sent(
            {
                "_type": "transition",
                "acc": 16.0,
                "desc": "Home",
                "event": "enter",
                "lat": 48.5,
                "lon": 11.5,
                "t": "l",
                "tid": "px",
                "tst": SECONDS,
                "wtst": 1544357,
            }
        ),
        [{"lat": 48.5, "lon": 11.5, "time": AT}],
    ),
    Report(
        "OwnTracks, a last will",
        "owntracks/android#349",
        "/owntracks",
        JSON | {"X-Limit-U": "jp", "X-Limit-D": "nexus4"},
        b'{"_type":"lwt","tst":1459198293}',
        [],
    ),
]
