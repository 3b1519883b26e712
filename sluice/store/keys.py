"""Keys in the transaction of their claim: what has a key that another body has is not stored again.

A key commits with the rows of its body, so no crash can part the two. If two transactions store one key at the same
time, one of them waits for the other. A key is kept whether its body is stored or dead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Generator
from typing import Any, TypeVar

from sluice.store import bounds
from sluice.store.bookkeeping import KEYS, Bookkeeping

T = TypeVar("T")


class Keys:
    """The keys of a batch, in its transaction. duplicates: bodies that were not stored, because of their keys."""

    def __init__(self, store: Bookkeeping[Any], db: Any, stream: str, batch: int) -> None:
        self.store, self.db, self.stream, self.batch = store, db, stream, batch
        self.seen: set[bytes] = set()
        self.horizon: int | None = None  # seconds since 1970
        self.duplicates = 0

    def claim(self, keys: Collection[bytes], received: int) -> set[bytes]:
        """Take keys for this batch; those of them that it or another batch had. received: see `claiming`."""
        claiming = self.claiming()
        next(claiming)
        claiming.send((keys, received))
        return end(claiming)

    def claiming(self) -> Generator[None, tuple[Collection[bytes], int] | None, set[bytes]]:
        """`claim` in pieces, the last of which is None: the database puts one while the next one is made.

        A piece is keys and when they came (microseconds since 1970), by a clock that may be behind, as may be that of
        this process: a key is as old as the latest of both times and the one up to which keys expire. No two pieces
        have a key in common. Until the end, nothing else may use the connection.
        """
        again, new, received = set[bytes](), list[bytes](), 0
        if self.horizon is None:
            self.horizon = self.store.get_horizon(self.db, KEYS) // 1_000_000
        put = self.store.put_keys(self.db, self.stream, self.batch)
        with contextlib.closing(put):
            next(put)
            while given := (yield):
                keys, received = given
                known = self.seen.intersection(keys)
                self.seen.update(keys)
                again |= known
                # sorted: the index is read in its order, and two transactions take the keys of a piece in one order. If
                # they meet over pieces, the database ends one of them, and its worker stores the claim again
                if piece := sorted([key for key in keys if key not in known] if known else keys):
                    put.send((max(received // 1_000_000, int(time.time()), self.horizon), piece))
                    new += piece
            if end(put) == len(new):
                return again
        gone = set[bytes]()  # they have expired since they were there
        for start in range(0, len(new), bounds.ASKED_KEYS):
            asked = new[start : start + bounds.ASKED_KEYS]
            listed = ", ".join("?" * len(asked))
            found = f"SELECT key, batch <> ? FROM batches_keys WHERE key IN ({listed}) AND stream = ?"
            there: dict[bytes, bool] = dict(self.store.run(self.db, found, (self.batch, *asked, self.stream)))
            again.update(key for key, others in there.items() if others)
            gone.update(key for key in asked if key not in there)
        if gone:
            self.seen -= gone
            again |= self.claim(gone, received)
        return again

    def release(self, key: bytes) -> None:
        """Give back a key that was new."""
        gone = "DELETE FROM batches_keys WHERE key = ? AND stream = ? AND batch = ?"
        self.store.run(self.db, gone, (key, self.stream, self.batch))
        self.seen.discard(key)

    def leave(self) -> None:
        """Make these keys those of no batch: what else has one of them is a duplicate, also if it is of this batch."""
        asked = sorted(self.seen)
        for start in range(0, len(asked), bounds.ASKED_KEYS):
            some = asked[start : start + bounds.ASKED_KEYS]
            left = f"UPDATE batches_keys SET batch = 0 WHERE key IN ({', '.join('?' * len(some))}) AND stream = ? "
            self.store.run(self.db, left + "AND batch = ?", (*some, self.stream, self.batch))

    def count(self, epoch: str) -> None:
        """Count the duplicates in the ledger."""
        if self.duplicates:
            put = (
                "INSERT INTO batches_duplicates AS d (stream, epoch, bodies) VALUES (?, ?, ?) "
                "ON CONFLICT (stream, epoch) DO UPDATE SET bodies = d.bodies + excluded.bodies"
            )
            self.store.run(self.db, put, (self.stream, epoch, self.duplicates))


def end(pieces: Generator[None, Any, T]) -> T:
    """Tell a generator that there are no more pieces; what it returns."""
    try:
        pieces.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise AssertionError("it asks for more")
