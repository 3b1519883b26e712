"""bin/sluice move with a whole installation: a cell goes on in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving.harness import installation, poll, post
from proving.postgres import postgres_server
from support.operator_verbs import sluice, status, vote

pytestmark = pytest.mark.nightly


def test_a_cell_goes_on_in_postgresql_with_the_rows_of_sqlite(tmp: Path) -> None:
    with postgres_server(fsync="off") as server:
        there = {"INGEST_STORE": server.url}
        with installation(tmp) as up:
            for n in range(50):
                assert post(up.port, "/votes", vote(n))[0] == 200
            poll(lambda: len(sluice(tmp, "rows", "votes", "--json")[1].splitlines()) == 10)
            code, _, said = sluice(tmp, "move", f"{tmp}/ingest.db", **there)
            assert code == 1 and said.startswith(f"sluice: bin/up runs in {tmp}: stop it first")
        assert sluice(tmp, "move", f"{tmp}/ingest.db", **there)[::2] == (0, "")
        with installation(tmp, there) as up:
            for n in range(50, 60):
                assert post(up.port, "/votes", vote(n))[0] == 200
            poll(lambda: server.ask("SELECT count(*) FROM votes") == [(60,)])
            code, ledger, _ = status(tmp, **there)
            assert (code, ledger["votes"]["stored"], ledger["votes"]["missing"]) == (0, 60, 0)
