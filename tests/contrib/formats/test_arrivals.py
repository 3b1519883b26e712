"""What real senders send, as it arrives: through a gateway and a worker. arrivals.json has a case for each."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client

from proving.harness import ROOT, Answer, ask, environment, gateway, post, redis_server, short_tmp
from sluice.routes import ROUTES
from support.table_of_cases import check_each_row

pytestmark = pytest.mark.contract

CASES = json.loads(Path(__file__).with_name("arrivals.json").read_text())
POSTS = [case for case in CASES if case["method"] == "POST"]  # nginx makes a POST of a GET (tests/nginx)


@pytest.fixture(scope="module")
def arrived() -> Iterator[tuple[Path, dict[str, tuple[Answer, str, int]], Any]]:
    """The directory of the database; for each case the answer, the stream and the number of the body; the counts."""
    answers: dict[str, tuple[Any, str, int]] = {}
    counts: dict[str, int] = {}
    with short_tmp() as tmp, redis_server(tmp, appendfsync="no") as redis:
        with gateway(tmp, redis) as server:
            for case in POSTS:
                body = base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()
                stream = ROUTES[case["path"].partition("?")[0]].stream
                counts[stream] = counts.get(stream, 0) + 1
                answers[case["name"]] = post(server.socket, case["path"], body, case["headers"]), stream, counts[stream]
        env = environment(tmp, {"INGEST_SPOOL": redis.socket})
        subprocess.run([sys.executable, "worker.py", "burst"], env=env, cwd=ROOT, timeout=120, check=False)
        with client.Redis(unix_socket_path=str(redis.socket), decode_responses=True) as db:
            counted = db.hgetall("ingest:counts")
        yield tmp, answers, counted


@check_each_row("case", POSTS)
def test_what_a_sender_sends_arrives(case: dict[str, Any], arrived: Any) -> None:
    tmp, answers, _ = arrived
    answer, stream, seq = answers[case["name"]]
    assert answer[0] == case["status"]
    letters = ask(tmp, "SELECT reason FROM dead_letters WHERE stream = ? AND seq = ?", stream, seq)
    assert len(letters) == case["dead_letters"], letters
    if case["sql"]:
        assert [list(row) for row in ask(tmp, case["sql"])] == case["rows"]


def test_messages_without_rows_are_stored_and_counted(arrived: Any) -> None:
    tmp, answers, counted = arrived
    assert {counted[f"without_rows gps {kind}"] for kind in ("lwt", "status", "waypoint", "trip")} == {"1"}
    for stream in {stream for _, stream, _ in answers.values()}:
        bodies = max(seq for _, of, seq in answers.values() if of == stream)
        assert ask(tmp, "SELECT sum(bodies) FROM batches WHERE stream = ?", stream) == [(bodies,)]
