"""Each background loop goes on after an item that raises, whatever it raises.

The loops are the programs' own. Each gets an item that raises what nobody foresaw, and then one that ends the loop.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import worker
from sluice import settings
from sluice.base import daemon
from sluice.contrib.autoscale import scale
from sluice.contrib.kafka import inlet as kafka
from sluice.contrib.page import page, rejections
from sluice.contrib.sentinel import sentinels
from sluice.contrib.views import follower, lease, refresh
from sluice.run import supervise
from sluice.spool import inlet
from sluice.streams.built_in import STREAMS


class Over(BaseException):
    """Ends a loop."""


class Odd:
    """An item: whatever is asked of it raises an error that nobody foresaw; the second time, Over."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        raise RuntimeError("nobody foresaw this") if self.asked == 1 else Over

    def __getattr__(self, _: str) -> Any:
        return self


def made(kind: type[Any], **given: Any) -> Any:
    """An object of a class with these attributes alone."""
    one = object.__new__(kind)
    vars(one).update(given)
    return one


def work(odd: Odd, _: pytest.MonkeyPatch) -> None:
    outlet: Any = SimpleNamespace(name="the list", has_work=odd)
    given = {"outlet": outlet, "store": odd, "states": [], "stopping": False, "logged": {}, "renew": lambda: None}
    made(worker.Worker, **given, wake=SimpleNamespace(acquire=lambda timeout: None)).run()


def renew(odd: Odd, _: pytest.MonkeyPatch) -> None:
    claims = [SimpleNamespace(claim="a claim", stream=STREAMS["votes"], error="")]
    made(worker.Worker, outlet=SimpleNamespace(renew=odd), states=claims, stopping=False).renew()


def ask(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(sentinels.Sentinels, name="sluice", learn=lambda *_: None).ask(0, odd)


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


def size(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "Pool", lambda _: SimpleNamespace(replace=odd, close=lambda: None))
    scale.main()


def show_output(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(supervise.Output).go_on(odd)


def reconnect(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(inlet.Inlet, away=True, redis=odd).reconnect()


def keep(odd: Odd, _: pytest.MonkeyPatch) -> None:
    made(kafka.Inlet).keep(odd, None, 0.0)


def follow(odd: Odd, _: pytest.MonkeyPatch) -> None:
    source: Any = SimpleNamespace(prepare=lambda streams: None)
    given = {"stopping": False, "token": "t", "turn": odd, "reason": None, "socket": "", "generations": []}
    given |= {"views": {}, "source": source}
    made(follower.Follower, **given, wake=SimpleNamespace(acquire=lambda timeout: None)).run()


def hold(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "ViewsClient", lambda _: odd)
    lease.keep("", lambda: "t")


def recount(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "open_row_source", lambda *_: odd)
    given = {"client": odd, "url": "", "streams": {}, "every": 0.0, "reason": "", "stopping": threading.Event()}
    made(refresh.Refresher, **given, token=lambda: "t").run("/votes/tally", True)


ITEMS = (work, renew, ask, show, report, count, size, show_output, reconnect, keep, follow, hold, recount)


@pytest.mark.parametrize("item", ITEMS)
def test_a_loop_goes_on_after_an_item_that_raises(
    item: Callable[[Odd, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    odd = Odd()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(settings, "load", lambda: SimpleNamespace(home=tmp_path, workers=1))
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(daemon, "give_way", lambda: None)  # this process has signals and a priority of its own
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(Over):
        item(odd, monkeypatch)
    assert odd.asked >= 2
