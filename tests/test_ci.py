""".ci/run: what fails once is listed by name, what fails twice is broken; which nightly tests a change needs."""

from __future__ import annotations

import os
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


def copy(tmp: Path) -> None:
    for name in ".ci/run", "tests/reaper.py":
        (tmp / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp / name)


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
    (tmp / "test_some.py").write_text(tests)
    copy(tmp)
    done = subprocess.run(["bash", ".ci/run"], cwd=tmp, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


@pytest.mark.nightly
def test_a_test_that_fails_once_is_listed_as_flaky(tmp: Path) -> None:
    status, output = run(tmp, TESTS.format(bad=True))
    assert (status, output.splitlines()[-2:]) == (0, ["flaky: 1", "    test_some.py::test_flaky"])


@pytest.mark.nightly
def test_a_test_that_fails_twice_fails_the_run(tmp: Path) -> None:
    status, output = run(tmp, TESTS.format(bad=False))
    assert (status, output.splitlines()[-2:]) == (1, ["flaky: 1", "    test_some.py::test_flaky"])


@pytest.mark.nightly
def test_nothing_is_flaky_if_nothing_fails(tmp: Path) -> None:
    status, output = run(tmp, "def test_good(): pass\n")
    assert (status, output.splitlines()[-1]) == (0, "flaky: 0")


def chosen(tmp: Path, *paths: str, base: str = "") -> set[str]:
    """The nightly tests that run if the last commit touches these paths."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@a.example"]
    if not (tmp / ".git").exists():
        copy(tmp)
        subprocess.run([*git, "init", "-q"], cwd=tmp, check=True)
        for name in "contrib/kafka/test_kafka.py", "spool/test_power.py", "run/test_up.py", "proving/test_benches.py":
            (tmp / "tests" / name).parent.mkdir(parents=True)
            (tmp / "tests" / name).touch()
    for path in paths:
        (tmp / path).parent.mkdir(parents=True, exist_ok=True)
        with open(tmp / path, "a") as file:
            file.write("changed\n")
    subprocess.run([*git, "add", "."], cwd=tmp, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "some"], cwd=tmp, check=True)
    env = os.environ | {"SLUICE_CI_BASE": base}
    done = subprocess.run([".ci/run", "--chosen"], cwd=tmp, capture_output=True, text=True, env=env, check=True)
    return set(done.stdout.split())


def test_the_rooms_that_changed_choose_the_nightly_tests(tmp: Path) -> None:
    everything, benches = {"tests"}, {"tests/proving/test_benches.py"}
    core = {"tests/spool/test_power.py", "tests/run/test_up.py"} | benches
    assert chosen(tmp, "README.md") == everything  # there is no commit before
    assert chosen(tmp, "docs/a.md", "README.md", "bench/results/a.md") == set()
    assert chosen(tmp, "bench/README.md", "bench/a") == benches
    assert chosen(tmp, "sluice/spool/a.py") == core | {"tests/contrib/kafka"}
    assert chosen(tmp, "sluice/contrib/kafka/a.py") == {"tests/contrib/kafka"}
    assert chosen(tmp, "tests/run/test_up.py", "docs/a.md") == {"tests/run/test_up.py"}
    assert chosen(tmp, "docs/a.md", base="HEAD~2") == {"tests/run/test_up.py"}
    assert chosen(tmp, "docs/a.md", base="0" * 40) == everything  # unknown
    assert chosen(tmp, "pyproject.toml", "docs/a.md") == everything
