"""Each folder of `sluice/contrib`, and all of them, can be deleted: what remains takes, stores and shows bodies."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from proving import harness
from proving.harness import ROOT, Server, get, poll, post
from sluice.registry import contributions
from support.folders import ALL

FOLDERS = sorted(path.parent.name for path in (ROOT / "sluice/contrib").glob("*/register.py"))
WHOLE_OR_ONE = ["", *(pytest.param(name, marks=pytest.mark.nightly) for name in FOLDERS)]
VARIABLES = "import json; from sluice import settings; print(json.dumps(settings.variables()))"


def checkout_without(folder: str, at: Path) -> Path:
    """A copy of this checkout that lacks a folder of contrib, and its tests; "": all of contrib."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    gone = f"sluice/contrib/{folder}".rstrip("/") + "/", f"tests/contrib/{folder}".rstrip("/") + "/"
    for name in files.decode().split("\0")[:-1]:
        if not name.startswith(gone) and (ROOT / name).is_file():
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, at / name)
    for venv in ".venv", ".venv-pypy":
        if (ROOT / venv).exists():
            (at / venv).symlink_to((ROOT / venv).resolve())
    return at


def with_own_packages(root: Path) -> Path:
    """Copy the virtual environments, too: bin/provision would make others if they were links."""
    for venv in ".venv", ".venv-pypy":
        if (root / venv).exists():
            found = (root / venv).resolve()
            (root / venv).unlink()
            shutil.copytree(found, root / venv, symlinks=True)
            for file in [*(root / venv).glob("stamp*"), *(root / venv / "bin").iterdir()]:
                text = b"" if file.is_symlink() else file.read_bytes()
                if os.fsencode(found) in text and b"\0" not in text:
                    file.write_bytes(text.replace(os.fsencode(found), os.fsencode(root / venv)))
    return root


def output(root: Path, env: dict[str, str], *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=root, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(home: Path) -> list[tuple[str]]:
    with sqlite3.connect(f"file:{home}/ingest.db?mode=ro", uri=True) as db:
        return db.execute("SELECT choice FROM votes").fetchall()


@pytest.mark.contract
@pytest.mark.parametrize("folder", WHOLE_OR_ONE)
def test_without_a_folder_of_contrib_what_remains_takes_stores_and_shows(folder: str, tmp: Path) -> None:
    root, home = checkout_without(folder, tmp / "checkout"), tmp / "home"
    home.mkdir(mode=0o700)
    port = harness.free_port()
    env = harness.environment(home, {"INGEST_PORT": port})
    gone = contributions() if not folder else {folder: contributions()[folder]}
    with harness.running([sys.executable, "-m", "sluice.run.up"], tmp / "up.out", env, cwd=root, seconds=60) as process:
        server = Server(process, tmp / "up.out", home, port)
        poll(lambda: harness.listening(server, port)() and get(port, "/readyz")[0] == 200, 120, "bin/up")
        assert post(port, "/votes", b'{"poll":"p","choice":"a"}')[0] == 200
        poll(lambda: (home / "ingest.db").exists() and stored(home) == [("a",)], 60, "the row")
        status = json.loads(output(root, env, "-m", "sluice.ops", "status", "--json"))
        row = next(row for row in status["streams"] if row["stream"] == "votes")
        assert (row["accepted"], row["stored"], row["missing"]) == (1, 1, 0)
    helped = output(root, env, "-m", "sluice.ops", "--help")
    variables = json.loads(output(root, env, "-c", VARIABLES))
    for each in gone.values():
        assert not {f"    {verb} " for verb in each.verbs if f"    {verb} " in helped}
        replaced = {"INGEST_WORKERS"}  # the core has it, too
        assert not {f"INGEST_{name.upper()}" for name in each.settings} - replaced & set(variables)


def pytest_in(root: Path, tmp: Path, *words: str, seconds: int) -> subprocess.CompletedProcess[str]:
    """Run the tests of the core that are in a checkout, as bin/test --core does."""
    command = [str(root / ".venv/bin/python"), "-m", "pytest", "-q", "--ignore", "tests/contrib", *words]
    env = harness.environment(tmp / "home")
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=seconds)


def test_the_tests_know_the_folders_of_contrib() -> None:
    assert set(FOLDERS) <= set(ALL)


@pytest.mark.nightly
@pytest.mark.parametrize("folder", WHOLE_OR_ONE)
def test_without_a_folder_of_contrib_the_tests_of_the_core_can_be_imported(folder: str, tmp: Path) -> None:
    root = checkout_without(folder, tmp / "checkout")
    done = pytest_in(root, tmp, "--collect-only", "tests", seconds=280)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.nightly
def test_without_contrib_the_tests_of_the_core_pass(tmp: Path) -> None:
    """Those of the tiers unit and contract, but this module. They take ten minutes."""
    root = with_own_packages(checkout_without("", tmp / "checkout"))
    words = "-m", "not nightly", "--ignore", "tests/test_deletions.py", "-n", "5", "--dist", "loadfile"
    done = pytest_in(root, tmp, *words, "-o", "faulthandler_timeout=0", "tests", seconds=3000)
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.nightly
def test_without_contrib_the_types_and_the_style_of_what_remains_are_right(tmp: Path) -> None:
    root = checkout_without("", tmp / "checkout")
    for command in (
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["mypy", "--exclude", "^proving/histories/", "--no-warn-unused-ignores"],
    ):
        done = subprocess.run([root / ".venv/bin" / command[0], *command[1:]], cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
