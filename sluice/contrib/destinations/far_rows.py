"""Rows that a destination does not take: they become dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from sluice.store.store import Store
from sluice.store.types import Body, Origin
from sluice.streams.message import NOBODY
from sluice.streams.record import Reject

# a row that is elsewhere: (batch, sequence number, received: microseconds since 1970, a body that has it alone)
FarRow = tuple[int, int, int, bytes]


def bury_rows(store: Store[Any], db: Any, stream: str, rows: Iterable[FarRow], reason: str, whole: bool = False) -> int:
    """Bury rows that were stored elsewhere, and are not there; their number.

    reason: of one line or more. whole: each one is the whole of its body, as it was sent.
    """
    reason = " ".join(reason.split())[:200]
    total = 0
    for batch, some in groupby(rows, key=itemgetter(0)):
        bodies = [Body(seq, received, body, (), (Reject(body, reason, whole),)) for _, seq, received, body in some]
        store.bury_rejects(db, stream, Origin(batch, NOBODY, whole), bodies)
        total += len(bodies)
        taken = "UPDATE batches SET records = records - ? WHERE id = ? RETURNING 1"
        if not store.run_sql(db, taken, (len(bodies), batch)):
            unfold(store, db, stream, batch, bodies[0].seq)
    return total


def unfold(store: Store[Any], db: Any, stream: str, batch: int, seq: int) -> None:
    """Put back a row of `batches` that was folded, because a body of it is dead now."""
    epoch = store.run_sql(
        db,
        "SELECT f.epoch FROM batches_folded AS f JOIN batches_ranges AS r "
        "ON r.stream = f.stream AND r.epoch = f.epoch AND ? BETWEEN r.first AND r.last "
        "WHERE f.stream = ? AND ? BETWEEN f.first_batch AND f.last_batch",
        (seq, stream, batch),
    )  # two may fit (docs/protocol/database.md)
    store.run_sql(
        db,
        "INSERT INTO batches (id, claim, stream, first, bodies, records, persisted_at) "
        f"{store.WITH_ID} VALUES (?, ?, ?, ?, 1, 0, {store.NOW})",
        (batch, f"{epoch[0][0] if epoch else ''}:{seq}:{batch}", stream, seq),
    )
