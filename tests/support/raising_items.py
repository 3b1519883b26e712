"""An item that raises what nobody foresaw, for the loops of programs and threads."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice import settings

PAUSES = 1000


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


Loop = Callable[[Odd, pytest.MonkeyPatch], None]


def goes_on(item: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that a loop goes on after an item that raises, and ends with Over."""
    odd = Odd()
    pauses, sleep = itertools.count(), time.sleep
    earlier = {*threading.enumerate()} - {threading.current_thread()}  # threads that other tests have left

    def pause(seconds: float) -> None:
        if threading.current_thread() in earlier:
            sleep(seconds)
        else:
            assert next(pauses) < PAUSES, "the loop never asks the item"

    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(settings, "load_settings", lambda: SimpleNamespace(home=tmp_path, workers=1))
    (tmp_path / "run").mkdir()
    # this process has signals and a priority of its own; without contrib no program gives way
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with contextlib.suppress(ImportError):
        monkeypatch.setattr("sluice.contrib.background.give_way", lambda: None)
    with pytest.raises(Over):
        item(odd, monkeypatch)
    assert odd.asked >= 2
