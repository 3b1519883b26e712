"""Real senders, unmodified, through a proxy that swallows one answer in ten: what they send again is stored once.

The senders with a file of their own are there: OpenTelemetry, Prometheus, InfluxDB's clients, syslog-ng, rsyslog.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from proving import harness
from proving.harness import Server, ask, chain, free_port, running
from support.answering_proxy import AnsweringProxy, closing, reply
from support.sender_configs import FIRST, duplicates, program, samples, telegraf

pytestmark = pytest.mark.nightly

poll = partial(harness.poll, interval=0.05)
HERE = Path(__file__).parent
JARS = harness.ROOT / "var/loki/libs"


@contextlib.contextmanager
def cut(tmp: Path, **settings: str) -> Iterator[tuple[Server, AnsweringProxy, int]]:
    """An installation, and a proxy before it that swallows one answer in ten, with its port."""
    with chain(tmp, settings) as up, closing(proxy := AnsweringProxy(up.port, [], cut=10)) as port:
        yield up, proxy, port


def found(up: Server, sql: str) -> list[int]:
    """The numbers that a query finds, sorted."""
    return sorted(int(number) for (number,) in ask(up.home, sql))


@pytest.mark.parametrize("stream", ["gps", "votes"])
def test_what_javas_own_client_repeats_by_itself_is_stored_once(stream: str, tmp: Path) -> None:
    """By content, and with a key. HttpURLConnection repeats a POST without telling the program."""
    if not shutil.which("java"):
        pytest.skip("no java")
    sql = {"gps": "SELECT device FROM gps", "votes": "SELECT choice FROM votes"}[stream]
    with cut(tmp) as (up, proxy, port):
        with program("java", HERE / "java/Post.java", f"http://127.0.0.1:{port}", stream) as write:
            assert write(range(100)) == "ok"
        assert proxy.lost >= 10
        poll(lambda: duplicates(up) == proxy.repeated() >= proxy.lost)
        assert found(up, sql) == [*range(100)]


def test_every_sample_of_vmagent_is_stored_once(tmp: Path) -> None:
    if not shutil.which("vmagent"):
        pytest.skip("no vmagent")
    listen, sql = free_port(), "SELECT value FROM metrics WHERE name = 'given'"

    def write(numbers: range) -> None:
        lines = "".join(f"given {n} {(FIRST + n) * 1000}\n" for n in numbers).encode()
        assert harness.post(listen, "/api/v1/import/prometheus", lines)[0] == 204

    with cut(tmp) as (up, proxy, port):
        command = ["vmagent", f"-httpListenAddr=127.0.0.1:{listen}", "-remoteWrite.flushInterval=100ms"]
        command += [f"-remoteWrite.url=http://127.0.0.1:{port}/api/v1/write", f"-remoteWrite.tmpDataPath={tmp}/vm"]
        with running(command, tmp / "vmagent.out", harness.environment(tmp), signal.SIGKILL):
            poll(lambda: harness.get(listen, "/health")[0] == 200)
            count = proxy.sent_in_steps(lambda: found(up, sql), write)
            poll(lambda: duplicates(up) == proxy.repeated() >= proxy.lost)
        assert found(up, sql) == [*range(count)]


TELEGRAF_OUTPUTS = {
    # the query that finds the numbers of what is stored, the numbers of a body
    "http": (
        "SELECT value FROM metrics WHERE name = 'given'",
        lambda body: {metric["fields"]["n"] for metric in json.loads(body)["metrics"]},
    ),
    "influxdb_v2": (
        "SELECT value FROM metrics WHERE name = 'given'",
        lambda body: {int(n) for n in re.findall(rb" n=(\d+)i", body)},
    ),
    "loki": (
        """SELECT trim(message, 'n=" ') FROM logs""",
        lambda body: {int(n) for n in re.findall(rb'n=\\"(\d+)', body)},
    ),
}


@pytest.mark.parametrize("output", TELEGRAF_OUTPUTS)
def test_every_metric_of_telegraf_is_stored_once_with_keys_of_records(output: str, tmp: Path) -> None:
    """Telegraf groups anew what it sends again, with what came meanwhile."""
    sql, numbers = TELEGRAF_OUTPUTS[output]
    with cut(tmp, INGEST_UNIQUE="metrics=1d/record,logs=1d/record") as (up, proxy, port):
        with telegraf(output, tmp, port) as write:
            count = proxy.sent_in_steps(lambda: found(up, sql), write)
            write(range(count, count + 10))
            poll(lambda: len(found(up, sql)) >= count + 10)
            poll(lambda: duplicates(up) == proxy.repeated(numbers))
        assert found(up, sql) == [*range(count + 10)]


def test_loki4j_sends_a_line_again_after_503_and_not_after_a_lost_answer(tmp: Path) -> None:
    if not JARS.is_dir() or not shutil.which("java"):
        pytest.skip("no java, or no jars: bin/provision nightly gets them")
    sql = "SELECT substr(message, 6) FROM logs"
    with chain(tmp) as up, closing(proxy := AnsweringProxy(up.port, [reply(503)], cut=10)) as port:
        (documented,) = [text for text in samples("Loki", port) if "Loki4j" in text]
        quick = documented.replace("<http>", "<batchTimeoutMs>100</batchTimeoutMs><http>")
        (tmp / "logback.xml").write_text(f"<configuration>{quick}</configuration>")
        with program("java", "-cp", f"{JARS}/*", HERE / "java/Loki.java", tmp / "logback.xml") as write:
            count = proxy.sent_in_steps(lambda: found(up, sql), write)
            write(range(count, count + 10))
            poll(lambda: len(found(up, sql)) >= count + 10)
        assert (duplicates(up), proxy.repeated(), len(proxy.answered)) == (0, 0, 1)
        assert found(up, sql) == [*range(count + 10)]
