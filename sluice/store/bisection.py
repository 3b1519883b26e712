"""Storing rows of which the database rejects some: it says why, but not always which.

All bodies of a claim are inserted at once, behind a savepoint. If that is rejected, their records and rejects are
inserted one thousand at a time (CHUNK_RECORDS), a rejected thousand in halves, and the rejected half in halves again,
until the rejected rows are alone: n of them among m take about n·log2(m) insertions. So many are bounded
(SEARCH_INSERTS), because a constraint that all rows break would need one for each. When they are used up, what is left
of each thousand is buried together, valid rows among them, too; `replay` stores these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from operator import attrgetter

import msgspec

from sluice.store import transaction_limits
from sluice.store.types import Body, Outcome, RowsRejected
from sluice.streams.message import sender_head, sender_of
from sluice.streams.record import Record, Reject

Bodies = Sequence[Body]


class Bisection:
    """insert: stores the records of bodies and buries their rejects, all or nothing. Raises: RowsRejected."""

    def __init__(self, insert: Callable[[Bodies], Outcome]) -> None:
        self.insert = insert
        self.left = transaction_limits.SEARCH_INSERTS

    def store_bodies(self, bodies: Bodies) -> Outcome:
        """Insert all that is not rejected, and bury the rest. Not all of it can be inserted at once."""
        outcome = Outcome(0, 0)
        single = (body.part(at, at + 1) for body in bodies for at in range(len(body)))  # a record or a reject
        while piece := [*islice(single, transaction_limits.CHUNK_RECORDS)]:
            outcome = outcome.plus(self.search(piece))
        return outcome

    def search(self, parts: Bodies) -> Outcome:
        """`store_bodies` for parts of bodies with a single record or reject each, some of which are rejected."""
        self.left -= 1
        try:
            return self.insert(parts)
        except RowsRejected as error:
            if len(parts) == 1 or self.left <= 0:
                reason = " ".join(f"rejected by {error.by}: {error}".split())[:200]
                return self.insert([bury_records([*some], reason) for _, some in groupby(parts, attrgetter("seq"))])
        middle = (len(parts) + 1) // 2
        return self.search(parts[:middle]).plus(self.search(parts[middle:]))


def bury_records(parts: Bodies, reason: str) -> Body:
    """A body with rejects in the place of its records. Several are one letter, up to MERGED_BYTES."""
    body = parts[0]
    records = [record for part in parts for record in part.records]
    # the text of a reject itself was rejected, such as its reason: keep what was sent, not our words for it
    rejects = [reject._replace(reason=reason) for part in parts for reject in part.rejects]
    if body.is_single and records:
        return body.with_results((), [Reject(body.item, reason, True)])
    merged, size = list[bytes](), 0
    head = sender_head(sender_of(body.item)) if records else b""
    for record in records:
        merged.append(encode_record(record))
        size += len(merged[-1])
        if size >= transaction_limits.MERGED_BYTES:
            rejects.append(Reject(head + b"\n".join(merged), reason))
            merged, size = [], 0
    if merged:
        rejects.append(Reject(head + b"\n".join(merged), reason))
    return body.with_results((), rejects)


def encode_record(record: Record) -> bytes:
    """A body that holds this record alone."""
    try:
        return msgspec.json.encode(record)
    except Exception:  # this text can be read, but not replayed
        return repr(record).encode("utf-8", "backslashreplace")
