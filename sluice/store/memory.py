"""How much memory decoded bodies take.

It cannot be told from their size: a byte of a message takes one, and one of `[[],[],…]` takes 27.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

from sluice.base.override import override
from sluice.store import bounds

LIBC = ctypes.CDLL(None)
PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Whether what was decoded since `begin` takes more than it may. It asks Python's allocator now and then."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.blocks = sys.getallocatedblocks()
        self.due = time.monotonic() + bounds.LOOK_SECONDS

    def is_full(self, now: float) -> bool:
        """now: monotonic."""
        if now < self.due:
            return False
        self.due = now + bounds.LOOK_SECONDS
        return sys.getallocatedblocks() - self.blocks > bounds.HELD_BLOCKS


class FullWatch(Watch):
    """It asks the kernel too, for texts and other large blocks, whose sizes are not added up."""

    empty = 0  # resident bytes of this process without rows
    was_full = True  # at the last look: what was freed since may still be resident

    @override
    def begin(self) -> None:
        super().begin()
        if self.was_full:
            LIBC.malloc_trim(0)  # what was freed and kept would count for the next rows
            FullWatch.empty, FullWatch.was_full = resident(), False

    @override
    def is_full(self, now: float) -> bool:
        if now < self.due:
            return False
        FullWatch.was_full = resident() - self.empty > bounds.HELD_BYTES
        return super().is_full(now) or self.was_full


def resident() -> int:
    """Bytes of memory that this process has; 0 if the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0
