"""What a database can name and hold: the checks of a stream's name and fields, and the types of its columns."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable
from typing import Any

from msgspec.structs import fields

from sluice.streams.record import Record
from sluice.streams.registry import Stream

MAX_NAME = 63  # bytes: PostgreSQL truncates longer names
# the store's own tables, their indexes, and the names that SQLite reserves
RESERVED_TABLES = re.compile(r"(batches|dead_letters|view_changes)(_.*)?|sqlite_.*", re.IGNORECASE)
# the store's own columns, the system columns of every table in PostgreSQL, and SQLite's names of the number of a row
SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"} | {"rowid", "oid", "_rowid_"}
RESERVED_COLUMNS = {"received_at", "batch", "seq", *SYSTEM_COLUMNS}


def stream_problem(name: object, stream: Stream) -> str:
    """Why a stream, registered in STREAMS under this name, cannot have a table; or ""."""
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
    """The fields of a record type without `time`, each with the types that its values may have, except None."""
    known = {}
    for name, hint in typing.get_type_hints(record).items():
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        known[name] = {kind for kind in (typing.get_args(hint) if union else (hint,)) if kind is not types.NoneType}
    return {field.name: known[field.name] for field in fields(record)[1:]}
