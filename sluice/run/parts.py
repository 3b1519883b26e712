"""Print what bin/provision installs for these settings beside the part `up`, one part a line.

bin/up runs this before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

from sluice import places, registry, settings
from sluice.home_settings import load_for_start
from sluice.parsers import ByStream
from sluice.places import ROOT

GROUP = re.compile(r"^(\w+) = \[", re.MULTILINE)
KINDS = "spools", "databases", "destinations"


def extras(s: settings.Settings) -> set[str]:
    """What these settings need beside what every cell needs."""
    return {entry.extra for url in setting_urls(s) for kind in KINDS if (entry := registry.of_url(kind, url))} - {""}


def lacking(s: settings.Settings) -> list[str]:
    """The extras of the installed package that these settings need, and that are not installed."""
    wanted = metadata.requires(places.DISTRIBUTION) or []
    return [extra for extra in sorted(extras(s)) if any(f'"{extra}"' in each and not is_there(each) for each in wanted)]


def is_there(requirement: str) -> bool:
    try:
        return bool(metadata.version(re.split(r"[^\w.-]", requirement)[0]))
    except metadata.PackageNotFoundError:
        return False


def needed_parts(s: settings.Settings) -> list[str]:
    found = extras(s)
    groups = GROUP.findall((ROOT / "pyproject.toml").read_text())  # of others, `up` has all that they need
    return ["pypy"] * (s.runtime == "pypy") + [group for group in groups if group in found]


def setting_urls(s: settings.Settings) -> Iterator[str]:
    """The texts among the values of all settings."""
    for value in s.values().values():
        for each in value.values() if isinstance(value, ByStream) else (value,):
            if isinstance(each, str):
                yield each


if __name__ == "__main__":
    with settings.exit_if_invalid():
        print("\n".join(needed_parts(load_for_start())))
