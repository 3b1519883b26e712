"""The command `sluice`: its imports, its name in the help, and verbs that need a checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest

from proving.harness import ROOT, ask, environment, free_port, get, poll, post, running
from sluice import __version__, settings
from sluice.ledger import STATES, Observer
from sluice.ops import __main__ as command
from sluice.ops.__main__ import verb_parser
from sluice.spool.snapshot import Snapshot
from sluice.streams.built_in import STREAMS
from support.folders import has, needs
from support.operator_verbs import sluice

VERBS = command.verb_modules()
PROGRAMS = [ROOT / name for name in ("ingest.py", "worker.py", "gunicorn.conf.py")]
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
    program = (
        "import sys\nsys.modules['confluent_kafka'] = None\nfrom sluice.ops.__main__ import run_command\nrun_command()"
    )
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
    for action in verb_parser(verb)._subparsers._group_actions[0].choices[verb]._actions  # type: ignore[union-attr, index]
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
    assert list(found) == ["streams", "trouble", "notes"]
    waiting = ["unpublished", "unpublished_seconds", "unpublished_reason", "error", "keys_seconds"]
    keys = ["stream", *STATES, "purged", "expired", "deleted", "oldest_seconds", "decoder", *waiting]
    assert STATES == ("accepted", "ready", "claimed", "stored", "dead", "duplicate", "missing")
    assert [list(row) for row in found["streams"]] == [keys] * len(STREAMS)


def test_the_version_is_that_of_the_package(tmp: Path) -> None:
    assert sluice(tmp, "--version") == (0, f"sluice {__version__}\n", "")


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
def test_the_help_of_a_checkout_has_its_command() -> None:
    command = [sys.executable, "-m", "sluice.ops", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("usage: bin/sluice ")


@pytest.mark.contract
def test_outside_a_checkout_the_drill_fails_with_one_line(tmp: Path) -> None:
    shutil.copytree(ROOT / "sluice", tmp / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "sluice.ops", "drill"]
    env = environment(tmp) | {"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp, env=env, capture_output=True, text=True, timeout=60)
    line = "sluice: the drill needs a checkout of Sluice: run its bin/sluice instead.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel of this checkout. It borrows the requirements of this one."""
    tmp = tmp_path_factory.mktemp("package")
    source, venv = tmp / "source", tmp / "venv"
    for name in "sluice", "nginx", "deploy":
        shutil.copytree(ROOT / name, source / name)
    for name in "setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", *(path.name for path in PROGRAMS):
        shutil.copy(ROOT / name, source)
    run = partial(subprocess.run, check=True, cwd=source, env=environment(tmp), capture_output=True, text=True)
    run([sys.executable, "-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp)!r})"])
    run([sys.executable, "-m", "venv", "--without-pip", venv])
    pip = "pip", "--python", venv / "bin/python", "install", "--no-index", "--no-deps", "--no-compile"
    run([sys.executable, "-m", *pip, *tmp.glob("*.whl")])
    assert run([venv / "bin/sluice", "--help"], cwd=tmp).stdout.startswith("usage: sluice ")  # needs no other package
    (place,) = venv.glob("lib/*/site-packages")
    (place / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    return venv


@pytest.mark.nightly
def test_the_package_has_the_command_and_the_names_for_users_modules(package: Path, tmp: Path) -> None:
    run = partial(subprocess.run, cwd=tmp, env=environment(tmp), capture_output=True, text=True)
    assert run([package / "bin/sluice", "--version"]).stdout == f"sluice {__version__}\n"
    program = "import sluice; from sluice import Record, stream, Route; print(sluice.__file__)"
    (place,) = package.glob("lib/*/site-packages")
    assert run([package / "bin/python", "-c", program]).stdout == f"{place}/sluice/__init__.py\n"
    done = run([package / "bin/sluice", "status"])
    assert (done.returncode, done.stdout.split()[0]) == (1, "stream")


@pytest.mark.nightly
@needs("views")
def test_the_package_takes_stores_and_shows_a_post_and_reloads(package: Path, tmp: Path) -> None:
    """All that a checkout runs, from another folder, in the user's data folder."""
    port = free_port()
    env = environment(tmp, {"INGEST_PORT": port}) | {"XDG_DATA_HOME": str(tmp)}
    del env["INGEST_HOME"]
    sluice = partial(subprocess.run, cwd="/", env=env, capture_output=True, text=True, timeout=60)
    with running([package / "bin/sluice", "up"], tmp / "out", env, cwd=tmp):
        poll(lambda: get(port, "/readyz")[0] == 200)
        assert post(port, "/votes", b'{"poll":"p","choice":"a"}')[0] == 200
        poll(lambda: ask(tmp / "sluice", "SELECT choice FROM votes") == [("a",)])
        poll(lambda: b'"total":1' in get(port, "/votes/tally?poll=p")[2])
        assert sluice([package / "bin/sluice", "status"]).returncode == 0
        assert "INGEST_PORT" in sluice([package / "bin/sluice", "settings"]).stdout
        reloaded = sluice([package / "bin/sluice", "reload"])
        assert (reloaded.returncode, reloaded.stderr) == (0, "")
        again = sluice([package / "bin/sluice", "up"])
        assert again.stderr.startswith("sluice: sluice up already runs")


def test_status_names_what_endangers_the_bodies_of_a_stream(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka does, if a topic has a retention: it may delete what is not stored."""
    monkeypatch.setattr(Observer, "snapshots", lambda _: {"votes": Snapshot(0, 0, warning="mend the topic")})
    assert "mend the topic" in Observer(settings.load_settings(environment(tmp))).ledger()["trouble"]
