"""proving.histories: the product keeps its promises in every history, and a planted fault is found.

`bin/test --nightly tests/contrib/test_histories.py --histories 10000` runs more of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from proving.harness import ROOT
from proving.histories.plants import PLANTS

pytestmark = pytest.mark.contract


def histories(*options: object, patience: float = 600.0) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("lupa")
    return subprocess.run(
        [sys.executable, "-m", "proving.histories", *map(str, options)],
        cwd=ROOT, capture_output=True, text=True, timeout=patience, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def test_the_first_histories_show_nothing_wrong() -> None:
    done = histories("--seeds", "1-5")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(133, id="what a destination refused hid what waited of another worker"),
        pytest.param(207860297, id="a worker that stopped ended the lease of another one"),
    ],
)
def test_a_history_that_found_a_fault_shows_nothing_wrong_now(seed: int) -> None:
    done = histories("--seed", seed)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


def test_a_seed_gives_the_same_history_byte_for_byte() -> None:
    first, second = histories("--seed", 6), histories("--seed", 6)
    assert "acknowledged" in first.stdout
    assert first.stdout == second.stdout


@pytest.mark.nightly
def test_new_histories_show_nothing_wrong(request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--histories")
    first = int(time.time()) // 86_400 * 10_000
    done = histories("--seeds", f"{first}-{first + count - 1}", patience=30.0 * count)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    done = histories("--seeds", "1-300", "--first", "--plant", name)
    print(done.stdout, done.stderr)
    assert done.returncode == 1
    assert re.search(r"^seed \d+ \(", done.stdout, re.MULTILINE)


@pytest.mark.nightly
def test_a_failing_history_shrinks_to_steps_that_still_fail() -> None:
    found = histories("--seeds", "1-300", "--first", "--plant", "key-window-halved").stdout
    seed = re.findall(r"^seed (\d+) \(", found, re.MULTILINE)[0]
    options = "--seed", seed, "--plant", "key-window-halved"
    shrunk = histories(*options, "--shrink")
    assert shrunk.returncode == 1, shrunk.stdout + shrunk.stderr
    (kept,) = re.findall(r"--only ([\d,]+)", shrunk.stdout)
    assert len(kept.split(",")) < 6
    again = histories(*options, "--only", kept)
    assert "WRONG: " in again.stdout
    assert again.stdout == shrunk.stdout.partition("\n")[2]
