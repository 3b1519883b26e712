"""Splits JSON that is nearly an array or NDJSON: objects that follow each other on one line, or are indented."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from sluice.contrib.formats.charges import BRACKETS
from sluice.contrib.formats.parts import decode_parts
from sluice.streams import body as bodies
from sluice.streams.body import LINE, STRING, Budget, Remainder
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid

Part = Callable[[bytes, "Message | None", Budget], Iterable[Result]]

BRACKET = re.compile(rb"(?:[^\"{}\[\]]++|" + STRING + rb")*+([{}\[\]])", re.DOTALL)
TOGETHER = re.compile(rb"\}[ \t\r]*+\{")


def walk_json(body: bytes, message: Message | None, budget: Budget, value: Part, alone: Part) -> Iterable[Result]:
    """The results of a JSON value, of an array, or of values that follow each other, mostly one a line.

    value: decodes a JSON value. alone: decodes a line as if it were a body.
    Raises, before it yields: Invalid if the body is none of these; what `value` raises for the only value.
    """
    try:
        bodies.check_json(body)
    except Invalid:
        if b"\n" not in body:
            if not (objects := adjacent_objects(body, budget)):
                raise
            return decode_parts(objects, lambda part: alone(part, message, budget), budget)
        if body.startswith(b"["):  # lines only if the first is an array by itself; else it is an array with a mistake
            bodies.check_json(next(bodies.split_lines(body, budget)))
        return walk_rows(body, message, budget, value, alone)
    if body.startswith(b"["):
        elements = bodies.split_elements(body, budget)
        return decode_parts(elements, lambda part: value(part, message, budget), budget, b"[", b"]")
    return value(body, message, budget)


def walk_rows(body: bytes, message: Message | None, budget: Budget, value: Part, alone: Part) -> Iterator[Result]:
    """The results of lines, and of JSON objects of several lines. value, alone: as above."""

    def decode(row: bytes) -> Iterable[Result]:
        if b"\n" not in row:
            return alone(row, message, budget)
        bodies.check_json(row)
        return value(row, message, budget)

    return decode_parts(split_rows(body, budget), decode, budget)


def split_rows(body: bytes, budget: Budget) -> Iterator[bytes]:
    """As `split_lines`, but an object that a program has indented (`jq .`, journald's json-pretty) is one part."""
    if b"\n}" in body:
        return bodies.split_parts(body, row_places(body, budget), budget)
    return bodies.split_lines(body, budget)


def row_places(body: bytes, budget: Budget) -> Iterator[tuple[int, int]]:
    """Where the rows of a body are: each line, but those from one that begins with { to the next one that is } are one,
    unless another of them begins with {, or they are longer than a record.
    """
    opened, count = -1, 0  # where the lines from such a { begin, and how many they are
    at = end = 0
    for match in LINE.finditer(body):
        (at, end), line = match.span(), match[0].rstrip()
        opens = line.startswith(b"{")
        is_last = opened >= 0 and line == b"}"
        if opened >= 0 and not is_last and not opens and end - opened <= budget.limits.record:
            count += 1
            budget.left -= not count % BRACKETS
            if budget.left <= 0:
                break
            continue
        if is_last:
            yield opened, end
            opened = -1
            continue
        if opened >= 0:
            yield from map(re.Match.span, LINE.finditer(body, opened, at))
        opened = at if opens and not line.endswith(b"}") else -1
        if opened < 0:
            yield at, end
    if opened >= 0:
        yield from map(re.Match.span, LINE.finditer(body, opened))


def adjacent_objects(line: bytes, budget: Budget) -> list[bytes]:
    """The objects of a line that follow each other, as in Fluent Bit's json_stream. Empty: the line is no such thing.

    A damaged object is a part with all that follows it.
    """
    found: list[bytes] = []
    at = start = depth = count = 0
    if not TOGETHER.search(line):
        return found
    while budget.left > len(found) and (match := BRACKET.match(line, at)):
        at = match.end()
        depth += 1 if match[1] in b"{[" else -1
        count += 1
        budget.left -= not count % BRACKETS
        if depth <= 0:
            found.append(line[start:at].strip())
            start, depth = at, 0
    if rest := line[start:].strip():
        found.append(Remainder(rest) if budget.left <= len(found) else rest)
    return found if len(found) > 1 and all(part.startswith(b"{") for part in found) else []
