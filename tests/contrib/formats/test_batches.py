"""Bodies of batches as large as they may be, each with its 2xx: no process takes more than 150 MB, whatever one has."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest
import redis as redis_client

from proving import harness
from proving.harness import Server, ask, installation, post, short_tmp
from sluice import settings
from sluice.routes import ROUTES
from sluice.streams.built_in import STREAMS

poll = harness.poll
MAX_BATCH = settings.load_settings({}).max_batch
MOST = 150_000  # kB of any process
PROTOBUF = {"Content-Type": "application/x-protobuf"}
SNAPPY = PROTOBUF | {"Content-Encoding": "snappy"}
LINES = b"".join(b"m,host=h%d usage=%d.5,idle=%di 1767268800000%06d\n" % (n % 99, n, n, n) for n in range(180_000))


def filled(head: bytes, part: bytes, end: bytes = b"", separator: bytes = b"") -> bytes:
    """The largest batch: as many parts as fit."""
    count = (MAX_BATCH - len(head) - len(end)) // (len(part) + len(separator))
    return head + separator.join([part] * count) + end


def compressed(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def varint(n: int) -> bytes:
    return bytes([n & 0x7F | 0x80]) + varint(n >> 7) if n > 127 else bytes([n])


def noise(field: bytes, size: int) -> bytes:
    """A field of protobuf whose content cannot be compressed."""
    return field + varint(size) + os.urandom(size)


BODIES: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "lines": ("/write", LINES[:MAX_BATCH], {}),
    "lines that are invalid": ("/api/v2/write", filled(b"", b"m f=\n"), {}),
    "one long line": ("/write", b"m f=" + b"1" * (MAX_BATCH - 4), {}),
    "lines on the path of the stream": ("/metrics", filled(b"", b"m f=1\n"), {}),
    "an array of objects": ("/metrics", filled(b"[", b'{"name":"a","value":1}', b"]", b","), {}),
    "an array of empty objects": ("/metrics", filled(b"[", b"{}", b"]", b","), {}),
    "not gzip": ("/metrics", b"\x1f\x8b" + os.urandom(MAX_BATCH - 2), {}),
    "members of gzip": ("/logs", filled(b"", gzip.compress(b"")), {}),
    "short lines": ("/logs", filled(b"", b"a\n"), {}),
    "objects of a log": ("/logs", filled(b"", b'{"message":"a","a":{"b":[1,2,3]}}\n'), {}),
    "series that are invalid": ("/api/v1/write", compressed(noise(b"\x0a", MAX_BATCH - 2000)), SNAPPY),
    "small series": ("/api/v1/write", compressed(filled(b"", b"\x0a\x00")), SNAPPY),
    "a stream of Loki": ("/loki/api/v1/push", compressed(noise(b"\x0a", MAX_BATCH - 2000)), SNAPPY),
    "values of Loki": (
        "/loki/api/v1/push",
        filled(b'{"streams":[{"stream":{"a":"b"},"values":[', b'["1767268800000000000","x"]', b"]}]}", b","),
        {"Content-Type": "application/json"},
    ),
    "metrics of OTLP": ("/v1/metrics", filled(b"", b"\x0a\x00"), PROTOBUF),
    "logs of OTLP": ("/v1/logs", filled(b"", b"\x0a\x06\x12\x04\x12\x02\x0a\x00"), PROTOBUF),
    "spans": ("/v1/traces", filled(b"", b"\x0a\x06\x12\x04\x12\x02\x0a\x00"), PROTOBUF),
    "messages of GELF": ("/gelf", filled(b"", b'{"short_message":"a"}\n'), {}),
    "logs of OTLP in JSON": (
        "/v1/logs",
        filled(
            b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[',
            b'{"timeUnixNano":"1767268800000000000","body":{"stringValue":"x"}}',
            b"]}]}]}",
            b",",
        ),
        {"Content-Type": "application/json"},
    ),
}


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    with short_tmp() as tmp, installation(tmp) as server:
        yield server


@pytest.mark.nightly
@pytest.mark.parametrize("name", BODIES)
def test_the_largest_batch_is_accepted_and_takes_bounded_memory(name: str, up: Server) -> None:
    path, body, headers = BODIES[name]
    assert MAX_BATCH * 0.9 < len(body) <= MAX_BATCH or headers is SNAPPY
    before = ask(up.home, "SELECT count(*) FROM votes")
    assert post(up.port, path, body, headers)[0] in (200, 202, 204)
    assert post(up.port, "/votes", b'{"poll":"p","choice":"c"}')[0] == 200
    poll(lambda: ask(up.home, "SELECT count(*) FROM votes") != before)
    poll(lambda: idle(up))
    peaks = {
        program: max(peak(pid) for pid in up.pids(program))
        for program in ("nginx", "gateway", "worker", "follower", "reader", "views")
    }
    assert max(peaks.values()) < MOST, peaks


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(ROUTES))
def test_a_body_beyond_the_limit_of_its_path_gets_413(path: str, up: Server) -> None:
    most = MAX_BATCH if ROUTES[path].batch else settings.load_settings({}).max_body
    headers = SNAPPY if path == "/api/v1/write" else {}
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {most + 1}\r\n"
    head += "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    assert harness.request(up.port, f"{head}\r\n".encode())[0] == 413


def idle(up: Server) -> bool:
    """Whether all accepted bodies are stored."""
    keys = [f"ingest:{{{name}}}{claims}" for name in STREAMS for claims in ("", ":claims")]
    with redis_client.Redis(unix_socket_path=str(up.home / "run/redis.sock")) as db:
        return not db.exists(*keys)


def peak(pid: int) -> int:
    """The most memory that a process had, in kB."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0])
