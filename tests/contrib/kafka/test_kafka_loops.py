"""The loops of Kafka: each goes on after an item that raises. tests/test_loops.py has those of the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.contrib.kafka import inlet as kafka
from support.raising_items import Loop, Odd, goes_on, made


def keep(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(kafka.Inlet).keep(odd, None, 0.0)


LOOPS = (keep,)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_after_an_item_that_raises(loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    goes_on(loop, monkeypatch, tmp_path)
