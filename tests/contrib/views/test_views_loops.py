"""The loops of the views: each goes on after an item that raises. tests/test_loops.py has those of the core."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.contrib.views import follower, lease, refresh
from support.raising_items import Loop, Odd, goes_on, made


def follow(odd: Odd, _: pytest.MonkeyPatch) -> None:
    source: Any = SimpleNamespace(prepare=lambda streams: None)
    given = {"stopping": False, "token": "t", "turn": odd, "reason": None, "socket": "", "generations": []}
    given |= {"views": {}, "source": source}
    made(follower.Follower, **given, wake=SimpleNamespace(acquire=lambda timeout: None)).run()


def hold(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "ViewsClient", lambda _: odd)
    lease.keep_lease("", lambda: "t")


def recount(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "open_row_source", lambda *_: odd)
    given = {"client": odd, "url": "", "streams": {}, "every": 0.0, "reason": "", "stopping": threading.Event()}
    made(refresh.Refresher, **given, token=lambda: "t").run("/votes/tally", True)


LOOPS = (follow, hold, recount)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_after_an_item_that_raises(loop: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    goes_on(loop, monkeypatch, tmp_path)
