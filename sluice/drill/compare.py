"""The drill's comparison: what the clients were told, held against what lies in the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.drill.load import CUT, HALF, SPAN, UNANSWERED, Book

SLACK = 0.1  # seconds: the precision of received_at (PROTOCOL.md, section 4)
CLOCK = 0.002  # and of the milliseconds in the database
LISTED = 10_000  # numbers of each kind that a report lists


@dataclass
class Findings:
    """What a drill found. Numbers of events are listed up to `LISTED` of a kind; counts are whole."""

    posted: int = 0
    acknowledged: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    missing: list[int] = field(default_factory=list)  # acknowledged, not stored
    doubled: list[int] = field(default_factory=list)  # stored more than once
    unknown: list[int] = field(default_factory=list)  # stored, never acknowledged: allowed
    torn: list[int] = field(default_factory=list)  # stored, though it was never sent whole, or never at all
    disorder: list[int] = field(default_factory=list)  # listed behind one that was posted after its answer
    misdated: list[int] = field(default_factory=list)  # received_at outside request and answer, beyond SLACK
    early: float = 0.0  # seconds by which received_at was outside at most
    late: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)  # how many of each list there are

    def note(self, kind: str, number: int) -> None:
        """Count one, and list it while there is room."""
        self.counts[kind] += 1
        listed: list[int] = getattr(self, kind)
        if len(listed) < LISTED:
            listed.append(number)

    @property
    def sound(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.counts[kind] for kind in ("missing", "doubled", "torn", "disorder", "misdated"))


def told(status: int) -> str:
    """What a client knows, in words."""
    return {UNANSWERED: "no answer", CUT: "hung up behind the last byte", HALF: "hung up before it"}.get(
        status, str(status)
    )


def compare(books: list[Book], rows: Iterable[tuple[int, float]]) -> Findings:
    """Hold the clients' books against the stored rows.

    books: of process 0, 1, … rows: (number of the event, received_at in seconds since 1970), in the order of the list.

    Order: the list takes an event between its request and its answer. So of two events of which the first was answered
    before the second was posted the first lies before the second, whoever posted them, and whichever gateway took them.
    """
    found = Findings()
    seen = [bytearray(len(book.status)) for book in books]
    posted_last = 0.0  # the latest request among the rows so far
    for number, received in rows:
        found.stored += 1
        process, n = divmod(number, SPAN)
        if not 0 <= process < len(books) or n >= len(seen[process]) or books[process].status[n] == HALF:
            found.note("torn", number)
            continue
        if seen[process][n]:
            found.note("doubled", number)
            continue
        seen[process][n] = 1
        book = books[process]
        sent, answered = book.sent[n], book.answered[n]
        if 200 <= book.status[n] < 300:
            early, late = sent - received, received - answered
            found.early, found.late = max(found.early, early), max(found.late, late)
            if early > SLACK + CLOCK or late > SLACK + CLOCK:
                found.note("misdated", number)
            if answered < posted_last:
                found.note("disorder", number)
        else:
            found.note("unknown", number)
        posted_last = max(posted_last, sent)
    for process, book in enumerate(books):
        found.posted += len(book.status)
        found.answers.update(map(told, book.status))
        for n, status in enumerate(book.status):
            if 200 <= status < 300:
                found.acknowledged += 1
                if not seen[process][n]:
                    found.note("missing", process * SPAN + n)
    return found
