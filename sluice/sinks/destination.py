"""Where rows go instead of tables of the database (INGEST_ROWS), with the same promise.

Rows become visible in two steps. Before the transaction of their claim commits, an object with them is on disk, where
no reader sees it, and the transaction notes its name in `batches_objects`. After the commit the object is published,
and a later transaction deletes the note. So a crash leaves an object with a note, which any worker publishes, or one
without, which any worker deletes. Each attempt to store has a name of its own, so publishing twice changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from sluice import settings
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
    """

    lasting = True

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @abstractmethod
    def open(self, received: int) -> Object:
        """A new object. received: when its first body arrived, microseconds since 1970. Raises: Unwritable."""

    @abstractmethod
    def publish(self, name: str) -> bool:
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


def destinations(rows: settings.Rows, streams: Mapping[str, Stream]) -> dict[str, Destination]:
    """The destinations of the streams that have one. Raises: SettingError if a library is not installed."""
    return {name: connect(url, stream) for name, stream in streams.items() if (url := rows.of(name)) is not None}


def connect(url: str, stream: Stream) -> Destination:
    """The destination of a URL that the setting accepts."""
    scheme, _, rest = url.partition("://")
    if scheme == "statsd":
        from sluice.sinks.statsd import Statsd

        host, _, port = rest.rpartition(":")
        return Statsd(host.strip("[]"), int(port), stream)
    try:
        from sluice.sinks.parquet import Parquet
    except ImportError as error:
        problem = f"INGEST_ROWS={url} needs {error.name}: bin/provision parquet installs it."
        raise settings.SettingError(problem) from None
    return Parquet(rest, stream)
