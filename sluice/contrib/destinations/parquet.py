"""Rows as Parquet files in a directory, a file for each claim and later a few for each hour.

    DIRECTORY/gps/hour=2026-01-31T12/….parquet    published
    DIRECTORY/.staged/gps/…                       written by an attempt that has not ended, or being merged

A file is published by renaming it. Files are merged by exchanging the directory of an hour for one with the merged file
in place of the small ones, in one system call (renameat2(2) with RENAME_EXCHANGE); so a reader that lists a directory
finds each row once. One that has listed the directory before finds that the files are gone, and lists again.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq

from sluice.base.override import override
from sluice.contrib.destinations.columns import HOUR, Columns, hour_end
from sluice.contrib.destinations.destination import Destination, Object, Rows, Unwritable
from sluice.streams.registry import Stream

SMALL_BYTES = 16 << 20  # a smaller file is merged
MERGED_BYTES = 32 << 20  # of files that are merged at a time
MANY_FILES = 256  # small ones of the present hour, from which they are merged before the hour has ended
SETTLED_SECONDS = 60  # after the end of an hour, from which its files are merged; also the age of what a crash left
GROUP_ROWS, GROUP_BYTES = 131_072, 4 << 20  # in a merged file; in memory, of which a merge takes several times as many
MERGING = "merging"  # a directory
IDENTITY = ".id"  # a file with the name that tells this directory from others
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
COMPRESSION = "zstd"
START = datetime(1970, 1, 1, tzinfo=timezone.utc)
libc = ctypes.CDLL(None, use_errno=True)


class File(Object):
    """A file that is being written, locked as long as it is open: an unlocked one has been left by a crash."""

    def __init__(self, path: Path, name: str, columns: Columns) -> None:
        self.path = path
        self.name = name
        self.columns = columns
        self.file = open(path, "xb")  # noqa: SIM115  # until the attempt ends
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.writer = writer(path, columns.schema)

    @override
    def add(self, batch: int, rows: Rows) -> None:
        table = self.columns.table(batch, rows)
        with writing():
            self.writer.write_table(table, row_group_size=table.num_rows)
        self.row_groups += 1

    @override
    def finish(self) -> None:
        with writing():
            self.writer.close()
            os.fsync(self.file.fileno())
            sync_path(self.path.parent)

    @override
    def close(self, delete: bool) -> None:
        if delete:
            with contextlib.suppress(OSError):
                self.path.unlink()
        with contextlib.suppress(OSError, pa.ArrowException):
            self.writer.close()
        self.file.close()


class Parquet(Destination):
    """See `Destination`. An object's name is HOUR/DATABASE-FILE: only who can read the notes knows that it has none."""

    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        self.columns = Columns(stream)
        self.directory = Path(url.partition("://")[2])
        self.published = self.directory / stream.name
        self.staged = self.directory / ".staged" / stream.name
        self.identity = ""
        self.merged: dict[str, int] = {}  # hour -> modification time of its directory when nothing was left to merge

    @override
    def address(self) -> str:
        # another machine may have another directory of this name; one that both have mounted is one directory
        if not self.identity:
            with writing():
                self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
                path = self.directory / IDENTITY
                with contextlib.suppress(FileExistsError), open(path, "x") as file:
                    file.write(uuid.uuid4().hex)
                    file.flush()
                    os.fsync(file.fileno())
                self.identity = path.read_text()
        return f"{super().address()}#{self.identity}"

    @override
    def open(self, received: int) -> File:
        hour = datetime.fromtimestamp(received // 1_000_000, timezone.utc).strftime(HOUR)
        with writing():
            self.staged.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"{hour}/{self.database}{'-' * bool(self.database)}{uuid.uuid4().hex}"
            return File(self.stage(name), name, self.columns)

    def stage(self, name: str) -> Path:
        """Where an object is until it is published."""
        return self.staged / name.replace("/", ".")

    def target(self, name: str) -> Path:
        """Where an object is from then on."""
        return self.published / f"hour={name}.parquet"

    @override
    def publish(self, name: str, carried: bytes | None = None) -> bool:
        target = self.target(name)
        with writing(), self.locked("exchange"):
            if not target.parent.exists():
                target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                for parent in (self.published, self.directory):
                    sync_path(parent)
            try:
                os.rename(self.stage(name), target)
            except FileNotFoundError:
                return target.exists()
            sync_path(target.parent)
        return True

    @override
    def tidy(self, noted: Callable[[], set[str]]) -> bool:
        with writing():
            self.delete_left(noted)
            with contextlib.suppress(BlockingIOError), self.locked("merge", wait=False):  # or another worker merges
                return any(self.merge_some(hour, noted) for hour in self.hours())
        return False

    def merge_some(self, hour: Path, noted: Callable[[], set[str]]) -> bool:
        """Merge some small files of an hour, if it is time; whether there were any."""
        changed = hour.stat().st_mtime_ns
        over = hour_end(hour.name.partition("=")[2]) + SETTLED_SECONDS < time.time()
        if over and self.merged.get(hour.name) == changed:
            return False
        found = [(info.st_mtime, path, info.st_size) for path in hour.glob("*.parquet") if (info := path.stat())]
        small = sorted(each for each in found if each[2] < SMALL_BYTES)
        if len(small) >= (2 if over else MANY_FILES):
            # A file with a note may be published again. One that was there before the notes were read, and has none,
            # never will be.
            open_ = {self.target(name) for name in noted()}
            total, files = 0, []
            for _, path, size in small:
                if path not in open_ and total < MERGED_BYTES:
                    total += size
                    files.append(path)
            if len(files) > 1 and self.merge(hour, files):
                return True
            if open_:
                return False
        if over:
            self.merged[hour.name] = changed
        return False

    def delete_left(self, noted: Callable[[], set[str]]) -> None:
        """Delete what attempts have left that are not alive."""
        for path in entries(self.staged):
            with contextlib.suppress(BlockingIOError, FileNotFoundError):  # alive, or published meanwhile
                # the next merge deletes what a merge has left
                if path.name[0] == "." or path.name == MERGING or time.time() - path.stat().st_mtime < SETTLED_SECONDS:
                    continue
                if path.name.rpartition(".")[2].rpartition("-")[0] not in ("", self.database):
                    continue  # the note may be in another database
                with open(path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if path.name not in {name.replace("/", ".") for name in noted()}:
                        path.unlink()

    def hours(self) -> list[Path]:
        """The directories of the hours, oldest first."""
        return sorted(path for path in entries(self.published) if path.name.startswith("hour="))

    def merge(self, hour: Path, files: list[Path]) -> bool:
        """Merge files of an hour into one; whether it was possible."""
        try:
            schema = pa.unify_schemas([pq.read_schema(path) for path in files])
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # a field has changed its type: these files stay as they are
            return False
        made = self.staged / MERGING
        shutil.rmtree(made, ignore_errors=True)  # of a merge that was cut off
        made.mkdir(mode=0o750)
        path = made / f"{uuid.uuid4().hex}.parquet"
        with writer(path, schema) as merged:
            for table in grouped(files, schema):
                merged.write_table(table)
                pa.default_memory_pool().release_unused()  # what the next group would not fit into
        sync_path(path)
        gone = {path.name for path in files}
        with self.locked("exchange"):
            for path in entries(hour):
                if path.name not in gone:
                    os.link(path, made / path.name)
            sync_path(made)
            exchange(made, hour)
            sync_path(hour.parent)
        shutil.rmtree(made)
        return True

    @override
    def expire(self, before: int, dry: bool) -> int:
        rows = 0
        limit = datetime.fromtimestamp(before / 1e6, timezone.utc)
        with writing(), self.locked("merge"):
            for hour in self.hours():
                if hour_end(hour.name.partition("=")[2]) > before / 1e6:
                    break
                for path in hour.glob("*.parquet"):
                    found = pq.read_metadata(path)
                    if newest(found) < limit:
                        rows += found.num_rows
                        if not dry:
                            path.unlink()
                if not dry:
                    with contextlib.suppress(OSError), self.locked("exchange"):  # not empty
                        hour.rmdir()
        return rows

    @contextlib.contextmanager
    def locked(self, name: str, wait: bool = True) -> Iterator[None]:
        """Hold a lock that all workers of this machine share. Raises: BlockingIOError, unless `wait`."""
        self.staged.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.staged / f".{name}", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield


def writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of a file. Its statistics are for readers that look for a time, and for `newest`.

    Dictionaries and statistics of all columns would take twice the time and a third more space.
    """
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return pq.ParquetWriter(
        path, schema, compression=COMPRESSION, use_dictionary=texts, write_statistics=["received_at", "time"]
    )


def grouped(files: Iterable[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files in groups of GROUP_ROWS or GROUP_BYTES; null in columns that a file lacks."""
    empty = schema.empty_table()
    held = [empty]
    for path in files:
        with pq.ParquetFile(path, memory_map=True) as part:
            for at in range(part.num_row_groups):
                held.append(part.read_row_group(at, use_threads=False))  # each thread would keep memory of its own
                rows, size = (sum(getattr(table, of) for table in held) for of in ("num_rows", "nbytes"))
                if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                    yield pa.concat_tables(held, promote_options="default")
                    held = [empty]
    if len(held) > 1:
        yield pa.concat_tables(held, promote_options="default")


def newest(found: pq.FileMetaData) -> datetime:
    groups = (found.row_group(at) for at in range(found.num_row_groups))
    return max((group.column(0).statistics.max for group in groups), default=START)


def entries(directory: Path) -> list[Path]:
    """What is in a directory; nothing if there is none."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def exchange(one: Path, other: Path) -> None:
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


def sync_path(path: Path) -> None:
    """Write a file, or the names of a directory, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise Unwritable(" ".join(str(error).split())) from error
