"""The interface of a destination of rows (INGEST_ROWS). What waits for it, and what a crash leaves, is in `outbox`."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from sluice.base.override import override
from sluice.contrib.destinations.far_rows import FarRow
from sluice.store.store import Store
from sluice.store.types import Body, Origin
from sluice.streams.message import NOBODY, sender_head
from sluice.streams.registry import Stream

Group = TypeVar("Group")
GROUP_RECORDS = 32_768  # held in memory on their way to a destination


class Rows:
    """The records of bodies on their way to a destination, in columns: with each, the sequence number, the arrival and
    the item of its body.

    received: microseconds since 1970. senders: see `Origin`. origin: of the bodies, if they are of a claim or a letter.
    """

    def __init__(
        self, bodies: Sequence[Body] = (), senders: Mapping[int, str] = NOBODY, origin: Origin | None = None
    ) -> None:
        self.senders = senders
        self.origin = origin
        self.epoch = ""  # of the numbers, for a destination that `needs_epoch`
        if all([len(body.records) == 1 for body in bodies]):  # mostly, and then in half the time
            self.records = [body.records[0] for body in bodies]
            with_rows = bodies
        else:
            self.records = [record for body in bodies for record in body.records]
            with_rows = [body for body in bodies for _ in body.records]
        self.seqs = [body.seq for body in with_rows]
        self.received = [body.received for body in with_rows]
        self.bodies = [body.item for body in with_rows]
        self.with_rows = with_rows


class Unwritable(Exception):
    """A destination cannot be written now."""


class Unused(Unwritable):
    """Nothing was stored there yet, as far as is known."""


class Rejected(Exception):
    """A destination has no place for a value of a record, and never will have one unless somebody changes it.

    rest: what a note would carry of the rows that are not sent, if the others are.
    """

    def __init__(self, reason: str, rest: bytes | None = None) -> None:
        super().__init__(reason)
        self.rest = rest


class Object(ABC):
    """Rows that a transaction stores, invisible until they are published. The attempt that opened it is alive while it
    is open.
    """

    name: str
    row_groups = 0  # that were added
    carried: bytes | None = None  # what the note carries, from `finish` on

    @abstractmethod
    def add(self, batch: int, rows: Rows) -> None:
        """Add a group of rows. Raises: Rejected, with nothing added; Unwritable."""

    def finish(self) -> None:  # noqa: B027  # some need nothing
        """Write all to disk. Raises: Unwritable."""

    def close(self, delete: bool) -> None:  # noqa: B027
        """The attempt has ended. delete: it has failed, and the object is not noted."""


class InMemory(Object, Generic[Group]):
    """Rows that its process holds until they are published. groups: as `encoded` returns them.

    encoded, packed: see `Carried`; without `packed`, nothing is noted.
    """

    def __init__(
        self,
        name: str,
        encoded: Callable[[int, Rows], Group],
        packed: Callable[[list[Group]], bytes] | None = None,
    ) -> None:
        self.name, self.encoded, self.packed = name, encoded, packed
        self.groups: list[Group] = []

    @override
    def add(self, batch: int, rows: Rows) -> None:
        self.put(self.encoded(batch, rows))

    def put(self, group: Group) -> None:
        self.groups.append(group)
        self.row_groups += 1

    @override
    def finish(self) -> None:
        self.carried = self.packed(self.groups) if self.packed else None


class Destination(ABC):
    """The destination of one stream; not thread-safe. Several workers may use it at once.

    lasting: an object outlives its worker, so it is noted until it is published.
    database: which one has the notes of what is opened or tidied next.
    used: the database knows that rows were stored there, so it is not made again where it is missing.
    needs_epoch: it is told the epoch of the rows that it gets.
    GRACE_SECONDS: for which another worker's objects are left to it.
    """

    lasting = True
    database = ""
    used = False
    needs_epoch = False
    GRACE_SECONDS = 0.0

    def __init__(self, url: str, stream: Stream) -> None:
        """url: from INGEST_ROWS, which has accepted it."""
        self.url = url
        self.stream = stream

    def place(self) -> str:
        """Where it is: its URL without name and password."""
        return re.sub(r"(?<=://)[^/@]*@", "", self.url.partition("?")[0])

    def address(self) -> str:
        """What tells this destination from others, also from others that were at its place: `place`, `#` and more.

        Asked anew each time, because a disk may have gone. Makes nothing. Raises: Unwritable, Unused.
        """
        return self.place()

    @abstractmethod
    def open(self, received: int) -> Object:
        """A new object. received: when its first body arrived, microseconds since 1970. Raises: Unwritable.

        Makes the destination, unless it is `used`.
        """

    def keep(self, store: Store[Any], db: object, opened: Object, bodies: int) -> None:  # noqa: B027
        """Write into the transaction of an object what is to be kept of it beside its note. bodies: with rows in it."""

    def is_copy(self, origin: Origin) -> bool:
        """Whether rows beside their table are due only here: this destination has buried them."""
        return False

    def own(self, name: str) -> bool:
        """Whether this process has made the object of this name, if that makes a difference."""
        return False

    @abstractmethod
    def publish(self, name: str, carried: bytes | None) -> bool:
        """Make an object visible, for good; False if it cannot be proved to be. Raises: Unwritable.

        It may be visible already. Raises: Rejected, if it is `Carried`.
        """

    def tidy(self, noted: Callable[[], set[str]]) -> bool:
        """Delete objects that failed attempts have left, and merge small ones; whether there may be more to do.

        One call takes a second or two at most. noted: the names of all objects with a note. Raises: Unwritable.
        """
        return False

    def expire(self, before: int, dry: bool) -> int:
        """Delete objects of which all rows arrived before a time; the number of these rows. dry: only count them.

        before: microseconds since 1970. Raises: Unwritable.
        """
        return 0


class Carried(Destination, Generic[Group]):
    """A destination whose objects are nowhere but in their notes until they are published.

    An object is named WRITER-NUMBER, and those of a writer are published in the order of their numbers. So if the
    destination knows the number of a writer's last object, it knows which of them it has. A writer is a process.
    """

    GRACE_SECONDS = 20.0

    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        self.writer = uuid.uuid4().hex
        self.number = 0

    @override
    def open(self, received: int) -> InMemory[Group]:
        return InMemory(self.next_name(), self.encoded, self.packed)

    @abstractmethod
    def encoded(self, batch: int, rows: Rows) -> Group:
        """A group of rows. Raises: Rejected."""

    @abstractmethod
    def packed(self, groups: list[Group]) -> bytes:
        """What a note carries of groups of rows."""

    def next_name(self) -> str:
        self.number += 1
        return f"{self.writer}-{self.number:012d}"

    def new_names(self, count: int) -> list[str]:
        """Names of a writer that has no other objects: what waits of this one would have lower numbers than these."""
        writer = uuid.uuid4().hex
        return [f"{writer}-{number:012d}" for number in range(1, count + 1)]

    @override
    def own(self, name: str) -> bool:
        return name.startswith(f"{self.writer}-")

    @override
    def publish(self, name: str, carried: bytes | None) -> bool:
        if carried is not None:  # else another worker has published it
            self.send(name, carried)
        return True

    @abstractmethod
    def send(self, name: str, carried: bytes) -> None:
        """Send what a note carries, unless the destination has it.

        Raises: Unwritable; Rejected, if it has `halves` and `parts`.
        """

    def halves(self, carried: bytes) -> list[tuple[int, bytes]]:
        """What two notes carry in the place of one, each with the number of its bodies; empty for a single row."""
        raise NotImplementedError

    def parts(self, carried: bytes) -> Iterator[FarRow]:
        """The rows that a note carries."""
        raise NotImplementedError


def writer_of(name: str) -> tuple[str, int]:
    writer, _, number = name.rpartition("-")
    return writer, int(number)


def single_body(stream: Stream, values: dict[str, Any]) -> bytes:
    """A body that has one row alone, which its stream decodes to the same record. values: by the names of its fields.

    time: ISO 8601. It has a head if the row has a sender.
    """
    head = sender_head(values.pop("sender", ""))
    if stream.typed and values["type"] == "boolean":
        values["value"] = bool(values["value"])
    elif stream.typed and values["type"] == "unsigned":
        values["value"] = int(values["value"])
    names = {field.name: field.encode_name for field in msgspec.structs.fields(stream.record)}
    return head + msgspec.json.encode({names[name]: value for name, value in values.items() if name in names})
