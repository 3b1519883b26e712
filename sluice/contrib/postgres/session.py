"""Sessions with PostgreSQL: the only room that connects to it or begins a transaction.

Server, database, role, URL, or another client of a pooler may have changed any setting of a session. So each
transaction first sets, for itself alone, all those on which our SQL depends: `Session.begin`. Code outside a
transaction depends on none of them.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from sluice.settings import SettingError
from sluice.store.types import Unavailable

# Set for each transaction, so that it also works behind a connection pooler. lock_timeout limits the wait for another
# worker with the same claim. The server may not end a statement or a transaction for its length: a claim is decoded
# within both. A settled claim must be on disk. A deferred constraint must fail at its row, not at the commit.
PINS = """SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL IntervalStyle = 'postgres';
SET LOCAL standard_conforming_strings = on; SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex';
SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';"""
NO_TIME_LIMIT = "SET LOCAL transaction_timeout = 0;"  # from 17 on
WRITING = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;"
READING = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;"
# Detects within half a minute that the server vanished without closing the connection.
CONNECTION: dict[str, Any] = {
    **{"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3},
    **{"tcp_user_timeout": 25_000, "fallback_application_name": "sluice", "client_encoding": "UTF8"},
}
OLDEST = 13  # version of the server that the tests run on
ITEMS_OF_PAGE = 291  # at most, in a page of 8 kB

# SQLSTATE classes of errors of the server, its roles or its tables. A value causes all other codes, also those that a
# trigger raises. 22P03: a column does not have the type that was sent.
SERVER_ERRORS = re.compile("08|0A|25|26|28|3D|3F|40|42|53|55|57|58|72|F0|XX|22P03")
CONFLICTS = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock timeout

logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings repeat the text of Unavailable


class Session(psycopg.Connection[Any]):
    """A connection. schema: where our tables are: the first schema of the search path when it was opened, as SQL."""

    schema = ""

    @contextlib.contextmanager
    def begin(self, read: bool = False) -> Iterator[None]:
        """A transaction with our settings. read: it only reads, and all of its statements see one snapshot."""
        with self.transaction():
            self.execute(self.pins(READING if read else WRITING).encode())
            yield

    def pins(self, kind: str = "") -> str:
        """SQL that sets our settings for a transaction. No other schema than ours is searched: a table of the same
        name that is there is not ours.
        """
        more = NO_TIME_LIMIT if self.info.server_version >= 170_000 else ""
        return f"{kind} {PINS} {more} SET LOCAL search_path = {self.schema}, pg_temp"

    def in_pages(self, first: int, end: int) -> str:
        """A condition: the rows that lie in these pages of a table."""
        if self.info.server_version >= 140_000:
            return f"ctid >= '({first},0)'::tid AND ctid < '({end},0)'::tid"
        # PostgreSQL 13 reads the whole table for a range of places, but not for a list of them
        return (
            "ctid = ANY(ARRAY(SELECT ('(' || page || ',' || item || ')')::tid "
            f"FROM generate_series({first}, {end - 1}) page, generate_series(1, {ITEMS_OF_PAGE}) item))"
        )

    def alone(self, statement: str) -> None:
        """Run a statement that no transaction may have, such as CREATE INDEX CONCURRENTLY. It names the schema."""
        self.execute(b"SET statement_timeout = 0")
        try:
            self.execute(statement.encode())
        finally:
            self.execute(b"RESET statement_timeout")


def url_parameters(url: str) -> dict[str, Any]:
    """The parameters in a connection string of libpq. Raises: SettingError; it quotes no password."""
    try:
        found: dict[str, Any] = conninfo_to_dict(url)
        # with an unquoted @ or / in a password, libpq takes parts of the password for the host or the database
        clear = url.count("@") <= 1 and ("@" in url) <= ("user" in found)
    except psycopg.Error as error:
        unknown = re.search(r'invalid URI query parameter: "([a-z_]+)"', str(error))
        if unknown and "@" not in url.partition("?")[2]:  # else it may be a part of the password
            raise SettingError(f"INGEST_STORE is invalid: PostgreSQL has no parameter {unknown[1]}.") from None
        clear = False
    if not clear:  # libpq's own error could quote the password
        raise SettingError(
            "INGEST_STORE is no connection string of PostgreSQL: in the password, write each @ : / ? # % as "
            "%40 %3A %2F %3F %23 %25."
        )
    return found


def open_connection(url: str) -> Session:
    """Connect. What the URL sets is left as it is. Raises: psycopg.Error, Unavailable, SettingError."""
    defaults = {name: value for name, value in CONNECTION.items() if name not in url_parameters(url)}
    db = Session.connect(url, autocommit=True, prepare_threshold=None, **defaults)
    try:
        version = db.info.server_version // 10_000
        if version < OLDEST:
            raise Unavailable(f"PostgreSQL {version} is too old: {OLDEST} is needed")
        row = db.execute("SELECT quote_ident(current_schema())").fetchone()
        if not row or row[0] is None:
            raise Unavailable("PostgreSQL: no schema of the search path exists and may be used")
        db.schema = row[0]
    except BaseException:
        db.close()
        raise
    return db


def is_server_error(error: psycopg.Error) -> bool:
    """Whether the server caused an error, not a value."""
    if error.sqlstate is None:  # an error of the driver, or a lost connection
        return not isinstance(error, psycopg.DataError)
    return bool(SERVER_ERRORS.match(error.sqlstate))


def primary_message(error: psycopg.Error) -> str:
    """The primary message of an error, on one line. It quotes neither rows nor the statement."""
    return " ".join((error.diag.message_primary or str(error)).split())
