"""Views that follow the rows: the follower reduces rows to values, and applies these to a generation."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sluice.base.override import override
from sluice.contrib.views import contract
from sluice.contrib.views.kinds.view import View, ViewFigures

if TYPE_CHECKING:
    from sluice.contrib.views.link import Command, Read
    from sluice.contrib.views.render import Rendered, Renderer

CALL_ITEMS = 500  # about a millisecond, in which the views' Redis answers no reader


class Followed(View):
    """A view whose values follow the rows."""

    @abstractmethod
    def reducer(self, renderer: Renderer) -> Reducer:
        """What reduces rows to its values; without rows yet."""

    @abstractmethod
    def decode(self, reply: Any) -> Any:
        """A value in the form of `Reducer.values`, from the reply to GET (HGETALL for a hash); there is one."""

    @abstractmethod
    def may_serve(self, served: Any, expected: Any) -> bool:
        """Whether a value is right if rows were deleted by age: those that are left, `expected`, would not change it.

        Both in the form of `Reducer.values`.
        """

    @override
    def figures(self, path: str, ask: Callable[..., list[Any]]) -> ViewFigures:
        state, crowded = ask(("GET", contract.state_key(path)), ("GET", contract.crowded_key(path)))
        if state in (None, contract.FULL):
            return ViewFigures(path, "full" if state else "building")
        (fields,) = ask(("HMGET", contract.info_key(path, state.decode()), "keys", "rows", "bytes", "synced"))
        keys, rows, size, synced = (int(field or 0) for field in fields)
        lag = max(0.0, time.time() - synced / 1000) if synced else None
        return ViewFigures(path, "crowded" if state == crowded else "served", keys, rows, lag, bytes=size)


class Reducer(ABC):
    """Holds, of the rows added so far, only those that the view would keep.

    The result depends on the set of rows only, not on their order or on how they are divided into calls: every
    comparison is of (time, sequence number, JSON) or (time, JSON), which is a total order. A script or transaction that
    applies the values to a generation compares alike.
    """

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}  # by key

    @abstractmethod
    def add(self, items: list[Rendered]) -> None: ...

    @abstractmethod
    def value(self, held: Any) -> Any:
        """The value of what is held of a key, in a form that can be compared."""

    def values(self) -> Iterator[tuple[str, Any]]:
        """The keys that a view may have, and their values."""
        for key, held in self.held.items():
            if len(key) <= contract.KEY_BYTES // 4 or len(key.encode()) <= contract.KEY_BYTES:
                yield key, self.value(held)

    @abstractmethod
    def commands(self, path: str, generation: str, token: str, room: int, read: Read) -> Iterator[Command]:
        """The commands that apply the values to a generation. They are sent in this order, and before another read.

        room: bytes that new keys may take. Other new keys are refused and counted; those that are there change always.
        """


def script_calls(
    pairs: Iterator[tuple[Any, Any]], size: Callable[[Any], int] = lambda value: 1
) -> Iterator[list[tuple[Any, Any]]]:
    """The pairs in lists for one script call each. size: of a value, in items."""
    call: list[tuple[Any, Any]] = []
    total = 0
    for pair in pairs:
        call.append(pair)
        total += size(pair[1])
        if total >= CALL_ITEMS:
            yield call
            call, total = [], 0
    if call:
        yield call
