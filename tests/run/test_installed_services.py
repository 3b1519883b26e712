"""`sluice services` of a wheel, on a copy of this system that systemd boots, with the data of the release before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving.harness import ROOT, poll
from proving.release import check_kept, home_before
from support.booted import Booted
from support.folders import ALL, needs

pytestmark = [pytest.mark.nightly, needs(*ALL)]

VOTE = """curl -s -d '{"poll":"new","choice":"a"}' localhost:8099/votes"""
PINS = "awk '/^#/ { on = / cpython( |$)/; next } on' deploy/requirements.lock"


@pytest.fixture
def system() -> Iterator[Booted]:
    if os.geteuid() or not Path("/lib/systemd/systemd").exists():
        pytest.skip("needs root and systemd")
    folder = Path(tempfile.mkdtemp(prefix="sluice-booted-", dir="/var/tmp"))
    try:
        yield Booted(folder)
    finally:
        shutil.rmtree(folder)


def active(system: Booted) -> int:
    """How many units of Sluice there are. Raises: AssertionError, unless all of them are active."""
    units = system.run("systemctl list-units --plain --no-legend 'sluice*' nginx.service redis-server@sluice.service")
    states = [line.split()[2] for line in units.splitlines()]
    assert {*states} == {"active"}, units
    return len(states)


def test_services_run_from_a_wheel_with_the_data_of_the_release_before(system: Booted, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        tmp_path,
        tmp_path / "clone",
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    pins = subprocess.run(PINS, shell=True, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S602
    (system.folder / "upper/root").mkdir(parents=True)
    shutil.copy(wheel, system.upper / "root")
    (system.upper / "root/pins").write_text(pins)
    said = system.prepare(f"""
        /usr/bin/python3 -m venv /opt/sluice
        /opt/sluice/bin/pip install -q --disable-pip-version-check --require-hashes -r /root/pins
        /opt/sluice/bin/pip install -q --disable-pip-version-check --no-deps /root/{wheel.name}
        ln -s /opt/sluice/bin/sluice /usr/local/bin/sluice  # as pipx does
        INGEST_PORT=8099 sluice services
    """)
    assert said.splitlines()[-1] == "sluice: systemd is not running; the services start when it does."
    before, home = home_before(tmp_path)
    data = system.upper / "var/lib/sluice"
    owner = data.stat()
    shutil.copy(home / "ingest.db", data)
    shutil.copytree(home / "redis", data / "redis", dirs_exist_ok=True)
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", data], check=True)

    def stored() -> int:
        return int(json.loads(system.run("sluice status --json"))["streams"][-1]["stored"])

    with system.up():
        poll(lambda: '"OK"' in system.run(VOTE), what=f"a vote: {before}")
        poll(lambda: active(system) > 10, what="all units are active")
        started = system.run("systemctl show -P ExecStart sluice-gateway 'sluice-worker@1'")
        assert started.count("path=/opt/sluice/bin/python3 ") == 2
        poll(lambda: stored() == 201)
        assert "new" in system.run("sluice rows votes")
        assert "wrote" not in system.run("sluice services")
        main = "systemctl show -P MainPID sluice-gateway sluice-worker@1 redis-server@sluice"
        pids = system.run(main)
        system.run("systemctl kill -s KILL sluice-gateway 'sluice-worker@1' redis-server@sluice")
        poll(lambda: '"OK"' in system.run(VOTE))
        assert not {*pids.split()} & {*system.run(main).split()}
        system.run("systemctl reload nginx")
        assert "restarts" not in system.run("INGEST_LOG=json sluice services")
        assert '"OK"' in system.run(VOTE)
        poll(lambda: stored() == 203)
        system.run("systemctl stop nginx sluice.target")
        shutil.copytree(data, tmp_path / "stopped", symlinks=True, ignore=shutil.ignore_patterns("run"))
    check_kept(tmp_path / "stopped")
