"""Which folders of contrib this checkout has, for tests that speak of the whole."""

from __future__ import annotations

import pytest

from proving.harness import ROOT


def has(*folders: str) -> bool:
    return all((ROOT / "sluice/contrib" / folder / "register.py").exists() for folder in folders)


def needs(*folders: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(*folders), reason=f"no folder {', '.join(folders)} of contrib")
