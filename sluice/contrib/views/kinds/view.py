"""What every view has. Standard library only, as all kinds: the reader runs on PyPy.

Most kinds are subclasses of `Followed`: their values follow the rows. A `Tally` is counted when a client asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sluice.contrib.views import contract

# The value as it was received, and the number of items that the client wants -> JSON
ToJson = Callable[[Any, int], bytes]


class ViewFigures(NamedTuple):
    """The figures of one view; an unknown one is None.

    state: served, crowded (it refuses new keys), full, building (for the first time), or unavailable (so is the views'
        Redis).
    keys: of a tally, those that clients asked for within two periods. rows: applied since the generation was begun.
    lag: seconds; rows committed earlier are applied. Of a tally: the age of its oldest kept count.
    refreshes: of a tally, the counts made; None for other views. reads: answers by status. Both since the views' Redis
    was started.
    bytes: of memory, about.
    """

    path: str
    state: str
    keys: int | None = None
    rows: int | None = None
    lag: float | None = None
    refreshes: int | None = None
    reads: dict[str, int] | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class View(ABC):
    """A declaration. Its text is a part of the fingerprint: a change of it builds the view again."""

    stream: str
    key: str

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """The fields of the stream that it names, the key first."""

    @property
    def problem(self) -> str:
        """Why it cannot be served, or ""."""
        return ""

    @property
    def max_limit(self) -> int:
        """The highest `limit` that a client may ask for; 0: its values have no items."""
        return 0

    @property
    def string(self) -> bool:
        """Whether its values are strings, all of which one command reads; the others are hashes."""
        return True

    @abstractmethod
    def to_json(self) -> ToJson:
        """What makes the JSON of a value: of a string from its Place, of a hash from its fields and values in turn."""

    def state(self, path: str) -> str:
        """The key of the state, which names the generation that is served; "" if it has no generations."""
        return contract.state_key(path)

    def prefix(self, path: str, generation: str) -> str:
        """The beginning of the keys of its values."""
        return contract.generation_prefix(path, generation)

    @abstractmethod
    def figures(self, path: str, ask: Callable[..., list[Any]]) -> ViewFigures:
        """The figures but for reads. ask: `ViewsClient.ask`."""
