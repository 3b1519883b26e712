"""docs/ADDING-A-FOLDER.md: a newcomer adds a folder to a copy of the tree; its setting and its verb are there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import ROOT, environment

pytestmark = pytest.mark.contract

PAGE = (ROOT / "docs/ADDING-A-FOLDER.md").read_text()
FILES = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.M | re.S)
SESSION = re.findall(r"^\$ (.*)\n(.*)$", PAGE, re.M)


def copy_with_files(at: Path) -> Path:
    shutil.copytree(ROOT / "sluice", at / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    return at


def test_a_folder_is_two_files_and_changes_none(tmp_path: Path) -> None:
    assert len(FILES) == len(SESSION) == 2
    root = copy_with_files(tmp_path)
    for command, printed in SESSION:
        assigned, _, *words = shlex.split(command)
        env = environment(tmp_path, dict([assigned.split("=")])) | {"PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-m", "sluice.ops", *words], cwd=root, env=env, capture_output=True, text=True, timeout=60
        )
        assert done.stdout + done.stderr == f"{printed}\n"


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (name, text), (verb, code) = FILES
    package = tmp_path / "site/greeting"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / Path(name).name).write_text(text.replace("sluice.contrib.greeting.greet", "greeting.greet"))
    (package / Path(verb).name).write_text(code)
    points = tmp_path / "site/greeting-1.dist-info/entry_points.txt"
    points.parent.mkdir()
    points.write_text("[sluice]\ngreeting = greeting.register:CONTRIBUTION\n")
    (points.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1\n")
    env = environment(tmp_path, {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path / "site")))})
    done = subprocess.run(
        [sys.executable, "-m", "sluice.ops", "greet", "Ada"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout + done.stderr == "hello Ada\n"
