"""What the store takes and returns: the bodies of a claim, dead letters, the counts of a stream, and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sluice.spool.errors import NewerLayout
from sluice.streams.record import Decoded, Record, Reject

Row = tuple[Any, ...]


class Body(msgspec.Struct, frozen=True, gc=False):
    """A body of a claim, decoded; what is left of it, once the records are gone that are stored already.

    received: microseconds since 1970. item: as it is in the list. is_single: it is one record, or one reject, alone: if
    that cannot be stored, the dead letter is the whole item.
    """

    seq: int
    received: int
    item: bytes
    records: Sequence[Record]
    rejects: Sequence[Reject] = ()
    is_single: bool = False

    @classmethod
    def from_decoded(cls, seq: int, received: int, item: bytes, decoded: Decoded) -> Body:
        records, rejects = decoded.records, decoded.rejects
        return cls(seq, received, item, records, rejects, len(records) + len(rejects) == 1)

    def __len__(self) -> int:
        return len(self.records) + len(self.rejects)

    def with_results(self, records: Sequence[Record], rejects: Sequence[Reject]) -> Body:
        return Body(self.seq, self.received, self.item, records, rejects, self.is_single)

    def part(self, start: int, end: int) -> Body:
        """Some of its records and, behind them, its rejects."""
        count = len(self.records)
        return self.with_results(self.records[start:end], self.rejects[max(0, start - count) : max(0, end - count)])


class Origin(NamedTuple):
    """Where the bodies of one insert come from.

    batch: the id of their claim in `batches`. senders: the names of those who sent the bodies, by sequence number.
    whole: False if they are of a partial dead letter. reason: of that letter; "" if they were never buried.
    """

    batch: int
    senders: Mapping[int, str]
    whole: bool = True
    reason: str = ""


class Unavailable(Exception):
    """The store cannot be written now. Nothing of the batch was stored; all of it can be retried.

    what: of it is unavailable.
    """

    what = "the database"


class NotMade(Unavailable):
    """There is no database yet: the first worker makes it."""


class Full(Unavailable):
    """A transaction needs more of the disk than it may have."""

    def __init__(self, why: str, room: int) -> None:
        """room: bytes that it might have written."""
        super().__init__(why)
        self.room = room


class NewerTables(Unavailable, NewerLayout):
    """See `NewerLayout`."""


class RowsRejected(Unavailable):
    """A value among the records is rejected. None of them was stored; `Bisection` finds the rejected one.

    by: the database or the destination.
    """

    def __init__(self, reason: str, by: str = "the database") -> None:
        super().__init__(reason)
        self.by = by


class Outcome(NamedTuple):
    """Records stored and dead letters buried from a claim. again: the store already had all of it; nothing changed."""

    records: int
    letters: int
    again: bool = False

    def plus(self, other: Outcome) -> Outcome:
        return Outcome(self.records + other.records, self.letters + other.letters)


class Ledger(NamedTuple):
    """A stream's counts in the store.

    bodies: all persisted bodies. dead: those with at least one dead letter.
    persisted: how many bodies of each of the given claims the store has.
    earlier: bodies that were accepted, and whose numbers are not in the present list: Redis has lost them.
    purged: how many bodies of each epoch were purged, as the database knows it.
    duplicate: bodies that were not stored, because another one had their key.
    deleted: rows deleted by age. expired: bodies of which the last dead letter was deleted by age.
    ahead: bodies that are stored, and that the list has not settled yet: see `Partitions`.
    """

    bodies: int
    dead: int
    persisted: dict[str, int]
    earlier: int = 0
    purged: dict[str, int] = {}
    duplicate: int = 0
    expired: int = 0
    deleted: int = 0
    ahead: int = 0


class Epoch(NamedTuple):
    """A row of `batches_epochs`: a history of a cell's list.

    first: its first number. last: the highest one that is known to have been given to a body. purged: bodies.
    """

    stream: str
    epoch: str
    cell: str
    first: int
    last: int
    purged: int


class CellFigures(NamedTuple):
    """The figures that a cell has published. seconds: since then. figures: see `sluice.account`."""

    cell: str
    seconds: float
    figures: dict[str, Any]
