"""What the gateway answers for some formats besides the reply of the route. It runs on PyPy.

Amazon Data Firehose takes a delivery for failed unless the answer names its id and the present time
(docs.aws.amazon.com, "HTTP endpoint delivery request and response specifications"). A sender of CloudEvents may ask
first whether it may post ("HTTP 1.1 Web Hooks for Event Delivery", 4). Remote write 2.0 reads how much was written.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from sluice.contrib.formats import remote_write_counts
from sluice.contrib.formats.register import HEC
from sluice.contrib.formats.rpc_status import rpc_status
from sluice.http.endpoints import Endpoints
from sluice.http.routes import JSON, Reply, Route, reply
from sluice.routes import ROUTES
from sluice.settings import Settings

DELIVERED = "HTTP_X_AMZ_FIREHOSE_REQUEST_ID"
FIREHOSE, REMOTE_WRITE = "/firehose", "/api/v1/write"  # of the latter, a user's route may have a prefix
LOOKED = "HEAD, OPTIONS, POST"
LOOKED_AT = reply("200 OK", b"", JSON, ("Allow", LOOKED))
ORIGIN = re.compile(r"[\w.*-]{1,255}", re.ASCII)  # the name of a system in the DNS, or *


def add_answers(routes: Mapping[str, Route], endpoints: Endpoints, s: Settings) -> None:
    """Give the endpoints these answers."""
    for endpoint in endpoints:
        endpoint.methods["OPTIONS"] = permit_events
        endpoint.form = rpc_status
        if endpoint.path.startswith(HEC):
            endpoint.methods |= {"OPTIONS": look, "HEAD": look}
            endpoint.allowed = LOOKED
        if endpoint.path.endswith(REMOTE_WRITE):
            endpoint.answer = remote_write_counts.answer_write
        elif endpoint.path == FIREHOSE or endpoint.path not in ROUTES:
            endpoint.answer = answer_delivery


def look(environ: dict[str, Any]) -> Reply:
    """Docker's driver for Splunk starts no container unless OPTIONS gets 200 (its `verifySplunkConnection`)."""
    return LOOKED_AT


def answer_delivery(environ: dict[str, Any], item: bytes) -> Reply | None:
    name = environ.get(DELIVERED)
    if name is None:
        return None
    body = {"requestId": name, "timestamp": int(time.time() * 1000)}
    return reply("200 OK", json.dumps(body, separators=(",", ":")).encode())


def permit_events(environ: dict[str, Any]) -> Reply | None:
    """The permission to post events here. It is none to pass an access control."""
    origin: str = environ.get("HTTP_WEBHOOK_REQUEST_ORIGIN", "")
    if not ORIGIN.fullmatch(origin):
        return None
    headers = ("Allow", "POST"), ("WebHook-Allowed-Origin", origin), ("WebHook-Allowed-Rate", "*")
    return reply("200 OK", b"{}", JSON, *headers)
