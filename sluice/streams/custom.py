"""A user's streams: makes the worker's decoder from a record type."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import isfinite
from operator import attrgetter
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from sluice import registry
from sluice.http.routes import VARYING, pattern
from sluice.streams.decoder import JsonDecoder, out_of_range
from sluice.streams.lines import LineDecoder
from sluice.streams.message import parse_message
from sluice.streams.record import RESERVED_COLUMNS, Decoded, Invalid, Limits, Record, Vote
from sluice.streams.registry import Stream
from sluice.streams.times import END, SECOND, TIMES, Time, nanoseconds


def stream(
    name: str,
    record_type: type[Record],
    parse: Callable[[bytes], Record] | None = None,
    unique: Sequence[str] = (),
    precision: str = "ms",
    path: str = "",
    extra: bool = False,
) -> Stream:
    """A user-defined stream: docs/ADDING-A-STREAM.md.

    The bodies are JSON objects, arrays, NDJSON or forms with the fields of the record type, or CloudEvents whose `data`
    is such an object; with `parse`, lines of any other format.

    parse: makes one record from one line, without the white space around it. Raises: ValueError, whose text becomes
        the reason of the dead letter. Empty lines are skipped. Compression, heads and limits are handled before it.
    precision: "ns" stores times to the nanosecond.
    unique: fields; of the records that have the same values of them within INGEST_UNIQUE, one is stored.
    path: of its routes, with parts that vary: /ttn/{application}/*. A field of such a name, a str with a default, has
        that part of the request's path.
    extra: a column `extra` has, as JSON, the fields that the record type does not name.
    Raises: TypeError if the record type is not a subclass of Record or, with `parse`, not keyword-only, or lacks one of
        the unique fields or of those of the path.
    """
    record = as_columns(record_type) if parse is None else checked(record_type)
    columns = {name: column(name, record_type.__struct_fields__) for name in record_type.__struct_fields__}
    if isinstance(unique, str) or not {*unique} <= columns.keys():
        raise TypeError(f"unique={unique!r} is no tuple of fields of {record_type.__name__}")
    fields = tuple(columns[name] for name in unique) if parse is None else tuple(unique)
    if parse is None:
        decoder = next(registry.load_hooks("own_decoder"), JsonDecoder)(*wire_of(record))
        decode = decoder.fast_path()
    elif record.__struct_fields__[0] != "time":
        # a metaclass that sets kw_only loses CPython's vectorcall: 460 instead of 110 ns
        raise TypeError(f"the record type {record_type.__name__} needs kw_only=True: its first field must be time")
    else:
        decode, decoder = LineDecoder(record, parse).decode, None
    made = Stream(name, record, decode, None, precision, unique=fields or None, decoder=decoder)
    if extra:
        keep = next(registry.load_hooks("extra"), None)
        if keep is None:
            raise TypeError(f"extra=True: nothing here keeps the unknown fields of the stream {name!r}")
        made = keep(made)
    return made._replace(decode=with_path(made.decode, path, made.record)) if path else made


def checked(record: type[Record]) -> type[Record]:
    """The record type. Raises: TypeError if it is none."""
    if not (isinstance(record, type) and issubclass(record, Record)):
        raise TypeError(f"{record!r} is not a subclass of sluice.Record")
    return record


def as_columns(record: type[Record]) -> type[Record]:
    """The record type with `time` before its own fields, and with names that every table can have as columns.

    A field whose name is that of a column of every table, as webhooks have `sender` and `received_at`, gets an
    underscore at its end. Its name on the wire stays.

    msgspec puts the inherited `time` after fields that are not keyword-only, and the order of an existing type cannot
    be changed. So this defines such a type again, with its methods. A type with kw_only=True is returned as it is, if
    no name is reserved.

    Raises: TypeError if it is not a record type.
    """
    checked(record)
    renamed = {name: column(name, record.__struct_fields__) for name in record.__struct_fields__}
    if record.__struct_fields__[0] == "time" and all(name == renamed[name] for name in renamed):
        return record
    fields = [field for field in msgspec.structs.fields(record) if field.name != "time"]
    generated = {"__annotations__", "__slots__", "__weakref__", "__dict__", *vars(Vote), *record.__struct_fields__}
    methods: dict[str, Any] = {}
    for base in reversed(record.__mro__[: record.__mro__.index(Record)]):
        methods |= {name: value for name, value in vars(base).items() if name not in generated or name == "__doc__"}
    made = msgspec.defstruct(
        record.__name__,
        [(renamed[field.name], field.type, field_of(field)) for field in fields],
        bases=(Record,),
        module=record.__module__,
        namespace=methods,
        kw_only=True,
    )
    return cast("type[Record]", made)


def column(name: str, names: Sequence[str]) -> str:
    """The name of the column of a field. names: of all fields."""
    is_reserved = name.lower() in RESERVED_COLUMNS and f"{name}_" not in names
    return f"{name}_" if is_reserved else name


def field_of(field: msgspec.structs.FieldInfo) -> Any:
    """The argument of `defstruct` that defines the same field."""
    given = {"default": field.default, "default_factory": field.default_factory}
    return msgspec.field(name=field.encode_name, **{k: v for k, v in given.items() if v is not msgspec.NODEFAULT})


def wire_of(record: type[Record]) -> tuple[type[msgspec.Struct], Callable[[Any], Record]]:
    """The Struct that a plain object is decoded to, with all names of `time`, and the function that makes a record."""
    own = [field for field in msgspec.structs.fields(record) if field.name != "time"]
    names = tuple(field.name for field in own)
    taken = {field.encode_name for field in own}
    times = [name for name in TIMES if name not in taken]
    # an event must not pass for a record that has the names of an event's own members, or only optional ones
    events = [] if "specversion" in taken else [("specversion_", Any, msgspec.field(default=None, name="specversion"))]
    struct = msgspec.defstruct(
        record.__name__,
        [(field.name, field.type, field_of(field)) for field in own]
        + [(f"{name}_", Time, msgspec.field(default=None, name=name)) for name in times]
        + events,
        kw_only=True,
    )
    mixed = bool(events)
    get = attrgetter(*(f"{name}_" for name in times), *names)
    count = len(times)

    def build(wire: Any) -> Record:
        if mixed and wire.specversion_ is not None:
            raise Invalid("a CloudEvent")
        values = get(wire)
        fields = values[count:]
        for value in fields:  # as LineDecoder does: a call takes 50 ns more, `in INT64` 17 ns
            kind = type(value)
            if (kind is int and not -(2**63) <= value < 2**63) or (kind is float and not isfinite(value)):
                raise out_of_range(value)
        return record(time=first_field(*values[:count]), **dict(zip(names, fields)))

    return struct, build


def with_path(
    decode: Callable[[bytes, Limits], Decoded], path: str, record: type[Record]
) -> Callable[[bytes, Limits], Decoded]:
    """The decoder, with the parts of the request's path in the fields of their names.

    path: of the route, such as /ttn/{application}/*. Raises: TypeError if a field is missing.
    """
    names = [part[1] for part in VARYING.finditer(path) if part[1]]
    if not names or not {*names} <= {*record.__struct_fields__}:
        raise TypeError(f"path={path!r} names no fields of {record.__name__}")
    parts = iter(names)
    match = re.compile(re.sub(r"\[\^/\]\+", lambda _: f"(?P<{next(parts)}>[^/]+)", pattern(path))).fullmatch

    def decode_at(item: bytes, limits: Limits) -> Decoded:
        decoded = decode(item, limits)
        message = parse_message(item) if decoded.records else None
        found = match(message.path.rstrip("/") or "/") if message else None
        if not found:
            return decoded
        values = {name: unquote(text).replace("\0", "\ufffd") for name, text in found.groupdict().items()}
        records = [msgspec.structs.replace(record, **values) for record in decoded.records]
        return msgspec.structs.replace(decoded, records=records)

    return decode_at


def first_field(time: Time, ts: Time = None, timestamp: Time = None) -> int | None:
    """The time of a record: the first of its three fields that was sent, or None. Raises: Invalid."""
    if time is None:
        time = ts if ts is not None else timestamp
    if type(time) is int and 0 < time < END:  # as `nanoseconds`, without the call
        return time * SECOND
    return None if time is None or time == "" else nanoseconds(time)
