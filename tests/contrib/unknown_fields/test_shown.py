"""Through a whole installation: what no column has is shown, and kept where INGEST_EXTRA says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proving.harness import ask, get, installation, poll, post
from support import operator_verbs

pytestmark = pytest.mark.nightly
LINE = "of 1 bodies examined, fields that no column has: comment (1)."


def test_unknown_fields_are_shown_everywhere_and_kept_where_asked(tmp: Path) -> None:
    with installation(tmp / "home", {"INGEST_EXTRA": "votes"}) as up:
        assert post(up.port, "/votes", b'{"poll":"p","choice":"c","comment":"so"}')[0] == 200
        assert post(up.port, "/gps", b'{"device":"d","lat":1,"lon":2,"comment":"so"}')[0] == 200
        poll(lambda: ask(up.home, "SELECT extra FROM votes") == [('{"comment":"so"}',)])
        poll(lambda: f"gps: {LINE}\n" in operator_verbs.sluice(up.home, "status")[1])
        assert operator_verbs.sluice(up.home, "status")[1].count("examined") == 1  # nothing of votes is left out
        rows = [{"stream": "gps", "field": "comment", "bodies": 1, "examined": 1}]
        poll(lambda: json.loads(get(up.port, "/status/status.json")[2])["unknown_fields"] == rows)
        assert "gps     comment       1         1" in operator_verbs.sluice(up.home, "errors")[1]
        figures = get(up.port, "/status/metrics")[2].decode()
        assert 'sluice_unknown_fields_total{field="comment",stream="gps"} 1.0' in figures
