"""Each background loop goes on after an item that raises, whatever it raises.

The loops are the programs' own. Each gets an item that raises what nobody foresaw, and then one that ends the loop.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import worker
from sluice.run import supervise
from sluice.spool import inlet
from sluice.streams.built_in import STREAMS
from support.raising_items import Loop, Odd, goes_on, made


def work(odd: Odd, _: pytest.MonkeyPatch) -> None:
    outlet: Any = SimpleNamespace(name="the list", has_work=odd)
    given = {"outlet": outlet, "store": odd, "states": [], "stopping": False, "logged": {}, "renew": lambda: None}
    made(worker.Worker, **given, wake=SimpleNamespace(acquire=lambda timeout: None)).run()


def renew(odd: Odd, _: pytest.MonkeyPatch) -> None:
    states = [SimpleNamespace(held_claims=lambda: ["a claim"], stream=STREAMS["votes"], error="")]
    made(worker.Worker, outlet=SimpleNamespace(renew=odd), states=states, released=False).renew()


def show_output(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(supervise.Output).go_on(odd)


def reconnect(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(inlet.Inlet, away=True, redis=odd).reconnect()


LOOPS = (work, renew, show_output, reconnect)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_after_an_item_that_raises(loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    goes_on(loop, monkeypatch, tmp_path)
