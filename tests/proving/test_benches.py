"""The benchmarks run: their peers start, and are measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from proving import figures, harness

PEERS = "webdis|InfluxDB|VictoriaMetrics"  # each has a path of its own behind nginx


@pytest.mark.nightly
def test_the_peers_of_other_paths_are_measured(tmp_path: Path) -> None:
    command = [str(harness.ROOT / "bench/peers"), "--quick", "--only", PEERS, "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = tmp_path.glob("peers*.md")
    measured = figures.read_tables(result)["64 connections, 80 B, no"]
    assert {"Sluice, CPython", "webdis", "VictoriaMetrics /write"} <= measured.keys()
    assert {row["errors"] for row in measured.values()} == {"0"}
