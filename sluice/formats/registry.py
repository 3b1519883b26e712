"""All wire formats, and the gateway's routes to them. The gateway on PyPy reads it, so it imports no decoder."""

from __future__ import annotations

from sluice import extension
from sluice.http.routes import NO_CONTENT, OK, PROTOBUF, Route, reply
from sluice.streams.format import Format

PROTOBUF_OK, JSON_OK = reply("200 OK", b"", PROTOBUF), reply("200 OK", b"{}")
OVERLAND_OK = reply("200 OK", b'{"result":"ok"}')  # it sends its batch again unless it gets exactly this
NO_COMMANDS = reply("200 OK", b"[]")  # OwnTracks reads the answer as a list of commands

# In the order in which they are tried
FORMATS = (
    # The Content-Type has the version of remote write
    Format("metrics", "sluice.formats.prometheus:decode", {"/api/v1/write": NO_CONTENT}, keep_head=True),
    # InfluxDB's clients accept only 204; the query string has the precision
    Format(
        "metrics", "sluice.formats.influx:decode", {"/write": NO_CONTENT, "/api/v2/write": NO_CONTENT},
        keep_head=True, text=True,
    ),
    # OTLP: an empty ExportMetricsServiceResponse or ExportLogsServiceResponse, without a partial success
    Format("metrics", "sluice.formats.otlp_metrics:decode", {"/v1/metrics": PROTOBUF_OK}, keep_head=True, json=JSON_OK),
    Format("logs", "sluice.formats.otlp_logs:decode", {"/v1/logs": PROTOBUF_OK}, keep_head=True, json=JSON_OK),
    Format("metrics", "sluice.formats.telegraf:points", objects=("metrics",)),
    Format("metrics", "sluice.formats.telegraf:point", objects=("fields",)),
    # Loki's clients accept only 204; the Content-Type says whether it is protobuf
    Format("logs", "sluice.formats.loki:decode", {"/loki/api/v1/push": NO_CONTENT}, keep_head=True),
    # X-Limit-U and X-Limit-D may have the device's name
    Format("gps", "sluice.formats.owntracks:decode", {"/owntracks": NO_COMMANDS}, keep_head=True, objects=("_type",)),
    Format("gps", "sluice.formats.overland:decode", {"/overland": OVERLAND_OK}, objects=("locations",)),
    Format(
        "gps", "sluice.formats.traccar:decode", {"/traccar": OK},
        objects=("location",), form="sluice.formats.traccar:form",
    ),
    Format("gps", paths={"/gpslogger": OK}, form="sluice.formats.gpslogger:form"),
    # The parameter `device` has the name of the phone
    Format("gps", "sluice.formats.homeassistant:decode", {"/homeassistant": OK}, keep_head=True, objects=()),
)  # fmt: skip

ROUTES = {f"/{stream}": Route(stream, OK) for stream in ("metrics", "gps", "votes", "logs")} | {
    path: Route(known.stream, answer, known.keep_head, known.json)
    for known in FORMATS
    for path, answer in known.paths.items()
}


def load_routes(module: str) -> dict[str, Route]:
    """The built-in routes and those of the user's module, which may replace them. module: INGEST_ROUTES.

    Raises: SettingError if it cannot be imported, or has no ROUTES.
    """
    return ROUTES | extension.dictionary("INGEST_ROUTES", module, "ROUTES")
