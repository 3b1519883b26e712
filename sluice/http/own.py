"""Answers that depend on their request: of remote write 2.0, and of a delivery of Amazon Data Firehose. Runs on PyPy.

Firehose takes a delivery for failed unless the answer names its id and the present time (docs.aws.amazon.com, "HTTP
endpoint delivery request and response specifications").
"""

from __future__ import annotations

import json
import time
from copy import copy
from typing import Any

from sluice.http import written
from sluice.http.endpoints import Endpoint
from sluice.http.request import DELIVERED, PLAIN
from sluice.http.routes import Reply, reply


def read(environ: dict[str, Any], endpoint: Endpoint, keep_head: bool) -> tuple[bytes, Endpoint]:
    """The item of a request whose head is examined, and the endpoint with its answer. Raises: Rejected."""
    item = endpoint.read({**environ, "fastlane.plain": PLAIN}, keep_head, endpoint.max_body)
    answering = copy(endpoint)
    if DELIVERED in environ:
        answering.reply = delivered(environ[DELIVERED])
    elif endpoint.path.endswith(written.PATH):
        answering.reply = written.answer(item)
    return item, answering


def delivered(name: str) -> Reply:
    body = {"requestId": name, "timestamp": int(time.time() * 1000)}
    return reply("200 OK", json.dumps(body, separators=(",", ":")).encode())
