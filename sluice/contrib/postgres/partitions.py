"""PostgreSQL tables that are partitioned by the time of arrival: old rows go by dropping a table.

A partition is named after its table and its first second (UTC): gps$20260131t120000. Partitions are made ahead; rows of
other times are in the default partition (gps$other). Bounds are read from the catalogue, so a table may have other
partitions too, and a change of the age needs no change of the existing ones. Making or dropping one waits for
readers of the table, such as a backup, and all others then wait behind: so only a chore does it, and gives up at once.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import psycopg

from sluice.contrib.postgres.session import Session
from sluice.contrib.postgres.tables import BRIEFLY, only_row, run_sql

# Seconds of a partition: the longest that is at most an eighth of the age, or else the first
PERIODS = (60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
AHEAD = 3  # partitions, in addition to that of the present
MAX_NAME = 63  # bytes

BY_ARRIVAL = " PARTITION BY RANGE (received_at)"
FOUND = r"""SELECT c.oid::regclass::text,
  coalesce((regexp_match(pg_get_expr(relpartbound, c.oid), 'FROM \(''([^'']+)''\)'))[1], '0001-01-01')::timestamptz,
  coalesce((regexp_match(pg_get_expr(relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1], '9999-12-31')::timestamptz
FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
WHERE inhparent = to_regclass(%s) AND (pg_get_expr(relpartbound, c.oid) = 'DEFAULT') = %s ORDER BY 2"""
TRIES = 300  # that a lock is asked for briefly, a second apart
UNATTACHED = """SELECT relname, quote_ident(nspname), quote_ident(relname)
FROM pg_inherits AS p JOIN pg_class AS c ON c.oid = p.inhrelid JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE p.inhparent = to_regclass(%s) AND NOT EXISTS (
  SELECT FROM pg_index JOIN pg_inherits AS i ON i.inhrelid = indexrelid
  WHERE indrelid = c.oid AND i.inhparent = to_regclass(%s)) LIMIT 1"""


class Partition(NamedTuple):
    """A partition: its name as SQL, and its bounds; the upper one is not in it."""

    name: str
    start: datetime
    end: datetime


def default_statements(table: str) -> str:
    """SQL that makes the default partition of a new table, and its index for the views' follower."""
    return (
        f'CREATE TABLE "{derived_name(table, "other")}" PARTITION OF "{table}" DEFAULT; '
        f'CREATE INDEX "{derived_name(table, "batch")}" ON "{table}" '
        "USING brin (batch) WITH (pages_per_range = 16, autosummarize = on)"
    )


def is_partitioned(db: psycopg.Connection, table: str) -> bool:
    """Whether there is a partitioned table of this name."""
    found = db.execute("SELECT 1 FROM pg_class WHERE oid = to_regclass(%s) AND relkind = 'p'", (f'"{table}"',))
    return bool(found.fetchone())


def make_ahead(db: psycopg.Connection, table: str, age: int) -> None:
    """Make the partitions of the present and the near future that are missing, by the server's clock.

    If rows of such a time are in the default partition, they stay there, and so do the next ones of that time. Others
    that use the table may be in the way; the next call then makes what is missing. age: seconds that rows are kept.
    """
    period = max((period for period in PERIODS if period <= age / 8), default=PERIODS[0])
    now: datetime = only_row(db.execute("SELECT clock_timestamp()"))[0]
    known = partitions(db, table)
    start = period_start(now, period)
    while start <= now + timedelta(seconds=AHEAD * period):
        end = min(
            [period_start(start, period) + timedelta(seconds=period), *(x.start for x in known if x.start > start)]
        )
        if within := [x.end for x in known if x.start <= start < x.end]:
            start = within[0]
            continue
        name = derived_name(table, f"{start.astimezone(timezone.utc):%Y%m%dt%H%M%S}")
        try:
            with contextlib.suppress(psycopg.errors.CheckViolation), db.transaction():
                # CREATE TABLE … PARTITION OF would wait for all transactions that store rows
                run_sql(db, f'CREATE TABLE "{name}" (LIKE "{table}" INCLUDING ALL EXCLUDING INDEXES)')
                bounds = f"FROM ('{start}') TO ('{end}')"
                run_sql(db, f'ALTER TABLE "{table}" ATTACH PARTITION "{name}" FOR VALUES {bounds}')
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            return
        start = end


def partitions(db: psycopg.Connection, table: str) -> list[Partition]:
    """The partitions by time, without the default one."""
    return [Partition(*row) for row in db.execute(FOUND, (f'"{table}"', False)).fetchall()]


def default_partition(db: psycopg.Connection, table: str) -> str:
    """The default partition as SQL; "" if there is none."""
    row = db.execute(FOUND, (f'"{table}"', True)).fetchone()
    return row[0] if row else ""


def index_table(db: Session, table: str, suffix: str, expression: str) -> None:
    """Give a partitioned table an index, unless it has it, while rows are stored: CREATE INDEX on the table would keep
    all writers out until the last partition is done. What an earlier call has left is used. Raises: psycopg.Error.
    """
    whole = derived_name(table, suffix)
    run_briefly(db, f'CREATE INDEX IF NOT EXISTS "{whole}" ON ONLY "{table}" ({expression})')
    while True:
        with db.begin():
            row = db.execute(UNATTACHED, (f'"{table}"', f'"{whole}"')).fetchone()
            if row is None:
                return
            part, schema, quoted = row
            name = '"' + derived_name(part, suffix).replace('"', '""') + '"'
            known = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
            valid = db.execute(known, (f"{schema}.{name}",)).fetchone()
        if valid == (True,):
            run_briefly(db, f'ALTER INDEX "{whole}" ATTACH PARTITION {schema}.{name}')
        elif valid:  # the end of its creation is missing
            db.alone(f"DROP INDEX CONCURRENTLY {schema}.{name}")
        else:
            with contextlib.suppress(psycopg.errors.UndefinedTable):  # the partition was dropped
                db.alone(f"CREATE INDEX CONCURRENTLY {name} ON {schema}.{quoted} ({expression})")


def run_briefly(db: Session, statement: str) -> None:
    """Run a statement that needs a lock for a moment, when no transaction is in its way. Raises: psycopg.Error."""
    for attempt in range(TRIES):
        try:
            with db.begin():
                return run_sql(db, f"{BRIEFLY}; {statement}")
        except psycopg.errors.LockNotAvailable:
            if attempt == TRIES - 1:
                raise
            time.sleep(1)


def period_start(moment: datetime, period: int) -> datetime:
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % period, timezone.utc)


def derived_name(table: str, suffix: str) -> str:
    """A name derived from that of a stream. No stream has one with a `$`; one that is cut gets a checksum."""
    name = f"{table}${suffix}".encode()
    if len(name) <= MAX_NAME:
        return name.decode()
    return f"{name[: MAX_NAME - 9].decode(errors='ignore')}${zlib.crc32(name):08x}"
