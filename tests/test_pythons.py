"""Each supported CPython that this machine has, beside the one that runs the tests."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from proving import harness
from proving.harness import PATIENCE, ROOT, Server, environment, free_port, get, poll, post, running, short_tmp
from support.folders import needs

pytestmark = pytest.mark.nightly

metadata = configparser.ConfigParser()
metadata.read(ROOT / "setup.cfg")
SUPPORTED = re.findall(r"Python :: (3\.[0-9]+)", metadata["metadata"]["classifiers"])


@cache
def interpreter(version: str) -> str:
    """The path of a CPython of a version; skips the test if there is none, or if it runs the test itself."""
    pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    asked = "import ensurepip, sys, venv; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    for path in filter(None, [shutil.which(f"python{version}"), *map(str, pyenv)]):
        done = subprocess.run([path, "-c", asked], capture_output=True, text=True)
        if done.stdout == f"cpython {version}\n" and sys.version_info[:2] != tuple(map(int, version.split("."))):
            return path
    pytest.skip(f"no other CPython {version} on this machine")


def test_readme_metadata_and_provision_name_the_same_versions() -> None:
    provision = (ROOT / "bin/provision").read_text()
    (names,) = re.findall(r"^    for name in .*/usr/bin/python3 python3 (.*); do$", provision, re.M)
    assert names.split() == [f"python{version}" for version in reversed(SUPPORTED)]
    assert f"CPython {SUPPORTED[0]} to {SUPPORTED[-1]}" in (ROOT / "README.md").read_text()
    assert metadata["options"]["python_requires"] == f">={SUPPORTED[0]}"


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_module_compiles_without_a_warning(version: str) -> None:
    program = "import pathlib, sys; [compile(pathlib.Path(name).read_bytes(), name, 'exec') for name in sys.argv[1:]]"
    files = [path for folder in ("sluice", "proving", "examples", "tests") for path in (ROOT / folder).rglob("*.py")]
    files += ROOT.glob("*.py")
    done = subprocess.run([interpreter(version), "-W", "error", "-c", program, *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@needs("views")
@pytest.mark.parametrize("version", SUPPORTED)
def test_bin_up_runs_in_a_new_clone_with_the_python_that_is_chosen(version: str, tmp: Path) -> None:
    clone, port = tmp / "clone", free_port()
    python = interpreter(version)
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, clone], check=True)
    with short_tmp() as home:
        env = environment(home, {"PYTHON": python, "INGEST_PORT": port, "PYTHONDONTWRITEBYTECODE": "1"})
        with running([clone / "bin/up"], tmp / "out", env, cwd=clone) as process:
            poll(lambda: get(port, "/readyz")[0] == 200, 300)  # packages are installed first
            up = Server(process, tmp / "out", home, port)
            assert post(port, "/votes", b'{"poll":"p","choice":"a"}')[0] == 200
            poll(lambda: harness.ask(home, "SELECT choice FROM votes") == [("a",)])
            poll(lambda: b'"total":1' in get(port, "/votes/tally?poll=p")[2])
            status = subprocess.run([clone / "bin/sluice", "status"], env=env, capture_output=True, text=True)
            assert (status.returncode, status.stderr) == (0, "")
            for name in "gateway", "worker", "follower", "reader":
                assert os.readlink(f"/proc/{up.pids(name)[0]}/exe") == str(Path(python).resolve())
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert not re.search("Traceback|Warning", up.said())
    # the second start compiles nothing again, whatever images of containers set
    assert [*clone.glob(".venv/lib/*/site-packages/redis/__pycache__/client.*.pyc")]


def test_a_chosen_python_that_cannot_be_used_is_named(tmp: Path) -> None:
    clone, out = tmp / "clone", tmp / "out"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, clone], check=True)
    shutil.copy(ROOT / "bin/provision", clone / "bin")
    env = environment(tmp, {"PYTHON": "/bin/false"})
    with running([clone / "bin/provision"], out, env, cwd=clone):
        poll(lambda: "making .venv with /" in out.read_text())
    assert out.read_text().startswith("sluice: PYTHON=/bin/false is not used: it is no CPython of at least 3.11 with ")
