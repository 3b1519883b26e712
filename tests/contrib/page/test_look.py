"""top, tail, peek, release, purge: they show bodies, and change nothing without confirmation."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as client

from proving.harness import PATIENCE, ROOT, Server, environment, poll, redis_server, running
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.streams.built_in import STREAMS
from support.operator_verbs import drain, push, sluice, status, vote

pytestmark = pytest.mark.contract


@pytest.fixture
def redis(tmp: Path) -> Iterator[Server]:
    with redis_server(tmp, appendfsync="no") as server:
        yield server


def answering(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def ready(server: Server, stream: str = "votes") -> list[bytes]:
    with client.Redis(unix_socket_path=str(server.socket)) as db:
        return db.lrange("ingest:{%s}" % stream, 0, -1)


def test_peek_shows_the_oldest_bodies_and_takes_none(tmp: Path, redis: Server) -> None:
    push(redis, *[b"body %d" % n for n in range(1, 21)], b"\x1b[31mred" + b"x" * 500)
    Outlet(str(redis.socket)).claim("votes", max_bodies=3, lease=3600)
    before = ready(redis)
    code, out, complaints = sluice(tmp, "peek", "votes", "--limit", "5")
    assert (code, complaints) == (0, "")
    assert [line.split(maxsplit=2) for line in out.splitlines()] == [
        [str(n), "claimed" if n <= 3 else "ready", f"body {n}"] for n in range(1, 6)
    ]
    code, out, _ = sluice(tmp, "peek", "votes", "--from", "20")
    assert [line.split()[0] for line in out.splitlines()] == ["20", "21"]
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) == 80
    assert len(sluice(tmp, "peek", "votes", "--limit", "1")[1].splitlines()) == 1
    assert sluice(tmp, "peek", "gps")[1] == "No body is ready or claimed.\n"
    assert ready(redis) == before


def test_peek_shows_long_bodies_in_several_reads(tmp: Path, redis: Server) -> None:
    push(redis, *[b"%d " % n + b"x" * 900_000 for n in range(12)])
    assert [line.split()[2] for line in sluice(tmp, "peek", "votes", "--limit", "12")[1].splitlines()] == [
        str(n) for n in range(12)
    ]
    assert len(Inspector(str(redis.socket)).peek("votes", limit=12)[1]) < 12


@pytest.mark.parametrize("verb", ["tail", "peek", "release", "purge"])
def test_an_unknown_stream_is_reported_in_one_line_with_status_2(verb: str, tmp: Path, redis: Server) -> None:
    assert sluice(tmp, verb, "vots") == (
        2,
        "",
        f"sluice: there is no stream 'vots'; there are {', '.join(sorted(STREAMS))}.\n",
    )


@pytest.mark.parametrize("verb", ["tail", "peek", "release", "purge"])
def test_an_unavailable_redis_is_reported_in_one_line_with_status_1(verb: str, tmp: Path) -> None:
    code, out, complaints = sluice(tmp, verb, "votes")
    assert (code, out, complaints.count("\n")) == (1, "", 1)
    assert complaints.startswith("sluice: Redis is unavailable: ")


def test_tail_shows_every_body_in_order_and_takes_none(tmp: Path, redis: Server) -> None:
    push(redis, b"before")
    command = [ROOT / "bin/sluice", "tail", "votes", "--count", "300"]
    with running(command, tmp / "tail.out", environment(tmp)) as process:
        poll(lambda: "from sequence number 2\n" in (tmp / "tail.out").read_text())
        for n in range(300):
            push(redis, b"body-%d" % n)
        assert process.wait(PATIENCE) == 0
    lines = (tmp / "tail.out").read_text().splitlines()[1:]
    assert [line.split() for line in lines] == [[str(n + 2), "ready", f"body-{n}"] for n in range(300)]
    assert len(ready(redis)) == 301


def test_tail_counts_the_bodies_that_a_worker_stored_between_two_reads(tmp: Path, redis: Server) -> None:
    drain(tmp)
    with (
        running([sys.executable, ROOT / "worker.py"], tmp / "worker.out", environment(tmp)),
        running([ROOT / "bin/sluice", "tail", "votes"], tmp / "tail.out", environment(tmp)) as process,
    ):
        poll(lambda: "from sequence number 1\n" in (tmp / "tail.out").read_text())
        os.killpg(process.pid, signal.SIGSTOP)
        push(redis, *map(vote, range(100)))
        poll(lambda: status(tmp)[1]["votes"]["stored"] == 100)
        os.killpg(process.pid, signal.SIGCONT)
        poll(lambda: "\n… 100 not shown" in (tmp / "tail.out").read_text())
        for n in range(400):
            push(redis, vote(n))

        def complete() -> bool:
            text = (tmp / "tail.out").read_text()
            shown = len(re.findall(r"^\d+  (?:ready|claimed)", text, re.M))
            gone = sum(map(int, re.findall(r"^… (\d+) not shown", text, re.M)))
            assert shown > 0
            return shown + gone == 500

        poll(complete)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    drain(tmp)
    assert status(tmp)[1]["votes"]["stored"] == 500


def test_purge_asks_and_discards_the_bodies_that_were_ready(
    tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(tmp)
    push(redis, *map(vote, range(10)))
    claim = Outlet(str(redis.socket)).claim("votes", max_bodies=3, lease=3600)
    assert claim
    for answer in "", "n\n", "what?\n":
        answering(answer, monkeypatch)
        code, out, question = sluice(tmp, "purge", "votes")
        assert (code, out) == (1, "")
        assert question.startswith("votes: discard 7 accepted bodies that are not yet stored? [y/N] ")
        assert len(ready(redis)) == 7
    answering("y\n", monkeypatch)
    assert sluice(tmp, "purge", "votes")[:2] == (0, "votes: 7 bodies discarded\n")
    assert ready(redis) == []
    code, ledger, trouble = status(tmp)
    votes = ledger["votes"]
    assert (code, trouble, votes["missing"], votes["purged"], votes["claimed"]) == (0, [], 0, 7, 3)
    assert "votes: 7 accepted bodies were discarded by `bin/sluice purge`." in sluice(tmp, "status")[1]
    # no sequence number is used twice
    push(redis, vote("after"))
    assert sluice(tmp, "peek", "votes", "--from", "4")[1].split()[0] == "11"
    Inspector(str(redis.socket)).release("votes")
    drain(tmp)
    votes = status(tmp)[1]["votes"]
    assert (votes["accepted"], votes["stored"], votes["missing"]) == (11, 4, 0)
    assert sluice(tmp, "purge", "votes", "--yes")[:2] == (0, "votes: no body is ready.\n")


def test_bodies_that_a_restore_has_lost_are_acknowledged_once_and_the_next_loss_shows(
    tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(redis, *map(vote, range(2)))
    drain(tmp)
    assert sluice(tmp, "purge", "--missing", "votes")[:2] == (0, "votes: no body is missing.\n")
    for lost in 3, 4:
        assert sluice(tmp, "backup", str(tmp / f"copy{lost}"))[0] == 0
        push(redis, *map(vote, range(lost)))
        drain(tmp)
        assert sluice(tmp, "restore", "--replace", str(tmp / f"copy{lost}"))[0] == 0
        code, found, _ = status(tmp)
        assert (code, found["votes"]["missing"]) == (1, lost)
        answering("n\n", monkeypatch)
        code, _, question = sluice(tmp, "purge", "--missing", "votes")
        assert code == 1
        assert question.startswith(f"votes: {lost} accepted bodies are missing; count them as purged? [y/N] ")
        assert sluice(tmp, "purge", "--missing", "--yes", "votes")[1] == f"votes: {lost} bodies are counted as purged\n"
        code, found, trouble = status(tmp)
        assert (code, found["votes"]["missing"], trouble) == (0, 0, [])
    assert (found["votes"]["accepted"], found["votes"]["purged"], found["votes"]["stored"]) == (9, 7, 2)


def test_bodies_that_arrive_while_purge_asks_are_kept(tmp: Path, redis: Server) -> None:
    push(redis, b"old", b"old")
    seen = Inspector(str(redis.socket)).take_snapshot("votes")
    push(redis, b"new")
    assert Inspector(str(redis.socket)).purge("votes", seen) == 2
    assert ready(redis) == [b"new"]
    assert Inspector(str(redis.socket)).purge("votes", seen) == 0


def test_released_claims_go_to_the_next_worker_with_the_same_ids(
    tmp: Path, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(redis, *map(vote, range(5)))
    outlet = Outlet(str(redis.socket))
    one = outlet.claim("votes", max_bodies=3, lease=3600)
    assert one
    outlet.report_state([one])
    answering("no\n", monkeypatch)
    code, _, question = sluice(tmp, "release", "votes")
    assert code == 1
    assert question == f"votes: end the leases of 1 open claims with 3 bodies, held by worker {os.getpid()}? [y/N] "
    answering("yes\n", monkeypatch)
    assert sluice(tmp, "release", "votes")[:2] == (0, "votes: 1 leases ended\n")
    again = outlet.claim("votes")
    assert again
    assert (again.id, again.count) == (one.id, one.count)
    assert sluice(tmp, "release", "gps", "--yes")[:2] == (0, "gps: no claim is open.\n")


def test_top_shows_each_stream_its_workers_and_its_dead_letters_in_80_columns(tmp: Path, redis: Server) -> None:
    push(redis, *[b"nonsense"] * 3, vote(""))
    drain(tmp)
    push(redis, *map(vote, range(12_345)))
    outlet = Outlet(str(redis.socket))
    claim = outlet.claim("votes", max_bodies=1000, lease=3600)
    assert claim
    outlet.report_state([claim])
    code, out, complaints = sluice(tmp, "top", "--count", "2", "--every", "0.1", TERM="dumb")
    assert (code, complaints) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    (head, *_) = [line for line in lines if line.startswith("stream")]
    assert head.split() == ["stream", "in/s", "out/s", "waiting", "bytes", "oldest", "dead", "missing"]
    votes = [line for line in lines if line.startswith("votes")][-1]
    assert "12,345" in votes
    assert "██" in votes
    assert votes.split()[-2:] == ["4", "0"]
    assert re.search(rf"worker {os.getpid()} +holds votes: 1,000 bodies", out)
    assert re.search(r"3 +votes +neither JSON nor a form", out)


def test_top_reports_what_is_unavailable(tmp: Path) -> None:
    code, out, _ = sluice(tmp, "top", "--count", "1", TERM="dumb")
    assert code == 0
    assert "! Redis is unavailable: " in out
    assert "! the database is unavailable: " in out
    assert out.index("! Redis is unavailable") < out.index("stream")  # not below the edge of a small terminal


@pytest.mark.parametrize("colour", [True, False])
def test_top_ends_with_q_and_restores_the_terminal(colour: bool, tmp: Path, redis: Server) -> None:
    push(redis, *map(vote, range(10)))
    env = environment(tmp) | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    env |= {} if colour else {"NO_COLOR": "1"}
    master, slave = pty.openpty()
    process = subprocess.Popen([ROOT / "bin/sluice", "top"], stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                seen.append(data)
        except OSError:  # the terminal is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    poll(lambda: b"votes" in b"".join(seen))
    os.write(master, b"q")
    assert process.wait(PATIENCE) == 0
    reader.join()
    os.close(master)
    out = b"".join(seen)
    assert out.index(b"\x1b[?1049h") < out.index(b"votes") < out.index(b"\x1b[?1049l")  # the alternate screen, and back
    assert out.rindex(b"\x1b[?25h") > out.rindex(b"\x1b[?25l")  # the cursor is shown again
    assert bool(re.search(rb"\x1b\[[0-9;]*3[0-7]m", out)) == colour
