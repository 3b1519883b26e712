"""What a database can name and hold: the checks of a stream's name and fields, and the types of its columns."""

from __future__ import annotations

import re
import types
import typing
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from msgspec import inspect
from msgspec.structs import fields, replace

from sluice.streams.record import RESERVED_COLUMNS, Record
from sluice.streams.registry import Stream
from sluice.streams.times import in_utc

PRECISIONS = "ms", "ns"
MAX_NAME = 63  # bytes: PostgreSQL truncates longer names
# the store's own tables, their indexes, and the names that SQLite reserves
RESERVED_TABLES = re.compile(r"(batches|dead_letters|view_changes)(_.*)?|sqlite_.*", re.IGNORECASE)


def stream_problem(name: object, stream: object) -> str:
    """Why what is registered in STREAMS under this name cannot have a table; or ""."""
    if not isinstance(stream, Stream):
        return "STREAMS has a value that is no sluice.Stream"
    if name != stream.name:
        return f"STREAMS has the stream {stream.name!r} under the name {name!r}"
    if not valid_name(stream.name):
        return f"the name of a stream must be an identifier of up to {MAX_NAME} bytes, not {stream.name!r:.80}"
    if RESERVED_TABLES.fullmatch(stream.name):
        return f"the stream name {stream.name!r} is reserved for the database's own tables"
    if not (isinstance(stream.record, type) and issubclass(stream.record, Record)):
        return f"the record type of the stream {stream.name!r} is not a subclass of sluice.Record"
    names = stream.record.__struct_fields__
    if names[0] != "time":
        return f"the record type of the stream {stream.name!r} needs kw_only=True: its first field must be time"
    for field in names:
        if not valid_name(field):
            return f"the name of a field must be an identifier of up to {MAX_NAME} bytes, not {field!r:.80}"
        if field.lower() in RESERVED_COLUMNS:
            return f"the field name {field!r} of the stream {stream.name!r} is reserved: every table has such a column"
    if stream.precision not in PRECISIONS:
        return f"the precision of the stream {stream.name!r} must be one of {', '.join(PRECISIONS)}"
    if stream.precision == "ns" and "nanoseconds" in map(str.lower, names):
        return f"the field name 'nanoseconds' of the stream {stream.name!r} is reserved for a part of its time"
    if problem := type_problem(stream.record):
        return f"of the stream {stream.name!r}, {problem}"
    return case_conflict(names)


def valid_name(name: str) -> bool:
    """Whether every database can have a table or column of this name."""
    return name.isidentifier() and len(name.encode()) <= MAX_NAME


def case_conflict(names: Iterable[str]) -> str:
    """Which two of these names differ by case only, which a database ignores; or ""."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            return f"the names {other!r} and {name!r} differ by case only"
    return ""


def field_types(record: type[Record]) -> dict[str, set[Any]]:
    """The fields of a record type without `time`, each with the types of what is stored of its values, except None."""
    hints = typing.get_type_hints(record)
    known = ((field.name, parts_of(hints[field.name])) for field in fields(record)[1:])
    return {name: {kind for part in parts for kind in stored_types(part)} - {types.NoneType} for name, parts in known}


def parts_of(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of another type, itself."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (getattr(hint, "__supertype__", hint),)  # of a NewType


def stored_types(kind: Any) -> set[Any]:
    """The types of what is stored of a value of some type."""
    if typing.get_origin(kind) is typing.Literal:
        return {type(value) for value in typing.get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {type(one.value) for one in kind}
    return {str} if kind in TEXTS else {kind}


# of which every database has the text: that of JSON, but of a datetime
TEXTS: dict[Any, Callable[[Any], str]] = {
    **{Decimal: str, UUID: str, date: date.isoformat, time: time.isoformat, datetime: in_utc},
    bytes: lambda value: b64encode(value).decode(),
}


def plain_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    text = TEXTS.get(value.__class__)
    return text(value) if text else value


def plain_records(record: type[Record]) -> Callable[[Any], Any] | None:
    """What makes a record of which all values have the types of `field_types`; None if they have them anyway."""
    hints = typing.get_type_hints(record)
    names = [field.name for field in fields(record)[1:] if any(map(is_converted, parts_of(hints[field.name])))]
    if not names:
        return None
    return lambda one: replace(one, **{name: plain_value(getattr(one, name)) for name in names})


def is_converted(kind: Any) -> bool:
    return kind in TEXTS or isinstance(kind, type) and issubclass(kind, Enum)


def type_problem(record: type[Record]) -> str:
    """Which field of a record type has a type that not every database and destination stores alike; or ""."""
    for field in inspect.type_info(record).fields[1:]:  # type: ignore[attr-defined]
        if refused := refused_in(field.type, set()):
            return f"the field {field.name!r} has the type {refused}; {TYPES}"
    return ""


TYPES = (
    "there are str, int, float, bool, Decimal, UUID, datetime, date, time, bytes, Enum and Literal; and, as JSON, "
    "list, tuple, dict, Struct and unions of these types"
)
REFUSED = {
    inspect.SetType: "set", inspect.FrozenSetType: "frozenset", inspect.TimeDeltaType: "timedelta",
    inspect.ByteArrayType: "bytearray", inspect.MemoryViewType: "memoryview", inspect.RawType: "Raw",
    inspect.ExtType: "Ext",
}  # fmt: skip


def refused_in(kind: Any, seen: set[Any]) -> str:
    """The name of a refused type that a type is or contains, or ""."""
    if isinstance(kind, inspect.CustomType):
        return kind.cls.__name__
    if (own := getattr(kind, "cls", None)) is not None:
        if own in seen:
            return ""
        seen.add(own)
    if kind.__class__ in REFUSED:
        return REFUSED[kind.__class__]
    inner = [getattr(kind, name) for name in kind.__struct_fields__]
    parts = [part for value in inner for part in (value if isinstance(value, tuple) else (value,))]
    types_inside = [part.type if isinstance(part, inspect.Field) else part for part in parts]
    return next(filter(None, (refused_in(part, seen) for part in types_inside if isinstance(part, inspect.Type))), "")
