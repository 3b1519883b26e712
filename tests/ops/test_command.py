"""The command `sluice`: its imports, its name in the help, and verbs that need a checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest

from proving.harness import ROOT, environment
from sluice.account import STATES
from sluice.ops import __main__ as command
from sluice.ops.__main__ import parser
from sluice.streams.built_in import STREAMS
from support.folders import has, needs
from support.operator_verbs import sluice

(VERSION,) = re.findall(r"^version = (\S+)$", (ROOT / "setup.cfg").read_text(), re.M)
VERBS = command.verbs()
IMPORTED = "import sys\nfrom sluice.ops.__main__ import main\nmain(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"


def imported(tmp: Path, *words: str) -> tuple[str, set[str]]:
    """The output of a call, and the modules that it imports."""
    command = [sys.executable, "-c", IMPORTED, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment(tmp), capture_output=True, text=True, timeout=60)
    return done.stdout, set(done.stderr.splitlines()[-1].split())


def verbs(modules: set[str]) -> set[str]:
    return {verb for verb in VERBS if VERBS[verb] in modules}


@pytest.mark.contract
def test_status_imports_no_other_verb_and_nothing_that_only_other_verbs_need(tmp: Path) -> None:
    _, modules = imported(tmp, "status")
    assert verbs(modules) == {"status"}
    assert not modules & {"rich", "prometheus_client", "supervisor", "sluice.run", "proving"}


@needs("kafka")
@pytest.mark.contract
def test_without_the_library_of_kafka_a_verb_names_the_command_that_installs_it(tmp: Path) -> None:
    program = "import sys\nsys.modules['confluent_kafka'] = None\nfrom sluice.ops.__main__ import command\ncommand()"
    env = environment(tmp, {"INGEST_SPOOL": "kafka://localhost:9"})
    done = subprocess.run([sys.executable, "-c", program, "status"], env=env, cwd=ROOT, capture_output=True, text=True)
    said = "sluice: INGEST_SPOOL=kafka://… needs confluent_kafka: bin/provision kafka installs it.\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.contract
def test_the_help_lists_every_verb_and_imports_none(tmp: Path) -> None:
    out, modules = imported(tmp)
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if len(line) > 2 and line[0] in VERBS] == list(VERBS)
    assert verbs(modules) == set()
    assert not modules & {"redis", "apsw", "sluice.ledger"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_imports_no_other_verb(verb: str) -> None:
    text = (ROOT / f"{VERBS[verb].replace('.', '/')}.py").read_text()
    assert "sluice.ops" not in text and "from sluice import ops" not in text


NUMBERS = [
    (verb, action.option_strings[0])
    for verb in VERBS
    if verb != "drill"  # it would start one
    for action in parser(verb)._subparsers._group_actions[0].choices[verb]._actions  # type: ignore[union-attr, index]
    if action.option_strings and (action.type in (int, float) or action.metavar in ("N", "S"))
]


@pytest.mark.parametrize("verb, option", NUMBERS)
@pytest.mark.parametrize("value", ["-1", "nan", "1e400", "²", "x", "9" * 30])
def test_an_option_that_is_a_number_refuses_what_is_none(verb: str, option: str, value: str, tmp: Path) -> None:
    code, out, words = sluice(tmp, verb, f"{option}={value}")
    assert (code, out) == (2, "")
    assert f"argument {option}: expected " in words


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_ends_with_its_exit_statuses(verb: str, tmp: Path) -> None:
    code, out, _ = sluice(tmp, verb, "--help")
    assert code == 0
    assert "exit status: 0" in out


def test_the_json_of_status_has_the_documented_keys(tmp: Path) -> None:
    found = json.loads(sluice(tmp, "status", "--json")[1])
    assert list(found) == ["streams", "trouble"]
    waiting = ["unpublished", "unpublished_seconds", "unpublished_reason", "error", "keys_seconds"]
    keys = ["stream", *STATES, "purged", "expired", "deleted", "oldest_seconds", "decoder", *waiting]
    assert STATES == ("accepted", "ready", "claimed", "stored", "dead", "duplicate", "missing")
    assert [list(row) for row in found["streams"]] == [keys] * len(STREAMS)


def test_the_version_is_that_of_the_package(tmp: Path) -> None:
    assert sluice(tmp, "--version") == (0, f"sluice {VERSION}\n", "")


@pytest.mark.contract
@pytest.mark.parametrize("words", [("--version",), ("status",), ("status", "--json"), *[("metrics",)] * has("page")])
def test_output_that_cannot_be_written_is_one_line(words: tuple[str, ...], tmp: Path) -> None:
    command: list[str | Path] = [ROOT / "bin/sluice", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment(tmp), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "sluice: the output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


@pytest.mark.contract
@pytest.mark.parametrize("called, name", [("/usr/local/bin/sluice", "sluice"), ("-m", "bin/sluice")])
def test_the_help_uses_the_name_by_which_it_was_called(called: str, name: str) -> None:
    program = f"import sys; sys.argv = [{called!r}, '--help']; from sluice.ops.__main__ import command; command()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"usage: {name} ")


@pytest.mark.contract
@pytest.mark.parametrize("verb, what", [("reload", "reload"), ("drill", "the drill")])
def test_outside_a_checkout_a_verb_that_needs_one_fails_with_one_line(verb: str, what: str, tmp: Path) -> None:
    shutil.copytree(ROOT / "sluice", tmp / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "sluice.ops", verb]
    env = environment(tmp) | {"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp, env=env, capture_output=True, text=True, timeout=60)
    line = f"sluice: {what} needs a checkout of Sluice: run its bin/sluice instead.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.nightly
def test_the_installed_package_has_the_command_and_the_names_for_users_modules(tmp: Path) -> None:
    """`pip install .` into an empty virtual environment; it then borrows the requirements of this one."""
    source, venv = tmp / "source", tmp / "venv"
    shutil.copytree(ROOT / "sluice", source / "sluice")
    for name in "setup.cfg", "pyproject.toml", "README.md", "LICENSE":
        shutil.copy(ROOT / name, source)
    run = partial(subprocess.run, check=True, cwd=source, env=environment(tmp), capture_output=True, text=True)
    run([sys.executable, "-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp)!r})"])
    run([sys.executable, "-m", "venv", "--without-pip", venv])
    pip = "pip", "--python", venv / "bin/python", "install", "--no-index", "--no-deps", "--no-compile"
    run([sys.executable, "-m", *pip, *tmp.glob("*.whl")])
    (place,) = venv.glob("lib/*/site-packages")
    assert run([venv / "bin/sluice", "--help"], cwd=tmp).stdout.startswith("usage: sluice ")  # needs no other package
    assert run([venv / "bin/sluice", "--version"], cwd=tmp).stdout == f"sluice {VERSION}\n"
    (place / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    program = "import sluice; from sluice import Record, stream, Route; print(sluice.__file__)"
    assert run([venv / "bin/python", "-c", program], cwd=tmp).stdout == f"{place}/sluice/__init__.py\n"
    done = run([venv / "bin/sluice", "status"], cwd=tmp, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (1, "stream")
