"""Requests of OTLP, made with OpenTelemetry's generated classes, as list items in both encodings."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from support.list_items import kept

NOON = 1_767_268_800_000_000_000
PROTOBUF, JSON = "application/x-protobuf", "application/json"


def attribute(key: str, **value: Any) -> dict[str, Any]:
    """An attribute; value: a field of AnyValue."""
    return {"key": key, "value": value}


def in_json(message: Any) -> bytes:
    """A request in OTLP's JSON: ids are hexadecimal, enums are numbers."""
    found = json_format.MessageToDict(message, use_integers_for_enums=True)

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(element) for element in value]
        if not isinstance(value, dict):
            return value
        return {
            key: json_format.base64.b64decode(inner).hex()
            if key in ("traceId", "spanId", "parentSpanId")
            else walk(inner)
            for key, inner in value.items()
        }

    return json.dumps(walk(found)).encode()


def item(path: str, body: bytes, content_type: str = PROTOBUF) -> bytes:
    """A kept message."""
    return kept(body, path, f"Content-Type: {content_type}")


def items(path: str, message: Any) -> list[bytes]:
    """A request in both encodings."""
    return [item(path, message.SerializeToString()), item(path, in_json(message), JSON)]
