"""What a database can name and hold: the checks of a stream's name and fields, and the types of its columns."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable
from typing import Any

from msgspec.structs import fields

from sluice import settings
from sluice.streams import registry
from sluice.streams.record import Record
from sluice.streams.registry import Stream

LONGEST_NAME = 63  # bytes: PostgreSQL cuts longer names off
# the sink's own tables, their indexes, and what SQLite keeps for itself
RESERVED_TABLES = re.compile(r"(batches|dead_letters)(_.*)?|sqlite_.*", re.IGNORECASE)
# the sink's own columns, and those that PostgreSQL gives every table
RESERVED_COLUMNS = {"received_at", "batch", "seq", "tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}


def load_streams(config: settings.Settings) -> dict[str, Stream]:
    """All streams: the built-in ones and those of the user's module, which may replace them.

    Raises: SettingError if the module cannot be imported, has no STREAMS, or one that no database could hold.
    """
    streams = registry.load(config)
    own = {name: each for name, each in streams.items() if registry.STREAMS.get(name) is not each}
    why = next(filter(None, (unfit(name, each) for name, each in own.items())), "") or same(streams)
    if why:
        raise settings.SettingError(f"INGEST_RECORDS={config.records!r} is invalid: {why}.")
    return streams


def unfit(name: object, one: Stream) -> str:
    """Why a stream under this name of STREAMS cannot have a table, or ""."""
    if name != one.name:
        return f"the stream {one.name!r} stands in STREAMS as {name!r}"
    if not fit(one.name):
        return f"a stream's name is an identifier of up to {LONGEST_NAME} bytes, which {one.name!r:.80} is not"
    if RESERVED_TABLES.fullmatch(one.name):
        return f"a stream cannot be named {one.name!r}, for the database has tables of such names already"
    if not (isinstance(one.record, type) and issubclass(one.record, Record)):
        return f"the record type of the stream {one.name!r} is not a subclass of Record"
    names = one.record.__struct_fields__
    if names[0] != "time":
        return f"the record type of the stream {one.name!r} needs kw_only=True, for `time` comes first"
    for field in names:
        if not fit(field):
            return f"a field's name is an identifier of up to {LONGEST_NAME} bytes, which {field!r:.80} is not"
        if field.lower() in RESERVED_COLUMNS:
            return f"a field of the stream {one.name!r} cannot be named {field!r}, for every table has such a column"
    return same(names)


def fit(name: str) -> bool:
    """Whether every database can have a table or column of this name."""
    return name.isidentifier() and len(name.encode()) <= LONGEST_NAME


def same(names: Iterable[str]) -> str:
    """Which two of these names are one to a database that does not tell A from a; or ""."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            return f"{other!r} and {name!r} are one name to a database"
    return ""


def kinds(record: type[Record]) -> dict[str, set[Any]]:
    """A record's fields without `time`: the types that a value may have, other than None."""
    found = {}
    for name, hint in typing.get_type_hints(record).items():
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        found[name] = {kind for kind in (typing.get_args(hint) if union else (hint,)) if kind is not types.NoneType}
    return {field.name: found[field.name] for field in fields(record)[1:]}
