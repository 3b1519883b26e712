"""Replay: dead letters are decoded again, and each is replaced by its result."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from sluice.store import transaction_limits
from sluice.store.keys import Keys
from sluice.store.questions import DeadLetter, common_reason, own_questions
from sluice.store.retries import retry_conflicts
from sluice.store.store import DEFAULT_LIMITS, Store, key_names
from sluice.store.types import Body, Origin, Outcome
from sluice.streams.record import Decoded, Limits, Reject

STORED_MEANWHILE = "duplicate: a body with its key, or with all of its records, was stored meanwhile"
Decode = Callable[[DeadLetter], Decoded]


class Replayed(NamedTuple):
    """The result of a replay.

    stored, dead: letters that are stored now, and letters that stay dead.
    records: stored from them.
    reasons: of the letters that were buried again, with their number.
    seen: how many of the given letters were replayed, or had been taken; fewer than all if they took too long.
    """

    stored: int
    records: int
    dead: int
    reasons: Counter[str]
    seen: int


class DryRun(Exception):
    """Rolls back the transaction of a dry run."""


def replay_letters(
    store: Store[Any], letters: list[DeadLetter], decode: Decode, dry: bool = False, limits: Limits = DEFAULT_LIMITS
) -> Replayed:
    """Decode dead letters again, and replace each by its result, in one transaction.

    It decodes for about a second, and then leaves the letters behind. A letter that another replay has taken is
    skipped. A letter that is buried again has a new, higher id.
    dry: change nothing; only report the result. limits: of one body, as they were when it was buried.
    """
    due = time.monotonic() + transaction_limits.TURN_SECONDS
    bodies: list[Body] = []
    held = 0
    for letter in letters:
        decoded = decode(letter)
        bodies.append(Body.from_decoded(letter.seq, letter.received, letter.body, decoded))
        held += decoded.size * transaction_limits.TEXT_FACTOR + len(bodies[-1]) * transaction_limits.RECORD_BYTES
        if time.monotonic() >= due or held >= transaction_limits.HELD_BYTES:
            break
    return replace_letters(store, letters[: len(bodies)], bodies, dry, limits)


@retry_conflicts
def replace_letters(
    store: Store[Any], letters: list[DeadLetter], bodies: list[Body], dry: bool, limits: Limits
) -> Replayed:
    """Replace each letter by what it was decoded to, in one transaction."""
    stored = records = dead = 0
    reasons: Counter[str] = Counter()
    batches = {letter.batch for letter in letters}
    streams = {letter.stream for letter in letters}
    with contextlib.suppress(DryRun), store.row_destinations.begin_attempt(store, streams) as attempt:
        db: Any = attempt.db
        last = store.run_sql(db, "SELECT coalesce(max(id), 0) FROM dead_letters")[0][0]
        for letter, body in zip(letters, bodies):
            if not store.run_sql(db, "DELETE FROM dead_letters WHERE id = ? RETURNING 1", (letter.id,)):
                continue
            keys = Keys(store, db, letter.stream, letter.batch)
            origin = Origin(letter.batch, key_names([body]), letter.whole, letter.reason)
            outcome = attempt.store_bodies(letter.stream, origin, not_stored(store, keys, letter, body, limits))
            store.add_records(db, letter.batch, outcome.records)
            if outcome.records and are_final(store, letter.stream, outcome):
                leave_keys(keys)  # another letter of this batch may be a copy of this one
            if outcome.records:
                store.add_change(db, letter.stream, letter.batch)
            records += outcome.records
            stored, dead = stored + (not outcome.letters), dead + bool(outcome.letters)
        reasons = count_buried(store, db, batches, last)
        store.fold_again(db, batches)
        if dry:
            raise DryRun
    if not dry and not streams.isdisjoint(store.row_destinations.streams):  # a destination may have refused rows since
        with store.transaction(read=True) as db:
            before, reasons = reasons, count_buried(store, db, batches, last)
        refused = reasons.total() - before.total()
        stored, records, dead = max(0, stored - refused), records - refused, dead + min(stored, refused)
    return Replayed(stored, records, dead, reasons, len(letters))


def are_final(store: Store[Any], stream: str, replayed: Outcome) -> bool:
    """Whether no letter of a body that was replayed may have keys of it: a part of a body has those of records."""
    rule = store.rules.get(stream)
    by_record = rule is not None and rule.fields is not None
    return not by_record or not (replayed.letters or stream in store.row_destinations.streams)


def not_stored(store: Store[Any], keys: Keys, letter: DeadLetter, body: Body, limits: Limits) -> Sequence[Body]:
    """What is left of a letter whose keys no other batch has. If another body has its key, it stays dead."""
    rule = store.rules.get(letter.stream)
    if rule is None:
        return (body,)
    # a part of a body has no keys but of records
    new = keys.keep_new(rule, (body,), limits) if letter.whole else keys.with_new_records(rule, (body,))
    return (body.with_results((), (Reject(letter.body, STORED_MEANWHILE, letter.whole),)),) if keys.duplicates else new


def leave_keys(keys: Keys) -> None:
    """Make the keys those of no batch: what else has one of them is a duplicate, also if it is of this batch."""
    taken = sorted({*chain.from_iterable(keys.taken)})
    for start in range(0, len(taken), transaction_limits.ASKED_KEYS):
        some = taken[start : start + transaction_limits.ASKED_KEYS]
        left = f"UPDATE batches_keys SET batch = 0 WHERE key IN ({', '.join('?' * len(some))}) AND stream = ? "
        keys.store.run_sql(keys.db, left + "AND batch = ?", (*some, keys.stream, keys.batch))


def count_buried(store: Store[Any], db: Any, batches: Iterable[int], above: int) -> Counter[str]:
    """The reasons of the letters of some batches, with their number. above: the id below the first of them."""
    kind = own_questions(store).KIND
    counted = f"SELECT {common_reason(store)}, count(*) FROM dead_letters WHERE id > ? AND batch = ? GROUP BY {kind}"
    return sum((Counter(dict(store.run_sql(db, counted, (above, batch)))) for batch in batches), Counter[str]())
