"""Bodies taken apart: gzip, JSON arrays, NDJSON and forms, in bounded memory and with no byte lost on the way."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from urllib.parse import parse_qsl

import msgspec

from sluice.streams.record import Invalid, Limits

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
BOM = b"\xef\xbb\xbf"
CHUNK = 1 << 16

STRING = rb'"(?:[^"\\]++|\\.)*+"'
TEXT = re.compile(STRING, re.DOTALL)
SCALAR = re.compile(rb"[^,\] \t\r\n]++")
FLAT = re.compile(rb"\{(?:[^\"{}\[\]]++|" + STRING + rb")*+\}", re.DOTALL)
BRACKET = re.compile(rb"(?:[^\"{}\[\]]++|" + STRING + rb")*+([{}\[\]])", re.DOTALL)
GAP = re.compile(rb"[ \t\r\n,]*+")
LINE = re.compile(rb"[^\n]++")

skip = msgspec.json.Decoder(msgspec.Raw).decode


class Remainder(bytes):
    """The part of a body behind what a body may cost. It was not looked at."""

    reason = "more than one body may hold: this was not looked at"


class Budget:
    """What a body may still cost, in records. Without it 8 KB of gzip take ten seconds that others wait for."""

    __slots__ = ("bounds", "left")

    def __init__(self, bounds: Limits) -> None:
        self.bounds = bounds
        self.left = bounds.records


def inflate(data: bytes, most: int) -> bytes:
    """The content of a gzip file (RFC 1952) of one or more members, zeros behind them allowed.

    most: bytes of content at most.
    Raises: Invalid if it is damaged, cut short, too large, or followed by something else.
    """
    out: list[bytes] = []
    size = at = 0
    while at < len(data):
        member = zlib.decompressobj(31)
        while not member.eof:
            chunk = data[at : at + CHUNK]
            if not chunk:
                raise Invalid("gzip: cut short")
            try:
                out.append(member.decompress(chunk, most + 1 - size))
            except zlib.error as error:
                raise Invalid(f"gzip: {error}") from None
            size += len(out[-1])
            if size > most:
                raise Invalid(f"gzip: inflates to more than {most} bytes")
            at += len(chunk) - len(member.unconsumed_tail) - len(member.unused_data)
        if not data.startswith(GZIP, at):
            if data[at:].strip(b"\0"):
                raise Invalid("gzip: something else behind it")
            break
    return b"".join(out)


def check(text: bytes) -> None:
    """See whether a text is one JSON value, without building it. Raises: Invalid."""
    try:
        skip(text)
    except Exception as error:
        raise Invalid(why(error)) from None


def why(error: Exception) -> str:
    """The reason that an exception of a decoder makes, its kind first."""
    text = str(error)
    if isinstance(error, Invalid):
        return text
    if isinstance(error, RecursionError):
        return "not JSON: nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason}"
    if isinstance(error, msgspec.ValidationError):
        if match := re.fullmatch(r"Object missing required field `(.*?)`(?: - at `\$\.?(.*)`)?", text):
            return f"missing: {match[2] + '.' if match[2] else ''}{match[1]}"
        return f"wrong type or range: {text}"
    if isinstance(error, msgspec.DecodeError):
        return "not JSON: " + text.removeprefix("JSON is malformed: ")
    return f"{type(error).__name__}: {text}"


def elements(array: bytes, work: Budget) -> Iterator[bytes]:
    """The elements of a JSON array, as they were written; a Remainder when `work` is used up.

    The array must have passed `check`.
    """
    at = array.index(b"[") + 1
    while True:
        gap = GAP.match(array, at)
        assert gap
        start = at = gap.end()
        opening = array[at : at + 1]
        if opening == b"]":
            return
        if found := (TEXT if opening == b'"' else FLAT if opening == b"{" else SCALAR).match(array, at):
            at = found.end()
        if opening == b"[" or not found:
            at, depth, count = start, 0, 0
            while (depth or at == start) and work.left > 0:
                found = BRACKET.match(array, at)
                assert found
                depth += 1 if found[1] in b"{[" else -1
                at = found.end()
                count += 1
                work.left -= not count % 4  # four take as long as a record
        if work.left <= 0:
            yield Remainder(array[start:])
            return
        yield array[start:at]


def lines(body: bytes, work: Budget) -> Iterator[bytes]:
    """The lines of a body that are not empty, without white space around them; a Remainder when `work` is used up."""
    for found in LINE.finditer(body):
        if work.left <= 0:
            yield Remainder(body[found.start() :])
            return
        if line := found[0].strip():
            yield line
        else:
            work.left -= 1


def form(body: bytes, bounds: Limits) -> dict[str, str]:
    """The fields of a form (application/x-www-form-urlencoded, WHATWG URL Standard).

    Empty fields are left out, as an HTML form sends what was not filled in. Of two fields of a name the last counts.
    Raises: Invalid if it is not a form, not UTF-8 or too large.
    """
    if b"=" not in body:
        raise Invalid("neither JSON nor a form")
    if len(body) > bounds.record:  # taking %41%41%41 apart costs 15 bytes a byte
        raise Invalid(f"form larger than {bounds.record} bytes")
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=bounds.fields, errors="strict"))
    except UnicodeDecodeError as error:
        raise Invalid(f"not UTF-8: {error.reason}") from None
    except ValueError:
        raise Invalid(f"form has more than {bounds.fields} fields") from None
