"""Splits bodies into records for the decoders: JSON arrays, NDJSON and forms, in bounded memory.

Each takes time in proportion to the body: no pattern has two quantifiers for the same characters side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl

import msgspec

from sluice.streams.record import Invalid, Limits

BOM = b"\xef\xbb\xbf"
INVALID_COST = 12  # records of the budget that an invalid one costs: rejecting it takes longer
INVALID_BYTES = 128  # of an invalid part that cost one record more: how far it was decoded is not known
ATTEMPT_COST = 1  # records that another attempt costs, with what reads a part more leniently
EMPTY_COST = 1  # records that a part without one costs
NESTED = 8  # objects and arrays that cost one record, in a body of many: an empty one takes 64 bytes of memory and more
GROWTH = 8  # bytes that a body may become beside `Limits.room`, for each of its own

STRING = rb'"(?:[^"\\]++|\\.)*+"'
TEXT = re.compile(STRING, re.DOTALL)
SCALAR = re.compile(rb"[^,\] \t\r\n]++")
FLAT = re.compile(rb"\{(?:[^\"{}\[\]]++|" + STRING + rb")*+\}", re.DOTALL)
GAP = re.compile(rb"[ \t\r\n,]*+")
LINE = re.compile(rb"[^\n]++")
TRAILING = re.compile(r"trailing characters \(byte (\d+)\)$")
NOT_JSON = "not JSON: "  # the reasons of what is no JSON begin so

skip = msgspec.json.Decoder(msgspec.Raw).decode


class Empty(Exception):
    """A part of a body, or all of it, is valid and has no record. It counts as stored.

    kind: a constant of a decoder, never sent text.
    """

    def __init__(self, kind: str = "empty") -> None:
        super().__init__(kind)
        self.kind = kind


class Remainder(bytes):
    """The part of a body after its last permitted record. It was not decoded."""

    reason = "too much in one body: the rest was not decoded"


class Budget:
    """What a body may still become. All decoders charge it by the same rule:

    A record costs one of `left`, a line or an element without one EMPTY_COST, an invalid one INVALID_COST. Whatever
    takes long costs its share before it is done, and also if it fails: a further attempt, tokens that are looked at,
    fields and brackets that are counted. Without this limit, 8 KB of gzip keep a worker busy for ten seconds. Bytes of
    the body that are written more than once (a dead letter, with the head and whatever stands before it; what several
    rows inherit) cost as many of `room`. Without this limit, 600 bytes of gzip become gigabytes. When either is used
    up, `left` is not positive: the rest of the body is one reject, a Remainder.

    size: bytes of the body, inflated. packed: bytes that may be inflated inside of it. nested: objects and arrays that
    are not counted; unread: bytes that are too few to have more.
    """

    __slots__ = ("left", "limits", "nested", "packed", "room", "size", "unread")

    def __init__(self, limits: Limits, size: int = 0) -> None:
        self.limits = limits
        self.size = size
        self.left = limits.records
        self.room = limits.room + GROWTH * size
        self.packed = limits.inflated
        self.nested = NESTED * limits.records
        self.unread = 2 * self.nested

    def charge_failure(self, size: int) -> None:
        """Pay for an invalid part of so many bytes."""
        self.left -= INVALID_COST + size // INVALID_BYTES

    def count_nested(self, text: bytes) -> None:
        """Find out, before a text is split, whether the objects and arrays of its parts have to be paid for."""
        self.unread -= len(text)
        if self.unread < 0 <= self.nested:
            self.nested -= text.count(b"{") + text.count(b"[")

    def charge_nested(self, part: bytes) -> None:
        """Pay for the objects and arrays of a part that is decoded."""
        self.left -= (part.count(b"{") + part.count(b"[")) // NESTED

    def charge_bytes(self, size: int) -> None:
        """Pay for bytes of the body that are written once more."""
        self.room -= size
        if self.room < 0:
            self.left = min(self.left, 0)

    def used_bytes(self) -> int:
        """Bytes of the body, and of what was written once more."""
        return self.size + max(0, self.limits.room + GROWTH * self.size - self.room)

    def charge_part(self, before: int) -> None:
        """Pay for a part of the body that is decoded. before: `left` before that; it is less if there was a record."""
        if self.left == before:
            self.left -= EMPTY_COST


def check_json(text: bytes) -> None:
    """Check that a text is one JSON value, without building it. Raises: Invalid."""
    try:
        skip(text)
    except Exception as error:
        raise Invalid(reject_reason(error)) from None


def is_json(text: bytes) -> bool:
    try:
        check_json(text)
    except Invalid:
        return False
    return True


def reject_reason(error: Exception) -> str:
    """The reason that a dead letter gets for an exception of a decoder; the kind of error comes first."""
    text = str(error)
    if isinstance(error, Invalid) or (type(error) is ValueError and text):
        return text
    if isinstance(error, RecursionError):
        return NOT_JSON + "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason}"
    if isinstance(error, msgspec.ValidationError):
        if match := re.fullmatch(r"Object missing required field `([^`]*+)`(?: - at `\$\.?(.*)`)?", text):
            return f"missing: {match[2] + '.' if match[2] else ''}{match[1]}"
        return f"wrong type or range: {text}"
    if isinstance(error, msgspec.DecodeError):
        return NOT_JSON + text.removeprefix("JSON is malformed: ")
    return f"{type(error).__name__}: {text}"


def split_elements(array: bytes | memoryview, budget: Budget) -> Iterator[bytes]:
    """The elements of a JSON array, byte for byte; a Remainder once the budget is used up.

    The array must have passed `check_json`.
    """
    view = memoryview(array)
    before = GAP.match(view)
    assert before
    at = before.end() + 1  # behind the bracket
    while True:
        gap = GAP.match(view, at)
        assert gap
        start = gap.end()
        opening = bytes(view[start : start + 1])
        if opening == b"]":
            return
        if (left := budget.left) <= 0:
            yield Remainder(view[start:])
            return
        flat = None if opening == b"[" else TEXT if opening == b'"' else FLAT if opening == b"{" else SCALAR
        if flat and (match := flat.match(view, start)):
            at = match.end()
            yield bytes(view[start:at])
        else:
            at = start + end_of_value(view[start:])
            yield bytes(view[start:at]).rstrip()
        budget.charge_part(left)


def end_of_value(text: memoryview) -> int:
    """Where the first JSON value of a text ends: msgspec skips it, and names the place of what is behind it."""
    try:
        skip(text)
    except msgspec.DecodeError as error:
        if found := TRAILING.search(str(error)):
            return int(found[1]) - 1
        raise
    return len(text)


def split_lines(body: bytes, budget: Budget) -> Iterator[bytes]:
    """The lines of a body that are not empty, as `split_parts`."""
    return split_parts(body, map(re.Match.span, LINE.finditer(body)), budget)


def split_parts(body: bytes, places: Iterable[tuple[int, int]], budget: Budget) -> Iterator[bytes]:
    """The parts at these places, without white space around them; a Remainder once the budget is used up."""
    for at, end in places:
        if (left := budget.left) <= 0:
            yield Remainder(body[at:])
            return
        if part := body[at:end].strip():
            yield part
            budget.charge_part(left)
        else:
            budget.left -= 1


def is_form(body: bytes, name: bytes) -> bool:
    """Whether a body is one line without a space, as forms encode it, that has a field of this name."""
    line = body.strip()
    return b" " not in line and b"\n" not in line and (line.startswith(name + b"=") or b"&%b=" % name in line)


class Form(dict[str, str]):
    """The fields of a form, each with its last value. pairs: all of them, in the order in which they were sent."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def decode_form(body: bytes, limits: Limits) -> Form:
    """The fields of a form (application/x-www-form-urlencoded, WHATWG URL Standard).

    Omits empty fields: an HTML form sends them for inputs left blank.
    Raises: Invalid if the body is not a form, not UTF-8, or too large.
    """
    if b"=" not in body:
        raise Invalid("neither JSON nor a form")
    if len(body) > limits.record:  # decoding %41%41%41 takes 15 bytes of memory per byte
        raise Invalid(f"form larger than {limits.record} bytes")
    try:
        return Form(parse_qsl(body.decode(), max_num_fields=limits.fields, errors="strict"))
    except UnicodeDecodeError as error:
        raise Invalid(f"not UTF-8: {error.reason}") from None
    except ValueError:
        raise Invalid(f"form has more than {limits.fields} fields") from None
