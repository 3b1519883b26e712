"""What all decoders share: the plain JSON object at once, everything else taken apart into single records.

A decoder is a pure function `decode(item, bounds)`. It never raises: what it cannot store it yields as a `Reject`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from sluice.streams import body as bodies
from sluice.streams.body import Budget, Remainder
from sluice.streams.message import START, Message, parse
from sluice.streams.record import Invalid, Limits, Record, Reject

Decode = Callable[[bytes, Limits], Iterable[Record | Reject]]
Result = Record | Reject

NUL = b"\\u0000"  # the only way to write one in JSON; PostgreSQL's text cannot hold it, SQLite's tools cut it off
REAL_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
BATCH = 1 << 20  # bytes that are decoded to a list at once, about 10 bytes of memory a byte
REASON = 200
SINGLE = 100  # rejects of one body that are buried each by itself
TOGETHER = 1 << 16  # bytes of the later ones that are buried as one
BAD = 50  # what a bad record costs of a body's work; a good one costs 1


class Decoder:
    """The decoder of one stream. A stream with formats of its own overrides `object`, `form`, `text` or `contents`.

    wire: the Struct that a plain JSON object is decoded to.
    build: makes the record of it. Raises: Invalid.
    bounded: the type of a record bounds its memory. Of others one may have `Limits.record` bytes.
    """

    bounded = True

    def __init__(self, wire: type, build: Callable[[Any], Record]) -> None:
        self.wire = wire
        self.build = build
        self.read: Callable[[bytes], Any] = msgspec.json.Decoder(wire).decode
        self.read_lines: Callable[[bytes], list[Any]] = msgspec.json.Decoder(wire).decode_lines
        self.read_array: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[wire]).decode  # type: ignore[valid-type]
        self.decode = self.fast()

    def fast(self) -> Decode:
        """`decode`: one plain JSON object without a look at what else it could be; all else goes the long way."""
        read, build, slow = self.read, self.build, self.judge

        def decode(item: bytes, bounds: Limits) -> Iterable[Result]:
            try:
                record = build(read(item))
            except Exception:  # not the plain case; the long way finds the reason if there is one
                return slow(item, bounds)
            return (record,) if item.find(NUL) < 0 else slow(item, bounds)

        if self.bounded:
            return decode
        return lambda item, bounds: decode(item, bounds) if len(item) <= bounds.record else slow(item, bounds)

    def judge(self, item: bytes, bounds: Limits) -> Iterator[Result]:
        """All records and rejects of an item; one reject of the whole item if nothing of it can be stored."""
        results = self.parse(item, bounds)
        reason = ""
        try:
            for result in results:
                if not isinstance(result, Reject):
                    break
                reason = reason or result.reason
            else:
                raise Invalid(reason or "no record in it")
        except Exception as error:  # what a user's record type raises is as good a reason as ours
            yield Reject(item, line(bodies.why(error)), True)
            return
        if reason:  # what was bad before the first good record was not kept, for it may be much: once more
            results = self.parse(item, bounds)
        else:
            yield result
        for result in results:
            yield result._replace(reason=line(result.reason)) if isinstance(result, Reject) else result

    def parse(self, item: bytes, bounds: Limits) -> Iterator[Result]:
        """Unpack an item: the kept head, gzip. Each reject's part has a head of its own again. Raises: Invalid."""
        message = parse(item)
        body = message.body if message else item
        if body.startswith(bodies.GZIP):
            body = bodies.inflate(body, bounds.inflated)
        elif body.startswith(bodies.ZSTD):
            raise Invalid("zstd: only gzip is understood")
        if message and not body.strip():
            body = message.query
        work = Budget(bounds)
        for result in few(self.contents(body, message, work), work):
            if isinstance(result, Reject):
                part = result.part
                # it was not packed and had no head, and must not look so alone
                if part.startswith((bodies.GZIP, bodies.ZSTD)) or START.match(part):
                    part = b"\n" + part
                result = Reject(message.head() + part if message else part, result.reason, False)
            yield result

    def contents(self, body: bytes, message: Message | None, work: Budget) -> Iterator[Result]:
        """The records of a plain body, as far as `work` lasts. Raises: Invalid if it is nothing at all."""
        body = body.removeprefix(bodies.BOM).strip()
        if not body:
            raise Invalid("empty")
        if body.startswith((b"{", b"[")):
            yield from self.json(body, message, work)
        else:
            yield from self.text(body, message, work)

    def json(self, body: bytes, message: Message | None, work: Budget) -> Iterator[Result]:
        """The records of a JSON object, of an array, or of NDJSON."""
        rows = body.count(b"\n") + 1
        array = body.startswith(b"[")
        if array and (batch := self.batch(self.read_array, body, work)):
            yield from batch
            return
        if not array and rows > 1 and len(batch := self.batch(self.read_lines, body, work)) == rows:
            yield from batch
            return
        try:
            bodies.check(body)
        except Invalid:
            if rows == 1:
                raise
            if array:  # lines only if they are arrays themselves, for else it is one array that is broken
                bodies.check(next(bodies.lines(body, work)))
            yield from self.rows(body, message, work)
            return
        for element in bodies.elements(body, work) if array else (body,):
            if isinstance(element, Remainder):
                yield Reject(b"[" + element, Remainder.reason, False)
            else:
                yield from self.single(element, message, work)

    def rows(self, body: bytes, message: Message | None, work: Budget) -> Iterator[Result]:
        """The records of a body whose every line is taken as if it had come alone."""
        for row in bodies.lines(body, work):
            if isinstance(row, Remainder):
                yield Reject(row, Remainder.reason, False)
                return
            try:
                yield from self.contents(row, message, work)
            except Exception as error:  # as in single
                yield Reject(row, bodies.why(error), False)

    def batch(self, read: Callable[[bytes], list[Any]], body: bytes, work: Budget) -> list[Record]:
        """All records at once if there is nothing but plain good ones, and not too many; else none."""
        if len(body) > BATCH or body.find(NUL) >= 0:
            return []
        try:
            wires = read(body)
            return [self.build(wire) for wire in wires] if len(wires) <= work.left else []
        except Exception:  # the long way finds which
            return []

    def single(self, part: bytes, message: Message | None, work: Budget) -> Iterator[Result]:
        """The records of one JSON value."""
        try:
            if not part.startswith(b"{"):
                raise Invalid("not a JSON object")
            try:
                if not self.bounded and len(part) > work.bounds.record:
                    raise Invalid(f"record larger than {work.bounds.record} bytes")
                record = self.build(self.read(part))
                if part.find(NUL) >= 0:
                    clean(record)
            except Exception as error:  # a format of its own perhaps
                yield from self.object(part, message, work, error)
            else:
                yield record
        except Exception as error:  # whatever a user's record type raises
            yield Reject(part if part.startswith(b"{") else b"[" + part + b"]", bodies.why(error), False)

    def object(self, part: bytes, message: Message | None, work: Budget, error: Exception) -> Iterable[Result]:
        """The records of a JSON object that is not the plain one for the reason `error`. Raises before it yields."""
        raise error

    def text(self, body: bytes, message: Message | None, work: Budget) -> Iterator[Result]:
        """The records of a body that does not begin as JSON: a form, or lines of anything."""
        if b"\n" in body:
            yield from self.rows(body, message, work)
        else:
            yield self.form(bodies.form(body, work.bounds))

    def form(self, fields: dict[str, str]) -> Record:
        """The record of a form. Raises: Invalid, or msgspec's errors."""
        return clean(self.build(msgspec.convert(fields, self.wire, strict=False)))


def few(results: Iterable[Result], work: Budget) -> Iterator[Result]:
    """The results, with all rejects after the first hundred put together as lines of larger parts.

    So a small compressed body of nothing but errors does not become a million letters.
    work: pays for each of them.
    """
    count = size = 0
    parts: list[bytes] = []
    reason = ""
    for result in results:
        if not isinstance(result, Reject):
            work.left -= 1
            yield result
            continue
        work.left -= BAD
        count += 1
        rest = result.reason is Remainder.reason
        if parts and (rest or size >= TOGETHER):
            yield Reject(b"\n".join(parts), reason, False)
            size, parts, reason = 0, [], ""
        if count <= SINGLE or rest:
            yield result
            continue
        reason = reason or result.reason
        # in JSON a newline is nothing but white space
        parts.append(result.part.replace(b"\n", b" ") if result.part.startswith((b"{", b"[")) else result.part)
        size += len(result.part)
    if parts:
        yield Reject(b"\n".join(parts), reason, False)


def clean(record: Record) -> Record:
    """The record, if no text in it has a NUL. Raises: Invalid."""
    if REAL_NUL.search(msgspec.json.encode(record)):
        raise Invalid("text with a NUL")
    return record


def line(reason: str) -> str:
    """A reason as one line that any database can hold."""
    text = " ".join(reason.replace("\0", " ").split())
    return text[:REASON].encode("utf-8", "replace").decode()
