"""Makes messages of OTLP of their JSON: the JSON mapping of protobuf, but ids are hexadecimal.

What senders write otherwise is taken, too: enums by their names, odd ids and values, and the names of the protobuf.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec

from sluice.contrib.formats.json_repair import replace_tokens
from sluice.streams.body import Budget

Names = dict[str, msgspec.Raw]
# C++'s SDK writes the names of the protobuf unless told otherwise (opentelemetry-cpp, `use_json_name`)
SNAKE = re.compile(rb'\{\s*+"resource_')
SNAKE_BELOW = b'_unix_nano":', b'_value":'  # of a request that has only some of its names so
NAME = re.compile(rb'"[a-z]++(?:_[a-z]++){1,8}"(?=\s*+:)')  # none of the protobuf has more words
ODD = b"\xff" * 17  # before an id in JSON that is not hexadecimal: no id of 16 bytes begins so


def rename_fields(text: bytes, budget: Budget) -> bytes:
    """A request with the names of JSON. Raises: Exhausted."""
    is_snake = b"_" in text and (SNAKE.match(text) or any(part in text for part in SNAKE_BELOW))
    return replace_tokens(NAME, camel_name, text, budget) if is_snake else text


def camel_name(name: re.Match[bytes]) -> bytes:
    first, *others = name[0].split(b"_")
    return first + b"".join(map(bytes.capitalize, others))


def arguments(descriptor: Any, value: Any) -> dict[str, Any]:
    """The arguments that make a message of its JSON. Unknown fields and nulls are left out.

    An enum may be sent by its name; an unknown one becomes an attribute. An id that is not hexadecimal is kept as sent.
    protobuf's own json_format takes ten times as long, and takes ids for base64.
    Raises: TypeError, ValueError. The constructor raises them too, for values of other types.
    """
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    known, odd = converters(descriptor), []
    made: dict[str, Any] = {}
    for key, given in value.items():
        if given is None:
            continue
        if key not in known:
            if descriptor.name == "AnyValue":  # its value would be lost
                raise TypeError(f"not a value: {key}")
            continue
        name, convert, repeated = known[key]
        if repeated != isinstance(given, list):
            raise TypeError(f"{key} is {'not ' * repeated}an array")
        if convert is not None:
            given = [convert(element) for element in given] if repeated else convert(given)
            if type(given) is str:
                odd.append({"key": key, "value": {"string_value": given}})
                continue
        made[name] = given
    if odd and "attributes" in known:
        made["attributes"] = made.get("attributes", []) + odd
    elif odd and "message" in known:  # of a status
        made.setdefault("message", odd[0]["value"]["string_value"])
    return made


def lenient_arguments(descriptor: Any, value: Any) -> dict[str, Any]:
    """`arguments`, but an odd field becomes an attribute, as it was sent; it is left out if the message has none.

    Raises: TypeError if the message is no object.
    """
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    known, made, odd = converters(descriptor), dict[str, Any](), list[dict[str, Any]]()
    for key, given in value.items():
        if given is None or key not in known:
            continue
        field = descriptor.fields_by_camelcase_name[key]
        try:
            one = arguments(descriptor, {key: given})
            descriptor._concrete_class(**one)
        except (TypeError, ValueError, OverflowError):
            nested = field.message_type
            if nested and nested.name == "AnyValue":
                one = {field.name: {"string_value": as_sent(given)}}
            elif nested and field.is_repeated and isinstance(given, list):
                one = {field.name: [lenient_arguments(nested, part) for part in given if isinstance(part, dict)]}
            elif nested and isinstance(given, dict) and not field.is_repeated:
                one = {field.name: lenient_arguments(nested, given)}
            else:
                odd.append({"key": key, "value": {"string_value": as_sent(given)}})
                continue
        for name, content in one.items():
            made[name] = made.get(name, []) + content if name == "attributes" else content
    if odd and "attributes" in known:
        made["attributes"] = made.get("attributes", []) + odd
    return made


def as_sent(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@cache
def converters(descriptor: Any) -> dict[str, tuple[str, Callable[[Any], Any] | None, bool]]:
    """For the JSON name of each field: its name, what converts a value to the constructor's, whether it is repeated."""
    by_name = {}
    for field in descriptor.fields:
        convert: Callable[[Any], Any] | None = None  # a string or boolean
        if field.message_type:
            convert = partial(arguments, field.message_type)
        elif field.type == field.TYPE_BYTES:
            convert = hexadecimal if field.name.endswith("_id") else b64decode
        elif field.type == field.TYPE_DOUBLE:
            convert = float
        elif field.enum_type:
            convert = partial(enumerated, enum_numbers(field.enum_type))
        elif field.type not in (field.TYPE_STRING, field.TYPE_BOOL):
            convert = parse_integer
        by_name[field.json_name] = field.name, convert, field.is_repeated
    return by_name


def parse_integer(value: Any) -> int:
    """An integer; 64 bits are written as a string, by protobufjs in two halves (opentelemetry-js, issue 4216).

    Raises: ValueError, TypeError.
    """
    if isinstance(value, dict):
        low, high = value.get("low"), value.get("high")
        if isinstance(low, int) and isinstance(high, int):
            return (high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF
    number = int(value)
    if isinstance(value, float) and number != value:
        raise ValueError(f"not an integer: {value}")
    return number


def enum_numbers(enum: Any) -> dict[str, int]:
    """The numbers of an enum by its names, with and without what all of them begin with."""
    prefix = enum.values[0].name.rpartition("_")[0] + "_"
    numbers = {value.name: value.number for value in enum.values}
    return numbers | {name.removeprefix(prefix): number for name, number in numbers.items()}


def enumerated(numbers: dict[str, int], value: Any) -> int | str:
    """The number of an enum that was sent as a number or by its name; a name that is unknown as it was sent."""
    if not isinstance(value, str) or value.isdecimal():
        return parse_integer(value)
    return numbers.get(value.upper(), value)


def hexadecimal(value: str) -> bytes:
    """The bytes of an id; one that is not hexadecimal as it was sent, behind `ODD`. Raises: TypeError."""
    try:
        return bytes.fromhex(value)
    except ValueError:
        return ODD + value.encode()
