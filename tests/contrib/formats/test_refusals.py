"""Real senders, unmodified, through a proxy that refuses some requests: what they send again, and what they drop.

Prometheus, InfluxDB's clients, syslog-ng and rsyslog have files of their own. docs/INTEGRATIONS.md says what is seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from proving import harness
from proving.harness import PATIENCE, ask, free_port, installation, running
from support.answering_proxy import AnsweringProxy, closing, reply
from support.sender_configs import FIRST, duplicates, samples, telegraf

pytestmark = pytest.mark.nightly

poll = partial(harness.poll, interval=0.05)
COLLECTD = harness.ROOT / "var/collectd"
COLLECTOR = harness.ROOT / "var/collector/collector"
METRICS = "SELECT value FROM metrics WHERE name = 'given'"
LOGS = """SELECT trim(message, 'n=" ') FROM logs"""

Write = Callable[[range], object]
Run = Callable[[Path, int], AbstractContextManager[Write]]


@contextlib.contextmanager
def vmagent(tmp: Path, port: int) -> Iterator[Write]:
    if not shutil.which("vmagent"):
        pytest.skip("no vmagent")
    listen = free_port()

    def write(numbers: range) -> None:
        lines = "".join(f"given {n} {(FIRST + n) * 1000}\n" for n in numbers).encode()
        assert harness.post(listen, "/api/v1/import/prometheus", lines)[0] == 204

    command = ["vmagent", f"-httpListenAddr=127.0.0.1:{listen}", "-remoteWrite.flushInterval=100ms"]
    command += [f"-remoteWrite.url=http://127.0.0.1:{port}/api/v1/write", f"-remoteWrite.tmpDataPath={tmp}/vm"]
    with running(command, tmp / "vmagent.out", harness.environment(tmp), signal.SIGKILL):
        poll(lambda: harness.get(listen, "/health")[0] == 200)
        yield write


@contextlib.contextmanager
def collector(tmp: Path, port: int) -> Iterator[Write]:
    if not COLLECTOR.exists():
        pytest.skip("no Collector: bin/provision engines builds it")
    listen = free_port()
    (documented,) = [text for text in samples("OpenTelemetry", port) if text.startswith("exporters:")]
    (tmp / "collector.yaml").write_text(f"""
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{listen}"}}}}}}}}
{documented}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [otlp_http]}}}}
""")

    def write(numbers: range) -> None:
        points = [{"asInt": str(n), "timeUnixNano": str((FIRST + n) * 10**9)} for n in numbers]
        metric = {"name": "given", "gauge": {"dataPoints": points}}
        body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
        assert harness.post(listen, "/v1/metrics", body, {"Content-Type": "application/json"})[0] == 200

    command = [COLLECTOR, f"--config={tmp}/collector.yaml"]
    with running(command, tmp / "collector.out", harness.environment(tmp), signal.SIGKILL):
        poll(lambda: socket.create_connection(("127.0.0.1", listen))).close()
        yield write


@contextlib.contextmanager
def collectd(tmp: Path, port: int) -> Iterator[Write]:
    program = COLLECTD / "usr/sbin/collectd"
    if not program.exists():
        pytest.skip("no collectd: bin/provision nightly gets Debian's package")
    (libraries,) = COLLECTD.glob("usr/lib/*-linux-gnu")
    (documented,) = samples("collectd", port)
    documented = documented.replace("LoadPlugin write_http", QUICK)
    (tmp / "collectd.conf").write_text(f"""
Hostname "h"
BaseDir "{tmp}"
PluginDir "{COLLECTD}/usr/lib/collectd"
TypesDB "{COLLECTD}/usr/share/collectd/types.db"
LoadPlugin unixsock
<Plugin unixsock>
  SocketFile "{tmp}/collectd.sock"
</Plugin>
{documented}
""")
    env = harness.environment(tmp) | {"LD_LIBRARY_PATH": str(libraries)}
    with (
        running([program, "-f", "-C", tmp / "collectd.conf"], tmp / "collectd.out", env, signal.SIGKILL),
        poll(lambda: connected(tmp / "collectd.sock")) as connection,
        connection.makefile("rw") as file,
    ):

        def write(numbers: range) -> None:
            for command in [f"PUTVAL h/given/gauge interval=1 {FIRST + n}:{n}" for n in numbers]:
                print(command, file=file, flush=True)
                assert file.readline().startswith("0 "), command

        yield write


QUICK = """<LoadPlugin write_http>
  FlushInterval 0.1
</LoadPlugin>"""


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


ALL = frozenset((503, 429, 413))
SENDERS: dict[
    str, tuple[Run, str, frozenset[int]]
] = {  # what runs it, what finds the numbers that are stored, and after which answers it sends again
    "vmagent": (vmagent, METRICS, ALL),
    "telegraf http": (partial(telegraf, "http"), METRICS, ALL),
    "telegraf influxdb_v2": (partial(telegraf, "influxdb_v2"), METRICS, ALL),
    "telegraf loki": (partial(telegraf, "loki"), LOGS, ALL),
    "collector": (collector, METRICS, frozenset((503, 429))),
    "collectd": (collectd, METRICS, frozenset()),
}


@pytest.mark.parametrize("sender", SENDERS)
def test_a_sender_sends_again_or_drops_what_was_refused(sender: str, tmp: Path) -> None:
    """Nothing is lost where it sends again; what it drops is one request, and what follows arrives."""
    run, sql, repeats = SENDERS[sender]
    replies: list[bytes] = []
    with installation(tmp) as up, closing(proxy := AnsweringProxy(up.port, replies)) as port, run(tmp, port) as write:

        def found() -> set[int]:
            return {int(number) for (number,) in ask(up.home, sql)}

        expected = set[int]()
        for first, status in enumerate((503, 429, 413)):
            before, kept = len(proxy.answered), status in repeats
            replies += [reply(status, "Retry-After: 1")] * (2 if kept else 1)
            refused, later = range(first * 20, first * 20 + 10), range(first * 20 + 10, first * 20 + 20)
            write(refused)
            poll(lambda: not replies and len(proxy.answered) > before)  # noqa: B023
            write(later)
            expected |= {*later} | ({*refused} if kept else set())
            poll(lambda: expected <= found())  # noqa: B023
            assert {*refused} <= found() if kept else not {*refused} <= found()
        assert ask(up.home, "SELECT reason FROM dead_letters") == []


def test_a_value_of_collectd_is_a_row_with_its_identifier_as_tags(tmp: Path) -> None:
    sql = "SELECT time, tags, field, type, value FROM metrics WHERE name = 'given'"
    with installation(tmp) as up, collectd(tmp, up.port) as write:
        write(range(1, 2))
        ((time, tags, *rest),) = poll(lambda: ask(up.home, sql))
    assert (time, *rest) == ("2026-01-01T12:00:01.000000000Z", "value", "integer", 1)
    assert json.loads(tags) == {"host": "h", "type": "gauge"}


JOURNAL = harness.ROOT / "var/journal"
ENTRY = """__CURSOR=s=0{0:031x};i={0:x};b=0{0:031x};m={0:x};t={1:x};x={0:x}
__REALTIME_TIMESTAMP={1}
__MONOTONIC_TIMESTAMP={0}
_BOOT_ID=0123456789abcdef0123456789abcdef
_MACHINE_ID=0123456789abcdef0123456789abcdef
PRIORITY=4
SYSLOG_IDENTIFIER=web
MESSAGE={2}

"""


def upload(tmp: Path, port: int) -> subprocess.Popen[bytes]:
    """systemd-journal-upload, which waits for more after it has sent what is in the journal, or ends with an error."""
    command = [f"{JOURNAL}/lib/systemd/systemd-journal-upload", f"--url=http://127.0.0.1:{port}"]
    return subprocess.Popen([*command, f"--file={tmp}/made.journal", f"--save-state={tmp}/state"], env=library())


def library() -> dict[str, str]:
    (libraries,) = JOURNAL.glob("usr/lib/*-linux-gnu")
    return {**os.environ, "LD_LIBRARY_PATH": str(libraries)}


def test_the_journal_is_sent_again_after_each_error_and_stored_once(tmp: Path) -> None:
    """Each error ends systemd-journal-upload; the next one begins behind the last entry that was accepted."""
    if not JOURNAL.is_dir():
        pytest.skip("no systemd-journal-upload: bin/provision nightly gets Debian's package")
    entries = "".join(ENTRY.format(n, (FIRST + n) * 10**6, f"line {n}") for n in range(1, 4))
    remote = [f"{JOURNAL}/lib/systemd/systemd-journal-remote", "--split-mode=none", f"--output={tmp}/made.journal", "-"]
    subprocess.run(remote, input=entries.encode(), env=library(), check=True, capture_output=True)
    replies = [reply(503, "Retry-After: 1"), reply(429, "Retry-After: 1"), reply(413), b""]
    with installation(tmp / "home") as up, closing(proxy := AnsweringProxy(up.port, replies)) as port:
        for _ in range(4):
            assert upload(tmp, port).wait(PATIENCE) == 1
        assert len(proxy.answered) == 4
        with upload(tmp, port) as process:
            poll((tmp / "state").exists)
            process.kill()
        sql = "SELECT time, level, service, message, attributes FROM logs ORDER BY time"
        poll(lambda: duplicates(up) == 1)
        rows = ask(up.home, sql)
        assert [row[:4] for row in rows] == [
            (f"2026-01-01T12:00:0{n}.000Z", "warn", "web", f"line {n}") for n in range(1, 4)
        ]
        assert json.loads(rows[0][4])["_MACHINE_ID"] == "0123456789abcdef0123456789abcdef"
        assert ask(up.home, "SELECT reason FROM dead_letters") == []
