"""The reserve of a disk: what Redis needs to go on while nothing more is accepted or stored. A Redis that cannot write
its append-only file ends, and with it all service.
"""

from __future__ import annotations

import os
import sys

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
