"""Copies of a whole database: `backup` writes one while everything runs, `restore` puts one in the database's place.

A copy of SQLite is a database file, made by SQLite's backup API. One of PostgreSQL is an archive of pg_dump (custom
format). Both are one transaction: a copy is the database of one moment, and a restore happens as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from sluice.store.registry import open_store
from sluice.store.store import check_layout

STEP_PAGES = 1_000  # of SQLite, copied between two calls of `progress`
PATIENCE_SECONDS = 30.0  # that `restore` waits for the writers of SQLite
DEADLOCK_ATTEMPTS = 5  # to restore PostgreSQL beside workers that lock the same tables in another order
MAGIC = {b"SQLite format 3\0": "SQLite", b"PGDMP": "PostgreSQL"}
HOLDS = "SELECT EXISTS (SELECT 1 FROM batches) OR EXISTS (SELECT 1 FROM batches_ranges)"
Progress = Callable[[float], None]  # called with the share that is done


class CannotCopy(Exception):
    """One line with the reason. The database is as it was."""


def backup(url: str, file: Path, progress: Progress) -> None:
    """Copy the database of a store's URL to a file, which appears or is replaced once the copy is on disk.

    Raises: Unavailable, CannotCopy; OSError if the file cannot be written.
    """
    store: Any = open_store(url, {}, make=False)
    with new_file(file) as part:
        if is_sqlite(url):
            with store.transaction(read=True) as db:
                db.execute("SELECT 1 FROM batches LIMIT 1").fetchone()  # from here on the transaction sees one snapshot
                backup_sqlite(db, part, progress)
        else:
            store.close()
            run(url, "pg_dump", "--format=custom", f"--file={part}")


def restore(url: str, file: Path, replace: bool, progress: Progress) -> None:
    """Put a copy in the place of the database of a store's URL, whose tables are created if it has none.

    replace: also if batches are stored there.
    Raises: Unavailable, CannotCopy, NewerTables; OSError if the file cannot be read.
    """
    with open(file, "rb") as opened:
        head = opened.read(16)
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    here = "SQLite" if is_sqlite(url) else "PostgreSQL"
    if kind != here:
        raise CannotCopy(
            f"{file} is a backup of {kind}, and INGEST_STORE is {here}" if kind else f"{file} is no backup"
        )
    if is_sqlite(url):
        check_sqlite(file)
    elif not re.search(r" TABLE DATA \S+ batches ", run(url, "pg_restore", "--list", str(file), connected=False)):
        raise CannotCopy(f"{file} is no backup of Sluice")
    store = open_store(url, {})
    with store.transaction() as db:
        (held,) = db.execute(HOLDS).fetchone()
    if held and not replace:
        raise CannotCopy("the database holds stored bodies, and a restore would replace it: --replace allows that")
    if is_sqlite(url):
        restore_sqlite(store, file, progress)
    else:
        store.close()
        restore_postgres(url, file)


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite:")


@contextlib.contextmanager
def new_file(file: Path) -> Iterator[Path]:
    """The path of a temporary file beside `file`, which takes its place at the end, unless there is an exception."""
    handle, name = tempfile.mkstemp(prefix=f"{file.name}.", suffix=".part", dir=file.parent)
    part = Path(name)
    try:
        yield part
        os.fsync(handle)
        part.replace(file)
        folder = os.open(file.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    finally:
        os.close(handle)
        part.unlink(missing_ok=True)


def backup_sqlite(source: Any, part: Path, progress: Progress) -> None:
    """Copy the snapshot of a connection. Raises: CannotCopy, if the file cannot be written."""
    target = apsw.Connection(str(part))
    try:
        target.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")  # a file that is not whole is thrown away
        copy(target, source, progress)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, until someone writes to it
    except apsw.FullError as error:
        raise CannotCopy(f"{part}: {error}") from None
    finally:
        target.close()


def check_sqlite(file: Path) -> None:
    """Check that a file is a whole database of this program. Raises: CannotCopy, NewerTables."""
    source = readable(file)
    try:
        found = source.execute("PRAGMA quick_check(1)").get
        layout: Any = source.execute("PRAGMA user_version").get
        check_layout(str(file), layout, make=True)
        source.execute("SELECT 1 FROM batches LIMIT 1").fetchall()
    except apsw.SQLError:
        raise CannotCopy(f"{file} is no backup of Sluice") from None
    except apsw.Error as error:
        found = str(error)
    finally:
        source.close()
    if found != "ok":
        raise CannotCopy(f"{file} is damaged: {' '.join(str(found).split())}")


def restore_sqlite(store: Any, file: Path, progress: Progress) -> None:
    """Copy a file over the database in one transaction. Programs that have it open go on with the new content.

    Raises: CannotCopy.
    """
    source = readable(file)
    try:
        copy(store.open(), source, progress)
        store.close()
    except apsw.Error as error:
        raise CannotCopy(f"the database is as it was: {error}") from None
    finally:
        source.close()


def readable(file: Path) -> Any:
    """A copy of SQLite, opened for reading."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(file.absolute()))}?immutable=1", flags)


def copy(target: Any, source: Any, progress: Progress) -> None:
    """Copy all pages between two connections of SQLite. Raises: apsw.Error, also if writers leave no gap."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with target.backup("main", source, "main") as pages:
        while not pages.done:
            try:
                pages.step(STEP_PAGES)
            except (apsw.BusyError, apsw.LockedError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            progress(1 - pages.remaining / max(1, pages.page_count))


def restore_postgres(url: str, file: Path) -> None:
    """Replace the objects that are in an archive, in one transaction. Raises: CannotCopy."""
    for attempt in range(DEADLOCK_ATTEMPTS):
        try:
            run(url, "pg_restore", "--clean", "--if-exists", "--no-owner", "--single-transaction", str(file))
            return
        except CannotCopy as error:
            if "deadlock detected" not in str(error) or attempt == DEADLOCK_ATTEMPTS - 1:
                raise


def run(url: str, program: str, *words: str, connected: bool = True) -> str:
    """The output of one of PostgreSQL's programs, which ends if this process is killed.

    connected: to the database of this URL. Raises: CannotCopy.
    """
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    parts: dict[str, Any] = conninfo_to_dict(url)
    password = parts.pop("password", None)  # every user of the machine can read the words of a command
    where = [f"--dbname={make_conninfo(**parts)}"] if connected else []
    found = shutil.which(program)
    if not found:
        raise CannotCopy(f"{program} is not installed; Debian has it in postgresql-client")
    done = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", found, *where, *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        env=os.environ | ({"PGPASSWORD": str(password)} if password else {}),
    )  # fmt: skip
    if done.returncode:
        raise CannotCopy(done.stderr.strip() or f"{program} ended with status {done.returncode}")
    return done.stdout
