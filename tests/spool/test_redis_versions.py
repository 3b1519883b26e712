"""The list on Valkey 9, beside the Redis of the system: the tests of the spool and of the worker.

Redis 8.0 is tested in the Debians that have it (tests/test_debians.py). `bin/provision nightly` gets Valkey.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import ROOT
from sluice.run.servers import WHEELS

pytestmark = pytest.mark.nightly

MODULES = [f"tests/{name}.py" for name in ("spool/test_spool", "spool/test_layout", "spool/test_log", "test_worker")]


def test_valkey_is_a_spool(tmp: Path) -> None:
    module, pattern = WHEELS["redis"]
    found = sorted((ROOT / "var/servers" / module).glob(pattern))
    if not found:
        pytest.skip("bin/provision nightly could not get it")
    (tmp / "redis-server").symlink_to(found[0])
    env = os.environ | {"PATH": f"{tmp}:{os.environ['PATH']}"}
    said = subprocess.run(["redis-server", "--version"], env=env, capture_output=True, text=True, check=True).stdout
    assert said.startswith("Valkey server v=9."), said
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *MODULES]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    print(done.stdout.splitlines()[-1])
