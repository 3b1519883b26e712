"""Debian's syslog-ng and rsyslog, unmodified, send what they get by TCP to a whole installation."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from proving import harness
from proving.harness import Server, ask, chain, free_port, installation, running
from sluice.run.servers import program_path
from support.answering_proxy import AnsweringProxy, closing, reply
from support.sender_configs import samples

pytestmark = pytest.mark.nightly

poll = partial(harness.poll, interval=0.05)
RSYSLOG = harness.ROOT / "var/rsyslog"
Start = Callable[[Path, int], contextlib.AbstractContextManager[socket.socket]]  # a directory, where to send


@contextlib.contextmanager
def connected(command: list[object], tmp: Path, port: int) -> Iterator[socket.socket]:
    """A connection to a program, which takes lines."""
    with (
        running(command, tmp / "sender.out", harness.environment(tmp), signal.SIGKILL),
        poll(lambda: socket.create_connection(("127.0.0.1", port))) as connection,
    ):
        yield connection


def syslog_ng(tmp: Path, write: int) -> contextlib.AbstractContextManager[socket.socket]:
    program = shutil.which("syslog-ng", path=program_path())
    if not program:
        pytest.skip("syslog-ng is not there: it would replace another system log")
    port = free_port()
    (documented,) = samples("syslog-ng", write)
    (tmp / "syslog-ng.conf").write_text(f"""@version: 3.38
options {{ keep-hostname(yes); }};
source s_all {{ network(ip("127.0.0.1") port({port}) transport("tcp")); }};
{documented}
log {{ source(s_all); destination(d_sluice); flags(flow-control); }};
""")
    command: list[object] = [program, "--foreground", "--no-caps", "--cfgfile", tmp / "syslog-ng.conf"]
    command += ["--persist-file", tmp / "persist", "--control", tmp / "control", "--pidfile", tmp / "pid"]
    return connected(command, tmp, port)


def rsyslog(tmp: Path, write: int) -> contextlib.AbstractContextManager[socket.socket]:
    program = RSYSLOG / "usr/sbin/rsyslogd"
    if not program.exists():
        pytest.skip("no rsyslog: bin/provision nightly gets Debian's package")
    port = free_port()
    (documented,) = samples("rsyslog", write)
    (tmp / "rsyslog.conf").write_text(f"""module(load="imtcp")
input(type="imtcp" address="127.0.0.1" port="{port}")
{documented.replace("/opt/sluice", str(harness.ROOT))}
""")
    (modules,) = RSYSLOG.glob("usr/lib/*/rsyslog")
    return connected([program, "-n", "-i", tmp / "pid", "-f", tmp / "rsyslog.conf", "-M", modules], tmp, port)


@pytest.fixture(params=[syslog_ng, rsyslog])
def sender(request: pytest.FixtureRequest) -> Start:
    start: Start = request.param
    return start


def line(number: int, level: int = 6) -> bytes:
    """A line of RFC 3164: facility user (1), service `web`."""
    return b"<%d>Jan 15 12:00:00 box web[7]: message %d\n" % (8 + level, number)


def stored(up: Server) -> list[str]:
    return [message for (message,) in ask(up.home, "SELECT message FROM logs")]


def test_lines_are_rows_with_level_service_and_host(sender: Start, tmp: Path) -> None:
    with chain(tmp) as up, sender(tmp, up.port) as connection:
        connection.sendall(line(-1, 3) + line(-2, 4) + line(-3, 7))
        poll(lambda: len(stored(up)) >= 3)
        rows = ask(up.home, "SELECT level, service, message, attributes, time FROM logs ORDER BY message")
    assert [row[:3] for row in rows] == [
        ("error", "web", "message -1"), ("warn", "web", "message -2"), ("debug", "web", "message -3"),
    ]  # fmt: skip
    assert {json.loads(row[3])["host"] for row in rows} == {"box"}
    assert {row[4][4:19] for row in rows} == {"-01-15T12:00:00"}


def test_every_line_is_stored_exactly_once_although_the_worker_is_killed(sender: Start, tmp: Path, kills: int) -> None:
    with installation(tmp) as up, sender(tmp, up.port) as connection:
        sent = 0
        for _ in range(kills):
            (before,) = poll(lambda: up.pids("worker"))
            connection.sendall(b"".join(map(line, range(sent, sent + 500))))
            sent += 500
            os.kill(before, signal.SIGKILL)
            poll(lambda before=before: before not in up.pids("worker"))  # type: ignore[misc]
        poll(lambda: len(stored(up)) >= sent)
        assert sorted(stored(up)) == sorted(f"message {n}" for n in range(sent))
        assert ask(up.home, "SELECT reason FROM dead_letters") == []


def test_lines_are_sent_again_after_429_and_5xx(sender: Start, tmp: Path) -> None:
    replies = [reply(status, "Retry-After: 1") for status in (429, 500, 502, 503, 504)]
    with chain(tmp) as up, closing(proxy := AnsweringProxy(up.port, replies)) as port:
        with sender(tmp, port) as connection:
            connection.sendall(b"".join(map(line, range(100))))
            poll(lambda: len(stored(up)) >= 100)
        assert len(proxy.answered) == 5
        assert sorted(stored(up)) == sorted(f"message {n}" for n in range(100))


def test_lines_that_got_400_or_413_are_dropped(sender: Start, tmp: Path) -> None:
    with chain(tmp) as up, closing(proxy := AnsweringProxy(up.port, [reply(400), reply(413)])) as port:
        with sender(tmp, port) as connection:
            for number in 1, 2, 3:
                connection.sendall(line(number))
                poll(lambda: stored(up) or len(proxy.answered) == number)  # noqa: B023
        assert stored(up) == ["message 3"]


def test_lines_that_got_no_answer_are_sent_again(sender: Start, tmp: Path) -> None:
    """Each line has its time; syslog-ng adds new lines to those that it sends again."""
    with (
        chain(tmp, {"INGEST_UNIQUE": "logs=1d/record"}) as up,
        closing(proxy := AnsweringProxy(up.port, [b""])) as port,
        sender(tmp, port) as connection,
    ):
        connection.sendall(line(1) + line(2))
        poll(lambda: proxy.answered and sorted(stored(up)) == ["message 1", "message 2"])
        connection.sendall(line(3))
        poll(lambda: len(stored(up)) == 3)
        assert sorted(stored(up)) == ["message 1", "message 2", "message 3"]


def test_every_line_is_stored_once_although_one_answer_in_ten_is_lost(sender: Start, tmp: Path) -> None:
    def numbers() -> list[int]:
        return sorted(int(text.split()[1]) for text in stored(up))

    with (
        installation(tmp, {"INGEST_UNIQUE": "logs=1d/record"}) as up,
        closing(proxy := AnsweringProxy(up.port, [], cut=10)) as port,
        sender(tmp, port) as connection,
    ):
        count = proxy.sent_in_steps(numbers, lambda asked: connection.sendall(b"".join(map(line, asked))))
        connection.sendall(line(count))  # goes with the last ones that are sent again, or behind them
        poll(lambda: count in numbers())
        assert numbers() == [*range(count + 1)]


def test_rsyslog_sends_lines_in_parts_and_what_is_not_utf_8(tmp: Path) -> None:
    with chain(tmp, {"INGEST_MAX_BODY": "1k"}) as up, rsyslog(tmp, up.port) as connection:
        connection.sendall(line(-1).replace(b"message", b"caf\xe9") + b"".join(map(line, range(100))))
        poll(lambda: len(stored(up)) >= 101)
        assert sorted(stored(up)) == sorted(["caf\ufffd -1", *(f"message {n}" for n in range(100))])
        assert ask(up.home, "SELECT reason FROM dead_letters") == []
