"""The loops of the page: each goes on after an item that raises. tests/test_loops.py has those of the core."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.contrib.page import page, rejections
from support.raising_items import Loop, Odd, goes_on, made


def show(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "Page", lambda _: SimpleNamespace(look=odd))
    monkeypatch.setattr(page, "Rejections", lambda *_: SimpleNamespace(write=odd, report=lambda: None))
    page.main()


def report(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "Page", lambda _: SimpleNamespace(look=dict))
    monkeypatch.setattr(page, "Rejections", lambda *_: SimpleNamespace(write=lambda: None, report=odd))
    page.main()


def count(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(rejections.Rejections, inbox=odd).listen()


LOOPS = (show, report, count)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_after_an_item_that_raises(loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    goes_on(loop, monkeypatch, tmp_path)
