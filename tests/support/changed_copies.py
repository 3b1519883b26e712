"""Copies of the tree in var/mutants, in which a mistake is made and tests run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "var/mutants"


def copy_tree(name: str) -> Path:
    """A copy of the files under version control, and of the virtual environments, which bin/up must find up to date."""
    tree = WORK / name
    shutil.rmtree(tree, ignore_errors=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in names.rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for name in ".venv", ".venv-pypy":
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tree / name, symlinks=True, copy_function=link)
            for stamp in (tree / name).glob("stamp*"):
                text = stamp.read_text().replace(f"{ROOT}/", f"{tree}/")
                stamp.unlink()  # it is a link
                stamp.write_text(text)
    return tree


def link(source: str, target: str) -> None:
    """A second name of a file, which nobody changes: a virtual environment has a gigabyte."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target)


def failing(tree: Path, tests: list[str], patience: float) -> str:
    """Run tests until one fails. Returns: its name, "" if all pass, "time" if they take too long."""
    command = [
        ".venv/bin/python", "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
        "-p", "no:hypothesispytest",  # hypothesis works without it, and its import is slow
        *tests,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("INGEST_")},
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return "time"
    finally:
        end(tree, process)
    if process.returncode in (0, 5):  # 5: no test is left
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return found[1].partition("[")[0] if found else "tests that cannot start"  # with all its parameters


def end(tree: Path, process: subprocess.Popen[str]) -> None:
    """End the tests and every server that they left, which runs in the copy of the tree."""
    process.poll()
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGINT)  # pytest ends its servers
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if os.readlink(entry / "cwd") == str(tree):
                    os.kill(int(entry.name), signal.SIGKILL)
