"""Requests that public reports show become the rows that they must, or get the answer that they ask for."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from contrib_support.reported_requests import LINES, REPORTS, Report
from proving.harness import Server, ask, installation, poll, request, short_tmp
from sluice import settings
from sluice.http.endpoints import Endpoints, load_endpoints
from sluice.http.replies import Rejected
from sluice.routes import load_routes
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Limits
from support.access import private
from support.folders import needs

pytestmark = needs("hooks", "access")


class Count:
    n = 0


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Endpoints:
    file = tmp_path_factory.mktemp("hooks") / "hooks"
    private(file, LINES)
    s = settings.load_settings({"INGEST_HOOKS": str(file)})
    return load_endpoints(load_routes(""), s, lambda name: Count())  # type: ignore[arg-type,return-value]


def environ_of(report: Report) -> dict[str, Any]:
    path, _, query = report.target.partition("?")
    environ: dict[str, Any] = {"REQUEST_METHOD": report.method, "PATH_INFO": unquote(path), "QUERY_STRING": query}
    environ |= {"CONTENT_LENGTH": str(len(report.body)), "wsgi.input": io.BytesIO(report.body), "CONTENT_TYPE": ""}
    for name, value in report.fields.items():
        key = name.upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    return environ


@pytest.mark.parametrize("report", [r for r in REPORTS if r.answer is None and r.rows], ids=lambda r: r.sender)
def test_a_request_becomes_these_rows(report: Report, endpoints: Endpoints) -> None:
    environ = environ_of(report)
    endpoint = endpoints.find_endpoint(environ)
    assert endpoint is not None and report.method in endpoint.taken
    item = endpoint.read(environ, endpoint)
    assert endpoint.reply.status.startswith(str(report.status))
    assert b"s3cret" not in item
    decoded = STREAMS[endpoint.stream].decode(item, Limits())
    assert not decoded.rejects
    found = [msgspec.structs.asdict(record) for record in decoded.records]
    assert [{n: row[n] for n in wanted} for row, wanted in zip(found, report.rows, strict=True)] == report.rows


@pytest.mark.parametrize(
    "report",
    [r for r in REPORTS if not r.rows and "/hooks/" in r.target and r.method != "HEAD"],
    ids=lambda r: r.sender,
)
def test_a_question_gets_its_answer(report: Report, endpoints: Endpoints) -> None:
    environ = environ_of(report)
    endpoint = endpoints.find_endpoint(environ)
    assert endpoint is not None
    with pytest.raises(Rejected) as rejected:
        endpoint.read(environ, endpoint)
    reply = rejected.value.args[0]
    assert reply.status.startswith(str(report.status))
    assert report.answer is None or json.loads(b"".join(reply.chunks) or b"0") == json.loads(report.answer or b"0")


def test_there_are_forty_and_each_has_its_source() -> None:
    assert len({report.sender for report in REPORTS}) == len(REPORTS) >= 40
    assert all(report.source for report in REPORTS)


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    with short_tmp() as tmp:
        private(tmp / "hooks", LINES)
        with installation(tmp / "var", {"INGEST_HOOKS": tmp / "hooks"}) as server:
            yield server


def sent_to(up: Server, report: Report) -> tuple[int, bytes]:
    fields = {"Host": "a.example", "Content-Length": str(len(report.body))} | report.fields
    head = [
        f"{report.method} {report.target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in fields.items()),
        "",
        "",
    ]
    status, _, body = request(up.port, "\r\n".join(head).encode() + report.body)
    return status, body


@pytest.mark.nightly
@pytest.mark.contract
def test_all_pass_nginx_the_gateway_and_the_worker(up: Server, endpoints: Endpoints) -> None:
    """One after the other to one gateway, so the rows of a stream are in the order of the requests."""
    refused = [
        (report.sender, status, body)
        for report in REPORTS
        for status, body in [sent_to(up, report)]
        if status != report.status or report.answer not in (None, body)
    ]
    assert not refused
    counts = {stream: 0 for stream in ("hooks", "logs", "metrics", "gps")}
    for report in REPORTS:
        if endpoint := endpoints.find_endpoint(environ_of(report)):
            counts[endpoint.stream] += len(report.rows)
    poll(lambda: {name: ask(up.home, f"SELECT count(*) FROM {name}")[0][0] for name in counts} == counts)
    assert ask(up.home, "SELECT reason FROM dead_letters") == []
    bodies = [body for (body,) in ask(up.home, "SELECT body FROM hooks ORDER BY seq")]
    assert bodies == [report.body.decode() for report in REPORTS if "/hooks/" in report.target for _ in report.rows]
