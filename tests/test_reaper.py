"""tests/reaper.py: what a command has started ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import ROOT, poll

pytestmark = pytest.mark.contract
# a program in a session of its own
LEAVING = "setsid sleep 1000 & echo $! >PID; until grep -qs sleep /proc/$!/comm; do :; done; "


def reaped(tmp: Path, script: str, *options: str) -> subprocess.Popen[str]:
    script = LEAVING.replace("PID", f"{tmp}/pid") + script
    command = [sys.executable, str(ROOT / "tests/reaper.py"), *options, "bash", "-c", script]
    # a shell that starts the tests with & makes them ignore SIGINT
    return subprocess.Popen(["env", "--default-signal=INT", *command], stderr=subprocess.PIPE, text=True)


def has_ended(tmp: Path) -> bool:
    return not Path(f"/proc/{int((tmp / 'pid').read_text())}").exists()


def test_a_program_that_was_left_is_killed_and_named(tmp: Path) -> None:
    process = reaped(tmp, "exit 3")
    assert process.communicate(timeout=60) == (None, "killed at the end, because the tests left them: sleep\n")
    assert process.returncode == 3 and has_ended(tmp)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_all_that_it_started(tmp: Path, number: signal.Signals) -> None:
    process = reaped(tmp, f": >{tmp}/ready; exec sleep 1000")  # a shell that waits for a child misses SIGINT
    poll((tmp / "ready").exists)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number and has_ended(tmp)


def test_a_command_that_lasts_too_long_is_killed_with_all_that_it_started(tmp: Path) -> None:
    process = reaped(tmp, "sleep 1000", "--until", "2")
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 124 and said.startswith("not ended after 2 s: bash") and has_ended(tmp)
