"""docs/ADDING-A-VIEW.md: a newcomer adds a kind of view to a copy of the tree; it is read, rebuilt and compared."""

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

PAGE = (ROOT / "docs/ADDING-A-VIEW.md").read_text()
KIND, LINE, VIEWS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
SESSION = re.findall(r"^```console\n(.*?)^```$", PAGE, re.M | re.S)[0]
COMMANDS = [shlex.split(command) for command in re.findall(r"^\$ (.*)$", SESSION, re.M)]
OUTPUT = re.findall(r"^[^$].*\n", SESSION, re.M)

# runs in the copy: prints the answers, and what the operator's commands print
CLIENT = """
import subprocess, sys
from proving import harness

module, body, target, rebuild, check = sys.argv[1:]
with harness.short_tmp() as tmp, harness.redis_server(tmp) as redis, harness.views_redis(tmp):
    own = {"INGEST_SPOOL": redis.socket, "INGEST_VIEWS": module}
    env = harness.environment(tmp, own)
    worker = harness.running([sys.executable, "worker.py"], tmp / "worker.out", env)
    follower, reader = harness.follower(tmp, own), harness.reader(tmp, env=own)
    with harness.gateway(tmp, redis) as gateway, worker, follower, reader as reader:
        with harness.connect(gateway.socket) as connection:
            print(harness.post(connection, "/gps", body.encode())[2].decode())
        harness.poll(lambda: harness.get(reader.socket, target)[0] == 200, 30, "the value")
        print(harness.get(reader.socket, target)[2].decode())
        for words in rebuild, check:
            command = [sys.executable, "-m", "sluice.ops", *words.split()]
            print(subprocess.run(command, env=env, capture_output=True, text=True).stdout, end="")
"""


@pytest.mark.nightly
def test_a_kind_of_view_is_one_file_and_one_line(tmp_path: Path) -> None:
    for name in "deploy", "nginx", "proving", "sluice":
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in "ingest.py", "worker.py", "gunicorn.conf.py":
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (name,) = re.findall(r"^# (sluice/contrib/views/kinds/\w+\.py)$", KIND, re.M)
    (tmp_path / name).write_text(KIND)
    public = tmp_path / "sluice/contrib/views/__init__.py"
    public.write_text(public.read_text().replace("_EXPORTS = {\n", f"_EXPORTS = {{\n{LINE}", 1))
    (tmp_path / "views.py").write_text(VIEWS)
    post, get, rebuild, check = COMMANDS
    words = post[3], get[2].removeprefix("localhost:8080"), " ".join(rebuild[1:]), " ".join(check[1:])
    command = [sys.executable, "-c", CLIENT, str(tmp_path / "views.py"), *words]
    env = environment(tmp_path) | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "".join(OUTPUT), done.stderr
