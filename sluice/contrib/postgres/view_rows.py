"""Rows of PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple, cast

import psycopg

from sluice.base.override import override
from sluice.base.times import iso_second
from sluice.contrib.postgres import partitions
from sluice.contrib.postgres.session import Session, open_connection, primary_message
from sluice.contrib.postgres.tables import lock_holders
from sluice.contrib.views.rows import source
from sluice.contrib.views.rows.source import (
    INDEXING,
    PIECE_BYTES,
    ROW_BYTES,
    Changes,
    Converter,
    Diverged,
    Row,
    RowSource,
    raw_json,
)
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types

log = logging.getLogger("sluice.rows")

FINAL_SECONDS = 0.2  # between two checks of the transactions
SUMMARIZE_SECONDS = 10.0  # between two updates of the block range index
BATCHES = 5_000  # looked up at once
FETCH_ROWS = 32 if psycopg.pq.version() >= 170_000 else 1  # that libpq makes of what it receives, at a time
# PostgreSQL refuses a row whose part of an index has more than 2.7 kB, so a text is indexed by its hash
HASHED = 'hashtextextended("{}", 0)'
BY_BATCH = "attname = 'batch' AND amname = 'brin'"  # the block range indexes, among all
CHANGES = "view_changes"
# The highest id that is not in `batches` any more, and of `view_changes`
BEGINNINGS = """SELECT coalesce(max(last_batch), 0),
  (SELECT coalesce(max(until), 0) FROM batches_horizons WHERE stream = %s) FROM batches_folded"""
GAPS = """SELECT array_agg(each) FROM generate_series(%s::bigint, %s::bigint) AS each
WHERE NOT EXISTS (SELECT FROM {} WHERE id = each)"""
Index = tuple[int, str, bool]  # object id, name, whether it is valid


class Read(NamedTuple):
    """What was read of the ids of a table: up to the highest one, but for the missing ones. final: see PostgresRows."""

    table: str
    high: int
    missing: list[int]
    final: int

    @property
    def top(self) -> int:
        """Up to where ids are read at once."""
        return max(self.high, self.final) + BATCHES

    def ask(self, db: Any, columns: str, stream: str) -> list[Row]:
        """The rows of a stream that were not read, by id."""
        unread = f"SELECT {columns} FROM {self.table} WHERE stream = %s AND (id > %s AND id <= %s OR id = ANY(%s))"
        found = db.execute(f"{unread} ORDER BY id LIMIT {BATCHES}", (stream, self.high, self.top, self.missing))
        rows: list[Row] = found.fetchall()
        return rows

    def after(self, db: Any, taken: list[int], cut: bool) -> tuple[int, list[int], bool]:
        """The highest id and the missing ones after reading `taken`; whether there are more.

        cut: there were higher ids that were not read.
        """
        cut = cut or len(taken) == BATCHES
        until = taken[-1] if cut else self.top
        (newest,) = db.execute(f"SELECT coalesce(max(id), 0) FROM {self.table}").fetchone()
        high = max(self.high, until if newest > until else max([self.final, *taken]))
        missing = {id for id in self.missing if id > min(self.final, until)} - {*taken}
        (gaps,) = db.execute(GAPS.format(self.table), (max(self.high, self.final) + 1, high)).fetchone()
        return high, sorted(missing.union(gaps or ())), cut or newest > until


class PostgresRows(RowSource):
    """A position is the highest batch id that was read, and the ids below it that were missing, and may still appear.

    PostgreSQL assigns ids of batches before their transactions commit, so a lower id may appear after a higher one. A
    transaction locks `batches` (RowExclusiveLock) before it takes an id, and keeps the lock until it ends. So when
    all transactions that held the lock *after* the highest id was read have ended, all ids up to it are final: their
    batches are committed, or never will be. `view_changes` names batches that got rows later, from replayed dead
    letters; its ids are final by the same rule. The oldest changes are deleted (see `Postgres.fold_batches`): a
    position before them is Diverged.

    Somebody may leave a transaction open that has changed `batches`, and then no id is final for hours. Only those of
    transactions that were under way, or have failed, are missing.

    The oldest batches are not in `batches` any more (see `Store.fold_batches`), but all of their ids are final. Their
    rows are read by ranges of ids.

    Position: JSON [highest batch, missing batches, highest change, missing changes, last batch, its claim].
    """

    def __init__(self, url: str, streams: dict[str, Stream]) -> None:
        super().__init__(streams)
        self.url = url
        self.last: Row = ()
        self.final = (0, 0)  # ids of batches and of changes
        self.claim = ""  # of the final batch
        self.pruned = 0  # id of the highest change that was deleted
        self.pending: tuple[tuple[int, int], set[str]] | None = None
        self.reading = contextlib.ExitStack()  # what the end of the snapshot closes
        self.due = 0.0  # monotonic: the next check of the transactions
        self.summarize = 0.0
        self.queries: dict[str, str] = {}
        self.steps: dict[str, int] = {}  # stream -> ids of the next range of batches that are not in `batches`
        self.indexes: list[int] = []

    @override
    def converter(self, stream: str, field: str) -> Converter | None:
        return raw_or_none if self.kind(stream, field) in (object, None) else None

    @override
    @staticmethod
    def nanoseconds(time: int | None) -> int:
        if time is None:
            raise ValueError("its time is out of range")
        return time

    @override
    def time_converter(self, stream: str) -> Converter:
        return to_the_nanosecond if self.streams[stream].precision == "ns" else to_the_microsecond

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        try:
            if self.db is None:
                self.last, self.final, self.claim, self.pending, self.due = (), (0, 0), "", None, 0.0
                self.queries.clear()
                db = open_connection(self.url)
                with db.begin():
                    made = db.execute("SELECT to_regclass('batches_folded'), to_regclass('view_changes')").fetchone()
                    if not made or None in made:
                        db.close()
                        raise Unavailable("PostgreSQL: there are no tables yet")
                    _, self.pruned = db.execute(BEGINNINGS, (CHANGES,)).fetchone() or (0, 0)
                self.db = db
            yield self.db
        except psycopg.Error as error:
            self.close()
            raise Unavailable(f"PostgreSQL: {primary_message(error)}") from None

    @override
    def start(self) -> str:
        return json.dumps([0, [], max(self.final[1], self.pruned), [], 0, ""])

    @override
    def news(self) -> bool:
        with self.open() as db:
            # a batch that appears below this many others is read with the next one, or once it is final
            batches, changes = (max(final, newest - BATCHES) for final, newest in zip(self.final, self.last or (0, 0)))
            # by libpq itself: the follower asks 40 times a second, and a cursor takes five times the CPU
            result = db.pgconn.exec_(
                b"%b; SELECT (SELECT coalesce(max(id), 0) FROM batches), "
                b"(SELECT coalesce(max(id), 0) FROM view_changes), (SELECT count(*) FROM batches WHERE id > %d), "
                b"(SELECT count(*) FROM view_changes WHERE id > %d)" % (db.pins().encode(), batches, changes)
            )
            if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
            news: Row = tuple(int(result.get_value(0, at)) for at in range(4))
            changed, self.last = news != self.last, news
            now = time.monotonic()
            if now >= self.due and (news[2] or news[3] or news[0] < self.final[0] or news[1] < self.final[1]):
                self.due = now + FINAL_SECONDS
                with db.begin():
                    changed |= self.finish(db, (news[0], news[1]))
            if changed and now >= self.summarize and self.indexes:
                self.summarize = now + SUMMARIZE_SECONDS
                with db.begin():
                    db.execute("SELECT brin_summarize_new_values(i) FROM unnest(%s::oid[]) i", [self.indexes])
        return changed

    def finish(self, db: Any, highest: tuple[int, int]) -> bool:
        """The ids up to the highest ones at an earlier call are final once all transactions of that time have ended."""
        held = lock_holders(db, "batches", "view_changes")
        known, before = self.pending or (highest, held)
        if left := held & before:
            self.pending = known, left
            return False
        batch = db.execute("SELECT claim FROM batches WHERE id = %s", known[:1]).fetchone()
        self.final, self.claim, self.pending = known, batch[0] if batch else "", None
        self.last = ()
        return True

    @override
    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        # Rows that are not read to the end would leave their cursor to the garbage collector. It may run within another
        # query of this connection; closing the cursor then waits for that query for ever
        with self.open() as db, db.begin(read=True), contextlib.ExitStack() as self.reading:
            yield

    def column(self, stream: str, name: str) -> str:
        """A field in SQL, for `converter`."""
        if self.kind(stream, name) is None:
            return "CASE WHEN type = 'string' THEN to_json(text)::text ELSE value::text END"
        return f'"{name}"' + ("::text" if self.converter(stream, name) else "")

    def query(self, db: Any, stream: str) -> str:
        """The query for rows of a stream; "" while the table is not there or lacks a column."""
        if stream not in self.queries:
            attributes = db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                (f'"{stream}"',),
            )
            present = {row[0] for row in attributes}
            if not present:
                return ""
            below = " + coalesce(nanoseconds, 0)" if self.streams[stream].precision == "ns" else ""
            # of a time whose nanoseconds 64 bits do not hold, NULL: an error would be that of all rows
            moment = f"(extract(epoch FROM time) * 1000000)::bigint * 1000{below}"
            columns = [f"CASE WHEN time > '1678-01-01Z' AND time < '2262-01-01Z' THEN {moment} END", "seq"]
            for name in field_types(self.streams[stream].record):
                columns.append(self.column(stream, name) if name in present else "NULL")
            query = f'SELECT {", ".join(columns)} FROM "{stream}" WHERE '
            if "NULL" in columns:
                return query  # not cached: the worker may add the column
            self.queries[stream] = query
        return self.queries[stream]

    @override
    def changes(self, stream: str, position: str, limit: int) -> Changes:
        try:
            high, missing, change, changes_missing, last, claim = json.loads(position)
        except (ValueError, TypeError):
            raise Diverged(f"{position!r:.40} is no position in PostgreSQL") from None
        with self.open() as db:
            folded, self.pruned = db.execute(BEGINNINGS, (CHANGES,)).fetchone()
            if last and not has_batch(db, last, claim, last <= folded):
                raise Diverged(f"batch {last} is missing or has changed")
            if change < self.pruned:
                raise Diverged(f"the change {change} of its batches is not known any more")
            if high < folded:
                if not last:
                    last, claim = self.final[0], self.claim
                until = min(high + self.steps.get(stream, BATCHES), folded)
                pieces = self.range(db, stream, high, until, limit)
                self.reading.callback(pieces.close)
                return Changes(pieces, json.dumps([until, missing, change, changes_missing, last, claim]), True)
            # of a folded one, which may have appeared meanwhile, only the rows are left
            old = [id for id in missing if id <= folded]
            known = Read("batches", high, [id for id in missing if id > folded], self.final[0])
            new = known.ask(db, "id, records, claim", stream)
            taken, size = 0, 0
            while taken < len(new) and (not taken or size + new[taken][1] <= limit):
                size += new[taken][1]
                taken += 1
            batches = [row[0] for row in new[:taken]]
            if batches and batches[-1] > last:
                last, claim = batches[-1], new[taken - 1][2]
            high, missing, more = known.after(db, batches, taken < len(new))
            replayed: list[Row] = []
            if not more:
                known = Read(CHANGES, change, changes_missing, self.final[1])
                replayed = known.ask(db, "id, batch", stream)
                change, changes_missing, more = known.after(db, [row[0] for row in replayed], False)
            if self.claim and last < self.final[0] <= high:  # also if no batch is of this stream
                last, claim = self.final[0], self.claim
            pieces = self.rows(db, stream, batches, sorted({*old, *(row[1] for row in replayed)}))
            self.reading.callback(pieces.close)
        return Changes(pieces, json.dumps([high, missing, change, changes_missing, last, claim]), more)

    def range(self, db: Any, stream: str, above: int, until: int, limit: int) -> Generator[list[Row]]:
        """The rows of the batches above an id, up to another one. Sets how many ids the next range should have."""
        count = 0
        query = self.query(db, stream)
        if query:
            for rows in self.pieces(db, stream, query + "batch > %s AND batch <= %s", (above, until)):
                count += len(rows)
                yield rows
        size = until - above
        self.steps[stream] = size * 4 if count < limit // 4 else max(1, size * limit // max(count, limit))

    def rows(self, db: Any, stream: str, batches: list[int], replayed: list[int]) -> Generator[list[Row]]:
        """The rows of `batches`, then all rows of the batches in `replayed`."""
        query = self.query(db, stream)
        if not query:
            return
        asked: list[tuple[str, tuple[Any, ...]]] = []
        if batches:
            # the block range index answers the range in one scan; for the list alone it would scan once per element
            asked.append(("batch BETWEEN %s AND %s AND batch + 0 = ANY(%s)", (batches[0], batches[-1], batches)))
        asked += [("batch = %s", (batch,)) for batch in replayed]
        for where, values in asked:
            yield from self.pieces(db, stream, query + where, values)

    def pieces(self, db: Any, stream: str, query: str, values: tuple[Any, ...]) -> Generator[list[Row]]:
        """The rows of a query, as they come from the server: neither side holds more than a piece of them."""
        kinds = field_types(self.streams[stream].record).values()
        texts = [at for at, kind in enumerate(kinds, 2) if not kind <= {float, int, bool}]
        piece, size = [], 0
        with (
            self.open(),
            db.cursor(binary=True) as cursor,
            contextlib.closing(cursor.stream(cast("Any", query), values, size=FETCH_ROWS)) as rows,
        ):
            for row in rows:
                piece.append(row)
                size += ROW_BYTES + sum([len(row[at]) for at in texts if row[at].__class__ is str])
                if size >= PIECE_BYTES:
                    yield piece
                    piece, size = [], 0
        if piece:
            yield piece

    @override
    def groups(self, stream: str, key: str, by: str, value: str) -> Iterable[Row]:
        if "\0" in value:
            return []  # PostgreSQL has no such text
        kinds = field_types(self.streams[stream].record)
        found: Any
        if kinds[key] == {str}:  # the index has it
            found, where = value, f'"{key}" = %(value)s AND {HASHED.format(key)} = hashtextextended(%(value)s, 0)'
        elif len(kinds[key]) == 1 and kinds[key] <= {float, int, bool}:
            (kind,) = kinds[key]
            found, where = source.typed_value(kind, value), f'"{key}" = %(value)s'
            if found is None:
                return []
        else:  # JSON
            found = [json.dumps(value, ensure_ascii=False), *([value] if value[:1] != '"' else [])]
            where = f"{self.column(stream, key)} = ANY(%(value)s)"
        query = (
            f"SELECT CASE WHEN octet_length(value::text) <= {source.MAX_GROUP_BYTES} THEN value END, n, sum(n) OVER () "
            f'FROM (SELECT {self.column(stream, by)} AS value, count(*) AS n FROM "{stream}" '
            f'WHERE {where} AND "{by}" IS NOT NULL GROUP BY 1) AS groups '
            f'ORDER BY n DESC, value::text COLLATE "C" LIMIT {source.MAX_GROUPS}'
        )
        with self.open() as db, db.begin():
            return list(db.execute(query, {"value": found}).fetchall())

    @override
    def make_countable(self, stream: str, key: str, by: str) -> None:
        if field_types(self.streams[stream].record)[key] != {str}:
            return
        name, former = partitions.derived_name(stream, f"by_{key}"), f"{stream}_by_{key}"
        with self.open() as db:
            with db.begin():
                partitioned = partitions.is_partitioned(db, stream)
                present = stream_indexes(db, stream, "c.relname IN (%s, %s)", name, former)
            if any(valid for _, _, valid in present):
                return
            log.info(INDEXING, stream, key)
            if partitioned:
                return partitions.index_table(db, stream, f"by_{key}", HASHED.format(key))
            create_index(db, present, f'IF NOT EXISTS "{name}" ON {db.schema}."{stream}" ({HASHED.format(key)})')

    def prepare(self, streams: Iterable[str]) -> None:
        """A block range index on `batch` for each stream, which costs an insert next to nothing.

        It is created concurrently and by a thread: rows are stored and read meanwhile, and PostgreSQL first waits for
        the end of all transactions.
        """
        threading.Thread(target=self.index, args=(sorted(streams),), name="index", daemon=True).start()

    def index(self, streams: list[str]) -> None:
        """Create the indexes that are missing. One that was interrupted is invalid, and created again."""
        try:
            with contextlib.closing(open_connection(self.url)) as db:
                for stream in streams:
                    with db.begin():
                        if partitions.is_partitioned(db, stream):
                            continue  # it has an index, which autovacuum keeps up to date
                        present = stream_indexes(db, stream, BY_BATCH)
                    if not any(valid for _, _, valid in present):
                        create_index(
                            db, present, f'ON {db.schema}."{stream}" USING brin (batch) WITH (pages_per_range = 16)'
                        )
                    with db.begin():
                        self.indexes += [number for number, _, valid in stream_indexes(db, stream, BY_BATCH) if valid]
        except Exception as error:
            reason = primary_message(error) if isinstance(error, psycopg.Error) else repr(error)
            log.warning("cannot make or find the index on batch, which makes reading large tables fast: %s", reason)


def has_batch(db: Any, batch: int, claim: str, folded: bool) -> bool:
    """Whether the database has a batch. folded: it is not in `batches` any more, but its first body is known."""
    if not folded:
        return bool(db.execute("SELECT 1 FROM batches WHERE id = %s AND claim = %s", (batch, claim)).fetchone())
    epoch, first = claim.split(":")[:2]
    query = "SELECT 1 FROM batches_ranges WHERE epoch = %s AND %s BETWEEN first AND last"
    return bool(db.execute(query, (epoch, int(first))).fetchone())


def create_index(db: Session, present: list[Index], index: str) -> None:
    """Create an index while rows are stored. present: of interrupted ones, which are dropped."""
    for _, name, _ in present:
        db.alone(f"DROP INDEX CONCURRENTLY {name}")
    db.alone(f"CREATE INDEX CONCURRENTLY {index}")


def stream_indexes(db: Session, stream: str, which: str, *names: str) -> list[Index]:
    """The indexes of a stream that meet a condition in SQL."""
    rows: list[Index] = db.execute(
        "SELECT indexrelid::bigint, format('%%I.%%I', nspname, c.relname), indisvalid FROM pg_index "
        "LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0] "
        "JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam "
        "JOIN pg_namespace n ON n.oid = relnamespace "
        f"WHERE indrelid = to_regclass(%s) AND {which}",
        (f'"{stream}"', *names),
    ).fetchall()
    return rows


def to_the_nanosecond(time: int) -> str:
    return f"{iso_second(time // 1_000_000_000)}.{time % 1_000_000_000:09d}Z"


def to_the_microsecond(time: int) -> str:
    return f"{iso_second(time // 1_000_000_000)}.{time // 1000 % 1_000_000:06d}Z"


def raw_or_none(value: Any) -> Any:
    """The JSON of a jsonb or a number."""
    return None if value is None else raw_json(value)
