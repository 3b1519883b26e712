""".ci/run: what fails once is listed by name, what fails twice is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import ROOT

pytestmark = pytest.mark.contract

TESTS = """
import pathlib
def test_good(): pass
def test_bad(): assert {bad}
def test_flaky():
    path = pathlib.Path(__file__).with_name("seen")
    if not path.exists():
        path.touch()
        raise AssertionError
"""
TEST = """#!/bin/bash
if [[ ${1:-} == --lint ]]; then exit; fi
.venv/bin/python -m pytest "$@"
"""


def run(tmp: Path, tests: str) -> tuple[int, str]:
    """A checkout in which `bin/test` runs these tests. Returns: the exit status of .ci/run, and its output."""
    files = {
        "bin/provision": "#!/bin/bash\n",
        "bin/test": TEST,
        ".venv/bin/python": f'#!/bin/bash\n{sys.executable} "$@"',
    }
    for name, text in files.items():
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp / name).write_text(text)
        (tmp / name).chmod(0o755)
    (tmp / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp / ".ci/run")
    (tmp / "test_some.py").write_text(tests)
    done = subprocess.run(["bash", ".ci/run"], cwd=tmp, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def test_a_test_that_fails_once_is_listed_as_flaky(tmp: Path) -> None:
    status, output = run(tmp, TESTS.format(bad=True))
    assert (status, output.splitlines()[-2:]) == (0, ["flaky: 1", "    test_some.py::test_flaky"])


def test_a_test_that_fails_twice_fails_the_run(tmp: Path) -> None:
    status, output = run(tmp, TESTS.format(bad=False))
    assert (status, output.splitlines()[-2:]) == (1, ["flaky: 1", "    test_some.py::test_flaky"])


def test_nothing_is_flaky_if_nothing_fails(tmp: Path) -> None:
    status, output = run(tmp, "def test_good(): pass\n")
    assert (status, output.splitlines()[-1]) == (0, "flaky: 0")
