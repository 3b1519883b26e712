"""The harness itself: what its servers may rely on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from proving.harness import ROOT, free_port

pytestmark = pytest.mark.contract

ASK = "from proving.harness import free_port; print(*(free_port() for _ in range(400)), flush=True); input()"


@pytest.mark.nightly
def test_no_two_processes_get_the_same_port() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", ASK], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    own = [free_port() for _ in range(400)]
    for process in processes:
        assert process.stdout
        own += map(int, process.stdout.readline().split())
    for process in processes:
        process.communicate(b"\n", 10)
    assert (len(own), len(set(own))) == (1200, 1200)
