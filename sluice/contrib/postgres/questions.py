"""What verbs and the page ask PostgreSQL in a way of its own. See `sluice.store.questions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from sluice.contrib.postgres import partitions
from sluice.contrib.postgres.session import Session, is_server_error, primary_message
from sluice.contrib.postgres.store import PAGES, placeholders
from sluice.contrib.postgres.table import STAMP
from sluice.contrib.postgres.tables import only_row
from sluice.store.store import Store
from sluice.store.types import Row

KIND = """regexp_replace(reason, '([''"]| [-0-9]).*', '')"""
LAST_PAGES, LAST_PARTITIONS = 32, 8  # that are looked at for the last rows
ROWS_OF_PAGE = 4  # at least: what is longer is stored elsewhere (TOAST)
COLUMNS_OF = """SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
UTC = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


def ask_letters(store: Store[Any], where: str, question: str, values: tuple[int, ...]) -> Iterator[Row]:
    with store.transaction(read=True) as db:
        try:
            with db.cursor("letters") as cursor:
                cursor.itersize = 10  # a dead letter may be large
                # the newline ends a comment at the end of the condition; what is in it is no placeholder
                table = f"(SELECT * FROM dead_letters WHERE ({where.replace('%', '%%')}\n)) AS found"
                yield from cursor.execute(placeholders(question).format(table), values)
        except psycopg.Error as error:
            if is_server_error(error) and not (error.sqlstate or "").startswith(("42", "25006", "0A")):
                raise
            raise ValueError(f"not a condition on dead letters: {primary_message(error)}") from None


def find_last_rows(store: Store[Any], stream: str, limit: int, characters: int) -> tuple[list[str], list[Row]]:
    with store.transaction(read=True) as db:
        found = store.run_sql(db, COLUMNS_OF, (f'"{stream}"',))
        if not found:
            return [], []
        texts = ", ".join(
            f"left({(UTC if kind == STAMP else '{}::text').format(quoted(name))}, {characters})" for name, kind in found
        )
        rows: list[Row] = []
        for table in newest_tables(db, stream):
            # no index has the order of arrival, but the newest rows are at the end, which these pages are
            end = only_row(db.execute(PAGES, (table,)))[0]
            first = max(0, end - LAST_PAGES - limit // ROWS_OF_PAGE)
            newest = (
                f"SELECT {texts} FROM {table} WHERE {db.in_pages(first, end)} "
                "ORDER BY received_at DESC, batch DESC, seq DESC LIMIT ?"
            )
            rows += store.run_sql(db, newest, (limit - len(rows),))
            if len(rows) >= limit:
                break
        return [name for name, _ in found], rows


def newest_tables(db: Session, stream: str) -> list[str]:
    """A stream's table, or its partitions that have rows, the newest first: at most a few, as SQL."""
    if not partitions.is_partitioned(db, stream):
        return [f'"{stream}"']
    now = only_row(db.execute("SELECT clock_timestamp()"))[0]
    begun = [part.name for part in partitions.partitions(db, stream) if part.start <= now]
    rest = [name for name in (partitions.default_partition(db, stream),) if name]
    return [name for name in (*reversed(begun[-LAST_PARTITIONS:]), *rest) if only_row(db.execute(PAGES, (name,)))[0]]


def quoted(name: str) -> str:
    """The name of a column as SQL."""
    return '"{}"'.format(name.replace('"', '""').replace("%", "%%"))
