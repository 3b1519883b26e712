"""The loops of autoscale: each goes on after an item that raises. tests/test_loops.py has those of the core."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.contrib.autoscale import scale
from support.raising_items import Loop, Odd, goes_on


def size(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "Pool", lambda _: SimpleNamespace(replace=odd, close=lambda: None))
    scale.main()


LOOPS = (size,)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_after_an_item_that_raises(loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    goes_on(loop, monkeypatch, tmp_path)
