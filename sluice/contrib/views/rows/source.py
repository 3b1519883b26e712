"""What a view reads from a database: the rows committed since a position, and counts. It never writes rows.

What it holds at a time has a bound in bytes: a record may have a megabyte, and a stranger may send many of them.

A position is a text that only its source understands. Rows that were committed up to it are never read again, rows
committed later are always read, whatever the order in which transactions commit. It also names the last row or batch
that was read: a database that does not have it is another database, or one restored from a backup (Diverged).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from sluice.store.tables import column_kind
from sluice.streams.record import INT64
from sluice.streams.registry import Stream
from sluice.streams.schema import field_types

Row = tuple[Any, ...]  # time (see RowSource.nanoseconds), sequence number, and the fields of the record
Converter = Callable[[Any], Any]
PIECE_BYTES = 4 << 20  # of the texts in the rows that are held at a time
ROW_BYTES = 100  # that a row counts in addition to its texts
CACHED_BYTES = 512  # a longer JSON text is not cached
INDEXING = "%s: its tallies are slow; creating an index on %s"
MAX_GROUPS = 1_000  # of a count: those with the most rows
MAX_GROUP_BYTES = 512  # of the text of one
encode = msgspec.json.Encoder(decimal_format="number").encode
canonical = msgspec.json.Encoder(order="deterministic").encode


class Diverged(Exception):
    """The database is not the one that was read up to the position, or is an older state of it."""


class Changes(NamedTuple):
    """Rows since a position, the position after them, and whether this snapshot has more.

    pieces: each has about PIECE_BYTES, or one row.
    """

    pieces: Iterable[list[Row]]
    position: str
    more: bool


class RowSource(ABC):
    """One connection for reading; not thread-safe. Every method raises Unavailable."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self.streams = streams
        self.db: Any = None
        self.converters: dict[str, list[tuple[int, Converter]]] = {}
        for name, stream in streams.items():
            converters = [(at, self.converter(name, field)) for at, field in enumerate(field_types(stream.record), 2)]
            self.converters[name] = [(at, convert) for at, convert in converters if convert]

    @abstractmethod
    def start(self) -> str:
        """The position before the first row."""

    @abstractmethod
    def news(self) -> bool:
        """Whether rows may have been committed since the last call. Do not call it within a snapshot."""

    @abstractmethod
    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """One snapshot for all calls of `changes` within: those that reach the end return the same position."""

    @abstractmethod
    def changes(self, stream: str, position: str, limit: int) -> Changes:
        """Rows that were committed since a position: at most about `limit`, or of one batch. Call it in a snapshot.

        Raises: Diverged.
        """

    def count(self, stream: str, key: str, by: str, value: str) -> tuple[dict[str, int], int]:
        """The number of rows whose field `key` has the text `value` and whose field `by` is not null.

        Returns: this number by the text of `by`, of the MAX_GROUPS with the most rows; and in total.
        """
        convert = self.converter(stream, by)
        groups: dict[str, int] = {}
        total = 0
        for found, n, all_of_them in self.groups(stream, key, by, value):
            total = int(all_of_them)
            if found is not None:
                text = text_of(convert(found) if convert else found)
                groups[text] = groups.get(text, 0) + n
        return groups, total

    def kind(self, stream: str, field: str) -> Any:
        """See `column_kind`; None: it has another type in each row (`Stream.typed`)."""
        known = self.streams[stream]
        return None if known.typed and field == "value" else column_kind(field_types(known.record)[field])

    @abstractmethod
    def groups(self, stream: str, key: str, by: str, value: str) -> Iterable[Row]:
        """For `count`: values of `by`, None if one is too long; their rows; the rows of all values."""

    @abstractmethod
    def make_countable(self, stream: str, key: str, by: str) -> None:
        """Create the index that makes `count` fast, unless it is there, and wait for its end.

        In SQLite and in a partitioned table, workers wait for it too. A key that is not a text gets none.
        """

    @abstractmethod
    def converter(self, stream: str, field: str) -> Converter | None:
        """What makes a value for JSON of a field's value in a row; None if they are the same."""

    @staticmethod
    @abstractmethod
    def nanoseconds(time: Any) -> int:
        """The time of a row in nanoseconds since 1970. Raises: ValueError."""

    @abstractmethod
    def time_converter(self, stream: str) -> Converter | None:
        """What makes ISO 8601 in UTC of the time of a row, as precise as the database has it; None if it is that."""

    def prepare(self, streams: Iterable[str]) -> None:  # noqa: B027  # SQLite needs nothing
        """Make reading by position fast, once at the start."""

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        db, self.db = self.db, None
        if db is not None:
            db.close()


def text_of(value: Any) -> str:
    """The text of a value for JSON, by which keys are compared: of a number or boolean its JSON."""
    if value.__class__ is str:
        return str(value)
    text = encode(value).decode()
    return str(msgspec.json.decode(text)) if text[:1] == '"' else text


def typed_value(kind: Any, text: str) -> Any:
    """The value of type float, int, bool or str that has a text; None if there is none."""
    if kind is str:
        return text
    try:
        value = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return value if text_of(value) == text and (kind is not int or value in INT64) else None


def raw_json(text: str) -> msgspec.Raw:
    """JSON with sorted names, so that equal values are equal bytes."""
    return cached(text) if len(text) <= CACHED_BYTES else decode_json(text)


def decode_json(text: str) -> msgspec.Raw:
    return msgspec.Raw(canonical(msgspec.json.decode(text)))


cached = lru_cache(maxsize=4096)(decode_json)
