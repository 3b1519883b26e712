"""Replays the corpus that `bin/fuzz` saved: it covers every branch that the fuzzer ever reached."""

from __future__ import annotations

import subprocess
import sys

import pytest

from proving.harness import ROOT
from support.folders import needs

pytestmark = [pytest.mark.nightly, needs("formats")]

CORPUS = ROOT / "tests/fuzz/corpus"
TARGETS = sorted(file.stem for file in CORPUS.iterdir())


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests/fuzz/run.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_causes_no_crash_hang_disagreement_or_growth_above_64_mib(target: str) -> None:
    done = run("--replay", target)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} {done.stderr}"
    assert len(done.stdout.splitlines()) == len((CORPUS / f"{target}.txt").read_text().splitlines())


def test_every_target_has_a_corpus_of_limited_size() -> None:
    assert run("nonsense").stderr == f"Usage: bin/fuzz [all|{'|'.join(TARGETS)} [SECONDS]]\n"
    texts = [file.read_text() for file in CORPUS.iterdir()]
    assert sum(text.count("\n") for text in texts) < 1000
    assert sum(map(len, texts)) < 1 << 20
