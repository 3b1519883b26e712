"""The file of a SQLite database: where it may be, which one it is, and the size of its write-ahead log.

A path is not an identity: what is committed to a file that was removed, or that another one has replaced, is gone once
the last process closes it. So whoever has written compares the files before anybody relies on the commit.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import apsw

from sluice.store.types import NotMade, Unavailable

MOUNTS = Path("/proc/self/mountinfo")
ESCAPED = re.compile(rb"\\([0-7]{3})")  # a space in a path there, a tab, a newline or a backslash
# of file systems that several machines may have: the write-ahead log needs memory that its processes share (wal.html)
NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "afs", "ceph", "lustre", "fuse.sshfs", "fuse.glusterfs"))
LOG_BYTES = 16 << 20  # a longer log is cut

Identity = tuple["tuple[int, int] | None", ...]  # device and inode of the database and of its log


def identity(path: str) -> Identity:
    """Of the file and of its log: device and inode, or None if there is none."""
    found: list[tuple[int, int] | None] = []
    for name in path, f"{path}-wal":
        try:
            status = os.stat(name)
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def require_file(path: str) -> None:
    """Raises: Unavailable if there is no database, or this user cannot reach it."""
    try:
        os.stat(path)
    except FileNotFoundError:
        raise NotMade(f"{path}: there is no database yet") from None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from None


def check_place(path: str) -> None:
    """Raises: Unavailable if a directory is on a network file system."""
    place, kind = Path(path).resolve(), ""
    for line in MOUNTS.read_bytes().split(b"\n")[:-1]:  # a path has any bytes but NUL
        before, _, after = line.partition(b" - ")
        mounted = ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), before.split(b" ")[4])
        if place.is_relative_to(os.fsdecode(mounted)):
            kind = os.fsdecode(after.split(b" ")[0])  # of a later line: a mount over others
    if kind in NETWORK:
        raise Unavailable(f"{path} is on a network file system ({kind}), where SQLite can damage a database")


def check_log(path: str) -> None:
    """Raises: Unavailable if a log is there without its database: SQLite would delete it to begin a new one."""
    log = Path(f"{path}-wal")
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size and not os.path.exists(path):
            raise Unavailable(
                f"{path} is gone, but {log} has rows of it: put it back; or delete {log}, for a new database"
            )


def make_file(path: str) -> None:
    """Make an empty file, for this user only, whatever the umask is, and its directory. Raises: Unavailable, OSError.

    One that is there is not opened: to close it would end the locks that this process has on it.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    check_log(path)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def start_log(db: apsw.Connection, path: str) -> None:
    """Turn the write-ahead log on. Raises: Unavailable if the file system cannot have one."""
    mode = db.execute("PRAGMA journal_mode=WAL").get
    if mode != "wal":
        raise Unavailable(f"{path}: SQLite cannot have a write-ahead log here, only journal_mode={mode}")


def cut_log(db: apsw.Connection, path: str) -> None:
    """Cut a long log to nothing, if no reader and no other writer uses it just now.

    SQLite itself writes over the log from its start, but the file stays as long as it has ever been: after a reader
    that reads for hours, or a large transaction that is rolled back.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.stat(f"{path}-wal").st_size > LOG_BYTES:
            db.set_busy_timeout(0)  # also removes the handler
            empty_log(db)


def empty_log(db: apsw.Connection) -> None:
    """Bring all of the log into the database file, and cut it to nothing, unless others use it."""
    with contextlib.suppress(apsw.Error):
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
