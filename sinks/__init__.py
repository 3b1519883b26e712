"""Where bodies end: one transaction a claimed batch, with the claim's id in it, so that a claim is stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple, Protocol

from records import Record, Reject, Stream
from spool import Claim

# (sequence number, received: microseconds since 1970, the body, what the decoder made of it)
Entry = tuple[int, int, bytes, "Record | Reject"]


class Away(Exception):
    """The sink cannot be written now: nothing of the batch was stored, all of it may be tried again."""


class Letter(NamedTuple):
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


Decode = Callable[[Letter], Iterable["Record | Reject"]]


class Sink(Protocol):
    """What a worker and the operator's command ask of a database."""

    def persist(self, claim: Claim, entries: Callable[[], Iterable[Entry]]) -> Outcome:
        """Store a claim's records and bury its rejects in one transaction; `entries` may be called several times.

        Raises: Away; and whatever `entries` raises, with nothing stored.
        """

    def replay(self, letters: list[Letter], decode: Decode, dry: bool) -> Replayed:
        """Take letters out of dead_letters and put what the decoder now makes of them in their place: one transaction.

        A letter that is no longer there is passed over. What is buried again has a new, higher id.
        dry: only say what would become of them.
        """

    def letters(self, where: str, above: int, below: int, most: int, newest: bool) -> list[Letter]:
        """Dead letters with an id between those two for which an SQL condition holds, oldest (or newest) first.

        They are fewer than `most` where there are no more or they are large; none only if there are none.
        Raises: ValueError if the condition is none.
        """

    def reasons(self, where: str) -> list[tuple[str, str, int]]:
        """(stream, reason, letters) of those for which a condition holds, most frequent first. Raises: ValueError."""

    def ledger(self, stream: str, last: int, claims: Iterable[str]) -> Ledger:
        """What was claimed with a sequence number up to `last`, and which of some claims are there; of one moment."""

    def close(self) -> None:
        """Let go of the database."""


def connect(url: str, streams: dict[str, Stream], make: bool = True) -> Sink:
    """The sink of a URL. make: its database and tables are made or brought up to date.

    Raises: Away if the database cannot be reached; ImportError if its driver is not installed.
    """
    if url.startswith("sqlite:///"):
        from sinks.sqlite import Sqlite

        return Sqlite(url[len("sqlite:///") :], streams, make)
    from sinks.postgres import Postgres

    return Postgres(url, streams, make)


@lru_cache(maxsize=4096)
def second(seconds: int) -> str:
    """A second since 1970 as ISO 8601, UTC, without an offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
