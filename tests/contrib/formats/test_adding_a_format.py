"""docs/ADDING-A-FORMAT.md: a newcomer adds a wire format to a copy of the tree, and posts through the real gateway."""

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

PAGE = (ROOT / "docs/ADDING-A-FORMAT.md").read_text()
FILE, LINE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
CURL, ANSWER, QUERY, ROW = re.findall(r"^```console\n\$ (.*)\n(.*)\n\$ (.*)\n(.*)\n^```$", PAGE, re.M)[0]

# runs in the copy: posts the body, and prints the answer and the row
CLIENT = """
import sys
from pathlib import Path
from proving import harness

target, body, query = sys.argv[1:]
with harness.short_tmp() as tmp, harness.redis_server(tmp) as redis, harness.gateway(tmp, redis) as gateway:
    env = harness.environment(tmp, {"INGEST_SPOOL": redis.socket})
    with harness.running([sys.executable, "worker.py"], tmp / "worker.out", env):
        with harness.connect(gateway.socket) as connection:
            print(harness.post(connection, target, body.encode())[2].decode())
        harness.poll(lambda: harness.ask(tmp, query), 30, "the row")
        print("|".join(map(str, harness.ask(tmp, query)[0])))
"""


def test_a_wire_format_is_one_file_and_one_registry_line(tmp_path: Path) -> None:
    for name in "deploy", "nginx", "proving", "sluice":
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in "ingest.py", "worker.py", "gunicorn.conf.py":
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (name,) = re.findall(r"^# (sluice/contrib/formats/\w+\.py)$", FILE, re.M)
    (tmp_path / name).write_text(FILE)
    registry = tmp_path / "sluice/contrib/formats/register.py"
    text = registry.read_text()
    registry.write_text(text.replace("FORMATS = (\n", f"FORMATS = (\n{LINE}", 1))
    _, _, _, body, url = shlex.split(CURL)
    command = [sys.executable, "-c", CLIENT, url.partition(":8080")[2], body, shlex.split(QUERY)[2]]
    env = environment(tmp_path) | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{ANSWER}\n{ROW}\n", done.stderr
