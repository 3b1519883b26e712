"""The options of all benchmarks, and the parameters of the machine that every result states."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rig.environment import BENCH, ROOT

# The interpreters of the gateway, as bin/up starts it.
OURS = {"cpython": ROOT / ".venv/bin/python", "pypy": ROOT / ".venv-pypy/bin/python"}

Figures = dict[str, Any]


def options(
    doc: str | None,
    *,
    rounds: int,
    seconds: float,
    warm: float = 8,
    heads: bool = False,
    extra: Callable[[argparse.ArgumentParser], object] | None = None,
) -> argparse.Namespace:
    """Parse the command line: the options of every benchmark, and those that `extra` adds to the parser.

    heads: it measures clients, whose heads can be chosen.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="alternating rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=seconds, help="seconds of load per run (%(default)s)")
    parser.add_argument(
        "--warm", type=float, default=warm, help="seconds of discarded load first, for the JIT of PyPy (%(default)s)"
    )
    if heads:
        parser.add_argument(
            "--one-head", action="store_true", help="one head and one address for all clients, instead of real ones"
        )
    parser.add_argument(
        "--quick", action="store_true", help="one round of two seconds, to check that the benchmark runs"
    )
    parser.add_argument(
        "--dir", default="/var/tmp", help="directory for the files of Redis, on a real disk (%(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, default=BENCH / "results", help="directory of the results (bench/results)"
    )
    if extra:
        extra(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.warm = 1, 2.0, 3.0
    return chosen


def output(*command: object) -> str:
    """The output of a command, both streams; "" if it is not installed."""
    try:
        done = subprocess.run(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env=os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout.strip()


def versions(python: Path, *packages: str) -> str:
    """The versions of an interpreter and of packages in its environment, as one line."""
    code = (
        "import platform as p, importlib.metadata as m, sys\n"
        "pypy = ' (PyPy %d.%d.%d)' % sys.pypy_version_info[:3] if p.python_implementation() == 'PyPy' else ''\n"
        f"have = {{d.metadata['Name'].lower(): d.version for d in m.distributions()}}\n"
        f"print(p.python_version() + pypy, *(n + ' ' + have[n] for n in {packages!r} if n in have), sep=', ')"
    )
    return output(python, "-c", code)


def machine(where: str) -> dict[str, str]:
    """The parameters of the machine and the software that the figures depend on. where: the directory of Redis."""
    model = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0].strip("\t: ")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    dirty = (
        " and uncommitted changes"
        if output("git", "status", "--porcelain", "-uno", "--", ":!bench/results", ":!*.md")
        else ""
    )
    packages = "gunicorn", "gevent", "redis", "hiredis"
    return {
        "machine": f"{os.cpu_count()} cores, {model}, {memory:.0f} GiB",
        "kernel": platform.release(),
        "disk": output("stat", "-f", "-c", "%T", where),
        "somaxconn": Path("/proc/sys/net/core/somaxconn").read_text().strip(),
        "load before": "%.2f %.2f %.2f" % os.getloadavg(),
        "nginx": output("nginx", "-v").rpartition("/")[2],
        "redis": output("redis-server", "--version").partition("v=")[2].partition(" ")[0],
        "CPython": versions(OURS["cpython"], *packages),
        "PyPy": versions(OURS["pypy"], *packages),
        "commit": output("git", "rev-parse", "--short=12", "HEAD") + dirty,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def progress(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)
