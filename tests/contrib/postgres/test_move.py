"""bin/sluice move: from SQLite to PostgreSQL, with rows, dead letters, keys and the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import installation, poll, post, redis_server
from proving.postgres import Postgres, postgres_server
from support.operator_verbs import drain, push, sluice, status, vote

pytestmark = pytest.mark.contract

METRICS = [
    {"name": "room", "value": 21.5, "tags": {"floor": "2", "ä": '"'}, "time": "2026-01-31T12:00:00.123456789Z"},
    {"name": "room", "value": "open\t\\N", "time": "2026-01-31T12:00:00Z"},
    {"name": "room", "value": True},
    {"name": "room", "value": 2**60},
]


@pytest.fixture
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as running:
        yield running


def rows(tmp: Path, stream: str, **env: object) -> list[dict[str, str | None]]:
    return [json.loads(line) for line in sluice(tmp, "rows", stream, "--json", **env)[1].splitlines()]


def test_rows_letters_keys_and_the_ledger_are_moved_and_a_repeat_is_still_one(tmp: Path, server: Postgres) -> None:
    there = {"INGEST_STORE": server.url, "INGEST_KEEP": "3650d,votes=forever"}
    keyed = b"POST /votes HTTP/1.1\r\nIdempotency-Key: k1\r\n\r\n" + vote("once")
    with redis_server(tmp, appendfsync="no") as redis:
        push(redis, vote("ä\\\n\t"), b"nonsense \xff\x00", keyed)
        push(redis, b'{"device":"bike","lat":48.1,"lon":-1e-7,"time":"2026-01-31T12:00:00.5Z"}', stream="gps")
        push(redis, *(json.dumps(each).encode() for each in METRICS), stream="metrics")
        drain(tmp)
        before = {stream: rows(tmp, stream) for stream in ("votes", "gps", "metrics")}
        assert [len(found) for found in before.values()] == [2, 1, 4]
        push(redis, keyed, vote("later"))  # they wait during the move
        code, out, said = sluice(tmp, "move", f"{tmp}/ingest.db", **there)
        assert (code, said) == (0, "")
        assert {"votes: 2 rows", "metrics: 4 rows", "dead_letters: 1 rows"} <= set(out.splitlines())
        drain(tmp, **there)
        code, ledger, trouble = status(tmp, **there)
        assert (code, trouble) == (0, [])
        votes = ledger["votes"]
        assert [votes[name] for name in ("accepted", "stored", "dead", "duplicate", "missing")] == [5, 3, 1, 1, 0]
        assert [row["choice"] for row in rows(tmp, "votes", **there)] == ["later", "once", "ä\\\n\t"]
        (letter,) = json.loads(sluice(tmp, "dead", "--json", **there)[1])["letters"]
        assert (letter["body_base64"], letter["seq"]) == ("bm9uc2Vuc2Ug/wA=", 2)
        push(redis, b"nonsense, too")  # ids go on
        drain(tmp, **there)
        assert status(tmp, **there)[0] == 0
    ask = "SELECT name, tags, value, text, type, time, nanoseconds FROM metrics ORDER BY seq"
    found = server.ask(ask)
    assert [(row[2], row[3]) for row in found] == [(21.5, None), (None, "open\t\\N"), (1, None), (2**60, None)]
    assert found[0][6] == 789 and "12:00:00.123456" in str(found[0][5])
    position = rows(tmp, "gps", **there)[0]
    assert (position["lat"], position["lon"], position["time"]) == ("48.1", "-1e-07", "2026-01-31T12:00:00.500000Z")
    # a second time it is refused, and so is another cell's file
    assert sluice(tmp, "move", f"{tmp}/ingest.db", **there)[0] == 1
    assert sluice(tmp, "move", f"{tmp}/ingest.db")[0] == 2


@pytest.mark.nightly
def test_a_cell_goes_on_in_postgresql_with_the_rows_of_sqlite(tmp: Path, server: Postgres) -> None:
    there = {"INGEST_STORE": server.url}
    with installation(tmp) as up:
        for n in range(50):
            assert post(up.port, "/votes", vote(n))[0] == 200
        poll(lambda: len(rows(tmp, "votes")) == 10)
        code, _, said = sluice(tmp, "move", f"{tmp}/ingest.db", **there)
        assert code == 1 and said.startswith(f"sluice: bin/up runs in {tmp}: stop it first")
    assert sluice(tmp, "move", f"{tmp}/ingest.db", **there)[::2] == (0, "")
    with installation(tmp, there) as up:
        for n in range(50, 60):
            assert post(up.port, "/votes", vote(n))[0] == 200
        poll(lambda: server.ask("SELECT count(*) FROM votes") == [(60,)])
        code, ledger, _ = status(tmp, **there)
        assert (code, ledger["votes"]["stored"], ledger["votes"]["missing"]) == (0, 60, 0)
