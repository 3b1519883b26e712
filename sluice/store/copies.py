"""Copies of a whole database: `backup_store` writes one while everything runs, `restore_store` puts one in the
database's place.

Both are one transaction: a copy is the database of one moment, and a restore happens as a whole or not at all. It
replaces all that is ours and nothing of others. Each database has a module `copies` in its folder, with `backup_store`,
`check` and `restore_store`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sluice import registry
from sluice.store.registry import SQLITE, database_of, module_of, open_store

HOLDS = "SELECT EXISTS (SELECT 1 FROM batches) OR EXISTS (SELECT 1 FROM batches_ranges)"
Progress = Callable[[float], None]  # called with the share that is done


class CannotCopy(Exception):
    """One line with the reason. The database is as it was."""


def backup_store(url: str, file: Path, progress: Progress) -> None:
    """Copy the database of a store's URL to a file, which appears or is replaced once the copy is on disk.

    Raises: Unavailable, CannotCopy; OSError if the file cannot be written.
    """
    with contextlib.closing(open_store(url, {}, make=False)) as store, new_file(file) as part:
        module_of(database_of(url), "copies").backup(store, part, progress)


def restore_store(url: str, file: Path, replace: bool, progress: Progress) -> None:
    """Put a copy in the place of the database of a store's URL, whose tables are created if it has none.

    replace: also if batches are stored there.
    Raises: Unavailable, CannotCopy, NewerTables; OSError if the file cannot be read.
    """
    here = database_of(url)
    with open(file, "rb") as opened:
        head = opened.read(16)
    known = [SQLITE, *registry.declared_entries("databases").values()]
    made = next((each.name for each in known if head.startswith(each.magic)), None)
    if made is None:
        raise CannotCopy(f"{file} is no backup")
    if made != here.name:
        raise CannotCopy(f"{file} is a backup of {made}, and INGEST_STORE is {here.name}")
    copies = module_of(here, "copies")
    copies.check(file)
    with contextlib.closing(open_store(url, {})) as store:
        with store.transaction() as db:
            ((held,),) = store.run_sql(db, HOLDS)
        if held and not replace:
            raise CannotCopy("the database holds stored bodies, and a restore would replace it: --replace allows that")
        copies.restore(store, file, progress)


@contextlib.contextmanager
def new_file(file: Path) -> Iterator[Path]:
    """The path of a temporary file beside `file`, which takes its place at the end, unless there is an exception."""
    if file.is_dir():  # said before the copy is made
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    try:
        handle, name = tempfile.mkstemp(prefix=f"{file.name}.", suffix=".part", dir=file.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
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
