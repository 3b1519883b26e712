"""Compares the responses that the clients of a drill got with the rows in the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from proving.load import CUT, HALF, SPAN, UNANSWERED, Book

SLACK = 0.1  # seconds: the precision of received_at (docs/protocol/spool.md)
CLOCK = 0.002  # seconds: rounding of the milliseconds in the database, on both sides
LISTED = 10_000  # event numbers of each kind in the JSON report


@dataclass
class Findings:
    """The result of a comparison. The lists hold at most `LISTED` event numbers each; `counts` is complete."""

    posted: int = 0
    again: int = 0  # sent more than once
    acknowledged: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    missing: list[int] = field(default_factory=list)  # acknowledged, not stored
    doubled: list[int] = field(default_factory=list)  # stored more than once
    unknown: list[int] = field(default_factory=list)  # stored, not acknowledged: allowed
    torn: list[int] = field(default_factory=list)  # stored, but never sent completely
    disorder: list[int] = field(default_factory=list)  # stored behind an event that was posted after its response
    misdated: list[int] = field(default_factory=list)  # received_at outside request and response by over SLACK
    early: float = 0.0  # largest number of seconds by which received_at precedes the request
    late: float = 0.0  # … or follows the response
    counts: Counter[str] = field(default_factory=Counter)  # the number of events of each kind

    def note(self, kind: str, number: int) -> None:
        """Count an event, and list it unless the list is full."""
        self.counts[kind] += 1
        listed: list[int] = getattr(self, kind)
        if len(listed) < LISTED:
            listed.append(number)

    @property
    def sound(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.counts[kind] for kind in ("missing", "doubled", "torn", "disorder", "misdated"))


def outcome(status: int) -> str:
    """The result of an event, for the report."""
    names = {UNANSWERED: "no response", CUT: "closed after the last byte", HALF: "closed before the last byte"}
    return names.get(status, str(status))


def compare(
    books: list[Book],
    *streams: Iterable[tuple[int, float]],
    ordered: bool = True,
    away: Container[int] = (),
    aged: Callable[[int, float], bool] = lambda number, sent: False,
    misdating: Iterable[tuple[float, float]] = (),
) -> Findings:
    """Compare the books 0, 1, … with the stored rows.

    streams: the rows of each: (event number, received_at in seconds since 1970), in the order of the list. ordered:
    each is of one list. away: events that were stored, and that a restored copy did not have. aged: whether an event
    may have been deleted by age, from its number and the time of its request. misdating: from when until when Redis's
    clock was wrong; what was posted meanwhile may have any received_at.

    Order: an event is appended to the list of its stream between its request and its response. If the response to one
    event precedes the request of another, the first is before the second on the list, for any two clients and gateways.
    """
    found = Findings()
    wrong = list(misdating)
    seen = [bytearray(len(book.status)) for book in books]
    for rows in streams:
        posted_last = 0.0  # the latest request among the rows so far
        for number, received in rows:
            found.stored += 1
            process, n = divmod(number, SPAN)
            if not 0 <= process < len(books) or n >= len(seen[process]) or books[process].status[n] == HALF:
                found.note("torn", number)
                continue
            # what is sent again after a restore is stored again, if the copy does not have it
            if seen[process][n] or (number in away and books[process].copies[n] < 2):
                found.note("doubled", number)
                continue
            seen[process][n] = 1
            book = books[process]
            sent, answered = book.sent[n], book.answered[n]
            if 200 <= book.status[n] < 300:
                # another copy may come to the list behind the response to the first one, and be stored before it
                alone = book.copies[n] == 1
                if not any(sent < end and answered > begin for begin, end in wrong):
                    early, late = sent - received, (received - answered) * alone
                    found.early, found.late = max(found.early, early), max(found.late, late)
                    if early > SLACK + CLOCK or late > SLACK + CLOCK:
                        found.note("misdated", number)
                if ordered and alone and answered < posted_last:
                    found.note("disorder", number)
            else:
                found.note("unknown", number)
            posted_last = max(posted_last, sent)
    for process, book in enumerate(books):
        found.posted += len(book.status)
        found.again += sum(copies > 1 for copies in book.copies)
        found.answers.update(map(outcome, book.status))
        for n, status in enumerate(book.status):
            if 200 <= status < 300:
                found.acknowledged += 1
                if not seen[process][n]:
                    number = process * SPAN + n
                    if number in away:
                        found.counts["away"] += 1
                    elif aged(number, book.sent[n]):
                        found.counts["aged"] += 1
                    else:
                        found.note("missing", number)
    return found
