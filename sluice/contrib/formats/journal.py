"""Decodes the export format of systemd's journal (systemd.io/JOURNAL_EXPORT_FORMATS), which its upload service posts.

An entry is a row of `logs`, the same as that of its JSON (`journalctl -o json`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sluice.contrib.formats.log_fields import build_log
from sluice.contrib.formats.parts import decode_parts
from sluice.streams.body import Budget, Remainder
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Limits, Log

GAP = re.compile(rb"\n*+")
FIELDS = 8  # of an entry that cost one record
SIZE = 8  # bytes of the length of a binary value


def decode(body: bytes, message: Message, budget: Budget) -> Iterator[Result]:
    """The entries of a body; each invalid one is one reject."""
    return decode_parts(split_entries(body, budget), lambda entry: (entry_log(entry, budget.limits),), budget)


def split_entries(body: bytes, budget: Budget) -> Iterator[bytes]:
    """The entries of a body; a truncated one is the last. A Remainder once the budget is used up."""
    at = 0
    while True:
        gap = GAP.match(body, at)
        assert gap
        start = at = gap.end()
        if start == len(body):
            return
        if (left := budget.left) <= 0:
            yield Remainder(body[start:])
            return
        count = 0
        while at < len(body) and not body.startswith(b"\n", at):
            at = parse_field(body, at)[2]
            count += 1
            budget.left -= not count % FIELDS
            if budget.left <= 0:
                yield Remainder(body[start:])
                return
        yield body[start:at]
        budget.charge_part(left)


def parse_field(body: bytes, at: int) -> tuple[bytes, bytes, int]:
    """The name, the value and the end of a field: NAME=VALUE, or NAME alone, then the length of the value and it.

    The end of a truncated one is behind the body.
    """
    end = body.find(b"\n", at)
    line = body[at:] if end < 0 else body[at:end]
    name, equals, value = line.partition(b"=")
    if equals:
        return name, value, at + len(line) + 1
    start = at + len(line) + 1 + SIZE
    after = start + int.from_bytes(body[start - SIZE : start], "little")
    return name, body[start:after], min(max(after, start), len(body) + 1) + 1


def entry_log(entry: bytes, limits: Limits) -> Log:
    """The row of an entry. Raises: Invalid."""
    if len(entry) > limits.record:
        raise Invalid(f"entry larger than {limits.record} bytes")
    sent: dict[str, list[str]] = {}
    at = 0
    while at < len(entry):
        name, value, at = parse_field(entry, at)
        sent.setdefault(decode_text(name), []).append(decode_text(value))
    if at > len(entry) + 1:
        raise Invalid("entry of the journal: truncated")
    # as in JSON, several values are an array
    return build_log({name: values if len(values) > 1 else values[0] for name, values in sent.items()})


def decode_text(value: bytes) -> str:
    """A value as text. It may be of any bytes."""
    return value.decode("utf-8", "replace").replace("\0", "\ufffd")
