"""Copies of PostgreSQL: an archive of pg_dump (custom format) of our tables, and of nothing else in the database.

A restore empties our tables, those of streams that are younger than the copy too, and fills them in one transaction.
Tables stay as they are, with their indexes, privileges and the views that people built on them; only those that are
missing are created as they were. Rows come through the table that has the partitions, so the copy may have others, or
none; those that do not fit into a table that is there are left out. Ids of batches and letters stay given.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.conninfo import make_conninfo

from sluice.contrib.postgres.session import CONFLICTS, Session, primary_message, url_parameters
from sluice.contrib.postgres.tables import only_row, run_sql
from sluice.store.copies import CannotCopy, Progress
from sluice.store.retries import retry_conflicts
from sluice.store.store import check_layout
from sluice.store.tables import TABLES

BOOKS = ["batches_ranges", *(name for name in TABLES if name != "batches_ranges"), "view_changes", "batches_layout"]
# Our tables, each with its partitions. A stream has rows only if `batches_ranges` has bodies of it
OURS = """SELECT relname, array(
    SELECT c.oid::regclass::text UNION SELECT relid::regclass::text FROM pg_partition_tree(c.oid)
  ) FROM pg_class AS c
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND (relname = ANY(%(books)s) OR relname IN (SELECT DISTINCT stream FROM batches_ranges)
    AND 2 = (SELECT count(*) FROM pg_attribute WHERE attrelid = c.oid AND attname IN ('batch', 'seq')))
ORDER BY array_position(%(books)s, relname::text), relname"""
TRIGGERS = """SELECT tgrelid::regclass::text, quote_ident(tgname) FROM pg_trigger
WHERE tgrelid = ANY(%s::regclass[]) AND NOT tgisinternal AND tgenabled = 'O' AND tgparentid = 0"""
THERE = "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
COPY = re.compile(rb"(COPY \S+ \(.*\) FROM) stdin;\n")
# Of these tables, the partitions of a table that was there
ADDED = """SELECT c.relname FROM pg_inherits
JOIN pg_class AS c ON c.oid = inhrelid JOIN pg_class AS p ON p.oid = inhparent
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(%(new)s) AND p.relname <> ALL(%(new)s)"""
KINDS = "TABLE ATTACH|TABLE DATA|TABLE|INDEX ATTACH|INDEX|CONSTRAINT|TYPE"
ENTRY = re.compile(rf"^\d+; \d+ \d+ ({KINDS}) (\S+) (\S+) ", re.M)  # in the list of an archive
PARTITION = re.compile(r"ALTER TABLE ONLY \S+ ATTACH PARTITION (\S+)")
UNFIT = "42809", "42P17", "42804"  # the table has no partitions; its bounds meet those of another; it has other columns
LINES = 1_000  # sent at once


def own_tables(db: Session) -> dict[str, list[str]]:
    """Our tables in the order in which workers lock them: name -> itself and its partitions as SQL."""
    return dict(db.execute(OURS, {"books": BOOKS}).fetchall())


def backup(store: Any, part: Path, progress: Progress) -> None:
    """Copy our tables to a file. Raises: Unavailable, CannotCopy."""
    with store.transaction(read=True) as db:
        tables = [f"--table={db.schema}.{name}" for parts in own_tables(db).values() for name in parts]
        snapshot = only_row(db.execute("SELECT pg_export_snapshot()"))[0]
        words = ["--format=custom", "--encoding=UTF8", "--load-via-partition-root", f"--snapshot={snapshot}"]
        run(store.url, "pg_dump", *words, *tables, f"--file={part}")


def check(file: Path) -> None:
    """Check that a file is a copy of this program, as far as its head says. Raises: CannotCopy, NewerTables."""
    found = {(kind, name) for kind, _, name in ENTRY.findall(list_archive(file))}
    if ("TABLE DATA", "batches") not in found:
        raise CannotCopy(f"{file} is no backup of Sluice")
    if ("TYPE", "batches_span") in found:
        raise CannotCopy(f"{file} is a copy of a whole database: restore it by pg_restore, into an empty one")
    text = run("", "pg_restore", "--data-only", "--table=batches_layout", "--file=-", str(file))
    versions = re.findall(r"^(\d+)$", text, re.M)
    check_layout(str(file), max(map(int, versions), default=0))


@retry_conflicts
def restore(store: Any, file: Path, progress: Progress) -> None:
    """Put the rows of a copy in the place of ours. Raises: Unavailable, CannotCopy."""
    try:
        with store.transaction() as db:
            try:
                replace_rows(db, file)
            except psycopg.Error as error:
                if error.sqlstate is None or error.sqlstate in CONFLICTS:
                    raise
                raise CannotCopy(f"the database is as it was: {primary_message(error)}") from None
    finally:
        store.close()


def replace_rows(db: Session, file: Path) -> None:
    run_sql(db, "LOCK TABLE batches_ranges IN ACCESS EXCLUSIVE MODE")  # from here on no stream gets its first body
    tables = [f'"{name}"' for name in own_tables(db)]
    names = ", ".join(tables)
    run_sql(db, f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
    run_sql(db, f"TRUNCATE {names}")
    entries = [(line[0], *line.groups()) for line in ENTRY.finditer(list_archive(file))]
    schemas = {schema for _, _, schema, _ in entries} - {db.schema.strip('"')}
    if schemas:
        raise CannotCopy(f"the copy is of the schema {schemas.pop()}, and the tables are in {db.schema}")
    new = {name for _, kind, _, name in entries if kind == "TABLE"} - {name for (name,) in db.execute(THERE)}
    new -= make_tables(
        db, file, [entry for entry, kind, _, name in entries if kind in ("TABLE", "TABLE ATTACH") and name in new]
    )
    new -= {name for (name,) in db.execute(ADDED, {"new": list(new)})}  # they got their indexes when they were attached
    triggers = db.execute(TRIGGERS, (tables,)).fetchall()
    for table, trigger in triggers:  # they have done for these rows what they do
        run_sql(db, f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
    command = [*program_command("pg_restore"), "--data-only", "--file=-", str(file)]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said) as archive,
    ):
        assert archive.stdout
        for statement, lines in copy_blocks(archive.stdout):
            with db.cursor().copy(statement) as copy:
                while some := b"".join(itertools.islice(lines, LINES)):
                    copy.write(some)
        if archive.wait():
            said.seek(0)
            raise CannotCopy(said.read().decode(errors="replace").strip())
    for table, trigger in triggers:
        run_sql(db, f"ALTER TABLE {table} ENABLE TRIGGER {trigger}")
    make_tables(
        db, file, [entry for entry, kind, _, name in entries if kind in ("INDEX", "INDEX ATTACH", "CONSTRAINT")], new
    )
    for name in "batches", "dead_letters", "view_changes":
        sequence = only_row(db.execute("SELECT pg_get_serial_sequence(%s, 'id')", (name,)))[0]
        highest = f"(SELECT max(id) FROM {name}), (SELECT last_value FROM {sequence})"
        run_sql(db, f"SELECT setval('{sequence}', greatest({highest}))")


def make_tables(db: Session, file: Path, entries: list[str], of: set[str] | None = None) -> set[str]:
    """Create what the entries of a copy describe; the names of partitions that do not fit, and are left out.

    of: only if it belongs to one of these tables.
    """
    left_out: set[str] = set()
    if not entries or of == set():
        return left_out
    with tempfile.NamedTemporaryFile("w") as chosen:
        chosen.write("\n".join(entries) + "\n")
        chosen.flush()
        words = "--no-owner", "--no-privileges", f"--use-list={chosen.name}", "--file=-"
        text = run("", "pg_restore", *words, str(file))
    made = set(of or ())
    for statement in re.findall(r"^(?:CREATE|ALTER) .*?;$", text, re.M | re.S):
        subject = re.search(r"(?:\bON(?: ONLY)?|ALTER TABLE(?: ONLY)?|ALTER INDEX) (\S+)", statement)
        if of is not None and (subject is None or subject[1].rpartition(".")[2].strip('"') not in made):
            continue
        if index := re.match(r"CREATE (?:UNIQUE )?INDEX (\S+)", statement):
            made.add(index[1].strip('"'))
        partition = PARTITION.match(statement)
        try:
            with db.transaction() if partition else contextlib.nullcontext():
                run_sql(db, statement)
        except psycopg.Error as error:
            if partition is None or error.sqlstate not in UNFIT:
                raise
            run_sql(db, f"DROP TABLE {partition[1]}")
            left_out.add(partition[1].rpartition(".")[2].strip('"'))
    return left_out


def copy_blocks(archive: IO[bytes]) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """The COPY statements in what pg_restore prints, each with its lines, which must be read first."""
    for line in archive:
        if found := COPY.fullmatch(line):
            yield found[1] + b" STDIN", iter(lambda: archive.readline() or b"\\.\n", b"\\.\n")


def list_archive(file: Path) -> str:
    return run("", "pg_restore", "--list", str(file))


def program_command(name: str) -> list[str]:
    """The command of one of PostgreSQL's programs, which ends if this process is killed. Raises: CannotCopy."""
    found = shutil.which(name)
    if not found:
        raise CannotCopy(f"{name} is not installed; Debian has it in postgresql-client")
    return ["setpriv", "--pdeathsig", "KILL", found]


def run(url: str, name: str, *words: str) -> str:
    """The output of one of PostgreSQL's programs. url: of the database to which it connects. Raises: CannotCopy."""
    parts = url_parameters(url)
    password = parts.pop("password", None)  # every user of the machine can read the words of a command
    where = [f"--dbname={make_conninfo(**parts)}"] if url else []
    done = subprocess.run(
        [*program_command(name), *where, *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        env=os.environ | ({"PGPASSWORD": str(password)} if password else {}),
    )  # fmt: skip
    if done.returncode:
        raise CannotCopy(done.stderr.strip() or f"{name} ended with status {done.returncode}")
    return done.stdout
