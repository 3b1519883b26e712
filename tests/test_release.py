"""bin/release: what it refuses, and that a commit gives the same bytes twice."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from proving.harness import ROOT

pytestmark = pytest.mark.nightly

VERSION = "7.8.9"


def git(checkout: Path, *arguments: str) -> None:
    identity = "-c", "user.name=a", "-c", "user.email=a@localhost"
    subprocess.run(["git", *identity, *arguments], cwd=checkout, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp: Path) -> Path:
    """A repository with the package, of VERSION, with this virtual environment."""
    for name in "bin/release", "pyproject.toml", "README.md", "LICENSE":
        (tmp / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp / name)
    shutil.copytree(ROOT / "sluice", tmp / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "setup.cfg").read_text()
    (tmp / "setup.cfg").write_text(text.replace(text.partition("\nversion = ")[2].partition("\n")[0], VERSION, 1))
    (tmp / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2027-01-01)\n\nNothing.\n\n## 7.8.8\n")
    for name, text in ("bin/provision", ""), (".venv/bin/python", f'exec {sys.executable} "$@"\n'):
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp / name).write_text(f"#!/bin/sh\n{text}")
        (tmp / name).chmod(0o755)
    (tmp / ".gitignore").write_text("/dist/\n/.venv/\n")
    git(tmp, "init")
    git(tmp, "add", ".")
    git(tmp, "commit", "-m", "all")
    return tmp


def release(checkout: Path, version: str = VERSION) -> subprocess.CompletedProcess[str]:
    return subprocess.run([checkout / "bin/release", version], capture_output=True, text=True, timeout=120)


def test_a_release_has_wheel_source_archive_sums_and_the_commands_that_publish_it(checkout: Path) -> None:
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    dist = checkout / "dist"
    wheel, archive = dist / f"sluice-{VERSION}-py3-none-any.whl", dist / f"sluice-{VERSION}.tar.gz"
    with zipfile.ZipFile(wheel) as package, tarfile.open(archive) as source:
        assert "sluice/ledger.py" in package.namelist()
        assert f"sluice-{VERSION}/bin/release" in source.getnames()
    listed = dict(line.split()[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert listed == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, archive)}
    assert f"git tag -a v{VERSION}" in done.stdout


@pytest.mark.parametrize(
    ("version", "spoil", "reason"),
    [
        ("7.8", "true", "usage: bin/release VERSION"),
        ("7.9.0", "true", f"setup.cfg has version {VERSION}"),
        (VERSION, "sed -i s/7.8.9/7.8.7/ CHANGELOG.md", "CHANGELOG.md has no section"),
        (VERSION, "sed -i 's/ (2027-01-01)//' CHANGELOG.md", "CHANGELOG.md has no section"),
        (VERSION, "echo >> README.md", "there are uncommitted changes"),
        (VERSION, "touch forgotten", "there are uncommitted changes"),
        (VERSION, f"git tag v{VERSION}", f"the tag v{VERSION} exists"),
    ],
)
def test_what_is_not_ready_is_not_released(version: str, spoil: str, reason: str, checkout: Path) -> None:
    subprocess.run(["sh", "-c", spoil], cwd=checkout, check=True)
    done = release(checkout, version)
    assert (done.returncode, done.stderr[: len(reason) + 8]) == (1, f"sluice: {reason}")
    assert not (checkout / "dist").exists()


def test_builds_that_differ_are_not_released(checkout: Path) -> None:
    """The time of the build in a file of the package."""
    (checkout / "setup.py").write_text(
        "import setuptools, time\nopen('sluice/built.py', 'w').write(str(time.time_ns()))\nsetuptools.setup()\n"
    )
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "spoilt")
    done = release(checkout)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "sluice: two builds of one commit differ")
    assert not (checkout / "dist").exists()
