"""Errors as OTLP has them: google.rpc.Status."""

from __future__ import annotations

import json
from functools import lru_cache

from sluice.http.routes import JSON, Reply, reply

PROTOBUF = "application/x-protobuf"


def rpc_status(given: Reply, in_json: bool) -> Reply:
    """An error with its detail as message (field 2), without a code.

    given: made by `problem`. in_json: else in protobuf.
    """
    detail = json.loads(b"".join(given.chunks))["detail"]
    more = [header for header in given.headers if not header[0].startswith("Content-")]
    return encoded_status(given.status, detail, in_json, *more)


@lru_cache(maxsize=256)
def encoded_status(status: str, detail: str, in_json: bool, *headers: tuple[str, str]) -> Reply:
    if in_json:
        return reply(status, json.dumps({"message": detail}).encode(), JSON, *headers)
    text = detail.encode()
    size = bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    return reply(status, b"\x12" + size + text, PROTOBUF, *headers)
