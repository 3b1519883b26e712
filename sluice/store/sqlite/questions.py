"""What verbs and the page ask a database of SQLite in a way of its own. See `sluice.store.questions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from sluice.store.store import Store
from sluice.store.types import Row

KIND = "substr(reason, 1, min({}) - 1)".format(
    ", ".join(f"instr(reason || {end}, {end})" for end in ("''''", "'\"'", *(f"' {n}'" for n in "-0123456789")))
)
# of a value: its first characters, or for a BLOB those of its bytes in hexadecimal
TEXT = """CASE typeof("{name}") WHEN 'blob' THEN substr(hex(substr("{name}", 1, {most})), 1, {most})
  ELSE substr("{name}", 1, {most}) END"""


def ask_letters(store: Store[Any], where: str, question: str, values: tuple[int, ...]) -> Iterator[Row]:
    with store.transaction(read=True) as db:
        db.execute("PRAGMA query_only=1")
        try:
            # the newline ends a comment at the end of the condition
            table = f"(SELECT * FROM dead_letters WHERE ({where}\n))"
            yield from db.execute(question.format(table), values)
        except (apsw.SQLError, apsw.BindingsError, apsw.ReadOnlyError, ValueError) as error:
            raise ValueError(f"not a condition on dead letters: {error}") from None
        finally:
            db.execute("PRAGMA query_only=0")


def find_last_rows(store: Store[Any], stream: str, limit: int, characters: int) -> tuple[list[str], list[Row]]:
    with store.transaction(read=True) as db:
        if not store.table_exists(db, stream):
            return [], []
        columns = [str(row[1]) for row in store.run_sql(db, f'PRAGMA table_info("{stream}")')]
        texts = ", ".join(TEXT.format(name=name.replace('"', '""'), most=characters) for name in columns)
        last = f'SELECT {texts} FROM "{stream}" ORDER BY rowid DESC LIMIT ?'
        return columns, store.run_sql(db, last, (limit,))
