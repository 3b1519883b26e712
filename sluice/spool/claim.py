"""What a worker takes from a list: a claim, and the epoch that its sequence numbers belong to.

Bodies on a list have no ids: appending one takes a single RPUSH. A body's number is its place among all that were ever
on the list, and it gets it when it is claimed: the counter `taken` then grows by the length of the claim.

    numbers    1 ── taken │ taken + 1 ── taken + ready
               claimed    │ ready
               EPOCH A    │ EPOCH A │ EPOCH B         a restart of Redis began epoch B behind what was there

Redis may lose its last writes in a crash or a failover, and then gives their numbers again, to other bodies. So a
number counts only within an epoch, a history of Redis in which no number is given twice; a claim has bodies of one
epoch. The database has the ranges of epoch and numbers that are stored, and refuses one that overlaps: this, and not
the claim, is why a body is stored once. A claim may be given to a second worker while the first one is only slow, and
both may try to store it.

A claim is held by a lease that its worker renews. When that ends, the next worker gets the same claim, with the same
numbers and a higher count of deliveries; after two, its bodies are stored one by one. A part of a claim is a claim
(`part`, `rest_from`): what is stored is settled, and the rest keeps its lease.

When a body arrived is not stored with it either: now and then a gateway leaves a mark, a number with a time, and a
body has that of the last mark at or before it (`arrival_of`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Window(NamedTuple):
    """The sequence numbers of the present list that belong to an epoch: from `first` to the one before `end`.

    taken: the last of them that was ever claimed; None if another epoch has followed: Redis has lost the bodies with
    higher numbers.
    """

    epoch: str
    first: int
    end: int
    taken: int | None = None


class Claim(NamedTuple):
    """Items in the hands of a worker: their bodies have the sequence numbers first, first + 1, …

    id: EPOCH:FIRST:MICROSECONDS, with the time of the claim. What identifies a body is epoch, stream and number.
    size: approximate bytes.
    marks: (sequence number, microseconds since 1970), ascending; the first one is the last mark at or before `first`.
    deliveries: how often a worker got it; more than once, if a worker died, hung, or was stopped.
    """

    stream: str
    id: str
    first: int
    count: int  # type: ignore[assignment]
    size: int
    marks: list[tuple[int, int]]
    deliveries: int = 1

    @classmethod
    def from_id(cls, stream: str, id: str, count: int) -> Claim:
        """A claim of which only the id and the number of bodies are known."""
        return cls(stream, id, int(id.split(":")[1]), count, 0, [])

    @property
    def epoch(self) -> str:
        return self.id.partition(":")[0]

    @property
    def end(self) -> int:
        return self.first + self.count

    def part(self, first: int, end: int) -> Claim:
        """The bodies from `first` to the one before `end`, as a claim of their own."""
        at = self.id.rpartition(":")[2]
        return self._replace(id=f"{self.epoch}:{first}:{at}", first=first, count=end - first)

    def rest_from(self, end: int) -> Claim | None:
        """The bodies from `end` on, as a claim of their own; None if there are none."""
        return self.part(end, self.end) if end < self.end else None

    def arrival_of(self, seq: int) -> tuple[int, int]:
        """When the body with this sequence number arrived (microseconds since 1970, up to 100 ms early), and the first
        sequence number to which the next mark applies.
        """
        at = bisect_left(self.marks, (seq + 1,))
        until = self.marks[at][0] if at < len(self.marks) else self.end
        return self.marks[max(at - 1, 0)][1], until
