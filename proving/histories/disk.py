"""The disk under SQLite: what was written and not synced may be lost, in part and in any order, when the power goes.

It is a VFS of SQLite above its own one for Unix, which locks, and has the files in a directory in memory. A file that
was never synced may be gone; one that was deleted stays so. A write that is lost in part is lost by whole sectors.
"""

from __future__ import annotations

import os
import random
from typing import Any

import apsw

from proving.histories.clock import START_SECONDS, Process, World
from sluice.base.override import override

SECTOR = 512
SYNC_SECONDS = 0.003  # that a sync takes on average
WAITING_SHARE = 0.05  # of the writes, in which others run
UNIX_EPOCH_MS = 210866760000000  # 1970, in milliseconds since the beginning of the Julian days


class File:
    """One file. pending: what was written since it was synced: (offset, what was there, what is there)."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.pending: list[tuple[int, bytes, bytes]] = []
        self.synced = False

    def write(self, offset: int, data: bytes) -> None:
        before = bytes(self.content[offset : offset + len(data)])
        if offset > len(self.content):
            self.content += bytes(offset - len(self.content))
        self.pending.append((offset, before, data))
        self.content[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        self.pending.append((size, bytes(self.content[size:]), b""))
        del self.content[size:]

    def sync(self) -> None:
        self.pending.clear()
        self.synced = True

    def lose(self, chosen: random.Random) -> None:
        """The power goes: undo what was not synced, and do some of it again."""
        pending, self.pending = self.pending, []
        for offset, before, data in reversed(pending):
            if data:
                self.content[offset : offset + len(data)] = before
            else:
                self.content += before
        for offset, _, data in pending:
            fate = chosen.random()
            if not data:
                if fate < 0.5:
                    del self.content[offset:]
            elif fate < 0.4:
                self.put(offset, data)
            elif fate < 0.6:
                for at in range(0, len(data), SECTOR):
                    if chosen.random() < 0.5:
                        self.put(offset + at, data[at : at + SECTOR])

    def put(self, offset: int, data: bytes) -> None:
        if offset > len(self.content):
            self.content += bytes(offset - len(self.content))
        self.content[offset : offset + len(data)] = data


class Disk(apsw.VFS):
    """The files of a history, and the VFS. full: nothing more can be written."""

    def __init__(self, world: World, place: str) -> None:
        self.world, self.place, self.full = world, place, False
        self.files: dict[str, File] = {}
        super().__init__("histories", "unix", makedefault=True)
        apsw.connection_hooks.append(self.connected)

    def close(self) -> None:
        apsw.connection_hooks.remove(self.connected)
        self.unregister()

    def connected(self, db: apsw.Connection) -> None:
        process = self.world.process
        process.databases.append(db)
        db.wal_autocheckpoint(self.world.random.choice((4, 16, 1000)))

    @override
    def xOpen(self, name: Any, flags: Any) -> Opened:
        return Opened(self, name, flags)

    @override
    def xDelete(self, name: str, syncdir: bool) -> None:
        if not self.world.process.alive:
            raise apsw.IOError("dead")
        super().xDelete(name, syncdir)
        self.files.pop(name, None)

    @override
    def xSleep(self, microseconds: int) -> int:
        self.world.sleep(microseconds / 1e6)
        return microseconds

    @override
    def xCurrentTimeInt64(self) -> int:
        return UNIX_EPOCH_MS + int((self.world.seconds - self.world.begun + START_SECONDS + self.world.ahead) * 1000)

    def lose_power(self) -> None:
        """All that was not synced is uncertain. No process has a file open."""
        for path, file in sorted(self.files.items()):
            if not file.synced and self.world.random.random() < 0.5:
                del self.files[path]
                os.unlink(path)
                continue
            file.lose(self.world.random)
            with open(path, "r+b") as real:
                real.truncate(0)
                real.write(file.content)
        for name in os.listdir(self.place):
            if name.endswith("-shm"):
                os.unlink(os.path.join(self.place, name))


class Opened(apsw.VFSFile):
    """A file that a process has open."""

    def __init__(self, disk: Disk, name: Any, flags: Any) -> None:
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self.disk, self.world = disk, disk.world
        self.process: Process = disk.world.process
        super().__init__("unix", name, flags)
        self.file = disk.files.setdefault(self.path, File()) if self.path else File()

    def step(self) -> None:
        if not self.process.alive:
            raise apsw.IOError("dead")
        self.process.step("disk")

    @override
    def xWrite(self, data: bytes, offset: int) -> None:
        self.step()
        if self.disk.full:
            raise apsw.FullError("database or disk is full")
        if self.process.random.random() < WAITING_SHARE and self.world.task:
            self.world.sleep(self.process.random.expovariate(1 / SYNC_SECONDS))
            self.step()
        super().xWrite(data, offset)
        self.file.write(offset, bytes(data))

    @override
    def xTruncate(self, size: int) -> None:
        self.step()
        super().xTruncate(size)
        if size < len(self.file.content):
            self.file.truncate(size)

    @override
    def xSync(self, flags: int) -> None:
        self.step()
        if self.world.task:
            self.world.sleep(self.process.random.expovariate(1 / SYNC_SECONDS))
        super().xSync(flags)
        self.file.sync()
        self.step()
