"""Where bodies end: one transaction a claimed batch, with the claim's id in it, so that a claim is stored once."""

from __future__ import annotations

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


class Sink(Protocol):
    """What a worker and the operator's command ask of a database."""

    def persist(self, claim: Claim, entries: Callable[[], Iterable[Entry]]) -> Outcome:
        """Store a claim's records and bury its rejects in one transaction; `entries` may be called twice.

        Raises: Away; and whatever `entries` raises, with nothing stored.
        """

    def replay(self, letters: list[Letter], decode: Callable[[Letter], Iterable[Record | Reject]], dry: bool) -> Outcome:
        """Take letters out of dead_letters and put what the decoder now makes of them in their place: one transaction."""

    def letters(self, where: str, after: int, most: int) -> list[Letter]:
        """Dead letters with an id above `after` for which an SQL condition holds, oldest first."""

    def reasons(self) -> list[tuple[str, str, int]]:
        """(stream, reason, letters), most frequent first."""

    def ledger(self, stream: str, last: int) -> tuple[int, int]:
        """Bodies in the sink that were claimed with a sequence number up to `last`, and how many of them are dead."""

    def persisted(self, claims: Iterable[str]) -> set[str]:
        """Those of some claim ids that are in the sink."""

    def close(self) -> None:
        """Let go of the database."""


def connect(url: str, streams: dict[str, Stream]) -> Sink:
    """The sink of a URL; its tables are made or brought up to date.

    Raises: Away if the database cannot be reached; ImportError if its driver is not installed.
    """
    if url.startswith("sqlite:///"):
        from sinks.sqlite import Sqlite

        return Sqlite(url[len("sqlite:///") :], streams)
    from sinks.postgres import Postgres

    return Postgres(url, streams)


@lru_cache(maxsize=4096)
def second(seconds: int) -> str:
    """A second since 1970 as ISO 8601, UTC, without an offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")

