"""The PostgreSQL store: binary COPY, from many workers at once; a settled claim is as durable as a commit there.

With binary COPY neither side converts numbers and times to text: a row costs this process 0.8 µs, as text 2.0.
"""

from __future__ import annotations

import contextlib
import logging
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import msgspec
import psycopg
from msgspec.structs import astuple
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from sluice.elsewhere.destination import Destination
from sluice.settings import FOREVER, Keep
from sluice.spool.claim import Claim, Window
from sluice.store import bounds
from sluice.store.postgres import partitions
from sluice.store.store import LAYOUT, RANGES_OF_CLAIMS, SPOOLS_OF_RANGES, Store, check_layout, limits, summed
from sluice.store.types import DeadLetter, Entry, Ledger, Line, Outcome, RowsRejected, Spool, SpoolCount, Unavailable
from sluice.streams.record import Metric, Reject
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types

STAMP = "timestamp with time zone"
PLAIN = {float: "double precision", int: "bigint", bool: "boolean", str: "text"}  # all other types are jsonb
# The type that COPY gets for a column: its binary form is the same, but psycopg makes it from another Python type. A
# timestamp is microseconds since 2000; jsonb is a version byte and JSON.
SENT = {
    **{STAMP: "int8", "bigint": "int8", "smallint": "int2", "double precision": "float8", "boolean": "bool"},
    **{"text": "text", "numeric": "numeric", "jsonb": "bytea"},
}
Y2000 = 946_684_800_000_000  # microseconds from 1970
BATCHES = {
    "id": "bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
    "claim": "text NOT NULL UNIQUE",
    "stream": "text NOT NULL",
    "first": "bigint NOT NULL",
    "bodies": "bigint NOT NULL",
    "records": "bigint NOT NULL",
    "persisted_at": f"{STAMP} NOT NULL DEFAULT clock_timestamp()",
}
VERSION = {"version": "bigint NOT NULL"}
RANGES = {
    "stream": "text NOT NULL",
    "spool": "text NOT NULL",
    "first": "bigint NOT NULL",
    "last": "bigint NOT NULL",
}
SPOOLS = {
    "stream": "text NOT NULL",
    "spool": "text NOT NULL",
    "cell": "text NOT NULL",
    "first": "bigint NOT NULL",
    "last": "bigint NOT NULL",
    "purged": "bigint NOT NULL",
}
CELLS = {"cell": "text PRIMARY KEY", "seen": f"{STAMP} NOT NULL", "figures": "jsonb NOT NULL"}
SPOOL_INDEX = "CREATE UNIQUE INDEX batches_spools_by_name ON batches_spools (stream, spool)"


def span(stream: str, spool: str, first: str, end: str) -> str:
    """SQL for a range of bodies, from SQL for its parts. PostgreSQL can index a range of texts; to exclude ranges of
    numbers per stream and spool it would need the extension btree_gist.
    """
    low, high = (f"{stream} || ' ' || {spool} || ' ' || lpad(({number})::text, 19, '0')" for number in (first, end))
    return f"batches_span({low}, {high})"


SPAN = span("stream", "spool", "first", "last + 1")
EXCLUDE = f"""DO $$ BEGIN CREATE TYPE batches_span AS RANGE (SUBTYPE = text, COLLATION = "C");
EXCEPTION WHEN duplicate_object THEN NULL; END $$;
ALTER TABLE batches_ranges ADD CONSTRAINT batches_ranges_excluded EXCLUDE USING gist (({SPAN}) WITH &&)"""
FOLDED = {
    "stream": "text NOT NULL",
    "spool": "text NOT NULL",
    "first_batch": "bigint NOT NULL",
    "last_batch": "bigint NOT NULL",
}
FOLDED_KEY = "ALTER TABLE batches_folded ADD PRIMARY KEY (stream, spool)"
LAST_FOLDED = "(SELECT coalesce(max(last_batch), 0) FROM batches_folded)"
HAS_LETTERS = "EXISTS (SELECT FROM dead_letters AS d WHERE d.stream = batches.stream AND d.batch = batches.id)"
AGED = {
    "stream": "text NOT NULL",
    "spool": "text NOT NULL",
    "deleted": "bigint NOT NULL",
    "expired": "bigint NOT NULL",
}
OBJECTS = {"stream": "text NOT NULL", "name": "text PRIMARY KEY"}
CARRIED = {"name": "text PRIMARY KEY", "rows": "bytea NOT NULL"}
COMPRESSED = "ALTER TABLE batches_carried ALTER COLUMN rows SET STORAGE EXTERNAL"  # by the worker already
AGED_KEY = "ALTER TABLE batches_expired ADD PRIMARY KEY (stream, spool)"
EXPIRED = """INSERT INTO batches_expired AS e (stream, spool, deleted, expired) VALUES (%s, %s, %s, %s)
ON CONFLICT (stream, spool)
DO UPDATE SET deleted = e.deleted + excluded.deleted, expired = e.expired + excluded.expired"""
TRY = "SELECT pg_try_advisory_xact_lock(%s)"
WAIT = "SELECT pg_advisory_xact_lock(%s) IS NOT NULL"
SWEEP = 1_000  # pages of a table that are searched for old rows in one transaction
BRIEFLY = "SET LOCAL lock_timeout = '1s'"  # others that use the table wait behind one that waits for a lock on it
# A transaction that may have a lower id than a batch that was stored at this time, and has not ended. It has locked
# `batches` before it took its id. Other roles' times are not shown, so they count as early.
EARLIER = """SELECT 1 FROM pg_locks LEFT JOIN pg_stat_activity AS a USING (pid)
WHERE locktype = 'relation' AND relation = 'batches'::regclass AND mode = 'RowExclusiveLock'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND pid IS DISTINCT FROM pg_backend_pid()
  AND coalesce(a.xact_start, '-infinity') <= %s::timestamptz + interval '1 s'"""
LETTERS = {
    "id": "bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
    "received_at": f"{STAMP} NOT NULL",
    "stream": "text NOT NULL",
    "body": "bytea NOT NULL",
    "reason": "text NOT NULL",
    "whole": "boolean NOT NULL",
    "batch": "bigint NOT NULL",
    "seq": "bigint NOT NULL",
}
CHANGES = {
    "id": "bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
    "stream": "text NOT NULL",
    "batch": "bigint NOT NULL",
}
INDEX = "CREATE INDEX dead_letters_by_body ON dead_letters (stream, batch, seq)"
BURY = "COPY dead_letters (received_at, stream, body, reason, whole, batch, seq) FROM STDIN (FORMAT BINARY)"
BURIED = ("int8", "text", "bytea", "bytea", "bool", "int8", "int8")
SPOOL_OF = "split_part(claim, ':', 1)"
# The counts of a stream's spools. limits: a JSON object, the highest number of a spool to count; rest: that of others
COUNTS = f"""
WITH most AS (SELECT key, value::bigint FROM jsonb_each_text(%(limits)s)),
stored AS (
  SELECT spool, sum(greatest(0, least(last, coalesce(value, %(rest)s)) - first + 1))::bigint AS bodies,
    max(last) AS highest
  FROM batches_ranges LEFT JOIN most ON key = spool WHERE stream = %(stream)s GROUP BY 1),
dead AS (
  SELECT {SPOOL_OF} AS spool, count(*) AS letters
  FROM (SELECT DISTINCT batch, seq FROM dead_letters WHERE stream = %(stream)s) AS d JOIN batches AS b ON b.id = batch
  LEFT JOIN most ON key = {SPOOL_OF} WHERE seq <= coalesce(value, %(rest)s) GROUP BY 1),
known AS (SELECT spool, cell, first, last, purged FROM batches_spools WHERE stream = %(stream)s)
SELECT coalesce(jsonb_agg(jsonb_build_array(coalesce(s.spool, k.spool, e.spool), coalesce(bodies, 0),
  coalesce(highest, 0), coalesce(letters, 0), cell, first, last, purged, coalesce(expired, 0), coalesce(deleted, 0))),
  '[]')
FROM stored AS s FULL JOIN known AS k ON k.spool = s.spool LEFT JOIN dead AS d ON d.spool = s.spool
FULL JOIN (SELECT * FROM batches_expired WHERE stream = %(stream)s) AS e ON e.spool = coalesce(s.spool, k.spool)
"""  # noqa: S608  # names of our own
LOCK = 0x736C75696365  # "sluice": the advisory lock that is held while tables are created
CHORES = LOCK + 1  # held while batches are folded, or rows are deleted by age

# Set for each transaction, so that it also works behind a connection pooler. lock_timeout limits the wait for another
# worker with the same claim. A settled claim must be on disk. A deferred constraint must fail at its row, not at the
# commit.
BEGIN = """SET LOCAL lock_timeout = '5s'; SET CONSTRAINTS ALL IMMEDIATE;
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"""
# Detects within half a minute that the server vanished without closing the connection.
CONNECTION: dict[str, Any] = {
    **{"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3},
    **{"tcp_user_timeout": 25_000, "fallback_application_name": "sluice", "client_encoding": "UTF8"},
}

# SQLSTATE classes of errors of the server, its roles or its tables. A value causes all other codes, also those that a
# trigger raises. 22P03: a column does not have the type that was sent.
SERVER_ERRORS = re.compile("08|0A|25|26|28|3D|3F|40|42|53|55|57|58|72|F0|XX|22P03")
VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, msgspec.MsgspecError)
Row = tuple[Any, ...]

logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings repeat the text of Unavailable


class Table:
    """A stream's table: the columns are the arrival time, the fields of the record type, and batch and seq.

    Metrics have three more: a timestamp has microseconds only, so `nanoseconds` has the last three digits; `value` is
    an exact number or null, `text` a string or null.
    """

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.metric = stream.record is Metric
        self.columns = {"received_at": f"{STAMP} NOT NULL", "time": f"{STAMP} NOT NULL"}
        self.encoded: list[int] = []  # positions of values that are sent as jsonb
        for at, (name, kinds) in enumerate(field_types(stream.record).items(), 2):
            self.columns[name] = PLAIN.get(kinds.pop(), "jsonb") if len(kinds) == 1 else "jsonb"
            if self.columns[name] == "jsonb":
                self.encoded.append(at)
        if self.metric:
            self.columns |= {"tags": "jsonb", "value": "numeric", "text": "text", "nanoseconds": "smallint"}
        self.columns |= {"batch": "bigint NOT NULL", "seq": "bigint NOT NULL"}  # a foreign key costs more than the row
        self.sent = [SENT[kind.removesuffix(" NOT NULL")] for kind in self.columns.values()]
        names = ", ".join(f'"{name}"' for name in self.columns)
        self.copy = f'COPY "{self.name}" ({names}) FROM STDIN (FORMAT BINARY)'

    def row(self, batch: int, seq: int, received: int, record: Any) -> Row:
        """A record as a row for COPY."""
        arrived, time = received - Y2000, record.time
        at = arrived if time is None else time // 1000 - Y2000
        if self.metric:
            value = record.value
            text = value if record.type == "string" else None
            number = None if text is not None else Decimal(repr(value) if value.__class__ is float else value)
            tags = b"\1" + msgspec.json.encode(record.tags)
            below = 0 if time is None else time % 1000
            return arrived, at, record.name, tags, record.field, number, record.type, text, below, batch, seq
        row = (arrived, at, *astuple(record)[1:], batch, seq)
        if not self.encoded:
            return row
        values = list(row)
        for n in self.encoded:
            if values[n] is not None:
                values[n] = b"\1" + msgspec.json.encode(values[n])
        return tuple(values)


class Postgres(Store[psycopg.Connection]):
    """See `Store`."""

    def __init__(
        self,
        url: str,
        streams: dict[str, Stream],
        make: bool = True,
        keep: Keep = FOREVER,
        elsewhere: Mapping[str, Destination] = {},
    ) -> None:
        """url: a connection string of libpq. make: create the tables if they are missing."""
        super().__init__({name: Table(stream) for name, stream in streams.items()}, keep, elsewhere)
        self.swept: dict[str, int] = {}  # table -> the page at which the search for old rows continues
        self.url = url
        self.make = make
        try:
            given = conninfo_to_dict(url)
            # with an unquoted @ or / in a password, libpq takes parts of the password for the host or the database
            clear = url.count("@") <= 1 and ("@" in url) <= ("user" in given)
        except psycopg.Error:
            clear = False
        if not clear:  # libpq's own error could quote the password
            raise Unavailable(
                "PostgreSQL: not a valid connection string; in the password, write each @ : / % as %40 %3A %2F %25"
            )
        self.name = f"PostgreSQL {given.get('host', '')}/{given.get('dbname', '')}"
        self.defaults = {name: value for name, value in CONNECTION.items() if name not in given}
        with self.transaction():
            pass

    def open(self) -> psycopg.Connection:
        """The connection, opened if it is closed."""
        if self.db is None:
            self.checked.clear()
            db = psycopg.connect(self.url, autocommit=True, prepare_threshold=None, **self.defaults)
            try:
                with db.transaction():
                    db.execute(BEGIN)
                    if self.make:
                        ensure(db, "batches_layout", VERSION)
                        (layout,) = one(db.execute("SELECT coalesce(max(version), 0) FROM batches_layout"))
                        check_layout(self.name, layout, self.make)
                        ensure(db, "batches", BATCHES)
                        ensure(db, "batches_ranges", RANGES, EXCLUDE)
                        ensure(db, "batches_folded", FOLDED, FOLDED_KEY)
                        ensure(db, "batches_expired", AGED, AGED_KEY)
                        ensure(db, "batches_spools", SPOOLS, SPOOL_INDEX)
                        ensure(db, "batches_cells", CELLS)
                        ensure(db, "batches_objects", OBJECTS)
                        ensure(db, "batches_carried", CARRIED, COMPRESSED)
                        ensure(db, "dead_letters", LETTERS, INDEX)
                        ensure(db, "view_changes", CHANGES)
                        if layout < LAYOUT:
                            db.execute("ALTER TABLE dead_letters DROP CONSTRAINT IF EXISTS dead_letters_batch_fkey")
                            execute(db, RANGES_OF_CLAIMS.format(SPOOL_OF))
                            execute(db, SPOOLS_OF_RANGES)
                            db.execute("INSERT INTO batches_layout (version) VALUES (%s)", (LAYOUT,))
                    elif not one(db.execute("SELECT to_regclass('batches')::text"))[0]:
                        raise Unavailable(f"{self.name}: there are no tables yet")
                    else:
                        layout = 0
                        if one(db.execute("SELECT to_regclass('batches_layout')::text"))[0]:
                            (layout,) = one(db.execute("SELECT coalesce(max(version), 0) FROM batches_layout"))
                        check_layout(self.name, layout, self.make)
                if self.make:
                    for name in self.tables:
                        with contextlib.suppress(psycopg.Error, Unavailable), db.transaction():
                            db.execute(BEGIN)
                            self.table(db, name)  # a table that cannot be created stops its stream only
            except BaseException:
                db.close()
                raise
            self.db = db
        return self.db

    @contextlib.contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        """See `Store`. Unavailable: an error of the server, not of a value."""
        try:
            db = self.open()
            with db.transaction():
                db.execute(BEGIN)
                yield db
        except (psycopg.Error, Unavailable) as error:
            self.close()
            # neither the details of the server's error nor a traceback: they quote rows
            raise error if isinstance(error, Unavailable) else Unavailable(f"{self.name}: {message(error)}") from None

    def create(self, db: psycopg.Connection, table: Table) -> None:
        """See `Store`. A new table is partitioned if its rows are deleted by age."""
        age = self.keep.of(table.name)
        if age is None:
            ensure(db, table.name, table.columns)
        else:
            ensure(db, table.name, table.columns, partitions.rest(table.name), partitions.BY_ARRIVAL)
            if partitions.is_partitioned(db, table.name):
                partitions.make_ahead(db, table.name, age)

    def add_batch(self, db: psycopg.Connection, claim: Claim) -> int | None:
        """See `Store`. Waits for the end of another transaction that stores a body of this claim."""
        row = db.execute(
            "WITH free AS (INSERT INTO batches_ranges (stream, spool, first, last) "
            "  SELECT %(stream)s, %(spool)s, %(first)s, %(last)s "
            "  WHERE NOT EXISTS (SELECT FROM batches WHERE claim = %(id)s) ON CONFLICT DO NOTHING RETURNING 1) "
            "INSERT INTO batches (claim, stream, first, bodies, records) "
            "SELECT %(id)s, %(stream)s, %(first)s, %(bodies)s, 0 FROM free ON CONFLICT (claim) DO NOTHING RETURNING id",
            named(claim),
        ).fetchone()
        return row[0] if row else None

    def stored(self, db: psycopg.Connection, claim: Claim) -> list[tuple[int, int]]:
        """See `Store`."""
        given = span("%(stream)s::text", "%(spool)s::text", "%(first)s::bigint", "%(last)s::bigint + 1")
        query = (
            "SELECT %(first)s::bigint, %(last)s::bigint FROM batches WHERE claim = %(id)s UNION ALL "  # noqa: S608
            f"SELECT first, last FROM batches_ranges WHERE {SPAN} && {given} ORDER BY 1"
        )
        return db.execute(typing.cast("Any", query), named(claim)).fetchall()

    def add_records(self, db: psycopg.Connection, batch: int, records: int) -> None:
        """See `Store`."""
        db.execute("UPDATE batches SET records = records + %s WHERE id = %s", (records, batch))

    def add_change(self, db: psycopg.Connection, stream: str, batch: int) -> None:
        """See `Store`."""
        db.execute("INSERT INTO view_changes (stream, batch) VALUES (%s, %s)", (stream, batch))

    def insert(
        self, db: psycopg.Connection, table: Table, batch: int, whole: bool, entries: Iterable[Entry]
    ) -> Outcome:
        """See `Store`."""
        records = letters = 0
        remaining = iter(entries)
        try:
            with db.transaction():  # a savepoint
                while True:
                    rejects: list[Row] = []
                    count, more = self.copy(db, table, batch, whole, remaining, rejects)
                    records, letters = records + count, letters + len(rejects)
                    bury(db, rejects)
                    if not more:
                        return Outcome(records, letters)
        except psycopg.Error as error:
            if is_server_error(error):
                raise
            raise RowsRejected(message(error)) from None

    def copy(
        self,
        db: psycopg.Connection,
        table: Table,
        batch: int,
        whole: bool,
        entries: Iterator[Entry],
        rejects: list[Row],
    ) -> tuple[int, bool]:
        """Stream rows into the table until the entries end, or until `rejects` has LETTER_BYTES and must be buried.

        Returns the number of rows, and whether there may be more entries. Raises: RowsRejected.
        """
        records = size = 0
        with db.cursor() as cursor, cursor.copy(table.copy) as copy:
            copy.set_types(table.sent)
            write, row = copy.write_row, table.row
            thing: Any
            for seq, received, _, thing in entries:
                if thing.__class__ is Reject:
                    rejects.append(letter(table.name, batch, whole, seq, received, thing))
                    size += len(thing.part)
                    if size >= bounds.LETTER_BYTES:
                        return records, True
                    continue
                try:
                    write(row(batch, seq, received, thing))
                except VALUE_ERRORS as error:
                    raise RowsRejected(str(error)) from None
                records += 1
        return records, False

    def savepoint(self, db: psycopg.Connection) -> contextlib.AbstractContextManager[object]:
        """See `Store`."""
        return db.transaction()

    def bury(self, db: psycopg.Connection, stream: str, batch: int, whole: bool, rejects: Iterable[Entry]) -> None:
        """See `Store`."""
        bury(db, [letter(stream, batch, whole, seq, received, thing) for seq, received, _, thing in rejects])

    def note(self, db: psycopg.Connection, stream: str, name: str, carried: bytes | None) -> None:
        """See `Store`."""
        db.execute("INSERT INTO batches_objects (stream, name) VALUES (%s, %s)", (stream, name))
        if carried is not None:
            db.execute("INSERT INTO batches_carried (name, rows) VALUES (%s, %b)", (name, carried))

    def notes(self, db: psycopg.Connection) -> list[tuple[str, str]]:
        """See `Store`."""
        return db.execute("SELECT stream, name FROM batches_objects ORDER BY name").fetchall()

    def carried(self, db: psycopg.Connection, name: str) -> bytes | None:
        """See `Store`."""
        found = db.execute("SELECT rows FROM batches_carried WHERE name = %s", (name,)).fetchone()
        return found[0] if found else None

    def delete_notes(self, db: psycopg.Connection, names: list[str]) -> None:
        """See `Store`."""
        db.execute("DELETE FROM batches_objects WHERE name = ANY(%s)", (names,))
        db.execute("DELETE FROM batches_carried WHERE name = ANY(%s)", (names,))

    def last_letter(self, db: psycopg.Connection) -> int:
        """See `Store`."""
        return one(db.execute("SELECT coalesce(max(id), 0) FROM dead_letters"))[0]

    def delete_letter(self, db: psycopg.Connection, id: int) -> bool:
        """See `Store`. Waits for the end of another replay that has deleted it."""
        return bool(db.execute("DELETE FROM dead_letters WHERE id = %s", (id,)).rowcount)

    def buried(self, db: psycopg.Connection, above: int, batches: set[int]) -> dict[str, int]:
        """See `Store`."""
        found = db.execute(
            "SELECT reason, count(*) FROM dead_letters WHERE id > %s AND batch = ANY(%s) GROUP BY 1",
            (above, list(batches)),
        )
        return dict(found.fetchall())

    def select_letters(self, where: str, above: int, below: int, limit: int, newest: bool) -> Iterator[DeadLetter]:
        """See `Store`."""
        for row in self.ask(
            where,
            "SELECT id, stream, (extract(epoch FROM received_at) * 1000000)::bigint, body, reason, whole, batch, seq "  # noqa: S608  # DESC or nothing
            f"FROM {{}} WHERE id > %s AND id < %s ORDER BY id {'DESC' if newest else ''} LIMIT %s",
            (above, below, limit),
        ):
            yield DeadLetter(*row)

    def ask(self, where: str, question: str, bindings: tuple[int, ...]) -> Iterator[Any]:
        """See `Store`."""
        with self.transaction() as db:
            db.execute("SET TRANSACTION READ ONLY")
            try:
                with db.cursor("letters") as cursor:
                    cursor.itersize = 10  # a dead letter may be large
                    # the newline ends a comment at the end of the condition; a % in it is not a placeholder
                    table = f"(SELECT * FROM dead_letters WHERE ({where.replace('%', '%%')}\n)) AS found"  # noqa: S608  # the operator's own SQL
                    yield from cursor.execute(typing.cast("Any", question.format(table)), bindings)
            except psycopg.Error as error:
                if is_server_error(error) and not (error.sqlstate or "").startswith(("42", "25006", "0A")):
                    raise
                raise ValueError(f"not a condition on dead letters: {message(error)}") from None

    def ledger(
        self,
        stream: str,
        history: Sequence[Window] = (),
        cell: str | None = None,
        claims: dict[str, int] | None = None,
    ) -> Ledger:
        """See `Store`."""
        own, rest = limits(history)
        persisted = (
            "SELECT CASE WHEN EXISTS (SELECT FROM batches WHERE claim = c.id) THEN c.past - c.low ELSE "  # noqa: S608
            "  (SELECT coalesce(sum(least(last + 1, c.past) - greatest(first, c.low)), 0)::bigint "
            f"   FROM batches_ranges WHERE {SPAN} && {span('%(stream)s::text', 'c.spool', 'c.low', 'c.past')}) END "
            "FROM unnest(%(id)s::text[], %(spool)s::text[], %(low)s::bigint[], %(past)s::bigint[]) "
            "  WITH ORDINALITY AS c (id, spool, low, past, at) ORDER BY at"
        )
        given = [Claim.of(stream, id, count) for id, count in (claims or {}).items()]
        with self.transaction() as db:
            found = db.execute(  # one statement sees one snapshot
                typing.cast("Any", f"SELECT ({COUNTS}), ARRAY({persisted})"),
                {
                    **{"stream": stream, "limits": Jsonb(own), "rest": rest},
                    **{"id": [one.id for one in given], "spool": [one.epoch for one in given]},
                    **{"low": [one.first for one in given], "past": [one.end for one in given]},
                },
            )
            counts, present = one(found)
        stored = {claim.id: count for claim, count in zip(given, present)}
        return summed((SpoolCount(*row) for row in counts), history, cell, stored)

    def stored_in(self, stream: str, partitions: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """See `Store`."""
        with self.transaction() as db:
            found = db.execute(
                "SELECT coalesce(sum(greatest(least(last, past) - first + 1, 0)), 0)::bigint, "
                "       coalesce(sum(greatest(least(last, past) - greatest(first, settled + 1) + 1, 0)), 0)::bigint "
                "FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) AS p (part, settled, past) "
                "JOIN batches_ranges ON stream = %s AND starts_with(spool, part || '.')",
                (
                    list(partitions),
                    [settled for settled, _ in partitions.values()],
                    [end for _, end in partitions.values()],
                    stream,
                ),
            )
            return one(found)

    def leave_line(self, cell: str, figures: dict[str, Any], spools: list[Spool]) -> None:
        """See `Store`."""
        with self.transaction() as db, db.cursor() as cursor:
            db.execute("UPDATE batches_spools SET cell = %s WHERE cell = ''", (cell,))
            cursor.executemany(
                "INSERT INTO batches_spools AS b (stream, spool, cell, first, last, purged) "
                "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (stream, spool) DO UPDATE "
                "SET cell = excluded.cell, last = greatest(b.last, excluded.last), purged = excluded.purged",
                spools,
            )
            db.execute(
                "INSERT INTO batches_cells VALUES (%s, clock_timestamp(), %s) ON CONFLICT (cell) DO UPDATE "
                "SET seen = excluded.seen, figures = excluded.figures",
                (cell, Jsonb(figures)),
            )

    def lines(self) -> list[Line]:
        """See `Store`."""
        with self.transaction() as db:
            found = db.execute(
                "SELECT cell, greatest(0, extract(epoch FROM clock_timestamp() - seen))::float8, figures "
                "FROM batches_cells ORDER BY 1"
            )
            return [Line(*row) for row in found]

    def forget(self, cell: str) -> bool:
        """See `Store`."""
        with self.transaction() as db:
            return bool(db.execute("DELETE FROM batches_cells WHERE cell = %s", (cell,)).rowcount)

    def fold(self) -> bool:
        """See `Store`. The ids of folded rows are final: no transaction can add a lower one any more.

        Two connections never fold at once. Ranges that meet become one. Rows that a replay has locked stay.
        """
        with self.transaction() as db:
            if not one(db.execute(TRY, (CHORES,)))[0]:
                return False
            found = db.execute(
                f"SELECT id, persisted_at, {LAST_FOLDED} FROM batches WHERE id > {LAST_FOLDED} "  # noqa: S608
                "AND id <= (SELECT max(id) FROM batches) - %s ORDER BY id LIMIT 1 OFFSET %s",
                (bounds.KEEP_BATCHES, bounds.FOLD_BATCHES - 1),
            ).fetchone()
            if not found or db.execute(EARLIER, found[1:2]).fetchone():
                return False
            ids = {"last": found[0], "folded": found[2]}
            for group in db.execute(
                f"SELECT stream, {SPOOL_OF}, min(id), max(id), min(first), max(first + bodies) FROM batches "  # noqa: S608
                "WHERE id > %(folded)s AND id <= %(last)s GROUP BY 1, 2",
                ids,
            ).fetchall():
                merge(db, *group[:2], *group[4:])
                db.execute(
                    "INSERT INTO batches_folded AS f (stream, spool, first_batch, last_batch) VALUES (%s, %s, %s, %s) "
                    "ON CONFLICT (stream, spool) "
                    "DO UPDATE SET last_batch = greatest(f.last_batch, excluded.last_batch)",
                    group[:4],
                )
            db.execute(
                "DELETE FROM batches WHERE id IN (SELECT id FROM batches "  # noqa: S608
                f"WHERE id > %(folded)s AND id <= %(last)s AND NOT {HAS_LETTERS} FOR UPDATE SKIP LOCKED)",
                ids,
            )
        return True

    def fold_again(self, db: psycopg.Connection, batches: set[int]) -> None:
        """See `Store`."""
        query = f"DELETE FROM batches WHERE id = ANY(%s) AND id <= {LAST_FOLDED} AND NOT {HAS_LETTERS}"  # noqa: S608
        db.execute(typing.cast("Any", query), (list(batches),))

    def prune_table(self, stream: str, before: int) -> bool:
        """See `Store`. Drops a partition, after it has counted the rows.

        If there is none to drop, it searches the next pages of the table, or of its default partition.
        """
        with self.transaction() as db:
            if not one(db.execute(TRY if self.make else WAIT, (CHORES,)))[0]:
                return False
            db.execute(BRIEFLY)
            at = datetime.fromtimestamp(before / 1e6, timezone.utc)
            table = f'"{stream}"'
            if partitions.is_partitioned(db, stream):
                partitions.make_ahead(db, stream, self.keep.of(stream) or 0)
                if overdue := partitions.overdue(db, stream, at):
                    first = overdue[0]
                    execute(db, f"LOCK TABLE {first} IN EXCLUSIVE MODE")  # a late row would not be counted
                    (rows,) = one(db.execute(typing.cast("Any", f"SELECT count(*) FROM {first}")))  # noqa: S608
                    execute(db, f"DROP TABLE {first}")
                    self.add_deleted(db, stream, rows)
                    return True
                table = partitions.default(db, stream)
            size = "SELECT pg_relation_size(to_regclass(%s)) / current_setting('block_size')::int"
            pages = one(db.execute(size, (table,)))[0]
            start = self.swept.pop(table, 0)
            if not pages:
                return False
            deleted = db.execute(
                typing.cast(
                    "Any",
                    f"DELETE FROM ONLY {table} WHERE ctid >= %s::tid AND ctid < %s::tid AND received_at < %s",  # noqa: S608
                ),
                (f"({start},0)", f"({start + SWEEP},0)", at),
            ).rowcount
            if deleted:
                self.add_deleted(db, stream, deleted)
        if start + SWEEP < pages:
            self.swept[table] = start + SWEEP
        return table in self.swept

    def add_deleted(self, db: psycopg.Connection, stream: str, rows: int) -> None:
        """See `Store`."""
        db.execute(EXPIRED, (stream, "", rows, 0))

    def prune_letters(self, before: int) -> bool:
        """See `Store`. Letters that a replay has locked are left to the next call."""
        with self.transaction() as db:
            gone = db.execute(
                "DELETE FROM dead_letters WHERE id IN (SELECT id FROM (SELECT id, received_at FROM dead_letters "
                "ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) AS first WHERE received_at < to_timestamp(%s)) "
                "RETURNING stream, batch, seq",
                (bounds.EXPIRE_LETTERS, before / 1e6),
            ).fetchall()
            for stream, batch, seq in set(gone):
                left = "SELECT 1 FROM dead_letters WHERE stream = %s AND batch = %s AND seq = %s"
                if not db.execute(left, (stream, batch, seq)).fetchone():
                    spool = f"SELECT {SPOOL_OF} FROM batches WHERE id = %s"  # noqa: S608
                    found = db.execute(typing.cast("Any", spool), (batch,)).fetchone()
                    db.execute(EXPIRED, (stream, found[0] if found else "", 0, 1))
            self.fold_again(db, {batch for _, batch, _ in gone})
        return len(gone) == bounds.EXPIRE_LETTERS

    def overdue_in_table(self, table: str, before: int) -> int:
        """See `Store`."""
        with self.transaction() as db:
            if not one(db.execute("SELECT to_regclass(%s)::text", (f'"{table}"',)))[0]:
                return 0
            query = f'SELECT count(*) FROM "{table}" WHERE received_at < to_timestamp(%s)'  # noqa: S608
            return one(db.execute(typing.cast("Any", query), (before / 1e6,)))[0]


def letter(stream: str, batch: int, whole: bool, seq: int, received: int, thing: Any) -> Row:
    """A reject as a row for `bury`. whole: False if it comes from a partial dead letter."""
    reason = thing.reason.encode(errors="backslashreplace").replace(b"\0", b"\\0")
    return received - Y2000, stream, thing.part, reason, thing.whole and whole, batch, seq


def bury(db: psycopg.Connection, rejects: list[Row]) -> None:
    """Store rejects as dead letters."""
    if rejects:
        with db.cursor() as cursor, cursor.copy(BURY) as copy:
            copy.set_types(BURIED)
            for reject in rejects:
                copy.write_row(reject)


def merge(db: psycopg.Connection, stream: str, spool: str, first: int, end: int) -> None:
    """Replace the stored ranges that have or touch a sequence number from `first` to `end` - 1: those that meet become
    one. A transaction that stores such a body waits for the end of this one.
    """
    given = span("%s::text", "%s::text", "%s::bigint", "%s::bigint")
    found = db.execute(
        typing.cast("Any", f"DELETE FROM batches_ranges WHERE {SPAN} && {given} RETURNING first, last"),  # noqa: S608
        (stream, spool, first - 1, stream, spool, end + 1),
    )
    whole: list[list[int]] = []
    for low, high in sorted(found.fetchall()):
        if whole and low <= whole[-1][1] + 1:
            whole[-1][1] = high
        else:
            whole.append([low, high])
    with db.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO batches_ranges (stream, spool, first, last) VALUES (%s, %s, %s, %s)",
            [(stream, spool, low, high) for low, high in whole],
        )


def ensure(db: psycopg.Connection, name: str, columns: dict[str, str], index: str = "", more: str = "") -> None:
    """Create a table, or add the columns that it lacks. Raises: Unavailable if a column has another type.

    more: the end of the statement that creates the table. index: statements behind it.
    A table that is complete needs no statement that changes it, so a role without CREATE can use it.
    """
    db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    found = db.execute(
        "SELECT attname::text, atttypid::regtype::text FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (f'"{name}"',),
    )
    present: dict[str, str] = dict(found.fetchall())
    if not present:
        listed = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
        execute(db, f'CREATE TABLE "{name}" ({listed}){more}')
        if index:
            execute(db, index)
        return
    for column, kind in columns.items():
        plain = kind.partition(" NOT NULL")[0].partition(" PRIMARY")[0]
        if column not in present:
            execute(db, f'ALTER TABLE "{name}" ADD COLUMN "{column}" {plain}')
        elif present[column].replace("character varying", "text") != plain:
            raise Unavailable(
                f"PostgreSQL: column {column} of table {name} has the type {present[column]}, expected {plain}"
            )


def named(claim: Claim) -> dict[str, Any]:
    """A claim as the values of a query."""
    return {"id": claim.id, "stream": claim.stream, "spool": claim.epoch, "first": claim.first} | {
        "last": claim.end - 1,
        "bodies": claim.count,
    }


def execute(db: psycopg.Connection, statement: str) -> None:
    """Run a statement that is not a literal."""
    db.execute(typing.cast("Any", statement))


def one(cursor: psycopg.Cursor) -> Any:
    """The row of a query that always has one."""
    return cursor.fetchone()


def is_server_error(error: psycopg.Error) -> bool:
    """Whether the server caused an error, not a value."""
    if error.sqlstate is None:  # an error of the driver, or a lost connection
        return not isinstance(error, psycopg.DataError)
    return bool(SERVER_ERRORS.match(error.sqlstate))


def message(error: psycopg.Error) -> str:
    """The primary message of an error, on one line. It quotes neither rows nor the statement."""
    return " ".join((error.diag.message_primary or str(error)).split())
