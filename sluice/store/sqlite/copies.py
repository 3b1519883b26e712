"""Copies of SQLite: a database file, made by SQLite's backup API."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from sluice.store.copies import CannotCopy, Progress
from sluice.store.store import Store, check_layout

STEP_PAGES = 1_000  # copied between two calls of `progress`
PATIENCE_SECONDS = 30.0  # that `restore` waits for writers


def backup(store: Store[Any], part: Path, progress: Progress) -> None:
    """Copy the database to a file. Raises: Unavailable; CannotCopy, if the file cannot be written."""
    with store.transaction(read=True) as db:
        db.execute("SELECT 1 FROM batches LIMIT 1").fetchone()  # from here on the transaction sees one snapshot
        write_part(db, part, progress)


def write_part(source: Any, part: Path, progress: Progress) -> None:
    target = apsw.Connection(str(part))
    try:
        target.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")  # a file that is not whole is thrown away
        copy_pages(target, source, progress)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, until someone writes to it
    except apsw.FullError as error:
        raise CannotCopy(f"{part}: {copy_reason(error)}") from None
    finally:
        target.close()


def check(file: Path) -> None:
    """Check that a file is a whole database of this program. Raises: CannotCopy, NewerTables."""
    source = readable(file)
    try:
        found = source.execute("PRAGMA quick_check(1)").get
        layout: Any = source.execute("PRAGMA user_version").get
        check_layout(str(file), layout)
        source.execute("SELECT 1 FROM batches LIMIT 1").fetchall()
    except apsw.SQLError:
        raise CannotCopy(f"{file} is no backup of Sluice") from None
    except apsw.Error as error:
        found = str(error)
    finally:
        source.close()
    if found != "ok":
        raise CannotCopy(f"{file} is damaged: {' '.join(str(found).split())}")


def restore(store: Any, file: Path, progress: Progress) -> None:
    """Copy a file over the database in one transaction. Programs that have it open go on with the new content.

    Raises: CannotCopy.
    """
    source = readable(file)
    try:
        copy_pages(store.open(), source, progress)
        store.close()
    except apsw.Error as error:
        raise CannotCopy(f"the database is as it was: {copy_reason(error)}") from None
    finally:
        source.close()


def copy_reason(error: apsw.Error) -> str:
    """What has stopped a copy. The text of an error of the backup API is that of the connection: "not an error"."""
    if isinstance(error, apsw.FullError):
        return "the disk is full"
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return f"another program has written to it for {PATIENCE_SECONDS:g} seconds"
    return f"{type(error).__name__}: {error}"


def readable(file: Path) -> Any:
    """A copy of SQLite, opened for reading."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(file.absolute()))}?immutable=1", flags)


def copy_pages(target: Any, source: Any, progress: Progress) -> None:
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
