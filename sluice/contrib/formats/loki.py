"""Decodes what Loki's clients push (its HTTP API, "Ingest logs"): JSON, or protobuf in a snappy block.

A stream may also have the shape of Loki before 1.0, `labels` and `entries`, which python-logging-loki sends unless told
otherwise; Fluentd's plugin sends its labels as an object. A body is JSON if its Content-Type says so, else it is
protobuf, as for Loki (pkg/loghttp/push, ParseRequest): tracing-loki calls it application/x-snappy. So may be one that
only looks like JSON. Labels, metadata and lines that are no texts (winston-loki, Node-RED) are stored as their JSON.
The protobuf messages are in `loki.proto`. Labels and structured metadata become attributes of each line: a
table of streams, as in Loki, would save 50 to 100 bytes a row, and each query would need a join.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import cramjam
import msgspec
from google.protobuf.message import DecodeError

from sluice.contrib.formats.charges import BRACKETS, charge_attempt
from sluice.contrib.formats.lenient_json import text_or_json, text_values
from sluice.contrib.formats.log_fields import stored_level, take_first
from sluice.contrib.formats.parts import Refused, array_reader, check_texts, encoded_size, json_array
from sluice.contrib.formats.protobuf import encode_field, load_messages, parse_message, split_fields, uncompress
from sluice.contrib.formats.register import SNAPPY
from sluice.contrib.formats.rpc_status import PROTOBUF
from sluice.http.routes import JSON
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty, Remainder
from sluice.streams.message import Message
from sluice.streams.record import INT64, Invalid, Log, Reject
from sluice.streams.times import SECOND, nanoseconds_of

messages = load_messages("loki")
STREAMS = LABELS = 1  # numbers of the fields of a request and of a stream
ENTRIES = 2
SERVICES = "service_name", "service"
LEVELS = "level", "detected_level", "severity"

LABEL = re.compile(r'\s*+([^\s,={}"]++)\s*+=\s*+"((?:[^"\\]++|\\.)*+)"\s*+(,?)', re.DOTALL)
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
LETTERS = dict(zip("abfnrtv", "\a\b\f\n\r\t\v"))

NO_STREAMS = re.compile(rb'\s*+\{\s*+"streams"\s*+:\s*+null\s*+\}\s*+')  # of a sender in Go that has none (UnPoller)
OBJECT = re.compile(rb'[ \t\r\n]*+\{[ \t\r\n]*+["}]')
# Nanoseconds since 1970. Senders write seconds, milliseconds and microseconds, too, which would be days in 1970
TIME = re.compile(r"[0-9]{17,19}|[0-9]{1,8}|-[0-9]{1,19}")

Time = str | int | float
Labels = dict[str, str]


class LogStream(msgspec.Struct):
    values: msgspec.Raw = msgspec.Raw(b"")
    stream: msgspec.Raw = msgspec.Raw(b"{}")
    labels: msgspec.Raw = msgspec.Raw(b'""')
    entries: msgspec.Raw = msgspec.Raw(b"")


class Entry(msgspec.Struct, array_like=True):
    time: Time | None
    line: str
    metadata: Labels = {}


class LooseEntry(msgspec.Struct, array_like=True):
    time: Time | None
    line: msgspec.Raw
    metadata: dict[str, msgspec.Raw] | None = None


class OldEntry(msgspec.Struct):
    line: msgspec.Raw
    ts: Time | None = None
    timestamp: Time | None = None


read_streams = array_reader("streams")
read_stream = msgspec.json.Decoder(LogStream).decode
read_label_text = msgspec.json.Decoder(str).decode
read_labels = msgspec.json.Decoder(Labels).decode
read_loose_labels = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
read_entry = msgspec.json.Decoder(Entry).decode
read_loose_entry = msgspec.json.Decoder(LooseEntry).decode
read_old_entry = msgspec.json.Decoder(OldEntry).decode


def decode(body: bytes, message: Message, budget: Budget) -> Iterator[Log | Reject]:
    """The lines of a request, until the budget is used up. All its invalid lines are rejected as one request.

    Raises, before it yields: Invalid, msgspec's errors; Empty.
    """
    refused = Refused[bytes]()
    if is_protobuf(message.field("Content-Type").lower(), body):
        if message.field("Content-Encoding").lower() not in SNAPPY:  # the head need not say so
            body = uncompress(body, budget)
        yield from from_protobuf(body, budget, refused)
        yield from refused.rejects(lambda streams: bytes(cramjam.snappy.compress_raw(b"".join(streams))))
    else:
        yield from from_json(body, budget, refused)
        yield from refused.rejects(lambda streams: b'{"streams":[' + b",".join(streams) + b"]}")


def is_protobuf(content_type: str, body: bytes) -> bool:
    """Whether a body is protobuf. A block of snappy begins with its size and no reference to what is before it."""
    return content_type.startswith(PROTOBUF) or not (content_type.startswith(JSON) or OBJECT.match(body))


def from_json(body: bytes, budget: Budget, refused: Refused[bytes]) -> Iterator[Log]:
    """The lines of a request in JSON. A part that is refused is a stream, with its labels once. Raises: as `decode`."""
    if NO_STREAMS.fullmatch(body):
        raise Empty
    for element in bodies.split_elements(read_streams(body), budget):
        if isinstance(element, Remainder):
            refused.rest.append(element[:-1])  # without the bracket at its end
            return
        try:
            stream = read_stream(element)
            if old := bool(len(stream.entries)):
                given, values = stream.labels, json_array(stream.entries, "entries")
                head = b'{"labels":%b,"entries":[' % bytes(given)
            else:
                if not len(stream.values):
                    raise Invalid("missing: values")
                given, is_null = stream.stream, len(stream.values) == 4 and bytes(stream.values) == b"null"
                values = memoryview(b"[]") if is_null else json_array(stream.values, "values")
                head = b'{"stream":%b,"values":[' % bytes(given)
            check_labels(given, budget)
            if old and not bytes(given).startswith(b"{"):
                labels = labels_of(read_label_text(given))
            else:
                labels = labels_in(given, budget)
        except Exception as error:
            refused.refuse(element, error, budget, len(element))
            continue
        size, lines = encoded_size(labels), Refused[bytes]()
        budget.left -= len(values) == 2
        for value in bodies.split_elements(values, budget):
            if isinstance(value, Remainder):
                lines.rest.append(value[:-1])
                break
            budget.charge_bytes(size)
            try:
                if len(value) > budget.limits.record:
                    raise Invalid(f"line larger than {budget.limits.record} bytes")
                try:
                    entry = old_entry(value) if old else read_entry(value)
                except msgspec.ValidationError:
                    charge_attempt(budget, len(value))
                    entry = loose_entry(value)
                time = entry.time
                stamp = int(time) if isinstance(time, str) and TIME.fullmatch(time) else nanoseconds_of(time)
                yield build_record(labels, stamp, entry.line, entry.metadata)
            except Exception as error:
                lines.refuse(value, error, budget, len(value))
        refused.inside(lines, lambda some: head + b",".join(some) + b"]}")  # noqa: B023  # called at once


def labels_in(given: msgspec.Raw, budget: Budget) -> Labels:
    """The labels of a stream in an object; null has none. Raises: Invalid, msgspec's errors."""
    if bytes(given) == b"null":
        return {}
    try:
        labels = read_labels(given)
    except msgspec.ValidationError:
        charge_attempt(budget, len(bytes(given)))
        labels = text_values(read_loose_labels(given))
    check_texts(*labels, *labels.values())
    return labels


def loose_entry(value: bytes) -> Entry:
    """A line that is no text, or that has metadata of another type. Raises: msgspec's errors."""
    sent = read_loose_entry(value)
    return Entry(sent.time, text_or_json(sent.line) or "", text_values(sent.metadata))


def old_entry(value: bytes) -> Entry:
    """A line in the shape of Loki before 1.0. Raises: msgspec's errors."""
    sent = read_old_entry(value)
    return Entry(sent.ts or sent.timestamp, text_or_json(sent.line) or "")


def from_protobuf(body: bytes, budget: Budget, refused: Refused[bytes]) -> Iterator[Log]:
    """The lines of a request in protobuf. A part that is refused is a stream with its tag. Raises: as `decode`."""
    rows, skipped, done = parse_whole(body, budget) if len(body) <= budget.limits.record else ([], 0, 0)
    if skipped < 0:
        yield from rows
        return
    is_begun = bool(rows or skipped)
    count = 0
    for _ in split_fields(body, None if is_begun else budget):  # all: from here on, `split_fields` does not raise
        count += 1
    budget.left -= count // BRACKETS if is_begun else 0
    yield from rows
    for field in split_fields(body):
        if field.number != STREAMS:
            continue
        if skipped:
            skipped -= 1
            continue
        if budget.left <= 0 and not done:
            refused.rest.append(body[field.start :])
            return
        stream, labels, head, lines = body[field.content : field.end], b"", b"", 0
        try:
            for part in split_fields(stream, None if done else budget):
                lines += part.number == ENTRIES
                if part.number == LABELS:
                    labels, head = stream[part.content : part.end], stream[part.start : part.end]
            check_labels(labels, budget)
            pairs = labels_of(labels.decode())
            size, entries = encoded_size(pairs), Refused[bytes]()
        except Exception as error:
            refused.refuse(body[field.start : field.end], error, budget, field.end - field.start)
            continue
        budget.left -= not lines
        for part in split_fields(stream):
            if part.number != ENTRIES:
                continue
            if done:
                done -= 1
                continue
            if budget.left <= 0:
                entries.rest.append(stream[part.start :])
                break
            budget.charge_bytes(size)
            try:
                if part.end - part.content > budget.limits.record:
                    raise Invalid(f"line larger than {budget.limits.record} bytes")
                sent = parse_message(messages.Entry, stream[part.content : part.end])
                yield entry_record(pairs, sent)
            except Invalid as error:
                entries.refuse(stream[part.start : part.end], error, budget, part.end - part.start)
        refused.inside(entries, lambda some: encode_field(STREAMS, head + b"".join(some)))  # noqa: B023  # called at once


def parse_whole(body: bytes, budget: Budget) -> tuple[list[Log], int, int]:
    """The lines of a request that the class parses whole, up to the first that is invalid, or that needs more than is
    left of the budget; how many streams are done, -1 for all; and how many lines of the next one.
    """
    rows = list[Log]()
    try:
        push = messages.Push.FromString(body)
    except DecodeError:
        return rows, 0, 0
    for skipped, stream in enumerate(push.streams):
        if budget.left <= len(rows):
            return rows, skipped, 0
        left, room, count = budget.left, budget.room, len(rows)
        try:
            labels = stream.labels
            check_labels(labels.encode(), budget)
            pairs = labels_of(labels)
            size = encoded_size(pairs)
        except Exception:
            return rows, skipped, 0
        entries = stream.entries
        budget.left -= not entries
        for done, entry in enumerate(entries):
            before, unpaid = budget.left, budget.room
            try:
                if before <= len(rows):
                    raise Invalid("the budget is used up")
                budget.charge_bytes(size)
                rows.append(entry_record(pairs, entry))
            except Invalid:
                budget.left, budget.room = before, unpaid
                if done and not has_fields(body, skipped):
                    del rows[count:]
                    budget.left, budget.room, done = left, room, 0
                return rows, skipped, done
    return rows, -1 if push.streams else 0, 0


def has_fields(body: bytes, number: int) -> bool:
    """Whether a stream has no more fields than one may have: it is in two parts only then."""
    try:
        fields = (field for field in split_fields(body) if field.number == STREAMS)
        field = next(islice(fields, number, None))
        for _ in split_fields(body[field.content : field.end]):
            pass
    except Invalid:
        return False
    return True


def entry_record(labels: Labels, sent: Any) -> Log:
    """The row of a line of protobuf. Raises: Invalid."""
    stamp, more = sent.timestamp, sent.structured_metadata
    time = stamp.seconds * SECOND + stamp.nanos
    return build_record(labels, time, sent.line, {pair.name: pair.value for pair in more} if more else {})


def check_labels(labels: msgspec.Raw | bytes, budget: Budget) -> None:
    """Raises: Invalid if the labels of a stream are too large: each of its lines gets all of them."""
    if len(labels) > budget.limits.record // 4:
        raise Invalid(f"labels larger than {budget.limits.record // 4} bytes")


def labels_of(text: str) -> Labels:
    """The labels of a stream in Prometheus's notation. Raises: Invalid."""
    braced = text.strip()
    inner, at, comma = braced[1:-1].strip(), 0, ","
    labels = {}
    while at < len(inner):
        match = LABEL.match(inner, at) if comma else None
        if not match:
            break
        name, value, comma = match.groups()
        labels[name] = ESCAPE.sub(unescape, value)
        at = match.end()
    if at < len(inner) or not (braced.startswith("{") and braced.endswith("}") and len(braced) > 1):
        raise Invalid(f"not labels: {text!r:.60}")
    check_texts(*labels, *labels.values())
    return labels


def unescape(escape: re.Match[str]) -> str:
    """The character that an escape of Go's strings stands for. Raises: Invalid."""
    code = escape[1] or escape[2] or escape[3]
    if not code:
        return LETTERS.get(escape[4], escape[4])
    number = int(code, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise Invalid(f"not labels: {escape[0]}")
    return chr(number)


def build_record(labels: Labels, time: int | None, line: str, more: Labels) -> Log:
    """The row of a line. Labels and structured metadata become attributes. Raises: Invalid."""
    check_texts(line, *more, *more.values())
    if time is not None and time not in INT64:  # `None in` a range looks at each of its numbers
        raise Invalid("timestamp out of range")
    attributes: dict[str, object] = {**labels}
    for name, value in more.items():
        attributes[f"{name}_extracted" if name in labels else name] = value  # Loki's name for it
    given, service = take_first(attributes, LEVELS), take_first(attributes, SERVICES)
    stored, sent = stored_level(given)
    if sent is not None:
        attributes["level"] = sent
    return Log(time=time, level=stored, service=service, message=line, attributes=attributes)
