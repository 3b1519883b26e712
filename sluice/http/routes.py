"""The stream and the success answer of each path. Standard library only."""

from __future__ import annotations

from typing import NamedTuple

from sluice import extension

JSON = "application/json"
PROTOBUF = "application/x-protobuf"


class Reply(NamedTuple):
    """An answer: the arguments of `start_response`, and the chunks of the body. Made at import."""

    status: str
    headers: list[tuple[str, str]]
    chunks: tuple[bytes, ...]


def reply(status: str, body: bytes = b"", content_type: str = JSON, *more: tuple[str, str]) -> Reply:
    """An answer with Content-Type and Content-Length; a 204 has neither (RFC 9110, 8.6)."""
    if status.startswith("204"):
        return Reply(status, list(more), ())
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), *more]
    return Reply(status, headers, (body,))


class Route(NamedTuple):
    """The destination of a path's bodies.

    stream: the name of the list and of the worker's decoder.
    reply: the 2xx that this path's clients expect once the body is on the list.
    keep_head: the item is the whole HTTP message, because the decoder needs the target or a field.
    json: the 2xx for a request in JSON, if answers have the encoding of their request, as OTLP's do. Then `reply` is
        in protobuf, errors are google.rpc.Status, and a request without a body is valid.
    """

    stream: str
    reply: Reply
    keep_head: bool = False
    json: Reply | None = None


OK = reply("200 OK", b'{"message":"OK"}')
NO_CONTENT = reply("204 No Content")
PROTOBUF_OK, JSON_OK = reply("200 OK", b"", PROTOBUF), reply("200 OK", b"{}")

ROUTES: dict[str, Route] = {
    "/metrics": Route("metrics", OK),
    "/gps": Route("gps", OK),
    "/votes": Route("votes", OK),
    "/logs": Route("logs", OK),
    # InfluxDB clients accept only 204; the query string has the precision
    "/write": Route("metrics", NO_CONTENT, keep_head=True),
    "/api/v2/write": Route("metrics", NO_CONTENT, keep_head=True),
    # Prometheus remote write; the Content-Type has the version
    "/api/v1/write": Route("metrics", NO_CONTENT, keep_head=True),
    # Loki's clients accept only 204; the Content-Type says whether it is protobuf
    "/loki/api/v1/push": Route("logs", NO_CONTENT, keep_head=True),
    # OwnTracks reads the answer as a list of commands; X-Limit-U and X-Limit-D may have the device's name
    "/owntracks": Route("gps", reply("200 OK", b"[]"), keep_head=True),
    # Overland sends its batch again unless it gets exactly this
    "/overland": Route("gps", reply("200 OK", b'{"result":"ok"}')),
    "/traccar": Route("gps", OK),
    "/gpslogger": Route("gps", OK),
    # the parameter `device` has the name of the phone
    "/homeassistant": Route("gps", OK, keep_head=True),
    # OTLP: an empty ExportMetricsServiceResponse or ExportLogsServiceResponse, without a partial success
    "/v1/metrics": Route("metrics", PROTOBUF_OK, keep_head=True, json=JSON_OK),
    "/v1/logs": Route("logs", PROTOBUF_OK, keep_head=True, json=JSON_OK),
}


def load(module: str) -> dict[str, Route]:
    """The built-in routes and those of the user's module, which may replace them. module: INGEST_ROUTES.

    Raises: SettingError if it cannot be imported, or has no ROUTES.
    """
    return {**ROUTES, **extension.dictionary("INGEST_ROUTES", module, "ROUTES")}
