"""Keys in the transaction of their claim: what has a key that another body has is not stored again.

`sluice.streams.unique` says what a key is. All keys of the bodies are put with one statement, before the rows: it
inserts those that are not there, and says how many these were. Only if some were there, the database is asked whose
they are. A key commits with the rows of its body, so no crash can part the two. Keys are put in their order, so of two
transactions that put the same key at the same time, one waits for the other, and they never wait for each other.

Streams with keys of records put those of the bodies first: a body that is there already takes no key of a record, which
would keep the same record of another body out.

A key is kept whether its body is stored or dead.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from sluice.store import transaction_limits
from sluice.store.bookkeeping import KEYS, Bookkeeping
from sluice.store.types import Body
from sluice.streams.record import Limits
from sluice.streams.unique import Rule, record_key, sent_by

COUNT_DUPLICATES = """
INSERT INTO batches_duplicates AS d (stream, epoch, bodies) VALUES (?, ?, ?)
ON CONFLICT (stream, epoch) DO UPDATE SET bodies = d.bodies + excluded.bodies"""


class Keys:
    """The keys of a batch, in its transaction. duplicates: bodies that are not stored, because of their keys."""

    def __init__(self, store: Bookkeeping[Any], db: Any, stream: str, batch: int) -> None:
        self.store, self.db, self.stream, self.batch = store, db, stream, batch
        self.taken: list[Collection[bytes]] = []
        self.duplicates = 0

    def keep_new(self, rule: Rule, bodies: Sequence[Body], limits: Limits) -> Sequence[Body]:
        """What is left of bodies without what is stored already; it has got its keys.

        limits: with which they were decoded.
        """
        bodies = self.without_duplicates(rule, bodies, limits)
        if rule.recent is not None and bodies:
            bodies = rule.recent(self, bodies)
        return self.with_new_records(rule, bodies)

    def without_duplicates(self, rule: Rule, bodies: Sequence[Body], limits: Limits) -> Sequence[Body]:
        """The bodies whose keys are new. Of those with the same key, the first one counts."""
        keys = list[bytes | None]()
        pieces = self.store.order_keys(rule, bodies, limits, keys)
        begin = next(pieces, None)
        if begin is None:
            return bodies
        seen = self.take_keys(chain((begin,), pieces), bodies[-1].received)
        if not seen and len(self.taken[-1]) + keys.count(None) == len(bodies):
            return bodies
        new = list[Body]()
        for body, key in zip(bodies, keys):
            if key is None:
                new.append(body)
            elif key not in seen:
                new.append(body)
                seen.add(key)
        self.duplicates += len(bodies) - len(new)
        return new

    def with_new_records(self, rule: Rule, bodies: Sequence[Body]) -> Sequence[Body]:
        """The bodies with those of their records whose keys are new. Bodies of which nothing is left are duplicates."""
        if rule.fields is None:
            return bodies
        key_of = record_key(rule.fields, self.store.units[self.stream])
        keys = list[list[Any]]()
        for body in bodies:
            who = sent_by(body.item)
            keys.append([key_of(record, who) for record in body.records])
        new = {*chain.from_iterable(keys)} - {None}
        if new:
            new -= self.take_keys([sorted(new)], bodies[-1].received)
        left = []
        for body, of_body in zip(bodies, keys):
            records = []
            for record, key in zip(body.records, of_body):
                if key is None or key in new:
                    new.discard(key)  # of records with the same key, the first one counts
                    records.append(record)
            if len(records) == len(of_body):
                left.append(body)
            elif records or body.rejects:
                left.append(body.with_results(records, body.rejects))
            else:
                self.duplicates += 1
        return left

    def take_keys(self, pieces: Iterable[Sequence[bytes]], received: int) -> set[bytes]:
        """Take keys for this batch; those of them that another one has.

        pieces: in the order of the keys, each key once. received: when the last of them came (microseconds since 1970),
        by a clock that may be behind, as may be that of this process: a key is as old as the latest of both times and
        the one up to which keys expire.
        """
        horizon = self.store.get_horizon(self.db, KEYS) // 1_000_000
        at = max(received // 1_000_000, int(time.time()), horizon)
        others, keys = set[bytes](), list[bytes]()

        def collect_keys() -> Iterator[Sequence[bytes]]:
            for piece in pieces:
                if piece:
                    keys.extend(piece)
                    yield piece

        put, left = self.store.put_keys(self.db, self.stream, self.batch, at, collect_keys()), keys
        while left and put < len(left):
            owners = self.find_owners(left)
            others |= {key for key in left if owners.get(key, self.batch) != self.batch}
            left = [key for key in left if key not in owners]  # they have expired since they were there
            put = self.store.put_keys(self.db, self.stream, self.batch, at, iter((left,))) if left else 0
        self.taken.append(keys if not others else {*keys} - others)
        return others

    def find_owners(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Key -> the batch that has it; 0: a body of a replay, which no other one is."""
        found: dict[bytes, int] = {}
        for start in range(0, len(keys), transaction_limits.ASKED_KEYS):
            asked = keys[start : start + transaction_limits.ASKED_KEYS]
            listed = ", ".join("?" * len(asked))
            question = f"SELECT key, batch FROM batches_keys WHERE key IN ({listed}) AND stream = ?"
            found |= dict(self.store.run_sql(self.db, question, (*asked, self.stream)))
        return found

    def count_duplicates(self, epoch: str) -> None:
        """Count the duplicates in the ledger."""
        if self.duplicates:
            self.store.run_sql(self.db, COUNT_DUPLICATES, (self.stream, epoch, self.duplicates))
