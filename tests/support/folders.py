"""Which folders of contrib this checkout has, for tests that speak of the whole."""

from __future__ import annotations

import re

import pytest

from proving.harness import ROOT

ALL = (
    "access",
    "autoscale",
    "destinations",
    "formats",
    "forward",
    "hooks",
    "kafka",
    "page",
    "postgres",
    "sentinel",
    "unknown_fields",
    "views",
)


def has(*folders: str) -> bool:
    return all((ROOT / "sluice/contrib" / folder / "register.py").exists() for folder in folders)


def needs(*folders: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(*folders), reason=f"a folder of contrib is not here: {', '.join(folders)}")


whole = needs(*ALL)


def lacks(path: str) -> bool:
    """Whether a path or a dotted name is of a folder of contrib that is not here."""
    if not any(map(has, ALL)):
        return bool(re.search(r"\bcontrib\b", path))
    return any(f"contrib{mark}{folder}" in path for mark in "./" for folder in ALL if not has(folder))
