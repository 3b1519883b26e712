"""Files of $INGEST_HOME, which other programs read while they are written, and whose places others must not change."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file for this user only, in the place of another one: whoever reads it finds one of them whole.

    No link is followed: root may be who writes.
    """
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):  # of a program that was killed, or what somebody has put there
        new.unlink()
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(text)
    new.replace(path)


def read_file(path: Path) -> str:
    """The text of a file that is no link, pipe or the like. Raises: OSError, also for one that is."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, encoding="utf-8", errors="surrogateescape") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "is no file", str(path))
        return opened.read()


def replaceable(path: Path, trusted: Collection[int], above: Collection[int]) -> str:
    """Why other users may change a directory, or put something else in its place; "": they may not.

    They may if a directory on the way to it, or to what it links to, is theirs, or if they may write to one. In a
    sticky directory, such as /tmp, only its owner may rename what another user has made.
    trusted, above: the ids of users who may own it, and the directories above it.
    """
    groups = {os.getegid(), *os.getgroups()}
    for place in dict.fromkeys((*reversed(path.parents), *reversed(path.resolve().parents), path)):
        with contextlib.suppress(FileNotFoundError):
            for found in place.lstat(), place.stat():
                if found.st_uid not in (trusted if place == path else above):
                    return f"{place} belongs to another user"
                if stat.S_ISLNK(found.st_mode) or (found.st_mode & stat.S_ISVTX and place != path):
                    continue
                if found.st_mode & 0o002 or (found.st_mode & 0o020 and found.st_gid not in groups):
                    return f"other users may write to {place}"
    return ""
