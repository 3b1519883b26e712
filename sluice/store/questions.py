"""What verbs, ledger and page ask the database: its dead letters, what is overdue, what waits for its destination."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any, NamedTuple

from sluice.store import transaction_limits
from sluice.store.bookkeeping import PASS
from sluice.store.expiry import RECENT_SECONDS
from sluice.store.registry import module_of
from sluice.store.store import Store
from sluice.store.types import Row

# A worker deletes the note of what it has published with its next claim, or within ten seconds, and publishes what
# another one has left after thirty
LATE_SECONDS = 45
LETTER_BYTES = 4 << 20  # of dead letters held in memory at once
REASONS = 100  # of dead letters that are told apart


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


class Unpublished(NamedTuple):
    """Rows that are stored, and are not in their destination. bodies: that have such rows. seconds: since then.

    address: of the destination. reason: "" if no worker has tried.
    """

    stream: str
    address: str
    bodies: int
    seconds: float
    reason: str


def own_questions(store: Store[Any]) -> ModuleType:
    """The module `questions` of the database's package: what each database answers in a way of its own.

    KIND: SQL, a reason up to its first quote or number, which may be what a client has sent.
    ask_letters(store, where, question, values): the rows of a query on the dead letters for which `where` holds, in a
        read-only transaction. question: SQL, with {} where the table stands. Raises: ValueError if it is no valid SQL.
    find_last_rows: as below.
    """
    return module_of(store.database, "questions")


def find_last_rows(store: Store[Any], stream: str, limit: int, characters: int) -> tuple[list[str], list[Row]]:
    """The columns of a stream's table and its last rows, newest first; none if there is no table.

    A value is a text of at most so many characters, or None. It takes the same time for ever, and keeps no worker
    waiting. Raises: Unavailable.
    """
    found: tuple[list[str], list[Row]] = own_questions(store).find_last_rows(store, stream, limit, characters)
    return found


def find_letters(
    store: Store[Any], where: str = "true", above: int = 0, below: int = 1 << 62, limit: int = 200, newest: bool = False
) -> list[DeadLetter]:
    """Dead letters with above < id < below for which the SQL condition `where` holds, oldest (or newest) first.

    There are fewer than `limit` if no more exist, or if they are large; the list is empty only if none exists.
    Raises: ValueError if `where` is not valid SQL.
    """
    letters: list[DeadLetter] = []
    size = 0
    question = (
        f"SELECT id, stream, {store.MICROS.format('received_at')}, body, reason, whole, batch, seq FROM {{}} "
        f"WHERE id > ? AND id < ? ORDER BY id {'DESC' if newest else ''} LIMIT ?"
    )
    found = own_questions(store).ask_letters(store, where, question, (above, below, limit))
    for id, stream, received, body, reason, whole, batch, seq in found:
        letters.append(DeadLetter(id, stream, received, body, reason, bool(whole), batch, seq))
        size += len(body)
        if size >= LETTER_BYTES:
            break
    return letters


def find_last_letters(store: Store[Any], stream: str, limit: int, size: int) -> list[tuple[DeadLetter, int]]:
    """The newest dead letters of a stream, newest first, and the bytes of their bodies. size: bytes that are read.

    An index finds them. Raises: Unavailable.
    """
    question = (
        f"SELECT id, stream, {store.MICROS.format('received_at')}, substr(body, 1, ?), reason, whole, batch, seq, "
        "length(body) FROM dead_letters WHERE stream = ? ORDER BY batch DESC, seq DESC LIMIT ?"
    )
    with store.transaction(read=True) as db:
        found = store.run_sql(db, question, (size, stream, limit))
    return [(DeadLetter(*row[:8])._replace(whole=bool(row[5])), row[8]) for row in found]


def count_reasons(store: Store[Any], where: str = "true") -> list[tuple[str, str, int]]:
    """(stream, reason, number of dead letters) for which `where` holds, most frequent first. Raises: ValueError.

    Reasons that differ only in what was sent are one, with an ellipsis. After REASONS of them, what is left of a
    stream is "others".
    """
    own = own_questions(store)
    grouped = f"SELECT stream, {common_reason(store)}, count(*) FROM {{}} GROUP BY stream, {own.KIND}"
    found = own.ask_letters(store, where, grouped + " ORDER BY 3 DESC, 1, 2 LIMIT ?", (REASONS,))
    counts = [(stream, reason, count) for stream, reason, count in found]
    if len(counts) < REASONS:
        return counts
    rest: Counter[str] = Counter(dict(own.ask_letters(store, where, "SELECT stream, count(*) FROM {} GROUP BY 1", ())))
    for stream, _, count in counts:
        rest[stream] -= count
    return counts + [(stream, "others", count) for stream, count in rest.most_common() if count > 0]


def common_reason(store: Store[Any]) -> str:
    """SQL: what the reasons of a KIND have in common."""
    return f"CASE WHEN min(reason) = max(reason) THEN min(reason) ELSE {own_questions(store).KIND} || '…' END"


def count_overdue(store: Store[Any], table: str, before: int) -> int:
    """The number of rows of a stream, or of `dead_letters`, that arrived before a time. Raises: Unavailable."""
    if table in store.row_destinations.streams:
        return store.row_destinations.expire_rows(table, before, dry=True)
    with store.transaction(read=True) as db:
        if not store.table_exists(db, table):
            return 0
        rows = store.run_sql(db, f'SELECT count(*) FROM "{table}" WHERE received_at < ?', (store.stored_time(before),))
    return int(rows[0][0])


def bare_url(address: str) -> str:
    """The address of a destination as people know it."""
    return address.partition("#")[0]


def find_unpublished(store: Store[Any]) -> list[Unpublished]:
    """What waits for its destination, by stream and address: with a reason, or longer than LATE_SECONDS."""
    asked = (
        "SELECT stream, address, sum(bodies), max(age), max(reason) "
        f"FROM (SELECT {store.AGE.format('since')} AS age, * FROM batches_objects) AS noted "
        f"WHERE reason <> '' OR age > {LATE_SECONDS} GROUP BY 1, 2 ORDER BY 1, 2"
    )
    with store.transaction(read=True) as db:
        return [Unpublished(row[0], bare_url(row[1]), int(row[2]), *row[3:]) for row in store.run_sql(db, asked)]


def forget_cell(store: Store[Any], cell: str) -> bool:
    """Delete the figures of a cell; False if there are none."""
    with store.transaction() as db:
        return bool(store.run_sql(db, "DELETE FROM batches_cells WHERE cell = ? RETURNING 1", (cell,)))


def kept_seconds(store: Store[Any], stream: str, age: int) -> float:
    """For how long keys of a stream are kept at the rate of RECENT_SECONDS, if that is less than their age; else 0."""
    noted = store.read_horizons(PASS)
    share, rate = noted.get(f"share {stream}", 1_000_000) / 1e6, noted.get(f"rate {stream}", 0)
    lasts = min(age * share, transaction_limits.MAX_KEYS / rate * RECENT_SECONDS if rate else age)
    return lasts if lasts < age else 0.0
