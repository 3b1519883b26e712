"""Reads JSON objects of which one field may be odd: an optional field that has another type counts as not sent."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sluice.streams.body import ATTEMPT_COST, Budget
from sluice.streams.record import Invalid

T = TypeVar("T")
Scalar = int | float | str
MISSING = "missing: "
TEXT_BYTES = 100  # of what is shown as it was sent

read_scalar: Callable[[bytes], Scalar] = msgspec.json.Decoder(Scalar).decode


def struct_reader(kind: type[T]) -> Callable[[bytes, Budget], T]:
    """What decodes an object to a Struct. A field that has a default has it, if what was sent has another type.

    It decodes only what has the type of its field, so that it takes no more memory than the Struct. The second attempt
    at an object is paid for.
    Raises: Invalid and msgspec's errors, for a field without a default.
    """
    strict = msgspec.json.Decoder(kind).decode
    fields = msgspec.structs.fields(kind)  # type: ignore[arg-type]
    raw: Any = Raw | UnsetType
    parts = [(field.name, raw, msgspec.field(default=UNSET, name=field.encode_name)) for field in fields]
    read_parts = msgspec.json.Decoder(msgspec.defstruct("Parts", parts)).decode
    readers = [(field.name, field.encode_name, field.required, value_reader(field.type)) for field in fields]

    def read(part: bytes, budget: Budget) -> T:
        try:
            return strict(part)
        except msgspec.ValidationError:
            budget.left -= ATTEMPT_COST
            found: Any = read_parts(part)
        known: dict[str, Any] = {}
        for name, sent_name, required, read_value in readers:
            sent = getattr(found, name)
            if sent is UNSET:
                if required:
                    raise Invalid(MISSING + sent_name)
                continue
            try:
                known[name] = read_value(sent, budget)
            except Invalid as error:
                if required:
                    raise Invalid(MISSING + f"{sent_name}.{str(error).removeprefix(MISSING)}") from None
            except msgspec.DecodeError as error:
                if required:
                    raise msgspec.ValidationError(f"{error} - at `$.{sent_name}`") from None
        return kind(**known)

    return read


def value_reader(kind: Any) -> Callable[[Any, Budget], Any]:
    """What decodes a value of this type. A Struct in it is read as leniently."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    for option in options:
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            nested = struct_reader(option)
            return lambda sent, budget: (
                None if bytes(sent) == b"null" and len(options) > 1 else nested(bytes(sent), budget)
            )
    decode = msgspec.json.Decoder(kind).decode
    return lambda sent, budget: decode(sent)


def scalar_or_text(sent: Raw) -> Scalar | None:
    """A number or a text; None for null; anything else is the beginning of it, as it was sent."""
    written = bytes(sent)
    if written == b"null":
        return None
    try:
        return read_scalar(written)
    except msgspec.DecodeError:
        return written[:TEXT_BYTES].decode("utf-8", "replace")


def real_or_text(text: str) -> float | str:
    """A number of a JSON text; one that no database holds is a text."""
    number = float(text)
    return number if isfinite(number) else text


def text_or_json(sent: Raw) -> str | None:
    """A text as it is; None for null; anything else as its JSON. Raises: msgspec's errors."""
    written = bytes(sent)
    if written.startswith(b'"'):
        return msgspec.json.decode(written, type=str)
    return None if written == b"null" else written.decode()


def text_values(sent: dict[str, Raw] | None) -> dict[str, str]:
    """The texts of an object, each as `text_or_json`."""
    return {name: found for name, value in (sent or {}).items() if (found := text_or_json(value)) is not None}
