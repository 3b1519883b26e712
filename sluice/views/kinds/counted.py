"""Views that are counted in the database when a client asks, and kept for twice their period (see refresh.py)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.base.override import override
from sluice.views import contract
from sluice.views.kinds.view import ToJson, View, ViewFigures

if TYPE_CHECKING:
    from sluice.views.link import Place
    from sluice.views.rows.source import RowSource

NEWEST_KEYS = 100  # whose age and memory the figures take: those that clients asked for last


@dataclass(frozen=True)
class Counted(View):
    """A view whose values are counted. period: seconds between two counts while clients ask."""

    period: float

    @abstractmethod
    def count(self, source: RowSource, key: str) -> bytes:
        """The JSON of a value, counted now; empty if there is no row."""

    @abstractmethod
    def make_countable(self, source: RowSource) -> None:
        """Create the index that makes `count` fast, and wait for its end."""

    @abstractmethod
    def may_serve(self, kept: bytes, counted: bytes) -> bool:
        """Whether a kept value is right if it would be `counted` now: rows may have been added since."""

    @property
    @override
    def problem(self) -> str:
        valid = type(self.period) in (int, float) and 1 <= self.period <= 86_400
        return "" if valid else "period is a number of seconds from 1 to 86400"

    @override
    def to_json(self) -> ToJson:
        return kept_json

    @override
    def state(self, path: str) -> str:
        return ""

    @override
    def prefix(self, path: str, generation: str) -> str:
        return contract.kept(path, self, "")

    @override
    def figures(self, path: str, ask: Callable[..., list[Any]]) -> ViewFigures:
        wanted = contract.wanted(path)
        keys, newest, refreshes = ask(
            ("ZCARD", wanted), ("ZREVRANGE", wanted, 0, NEWEST_KEYS - 1), ("HGET", contract.REFRESHES, path)
        )
        names = [contract.kept(path, self, key.decode(errors="surrogateescape")) for key in newest]
        kept = iter(ask(*((verb, name) for name in names for verb in ("PTTL", "STRLEN"))))
        found = [(left, size) for left, size in zip(kept, kept) if size]  # empty: the key is unknown
        age = max((2 * self.period - left / 1000 for left, _ in found), default=None)
        taken = sum(size for _, size in found) + sum(map(len, names)) + contract.ENTRY_BYTES * len(names)
        memory = taken * keys // max(1, len(names))
        return ViewFigures(path, "served", keys, lag=age, refreshes=int(refreshes or 0), bytes=memory)


def kept_json(place: Place, limit: int) -> bytes:
    data, start, stop = place
    return data[start:stop]
