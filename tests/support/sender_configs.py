"""The configurations in docs/INTEGRATIONS.md, which the tests give to the real senders, and packages of senders."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from proving import harness
from proving.harness import ROOT, Server, ask, free_port, running, short_tmp

TELEGRAF = ROOT / "var/telegraf/telegraf"
FIRST = 1_767_268_800  # noon, 1 January 2026
PAGE = (ROOT / "docs/INTEGRATIONS.md").read_text()


def samples(heading: str, port: int = 8080) -> list[str]:
    """The indented samples of a section, with the port of the installation under test."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\n((?:    .*\n)+)", section, re.MULTILINE)
    return [textwrap.dedent(text).replace("8080", str(port)) for text in found]


@contextlib.contextmanager
def npm_packages(folder: Path) -> Iterator[Path]:
    """A copy of a folder with the packages that its lock file pins."""
    with short_tmp() as tmp:
        for path in folder.iterdir():
            shutil.copy(path, tmp)
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(install, cwd=tmp, check=True, timeout=300)
        yield tmp


Write = Callable[[range], str]  # sends what has these numbers; "ok", or the error


@contextlib.contextmanager
def program(*command: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[Write]:
    """A program that sends what its input says, in lines such as "FIRST COUNT", and prints a line for each."""
    words = list(map(str, command))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=cwd) as process:
        source, drain = process.stdin, process.stdout
        assert source and drain

        def write(numbers: range) -> str:
            print(numbers.start, len(numbers), file=source, flush=True)
            return drain.readline().strip()

        try:
            yield write
        finally:
            process.kill()


def duplicates(up: Server) -> int:
    """How many bodies were not stored again, because of their keys."""
    return sum(bodies for (bodies,) in ask(up.home, "SELECT bodies FROM batches_duplicates"))


@contextlib.contextmanager
def telegraf(output: str, tmp: Path, port: int) -> Iterator[Callable[[range], None]]:
    """Telegraf with an output of docs/INTEGRATIONS.md, which sends what has the numbers that it is given."""
    if not TELEGRAF.exists():
        pytest.skip("no Telegraf: bin/provision engines builds it")
    listen = free_port()
    (documented,) = [text for text in samples("Telegraf", port) if f"outputs.{output}]" in text]
    (tmp / "telegraf.conf").write_text(f"""
[agent]
  interval = "100ms"
  flush_interval = "100ms"
  omit_hostname = true
[[inputs.socket_listener]]
  service_address = "tcp://127.0.0.1:{listen}"
  data_format = "influx"
{documented}
""")
    with (
        running([TELEGRAF, tmp / "telegraf.conf"], tmp / "telegraf.out", harness.environment(tmp), signal.SIGKILL),
        harness.poll(lambda: socket.create_connection(("127.0.0.1", listen))) as connection,
    ):
        yield lambda asked: connection.sendall(b"".join(b"given n=%di %d000000000\n" % (n, FIRST + n) for n in asked))
