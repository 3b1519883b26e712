"""Copy a SQLite file into the empty PostgreSQL of INGEST_STORE.

It takes along rows, dead letters, keys and the ledger. Stop bin/up first. What waits in Redis is stored by the next
start with this INGEST_STORE, each body once, because the numbers of the stored bodies come along. It is one
transaction: until it ends, nothing is there. FILE stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from sluice import parsers
from sluice.base import terminal
from sluice.contrib.postgres.table import STAMP, Table
from sluice.contrib.postgres.tables import run_sql
from sluice.run.up import connected
from sluice.settings import SettingError, Settings
from sluice.store.cell_store import require_cell_store
from sluice.store.registry import open_store
from sluice.store.store import Store
from sluice.store.tables import TABLES
from sluice.store.types import Row
from sluice.streams.built_in import load_streams

SERIALS = "batches", "dead_letters"  # tables whose ids are numbered by the database
OURS = {"batches_identity"}  # the new database is another one
MICROSECONDS = 26  # characters of 2026-01-31T12:00:00.123456


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=parsers.parse_path)
    parser.epilog = (
        "exit status: 0; 1 if bin/up runs, PostgreSQL holds stored bodies, or one of the two is unavailable: "
        "PostgreSQL is then as it was; 2 if a setting is invalid"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    if s.store.startswith("sqlite:"):
        raise SettingError("INGEST_STORE is SQLite: set it to the PostgreSQL that the rows are moved to.")
    if gateway := connected(s.gateway_sockets):
        gateway.close()
        terminal.complain(f"bin/up runs in {s.home}: stop it first, or its workers go on with the former database")
        return 1
    streams = load_streams(s)
    with contextlib.closing(open_store(f"sqlite:///{arguments.file}", streams, make=False)) as source:
        require_cell_store(source, s.home)
        target = open_store(s.store, streams, keep=s.keep)
    with (
        contextlib.closing(source),
        contextlib.closing(target),
        source.transaction() as old,  # no worker writes meanwhile
        target.transaction() as new,
    ):
        ((held,),) = target.run_sql(
            new, "SELECT EXISTS (SELECT 1 FROM batches) OR EXISTS (SELECT 1 FROM batches_ranges)"
        )
        if held:
            terminal.complain("the database of INGEST_STORE holds stored bodies already; name an empty one")
            return 1
        for name, columns in TABLES.items():
            if name not in OURS:
                run_sql(new, f"DELETE FROM {name}")
                report(name, copy(old, new, name, [*columns], f"SELECT {', '.join(columns)} FROM {name}"))
        for name in SERIALS:
            target.run_sql(new, f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), max(id)) FROM {name}")
        for name in target.tables:
            if source.table_exists(old, name):
                report(name, copy_rows(source, old, new, target.checked_table(new, name)))
    print(f"moved {arguments.file}; start with this INGEST_STORE")
    return 0


def report(table: str, rows: int) -> None:
    if rows:
        print(f"{table}: {rows:,} rows")


def copy(old: Any, new: Any, table: str, columns: list[str], query: str) -> int:
    return write(new, table, columns, old.execute(query))


def copy_rows(source: Store[Any], old: Any, new: Any, table: Table) -> int:
    """The rows of a stream, in their order; their number."""
    present = [row[1] for row in source.run_sql(old, f'PRAGMA table_info("{table.name}")')]
    columns = [name for name in present if name in table.columns]
    wanted = [*columns, *(["text"] if table.typed else []), *(["nanoseconds"] if table.nanoseconds else [])]
    names = ", ".join(f'"{name}"' for name in columns)
    rows = old.execute(f'SELECT {names} FROM "{table.name}" ORDER BY rowid')
    return write(new, table.name, wanted, converted(table, columns, rows))


def converted(table: Table, columns: list[str], rows: Any) -> Iterator[Row]:
    """Rows of SQLite as PostgreSQL reads them: it has microseconds, and a column of its own for texts of metrics."""
    stamps = [at for at, name in enumerate(columns) if table.columns[name].startswith(STAMP)]
    time = columns.index("time")
    value, kind = (columns.index("value"), columns.index("type")) if table.typed else (0, 0)
    for row in rows:
        made = list(row)
        for at in stamps:
            made[at] = row[at].rstrip("Z")[:MICROSECONDS] + "Z"
        if table.typed:
            is_text = row[kind] == "string"
            made.append(row[value] if is_text else None)
            if is_text:
                made[value] = None
        if table.nanoseconds:
            made.append(int(f"{row[time].rstrip('Z').partition('.')[2]:0<9}"[6:9]))
        yield tuple(made)


def write(new: Any, table: str, columns: list[str], rows: Any) -> int:
    names = ", ".join(f'"{name}"' for name in columns)
    count = 0
    with new.cursor() as cursor, cursor.copy(f'COPY "{table}" ({names}) FROM STDIN') as into:
        for row in rows:
            into.write_row(row)
            count += 1
    return count
