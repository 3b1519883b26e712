"""bin/sluice status, dead and replay: the ledger is right at any moment, and a replay may be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import redis as client

from proving import harness
from proving.harness import PATIENCE, ROOT, Server, environment, redis_server, running
from sluice import settings
from sluice.account import Publisher
from sluice.ledger import STATES
from sluice.ops import undrain
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet
from sluice.store.bookkeeping import PASS
from sluice.store.expiry import RECENT_SECONDS
from sluice.store.registry import open_store
from sluice.streams.built_in import STREAMS
from support.folders import needs
from support.operator_verbs import drain, push, sluice, status, vote

pytestmark = pytest.mark.contract

poll = harness.poll
# A new decoder: a number is a vote, except multiples of seven.
MENDED = """
import msgspec
from sluice.streams.built_in import STREAMS as OLD
from sluice.streams.registry import Stream
from sluice.streams.record import Decoded, Reject, Vote

def decode(body, bounds):
    if not body.isdigit():
        return Decoded(rejects=[Reject(body, "not a number", True)])
    if int(body) % 7 == 0:
        return Decoded(rejects=[Reject(body, "a seventh", True)])
    return Decoded([Vote(poll="p", choice=body.decode())])

STREAMS = {"votes": Stream("votes", Vote, decode)}
"""


DEADLY = "1=1)); DELETE FROM dead_letters; SELECT * FROM (SELECT * FROM dead_letters WHERE (1=1"


@pytest.fixture
def redis(tmp: Path) -> Iterator[Server]:
    with redis_server(tmp, appendfsync="no") as server:
        yield server


def ask(tmp: Path, sql: str) -> list[tuple]:
    """The rows of a query. Through apsw, as the store: two copies of SQLite in one process break each other's locks."""
    with contextlib.closing(apsw.Connection(str(tmp / "ingest.db"))) as db:
        db.set_busy_timeout(60_000)
        return db.execute(sql).fetchall()


def mended(tmp: Path) -> dict[str, object]:
    (tmp / "mended.py").write_text(MENDED)
    return {"INGEST_RECORDS": tmp / "mended.py"}


def test_without_a_verb_the_help_lists_them_on_one_screen(tmp: Path) -> None:
    for words in (), ("--help",), ("-h",):
        done = subprocess.run([ROOT / "bin/sluice", *words], capture_output=True, text=True, timeout=60)
        out = done.stdout
        assert (done.returncode, done.stderr) == (0, "")
        for verb in "status", "dead", "replay":
            assert f"\n    {verb} " in out
        assert out.count("\n") <= 44
    code, out, complaints = sluice(tmp, "sing")
    assert (code, out) == (2, "")
    assert "status" in complaints


@pytest.mark.parametrize("verb", ["status", "dead", "replay"])
def test_an_invalid_setting_is_reported_in_one_line_with_status_2(verb: str, tmp: Path) -> None:
    for env in {"INGEST_STORE": "nowhere"}, {"INGEST_RECORDS": "no_such_module"}:
        code, out, complaints = sluice(tmp, verb, **env)
        assert (code, out, complaints.count("\n")) == (2, "", 1)
        assert next(iter(env)) in complaints


def test_a_relative_home_is_relative_to_the_current_directory(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"))
    drain(tmp)
    done = subprocess.run(
        [ROOT / "bin/sluice", "status"],
        env=environment(tmp) | {"INGEST_HOME": "."},
        cwd=tmp,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


# status


def test_the_ledger_accounts_for_every_body(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"), vote("b"), b"nonsense", b"\n".join([vote("c"), vote(""), vote("")]))
    drain(tmp)
    push(redis, *map(vote, range(7)))
    outlet = Outlet(str(redis.socket))
    assert outlet.claim("votes", max_bodies=3, lease=3600)
    code, ledger, trouble = status(tmp)
    assert (code, trouble) == (0, [])
    # a body with a dead part is counted once, as dead
    assert {key: ledger["votes"][key] for key in ("accepted", "ready", "claimed", "stored", "dead", "missing")} == {
        **{"accepted": 11, "ready": 4, "claimed": 3, "stored": 2, "dead": 2, "missing": 0}
    }
    assert set(ledger) == set(STREAMS)
    table = sluice(tmp, "status")[1].splitlines()
    assert table[0].split() == ["stream", *STATES, "oldest"]
    assert ["votes", "11", "4", "3", "2", "2", "0", "0"] in [line.split()[:8] for line in table]


def test_it_says_for_how_long_keys_are_kept_before_there_are_too_many(tmp: Path, redis: Server) -> None:
    drain(tmp)
    assert "keys are kept" not in sluice(tmp, "status")[1]
    with contextlib.closing(open_store(f"sqlite:///{tmp}/ingest.db", STREAMS)) as store:
        store.set_horizons({f"{PASS}rate votes": 1000 * RECENT_SECONDS})
    said = sluice(tmp, "status")[1]
    assert "votes: at this rate keys are kept for 6 h, less than INGEST_UNIQUE: at most 20,000,000" in said


def test_old_rows_and_dead_letters_are_deleted_and_counted(tmp: Path, redis: Server) -> None:
    push(redis, b"bad", *map(vote, "abcd"))
    with client.Redis(unix_socket_path=str(redis.socket)) as db:  # they arrived an hour ago
        seconds, microseconds = db.time()
        db.delete("ingest:{votes}:marks")
        db.zadd("ingest:{votes}:marks", {f"1:{(seconds - 3600) * 10**6 + microseconds}": 1})
    drain(tmp)
    assert sluice(tmp, "expire")[:2] == (0, "INGEST_KEEP keeps everything.\n")
    env = {"INGEST_KEEP": "2h,votes=30m,dead=10m"}
    said = "".join(f"{name}: {'{1}' if name == 'votes' else 0} {{0}}\n" for name in STREAMS) + "dead: 1 {0}\n"
    assert sluice(tmp, "expire", "--dry-run", **env)[:2] == (0, said.format("are too old", 4))
    assert sluice(tmp, "expire", **env)[:2] == (0, said.format("deleted", 3))  # SQLite keeps the last one
    code, ledger, trouble = status(tmp, **env)
    assert (code, trouble) == (0, [])
    votes = ledger["votes"]
    assert [votes[key] for key in ("stored", "dead", "expired", "missing", "deleted")] == [4, 0, 1, 0, 3]
    assert "votes: deleted: 3 rows by age (INGEST_KEEP), and the dead letters of 1 bodies." in sluice(tmp, "status")[1]
    code, _, complaint = sluice(tmp, "status", INGEST_KEEP="polls=1d")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "INGEST_KEEP: there is no stream 'polls'; there are" in complaint


def test_it_says_how_long_the_oldest_body_has_waited(tmp: Path, redis: Server) -> None:
    inlet = Inlet(str(redis.socket), 100)
    inlet.commit(inlet.append("votes", vote("a")))
    drain(tmp)
    assert status(tmp)[1]["votes"]["oldest_seconds"] is None
    with client.Redis(unix_socket_path=str(redis.socket)) as db:  # a mark of an hour ago
        seconds, microseconds = db.time()
        db.delete("ingest:{votes}:marks")
        db.zadd("ingest:{votes}:marks", {f"2:{(seconds - 3600) * 10**6 + microseconds}": 2})
    push(redis, vote("b"), vote("c"))
    assert 3600 <= status(tmp)[1]["votes"]["oldest_seconds"] < 3700
    assert Outlet(str(redis.socket)).claim("votes")
    assert 3600 <= status(tmp)[1]["votes"]["oldest_seconds"] < 3700
    assert "60 min" in sluice(tmp, "status")[1]


def test_a_claim_that_is_stored_and_not_settled_counts_as_stored(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"))
    drain(tmp)
    push(redis, vote("b"), vote("c"))
    claim = Outlet(str(redis.socket)).claim("votes", lease=3600)
    assert claim
    assert status(tmp)[1]["votes"]["claimed"] == 2
    ask(tmp, f"INSERT INTO batches_ranges VALUES ('votes', '{claim.epoch}', 2, 3)")
    ledger = status(tmp)[1]["votes"]
    assert (ledger["claimed"], ledger["stored"], ledger["missing"]) == (0, 3, 0)


def test_a_stream_without_a_decoder_is_shown(tmp: Path, redis: Server) -> None:
    drain(tmp)
    push(redis, b"a", b"b", stream="somebody's")
    (tmp / "own.py").write_text("from sluice import OK, Route\nROUTES = {'/orders': Route('orders', OK)}\n")
    env = {"INGEST_ROUTES": tmp / "own.py"}
    code, ledger, _ = status(tmp, **env)
    assert code == 0
    assert (ledger["somebody's"]["ready"], ledger["somebody's"]["decoder"]) == (2, False)
    assert (ledger["orders"]["accepted"], ledger["orders"]["decoder"]) == (0, False)
    assert ledger["votes"]["decoder"] is True
    assert sluice(tmp, "status", **env)[1].count("no decoder") == 2


def test_whatever_the_name_of_a_stream_is_a_line_stays_one_line_that_controls_no_terminal(
    tmp: Path, redis: Server
) -> None:
    drain(tmp)
    odd = "a\x1b[31m\nb\u202e"
    push(redis, b"a", stream=odd)
    for words in (
        ("status",), ("purge", odd, "--yes"), ("purge", odd), ("release", odd), ("purge", "nosuch\x1b"),
        ("dead", "--where", "\x1b"), ("dead", "--stream", "\udcff"),
    ):  # fmt: skip
        code, out, error = sluice(tmp, *words)
        assert (out + error).replace("\n", "").isprintable() and "Traceback" not in error, (words, out, error)
        if words[0] != "status":
            assert (out + error).count("\n") == 1, (words, out, error)


def test_without_redis_the_database_is_still_shown(tmp: Path) -> None:
    with redis_server(tmp) as server:
        push(server, vote("a"), b"nonsense")
        drain(tmp)
    code, ledger, (trouble,) = status(tmp)
    assert code == 1
    assert trouble.startswith("Redis is unavailable: ")
    votes = ledger["votes"]
    assert (votes["accepted"], votes["stored"], votes["dead"], votes["missing"]) == (None, 1, 1, None)
    assert ["votes", "?", "?", "?", "1", "1", "0", "?", "?"] in [
        line.split() for line in sluice(tmp, "status")[1].splitlines()
    ]


def test_without_a_database_the_lists_are_still_shown(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"))
    code, ledger, (trouble,) = status(tmp)
    assert code == 1
    assert trouble == f"the database is unavailable: {tmp}/ingest.db: there is no database yet"
    assert (ledger["votes"]["ready"], ledger["votes"]["stored"]) == (1, None)
    (tmp / "ingest.db").write_text("somebody's letters " * 100)
    assert "not a database" in status(tmp)[2][0]


def test_bodies_that_redis_has_lost_after_they_were_stored_are_not_missing(tmp: Path, redis: Server) -> None:
    push(redis, *map(vote, range(9)))
    drain(tmp)
    push(redis, b"purged")
    assert sluice(tmp, "purge", "votes", "--yes")[0] == 0
    drain(tmp)
    with client.Redis(unix_socket_path=str(redis.socket)) as db:
        db.flushall()
    push(redis, *map(vote, range(20)))
    drain(tmp)
    code, ledger, trouble = status(tmp)
    assert (code, trouble) == (0, [])
    assert (ledger["votes"]["accepted"], ledger["votes"]["stored"], ledger["votes"]["missing"]) == (29, 29, 0)


def test_bodies_that_redis_has_lost_before_they_were_stored_are_missing(tmp: Path, redis: Server) -> None:
    inlet = Inlet(str(redis.socket), 10**9)
    for n in range(9):
        group = inlet.append("votes", vote(n))
    inlet.commit(group)
    s = settings.load_settings(environment(tmp))
    store = open_store(s.store, STREAMS)
    Publisher(Inspector(s.spool), STREAMS, s.cell, keep=False).publish(store)  # nine wait
    store.close()
    with client.Redis(unix_socket_path=str(redis.socket)) as db:
        db.flushall()
    push(redis, *map(vote, range(20)))
    drain(tmp)
    code, ledger, (trouble,) = status(tmp)
    assert (code, trouble) == (1, "votes: 9 bodies that were accepted are neither in Redis nor in the database.")
    assert (ledger["votes"]["accepted"], ledger["votes"]["stored"], ledger["votes"]["missing"]) == (29, 20, 9)


def test_a_body_that_is_nowhere_is_missing(tmp: Path, redis: Server) -> None:
    push(redis, *map(vote, range(9)))
    drain(tmp)
    push(redis, vote("a"), vote("b"))
    outlet = Outlet(str(redis.socket))
    claim = outlet.claim("votes")
    assert claim
    outlet.settle(claim)  # without having stored it
    code, ledger, (trouble,) = status(tmp)
    assert (code, ledger["votes"]["missing"]) == (1, 2)
    assert trouble == "votes: 2 bodies that were accepted are neither in Redis nor in the database."


@needs("sentinel")
def test_all_cells_of_a_database_are_shown_and_a_dead_one_can_be_forgotten(tmp: Path, redis: Server) -> None:
    store = f"sqlite:///{tmp}/ingest.db"
    (tmp / "c2").mkdir()
    with redis_server(tmp / "c2", appendfsync="no", port=(port := harness.free_port())) as other:
        for server, home, name, count in (redis, tmp, "c1", 3), (other, tmp / "c2", "c2", 5):
            push(server, *map(vote, range(count)))
            drain(home, INGEST_STORE=store, INGEST_CELL=name)
            push(server, b"x", b"x")
        s = settings.load_settings(environment(tmp / "c2", {"INGEST_STORE": store, "INGEST_CELL": "c2"}))
        own = open_store(s.store, STREAMS)
        Publisher(Inspector(s.spool), STREAMS, s.cell, keep=False).publish(own, last=True)
        own.close()
        # each has its own ledger, although the sequence numbers are the same
        assert [status(tmp)[1]["votes"][state] for state in ("accepted", "stored", "missing")] == [5, 3, 0]
        assert [status(tmp / "c2", INGEST_STORE=store)[1]["votes"][state] for state in ("accepted", "stored")] == [7, 5]
        assert sluice(tmp, "status", "--all")[0] == 0
        ask(tmp, "UPDATE batches_cells SET seen = '2026-01-01T00:00:00.000Z' WHERE cell = 'c2'")
        code, out, complaints = sluice(tmp, "status", "--all")
        assert code == 1
        assert [line.split()[0] for line in out.splitlines()] == ["cell", "c1", "c2", "all"]
        assert out.splitlines()[-1].split()[1:8] == ["10", "2", "0", "8", "0", "0", "0"]
        assert re.fullmatch(r"sluice: c2: last seen \d+ d ago, 2 bodies waiting there\.\n", complaints)
        found = json.loads(sluice(tmp, "status", "--all", "--json")[1])
        assert [(one["cell"], one["late"]) for one in found["cells"]] == [("c1", False), ("c2", True)]
        (votes,) = [row for row in found["cells"][1]["streams"] if row["stream"] == "votes"]
        assert (votes["ready"], votes["stored"]) == (2, 5)
        # a worker on another machine drains what the dead cell had accepted, and counts for it
        drain(tmp, INGEST_SPOOL=f"redis://127.0.0.1:{port}", INGEST_CELL="c1")
    code, out, complaints = sluice(tmp, "status", "--all")
    assert (code, complaints) == (0, "")
    assert out.splitlines()[2].split()[4:] == ["7", "0", "0", "5", "2", "0", "0"]
    assert out.splitlines()[3].split() == ["all", "10", "0", "0", "8", "2", "0", "0"]
    assert sluice(tmp, "status", "--forget", "c2")[0] == 0
    assert sluice(tmp, "status", "--forget", "c2")[::2] == (2, "sluice: there is no cell 'c2' in this database.\n")
    assert "c2" not in sluice(tmp, "status", "--all")[1]
    assert ask(tmp, "SELECT count(*) FROM votes") == [(8,)]


@pytest.mark.nightly
def test_two_installations_with_one_name_are_noticed_until_one_gets_another(tmp: Path, redis: Server) -> None:
    store = f"sqlite:///{tmp}/ingest.db"
    (tmp / "other").mkdir()
    with redis_server(tmp / "other", appendfsync="no") as other, contextlib.ExitStack() as programs:

        def start(home: Path, name: str) -> contextlib.AbstractContextManager[Any]:
            env = environment(home, {"INGEST_STORE": store, "INGEST_CELL": name})
            return running([sys.executable, "worker.py"], home / "worker.out", env)

        programs.enter_context(start(tmp, "c1"))
        with start(tmp / "other", "c1"):
            push(redis, *map(vote, range(3)))
            push(other, *map(vote, range(5)))
            told = "c1: another installation stores in this database under this name; "
            told += "each needs an INGEST_CELL of its own."

            def noticed(home: Path) -> bool:
                trouble = status(home, INGEST_STORE=store, INGEST_CELL="c1")[2]
                return trouble == [told] and told[:-1] in (home / "worker.out").read_text()

            for home in tmp, tmp / "other":
                poll(partial(noticed, home))
                assert told in sluice(home, "status", "--all", INGEST_STORE=store)[2]
        programs.enter_context(start(tmp / "other", "c2"))

        def alone(home: Path, name: str, bodies: int) -> bool:
            code, ledger, trouble = status(home, INGEST_STORE=store, INGEST_CELL=name)
            return (code, ledger["votes"]["accepted"], trouble) == (0, bodies, [])

        poll(partial(alone, tmp, "c1", 3))
        poll(partial(alone, tmp / "other", "c2", 5))
        assert ask(tmp, "SELECT count(*) FROM votes") == [(8,)]


def test_a_list_that_was_emptied_is_not_another_installation(tmp: Path, redis: Server) -> None:
    store = open_store(f"sqlite:///{tmp}/ingest.db", STREAMS)
    workers = [Publisher(Inspector(str(redis.socket)), STREAMS, "c1", keep=False) for _ in "12"]
    push(redis, vote(1))
    for worker in workers:
        worker.publish(store, last=True)
    with client.Redis(unix_socket_path=str(redis.socket)) as db:
        db.flushall()
    push(redis, vote(2))
    for worker in *workers, *workers:
        worker.publish(store, last=True)
        assert not worker.shared
    store.close()


@pytest.mark.nightly
def test_nothing_is_ever_missing_while_everything_runs_at_full_rate(tmp: Path) -> None:
    over = threading.Event()
    posted = [0, 0]

    def post(server: Server, thread: int) -> None:
        inlet = Inlet(str(server.socket), 10**9)
        while not over.is_set():
            for n in range(300):
                group = inlet.append("votes", b"nonsense" if n % 50 == 0 else vote(n))
            inlet.commit(group)
            assert group.refused is None
            posted[thread] += 300
            over.wait(0.002)  # the worker barely keeps up

    command = [sys.executable, ROOT / "worker.py"]
    with redis_server(tmp, appendfsync="no") as server, contextlib.ExitStack() as stack:
        drain(tmp)  # the tables
        for n in range(2):
            stack.enter_context(running(command, tmp / f"{n}.out", environment(tmp)))
        threads = [threading.Thread(target=post, args=(server, n)) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            poll(lambda: status(tmp)[1]["votes"]["stored"])
            seen = []
            for _ in range(200):
                code, ledger, trouble = status(tmp)
                votes = ledger["votes"]
                assert (code, trouble, votes["missing"]) == (0, [], 0)
                parts = [votes[state] for state in ("ready", "claimed", "stored", "dead")]
                assert sum(parts) == votes["accepted"]
                seen.append(parts)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert any(claimed for _, claimed, _, _ in seen)
        assert seen[-1][2] > seen[0][2]
        poll(lambda: status(tmp)[1]["votes"]["stored"] + status(tmp)[1]["votes"]["dead"] == sum(posted))


# dead


def test_dead_letters_are_counted_by_reason_and_the_newest_are_shown(tmp: Path, redis: Server) -> None:
    push(redis, *[b"first"] * 9, vote(""), vote(""), b"\x1b[31mred\n" + b"x" * 500, vote("fine"))
    drain(tmp)
    code, out, complaints = sluice(tmp, "dead", "--limit", "2")
    assert (code, complaints) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["letters", "stream", "reason"]
    assert lines[1].split() == ["10", "votes", "neither", "JSON", "nor", "a", "form"]
    assert lines[2].split()[:2] == ["2", "votes"]
    assert "Z  votes 12  (509 bytes)" in lines[4]
    assert lines[6].startswith("  \\x1b[31mred\\nxxx")
    assert lines[6].endswith("…")
    assert "Z  votes 11  " in lines[8]
    assert len(lines) == 11
    assert max(map(len, lines[4:])) == 80
    assert "\x1b" not in sluice(tmp, "dead", "--full")[1]
    assert "\\x1b[31mred\n" + "x" * 500 + "\n" in sluice(tmp, "dead", "--full", "--limit", "1")[1]


def test_dead_letters_as_json(tmp: Path, redis: Server) -> None:
    push(redis, "ä".encode(), b"\xff\x00", vote("") + b"\n" + vote("a"))
    drain(tmp)
    code, out, _ = sluice(tmp, "dead", "--json")
    found = json.loads(out)
    assert code == 0
    assert {"stream": "votes", "reason": "neither JSON nor a form", "letters": 2} in found["counts"]
    part, binary, text = found["letters"]
    assert (text["body"], text["seq"], text["whole"]) == ("ä", 1, True)
    assert binary["body_base64"] == "/wA="
    assert (part["body"], part["whole"], part["stream"]) == (vote("").decode(), False, "votes")
    assert text["received_at"] == ask(tmp, "SELECT received_at FROM dead_letters WHERE seq = 1")[0][0]


def test_dead_letters_are_chosen_by_stream_and_condition(tmp: Path, redis: Server) -> None:
    push(redis, b"1", b"2", b"3")
    push(redis, b"4", stream="gps")
    drain(tmp)

    def chosen(*words: str) -> list[str]:
        return [x["body"] for x in json.loads(sluice(tmp, "dead", "--json", *words)[1])["letters"]]

    assert sorted(chosen()) == ["1", "2", "3", "4"]
    assert chosen("--stream", "gps") == ["4"]
    known = f'sluice: there is no stream "it\'s"; there are {", ".join(sorted(STREAMS))}.\n'
    for verb in "dead", "replay":
        code, out, complaint = sluice(tmp, verb, "--stream", "it's")
        assert (code, out, complaint) == (2, "", known)
    assert sluice(tmp, "dead", "--stream", "metrics")[:2] == (0, "There are no dead letters that match.\n")
    assert chosen("--where", "seq = 1 OR seq = 3", "--stream", "votes") == ["3", "1"]
    assert chosen("--where", "seq > 1 -- not the first") == ["3", "2"]


@pytest.mark.parametrize("words", [("dead", "--limit"), ("peek", "votes", "--limit"), ("tail", "votes", "--count")])
def test_a_number_below_0_is_refused(words: tuple[str, ...], tmp: Path) -> None:
    code, _, complaint = sluice(tmp, *words, "-1")
    assert code == 2
    assert complaint.endswith("expected a number of at least 0 with at most 18 digits, not '-1'\n")


def test_a_body_is_shown_without_the_head_that_its_path_keeps(tmp: Path, redis: Server) -> None:
    item = b"POST /write?p=secret HTTP/1.1\r\nHost: h\r\n\r\nno line"
    push(redis, item, stream="metrics")
    assert sluice(tmp, "peek", "metrics")[1] == "1  ready    no line\n"
    assert "secret" in sluice(tmp, "peek", "metrics", "--full")[1]
    drain(tmp)
    out = sluice(tmp, "dead")[1]
    assert out.endswith("\n  no line\n") and "secret" not in out
    assert "secret" in sluice(tmp, "dead", "--full")[1]


def test_the_last_rows_and_dead_letters_of_a_stream_are_shown(tmp: Path, redis: Server) -> None:
    drain(tmp)
    assert sluice(tmp, "rows", "votes")[:2] == (0, "The table votes has no rows.\n")
    kept = b"POST /votes?p=secret HTTP/1.1\r\nHost: h\r\n\r\nnonsense\x1b[31m"
    push(redis, *map(vote, range(12)), vote("\x1b[31m" + "x" * 90), kept)
    drain(tmp)
    code, out, _ = sluice(tmp, "rows", "votes")
    head, *lines = out.splitlines()
    assert (code, head.split()[:4]) == (0, ["received_at", "time", "poll", "choice"])
    assert "\\x1b[31mxxx" in lines[0] and lines[0].split()[3].endswith("x…")
    assert [line.split()[3] for line in lines[1:10]] == [str(n) for n in range(11, 2, -1)]
    assert lines[-1].split("  ")[1:] == ["neither JSON nor a form", "nonsense\\x1b[31m"]
    assert "secret" not in out and "\x1b" not in out
    (newest,) = map(json.loads, sluice(tmp, "rows", "votes", "--json", "--limit", "1")[1].splitlines())
    assert (newest["poll"], newest["choice"]) == ("p", "\x1b[31m" + "x" * 90)
    assert "\nchoice: \\x1b[31m" + "x" * 90 + "\n" in sluice(tmp, "rows", "votes", "--full")[1]
    assert sluice(tmp, "rows", "nosuch")[0] == sluice(tmp, "rows", "votes", "--limit", "1001")[0] == 2


def test_large_letters_are_all_listed(tmp: Path, redis: Server) -> None:
    push(redis, *[b"x" * 1_000_000] * 12)
    drain(tmp)
    assert sluice(tmp, "dead", "--limit", "11")[1].count("(1000000 bytes)") == 11


@pytest.mark.parametrize("verb", ["dead", "replay"])
def test_an_invalid_condition_is_reported_in_one_line_and_changes_nothing(verb: str, tmp: Path, redis: Server) -> None:
    push(redis, b"1", b"2")
    drain(tmp)
    for where in ("", "nope", "seq =", "1; DELETE FROM dead_letters", DEADLY):
        code, out, complaints = sluice(tmp, verb, "--where", where)
        assert (code, out, complaints.count("\n")) == (2, "", 1)
        assert complaints.startswith("sluice: --where: not a condition on dead letters: ")
    assert ask(tmp, "SELECT count(*) FROM dead_letters") == [(2,)]


@pytest.mark.parametrize("verb", ["dead", "replay"])
def test_an_unavailable_database_is_reported_in_one_line_with_status_1(verb: str, tmp: Path) -> None:
    code, out, complaints = sluice(tmp, verb)
    assert (code, complaints) == (
        1,
        f"sluice: the database is unavailable: {tmp}/ingest.db: there is no database yet\n",
    )
    assert not (tmp / "ingest.db").exists()


@pytest.mark.parametrize("verb", ["dead", "replay"])
def test_no_dead_letters_is_reported(verb: str, tmp: Path, redis: Server) -> None:
    push(redis, vote("a"))
    drain(tmp)
    code, out, _ = sluice(tmp, verb)
    assert (code, out.count("\n")) == (0, 1)
    assert "no " in out


# replay


def test_a_replay_stores_valid_letters_and_keeps_the_others(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"), *[b"%d" % n for n in range(1, 15)], b"x")
    drain(tmp)
    env = mended(tmp)
    before = ask(tmp, "SELECT * FROM dead_letters")
    code, out, complaints = sluice(tmp, "replay", "--dry-run", **env)
    assert (code, complaints) == (1, "")
    assert out.splitlines()[0] == "15 letters: 12 would be stored (12 records), 3 would still be dead"
    assert ask(tmp, "SELECT * FROM dead_letters") == before

    code, out, _ = sluice(tmp, "replay", "--where", "seq < 5", **env)
    assert (code, out) == (0, "3 letters: 3 stored (3 records), 0 still dead\n")
    code, out, _ = sluice(tmp, "replay", **env)
    assert code == 1
    assert [line.split(maxsplit=1) for line in out.splitlines()] == [
        ["12", "letters: 9 stored (9 records), 3 still dead"],
        ["letters", "reason"],
        ["2", "a seventh"],
        ["1", "not a number"],
    ]
    assert [row[0] for row in ask(tmp, "SELECT choice FROM votes ORDER BY seq")] == [
        "a",
        *(str(n) for n in range(1, 15) if n % 7),
    ]
    assert ask(tmp, "SELECT seq, reason FROM dead_letters ORDER BY seq") == [
        (8, "a seventh"),
        (15, "a seventh"),
        (16, "not a number"),
    ]
    ledger = status(tmp)[1]["votes"]
    assert (ledger["accepted"], ledger["stored"], ledger["dead"], ledger["missing"]) == (16, 13, 3, 0)


def test_a_replay_decodes_each_letter_once(tmp: Path, redis: Server) -> None:
    push(redis, *[b"x%d" % n for n in range(1000)])
    drain(tmp)
    code, out, _ = sluice(tmp, "replay", **mended(tmp))
    assert code == 1
    assert out.splitlines()[0] == "1000 letters: 0 stored (0 records), 1000 still dead"
    assert ask(tmp, "SELECT count(*), count(DISTINCT body) FROM dead_letters") == [(1000, 1000)]


def test_letters_of_a_stream_without_a_decoder_are_unchanged(tmp: Path, redis: Server) -> None:
    (tmp / "own.py").write_text(MENDED.replace('"votes"', '"items"'))
    push(redis, b"x", b"y", stream="items")
    push(redis, b"z")
    drain(tmp, INGEST_RECORDS=tmp / "own.py")
    before = ask(tmp, "SELECT * FROM dead_letters WHERE stream = 'items'")
    assert len(before) == 2
    code, out, _ = sluice(tmp, "replay")
    assert code == 1
    assert "2 letters of the stream items unchanged: it has no decoder.\n" in out
    assert out.startswith("1 letter: ")
    assert ask(tmp, "SELECT * FROM dead_letters WHERE stream = 'items'") == before
    code, out, _ = sluice(tmp, "replay", "--stream", "items")
    assert (code, out) == (1, "2 letters of the stream items unchanged: it has no decoder.\n")


def test_a_decoder_that_raises_keeps_its_letter(tmp: Path, redis: Server) -> None:
    push(redis, b"1", b"2")
    drain(tmp)
    (tmp / "broken.py").write_text(MENDED.replace("    if not", "    if body == b'1': raise RuntimeError\n    if not"))
    code, out, _ = sluice(tmp, "replay", INGEST_RECORDS=tmp / "broken.py")
    assert code == 1
    assert "the decoder failed: RuntimeError" in out
    assert ask(tmp, "SELECT choice FROM votes") == [("2",)]
    assert ask(tmp, "SELECT body FROM dead_letters") == [(b"1",)]


@pytest.mark.nightly
def test_a_killed_replay_loses_and_duplicates_nothing(tmp: Path, redis: Server) -> None:
    for start in range(0, 6_000, 1_000):
        push(redis, *[b"%d" % n for n in range(start, start + 1_000)])
    drain(tmp)
    env = environment(tmp, mended(tmp))
    chance = random.Random(3)
    kills = 0

    def stored() -> int:
        return ask(tmp, "SELECT count(*) FROM votes")[0][0]

    for _ in range(100):
        before = stored()
        with running([ROOT / "bin/sluice", "replay"], tmp / "replay.out", env) as process:
            poll(lambda before=before, process=process: stored() > before or process.poll() is not None)  # type: ignore[misc]
            time.sleep(chance.random() / 30)
            kills += process.poll() is None
            process.kill()
            process.wait()
        found = ask(
            tmp, "SELECT CAST(choice AS INTEGER) FROM votes UNION ALL SELECT CAST(body AS TEXT) FROM dead_letters"
        )
        assert sorted(int(n) for (n,) in found) == list(range(6_000))
        if before == stored():
            break
    assert kills > 3
    assert [n for (n,) in ask(tmp, "SELECT CAST(choice AS INTEGER) FROM votes ORDER BY 1")] == [
        n for n in range(6_000) if n % 7
    ]
    assert status(tmp)[1]["votes"]["missing"] == 0


def test_two_concurrent_replays_duplicate_nothing(tmp: Path, redis: Server) -> None:
    push(redis, *[b"%d" % n for n in range(5_000)])
    drain(tmp)
    env = environment(tmp, mended(tmp))
    both = [
        subprocess.Popen([ROOT / "bin/sluice", "replay"], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert sum(int(out.split("letters: ")[1].split()[0]) for out in said if "letters: " in out) == sum(
        1 for n in range(5_000) if n % 7
    )
    found = ask(tmp, "SELECT CAST(choice AS INTEGER) FROM votes UNION ALL SELECT CAST(body AS TEXT) FROM dead_letters")
    assert sorted(int(n) for (n,) in found) == list(range(5_000))


@pytest.mark.nightly
def test_an_interrupted_replay_reports_its_progress(tmp: Path, redis: Server) -> None:
    for start in range(0, 100_000, 5_000):
        push(redis, *[b"%d" % n for n in range(start, start + 5_000)])
    drain(tmp)
    with running([ROOT / "bin/sluice", "replay"], tmp / "replay.out", environment(tmp, mended(tmp))) as process:
        poll(lambda: ask(tmp, "SELECT count(*) FROM votes") > [(0,)])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    said = (tmp / "replay.out").read_text()
    assert "sluice: interrupted; the remaining letters are unchanged\n" in said
    stored = int(said.split("letters: ")[1].split()[0])
    assert ask(tmp, "SELECT count(*) FROM votes") == [(stored,)]


def test_a_replay_waits_for_a_locked_database_and_then_gives_up(tmp: Path, redis: Server) -> None:
    push(redis, b"1")
    drain(tmp)
    with contextlib.closing(apsw.Connection(str(tmp / "ingest.db"))) as db:
        db.execute("BEGIN IMMEDIATE")
        code, out, complaints = sluice(tmp, "replay", **mended(tmp))
        assert (code, complaints) == (1, f"sluice: the database is unavailable: {tmp}/ingest.db: database is locked\n")
        # readers do not wait
        assert sluice(tmp, "dead")[0] == 0
        assert status(tmp)[0] == 0
    assert ask(tmp, "SELECT count(*) FROM dead_letters") == [(1,)]


@needs("postgres")
def test_the_missing_bodies_are_not_written_off_while_the_database_does_not_tell_what_is_stored(
    tmp: Path, redis: Server
) -> None:
    push(redis, vote("a"))
    drain(tmp)
    away = {"INGEST_STORE": f"postgresql://127.0.0.1:{harness.free_port()}/away"}
    code, out, complaints = sluice(tmp, "purge", "votes", "--missing", "--yes", **away)
    assert (code, out) == (1, "") and "database" in complaints
    assert sluice(tmp, "purge", "votes", "--missing", "--yes") == (0, "votes: no body is missing.\n", "")


def test_undrain_says_what_to_look_at_if_nothing_answers(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undrain, "PATIENCE_SECONDS", 0.2)
    (tmp / "run").mkdir(exist_ok=True)
    asked = "/readyz does not answer 200: does bin/up run here, and does Redis accept writes?"
    assert sluice(tmp, "undrain") == (1, "", f"sluice: {asked}\n")


def test_bury_takes_sequence_numbers_only(tmp: Path) -> None:
    code, out, complaints = sluice(tmp, "bury", "votes", "x", "--yes")
    assert (code, out) == (2, "") and "no sequence number" in complaints


def test_bury_of_a_body_that_is_not_claimed_ends_with_status_2(tmp: Path, redis: Server) -> None:
    push(redis, vote("a"))
    assert Outlet(str(redis.socket)).claim("votes", lease=3600)
    assert sluice(tmp, "bury", "--yes", "votes", "99999") == (2, "", "sluice: votes: no body 99999 is claimed.\n")


@pytest.mark.parametrize("words", [("votes",), ("--stream", "votes")])
def test_letters_of_one_stream_are_named_as_for_other_verbs(words: tuple[str, ...], tmp: Path, redis: Server) -> None:
    push(redis, b"of votes")
    push(redis, b"of gps", stream="gps")
    drain(tmp)
    code, out, _ = sluice(tmp, "dead", *words)
    assert code == 0 and "of votes" in out and "of gps" not in out
    assert sluice(tmp, "replay", *words)[1].startswith("1 letter: 0 stored")


def test_a_replay_whose_letters_another_one_takes_ends_with_status_1(tmp: Path, redis: Server) -> None:
    push(redis, b"1", b"2")
    drain(tmp)
    take = f"    apsw.Connection('{tmp}/ingest.db').execute('DELETE FROM dead_letters')\n    if not"
    (tmp / "own.py").write_text("import apsw\n" + MENDED.replace("    if not", take))
    code, out, _ = sluice(tmp, "replay", INGEST_RECORDS=tmp / "own.py")
    assert (code, out) == (1, "2 letters gone meanwhile: another replay has taken them, for example.\n")


def test_discard_deletes_the_letters_of_answered_bodies_or_those_that_match(tmp: Path, redis: Server) -> None:
    push(redis, b"odd", vote("a"), b"bad", b"worse")
    drain(tmp)
    with contextlib.closing(apsw.Connection(str(tmp / "ingest.db"))) as db:
        db.execute("UPDATE dead_letters SET reason = 'duplicate: of the test' WHERE seq = 1")
    assert sluice(tmp, "discard", "nowhere")[0] == 2
    code, out, _ = sluice(tmp, "discard", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "1 dead letters deleted")
    assert ask(tmp, "SELECT seq FROM dead_letters ORDER BY seq") == [(3,), (4,)]
    assert sluice(tmp, "discard", "--yes")[:2] == (0, "There are no dead letters that match.\n")
    code, out, _ = sluice(tmp, "discard", "votes", "--yes", "--where", "seq = 3")
    assert (code, ask(tmp, "SELECT seq FROM dead_letters")) == (0, [(4,)])
    code, ledger, trouble = status(tmp)
    votes = ledger["votes"]
    assert (code, trouble) == (0, [])
    assert [votes[key] for key in ("accepted", "stored", "dead", "expired", "missing")] == [4, 1, 1, 2, 0]


def test_an_overdraft_is_trouble_and_can_be_taken_back(tmp: Path, redis: Server) -> None:
    """As after `purge --missing` that looked at another database."""
    push(redis, vote("a"), vote("b"), b"bad")
    drain(tmp)
    Inspector(str(redis.socket)).write_off("votes", 3)
    code, ledger, trouble = status(tmp)
    assert (code, ledger["votes"]["missing"]) == (1, -3)
    assert trouble == ["votes: 3 bodies more are counted than were accepted: as purged by mistake, for example."]
    assert sluice(tmp, "purge", "--missing", "--yes", "votes")[0] == 0
    assert status(tmp)[0] == 0
