"""A stream of one's own: from nothing but a record type to a decoder."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from operator import attrgetter
from typing import Any, cast

import msgspec

from sluice.streams.record import Invalid, Record, Vote
from sluice.streams.times import Time, first

TIMES = ("time", "ts", "timestamp")


def ordered(record: type[Record]) -> type[Record]:
    """The record type with `time` before its own fields.

    msgspec puts the inherited `time` behind fields that are not keyword-only, and where a field stands cannot be
    changed later. So such a type is made anew, with its methods; one declared with kw_only=True is taken as it is.

    Raises: TypeError if it is not a type of records.
    """
    if not (isinstance(record, type) and issubclass(record, Record)):
        raise TypeError(f"{record!r} is not a subclass of sluice.Record")
    if record.__struct_fields__[0] == "time":
        return record
    fields = [field for field in msgspec.structs.fields(record) if field.name != "time"]
    ours = {"__annotations__", "__slots__", "__weakref__", "__dict__", *vars(Vote), *record.__struct_fields__}
    methods: dict[str, Any] = {}
    for base in reversed(record.__mro__[: record.__mro__.index(Record)]):
        methods |= {name: value for name, value in vars(base).items() if name not in ours or name == "__doc__"}
    made = msgspec.defstruct(
        record.__name__,
        [(field.name, field.type, again(field)) for field in fields],
        bases=(Record,),
        module=record.__module__,
        namespace=methods,
        kw_only=True,
    )
    return cast("type[Record]", made)


def again(field: msgspec.structs.FieldInfo) -> Any:
    """A field as `defstruct` takes it."""
    given = {"default": field.default, "default_factory": field.default_factory}
    return msgspec.field(name=field.encode_name, **{k: v for k, v in given.items() if v is not msgspec.NODEFAULT})


def wire(record: type[Record]) -> tuple[type[msgspec.Struct], Callable[[Any], Record]]:
    """What a plain object is decoded to, with `time` as clients write it, and the builder of the record."""
    own = [field for field in msgspec.structs.fields(record) if field.name != "time"]
    names = tuple(field.name for field in own)
    taken = {field.encode_name for field in own}
    times = [name for name in TIMES if name not in taken]
    struct = msgspec.defstruct(
        record.__name__,
        [(field.name, field.type, again(field)) for field in own]
        + [(f"{name}_", Time, msgspec.field(default=None, name=name)) for name in times],
        kw_only=True,
    )
    get = attrgetter(*(f"{name}_" for name in times), *names)
    count = len(times)

    def build(wire: Any) -> Record:
        values = get(wire)
        given = dict(zip(names, values[count:]))
        for value in given.values():
            kind = type(value)
            if (kind is int and not -(2**63) <= value < 2**63) or (kind is float and not isfinite(value)):
                raise Invalid(f"number out of range: {value!r:.40}")
        return record(time=first(*values[:count]), **given)

    return struct, build
