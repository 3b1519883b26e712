"""A sender of CloudEvents asks before it posts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from proving import harness
from proving.harness import Server, redis_server
from proving.harness import request as send
from support.gateway_sites import Site, gateway_site

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def private_redis() -> Iterator[Server]:
    with harness.short_tmp() as tmp, redis_server(tmp, appendonly="no", save="") as server:
        yield server


# Every server keeps the contract: test_http_contract.py. wsgiref.validate is the strictest, and knows least of HTTP
@pytest.fixture(scope="module", params=["fastlane", "validated"])
def installed(private_redis: Server, request: pytest.FixtureRequest) -> Iterator[Site]:
    with gateway_site(private_redis, request.param, "cpython") as found:
        yield found


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    """Empty lists; afterwards, that the application raised nothing during the test."""
    with installed.emptied():
        yield installed


def field(message: Any) -> str:
    return str(message.field("Content-Encoding"))


@pytest.mark.parametrize(
    "field, status",
    [("eventgrid.azure.net", 200), ("*", 200), ("a b", 405), ("", 405), ("a" * 256, 405), ("\u00e4", 405)],
)
def test_a_sender_of_cloudevents_that_asks_gets_permission_to_post(site: Site, field: str, status: int) -> None:
    head = f"OPTIONS /votes HTTP/1.1\r\nHost: x\r\nWebHook-Request-Origin: {field}\r\n\r\n".encode("latin-1")
    given, headers, _ = send(site.where, head)
    assert (given, headers["allow"]) == (status, "POST" if status == 200 else "GET, POST")
    assert headers.get("webhook-allowed-origin") == (field if status == 200 else None)
    assert send(site.where, head.replace(b"OPTIONS", b"PUT"))[0] == 405
    assert send(site.where, head.replace(b"/votes", b"/nowhere"))[0] == 404
