"""Files of $INGEST_HOME, which other programs read while they are written."""

from __future__ import annotations

import contextlib
import os
import stat
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
