"""PostgreSQL: rows stream in by binary COPY, many workers at once; what is settled is as safe as the server makes it.

Binary, because neither side then spells numbers and times out as text: a row costs this process 0.8 µs, as text 2.0.
"""

from __future__ import annotations

import contextlib
import logging
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import psycopg
from msgspec.structs import astuple
from psycopg.conninfo import conninfo_to_dict

from sluice.sinks import DeadLetter, Decode, DryRun, Entry, Ledger, Outcome, Replayed, RowsRejected, Unavailable, fill
from sluice.sinks.schema import kinds
from sluice.spool.contract import Claim
from sluice.streams.record import Metric, Reject
from sluice.streams.registry import Stream

STAMP = "timestamp with time zone"
PLAIN = {float: "double precision", int: "bigint", bool: "boolean", str: "text"}  # anything else is jsonb
# What a column is sent as: the same bytes, from the Python type at hand. A timestamp is microseconds since 2000, and
# jsonb is a version byte and JSON.
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
LETTERS = {
    "id": "bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
    "received_at": f"{STAMP} NOT NULL",
    "stream": "text NOT NULL",
    "body": "bytea NOT NULL",
    "reason": "text NOT NULL",
    "whole": "boolean NOT NULL",
    "batch": "bigint NOT NULL REFERENCES batches",
    "seq": "bigint NOT NULL",
}
INDEX = "CREATE INDEX dead_letters_by_body ON dead_letters (stream, batch, seq)"
BURY = "COPY dead_letters (received_at, stream, body, reason, whole, batch, seq) FROM STDIN (FORMAT BINARY)"
BURIED = ("int8", "text", "bytea", "bytea", "bool", "int8", "int8")
LETTERS_SIZE = 4 << 20  # bytes of letters that are held at once
LOCK = 0x736C75696365  # "sluice", the advisory lock under which tables are made

# For each transaction, so that it also holds behind a pooler. Another worker with the same claim is waited for, but not
# for ever. What is settled must be on disk. A constraint must speak up at its row, not at the commit.
BEGIN = """SET LOCAL lock_timeout = '5s'; SET CONSTRAINTS ALL IMMEDIATE;
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"""
# A server that is gone without a word is noticed within half a minute.
CONNECTION: dict[str, Any] = {
    **{"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3},
    **{"tcp_user_timeout": 25_000, "fallback_application_name": "sluice", "client_encoding": "UTF8"},
}

# Classes of SQLSTATE with which the server speaks of itself, its users or its tables. Everything else, also what a
# trigger makes up, is about a value. 22P03 is a column that is not of the type that was sent.
ABOUT_ITSELF = re.compile("08|0A|25|26|28|3D|3F|40|42|53|55|57|58|72|F0|XX|22P03")
UNFIT = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, msgspec.MsgspecError)
Row = tuple[Any, ...]

logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings are of what Unavailable says anyway


class Table:
    """A stream's table: its columns are the fields of the stream's records, between arrival and origin.

    A metric's time keeps its nanoseconds, which a timestamp has no room for, in a column of their own, and its value
    is either a number, exactly, or a text.
    """

    def __init__(self, stream: Stream) -> None:
        self.name = stream.name
        self.metric = stream.record is Metric
        self.columns = {"received_at": f"{STAMP} NOT NULL", "time": f"{STAMP} NOT NULL"}
        self.encoded: list[int] = []  # positions of values that go in as jsonb
        for at, (name, some) in enumerate(kinds(stream.record).items(), 2):
            self.columns[name] = PLAIN.get(some.pop(), "jsonb") if len(some) == 1 else "jsonb"
            if self.columns[name] == "jsonb":
                self.encoded.append(at)
        if self.metric:
            self.columns |= {"tags": "jsonb", "value": "numeric", "text": "text", "nanoseconds": "smallint"}
        self.columns |= {"batch": "bigint NOT NULL", "seq": "bigint NOT NULL"}  # a foreign key costs more than the row
        self.sent = [SENT[kind.removesuffix(" NOT NULL")] for kind in self.columns.values()]
        names = ", ".join(f'"{name}"' for name in self.columns)
        self.copy = f'COPY "{self.name}" ({names}) FROM STDIN (FORMAT BINARY)'

    def row(self, batch: int, seq: int, received: int, record: Any) -> Row:
        """A record as COPY takes it."""
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


class Postgres:
    """See `sinks.Sink`. One connection; not for several threads."""

    def __init__(self, url: str, streams: dict[str, Stream], make: bool = True) -> None:
        """url: a connection string of libpq. make: make the tables if they are missing."""
        self.url = url
        self.make = make
        self.tables = {name: Table(stream) for name, stream in streams.items()}
        self.made: set[str] = set()  # the tables that are as they should be
        self.db: psycopg.Connection | None = None
        try:
            given = conninfo_to_dict(url)
            # an @ or / in a password that is not written as %40 or %2F puts pieces of it into other places
            clear = url.count("@") <= 1 and ("@" in url) <= ("user" in given)
        except psycopg.Error:
            clear = False
        if not clear:  # what libpq would say could quote it
            raise Unavailable(
                "PostgreSQL: this is not a connection string; is each @ : / % in the password written as %40 …?"
            )
        self.name = f"PostgreSQL {given.get('host', '')}/{given.get('dbname', '')}"
        self.defaults = {name: value for name, value in CONNECTION.items() if name not in given}
        with self.transaction():
            pass

    def open(self) -> psycopg.Connection:
        """The connection, opened again if it was closed."""
        if self.db is None:
            self.made.clear()
            db = psycopg.connect(self.url, autocommit=True, prepare_threshold=None, **self.defaults)
            try:
                with db.transaction():
                    db.execute(BEGIN)
                    if self.make:
                        ensure(db, "batches", BATCHES)
                        ensure(db, "dead_letters", LETTERS, INDEX)
                    elif not one(db.execute("SELECT to_regclass('batches')::text"))[0]:
                        raise Unavailable(f"{self.name}: there are no tables yet")
                if self.make:
                    for name in self.tables:
                        with contextlib.suppress(psycopg.Error, Unavailable), db.transaction():
                            db.execute(BEGIN)
                            self.table(db, name)  # one that cannot be made holds up nobody else
            except BaseException:
                db.close()
                raise
            self.db = db
        return self.db

    def table(self, db: psycopg.Connection, stream: str) -> Table:
        """A stream's table, made if it was not there."""
        table = self.tables[stream]
        if stream not in self.made:
            ensure(db, table.name, table.columns)
            self.made.add(stream)
        return table

    def close(self) -> None:
        """Let go of the connection."""
        db, self.db = self.db, None
        if db is not None:
            db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        """All or nothing. Raises: Unavailable for what the server says of itself."""
        try:
            db = self.open()
            with db.transaction():
                db.execute(BEGIN)
                yield db
        except (psycopg.Error, Unavailable) as error:
            self.close()
            # not the rest of what the server says, nor a traceback: they quote rows
            raise error if isinstance(error, Unavailable) else Unavailable(f"{self.name}: {said(error)}") from None

    def persist(self, claim: Claim, entries: Callable[[], Iterable[Entry]]) -> Outcome:
        """See `sinks.Sink`."""
        with self.transaction() as db:
            # waits for the end of another transaction that has this claim
            new = db.execute(
                "INSERT INTO batches (claim, stream, first, bodies, records) VALUES (%s, %s, %s, %s, 0) "
                "ON CONFLICT (claim) DO NOTHING RETURNING id",
                (claim.id, claim.stream, claim.first, claim.count),
            ).fetchone()
            if new is None:
                return Outcome(0, 0, again=True)
            table = self.table(db, claim.stream)
            outcome = fill(partial(self.insert, db, table, new[0], True), entries)
            db.execute("UPDATE batches SET records = %s WHERE id = %s", (outcome.records, new[0]))
        return outcome

    def insert(
        self, db: psycopg.Connection, table: Table, batch: int, whole: bool, entries: Iterable[Entry]
    ) -> Outcome:
        """Store the records among the entries and bury the rejects. Raises: RowsRejected, with nothing done.

        whole: False if the entries are of a letter that is a part of a body.
        """
        records = letters = 0
        left = iter(entries)
        try:
            with db.transaction():  # a savepoint
                while True:
                    rejects: list[Row] = []
                    count, more = self.copy(db, table, batch, whole, left, rejects)
                    records, letters = records + count, letters + len(rejects)
                    if rejects:
                        with db.cursor() as cursor, cursor.copy(BURY) as copy:
                            copy.set_types(BURIED)
                            for reject in rejects:
                                copy.write_row(reject)
                    if not more:
                        return Outcome(records, letters)
        except psycopg.Error as error:
            if about_itself(error):
                raise
            raise RowsRejected(said(error)) from None

    def copy(
        self,
        db: psycopg.Connection,
        table: Table,
        batch: int,
        whole: bool,
        entries: Iterator[Entry],
        rejects: list[Row],
    ) -> tuple[int, bool]:
        """Stream rows into the table until there are no more entries, or so many rejects that they are to be buried.

        Returns how many, and whether there may be more entries. Raises: RowsRejected.
        """
        records = size = 0
        with db.cursor() as cursor, cursor.copy(table.copy) as copy:
            copy.set_types(table.sent)
            write, row = copy.write_row, table.row
            thing: Any
            for seq, received, _, thing in entries:
                if thing.__class__ is Reject:
                    reason = thing.reason.encode(errors="backslashreplace").replace(b"\0", b"\\0")
                    rejects.append(
                        (received - Y2000, table.name, thing.part, reason, thing.whole and whole, batch, seq)
                    )
                    size += len(thing.part)
                    if size >= LETTERS_SIZE:
                        return records, True
                    continue
                try:
                    write(row(batch, seq, received, thing))
                except UNFIT as error:
                    raise RowsRejected(str(error)) from None
                records += 1
        return records, False

    def replay(self, letters: list[DeadLetter], decode: Decode, dry: bool = False) -> Replayed:
        """See `sinks.Sink`."""
        passed = records = stay = 0
        reasons: Counter[str] = Counter()
        with contextlib.suppress(DryRun), self.transaction() as db:
            (last,) = one(db.execute("SELECT coalesce(max(id), 0) FROM dead_letters"))
            for letter in letters:
                # of two replays at once the second waits here, and passes it over
                if not db.execute("DELETE FROM dead_letters WHERE id = %s", (letter.id,)).rowcount:
                    continue

                def entries(letter: DeadLetter = letter) -> Iterator[Entry]:
                    for thing in decode(letter):
                        yield letter.seq, letter.received, letter.body, thing

                table = self.table(db, letter.stream)
                outcome = fill(partial(self.insert, db, table, letter.batch, letter.whole), entries)
                db.execute("UPDATE batches SET records = records + %s WHERE id = %s", (outcome.records, letter.batch))
                records += outcome.records
                passed, stay = passed + (not outcome.letters), stay + bool(outcome.letters)
            found = db.execute(
                "SELECT reason, count(*) FROM dead_letters WHERE id > %s AND batch = ANY(%s) GROUP BY 1",
                (last, [letter.batch for letter in letters]),
            )
            reasons.update(dict(found.fetchall()))
            if dry:
                raise DryRun
        return Replayed(passed, records, stay, reasons)

    def letters(
        self, where: str = "true", above: int = 0, below: int = 1 << 62, most: int = 200, newest: bool = False
    ) -> list[DeadLetter]:
        """See `sinks.Sink`."""
        found: list[DeadLetter] = []
        size = 0
        for row in self.ask(
            where,
            "SELECT id, stream, (extract(epoch FROM received_at) * 1000000)::bigint, body, reason, whole, batch, seq "  # noqa: S608  # DESC or nothing
            f"FROM {{}} WHERE id > %s AND id < %s ORDER BY id {'DESC' if newest else ''} LIMIT %s",
            (above, below, most),
        ):
            found.append(DeadLetter(*row))
            size += len(row[3])
            if size >= LETTERS_SIZE:
                break
        return found

    def reasons(self, where: str = "true") -> list[tuple[str, str, int]]:
        """See `sinks.Sink`."""
        return list(self.ask(where, "SELECT stream, reason, count(*) FROM {} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2", ()))

    def ask(self, where: str, question: str, bindings: tuple[int, ...]) -> Iterator[Any]:
        """Ask about the dead letters for which the operator's own condition holds. It can change nothing.

        Raises: ValueError if it is not a condition.
        """
        with self.transaction() as db:
            db.execute("SET TRANSACTION READ ONLY")
            try:
                with db.cursor("letters", binary=True) as cursor:
                    cursor.itersize = 10  # a letter may be large
                    # on a line of its own, for it may end with a comment; a % in it is no placeholder
                    held = f"(SELECT * FROM dead_letters WHERE ({where.replace('%', '%%')}\n)) AS held"  # noqa: S608  # so it is meant
                    yield from cursor.execute(typing.cast("Any", question.format(held)), bindings)
            except psycopg.Error as error:
                if about_itself(error) and not (error.sqlstate or "").startswith(("42", "25006", "0A")):
                    raise
                raise ValueError(f"this is not a condition on dead letters: {where}: {said(error)}") from None

    def ledger(self, stream: str, last: int, claims: Iterable[str] = ()) -> Ledger:
        """See `sinks.Sink`."""
        with self.transaction() as db:
            found = db.execute(  # one statement sees one moment
                "SELECT (SELECT coalesce(sum(bodies), 0)::bigint FROM batches "
                "        WHERE stream = %(s)s AND first <= %(n)s), "
                "       (SELECT count(DISTINCT (batch, seq)) FROM dead_letters "
                "        WHERE stream = %(s)s AND seq <= %(n)s), "
                "       ARRAY(SELECT claim FROM batches WHERE claim = ANY(%(c)s))",
                {"s": stream, "n": last, "c": list(claims)},
            )
            bodies, dead, there = one(found)
        return Ledger(bodies, dead, set(there))


def ensure(db: psycopg.Connection, name: str, columns: dict[str, str], index: str = "") -> None:
    """Make a table, or add the columns that it lacks. Raises: Unavailable if it has others than it should.

    It looks before it makes, so that a worker without the right to make tables can use those that are there.
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
        execute(db, f'CREATE TABLE "{name}" ({listed})')
        if index:
            execute(db, index)
        return
    for column, kind in columns.items():
        plain = kind.partition(" NOT NULL")[0].partition(" PRIMARY")[0]
        if column not in present:
            execute(db, f'ALTER TABLE "{name}" ADD COLUMN "{column}" {plain}')
        elif present[column].replace("character varying", "text") != plain:
            raise Unavailable(
                f"PostgreSQL: column {column} of table {name} is {present[column]}, where {plain} is needed"
            )


def execute(db: psycopg.Connection, statement: str) -> None:
    """Run a statement that was put together."""
    db.execute(typing.cast("Any", statement))


def one(cursor: psycopg.Cursor) -> Any:
    """The row of a question that always has one."""
    return cursor.fetchone()


def about_itself(error: psycopg.Error) -> bool:
    """Whether an error is about the server and not about a value."""
    if error.sqlstate is None:  # the driver speaks, or the connection is gone
        return not isinstance(error, psycopg.DataError)
    return bool(ABOUT_ITSELF.match(error.sqlstate))


def said(error: psycopg.Error) -> str:
    """The one line of an error that quotes neither rows nor the statement."""
    return " ".join((error.diag.message_primary or str(error)).split())
