"""What public senders send becomes the row that it must, or gets the answer that it asks for."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from contrib_support.hook_requests import SENDERS, Sent
from sluice import settings
from sluice.contrib.hooks import gateway
from sluice.contrib.hooks.hook import Hook, decode, key_of
from sluice.contrib.hooks.register import PATH
from sluice.http.endpoints import Endpoint, Endpoints
from sluice.http.replies import Rejected, not_allowed
from sluice.http.request import BODY_ONLY
from sluice.routes import ROUTES
from sluice.streams.record import Limits
from support.folders import needs

Ask = Callable[[Sent], "bytes | Rejected"]


def endpoint_of(**given: str) -> Endpoint:
    """The endpoint of hooks, as a gateway has it."""
    endpoints = Endpoints({PATH: ROUTES[PATH]}, lambda name: None, 1 << 20, 8 << 20)  # type: ignore[arg-type,return-value]
    gateway.extend(ROUTES, endpoints, settings.load_settings(given))
    return endpoints.plain[PATH]


def environ_of(sent: Sent) -> dict[str, Any]:
    """The request as gunicorn makes it."""
    path, _, query = sent.path.partition("?")
    body = sent.body.encode() if isinstance(sent.body, str) else sent.body
    fields = {name.upper().replace("-", "_"): value for name, value in sent.fields.items()}
    fields.pop("CONTENT_LENGTH", None)
    return {
        "REQUEST_METHOD": sent.method, "PATH_INFO": unquote(path, "latin-1"), "QUERY_STRING": query,
        "RAW_URI": sent.path, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body),
        "HTTP_HOST": "a.example",
    } | {name if name == "CONTENT_TYPE" else f"HTTP_{name}": value for name, value in fields.items()}  # fmt: skip


def row_of(sent: Sent, endpoint: Endpoint) -> Hook:
    decoded = decode(endpoint.read(environ_of(sent), endpoint), Limits())
    assert not decoded.rejects
    (row,) = decoded.records
    assert isinstance(row, Hook)
    return row


MULTIPART = [sent for sent in SENDERS if "multipart/form-data" in str(sent)]


@pytest.mark.parametrize(
    "sent",
    [pytest.param(sent, marks=needs("formats")) if sent in MULTIPART else sent for sent in SENDERS],
    ids=lambda sent: sent.sender,
)
def test_a_request_becomes_its_row_or_gets_its_answer(sent: Sent) -> None:
    endpoint = endpoint_of()
    if sent.row is None:
        with pytest.raises(Rejected) as rejected:
            endpoint.read(environ_of(sent), endpoint)
        reply = rejected.value.args[0]
        assert reply.status == "200 OK" and b"".join(reply.chunks) == sent.answer
        return
    row = row_of(sent, endpoint)
    assert {name: getattr(row, name) for name in sent.row} == sent.row
    assert (row.body is None) != (row.raw is None)
    assert row.body is None or "body" in sent.row or row.body == sent.body
    assert b"s3cret" not in endpoint.read(environ_of(sent), endpoint)


def test_a_head_of_the_fast_lane_gives_the_same_row() -> None:
    endpoint = endpoint_of()
    for sent in SENDERS:
        if sent.row is None or sent.method != "POST":
            continue
        environ = environ_of(sent)
        lines = [
            f"POST {sent.path} HTTP/1.1",
            "Host: a.example",
            *(f"{n}: {v}" for n, v in sent.fields.items()),
            "",
            "",
        ]
        lane = environ | {"fastlane.head": "\r\n".join(lines).encode()}
        slow, fast = (decode(endpoint.read(e, endpoint), Limits()).records[0] for e in (environ_of(sent), lane))
        assert slow == fast, sent.sender


def test_two_deliveries_with_one_id_have_one_key_at_one_hook_alone() -> None:
    endpoint = endpoint_of()

    def key(path: str, fields: dict[str, str], body: str = "{}") -> bytes:
        return key_of([row_of(Sent("", path, fields, body, {}), endpoint)])

    delivery = {"X-GitHub-Delivery": "1"}
    assert key("/hooks/a", delivery) == key("/hooks/a/b", delivery, "[]") != b""
    assert key("/hooks/a", delivery) != key("/hooks/b", delivery)
    assert key("/hooks/a", {}) == b""
    assert key("/hooks/a", {"ce-id": "1", "ce-source": "/a"}) != key("/hooks/a", {"ce-id": "1", "ce-source": "/b"})
    # an event that a webhook of GitLab has caused has the UUID of the first one
    uuid = {"X-Gitlab-Event-UUID": "1"}
    assert key("/hooks/a", uuid, "{}") == key("/hooks/a", uuid, "{}") != key("/hooks/a", uuid, '{"a":1}')


def test_a_field_that_only_the_gateway_writes_is_not_taken_from_a_client() -> None:
    endpoint = endpoint_of()
    item = endpoint.read(environ_of(Sent("", "/hooks/a", {"Sluice-Within": "300"}, "{}", {})), endpoint)
    assert b"Sluice-Within" not in item


def test_a_405_names_the_methods_that_a_hook_takes() -> None:
    endpoint = endpoint_of()
    reply = not_allowed(endpoint.allowed)
    methods = dict(reply.headers)["Allow"].split(", ")
    assert methods == ["GET", "HEAD", "OPTIONS", "POST", "PUT"]
    assert {*methods} == endpoint.taken | endpoint.methods.keys()
    assert b"accepts only GET, HEAD, OPTIONS, POST and PUT." in b"".join(reply.chunks)


def test_the_order_of_a_line_is_in_its_items(tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    file.touch(0o600)
    file.write_text("a order=hook\n* order=none\n")
    endpoint = endpoint_of(INGEST_HOOKS=str(file))
    for name, noted in ("a", b"\r\nSluice-Order: hook\r\n"), ("b", b"\r\nSluice-Order: none\r\n"):
        sent = Sent("", f"/hooks/{name}", {"Sluice-Order": "forged"}, "{}", {})
        item = endpoint.read(environ_of(sent), endpoint)
        assert noted in item and b"forged" not in item
        assert decode(item, Limits()).records[0].head == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("lines", ["", "a by content within 5m order=hook\n", "a scheme=token secret=t field=X-T\n"])
def test_heads_of_one_shape_give_the_items_that_they_give_alone(lines: str, tmp_path: Path) -> None:
    """They share an environ; those that are equal have one of their own (sluice/fastlane/grammar.py)."""
    file = tmp_path / "hooks"
    file.touch(0o600)
    file.write_text(lines)
    endpoint = endpoint_of(**{"INGEST_HOOKS": str(file)} if lines else {})

    def environ(number: int, body: bytes, query: str = "") -> dict[str, Any]:
        fields = {
            "Host": "a.example",
            "X-T": "t",
            "X-GitHub-Delivery": f"d{number}",
            "User-Agent": "a",
            "Accept": "*/*",
        }
        sent = Sent("", f"/hooks/a{query}", fields, body, {})
        head = "\r\n".join([f"POST {sent.path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items()), "", ""])
        return environ_of(sent) | {"fastlane.head": head.encode(), "fastlane.plain": BODY_ONLY}

    shared = environ(0, b"{}")
    challenge = b'{"type":"url_verification","challenge":"c"}'
    for number, body, query in (
        *((n, b'{"n":%d}' % n, "") for n in (0, 1, 1, 2)), (3, b"[]", "?x=1"), (4, b"{}", ""), (5, b"", ""),
        (6, b"a" * (9 << 20), ""), (7, challenge, ""), (8, b'{"challenge":1}', ""),
    ):  # fmt: skip
        alone, again = environ(number, body, query), environ(number, body, query)
        shared |= {name: alone[name] for name in alone if name != "wsgi.input"} | {"wsgi.input": io.BytesIO(body)}
        found = []
        for each in shared, again:
            try:
                found.append(endpoint.read(each, endpoint))
            except Rejected as rejected:
                found.append(rejected.args[0])
        assert found[0] == found[1], number
    assert (gateway.NOTED in shared) == ("scheme" not in lines)
