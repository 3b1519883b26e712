"""Print what bin/provision installs for these settings beside the part `up`, one part a line.

bin/up runs this before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import re
from pathlib import Path

from sluice import settings

ROOT = Path(__file__).parents[2]
GROUP = re.compile(r"^(\w+) = .*# INGEST_", re.MULTILINE)  # of packages for a scheme of INGEST_SPOOL or INGEST_ROWS


def parts(s: settings.Settings) -> list[str]:
    schemes = {url.partition(":")[0] for url in (s.spool, *s.rows.values()) if url}
    groups = GROUP.findall((ROOT / "pyproject.toml").read_text())
    return ["pypy"] * (s.runtime == "pypy") + [group for group in groups if group in schemes]


if __name__ == "__main__":
    print("\n".join(parts(settings.load_or_exit())))
