"""The database of an installation: what the drill reads from it, and how the drill makes it fail."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import psycopg
from psycopg.conninfo import conninfo_to_dict

from proving import harness
from sluice.store.types import Unavailable

STREAM = "metrics"  # that the faults concern
Rows = Iterator[tuple[int, float]]  # number of an event, received_at in seconds since 1970
# stream -> the column with the number of an event, the column with the name of the run, and what may follow the name
EVENTS = {
    "metrics": ("value", "field", ""), "gps": ("altitude", "device", ".%"), "votes": ("voter", "poll", ".%"),
    "logs": ("message", "service", ""),
}  # fmt: skip
# Stored bodies of a stream that are neither dead letters nor duplicates, and were not deleted by age. Each event is one
# row
ALIVE = """
SELECT (SELECT coalesce(sum(last - first + 1), 0) FROM batches_ranges WHERE stream = '{0}')
  - (SELECT coalesce(sum(deleted), 0) FROM batches_expired WHERE stream = '{0}')
  - (SELECT coalesce(sum(bodies), 0) FROM batches_duplicates WHERE stream = '{0}')
  - (SELECT count(*) FROM dead_letters WHERE stream = '{0}')"""


class Store(ABC):
    """What both databases count in the same way."""

    @abstractmethod
    def number(self, query: str) -> int:
        """The number that a query returns. Raises: Unavailable."""

    def persisted(self, claim: str, stream: str = STREAM) -> bool:
        """Whether the bodies of a claim are committed."""
        spool, first, _ = claim.split(":")
        return bool(
            self.number(
                f"SELECT count(*) FROM batches_ranges WHERE stream = '{stream}' AND epoch = '{spool}' "  # noqa: S608
                f"AND {first} BETWEEN first AND last"
            )
        )

    def bodies(self, stream: str) -> int:
        """The number of stored bodies of a stream."""
        return self.number(f"SELECT coalesce(sum(last - first + 1), 0) FROM batches_ranges WHERE stream = '{stream}'")  # noqa: S608

    def deleted(self, stream: str) -> int:
        """The number of rows of a stream that were deleted by age."""
        return self.number(f"SELECT coalesce(sum(deleted), 0) FROM batches_expired WHERE stream = '{stream}'")  # noqa: S608

    def unexplained(self, stream: str) -> int:
        """Those of ALIVE that are no rows."""
        return self.number(f"{ALIVE} - (SELECT count(*) FROM {{0}})".format(stream))  # noqa: S608  # our own name

    def batches(self) -> tuple[int, int]:
        """The rows of `batches`, without those that folding has deleted, and the highest id of one."""
        return self.number("SELECT count(*) FROM batches"), self.number("SELECT coalesce(max(id), 0) FROM batches")


class Sqlite(Store):
    """A file. Faults change the file or the limits of the workers."""

    name = "SQLite"

    def __init__(self, url: str) -> None:
        """url: INGEST_STORE."""
        self.path = Path(url.removeprefix("sqlite:///"))

    @contextlib.contextmanager
    def open(self, flags: int) -> Iterator[apsw.Connection]:
        """A connection. Raises: Unavailable."""
        try:
            with harness.database(self.path, flags) as db:
                yield db
        except apsw.Error as error:
            raise Unavailable(f"{self.path}: {error}") from None

    def writer(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """A connection that writes. Raises: Unavailable."""
        return self.open(apsw.SQLITE_OPEN_READWRITE)

    @contextlib.contextmanager
    def ask(self, query: str, *bindings: Any) -> Iterator[Iterator[Any]]:
        """The rows of a query. Raises: Unavailable."""
        with self.open(apsw.SQLITE_OPEN_READONLY) as db:
            yield db.execute(query, bindings)

    def number(self, query: str, *bindings: Any) -> int:
        """The number that a query returns. Raises: Unavailable."""
        with self.ask(query, *bindings) as rows:
            found: int = next(rows)[0]
            return found

    def alone(self) -> bool:
        """Whether nothing but what the drill made is in the database."""
        return True

    def dead(self, run: str) -> int:
        """The number of bodies of a drill in dead_letters."""
        return self.number("SELECT count(*) FROM dead_letters WHERE instr(CAST(body AS TEXT), ?)", run)

    def rows(self, stream: str, run: str, above: int = 0) -> Rows:
        """The stored events of a drill in a stream, in the order of the list. above: of later batches than this one."""
        number, name, more = EVENTS[stream]
        with self.ask(
            f"SELECT CAST({number} AS INTEGER), (julianday(received_at) - 2440587.5) * 86400 FROM {stream} "  # noqa: S608
            f"WHERE {name} LIKE ? AND batch > ? ORDER BY seq",
            run + more,
            above,
        ) as rows:
            yield from rows

    def repair(self, old: bytes, new: bytes) -> None:
        """Change a dead letter's body."""
        with self.writer() as db:
            db.execute("UPDATE dead_letters SET body = ? WHERE body = ?", (new, old))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the database."""
        with self.writer() as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")

    @contextlib.contextmanager
    def away(self, workers: list[int]) -> Iterator[None]:
        """Move the file away, and kill the workers, which have it open."""
        away = self.path.with_name(self.path.name + ".away")
        self.path.rename(away)
        self.path.mkdir()
        try:
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            yield
        finally:
            self.path.rmdir()
            away.rename(self.path)

    @contextlib.contextmanager
    def removed(self) -> Iterator[None]:
        """Take the file away from the workers, which have it open."""
        away = self.path.with_name(self.path.name + ".away")
        self.path.rename(away)
        try:
            yield
        finally:
            away.rename(self.path)

    @contextlib.contextmanager
    def replaced(self, other: Path) -> Iterator[None]:
        """Give another file the place of the database, which the workers have open. The other one is removed."""
        own = [self.path, *(self.path.with_name(f"{self.path.name}-{end}") for end in ("wal", "shm"))]
        away = [path.with_name(f"{path.name}.away") for path in own]
        for path, there in zip(own, away):
            path.rename(there)
        try:
            other.rename(self.path)
            yield
        finally:
            for path, there in zip(own, away):
                path.unlink(missing_ok=True)
                there.rename(path)

    @contextlib.contextmanager
    def full(self, workers: list[int]) -> Iterator[None]:
        """Forbid the workers to let a file grow beyond 4 KiB."""

        def limit(size: int) -> None:
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        try:
            limit(4096)
            yield
        finally:
            limit(resource.RLIM_INFINITY)


class Postgres(Store):
    """A server. A private installation has its own schema in it, which the drill drops at the end."""

    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        """url: INGEST_STORE; for a private installation, the result of `within`."""
        self.url = url
        self.schema = conninfo_to_dict(url).get("application_name", "")

    @staticmethod
    def within(url: str, schema: str) -> str:
        """A URL whose sessions use the schema, and have its name as their application_name."""
        options = f"{conninfo_to_dict(url).get('options') or ''} -c search_path={schema}".strip()
        return f"{url}{'&' if '?' in url else '?'}application_name={schema}&options={quote(options)}"

    @contextlib.contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """A connection in autocommit. Raises: Unavailable."""
        try:
            with psycopg.connect(self.url, autocommit=True, connect_timeout=5, application_name="drill") as db:
                db.execute("SET statement_timeout = 0; SET standard_conforming_strings = on")
                yield db
        except psycopg.Error as error:
            raise Unavailable(f"PostgreSQL: {error.diag.message_primary or type(error).__name__}") from None

    def do(self, *statements: str) -> None:
        """Execute statements. Raises: Unavailable."""
        with self.session() as db:
            for statement in statements:
                db.execute(statement.encode())

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Create the schema; drop it at the end."""
        self.do(f"CREATE SCHEMA {self.schema}")
        try:
            yield
        finally:
            self.do(f"DROP SCHEMA {self.schema} CASCADE")

    def number(self, query: str, **bindings: object) -> int:
        """The number that a query returns. Raises: Unavailable."""
        with self.session() as db:
            row: Any = db.execute(query.encode(), bindings).fetchone()
            return int(row[0])

    def alone(self) -> bool:
        """Whether nothing but what the drill made is in the database."""
        return not self.number(
            "SELECT count(*) FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace "
            "WHERE nspname !~ '^pg_|^information_schema$' AND nspname <> %(s)s",
            s=self.schema,
        )

    def dead(self, run: str) -> int:
        """The number of bodies of a drill in dead_letters."""
        return self.number("SELECT count(*) FROM dead_letters WHERE position(%(r)s::bytea IN body) > 0", r=run.encode())

    def rows(self, stream: str, run: str, above: int = 0) -> Rows:
        """The stored events of a drill in a stream, in the order of the list. above: of later batches than this one."""
        number, name, more = EVENTS[stream]
        with self.session() as db, db.transaction(), db.cursor("rows", binary=True) as cursor:
            cursor.itersize = 10_000
            yield from cursor.execute(
                f"SELECT {number}::bigint, extract(epoch FROM received_at)::float8 FROM {stream} "  # noqa: S608
                f"WHERE {name} LIKE %s AND batch > %s ORDER BY seq".encode(),
                (run + more, above),
            )

    def repair(self, old: bytes, new: bytes) -> None:
        """Change a dead letter's body."""
        with self.session() as db:
            db.execute("UPDATE dead_letters SET body = %s WHERE body = %s", (new, old))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of a table."""
        with self.session() as db, db.transaction():
            db.execute("LOCK TABLE batches")
            yield

    def disconnect(self) -> None:
        """Terminate the sessions of all programs of the installation."""
        of = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %(s)s"
        self.number(of, s=self.schema)

    @contextlib.contextmanager
    def away(self, workers: list[int]) -> Iterator[None]:
        """Rename the schema, and terminate the sessions of the workers."""
        self.do(f"ALTER SCHEMA {self.schema} RENAME TO {self.schema}_away")
        try:
            self.disconnect()
            yield
        finally:
            self.do(f"ALTER SCHEMA {self.schema}_away RENAME TO {self.schema}")

    @contextlib.contextmanager
    def beginning_with(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Sessions of the role begin with other settings: name -> value as SQL."""
        role = f"ALTER ROLE CURRENT_USER IN DATABASE {conninfo_to_dict(self.url)['dbname']}"
        try:
            self.do(*(f"{role} SET {name} = {value}" for name, value in settings.items()))
            self.disconnect()
            yield
        finally:
            self.do(*(f"{role} RESET {name}" for name in settings))
            self.disconnect()

    @contextlib.contextmanager
    def full(self, workers: list[int]) -> Iterator[None]:
        """Make each INSERT fail with disk_full."""
        self.do(
            "CREATE OR REPLACE FUNCTION drill_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
            "'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$",
            "CREATE TRIGGER drill_full BEFORE INSERT ON metrics EXECUTE FUNCTION drill_full()",
        )
        try:
            yield
        finally:
            self.do("DROP TRIGGER drill_full ON metrics", "DROP FUNCTION drill_full")
