"""bin/sluice drill: it reports every broken promise, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from proving.compare import Findings, compare
from proving.conduct import chosen
from proving.faults import FAULTS
from proving.harness import PATIENCE, ROOT, ask, environment, get, installation, poll, post
from proving.load import CUT, HALF, SPAN, UNANSWERED, Book
from proving.postgres import Postgres, postgres_server
from proving.report import KINDS
from proving.site import Trouble
from support.access import KEY, curl, keys, tls

PROMISES = ("missing", "doubled", "torn", "disorder", "misdated")
FIVE = ("nginx", "master", "gateway", "worker", "redis")


def drill(tmp: Path, *options: object, env: Mapping[str, object] | None = None) -> tuple[int, dict[str, Any], str]:
    """Run a drill. Returns: its exit status, its report, its standard output."""
    command = [ROOT / "bin/sluice", "drill", "--report", tmp, *options]
    # the private installation ignores INGEST_HOME
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment(tmp, env), capture_output=True, text=True, timeout=600
    )
    print(done.stdout[done.stdout.find("\n# ") :], done.stderr)  # pytest shows the report with a failure
    reports = list(tmp.glob("*.json"))
    assert len(reports) == 1, done.stdout + done.stderr
    return done.returncode, json.loads(reports[0].read_text()), done.stdout


def broken(report: dict[str, Any]) -> dict[str, int]:
    """The number of times each promise was broken."""
    return {kind: report["counts"][kind] for kind in PROMISES}


def reads(report: dict[str, Any]) -> tuple[dict[str, int], int]:
    """The wrong answers of views by kind, and the number of keys that differ from the database."""
    found = report["views"]
    assert found["answers"]["200"] > 100
    assert len(found["different"]) == 6  # the built-in views and those of the drill
    return found["wrong"], sum(found["different"].values())


NONE = dict.fromkeys(PROMISES, 0)


@pytest.mark.nightly
def test_kills_of_each_program_lose_and_double_no_acknowledged_event(tmp: Path, kills: int) -> None:
    names = [f"kill-{name}" for name in FIVE]
    options = "--no-views", "--rounds", kills, "--rate", 500, "--seed", 2, "--faults", ",".join(names)
    status, report, _ = drill(tmp, *options)
    killed = [entry["fault"] for entry in report["faults"]]
    assert {name: killed.count(name) for name in names} == dict.fromkeys(names, kills)
    assert (broken(report), report["dead"], report["trouble"], report["views"]) == (NONE, 0, "", None)
    counts = report["counts"]
    assert report["stored"] == report["acknowledged"] + counts["unknown"] - counts["aged"] > 500 * kills
    assert status == 0


@pytest.mark.nightly
def test_all_faults_in_random_order_break_no_promise(tmp: Path, request: pytest.FixtureRequest) -> None:
    status, report, _ = drill(tmp, "--duration", request.config.getoption("--seconds"), "--rate", 500)
    assert (broken(report), report["dead"], report["trouble"]) == (NONE, 0, "")
    assert report["ledger"]["missing"] == report["ledger"]["restored_away"]
    wrong, unread = reads(report)
    # a status is judged by the time of its answer, which a busy machine delays beyond the fault that explains it
    late = wrong.pop("status", 0)
    assert (wrong, unread) == ({}, 0)
    # about ten of each kind; fewer while the machine is busy
    assert {FAULTS[entry["fault"]].views for entry in report["faults"]} == {False, True}
    assert status == bool(late)


@pytest.mark.nightly
def test_what_a_restore_takes_and_what_age_deletes_is_known_exactly(tmp: Path) -> None:
    options = "--no-views", "--rounds", 1, "--rate", 500, "--seed", 1  # a seed with a killed restore
    status, report, _ = drill(tmp, *options, "--faults", "backup,restore,expire")
    assert (status, broken(report), report["trouble"]) == (0, NONE, "")
    counts, ledger = report["counts"], report["ledger"]
    # some of these events were sent again, and are there
    assert 0 < counts["away"] <= ledger["restored_away"] == ledger["missing"]
    assert ledger["deleted_by_age"] >= counts["aged"] > 0
    assert ledger["batches_kept"] < ledger["batches"]
    left = report["acknowledged"] + counts["unknown"] - counts["away"] - counts["aged"]
    assert report["stored"] == left > 1000


@pytest.mark.nightly
def test_a_broken_promise_is_reported_and_gives_status_1(tmp: Path) -> None:
    status, report, said = drill(tmp, "--rounds", 1, "--rate", 500, "--faults", "lose,double,late,views-lose")
    wrong, different = reads(report)
    assert (set(wrong), different) == ({"lost"}, 1)
    assert "/gps/trail" in report["views"]["examples"][0][1]
    assert (status, report["passed"]) == (1, False)
    found = broken(report)
    assert found.pop("misdated") >= 1  # the late event, and events that now have the position of another
    assert found == {"missing": 1, "doubled": 1, "disorder": 1, "torn": 0}
    for kind in "missing", "doubled", "disorder":
        assert f"| {KINDS[kind]} | 1 |" in said
        assert f"Event numbers, {KINDS[kind]}: {report['numbers'][kind][0]}\n" in said


@pytest.mark.nightly
def test_a_drill_of_a_running_installation_with_api_keys_and_tls_leaves_it_running(
    tmp: Path, certificate: tuple[Path, Path]
) -> None:
    home = tmp / "home"
    home.mkdir()
    door = {"INGEST_API_KEYS": keys(tmp), **tls(certificate)}
    with installation(home, door, ready=False) as up:
        header, url = f"X-API-Key: {KEY}", f"https://localhost:{up.port}/readyz"
        poll(lambda: curl("--cacert", certificate[0], "-H", header, url)[0] == 200)
        command = [ROOT / "bin/sluice", "drill", "--home", home]
        done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment(tmp), capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "is not ready for requests from here; does it need an API key (--header)?" in done.stderr
        names = "kill-worker,script-flush,cut"
        status, report, _ = drill(
            tmp, "--home", home, "--header", header, "--rounds", 1, "--rate", 500, "--faults", names
        )
        assert (status, broken(report), report["installation"]) == (0, NONE, "running")
        assert report["counts"]["unknown"] > 0  # clients that closed after the last byte sent the key too
        assert curl("--cacert", certificate[0], "-H", header, url)[0] == 200
        assert not (home / "drill-books").exists()


class Accepting(BaseHTTPRequestHandler):
    """Answers every POST with 204."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.nightly
def test_events_due_while_the_port_is_closed_are_posted_afterwards(tmp: Path) -> None:
    door = ThreadingHTTPServer(("127.0.0.1", 0), Accepting, bind_and_activate=False)
    with door, contextlib.ExitStack() as stack:
        door.server_bind()  # not listening yet
        arguments = map(str, (door.server_port, 0, 4, 100, "run", tmp / "book"))
        command = [sys.executable, "-m", "proving.load", *arguments]
        load = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        stack.callback(load.communicate)
        stack.callback(load.kill)
        assert load.stdin and load.stdout
        sent = (json.loads(line)["sent"] for line in load.stdout)  # the first at once, then one every 0.1 s
        assert [next(sent) for _ in range(16)] == [0] * 16
        load.stdin.write("stop\n")
        load.stdin.flush()
        door.server_activate()
        threading.Thread(target=door.serve_forever, args=(0.05,)).start()
        stack.callback(door.shutdown)
        assert load.wait(PATIENCE) == 0
        assert len(Book.load(tmp / "book").status) >= 150


@pytest.mark.nightly
def test_bin_test_drill_has_the_options_and_the_status_of_the_drill(tmp: Path) -> None:
    runs = (["--home", str(tmp)], 1, f"no installation in {tmp}"), (["--help"], 0, "usage: bin/sluice drill")
    for words, status, said in runs:
        done = subprocess.run([ROOT / "bin/test", "--drill", *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == status
        assert said in done.stdout + done.stderr


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as running:
        yield running


@pytest.mark.nightly
def test_a_drill_into_postgresql_breaks_no_promise_and_drops_its_schema(tmp: Path, server: Postgres) -> None:
    faults = "store-locked,store-away,store-full,kill-settle,restore,kill-views,kill-follower,views-rebuild,replay"
    status, report, _ = drill(
        tmp, "--rounds", 1, "--rate", 500, "--seed", 149, "--faults", faults, env={"INGEST_STORE": server.url}
    )  # a seed with short faults
    assert (status, broken(report), reads(report)) == (0, NONE, ({}, 0))
    assert report["ledger"]["missing"] == report["ledger"]["restored_away"] > 0
    assert (report["settings"]["store"], len(report["faults"])) == ("PostgreSQL", 9)
    assert server.ask("SELECT nspname FROM pg_namespace WHERE nspname ~ 'drill'") == []


@pytest.mark.nightly
def test_a_drill_of_two_gateways_and_two_workers_into_parquet_files_breaks_no_promise(tmp: Path) -> None:
    faults = "kill-gateway,kill-worker,kill-redis,reload-gateway,store-locked,store-away,store-full,kill-commit,"
    faults += "kill-settle,lease,expire,settings"
    env = {"INGEST_ROWS": "parquet:///any", "INGEST_GATEWAYS": 2, "INGEST_WORKERS": 2}
    status, report, _ = drill(tmp, "--rounds", 1, "--rate", 500, "--seed", 3, "--faults", faults, env=env)
    assert (status, broken(report)) == (0, NONE)
    assert (report["settings"]["gateways"], report["settings"]["workers"]) == (2, 2)
    assert (report["settings"]["store"], len(report["faults"])) == ("Parquet", 12)


@pytest.mark.nightly
def test_a_report_says_that_the_drill_was_interrupted(tmp: Path) -> None:
    options = "--no-views", "--duration", 60, "--rate", 200, "--faults", "none", "--report", tmp
    command = [str(word) for word in (ROOT / "bin/sluice", "drill", *options)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(tmp), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        # a script that starts the tests with & makes them ignore SIGINT; SIGTERM does the same here
        assert any(" acknowledged" in line and " 0 acknowledged" not in line for line in process.stdout)
        process.terminate()
        said = process.stdout.read()
    (report,) = (json.loads(path.read_text()) for path in tmp.glob("*.json"))
    assert (process.returncode, report["passed"], report["interrupted"]) == (0, True, True)
    assert f": passed, interrupted after {report['seconds']} s" in said


@pytest.mark.nightly
def test_a_home_without_an_installation_is_an_error_of_one_line(tmp: Path) -> None:
    command = [ROOT / "bin/sluice", "drill", "--home", tmp / "none"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment(tmp), capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"no installation in {tmp}/none" in done.stderr


def test_faults_are_selected_and_excluded_by_name() -> None:
    every = chosen("all", private=True)
    assert set(every) == {name for name, fault in FAULTS.items() if not fault.named and not fault.proof}
    assert chosen("cut,lose", private=True) == ["cut", "lose"]
    assert chosen("none", private=True) == []
    assert set(every) - set(chosen("-replica,-cut", private=True)) == {"replica", "cut"}
    assert set(chosen("all,lose", private=True)) == {*every, "lose"}
    assert "replica" not in chosen("all", private=False)  # it moves files
    for wrong, private in ("kill-everybody", True), ("-kill-everybody", True), ("replica", False):
        with pytest.raises(Trouble, match="unknown fault: .*kill-everybody|replica"):
            chosen(wrong, private)


@pytest.mark.nightly
def test_an_unknown_fault_is_an_error_of_one_line(tmp: Path) -> None:
    command = [ROOT / "bin/sluice", "drill", "--faults", "kill-everybody"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment(tmp), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sluice: unknown fault: kill-everybody; --help lists them\n"


@pytest.fixture
def small_disk(tmp: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    disk = tmp / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here; it needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.nightly
def test_bodies_accepted_while_the_disk_is_full_are_stored_once_there_is_space(tmp: Path, small_disk: Path) -> None:

    def stored() -> list[str]:
        return [choice for (choice,) in ask(small_disk, "SELECT choice FROM votes ORDER BY rowid")]

    def vote(choice: str) -> int:
        return post(up.port, "/votes", b'{"poll":"p","choice":"%b"}' % choice.encode())[0]

    home = tmp / "home"
    with installation(home, {"INGEST_STORE": f"sqlite:///{small_disk}/ingest.db"}) as up:
        assert vote("before") == 200
        poll(lambda: stored() == ["before"])
        with contextlib.suppress(OSError), open(small_disk / "ballast", "wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        long = "x" * 1000
        choices = [f"{n}-{long}" for n in range(200)]
        assert [vote(choice) for choice in choices] == [200] * 200
        poll(lambda: "the database is unavailable" in up.said() and "full" in up.said(), what="the worker logs it")
        assert get(up.port, "/readyz")[0] == 200
        (small_disk / "ballast").unlink()
        poll(lambda: len(stored()) > 200)
        assert stored() == ["before", *choices]


# --- the comparison ---


def book(*events: tuple[int, float, float]) -> Book:
    """A book of (status, sent, answered)."""
    made = Book()
    for status, sent, answered in events:
        n = made.post(sent)
        made.status[n], made.answered[n] = status, answered
    return made


def counts(found: Findings) -> dict[str, int]:
    return {kind: count for kind, count in found.counts.items() if count}


def test_complete_rows_in_order_are_sound() -> None:
    books = [book((200, 1.0, 1.1), (204, 2.0, 2.1)), book((200, 1.0, 1.3), (503, 5.0, 5.1), (HALF, 6.0, 0.0))]
    found = compare(books, [(0, 1.0), (SPAN, 1.2), (1, 2.1)])
    assert (found.sound, found.acknowledged, found.posted, found.stored, counts(found)) == (True, 3, 5, 3, {})


def test_an_acknowledged_event_that_is_not_stored_is_missing() -> None:
    found = compare([book((200, 1.0, 1.1), (200, 2.0, 2.1))], [(1, 2.0)])
    assert (found.sound, found.missing, counts(found)) == (False, [0], {"missing": 1})


def test_what_was_deleted_by_age_or_was_not_in_a_restored_copy_is_not_missing_and_may_not_come_back() -> None:
    books = [book((200, 1.0, 1.1), (200, 2.0, 2.1), (200, 3.0, 3.1), (200, 4.0, 4.1))]

    def found(*rows: tuple[int, float]) -> dict[str, int]:
        return counts(compare(books, rows, away={1}, aged=lambda number, sent: number == 0))

    assert found((2, 3.0), (3, 4.0)) == {"aged": 1, "away": 1}
    assert found((2, 3.0)) == {"aged": 1, "away": 1, "missing": 1}
    assert found((0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)) == {"doubled": 1, "away": 1}


def test_an_event_stored_twice_is_doubled_whether_acknowledged_or_not() -> None:
    found = compare([book((200, 1.0, 1.1), (UNANSWERED, 2.0, 0.0))], [(0, 1.0), (0, 1.0), (1, 2.0), (1, 2.0)])
    assert (found.sound, found.doubled, counts(found)) == (False, [0, 1], {"doubled": 2, "unknown": 1})


@pytest.mark.parametrize("status", [UNANSWERED, CUT, 502, 503, 504])
def test_an_event_stored_without_an_acknowledgement_is_listed_and_allowed(status: int) -> None:
    found = compare([book((status, 1.0, 0.0))], [(0, 1.0)])
    assert (found.sound, found.unknown) == (True, [0])


@pytest.mark.parametrize("number", [0, 1, SPAN, -1])
def test_a_stored_event_that_was_never_sent_completely_is_torn(number: int) -> None:
    found = compare([book((HALF, 1.0, 0.0))], [(number, 1.0)])
    assert (found.sound, found.torn) == (False, [number])


def test_an_event_behind_one_posted_after_its_response_is_out_of_order() -> None:
    first, second = (200, 1.0, 1.1), (200, 1.2, 1.3)
    assert compare([book(first, second)], [(0, 1.0), (1, 1.2)]).sound
    assert compare([book(first, second)], [(1, 1.2), (0, 1.0)]).disorder == [0]
    # also between processes, and if the later event got no response
    assert compare([book(first), book((UNANSWERED, 1.2, 0.0))], [(SPAN, 1.2), (0, 1.0)]).disorder == [0]
    # two events that overlap may have either order
    assert compare([book((200, 1.0, 1.3), second)], [(1, 1.2), (0, 1.0)]).sound


@pytest.mark.parametrize("received, right", [(0.9, True), (0.89, False), (1.1, True), (1.2, True), (1.21, False)])
def test_received_at_is_between_request_and_response_within_100_ms(received: float, right: bool) -> None:
    found = compare([book((200, 1.0, 1.1))], [(0, received)])
    assert (found.sound, found.misdated) == (right, [] if right else [0])


def test_while_redis_s_clock_is_wrong_any_received_at_is_right() -> None:
    books = [book((200, 1.0, 1.1), (200, 2.0, 2.1), (200, 3.0, 3.1))]
    found = compare(books, [(0, 50.0), (1, 50.0), (2, 50.0)], misdating=[(1.5, 2.5)])
    assert (found.misdated, counts(found)) == ([0, 2], {"misdated": 2})


def test_of_an_event_that_was_sent_again_a_later_copy_may_be_stored() -> None:
    once, again = book((200, 1.0, 1.1)), book((200, 1.0, 1.1))
    again.copies[0] = 2
    assert not compare([once], [(0, 2.5)]).sound
    assert compare([again], [(0, 2.5)]).sound
    assert not compare([again], [(0, 2.5), (0, 2.6)]).sound
    # what a restore took away may come again
    assert not compare([once], [(0, 1.05)], away={0}).sound
    assert compare([again], [(0, 1.05)], away={0}).sound


def test_a_book_survives_a_round_trip_through_its_file(tmp: Path) -> None:
    written = book((200, 1.0, 1.1), (HALF, 2.5, 0.0))
    written.down.append(3.0)
    written.up.append(4.5)
    written.save(tmp / "book")
    read = Book.load(tmp / "book")
    assert (read.status, read.sent, read.answered) == (written.status, written.sent, written.answered)
    assert (read.down, read.up) == (written.down, written.up)
    assert read.copies == written.copies
    assert os.path.getsize(tmp / "book") == 16 + 2 * 20 + 16
