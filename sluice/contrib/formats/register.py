"""Wire formats: what clients of other systems send. Each decoder is imported when a body of its format comes."""

from __future__ import annotations

import re

from sluice.contrib.formats.rpc_status import PROTOBUF
from sluice.http.routes import JSON, NO_CONTENT, OK, reply
from sluice.registry import Coding, Contribution, Entry
from sluice.streams.format import Format

PROTOBUF_OK, JSON_OK = reply("200 OK", b"", PROTOBUF), reply("200 OK", b"{}")
OVERLAND_OK = reply("200 OK", b'{"result":"ok"}')  # it sends its batch again unless it gets exactly this
ACCEPTED = reply("202 Accepted")  # as Graylog, and as systemd-journal-remote
NO_COMMANDS = reply("200 OK", b"[]")  # OwnTracks reads the answer as a list of commands

TYPED, CODED = ("Content-Type",), ("Content-Type", "Content-Encoding")
DELIVERED = ("X-Amz-Firehose-Request-Id",)
LIMITS = ("X-Limit-U", "X-Limit-D")  # OwnTracks: may have the device's name

# In whose members log libraries and shippers wrap their records
ENVELOPES = "events", "Events", "logs", "logEvents", "records", "entries", "params", "items"

ZSTD = b"\x28\xb5\x2f\xfd"
SNAPPY = "snappy", "x-snappy-framed"  # in Content-Encoding: a block, or either

ELASTIC = "X-Elastic-Product", "Elasticsearch"  # its clients refuse an answer without it
BULK = reply("200 OK", b'{"took":0,"errors":false,"items":[]}', JSON, ELASTIC)
HEC_OK = reply("200 OK", b'{"text":"Success","code":0}')
SEQ_OK = reply("201 Created", b'{"MinimumLevelAccepted":null}')
HEC = "/services/collector"

PROBES = {
    path: Entry(f"sluice.contrib.formats.{target}")
    for path, target in {
        "/health": "influx_probes:health", "/ping": "influx_probes:ping", "/query": "influx_probes:query",
        "/ready": "influx_probes:ready", "/": "elastic_probes:root", "/_license":
        "elastic_probes:licensed", "/_xpack": "elastic_probes:licensed", f"{HEC}/health": "elastic_probes:hec",
        f"{HEC}/health/1.0": "elastic_probes:hec",
    }.items()
}  # fmt: skip

# A map or an array of up to 15 objects, of up to 32,767, an array of more maps, or of more than 65,535 objects: no text
# in UTF-8 begins so
MSGPACK = re.compile(
    rb"[\x80-\x9f]|[\xdc\xde][\x00-\x7f\xc0-\xff]|\xdc[\x80-\xbf][\x00-\xc1\xf5-\xff][\x80-\x8f\xde\xdf]|[\xdd\xdf]\0"
)

# In the order in which they are tried
FORMATS = (
    # The Content-Type has the version of remote write
    Format("metrics", "sluice.contrib.formats.prometheus:decode", {"/api/v1/write": NO_CONTENT}, CODED),
    # InfluxDB's clients accept only 204; the query string has the precision
    Format(
        "metrics", "sluice.contrib.formats.influx:decode",
        dict.fromkeys(("/write", "/api/v2/write", "/api/v3/write_lp"), NO_CONTENT), (), text=True,
    ),
    # OTLP: an empty ExportMetricsServiceResponse, ExportLogsServiceResponse …, without a partial success
    Format("metrics", "sluice.contrib.formats.otlp_metrics:decode", {"/v1/metrics": PROTOBUF_OK}, TYPED, json=JSON_OK),
    Format("logs", "sluice.contrib.formats.otlp_logs:decode", {"/v1/logs": PROTOBUF_OK}, TYPED, json=JSON_OK),
    Format("spans", "sluice.contrib.formats.otlp_traces:decode", {"/v1/traces": PROTOBUF_OK}, TYPED, json=JSON_OK),
    Format("metrics", "sluice.contrib.formats.telegraf:decode_points", objects=("metrics",)),
    Format("metrics", "sluice.contrib.formats.telegraf:decode_point", objects=("fields",)),
    Format("metrics", "sluice.contrib.formats.sensor_logger:decode", objects=("payload",)),
    Format("metrics", "sluice.contrib.formats.zabbix:decode", objects=("itemid",)),
    # KairosDB, and the import of VictoriaMetrics
    Format(
        "metrics", "sluice.contrib.formats.series:points", {"/api/v1/datapoints": NO_CONTENT}, objects=("datapoints",)
    ),
    Format("metrics", "sluice.contrib.formats.series:arrays", {"/api/v1/import": NO_CONTENT}, objects=("timestamps",)),
    Format("metrics", "sluice.contrib.formats.opentsdb:decode", {"/api/put": NO_CONTENT}, objects=("metric",)),
    Format("metrics", "sluice.contrib.formats.collectd:decode", {"/collectd": NO_CONTENT}, ()),
    # The path has labels: those of the Pushgateway, and of VictoriaMetrics
    Format(
        "metrics", "sluice.contrib.formats.exposition:decode",
        {"/metrics/job/*": OK, "/metrics/job@base64/*": OK, "/api/v1/import/prometheus/*": NO_CONTENT},
        TYPED, methods=("PUT",), begins=re.compile(rb"# (?:HELP|TYPE) "),
    ),
    # Loki's clients accept only 204; the Content-Type says whether it is protobuf
    Format(
        "logs", "sluice.contrib.formats.loki:decode",
        dict.fromkeys(("/loki/api/v1/push", "/api/prom/push"), NO_CONTENT), CODED,
    ),
    Format("logs", "sluice.contrib.formats.faro:decode", objects=("exceptions", "measurements")),
    Format("logs", "sluice.contrib.formats.envelopes:decode", objects=ENVELOPES),
    Format("logs", "sluice.contrib.formats.gelf:decode", {"/gelf": ACCEPTED}, ()),
    Format("logs", "sluice.contrib.formats.reports:decode", {"/reports": NO_CONTENT}, ()),
    # systemd-journal-upload appends this path to its URL
    Format("logs", "sluice.contrib.formats.journal:decode", {"/upload": ACCEPTED}, ()),
    # The parameters of the URL have what a log lacks
    Format("logs", "sluice.contrib.formats.datadog:decode", {"/api/v2/logs": reply("202 Accepted", b"{}")}, ()),
    Format("logs", "sluice.contrib.formats.logpush:decode", {"/logpush": OK}, ()),
    Format(
        "logs", "sluice.contrib.formats.elastic:decode", {"/_bulk": BULK, "/{index}/_bulk": BULK}, (), methods=("PUT",)
    ),
    Format(
        "logs", "sluice.contrib.formats.hec:decode",
        dict.fromkeys((HEC, f"{HEC}/event", f"{HEC}/event/1.0", f"{HEC}/raw", f"{HEC}/raw/1.0"), HEC_OK), (),
    ),
    # Compact log events, one a line, which /logs takes, too
    Format("logs", paths={"/api/events/raw": SEQ_OK, "/ingest/clef": SEQ_OK}),
    Format(
        "spans", "sluice.contrib.formats.zipkin:decode",
        dict.fromkeys(("/api/v2/spans", "/zipkin/api/v2/spans"), ACCEPTED), (),
    ),
    Format("logs", paths={"/firehose": OK}, fields=DELIVERED),
    Format("logs", "sluice.contrib.formats.msgpack:decode", begins=MSGPACK),
    # The app repeats a request without a body until it is accepted
    Format(
        "gps", "sluice.contrib.formats.owntracks:decode", {"/owntracks": NO_COMMANDS},
        LIMITS, objects=("_type",), empty=True,
    ),
    Format("gps", "sluice.contrib.formats.overland:decode", {"/overland": OVERLAND_OK}, objects=("locations",)),
    Format("gps", "sluice.contrib.formats.geojson:decode", objects=("features",)),
    Format("gps", "sluice.contrib.formats.geojson:decode_feature", objects=("geometry",)),
    Format("gps", "sluice.contrib.formats.traccar:forwarded", objects=("position", "fixTime")),
    Format(
        "gps", "sluice.contrib.formats.traccar:decode", {"/traccar": OK},
        objects=("location",), form="sluice.contrib.formats.traccar:decode_form", get=True,
    ),
    Format("gps", paths={"/gpslogger": OK}, fields=(), get=True),  # a position without a device has the path's name
    # The parameter `device` has the name of the phone
    Format("gps", "sluice.contrib.formats.homeassistant:decode", {"/homeassistant": OK}, (), objects=()),
)  # fmt: skip

CONTRIBUTION = Contribution(
    page="INTEGRATIONS.md",
    formats=FORMATS,
    streams={
        "spans": "sluice.contrib.formats.spans:SPANS",
        # in place of the core's
        "logs": "sluice.contrib.formats.log_fields:LOGS",
        "gps": "sluice.contrib.formats.position:GPS",
        "metrics": "sluice.contrib.formats.loose_metrics:METRICS",
        "votes": "sluice.contrib.formats.loose_votes:VOTES",
    },
    openers={
        "X-Amz-Firehose-Request-Id": "sluice.contrib.formats.firehose:open_delivery",
        "Content-Type: multipart/form-data": "sluice.contrib.formats.multipart:open_form",
    },
    keys=("X-Amz-Firehose-Request-Id",),
    codings={"zstd": Coding("sluice.contrib.formats.codings:inflate_zstd", magic=ZSTD)}
    | dict.fromkeys(SNAPPY, Coding("sluice.contrib.formats.codings:inflate_snappy")),
    own_decoder="sluice.contrib.formats.cloudevents:EventDecoder",
    fields=("ce-time", "WebHook-Request-Origin", "X-Amz-Firehose-Request-Id"),
    probes=PROBES,
    gateway="sluice.contrib.formats.format_answers:add_answers",
    nginx="sluice.contrib.formats.nginx:format_files",
)
