"""bin/test lints every program: the lists in pyproject.toml, setup.cfg and bin/test are complete."""

from __future__ import annotations

import configparser
import re
import subprocess

import pytest

from proving.harness import ROOT


def programs(interpreter: str) -> set[str]:
    """The files of the checkout whose first line names this interpreter."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ":!tests/fuzz/corpus"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = set()
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            with open(path, "rb") as file:
                first = file.readline(100).decode("latin-1")
            if re.match(rf"#!.*\b{interpreter}", first):
                found.add(name)
    return found


def test_ruff_and_mypy_check_every_python_program_without_a_suffix() -> None:
    expected = {name for name in programs("python") if not name.endswith(".py")}
    assert expected
    pyproject = (ROOT / "pyproject.toml").read_text()
    included = re.findall(r'"(.+?)"', pyproject.partition("extend-include = [")[2].partition("\n]")[0])
    assert set(included) == expected
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert set(re.split(r",\s*", config["mypy"]["files"])) == expected | {"."}


def test_shellcheck_checks_every_shell_script() -> None:
    line = re.search(r"^    shellcheck (.*) \|\|", (ROOT / "bin/test").read_text(), re.MULTILINE)
    assert line
    expanded = subprocess.run(["bash", "-c", f"echo {line[1]}"], capture_output=True, text=True, check=True).stdout
    assert set(expanded.split()) == programs("(ba)?sh")


def test_gcc_checks_every_c_program() -> None:
    text = (ROOT / "bin/test").read_text()
    assert {path.name for path in (ROOT / "bench").glob("*.c")} == set(re.findall(r"bench/(\w+\.c)\b", text))
