"""Rows as Parquet files in a directory, a file for each claim and later a few for each hour.

    DIRECTORY/gps/hour=2026-01-31T12/….parquet    published
    DIRECTORY/.staged/gps/…                       written by an attempt that has not ended, or being merged

A file is published by renaming it. Files are merged by exchanging the directory of an hour for one with the merged file
in place of the small ones, in one system call (renameat2(2) with RENAME_EXCHANGE); so a reader that lists a directory
finds each row once. One that has listed the directory before finds that the files are gone, and lists again.

The directory may be on a disk that goes and comes. So its identity is read before each step (`require`), and nothing is
made at a place whose former directory is missing. A merged file names those that are in it, so that `publish` can tell
one that was merged from one that is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
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
from sluice.contrib.destinations.destination import Destination, Object, Rows, Unused, Unwritable
from sluice.streams.registry import Stream

SMALL_BYTES = 16 << 20  # a smaller file is merged
MERGED_BYTES = 32 << 20  # of files that are merged at a time
MANY_FILES = 256  # small ones of the present hour, from which they are merged before the hour has ended
SETTLED_SECONDS = 60  # after the end of an hour, from which its files are merged; also the age of what a crash left
GROUP_ROWS, GROUP_BYTES = 131_072, 4 << 20  # in a merged file; in memory, of which a merge takes several times as many
MERGING = "merging"  # a directory
IDENTITY = ".id"  # a file with the name that tells this directory from others
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
MERGED = b"sluice.merged"  # in the metadata of a file: the names of the files that were merged into it
COMPRESSION = "zstd"
MARK_DIGITS = 16  # hexadecimal
END = datetime(9999, 1, 1, tzinfo=timezone.utc)
libc = ctypes.CDLL(None, use_errno=True)

log = logging.getLogger("sluice.contrib.destinations.parquet")


class File(Object):
    """A file that is being written, locked as long as it is open: an unlocked one has been left by a crash."""

    def __init__(self, path: Path, name: str, columns: Columns) -> None:
        self.path = path
        self.name = name
        self.columns = columns
        self.file = open(path, "xb")  # noqa: SIM115  # until the attempt ends
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.writer = open_writer(path, columns.schema)

    @override
    def add(self, batch: int, rows: Rows) -> None:
        table = self.columns.table(batch, rows)
        with write_errors():
            self.writer.write_table(table, row_group_size=table.num_rows)
        self.row_groups += 1

    @override
    def finish(self) -> None:
        with write_errors():
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
        self.skipped: set[Path] = set()  # other programs' entries that were named
        self.merged: dict[str, int] = {}  # hour -> modification time of its directory when nothing was left to merge

    @override
    def address(self) -> str:
        # another machine may have another directory of this name; one that both have mounted is one directory
        self.require()
        return f"{self.place()}#{self.identity}"

    def require(self, make: bool = False) -> None:
        """Make sure that the directory is there, and the one that this process has used. make: it, if it is not `used`.

        Raises: Unwritable; Unused, if nobody has used it.
        """
        with write_errors():
            found = self.read_identity()
            if not found and not self.identity and not self.used and (make or self.staged.parent.exists()):
                found = self.make_identity()
        if found and self.identity in ("", found):
            self.identity = found
        elif self.identity:
            raise Unwritable(
                f"{self.directory} is not the directory that was used before ({IDENTITY} is another one): put it back, "
                "or restart the workers, which then use what is there"
            )
        elif self.used:
            raise Unwritable(
                f"{self.directory} has no {IDENTITY}, and rows were stored there: mount its disk; "
                f"or make an empty {IDENTITY} there, to begin anew"
            )
        else:
            raise Unused(
                f"{self.directory} has no {IDENTITY}: nothing was stored there yet, or its disk is not mounted"
            )

    def read_identity(self) -> str:
        """The identity of what is at the place now; "" if there is none. An empty file gets one."""
        path = self.directory / IDENTITY
        try:
            return path.read_text() or self.make_identity()
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def make_identity(self) -> str:
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        with open(self.directory / IDENTITY, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another worker may make it
            file.seek(0)
            if not (found := file.read()):
                found = uuid.uuid4().hex
                file.write(found)
                file.flush()
                os.fsync(file.fileno())
        sync_path(self.directory)
        return found

    @override
    def open(self, received: int) -> File:
        hour = datetime.fromtimestamp(received // 1_000_000, timezone.utc).strftime(HOUR)
        self.require(make=True)
        with write_errors():
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
        self.require()
        with write_errors(), self.locked("exchange"):
            if not target.parent.exists():
                target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                for parent in (self.published, self.directory):
                    sync_path(parent)
            try:
                os.rename(self.stage(name), target)
            except FileNotFoundError:
                return target.exists() or self.is_merged(target)
            sync_path(target.parent)
        return True

    def is_merged(self, target: Path) -> bool:
        """Whether a file was published, and then merged into another one: the database may be an older copy."""
        return any(file_mark(target.name) in merged_marks(metadata) for _, metadata in self.files(target.parent))

    @override
    def tidy(self, noted: Callable[[], set[str]]) -> bool:
        try:
            self.require()
        except Unused:
            return False
        with write_errors():
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
            total, files = 0, dict[Path, pq.FileMetaData]()
            for _, path, size in small:
                if path not in open_ and total < MERGED_BYTES and (metadata := self.metadata(path)):
                    total += size
                    files[path] = metadata
            if len(files) > 1 and self.merge(hour, files):
                return True
            if open_:
                return False
        if over:
            self.merged[hour.name] = changed
        return False

    def delete_left(self, noted: Callable[[], set[str]]) -> None:
        """Delete what attempts have left that are not alive."""
        for path in list_entries(self.staged):
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
        found = [path for path in list_entries(self.published) if path.name.startswith("hour=")]
        for path in found:
            if not is_hour(path):
                self.skip(path)
        return sorted(filter(is_hour, found))

    def files(self, hour: Path) -> Iterator[tuple[Path, pq.FileMetaData]]:
        """The files of an hour that are ours."""
        for path in sorted(hour.glob("*.parquet")):
            if metadata := self.metadata(path):
                yield path, metadata

    def metadata(self, path: Path) -> pq.FileMetaData | None:
        """The metadata of a file; None if it is not one of ours. Raises: OSError."""
        with contextlib.suppress(pa.ArrowInvalid, IsADirectoryError):
            found = pq.read_metadata(path)
            if found.num_row_groups and found.row_group(0).column(0).path_in_schema == "received_at":
                return found
        self.skip(path)
        return None

    def skip(self, path: Path) -> None:
        """Say once that something in the directory is another program's, and stays as it is."""
        if path not in self.skipped:
            self.skipped.add(path)
            log.warning("%s: %s is not ours: it is neither merged nor deleted", self.stream.name, path)

    def merge(self, hour: Path, files: dict[Path, pq.FileMetaData]) -> bool:
        """Merge files of an hour into one; whether it was possible."""
        others = [path for path in list_entries(hour) if path not in files and path.is_dir()]
        if others:  # it has no hard link
            self.skip(others[0])
            return False
        try:
            schema = pa.unify_schemas([found.schema.to_arrow_schema().remove_metadata() for found in files.values()])
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # a field has changed its type: these files stay as they are
            return False
        names = {name for path, found in files.items() for name in (file_mark(path.name), *merged_marks(found))}
        made = self.staged / MERGING
        shutil.rmtree(made, ignore_errors=True)  # of a merge that was cut off
        made.mkdir(mode=0o750)
        path = made / f"{uuid.uuid4().hex}.parquet"
        with open_writer(path, schema) as whole:
            whole.add_key_value_metadata({MERGED: " ".join(sorted(names))})
            for table in group_rows(files, schema):
                whole.write_table(table)
                pa.default_memory_pool().release_unused()  # what the next group would not fit into
        sync_path(path)
        gone = {path.name for path in files}
        with self.locked("exchange"):
            for path in list_entries(hour):
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
        try:
            self.require()
        except Unused:
            return 0
        with write_errors(), self.locked("merge"):
            for hour in self.hours():
                if hour_end(hour.name.partition("=")[2]) > before / 1e6:
                    break
                for path, found in self.files(hour):
                    if newest_arrival(found) < limit:
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


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of a file. Its statistics are for readers that look for a time, and for `newest_arrival`.

    Dictionaries and statistics of all columns would take twice the time and a third more space.
    """
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return pq.ParquetWriter(
        path, schema, compression=COMPRESSION, use_dictionary=texts, write_statistics=["received_at", "time"]
    )


def group_rows(files: Iterable[Path], schema: pa.Schema) -> Iterator[pa.Table]:
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


def newest_arrival(found: pq.FileMetaData) -> datetime:
    """When the last row of a file arrived; far ahead if it does not say."""
    groups = (found.row_group(at).column(0).statistics for at in range(found.num_row_groups))
    return max(group.max if group is not None and group.has_min_max else END for group in groups)


def is_hour(path: Path) -> bool:
    """Whether this is the directory of an hour. A partitioned table may have others: hour=__HIVE_DEFAULT_PARTITION__"""
    with contextlib.suppress(ValueError):
        return path.is_dir() and hour_end(path.name.partition("=")[2]) > 0
    return False


def merged_marks(metadata: pq.FileMetaData) -> list[str]:
    """The marks of the files that were merged into one."""
    marks: bytes = (metadata.metadata or {}).get(MERGED, b"")
    return marks.decode().split()


def file_mark(name: str) -> str:
    """What tells a file from others: a part of its UUID."""
    return name.removesuffix(".parquet").rpartition("-")[2][:MARK_DIGITS]


def list_entries(directory: Path) -> list[Path]:
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
def write_errors() -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise Unwritable(" ".join(str(error).split())) from error
