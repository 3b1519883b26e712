"""Storing what a claim has, and burying what the database rejects.

A transaction is bounded in time, whatever the bodies are: their entries may end before the claim does (`Part.end`), and
the rest is for another transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from sluice.spool.claim import Claim
from sluice.store import bounds
from sluice.store.keys import Keys
from sluice.store.types import Entry, Outcome, RowsRejected
from sluice.streams.message import NOBODY, sender, sender_head
from sluice.streams.record import Record, Reject


def gaps(claim: Claim, stored: Iterable[tuple[int, int]]) -> Iterator[Claim]:
    start = claim.first
    for first, last in stored:
        if first > start:
            yield claim.part(start, first)
        start = max(start, last + 1)
    if start < claim.end:
        yield claim.part(start, claim.end)


class Part:
    """The entries of the bodies from `first` to the one before `end`, each time it is iterated.

    entries: of all bodies; a subclass may make its own of something else. end: gets lower if an iteration ends earlier.
    """

    def __init__(self, entries: Any, first: int, end: int) -> None:
        self.entries, self.first, self.end = entries, first, end

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry in self.entries if self.first <= entry[0] < self.end)

    def units(self, keys: Keys) -> Iterator[tuple[Iterable[Entry], bool]]:
        """What is to be stored, one after the other, and whether some entries of a body of it are not in it.

        keys: of the batch. Each may be iterated several times, until the next one is asked for.
        """
        yield self, False


class Given:
    """The entries of a claim. senders: of the bodies that have one, by sequence number."""

    senders: Mapping[int, str] = NOBODY

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = entries

    def part(self, first: int, end: int) -> Part:
        """Those of the bodies from `first` to the one before `end`."""
        return Part(self.entries, first, end)


class Search:
    """Finds the records that the database rejects, for so many insertions; then what is left of a chunk is buried
    together.

    insert: stores records and buries rejects, all or nothing. Raises: RowsRejected.
    left: insertions. counts: sequence number -> entries of that body.
    """

    def __init__(self, insert: Callable[[Iterable[Entry]], Outcome]) -> None:
        self.insert = insert
        self.left = bounds.SEARCH_INSERTS
        self.counts = Counter[int]()

    def fill(self, entries: Iterable[Entry], split: bool) -> Outcome:
        """Insert the records among the entries and bury the rest. split: some entries of a body are not among them."""
        try:
            return self.insert(entries)
        except RowsRejected:
            pass
        self.counts = Counter(seq for seq, _, _, _ in entries) if not split else Counter()
        outcome = Outcome(0, 0)
        for chunk in chunks(entries):
            outcome = outcome.plus(self.bisect(chunk))
        return outcome

    def bisect(self, entries: list[Entry]) -> Outcome:
        """`fill` for entries that may contain rejected records."""
        self.left -= 1
        try:
            return self.insert(entries)
        except RowsRejected as error:
            if len(entries) == 1 or self.left <= 0:
                reason = " ".join(f"rejected by {error.by}: {error}".split())[:200]
                return self.insert([*self.letters(entries, reason)])
        middle = len(entries) // 2
        return self.bisect(entries[:middle]).plus(self.bisect(entries[middle:]))

    def letters(self, entries: list[Entry], reason: str) -> Iterator[Entry]:
        """Rejects in the place of entries. Records of a body are one, up to MERGED_BYTES."""
        for _, some in groupby(entries, key=itemgetter(0)):
            parts, size = list[bytes](), 0
            for seq, received, body, thing in some:
                if self.counts[seq] == 1 and not isinstance(thing, Reject):
                    yield seq, received, body, Reject(body, reason, True)
                elif isinstance(thing, Reject):  # what was sent, not our words for it
                    yield seq, received, body, Reject(thing.part, reason, thing.whole)
                else:
                    parts.append(encode(thing))
                    size += len(parts[-1])
                if parts and size >= bounds.MERGED_BYTES:
                    yield seq, received, body, Reject(sender_head(sender(body)) + b"\n".join(parts), reason)
                    parts, size = [], 0
            if parts:
                yield seq, received, body, Reject(sender_head(sender(body)) + b"\n".join(parts), reason)


def encode(record: Record) -> bytes:
    """A body that holds this record alone."""
    try:
        return msgspec.json.encode(record)
    except Exception:  # this text can be read, but not replayed
        return repr(record).encode("utf-8", "backslashreplace")


def chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The entries in lists that fit into memory together with their bodies."""
    chunk: list[Entry] = []
    size, last = 0, None
    for entry in entries:
        chunk.append(entry)
        size += len(entry[3].part if isinstance(entry[3], Reject) else encode(entry[3]))
        if entry[0] != last:
            size, last = size + len(entry[2]), entry[0]
        if len(chunk) >= bounds.CHUNK_ENTRIES or size >= bounds.CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
