"""`tally`: how many rows of a key have each value of a field, such as the votes of a poll for each choice.

It is counted in the database when a client asks, and kept for twice its period (see refresh.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sluice.base.override import override
from sluice.contrib.views import contract
from sluice.contrib.views.kinds.view import ToJson, View, ViewFigures

if TYPE_CHECKING:
    from sluice.contrib.views.link import Place
    from sluice.contrib.views.rows.source import RowSource

NEWEST_KEYS = 100  # whose age and memory the figures take: those that clients asked for last


@dataclass(frozen=True)
class Tally(View):
    """Counts by the values of `by`. period: seconds between two counts while clients ask."""

    period: float
    by: str

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self.key, self.by

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
        return contract.kept_key(path, self, "")

    @override
    def figures(self, path: str, ask: Callable[..., list[Any]]) -> ViewFigures:
        wanted = contract.wanted_key(path)
        keys, newest, refreshes = ask(
            ("ZCARD", wanted), ("ZREVRANGE", wanted, 0, NEWEST_KEYS - 1), ("HGET", contract.REFRESHES, path)
        )
        names = [contract.kept_key(path, self, key.decode(errors="surrogateescape")) for key in newest]
        kept = iter(ask(*((verb, name) for name in names for verb in ("PTTL", "STRLEN"))))
        found = [(left, size) for left, size in zip(kept, kept) if size]  # empty: the key is unknown
        age = max((2 * self.period - left / 1000 for left, _ in found), default=None)
        taken = sum(size for _, size in found) + sum(map(len, names)) + contract.ENTRY_BYTES * len(names)
        memory = taken * keys // max(1, len(names))
        return ViewFigures(path, "served", keys, lag=age, refreshes=int(refreshes or 0), bytes=memory)

    def count(self, source: RowSource, key: str) -> bytes:
        """The JSON of a value, counted now; empty if there is no row."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        choices, total = source.count(self.stream, self.key, self.by, key)
        if not total:
            return b""
        ordered = dict(sorted(choices.items(), key=lambda item: (-item[1], item[0])))
        value = {self.key: key, "total": total, "choices": ordered, "as_of": now}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def may_serve(self, kept: bytes, counted: bytes) -> bool:
        """Whether a kept value is right if it would be `counted` now: rows may have been added since."""
        value: Any = json.loads(counted) if counted else {"choices": {}, "total": 0}
        now, left = value["choices"], value["total"] - sum(value["choices"].values())  # rows of other choices
        return all(now.get(choice, left) >= n for choice, n in json.loads(kept)["choices"].items())


def kept_json(place: Place, limit: int) -> bytes:
    data, start, stop = place
    return data[start:stop]


def tally(stream: str, key: str, by: str, period: float = 90) -> Tally:
    """A view with counts, such as the votes of a poll for each choice.

    period: seconds between two counts, at least 1.
    """
    return Tally(stream, key, period, by)
