"""The reserve of a disk: what Redis needs to go on while nothing more is accepted or stored. A Redis that cannot write
its append-only file ends, and with it all service. And disks that should be mounted.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

FSTAB, MOUNTS = Path("/etc/fstab"), Path("/proc/self/mounts")
ESCAPED = re.compile(rb"\\([0-7]{3})")  # a space in a path there, a tab, a newline or a backslash
RESERVE = 64 << 20  # bytes; of a small disk an eighth


def spare_bytes(place: str | os.PathLike[str], part: int = 1) -> int:
    """The free bytes of the file system of this directory beyond the reserve; negative if there are fewer.

    part: of the reserve; 2: half of it.
    A file system that cannot be asked is no reason to refuse anything.
    """
    try:
        system = os.statvfs(place)
    except OSError:
        return sys.maxsize
    return (system.f_bavail - min(RESERVE // system.f_frsize, system.f_blocks // 8) // part) * system.f_frsize


def unmounted(place: Path) -> str:
    """Where a disk should be mounted (fstab(5)) that has this path, and none is; "" if there is no such disk."""
    wanted = [Path(os.fsdecode(mount)) for mount in mount_points(FSTAB)]
    mounted = {Path("/"), *(Path(os.fsdecode(mount)) for mount in mount_points(MOUNTS))}
    found = place.absolute()
    return next((str(mount) for mount in wanted if mount in (found, *found.parents) and mount not in mounted), "")


def mount_points(file: Path) -> list[bytes]:
    """The second words of the lines of such a file; none if it cannot be read."""
    lines = list[bytes]()
    with contextlib.suppress(OSError):
        lines = file.read_bytes().split(b"\n")
    words = [line.split() for line in lines if not line.lstrip().startswith(b"#")]
    return [ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), each[1]) for each in words if len(each) > 1]
