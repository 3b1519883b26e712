"""The store on PostgreSQL 13 to 18: its contract on each. `bin/provision nightly` gets the servers."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from proving.harness import ROOT

pytestmark = pytest.mark.nightly

JARS = sorted((ROOT / "var/postgres/libs").glob("embedded-postgres-binaries-*.jar"))
POM = (Path(__file__).parent / "pom.xml").read_text()
TESTS = "tests/contrib/postgres/test_postgres.py", "-k", "TestPostgres"  # the contract, with the outbox


@pytest.mark.parametrize("version", re.findall(r"<version>(\d+\.\d+\.\d+)</version>\n +</artifactItem>", POM))
def test_a_version_of_postgresql_is_a_store(version: str, tmp: Path) -> None:
    found = [jar for jar in JARS if jar.stem.endswith(f"-{version}")]
    if not found:
        pytest.skip("bin/provision nightly could not get it")
    with zipfile.ZipFile(found[0]) as jar:
        (packed,) = (name for name in jar.namelist() if name.endswith(".txz"))
        subprocess.run(["tar", "-x", "-C", tmp], input=lzma.decompress(jar.read(packed)), check=True)
    tmp.chmod(0o755)  # another user runs it
    said = subprocess.run([tmp / "bin/postgres", "--version"], capture_output=True, text=True, check=True).stdout
    assert said.split()[2] == version.removesuffix(".0")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *TESTS]
    env = os.environ | {"POSTGRES_BIN": str(tmp / "bin")}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    print(done.stdout.splitlines()[-1])
