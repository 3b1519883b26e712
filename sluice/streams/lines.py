"""Decodes lines of a user's own format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite

import msgspec

from sluice.base.override import override
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Remainder
from sluice.streams.decoder import Decoder, Result, check_text, out_of_range
from sluice.streams.message import Message
from sluice.streams.record import INT64, Invalid, Limits, Record, Reject


class LineDecoder(Decoder):
    """parse: makes a record of type `record` from a line without surrounding white space. Raises: ValueError."""

    def __init__(self, record: type[Record], parse: Callable[[bytes], Record]) -> None:
        self.record = record
        self.parse = parse

    @override
    def decode_contents(self, body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
        body = body.removeprefix(bodies.BOM).strip() or (message.query if message else b"")
        for line in bodies.split_lines(body, budget):
            if isinstance(line, Remainder):
                yield Reject(line, Remainder.reason)
                return
            try:
                record = self.decode_line(line, budget.limits)
            except Exception as error:  # any exception of the user's parser
                # so that a replay does not remove a byte order mark that was not at the start of the body
                yield Reject(b"\n" + line if line.startswith(bodies.BOM) else line, bodies.reject_reason(error))
            else:
                yield record

    def decode_line(self, line: bytes, limits: Limits) -> Record:
        if len(line) > limits.record:
            raise Invalid(f"line longer than {limits.record} bytes")
        record = self.parse(line)
        if type(record) is not self.record:
            raise Invalid(f"the parser returned {type(record).__name__}, not {self.record.__name__}")
        for value in msgspec.structs.astuple(record):
            kind = type(value)
            if (kind is int and value not in INT64) or (kind is float and not isfinite(value)):
                raise out_of_range(value)
        return check_text(record)
