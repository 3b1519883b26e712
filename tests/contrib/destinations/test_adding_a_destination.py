"""docs/ADDING-A-DESTINATION.md: a newcomer adds a destination to a copy of the tree; each row arrives there once."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proving.harness import ROOT, environment

pytestmark = pytest.mark.contract

PAGE = (ROOT / "docs/ADDING-A-DESTINATION.md").read_text()
FILE, LINE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
CURL, ANSWER, CUT, ROW = re.findall(r"^\$ (curl.*)\n(.*)\n\$ (.*)\n(.*)\n^```$", PAGE, re.M)[0]

# runs in the copy: posts the body, and prints the answer and the row. Then one worker is killed between the commit and
# the publication of a body, and one after a publication, before it has deleted the note. Prints the numbers of all rows
CLIENT = """
import json, signal, subprocess, sys
from proving import harness

body, target, cut = sys.argv[1:]
DYING = '''
import os, signal, worker
from sluice.contrib.destinations.jsonl import JsonLines
send = JsonLines.send
def die(*given):
    if {after}:
        send(*given)
    os.kill(os.getpid(), signal.SIGKILL)
JsonLines.send = die
worker.main([])
'''

with harness.short_tmp() as tmp, harness.redis_server(tmp) as redis:
    own = {"INGEST_SPOOL": redis.socket, "INGEST_ROWS": f"jsonl://{tmp}/rows"}
    env = harness.environment(tmp, own)

    def rows():
        return [json.loads(row)["seq"] for path in tmp.glob("rows/votes/*.jsonl") for row in path.open()]

    def settled():
        command = [sys.executable, "-m", "sluice.ops", "status", "--json"]
        streams = json.loads(subprocess.run(command, env=env, capture_output=True).stdout)["streams"]
        return all(stream["ready"] == stream["claimed"] == 0 for stream in streams)

    def post():
        with harness.connect(gateway.socket) as connection:
            return harness.post(connection, target, body.encode())[2].decode()

    with harness.gateway(tmp, redis, env=own) as gateway:
        with harness.running([sys.executable, "worker.py"], tmp / "worker.out", env):
            print(post())
            harness.poll(rows, 30, "the row")
            command = cut.replace("/srv/rows", f"{tmp}/rows")
            print(subprocess.run(command, shell=True, capture_output=True, text=True).stdout, end="")
            harness.poll(settled, 30, "the first body")
        for after in False, True:
            post()
            died = subprocess.run([sys.executable, "-c", DYING.format(after=after)], env=env, timeout=60)
            assert died.returncode == -signal.SIGKILL, died
        with harness.running([sys.executable, "worker.py"], tmp / "worker.out", env):
            harness.poll(lambda: len(rows()) >= 3 and settled(), 30, "all rows")
            print(sorted(rows()))
"""


@pytest.mark.nightly
def test_a_destination_is_one_file_and_one_registry_line(tmp_path: Path) -> None:
    for name in "deploy", "nginx", "proving", "sluice":
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in "ingest.py", "worker.py", "gunicorn.conf.py":
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (name,) = re.findall(r"^# (sluice/contrib/destinations/\w+\.py)$", FILE, re.M)
    (tmp_path / name).write_text(FILE)
    registry = tmp_path / "sluice/contrib/destinations/register.py"
    text = registry.read_text()
    registry.write_text(text.replace("destinations={\n", f"destinations={{\n{LINE}", 1))
    body, url = shlex.split(CURL)[3:]
    command = [sys.executable, "-c", CLIENT, body, url.partition(":8080")[2], CUT]
    env = environment(tmp_path) | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180)
    assert done.stdout == f"{ANSWER}\n{ROW}\n[1, 2, 3]\n", done.stderr
