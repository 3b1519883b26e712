"""PostgreSQL tables that are partitioned by the time of arrival: old rows go by dropping a table.

A partition is named after its table and its first second (UTC): gps_20260131t120000. Partitions are made ahead; rows of
other times are in the default partition (gps_other). Bounds are read from the catalogue, so a table may have other
partitions too, and a change of the age needs no change of the existing ones.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg

from sluice.store.postgres.tables import execute

# Seconds of a partition: the longest that is at most an eighth of the age, or else the first
PERIODS = (60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
AHEAD = 3  # partitions, in addition to that of the present
MAX_NAME = 63  # bytes

BY_ARRIVAL = " PARTITION BY RANGE (received_at)"
FOUND = r"""SELECT c.oid::regclass::text,
  (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)$'))[1]::timestamptz
FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid WHERE inhparent = to_regclass(%s)"""


def rest(table: str) -> str:
    """SQL that makes the default partition of a new table, and its index for the views' follower."""
    return (
        f'CREATE TABLE "{named(table, "other")}" PARTITION OF "{table}" DEFAULT; '
        f'CREATE INDEX ON "{table}" USING brin (batch) WITH (pages_per_range = 16, autosummarize = on)'
    )


def is_partitioned(db: psycopg.Connection, table: str) -> bool:
    """Whether there is a partitioned table of this name."""
    found = db.execute("SELECT 1 FROM pg_class WHERE oid = to_regclass(%s) AND relkind = 'p'", (f'"{table}"',))
    return bool(found.fetchone())


def make_ahead(db: psycopg.Connection, table: str, age: int) -> None:
    """Make the partitions of the present and the near future that are missing. age: seconds that rows are kept.

    If rows of such a time are in the default partition, they stay there, and so do the next ones of that time.
    """
    period = max((period for period in PERIODS if period <= age / 8), default=PERIODS[0])
    now = datetime.now(timezone.utc)
    ends = [end for _, end in partitions(db, table) if end]
    start = max([floor(now, period), *ends])
    while start <= now + timedelta(seconds=AHEAD * period):
        end = floor(start, period) + timedelta(seconds=period)
        name = named(table, f"{start:%Y%m%dt%H%M%S}")
        with contextlib.suppress(psycopg.errors.CheckViolation), db.transaction():
            # CREATE TABLE … PARTITION OF would wait for all transactions that store rows
            execute(db, f'CREATE TABLE "{name}" (LIKE "{table}" INCLUDING ALL EXCLUDING INDEXES)')
            execute(db, f"ALTER TABLE \"{table}\" ATTACH PARTITION \"{name}\" FOR VALUES FROM ('{start}') TO ('{end}')")
        start = end


def overdue(db: psycopg.Connection, table: str, before: datetime) -> list[str]:
    """The partitions of which all rows arrived before a time, as SQL."""
    return [name for name, end in partitions(db, table) if end and end <= before]


def partitions(db: psycopg.Connection, table: str) -> list[tuple[str, Any]]:
    """The partitions as SQL, each with its upper bound; None for the default partition."""
    return db.execute(FOUND, (f'"{table}"',)).fetchall()


def floor(time: datetime, period: int) -> datetime:
    seconds = int(time.timestamp())
    return datetime.fromtimestamp(seconds - seconds % period, timezone.utc)


def named(table: str, suffix: str) -> str:
    return table.encode()[: MAX_NAME - 1 - len(suffix)].decode(errors="ignore") + "_" + suffix
