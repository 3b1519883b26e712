"""The bookkeeping's tables in PostgreSQL, and how a table is created or gets the columns that it lacks."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable
from typing import Any

import psycopg

from sluice.contrib.postgres.session import Session
from sluice.contrib.postgres.table import STAMP
from sluice.store.store import check_layout
from sluice.store.tables import IDENTIFY, INDEXES, LAYOUT, PRIMARY_KEYS, TABLES
from sluice.store.types import Unavailable

KINDS = {
    **dict.fromkeys(("serial", "eternal"), "bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY"),
    "name": "text NOT NULL UNIQUE",
    **{"text": "text NOT NULL", "integer": "bigint NOT NULL", "boolean": "boolean NOT NULL"},
    **{"bytes": "bytea NOT NULL", "json": "jsonb NOT NULL"},
    "time": f"{STAMP} NOT NULL DEFAULT clock_timestamp()",
}
VERSION = {"version": KINDS["integer"]}
CHANGES = {"id": KINDS["serial"], "stream": KINDS["text"], "batch": KINDS["integer"]}
COMPRESSED = "ALTER TABLE batches_carried ALTER COLUMN rows SET STORAGE EXTERNAL"  # by the worker already
VARCHAR = re.compile(r"character varying(\(\d+\))?")  # a longer text is rejected; numeric(20,3) would round
Columns = list[tuple[int, bytes, int, int]]  # table, name, type, and what limits the type
COPIED = "batches_keys", "dead_letters"  # of these tables, which get binary values as a stream's table does
# Locks the columns of a table until the transaction ends, and those of COPIED, in one round trip. What a query would
# return has them: that takes the server a third of a look into its catalogue
COLUMNS = "".join((
    'LOCK TABLE ONLY "{}" IN ROW EXCLUSIVE MODE; SELECT min(id) FROM batches_identity; SELECT * FROM ONLY "{}" LIMIT 0',
    *(f"; SELECT * FROM ONLY {name} LIMIT 0" for name in COPIED),
))  # fmt: skip
LOCK = 0x736C75696365  # "sluice": the advisory lock that is held while tables are created
# For a lock that readers of a table hold up: storing waits behind it. Also for the look at the rows of a default
# partition when another one is attached
BRIEFLY = "SET LOCAL lock_timeout = '200ms'"


WITHOUT_IDENTITY = """SELECT c.oid::regclass::text FROM pg_class AS c LEFT JOIN pg_inherits ON inhrelid = c.oid
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relreplident = 'd'
  AND (relname = ANY(%(names)s) OR inhparent::regclass::text = ANY(%(names)s)
    AND pg_get_expr(relpartbound, c.oid) = 'DEFAULT')
  AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)"""


def range_sql(stream: str, epoch: str, first: str, end: str) -> str:
    """SQL for a range of bodies, from SQL for its parts. PostgreSQL can index a range of texts; to exclude ranges of
    numbers per stream and epoch it would need the extension btree_gist.
    """
    low, high = (f"{stream} || ' ' || {epoch} || ' ' || lpad(({number})::text, 19, '0')" for number in (first, end))
    return f"batches_span({low}, {high})"


SPAN = range_sql("stream", "epoch", "first", "last + 1")
# Ranges that have a body of another one: its stream, epoch and first number, its stream, epoch and the number behind it
MEETS = f"{SPAN} && {range_sql('?::text', '?::text', '?::bigint', '?::bigint')}"
EXCLUDE = f"""DO $$ BEGIN CREATE TYPE batches_span AS RANGE (SUBTYPE = text, COLLATION = "C");
EXCEPTION WHEN duplicate_object THEN NULL; END $$;
ALTER TABLE batches_ranges ADD CONSTRAINT batches_ranges_excluded EXCLUDE USING gist (({SPAN}) WITH &&)"""


def make_tables(db: psycopg.Connection[Any], where: str) -> None:
    """Create the bookkeeping's tables, or add the columns that they lack. where: the database."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    check_layout(where, layout_of(db))
    ensure_table(db, "batches_layout", VERSION)
    more = {name: f"ALTER TABLE {name} ADD PRIMARY KEY ({columns})" for name, columns in PRIMARY_KEYS.items()}
    more |= {"batches_ranges": EXCLUDE, "batches_carried": COMPRESSED}
    for name, columns in TABLES.items():
        ensure_table(
            db, name, {column: KINDS[kind] for column, kind in columns.items()}, INDEXES.get(name) or more.get(name, "")
        )
    ensure_table(db, "view_changes", CHANGES)
    run_sql(db, IDENTIFY.replace("?", f"'{uuid.uuid4().hex}'"))
    db.execute(
        "INSERT INTO batches_layout (version) "
        "SELECT %s WHERE %s > (SELECT coalesce(max(version), 0) FROM batches_layout)",
        (LAYOUT, LAYOUT),
    )


def layout_of(db: psycopg.Connection[Any]) -> int:
    """The layout of a database; that of a new one if it has no tables yet."""
    batches, versions = only_row(db.execute("SELECT to_regclass('batches')::text, to_regclass('batches_layout')::text"))
    if not versions:
        return 0 if batches else LAYOUT
    return int(only_row(db.execute("SELECT coalesce(max(version), 0) FROM batches_layout"))[0]) if batches else LAYOUT


def ensure_table(
    db: psycopg.Connection[Any], name: str, columns: dict[str, str], index: str = "", more: str = ""
) -> bool:
    """Create a table, or add the columns that it lacks; whether it was created.

    more: the end of the statement that creates the table. index: statements behind it.
    Raises: Unavailable if a column has another type, or the name belongs to something else than a table.
    A table that is complete needs no statement that changes it, so a role without CREATE can use it.
    """
    db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    kind = db.execute(
        "SELECT relkind IN ('r', 'p') AND NOT relispartition FROM pg_class WHERE oid = to_regclass(%s)", (f'"{name}"',)
    ).fetchone()
    if kind == (False,):
        raise Unavailable(f"PostgreSQL: {name} is no table, or a partition of another one")
    found = db.execute(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (f'"{name}"',),
    )
    present: dict[str, str] = dict(found.fetchall())
    if not present:
        listed = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
        run_sql(db, f'CREATE TABLE "{name}" ({listed}){more}')
        if index:
            run_sql(db, index)
        return True
    for column, kind in columns.items():
        plain = kind.partition(" NOT NULL")[0].partition(" PRIMARY")[0]
        if column not in present:
            # a reader of the table, such as a backup, is in the way, and all that store into it wait behind this
            alter = f'ALTER TABLE "{name}" ADD COLUMN "{column}" {kind if "DEFAULT" in kind else plain}'
            run_sql(db, f"SET LOCAL lock_timeout = '1s'; {alter}; SET LOCAL lock_timeout = '5s'")
        elif VARCHAR.sub("text", present[column]) != plain:
            raise Unavailable(
                f"PostgreSQL: column {column} of table {name} has the type {present[column]}, expected {plain}"
            )
    return False


def lock_columns(db: psycopg.Connection[Any], table: str) -> tuple[Columns, str]:
    """Keep the columns of a stream's table as they are until the transaction ends: what tells them from others, and the
    database's id.
    """
    text: Any = COLUMNS.format(table, table)
    cursor = db.execute(text)
    cursor.nextset()
    (id,) = only_row(cursor)
    columns = []
    while cursor.nextset():
        found: Any = cursor.pgresult
        columns += [(found.ftable(n), found.fname(n), found.ftype(n), found.fmod(n)) for n in range(found.nfields)]
    return columns, id or ""


def ensure_copied(db: psycopg.Connection[Any]) -> None:
    for name in COPIED:
        ensure_table(db, name, {column: KINDS[kind] for column, kind in TABLES[name].items()})


def run_sql(db: psycopg.Connection[Any], statement: str) -> None:
    """Run a statement that is not a literal."""
    text: Any = statement
    db.execute(text)


def only_row(cursor: psycopg.Cursor[Any]) -> Any:
    """The row of a query that always has one."""
    return cursor.fetchone()


def lock_holders(db: psycopg.Connection[Any], *tables: str) -> set[str]:
    """The transactions, of any role, that have changed one of these tables and have not ended."""
    found = db.execute(
        "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' "
        "AND relation = ANY(%s::regclass[]) "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        (list(tables),),
    )
    return {row[0] for row in found}


def identify(db: Session, names: Iterable[str]) -> None:
    """Let rows without a key be deleted and changed where a publication is FOR ALL TABLES: a replica finds them whole.

    names: of the streams' tables. A table whose owner is another role, or that is in use, stays as it is.
    """
    with db.begin():
        found = db.execute(WITHOUT_IDENTITY, {"names": [*TABLES, *names]}).fetchall()
    for (name,) in found:
        with contextlib.suppress(psycopg.Error), db.begin():
            run_sql(db, f"{BRIEFLY}; ALTER TABLE {name} REPLICA IDENTITY FULL")
