"""docs/ADDING-A-STREAM.md: a user follows the page from top to bottom, against a real bin/up."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving import harness
from proving.harness import ROOT, Server

PAGE = (ROOT / "docs/ADDING-A-STREAM.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)


def blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return [text for name, text in BLOCKS if name == language]


@pytest.fixture(scope="module")
def tmp() -> Iterator[Path]:
    with harness.short_tmp() as path:
        yield path


def here(line: str, tmp: Path, server: Server | None = None) -> str:
    """A line of the page with the directories, the port and the Python of this test."""
    for old, new in {"/srv/tides": f"{tmp}/tides", ".venv/bin/python": sys.executable, " var/": f" {tmp}/var/"}.items():
        line = line.replace(old, new)
    return line.replace("8080", str(server.port)) if server else line


def shell(line: str, tmp: Path, server: Server | None = None) -> str:
    """Run a line of the page in the checkout. Returns: its output."""
    env = harness.environment(tmp / "var", {"INGEST_PORT": server.port} if server else {})
    command = ["bash", "-c", here(line, tmp, server)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp: Path) -> list[Path]:
    """The directory and the files of the page."""
    make, _, _ = blocks("sh")
    shell(make, tmp)
    written = []
    for text in blocks("python"):
        (name,) = re.findall(r"^# /srv/tides/(\w+\.py)$", text, re.M)
        path = tmp / "tides" / name
        path.write_text(here(text, tmp))
        written.append(path)
    return written


@pytest.fixture(scope="module")
def server(tmp: Path, files: list[Path]) -> Iterator[Server]:
    """bin/up, with the settings of the page."""
    _, _, start = blocks("sh")
    *settings, command = shlex.split(here(start, tmp))
    assert command == "bin/up"
    with harness.installation(tmp / "var", dict(text.split("=", 1) for text in settings)) as running:
        yield running


def test_a_stream_needs_only_the_names_that_the_package_exports() -> None:
    assert not re.search(r"from sluice\.|import sluice\.", PAGE)


@pytest.mark.nightly
def test_the_tests_of_the_page_pass_and_fail_with_a_wrong_parser(tmp: Path, files: list[Path]) -> None:
    _, run, _ = blocks("sh")
    assert "2 passed" in shell(run, tmp)
    _, records, _ = files
    text = records.read_text()
    records.write_text(text.replace("float(metres)", "-float(metres)"))
    with pytest.raises(AssertionError, match="2 failed"):
        shell(run, tmp)
    records.write_text(text)


@pytest.mark.nightly
def test_every_step_of_the_page_prints_what_the_page_says(tmp: Path, server: Server) -> None:
    steps = [step for text in blocks("console") for step in re.findall(r"^\$ (.*)\n((?:(?!\$ ).+\n)*)", text, re.M)]
    assert steps
    for line, expected in steps:
        if line.startswith("sqlite3"):
            harness.poll(lambda line=line, expected=expected: shell(line, tmp, server) == expected, 30, line)  # type: ignore[misc]
        else:
            printed = shell(line, tmp, server)
            assert not expected or printed.strip() == expected.strip(), line
