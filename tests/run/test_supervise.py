"""supervisord as bin/up runs it (sluice/run/supervise.py), with one program."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from proving import harness
from proving.harness import PATIENCE

CONFIGURATION = """\
[supervisord]
nodaemon=true
logfile={home}/log
pidfile={home}/pid
[program:nginx]
command={command}
stopsignal=QUIT
stopwaitsecs=1
"""
# A program that is held between fork and exec, where its process still has the handlers of supervisord
HELD = """\
import sys
from sluice.run import supervise

def hold(options):
    print("held", file=sys.stderr, flush=True)
    with open(sys.argv[2]) as gate:
        gate.read()

supervise.Options.setpgrp = hold
supervise.run(sys.argv[1], lambda: True)
"""
RUN = "import sys; from sluice.run import supervise; supervise.run(sys.argv[1], lambda: True)"


@pytest.mark.contract
def test_a_stop_ends_a_program_that_is_being_started(tmp_path: Path) -> None:
    (tmp_path / "supervisord.conf").write_text(CONFIGURATION.format(home=tmp_path, command="/bin/sleep 60"))
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [harness.PYTHON["cpython"], "-c", HELD, str(tmp_path / "supervisord.conf"), str(gate)]
    env = os.environ | {"INGEST_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=harness.ROOT, env=env) as up:
        assert up.stderr
        assert up.stderr.readline() == b"held\n"
        up.send_signal(signal.SIGINT)
        log = tmp_path / "log"
        harness.poll(lambda: "waiting for nginx to die" in log.read_text() or up.poll() is not None)
        held = os.open(gate, os.O_RDWR)  # where it is still held, it goes on
        os.close(held)
        assert up.wait(PATIENCE) == 0
    assert "SIGKILL" not in log.read_text()
    assert "stopped: nginx" in log.read_text()


# As nginx does between the moments when it handles signals and when it waits for them
FORGETS_ONE = "import signal\nfor _ in range(2): signal.sigwait([signal.SIGQUIT])"


@pytest.mark.contract
def test_a_stop_ends_a_program_that_forgets_its_first_signal(tmp_path: Path) -> None:
    program, log, ready = tmp_path / "program.py", tmp_path / "log", tmp_path / "ready"
    block = "import pathlib, signal, sys\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT])\n"
    program.write_text(f"{block}pathlib.Path(sys.argv[1]).touch()\n{FORGETS_ONE}\n")
    command = f"{harness.PYTHON['cpython']} {program} {ready}"
    (tmp_path / "supervisord.conf").write_text(CONFIGURATION.format(home=tmp_path, command=command))
    up = [harness.PYTHON["cpython"], "-c", RUN, str(tmp_path / "supervisord.conf")]
    env = os.environ | {"INGEST_HOME": str(tmp_path)}
    with subprocess.Popen(up, stdout=subprocess.DEVNULL, cwd=harness.ROOT, env=env) as process:
        harness.poll(ready.exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert "SIGKILL" not in log.read_text()
    assert "stopped: nginx" in log.read_text()


@pytest.mark.contract
def test_a_ctrl_c_ends_what_does_not_lead_its_group_yet(tmp_path: Path) -> None:
    """`apart` in bin/provision, with a setsid that is held before it makes a group."""
    (apart,) = re.findall(
        r"^apart\(\) \{.*?^\}", (harness.ROOT / "bin/provision").read_text(), re.MULTILINE | re.DOTALL
    )
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "setsid").write_text(f'#!/bin/bash\necho $$ >{tmp_path}/held\nread -r <{gate}\nexec "$@"\n')
    (tmp_path / "setsid").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "-c", f"{apart}\napart sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as process:
        held = harness.poll(lambda: int((tmp_path / "held").read_text()))
        try:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == -signal.SIGINT
            assert not Path(f"/proc/{held}").exists()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(held, signal.SIGKILL)
        assert process.stdout
        assert process.stdout.read() == b""
