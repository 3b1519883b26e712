"""Prometheus, unmodified, writes what it scrapes from itself to a whole installation: Debian's, and version 3."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socketserver
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from proving import harness
from proving.harness import Server, ask, chain, free_port, installation, running, short_tmp
from sluice.contrib.formats.prometheus import messages
from sluice.contrib.formats.protobuf import encode_field, uncompress
from sluice.streams.body import Budget
from sluice.streams.record import Limits
from support.answering_proxy import AnsweringProxy, closing, reply
from support.sender_configs import duplicates, samples

pytestmark = pytest.mark.nightly

poll = partial(harness.poll, interval=0.05)
Sample = tuple[str, str, int]  # name, tags, milliseconds
VERSION_3 = harness.ROOT / "var/prometheus/prometheus"
NO_VERSION_3 = "no Prometheus 3: bin/provision engines builds it"
FEATURES = "exemplar-storage,native-histograms"


class Target(socketserver.ThreadingTCPServer):
    """Serves `text` to whoever connects, as OpenMetrics unless told otherwise: a scrape target."""

    daemon_threads = allow_reuse_address = True
    text = b""
    content_type = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

    def __init__(self) -> None:
        target = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nConnection: close\r\n\r\n" % target.content_type
                self.wfile.write(head + target.text)

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


@contextlib.contextmanager
def prometheus(
    tmp: Path, write: int, scrape: int = 0, options: str = "", binary: object = "prometheus", documented: int = 0
) -> Iterator[int]:
    """Prometheus, which scrapes itself and the port `scrape`, and writes to the port `write`. Returns: its port.

    options: further lines of queue_config. documented: which of the samples in INTEGRATIONS.
    """
    port = free_port()
    targets = [f"127.0.0.1:{each}" for each in (port, scrape) if each]
    native = ", scrape_native_histograms: true" if binary == VERSION_3 else ""  # else a feature is enough
    (tmp / "prometheus.yml").write_text(f"""{samples("Prometheus", write)[documented]}
    send_exemplars: true
    send_native_histograms: true
    metadata_config: {{send_interval: 2s}}
    queue_config: {{max_shards: 1, batch_send_deadline: 200ms, {options}}}
global: {{scrape_interval: 500ms, scrape_timeout: 500ms{native}}}
scrape_configs: [{{job_name: all, static_configs: [{{targets: {json.dumps(targets)}}}]}}]
""")
    command = [binary, f"--config.file={tmp}/prometheus.yml", f"--storage.tsdb.path={tmp}/tsdb"]
    command += [f"--web.listen-address=127.0.0.1:{port}", f"--enable-feature={FEATURES}"]
    # SIGKILL: at its end it would wait for a gateway that has gone
    with running(command, tmp / "prometheus.out", harness.environment(tmp), signal.SIGKILL):
        poll(lambda: harness.get(port, "/-/ready")[0] == 200)
        yield port


def query(port: int, expression: str) -> list[dict]:
    """The result of a query to Prometheus."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/api/v1/query?" + urlencode({"query": expression}))
        return json.load(connection.getresponse())["data"]["result"]


def value(port: int, name: str) -> float:
    """A metric of Prometheus itself, added up."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))


def scraped(port: int) -> dict[Sample, float]:
    """All samples in Prometheus's own database."""
    found: dict[Sample, float] = {}
    for series in query(port, '{__name__=~".+"}[1h]'):
        name = series["metric"].pop("__name__")
        tags = json.dumps(series["metric"], sort_keys=True)
        found |= {(name, tags, round(time * 1000)): float(text) for time, text in series.get("values", ())}
    return found


def stored(up: Server) -> dict[Sample, list[float]]:
    """All samples in the worker's database, except stale markers."""
    found: dict[Sample, list[float]] = {}
    sql = """
        SELECT name, tags, round((julianday(substr(time, 1, 23)) - 2440587.5) * 86400000), value FROM metrics
        WHERE field = 'value' OR field = 'state' AND value <> 'stale'"""
    for name, tags, time, number in ask(up.home, sql):
        found.setdefault((name, json.dumps(json.loads(tags), sort_keys=True), int(time)), []).append(float(number))
    return found


def same(ours: dict[Sample, list[float]], theirs: dict[Sample, float]) -> bool:
    """Whether each sample of Prometheus is stored exactly once, with its value."""
    return all(
        len(ours[key]) == 1 and (ours[key][0] == number or math.isnan(ours[key][0]) and math.isnan(number))
        for key, number in theirs.items()
    )


@pytest.fixture(scope="module")
def up() -> Iterator[Server]:
    with short_tmp() as tmp, chain(tmp) as server:
        yield server


def test_every_sample_is_stored_exactly_once_although_the_worker_is_killed(tmp: Path, kills: int) -> None:
    with installation(tmp) as up, prometheus(tmp, up.port) as port:
        for _ in range(kills):
            (before,) = poll(lambda: up.pids("worker"))
            rows = len(ask(up.home, "SELECT 1 FROM metrics"))
            poll(lambda rows=rows: len(ask(up.home, "SELECT 1 FROM metrics")) > rows)  # type: ignore[misc]
            os.kill(before, signal.SIGKILL)
            poll(lambda before=before: before not in up.pids("worker"))  # type: ignore[misc]
        theirs = scraped(port)
        assert len(theirs) > 300 * kills
        poll(lambda: theirs.keys() <= stored(up).keys())
        assert same(stored(up), theirs)
        assert all(len(values) == 1 for values in stored(up).values())
        assert ask(up.home, "SELECT reason FROM dead_letters") == []
        assert value(port, "prometheus_remote_storage_samples_retried_total") == 0


TEXT = b"""# HELP requests_seconds How long.
# TYPE requests_seconds histogram
# UNIT requests_seconds seconds
requests_seconds_bucket{le="1.0"} 3 # {trace_id="4bf92f3577b34da6"} 0.54 1767268800.5
requests_seconds_bucket{le="+Inf"} 4
requests_seconds_sum 5.5
requests_seconds_count 4
# TYPE idle gauge
idle{where="a \\"b\\""} NaN
# TYPE most gauge
most +Inf
# TYPE gone gauge
gone 1
# EOF
"""


def test_stale_markers_exemplars_metadata_and_numbers_that_are_not_finite_are_stored(up: Server, tmp: Path) -> None:
    def rows(name: str, field: str) -> list[tuple]:
        sql = "SELECT DISTINCT type, value FROM metrics WHERE name = ? AND field = ?"
        return ask(up.home, sql, name, field)

    target = Target()
    target.text = TEXT
    with closing(target) as scrape, prometheus(tmp, up.port, scrape):
        assert poll(lambda: rows("gone", "value")) == [("float", 1)]
        assert rows("gone", "state") == []
        target.text = TEXT.replace(b"gone 1\n", b"")
        assert poll(lambda: rows("gone", "state")) == [("string", "stale")]
        assert rows("idle", "state") == [("string", "NaN")]
        assert rows("most", "state") == [("string", "+Inf")]
        assert rows("idle", "value") == rows("most", "value") == []
        assert rows("requests_seconds_sum", "value") == [("float", 5.5)]
        ((tags, time, kind, about),) = poll(
            lambda: ask(up.home, "SELECT tags, time, type, value FROM metrics WHERE field = 'exemplar'")
        )
        assert json.loads(tags) == {"le": "1.0", "job": "all", "instance": f"127.0.0.1:{scrape}"}
        assert (time, kind) == ("2026-01-01T12:00:00.500000000Z", "string")
        assert json.loads(about) == {"value": 0.54, "labels": {"trace_id": "4bf92f3577b34da6"}}
        expected = {"type": "histogram", "help": "How long.", "unit": "seconds"}
        ((kind, about),) = poll(lambda: rows("requests_seconds", "metadata"))
        assert (kind, json.loads(about)) == ("string", expected)
        ((tags,),) = ask(up.home, "SELECT DISTINCT tags FROM metrics WHERE name = 'idle' AND field = 'state'")
        assert json.loads(tags)["where"] == 'a "b"'


@contextlib.contextmanager
def proxied(
    tmp: Path, replies: list[bytes], options: str = "", binary: object = "prometheus"
) -> Iterator[tuple[Server, AnsweringProxy, int]]:
    """An installation, and Prometheus that writes to it through a proxy. Returns: also the port of Prometheus."""
    with contextlib.ExitStack() as stack:
        up = stack.enter_context(chain(tmp))
        write = stack.enter_context(closing(proxy := AnsweringProxy(up.port, replies)))
        yield up, proxy, stack.enter_context(prometheus(tmp, write, options=options, binary=binary))


def test_native_histograms_are_stored(up: Server, tmp: Path) -> None:
    target = Target()
    target.content_type = (
        b"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
    )
    span = b"\x08\x02\x10\x03"  # offset 1, length 3
    histogram = b"\x08\x07\x11%b\x28\x02\x31%b\x38\x01" % (struct.pack("<d", 12.5), struct.pack("<d", 0.001))
    histogram += (
        encode_field(12, span) + b"\x68\x02\x68\x04\x68\x03"
    )  # schema 1, one in the zero bucket, deltas 1, 2, -2
    family = encode_field(1, b"latency") + b"\x18\x04" + encode_field(4, encode_field(7, histogram))
    target.text = bytes([len(family)]) + family
    with closing(target) as scrape, prometheus(tmp, up.port, scrape):
        fields = "field IN ('count', 'histogram', 'sum')"
        sql = f"SELECT DISTINCT field, type, value FROM metrics WHERE name = 'latency' AND {fields} ORDER BY field"
        count, whole, total = poll(lambda: ask(up.home, sql))
    assert (count, total) == (("count", "integer", 7), ("sum", "float", 12.5))
    assert json.loads(whole[2])["buckets"] == [[-0.001, 0.001, 1], [1, 2**0.5, 1], [2**0.5, 2, 3], [2, 2**1.5, 1]]


def test_version_3_reports_no_failed_sample_with_remote_write_2(up: Server, tmp: Path) -> None:
    if not VERSION_3.exists():
        pytest.skip(NO_VERSION_3)
    names = "samples", "histograms", "exemplars"
    target = Target()
    target.text = TEXT
    with closing(target) as scrape, prometheus(tmp, up.port, scrape, binary=VERSION_3, documented=1) as port:
        poll(lambda: all(value(port, f"prometheus_remote_storage_{name}_total") for name in names))
        theirs = scraped(port)
        poll(lambda: theirs.keys() <= stored(up).keys())
        assert same(stored(up), theirs)
        failed = {name: value(port, f"prometheus_remote_storage_{name}_failed_total") for name in names}
        assert failed == dict.fromkeys(names, 0)
        assert value(port, "prometheus_remote_storage_samples_retried_total") == 0


@pytest.mark.parametrize("binary", ["prometheus", VERSION_3], ids=["Debian's", "version 3"])
@pytest.mark.parametrize(
    ("replies", "options", "retried"),
    [
        ([reply(400), reply(413), reply(415)], "", False),
        ([reply(429, "Retry-After: 1")], "", False),
        ([reply(429, "Retry-After: 1")], "retry_on_http_429: true", True),
        ([reply(503, "Retry-After: 1"), reply(503), reply(500), reply(502), reply(504)], "", True),
    ],
    ids=["4xx", "429", "429 with retry_on_http_429", "5xx"],
)
def test_prometheus_repeats_a_request_after_5xx_and_drops_it_after_4xx(
    replies: list[bytes], options: str, retried: bool, binary: object, tmp: Path
) -> None:
    if binary == VERSION_3 and not VERSION_3.exists():
        pytest.skip(NO_VERSION_3)
    count = len(replies)
    with proxied(tmp, [*replies], options, binary) as (up, proxy, port):
        poll(lambda: len(proxy.answered) == count and stored(up))
        theirs = scraped(port)
        dropped: set[Sample] = set()
        for body in proxy.answered if not retried else ():
            for series in messages.Request1.FromString(uncompress(body, Budget(Limits()))).timeseries:
                tags = {label.name: label.value for label in series.labels}
                name = tags.pop("__name__")
                dropped |= {(name, json.dumps(tags, sort_keys=True), each.timestamp) for each in series.samples}
        assert bool(dropped) != retried
        kept = {key: number for key, number in theirs.items() if key not in dropped}
        poll(lambda: kept.keys() <= stored(up).keys())
        assert same(stored(up), kept) and dropped.isdisjoint(stored(up))
        assert value(port, "prometheus_remote_storage_samples_failed_total") == len(dropped)
        assert bool(value(port, "prometheus_remote_storage_samples_retried_total")) == retried


@pytest.mark.parametrize("binary", ["prometheus", VERSION_3], ids=["Debian's", "version 3"])
def test_every_sample_of_prometheus_is_stored_once_although_one_answer_in_ten_is_lost(
    binary: object, tmp: Path
) -> None:
    """The content of a request is its key."""
    if binary == VERSION_3 and not VERSION_3.exists():
        pytest.skip("no Prometheus 3: bin/provision engines builds it")
    with contextlib.ExitStack() as stack:
        up = stack.enter_context(installation(tmp))
        write = stack.enter_context(closing(proxy := AnsweringProxy(up.port, [], cut=10)))
        documented = int(binary == VERSION_3)  # remote write 2
        port = stack.enter_context(prometheus(tmp, write, binary=binary, documented=documented))
        poll(lambda: proxy.lost >= 3 and duplicates(up) >= 3)
        theirs = scraped(port)
        poll(lambda: theirs.keys() <= stored(up).keys())
        assert same(stored(up), theirs)
