"""Decodes InfluxDB line protocol (InfluxData's reference, the grammar of its line-protocol library); a row per field:

name,tag=a,tag2=b field=1.5,other="text",n=3i 1766600000000000000

InfluxDB rejects a tag without a value, and NaN. Here the first counts as not sent, and the second as in other formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sluice.contrib.formats import graphite
from sluice.contrib.formats.charges import BRACKETS, charge_attempt, charge_rows
from sluice.contrib.formats.parts import encoded_size
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty, Remainder
from sluice.streams.message import Message
from sluice.streams.metrics import NOT_FINITE, state_field
from sluice.streams.record import INT64, UINT64, Invalid, Metric, Reject
from sluice.streams.times import SECOND

HEADS = 1024  # parsed names and tags that are kept: lines with the same ones often follow each other
MAX_HEAD = 512  # bytes of a name and tags that are kept

# Nanoseconds of a unit, by its names. Those in full are of version 3, whose default is `auto`
SCALES = dict.fromkeys(("", "n", "ns", "nanosecond"), 1) | dict.fromkeys(("u", "us", "µ", "microsecond"), 10**3)
SCALES |= {"ms": 10**6, "millisecond": 10**6, "s": SECOND, "second": SECOND}
SCALES |= {"m": 60 * SECOND, "h": 3600 * SECOND, "auto": 0}
# The unit of a timestamp with `auto`, by its size, as InfluxDB 3 (influxdb3_write, `guess_precision`)
GUESSES = (5 * 10**9, SECOND), (5 * 10**12, 10**6), (5 * 10**15, 10**3)
VERSION_3 = "/api/v3/write_lp"
BOOLEANS = {"t": 1, "T": 1, "true": 1, "True": 1, "TRUE": 1, "f": 0, "F": 0, "false": 0, "False": 0, "FALSE": 0}

NUMBERLESS = {written.lower(): name for written, name in NOT_FINITE.items()}

# a line ends with a newline that is not in a quoted string; only the = of a field starts a quoted string
LINE = re.compile(
    rb"""[\ \t\r\x0b\x0c]*+(?: \#[^\n]*+
           | (?:[^\ \\\n]++|\\++[^\\\n])*+ (?:[^="\n]++|="(?:[^"\\]++|\\.)*+"|[="])*+ )""",
    re.DOTALL | re.VERBOSE,
)
PLAIN_LINE = re.compile(rb"[^\n]++")
# no possessive groups here: before 3.11.5 (Debian 12 has 3.11.2) CPython does not backtrack correctly after one fails
NAME = r"(?:[^, \\]++|\\++[^\\])+"
KEY = r"(?:[^,= \\]++|\\++[^\\])+"
HEAD = re.compile(rf"({NAME})((?:,{KEY}=(?:{KEY})?)*),?")
TAG = re.compile(rf",({KEY})=({KEY})?")
FIELD = re.compile(rf'({KEY})=("(?:[^"\\]++|\\.)*+"|[^", ][^, ]*+)(,?)', re.DOTALL)
TIME = re.compile(r"(?: +(-?[0-9]+))? *")
GAP = re.compile(r" +")
FLOAT = re.compile(r"-?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
INTEGER = re.compile(r"-?[0-9]++")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
CONTROL_IN_BODY = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
IN_NAME = re.compile(r"\\([, ])")
IN_KEY = re.compile(r"\\([,= ])")
IN_TEXT = re.compile(r'\\(["\\])')

REMEDY = "; a line is NAME FIELD=VALUE TIME (line protocol) or NAME VALUE TIME (Graphite)"
Head = tuple[str, dict[str, str], int]  # name, tags, and the bytes that a row has of both


def decode(body: bytes, message: Message | None, budget: Budget) -> Iterator[Metric | Reject]:
    """The fields of all points, until the budget is used up. An invalid field makes its line invalid.

    The query string of the message has the unit of the timestamps. Raises: Invalid; Empty.
    """
    if not body:  # a test of the connection
        raise Empty
    unit = unit_of(message) if message else 1
    body = body.removeprefix(bodies.BOM)
    heads: dict[str, Head] = {}
    empty = 0
    plain = not CONTROL_IN_BODY.search(body)
    longest = budget.limits.record // 4  # the tags of a line take up to 100 bytes of memory per byte
    for match in (LINE if b'"' in body else PLAIN_LINE).finditer(body):
        raw = match[0]
        if not raw:  # a newline after another
            empty += 1
            budget.left -= not empty % BRACKETS
            if budget.left > 0:
                continue
        if budget.left <= 0:
            yield Reject(replayable(body[match.start() :]), Remainder.reason)
            return
        try:
            if len(raw) > longest:
                raise Invalid(f"line longer than {longest} bytes")
            text = raw.strip().decode()
            if not text or text[0] == "#":
                budget.left -= 1
                continue
            try:
                metrics, size = parse_point(text, unit, heads, plain)
            except Invalid as error:
                if message or " " not in text:
                    raise
                charge_attempt(budget, len(raw))
                if (other := graphite.row(text)) is None:
                    raise Invalid(f"{error}{'' if '=' in text else REMEDY}") from None
                metrics, size = [other], 0
            if len(metrics) > 1:
                charge_rows(budget, len(metrics), size)
        except (UnicodeDecodeError, Invalid) as error:
            yield Reject(replayable(raw), bodies.reject_reason(error))
        else:
            yield from metrics


def replayable(part: bytes) -> bytes:
    """An invalid part, after a comment if a replay would take it for another format."""
    other = part.startswith(bodies.BOM) or bodies.is_form(part, b"name") or part.lstrip()[:1] in b"{["
    return b"#\n" + part if other else part


def unit_of(message: Message) -> int:
    """Nanoseconds of one unit of the timestamps; 0: each says its own. Raises: Invalid."""
    precision = message.parameter("precision") or "auto" * message.path.endswith(VERSION_3)
    if precision not in SCALES:
        raise Invalid(f"unknown precision: {precision!r:.40}")
    return SCALES[precision]


def parse_point(text: str, unit: int, heads: dict[str, Head], plain: bool) -> tuple[list[Metric], int]:
    """The fields of one line, and the bytes that each has of its name and tags.

    heads: names and tags parsed before.
    plain: the body has no control characters.
    Raises: Invalid.
    """
    if "\\" in text or '"' in text or "  " in text:
        return parse_escaped(text, unit, heads)
    first, _, rest = text.partition(" ")
    fields, _, stamp = rest.partition(" ")
    name, tags, size = heads.get(first) or parse_head(first, heads)
    time = parse_time(stamp, unit) if stamp else None
    metrics = []
    for pair in fields.split(","):
        key, _, written = pair.partition("=")
        if not key or not written:
            raise Invalid(f"not a field: {pair!r:.60}" if fields else "no field")
        value, kind = parse_number(written)
        if kind == "string":
            key = state_field(key)
        metrics.append(Metric(time=time, name=name, tags=tags, field=key, value=value, type=kind))
    if not plain and CONTROL.search(fields):
        raise Invalid("control character in a field's name")
    return metrics, size


def parse_escaped(text: str, unit: int, heads: dict[str, Head]) -> tuple[list[Metric], int]:
    """`parse_point` for a line with escapes or quotes, by the full grammar."""
    head = HEAD.match(text)
    if head and head.end() == len(text):
        raise Invalid("no field")
    if not head or not (gap := GAP.match(text, head.end())):
        raise Invalid(f"not a name and tags: {text!r:.60}")
    name, tags, size = heads.get(head[0]) or parse_head(head[0], heads)
    at = gap.end()
    fields: list[tuple[str, float | int | str, str]] = []
    comma = ","
    while comma:
        field = FIELD.match(text, at)
        if not field:
            raise Invalid(f"not a field: {text[at:]!r:.60}")
        key, written, comma = field.groups()
        if not key.isprintable() and CONTROL.search(key):
            raise Invalid("control character in a field's name")
        found, kind = parse_value(written)
        key = unescape(IN_KEY, key)
        fields.append((state_field(key) if kind == "string" and written[0] != '"' else key, found, kind))
        at = field.end()
    stamp = TIME.fullmatch(text, at)
    if not stamp:
        raise Invalid(f"not a timestamp: {text[at:]!r:.60}")
    time = parse_time(stamp[1], unit) if stamp[1] else None
    return [Metric(time=time, name=name, tags=tags, field=key, value=v, type=kind) for key, v, kind in fields], size


def unescape(escapes: re.Pattern[str], text: str) -> str:
    return escapes.sub(r"\1", text) if "\\" in text else text


def parse_head(head: str, heads: dict[str, Head]) -> Head:
    """Name and tags of the first part of a line; kept in `heads`. Raises: Invalid."""
    match = HEAD.fullmatch(head)
    if not match:
        raise Invalid(f"not a name and tags: {head!r:.60}")
    if CONTROL.search(head):
        raise Invalid("control character in a name or tag")
    pairs = [pair for pair in TAG.findall(match[2]) if pair[1]]  # many senders write a tag that they do not know so
    tags = {unescape(IN_KEY, key): unescape(IN_KEY, value) for key, value in pairs}
    if len(tags) < len(pairs):
        raise Invalid("duplicate tag")
    name = unescape(IN_NAME, match[1])
    parsed = name, tags, encoded_size(tags, name)
    if len(head) <= MAX_HEAD:
        if len(heads) >= HEADS:
            heads.clear()
        heads[head] = parsed
    return parsed


def parse_time(stamp: str, unit: int) -> int:
    """Nanoseconds since 1970 of a timestamp in this unit (0: see `GUESSES`).

    Raises: Invalid if it is not one, or exceeds 64 bits.
    """
    if len(stamp) < 20 and stamp.isdecimal() and stamp.isascii():
        number = int(stamp)
    elif INTEGER.fullmatch(stamp):
        number = parse_integer(stamp, "timestamp", INT64)
    else:
        raise Invalid(f"not a timestamp: {stamp!r:.60}")
    time = number * (unit or next((unit for end, unit in GUESSES if abs(number) < end), 1))
    if time not in INT64:
        raise Invalid("timestamp out of range")
    return time


def parse_value(written: str) -> tuple[float | int | str, str]:
    if written[0] != '"':
        return parse_number(written)
    text = unescape(IN_TEXT, written[1:-1])
    if "\0" in text:
        raise Invalid("text with a NUL")
    return text, "string"


def parse_number(written: str) -> tuple[float | int | str, str]:
    """The value of a field that is not a quoted string, and its type; a text, if it is no finite number.

    Raises: Invalid.
    """
    digits, suffix = written[:-1], written[-1]
    if suffix == "i" and len(digits) < 19 and digits.isdecimal() and digits.isascii():  # most integers
        return int(digits), "integer"
    if FLOAT.fullmatch(written):
        real = float(written)
        if real - real != 0:  # infinite
            raise Invalid("float out of range")
        return real, "float"
    if suffix == "i" and INTEGER.fullmatch(digits):
        return parse_integer(digits, "integer", INT64), "integer"
    if suffix == "u" and INTEGER.fullmatch(digits) and digits[0] != "-":
        count = parse_integer(digits, "unsigned integer", UINT64)
        return count if count in INT64 else str(count), "unsigned"
    if written in BOOLEANS:
        return BOOLEANS[written], "boolean"
    if name := NUMBERLESS.get(written.lower()):
        return name, "string"
    raise Invalid(f"not a value: {written!r:.60}")


def parse_integer(digits: str, what: str, fits: range) -> int:
    """An integer of any sign. Raises: Invalid if it is not in this range; `int` does not take any number of digits."""
    size = digits.lstrip("-0")
    if len(size) <= 20 and (number := int(size or "0") * (-1 if digits[0] == "-" else 1)) in fits:
        return number
    raise Invalid(f"{what} out of range")
