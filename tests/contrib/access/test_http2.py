"""HTTP/2 to clients, where TLS is on: the real nginx, the real curl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import Server, ask, installation, poll, short_tmp
from support.access import curl, tls
from support.nginx_front import front, problem

pytestmark = pytest.mark.contract

LARGE = problem("Content Too Large", 413, "The body is too large; the request had no effect. Send smaller bodies.")
VOTE = '{"poll":"http2","choice":"%s"}'


class Client:
    """Posts with curl, which offers both versions of HTTP unless an option says otherwise."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.port, self.certificate = port, certificate

    def post(self, *arguments: object, path: str = "/votes") -> tuple[str, int, dict[str, list[str]], str]:
        """The version of HTTP, the status, the headers and the body."""
        url = f"https://localhost:{self.port}{path}"
        trusting = ["--cacert", self.certificate, "-w", "%{http_version}"]
        status, headers, body = curl("--http2", *trusting, *arguments, url)
        body, _, version = body.rpartition("}")
        return version, status, headers, body + "}"


@pytest.fixture(scope="module")
def up(certificate: tuple[Path, Path]) -> Iterator[Server]:
    with short_tmp() as tmp, installation(tmp, tls(certificate) | {"INGEST_MAX_BODY": "100k"}, ready=False) as server:
        trusting = ["--cacert", certificate[0], f"https://localhost:{server.port}/readyz"]
        poll(lambda: curl(*trusting)[0] == 200, 300)
        yield server


@pytest.fixture
def client(up: Server, certificate: tuple[Path, Path]) -> Client:
    return Client(up.port, certificate[0])


@pytest.mark.parametrize("option, version", [("--http2", "2"), ("--http1.1", "1.1")])
def test_a_post_over_either_version_is_acknowledged_and_stored(
    option: str, version: str, client: Client, up: Server
) -> None:
    answer = client.post(option, "-d", VOTE % version)
    assert (answer[0], answer[1], answer[3]) == (version, 200, '{"message":"OK"}')
    poll(lambda: ask(up.home, "SELECT count(*) FROM votes WHERE choice = ?", version) == [(1,)])


@pytest.mark.parametrize("length", ["with", "without"])
def test_an_oversized_body_is_a_413_with_or_without_a_length(length: str, client: Client, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(200_000))
    body = ["--data-binary", f"@{tmp_path}/large"] + (["-H", "Content-Length:"] if length == "without" else [])
    version, status, headers, text = client.post(*body)
    assert (version, status, text.encode()) == ("2", 413, LARGE)
    assert headers["content-type"] == ["application/problem+json"]


def test_a_503_passes_with_its_retry_after(certificate: tuple[Path, Path]) -> None:
    with front(**tls(certificate)) as (web, gateway):
        gateway.reply = (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: x/y\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
        )
        version, status, headers, text = Client(web.port, certificate[0]).post("-d", "x")
        assert (version, status, headers["retry-after"], headers["content-type"]) == ("2", 503, ["7"], ["x/y"])
        assert text == "{}"
        assert gateway.requests[0].startswith(b"POST /votes HTTP/1.1\r\n")  # to the gateway nginx still speaks HTTP/1.1


def test_the_notice_before_a_reload_closes_connections_of_http_1_1_only(client: Client, up: Server) -> None:
    (up.home / "run/closing").touch()
    try:
        poll(lambda: client.post("--http1.1", "-d", VOTE % "notice")[2]["connection"] == ["close"])
        shown = "%{http_version} %{num_connects}\n"
        url = f"https://localhost:{up.port}/votes?[1-3]"  # three requests
        command = [
            "curl",
            "-sS",
            "--http2",
            "--cacert",
            str(client.certificate),
            "-d",
            VOTE % "notice",
            "-w",
            shown,
            url,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout == '{"message":"OK"}2 1\n{"message":"OK"}2 0\n{"message":"OK"}2 0\n'
    finally:
        (up.home / "run/closing").unlink()
