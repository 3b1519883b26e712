"""Decodes Elasticsearch's bulk format (elastic.co, "Bulk API"): a line with an action, and a line with its document.

A document is a row of `logs`, with the index of its action as the attribute `_index`. `update` has the document in
`doc`. A deletion has no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from sluice.contrib.formats.log_fields import build_log
from sluice.contrib.formats.parts import decode_parts
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log

ACTIONS = {"index", "create", "update", "delete"}
raw_decode = json.JSONDecoder().raw_decode
read = msgspec.json.Decoder(dict[str, Any]).decode


def decode(body: bytes, message: Message, budget: Budget) -> Iterator[Result]:
    """The documents of a body; each invalid line is one reject."""
    path = message.path.strip("/").split("/")
    index = path[-2] if len(path) > 1 else ""

    def line(part: bytes) -> tuple[Log, ...]:
        nonlocal index
        if len(part) > budget.limits.record:
            raise Invalid(f"record larger than {budget.limits.record} bytes")
        try:
            sent = read(part)
        except msgspec.DecodeError:
            documents = several(part)
            if len(documents) < 2:
                raise
            return tuple(stored(each, part) for each in documents)
        if len(sent) == 1 and ACTIONS.issuperset(sent) and isinstance(about := next(iter(sent.values())), dict):
            index = str(about.get("_index") or index)
            raise Empty("action")
        if isinstance(sent.get("doc"), dict) and sent.keys() <= {"doc", "doc_as_upsert", "upsert", "detect_noop"}:
            sent = sent["doc"]
        return (stored(sent, part),)

    def stored(sent: dict[str, Any], part: bytes) -> Log:
        log = document(sent)
        if index:
            log.attributes.setdefault("_index", index)
            budget.charge_bytes(len(index))
        if NUL in part:
            check_text(log)
        return log

    return decode_parts(bodies.split_lines(body, budget), line, budget)


def several(line: bytes) -> list[dict[str, Any]]:
    """The objects of a line that has several, as Fluent Bit 1.9 writes them (fluent/fluent-bit#5132); [] if it has not.

    A line has at most as many bytes as a record may have.
    """
    found, text, at = [], line.decode("utf-8", "replace").strip(), 0
    try:
        while at < len(text):
            value, at = raw_decode(text, at)
            if not isinstance(value, dict):
                return []
            found.append(value)
            while text[at : at + 1].isspace():
                at += 1
    except (ValueError, RecursionError):
        return []
    return found


def document(sent: dict[str, Any]) -> Log:
    """The row of a document; one without a message has all of it as attributes. Raises: Invalid."""
    try:
        return build_log(sent)
    except Invalid:
        return build_log({"message": "", **sent})
