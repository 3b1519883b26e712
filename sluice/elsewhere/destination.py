"""Where rows go instead of tables of the database (INGEST_ROWS), with the same promise.

Rows become visible in two steps. Before the transaction of their claim commits, an object with them is on disk, where
no reader sees it, and the transaction notes its name in `batches_objects`. After the commit the object is published,
and a later transaction deletes the note. So a crash leaves an object with a note, which any worker publishes, or one
without, which any worker deletes. Each attempt to store has a name of its own, so publishing twice changes nothing.

Where nothing can be stored invisibly, the note carries the rows (`Carried`), and publishing sends them with the name.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable

from sluice.streams.record import Record
from sluice.streams.registry import Stream


class Rows:
    """Records on their way to a destination, with the sequence number and the arrival of their bodies.

    received: microseconds since 1970.
    """

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.received: list[int] = []
        self.records: list[Record] = []


class Unwritable(Exception):
    """A destination cannot be written now."""


class Refused(Exception):
    """A destination has no place for a value of a record."""


class Object(ABC):
    """Rows that a transaction stores, invisible until they are published. The attempt that opened it is alive while it
    is open.
    """

    name: str
    groups: int  # groups of rows that were added
    carried: bytes | None = None  # what the note carries, from `finish` on

    @abstractmethod
    def add(self, batch: int, rows: Rows) -> None:
        """Add a group of rows. Raises: Refused, with nothing added; Unwritable."""

    @abstractmethod
    def undo(self, groups: int) -> None:
        """Take back all groups but so many."""

    @abstractmethod
    def finish(self) -> None:
        """Write all to disk. Raises: Unwritable."""

    @abstractmethod
    def close(self, delete: bool) -> None:
        """The attempt has ended. delete: it has failed, and the object is not noted."""


class Destination(ABC):
    """The destination of one stream; not thread-safe. Several workers may use it at once.

    lasting: an object outlives its worker, so it is noted until it is published.
    leave: seconds for which another worker's objects are left to it.
    """

    lasting = True
    leave = 0.0

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @abstractmethod
    def open(self, received: int) -> Object:
        """A new object. received: when its first body arrived, microseconds since 1970. Raises: Unwritable."""

    def own(self, name: str) -> bool:
        """Whether this process has made the object of this name, if that makes a difference."""
        return False

    @abstractmethod
    def publish(self, name: str, carried: bytes | None) -> bool:
        """Make an object visible, for good; False if there is none of this name. Raises: Unwritable.

        It may be visible already.
        """

    @abstractmethod
    def tidy(self, noted: Callable[[], set[str]]) -> bool:
        """Delete objects that failed attempts have left, and merge small ones; whether there may be more to do.

        One call takes a second or two at most. noted: the names of all objects with a note. Raises: Unwritable.
        """

    @abstractmethod
    def prune(self, before: int, dry: bool = False) -> int:
        """Delete objects of which all rows arrived before a time; the number of these rows. dry: only count them.

        before: microseconds since 1970. Raises: Unwritable.
        """


class Carried(Destination):
    """A destination whose objects are nowhere but in their notes until they are published.

    An object is named WRITER-NUMBER, and those of a writer are published in the order of their numbers. So if the
    destination knows the number of a writer's last object, it knows which of them it has. A writer is a process.
    """

    leave = 20.0

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.writer = uuid.uuid4().hex
        self.number = 0

    def next_name(self) -> str:
        """The name of a new object."""
        self.number += 1
        return f"{self.writer}-{self.number:012d}"

    def own(self, name: str) -> bool:
        """See `Destination`."""
        return writer_of(name)[0] == self.writer

    def tidy(self, noted: Callable[[], set[str]]) -> bool:
        """See `Destination`. Nothing is left by a failed attempt."""
        return False


def writer_of(name: str) -> tuple[str, int]:
    """The writer of an object, and the number of the object."""
    writer, _, number = name.rpartition("-")
    return writer, int(number)
