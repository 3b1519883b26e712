"""The place of $INGEST_HOME: whether its disk is mounted, and who else may change it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

FSTAB, MOUNTS = Path("/etc/fstab"), Path("/proc/self/mounts")
ESCAPED = re.compile(rb"\\([0-7]{3})")  # a space in a path there, a tab, a newline or a backslash


def unmounted(place: Path) -> str:
    """Where a disk should be mounted (fstab(5)) that has this path, and none is; "" if there is no such disk."""
    wanted = [Path(os.fsdecode(mount)) for mount in mount_points(FSTAB)]
    mounted = {Path("/"), *(Path(os.fsdecode(mount)) for mount in mount_points(MOUNTS))}
    found = place.absolute()
    return next((str(mount) for mount in wanted if mount in (found, *found.parents) and mount not in mounted), "")


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


def mount_points(file: Path) -> list[bytes]:
    """The second words of the lines of such a file; none if it cannot be read."""
    lines = list[bytes]()
    with contextlib.suppress(OSError):
        lines = file.read_bytes().split(b"\n")
    words = [line.split() for line in lines if not line.lstrip().startswith(b"#")]
    return [ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), each[1]) for each in words if len(each) > 1]
