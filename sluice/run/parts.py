"""Print what bin/provision installs for these settings beside the part `up`, one part a line.

bin/up runs this before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sluice import registry, settings
from sluice.parsers import ByStream

ROOT = Path(__file__).parents[2]
GROUP = re.compile(r"^(\w+) = \[", re.MULTILINE)
KINDS = "spools", "databases", "destinations"


def parts(s: settings.Settings) -> list[str]:
    found = [entry.extra for url in urls(s) for kind in KINDS if (entry := registry.of_url(kind, url))]
    groups = GROUP.findall((ROOT / "pyproject.toml").read_text())  # of others, `up` has all that they need
    return ["pypy"] * (s.runtime == "pypy") + [group for group in groups if group in found]


def urls(s: settings.Settings) -> Iterator[str]:
    """The texts among the values of all settings."""
    for value in s.values().values():
        for each in value.values() if isinstance(value, ByStream) else (value,):
            if isinstance(each, str):
                yield each


if __name__ == "__main__":
    print("\n".join(parts(settings.load_or_exit())))
