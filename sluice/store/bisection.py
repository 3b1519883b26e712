"""Storing rows of which the database rejects some: it says why, but not always which.

All bodies of a claim are inserted at once, behind a savepoint. If that is rejected, they are inserted in halves, and
the rejected half in halves again, until the rejected rows are alone: n of them among m take about n·log2(m)
insertions. So many are bounded (`bounds.SEARCH_INSERTS`), because a constraint that all rows break would need one for
each. When they are used up, what is left of each piece of `bounds.CHUNK_RECORDS` is buried together, valid rows among
them, too; `replay` stores these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from sluice.store import transaction_limits
from sluice.store.types import Body, Outcome, RowsRejected
from sluice.streams.message import sender_head, sender_of
from sluice.streams.record import Record, Reject

Bodies = Sequence[Body]


def store_or_bury(insert: Callable[[Bodies], Outcome], bodies: Bodies) -> Outcome:
    """Insert bodies, and bury what is rejected. insert: see `Bisection`."""
    try:
        return insert(bodies)
    except RowsRejected:
        return Bisection(insert).store_bodies(bodies)


class Bisection:
    """insert: stores the records of bodies and buries their rejects, all or nothing. Raises: RowsRejected."""

    def __init__(self, insert: Callable[[Bodies], Outcome]) -> None:
        self.insert = insert
        self.left = transaction_limits.SEARCH_INSERTS

    def store_bodies(self, bodies: Bodies) -> Outcome:
        """Insert all that is not rejected, and bury the rest. Not all of it can be inserted at once."""
        outcome = Outcome(0, 0)
        for piece in split_bodies(bodies, transaction_limits.CHUNK_RECORDS):
            outcome = outcome.plus(self.search(piece))
        return outcome

    def search(self, bodies: Bodies) -> Outcome:
        """`store_bodies` for bodies with rejected records."""
        self.left -= 1
        try:
            return self.insert(bodies)
        except RowsRejected as error:
            size = sum(map(len, bodies))
            if size == 1 or self.left <= 0:
                reason = " ".join(f"rejected by {error.by}: {error}".split())[:200]
                return self.insert([bury_records(body, reason) for body in bodies])
        outcome = Outcome(0, 0)
        for half in split_bodies(bodies, (size + 1) // 2):
            outcome = outcome.plus(self.search(half))
        return outcome


def split_bodies(bodies: Bodies, size: int) -> Iterator[list[Body]]:
    """The bodies in lists of so many records and rejects; a body may be in several."""
    if sum([len(body.records) + len(body.rejects) for body in bodies]) <= size:
        yield [*bodies]
        return
    piece: list[Body] = []
    room = size
    for body in bodies:
        at, count = 0, len(body)
        while at < count:
            part = body if count <= room and not at else body.part(at, at + room)
            piece.append(part)
            at += len(part)
            room -= len(part)
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


def bury_records(body: Body, reason: str) -> Body:
    """A body with rejects in the place of its records. Several are one letter, up to MERGED_BYTES."""
    # the text of a reject itself was rejected, such as its reason: keep what was sent, not our words for it
    rejects = [reject._replace(reason=reason) for reject in body.rejects]
    if body.is_single and body.records:
        return body.with_results((), [Reject(body.item, reason, True)])
    parts, size = list[bytes](), 0
    head = sender_head(sender_of(body.item)) if body.records else b""
    for record in body.records:
        parts.append(encode_record(record))
        size += len(parts[-1])
        if size >= transaction_limits.MERGED_BYTES:
            rejects.append(Reject(head + b"\n".join(parts), reason))
            parts, size = [], 0
    if parts:
        rejects.append(Reject(head + b"\n".join(parts), reason))
    return body.with_results((), rejects)


def encode_record(record: Record) -> bytes:
    """A body that holds this record alone."""
    try:
        return msgspec.json.encode(record)
    except Exception:  # this text can be read, but not replayed
        return repr(record).encode("utf-8", "backslashreplace")
