"""Where bodies end: one transaction a claimed batch, with the claim's id in it, so that a claim is stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from sluice.spool.contract import Claim
from sluice.streams.record import Record, Reject
from sluice.streams.registry import Stream

# (sequence number, received: microseconds since 1970, the body, what the decoder made of it)
Entry = tuple[int, int, bytes, "Record | Reject"]

PIECE = (1_000, 4 << 20)  # entries, and bytes of their bodies, that are held at once while poison is looked for


class Unavailable(Exception):
    """The sink cannot be written now: nothing of the batch was stored, all of it may be tried again."""


class RowsRejected(Unavailable):
    """The database refuses a value among the entries. None of them was stored; `fill` finds out which it is."""


class DryRun(Exception):
    """Ends a transaction that was only to be tried."""


class DeadLetter(NamedTuple):
    """A dead letter: a body, or one record of a body, with the reason why it could not be stored."""

    id: int
    stream: str
    received: int  # microseconds since 1970
    body: bytes
    reason: str
    whole: bool
    batch: int
    seq: int


class Outcome(NamedTuple):
    """What became of a claim. again: it was in the sink already, and nothing was done."""

    records: int
    letters: int
    again: bool = False


class Replayed(NamedTuple):
    """What became of letters. passed, stay: letters. reasons: of what was buried for those that stay."""

    passed: int
    records: int
    stay: int
    reasons: Counter[str]


class Ledger(NamedTuple):
    """What the sink has of a stream.

    bodies: all that were persisted. dead: those of them of which anything is in dead_letters.
    persisted: the claims that were asked for and are there.
    """

    bodies: int
    dead: int
    persisted: set[str]


Decode = Callable[[DeadLetter], Iterable["Record | Reject"]]


class Sink(Protocol):
    """What a worker and the operator's command ask of a database."""

    def persist(self, claim: Claim, entries: Callable[[], Iterable[Entry]]) -> Outcome:
        """Store a claim's records and bury its rejects in one transaction; `entries` may be called several times.

        Raises: Unavailable; and whatever `entries` raises, with nothing stored.
        """

    def replay(self, letters: list[DeadLetter], decode: Decode, dry: bool = False) -> Replayed:
        """Take letters out of dead_letters and put what the decoder now makes of them in their place: one transaction.

        A letter that is no longer there is passed over. What is buried again has a new, higher id.
        dry: only say what would become of them.
        """

    def letters(
        self, where: str = "true", above: int = 0, below: int = 1 << 62, most: int = 200, newest: bool = False
    ) -> list[DeadLetter]:
        """Dead letters with an id between those two for which an SQL condition holds, oldest (or newest) first.

        They are fewer than `most` where there are no more or they are large; none only if there are none.
        Raises: ValueError if the condition is none.
        """

    def reasons(self, where: str = "true") -> list[tuple[str, str, int]]:
        """(stream, reason, letters) of those for which a condition holds, most frequent first. Raises: ValueError."""

    def ledger(self, stream: str, last: int, claims: Iterable[str] = ()) -> Ledger:
        """What was claimed with a sequence number up to `last`, and which of some claims are there; of one moment."""

    def close(self) -> None:
        """Let go of the database."""


def connect(url: str, streams: dict[str, Stream], make: bool = True) -> Sink:
    """The sink of a URL. make: its database and tables are made or brought up to date.

    Raises: Unavailable if the database cannot be reached; ImportError if its driver is not installed.
    """
    if url.startswith("sqlite:///"):
        from sluice.sinks.sqlite import Sqlite

        return Sqlite(url[len("sqlite:///") :], streams, make)
    from sluice.sinks.postgres import Postgres

    return Postgres(url, streams, make)


def fill(insert: Callable[[Iterable[Entry]], Outcome], entries: Callable[[], Iterable[Entry]]) -> Outcome:
    """Insert the records among the entries, bury the rest. A record that is refused is found by halving.

    insert: stores records and buries rejects, all or nothing. Raises: RowsRejected.
    """
    try:
        return insert(entries())
    except RowsRejected:
        pass
    holds = Counter(seq for seq, _, _, _ in entries())
    records = letters = 0
    for piece in pieces(entries()):
        outcome = halve(insert, piece, holds)
        records, letters = records + outcome.records, letters + outcome.letters
    return Outcome(records, letters)


def halve(insert: Callable[[Iterable[Entry]], Outcome], entries: list[Entry], holds: Counter[int]) -> Outcome:
    """`fill` for entries with poison among them. holds: sequence number -> records in that body."""
    try:
        return insert(entries)
    except RowsRejected as error:
        if len(entries) == 1:
            seq, received, body, record = entries[0]
            alone = holds[seq] == 1
            reason = " ".join(f"refused by the database: {error}".split())[:200]
            return insert([(seq, received, body, Reject(body if alone else part(record), reason, alone))])
    middle = len(entries) // 2
    first = halve(insert, entries[:middle], holds)
    second = halve(insert, entries[middle:], holds)
    return Outcome(first.records + second.records, first.letters + second.letters)


def part(record: Record | Reject) -> bytes:
    """A body that holds this record alone."""
    try:
        return msgspec.json.encode(record)
    except Exception:  # so it cannot be replayed, but it can be read
        return repr(record).encode("utf-8", "backslashreplace")


def pieces(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The entries in lists that fit into memory together with their bodies."""
    piece: list[Entry] = []
    size, last = 0, None
    for entry in entries:
        piece.append(entry)
        if entry[0] != last:
            size, last = size + len(entry[2]), entry[0]
        if len(piece) >= PIECE[0] or size >= PIECE[1]:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


@lru_cache(maxsize=4096)
def second(seconds: int) -> str:
    """A second since 1970 as ISO 8601, UTC, without an offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
