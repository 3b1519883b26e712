"""Requests of public senders that nobody had tried here become the rows that they must."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from contrib_support.public_requests import REQUESTS, Case
from sluice import settings
from sluice.http.endpoints import Endpoints, load_endpoints
from sluice.routes import load_routes
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Limits
from support.folders import needs

pytestmark = needs("hooks", "access")


class Count:
    n = 0


@pytest.fixture(scope="module")
def endpoints() -> Endpoints:
    return load_endpoints(load_routes(""), settings.load_settings({}), lambda name: Count())  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case.sender)
def test_a_request_becomes_these_rows(case: Case, endpoints: Endpoints) -> None:
    path, _, query = case.target.partition("?")
    sent = json.dumps(case.body) if isinstance(case.body, dict | list) else case.body
    body = sent.encode() if isinstance(sent, str) else sent
    environ: dict[str, Any] = {"REQUEST_METHOD": case.method, "PATH_INFO": unquote(path), "QUERY_STRING": query}
    environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "CONTENT_TYPE": ""}
    for name, value in case.fields.items():
        key = name.upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    endpoint = endpoints.find_endpoint(environ)
    assert endpoint is not None and case.method in endpoint.taken
    item = endpoint.read(environ, endpoint)
    assert endpoint.reply.status == case.status
    assert b"s3cret" not in item
    decoded = STREAMS[endpoint.stream].decode(item, Limits())
    assert not decoded.rejects
    found = [msgspec.structs.asdict(record) for record in decoded.records]
    assert [{name: row[name] for name in wanted} for row, wanted in zip(found, case.rows, strict=True)] == case.rows


def test_there_are_forty_and_each_has_its_source() -> None:
    assert len({case.sender for case in REQUESTS}) == len(REQUESTS) >= 40
    assert all(case.source for case in REQUESTS)
