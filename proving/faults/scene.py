"""What a fault is, and what it may touch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from proving.site import Site


class Scene(NamedTuple):
    """The target of a fault. run: the drill. cut: make that many clients close their connection early.

    count: of the clients. resting: the clients that read do nothing, and then expect nothing of what they saw before.
    """

    site: Site
    random: random.Random
    run: str
    cut: Callable[[int], None]
    count: Callable[[str], int]
    resting: Callable[[], contextlib.AbstractContextManager[None]]


class Fault(NamedTuple):
    """A fault: its description, and the function that injects it and returns details for the report.

    private: for private installations only. named: injected only if named. proof: the same, as it breaks a promise, to
    prove that the drill detects it. views: concerns the views only. cuts: while it lasts, a read may get 502, 504, or
    no response. forward: with --forward only.
    """

    words: str
    inject: Callable[[Scene], str]
    private: bool = False
    named: bool = False
    proof: bool = False
    views: bool = False
    cuts: bool = False
    forward: bool = False


FAULTS: dict[str, Fault] = {}


def fault(name: str, words: str, **kinds: bool) -> Callable[..., Any]:
    """Register a function in FAULTS. kinds: of `Fault`."""

    def enter(inject: Callable[[Scene], str]) -> Callable[[Scene], str]:
        FAULTS[name] = Fault(words, inject, **kinds)
        return inject

    return enter
