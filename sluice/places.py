"""Where the programs and their files are, in a checkout and in an installed package.

ROOT has ingest.py, worker.py, gunicorn.conf.py, nginx/ and deploy/, and programs run in it. In a checkout that is its
root; the wheel has the same files, in the package itself (setup.py).
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = (PACKAGE.parent / "gunicorn.conf.py").exists()
ROOT = PACKAGE.parent if CHECKOUT else PACKAGE / "root"
UP = "bin/up" if CHECKOUT else "sluice up"
SERVICES = "bin/provision services" if CHECKOUT else "sluice services"
DISTRIBUTION = "sluice-ingest"  # on the package index, where `sluice` is another one


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
