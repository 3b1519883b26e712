"""`tally`: how many rows of a key have each value of a field, such as the votes of a poll for each choice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sluice.base.override import override
from sluice.views.kinds.counted import Counted

if TYPE_CHECKING:
    from sluice.views.rows.source import RowSource


@dataclass(frozen=True)
class Tally(Counted):
    """Counts by the values of `by`."""

    by: str

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self.key, self.by

    @override
    def count(self, source: RowSource, key: str) -> bytes:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        choices, total = source.count(self.stream, self.key, self.by, key)
        if not total:
            return b""
        ordered = dict(sorted(choices.items(), key=lambda item: (-item[1], item[0])))
        value = {self.key: key, "total": total, "choices": ordered, "as_of": now}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    @override
    def make_countable(self, source: RowSource) -> None:
        source.make_countable(self.stream, self.key, self.by)

    @override
    def may_serve(self, kept: bytes, counted: bytes) -> bool:
        value: Any = json.loads(counted) if counted else {"choices": {}, "total": 0}
        now, left = value["choices"], value["total"] - sum(value["choices"].values())  # rows of other choices
        return all(now.get(choice, left) >= n for choice, n in json.loads(kept)["choices"].items())


def tally(stream: str, key: str, by: str, period: float = 90) -> Tally:
    """A view with counts, such as the votes of a poll for each choice.

    period: seconds between two counts, at least 1.
    """
    return Tally(stream, key, period, by)
