"""The decoders' common part: compression, heads, the record budget, rejects; plain JSON objects, arrays and forms.

A decoder is a pure function `decode(item, limits)`, which returns `Decoded`. It never raises: what cannot be stored is
a `Reject`. A body is decoded from the outside to the inside: compression and head (`Decoder.decode`), the kind of body
(`decode_contents`), its parts (`walk_json`, `walk_lines`), and each part (`decode_value`, `decode_form`).
Contributions override some of these for wire formats, and for what is nearly JSON.
Each of these returns results, one after the other: records, rejects, and `Empty` for a part that is valid and has no
record. `collect_results` charges them to the budget while they come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pkgutil import resolve_name
from typing import Any

import msgspec

from sluice import registry
from sluice.base.override import override
from sluice.http.request import START
from sluice.streams import body as bodies
from sluice.streams.body import ATTEMPT_COST, Budget, Empty, Form, Remainder
from sluice.streams.encoding import compressed_beginnings, inflate_body
from sluice.streams.message import KEYED_OBJECT, Message, named_object, parse_message
from sluice.streams.record import Decoded, Invalid, Limits, Record, Reject
from sluice.streams.times import END, SECOND, TIMES, nanoseconds_of

Result = Record | Reject | Empty
# What decodes a part of a body. Raises any exception, before it yields
Decode = Callable[[bytes], Iterable[Result]]
load: Callable[[str], Callable[..., Iterable[Result]]] = cache(resolve_name)

NUL = b"\\u0000"  # the only spelling in JSON; PostgreSQL's text cannot hold a NUL, SQLite's tools end the text there
BRACE = ord("{")
MINUTE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d", re.ASCII)
CHUNK_BYTES = 1 << 20  # that are decoded to a list at once; the list takes about 10 bytes of memory per byte
REASON_CHARACTERS = 200
SEPARATE_REJECTS = 100  # of one body; further invalid records are buried together
MERGED_BYTES = 1 << 16  # of further invalid records that are buried as one dead letter


class Plain(list[Record]):
    """The records of a body of which all are plain and valid: no result has to be looked at."""


@cache
def body_openers() -> list[tuple[str, str, str]]:
    """Header field, beginning of its value in lower case, and what opens a body with such a field."""
    keys = ((*key.partition(": "), target) for key, target in registry.declared_entries("openers").items())
    return [(name, begin.lower(), target) for name, _, begin, target in keys]


class Decoder:
    """Decodes items of one stream; a subclass defines `decode_contents`."""

    def decode(self, item: bytes, limits: Limits) -> Decoded:
        """What is in an item; one reject of the whole item if nothing of it can be stored. Never raises."""
        try:
            message = parse_message(item)
            body = message.body if message else item
            if message or body.startswith(compressed_beginnings()):
                body = inflate_body(body, message.field("Content-Encoding") if message else "", limits.inflated)
            return self.decode_body(body, message, Budget(limits, len(body)))
        except Exception as error:  # also exceptions of a user's record type or parser
            return Decoded((), (Reject(item, one_line(bodies.reject_reason(error)), True),))

    def decode_body(self, body: bytes, message: Message | None, budget: Budget) -> Decoded:
        """What is in an inflated body. Raises: any exception if nothing of it can be stored."""
        budget.count_nested(body)
        try:
            opener = find_opener(message) if message else ""
            results = (
                load(opener)(self, body, message, budget) if opener else self.decode_contents(body, message, budget)
            )
            decoded = collect_results(results, message, budget)
        except Empty as empty:
            return Decoded((), (), {empty.kind: 1})
        if decoded.rejects and not decoded.records:
            raise Invalid(decoded.rejects[0].reason)
        return decoded if decoded.records or decoded.without_rows else Decoded((), (), {Empty().kind: 1})

    def decode_contents(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        """The records of an unpacked body, until the budget is used up. Raises: Invalid if nothing can be decoded."""
        raise NotImplementedError


class JsonDecoder(Decoder):
    """Decodes JSON and forms. Whatever a contribution knows beside them is in a subclass.

    wire: the Struct that a plain JSON object is decoded to.
    build: makes a record of it. Raises: Invalid.
    bounded: a record takes bounded memory, whatever its size; otherwise it may have `Limits.record` bytes.
    """

    bounded = True

    def __init__(self, wire: type, build: Callable[[Any], Record]) -> None:
        self.wire, self.build = wire, build
        self.switches = fields_of(wire, msgspec.inspect.BoolType)
        self.moments = fields_of(wire, msgspec.inspect.DateTimeType)
        self.read: Callable[[bytes], Any] = msgspec.json.Decoder(wire).decode
        self.read_lines: Callable[[bytes], list[Any]] = msgspec.json.Decoder(wire).decode_lines
        self.read_array: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[wire]).decode  # type: ignore[valid-type]

    def fast_path(self, record: type[Record] | None = None) -> Callable[[bytes, Limits], Decoded]:
        """`decode`, but faster for one plain JSON object.

        record: the type to which it is decoded directly, if each of its fields has the name and the type that it has
            there.
        """
        read, build, slow = self.read, self.build, self.decode
        is_plain = lru_cache(maxsize=64)(self.is_plain)

        def contents(item: bytes) -> bytes:
            keyed = KEYED_OBJECT.match(item)
            if not keyed:
                return named_object(item)
            return item[keyed.end() :] if is_plain(keyed[1]) else b""

        def decode(item: bytes, limits: Limits) -> Decoded:
            if len(item) > limits.record:  # a record may take memory without a bound
                return slow(item, limits)
            try:  # item[0] of an empty one is also an exception
                made = build(read(item if item[0] == BRACE else contents(item)))
            except Exception:  # not a plain object; if the item is invalid, the slow path finds the reason
                return slow(item, limits)
            return Decoded((made,)) if item.find(NUL) < 0 else slow(item, limits)  # `in` takes 60 ns longer

        if record:
            read_record = msgspec.json.Decoder(record).decode

            def decode_direct(item: bytes, limits: Limits) -> Decoded:
                try:
                    made = read_record(item if item[0] == BRACE else contents(item))
                    time = made.time
                    if time is not None:  # the usual unit without the call
                        made.time = time * SECOND if 0 < time < END else nanoseconds_of(time)
                except Exception:
                    return decode(item, limits)
                return Decoded((made,)) if item.find(NUL) < 0 else slow(item, limits)

            return decode_direct
        return decode

    def is_plain(self, path: bytes) -> bool:
        """Whether bodies that came to a path have no format of their own."""
        return True

    def named(self, sent: Mapping[str, Any]) -> set[str]:
        """The members of a plain object that a record is made of. Of several times, the first one counts."""
        names = {*getattr(self.wire, "__struct_encode_fields__", ())}
        given = [name for name in TIMES if name in names and sent.get(name) is not None]
        return names.difference(given[1:])

    @override
    def decode_contents(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        body = body.removeprefix(bodies.BOM).strip() or (message.query if message else b"")
        if not body:
            raise Empty
        if body.startswith((b"{", b"[")):
            return self.decode_json(body, message, budget)
        return self.decode_text(body, message, budget)

    def decode_json(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        """The records of a JSON object, of an array, or of NDJSON."""
        rows = body.count(b"\n") + 1
        if body.startswith(b"["):
            if records := self.read_plain(self.read_array, body, budget):
                return records
        elif rows > 1 and len(records := self.read_plain(self.read_lines, body, budget)) == rows:
            return records
        return self.walk_json(body, message, budget)

    def read_plain(self, read: Callable[[bytes], list[Any]], body: bytes, budget: Budget) -> list[Record]:
        """All records at once, if all are plain and valid, and within the budget; otherwise an empty list."""
        if len(body) > CHUNK_BYTES or NUL in body:
            return []
        try:
            wires = read(body)
            return Plain(map(self.build, wires)) if len(wires) <= budget.left else []
        except Exception:  # decoding them one by one finds the invalid ones
            return []

    def walk_json(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        """The results of a JSON value, of the elements of an array, or of lines, one by one.

        Raises, before it yields: Invalid if the body is none of these; what is wrong with the only value.
        """
        try:
            bodies.check_json(body)
        except Invalid:
            if b"\n" not in body:
                raise
            if body.startswith(b"["):  # lines only if the first is an array by itself; else an array with a mistake
                bodies.check_json(next(bodies.split_lines(body, budget)))
            return self.walk_lines(body, message, budget)
        if body.startswith(b"["):
            elements = bodies.split_elements(body, budget)
            return decode_parts(elements, lambda part: self.decode_value(part, message, budget), budget, b"[", b"]")
        return self.decode_value(body, message, budget)

    def walk_lines(self, body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
        """The results of lines, each of which is decoded as if it were sent alone."""
        lines = bodies.split_lines(body, budget)
        return decode_parts(lines, lambda line: self.decode_contents(line, message, budget), budget)

    def decode_value(self, part: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        try:
            if not part.startswith(b"{"):
                raise Invalid("not a JSON object")
            try:
                if not self.bounded and len(part) > budget.limits.record:
                    raise Invalid(f"record larger than {budget.limits.record} bytes")
                record = self.build(self.read(part))
                if NUL in part:
                    check_text(record)
            except Exception as error:  # it may have another format
                budget.left -= ATTEMPT_COST
                return self.decode_object(part, message, budget, error)
            return (record,)
        except Empty as empty:
            return (empty,)
        except Exception as error:  # any exception of a user's record type
            return (Reject(part if part.startswith(b"{") else b"[" + part + b"]", bodies.reject_reason(error)),)

    def decode_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Iterable[Result]:
        """The records of a JSON object that is not a plain one; `error` says why. Raises only before it yields."""
        return (self.loose_object(part, message, budget, error),)

    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Record:
        """The record of a JSON object that has no format, and is not plain. Raises: any exception."""
        raise error

    def decode_text(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        """The records of a body that does not start as JSON: a form, or lines of any format."""
        if b"\n" in body:
            return self.walk_lines(body, message, budget)
        return self.form_records(bodies.decode_form(body, budget.limits), message, budget)

    def form_records(self, fields: Form, message: Message | None, budget: Budget) -> Sequence[Record]:
        """The records of a form: one, in which the last value of a name counts. Raises: any exception."""
        return (self.decode_form(fields, message, budget),)

    def decode_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Record:
        return self.plain_form(fields, message, budget)

    def plain_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Record:
        """The record of a form that has no format. Raises: Invalid, or msgspec's errors."""
        if self.switches:
            fields |= {name: "true" for name in self.switches if fields.get(name) == "on"}  # a checkbox in HTML
        for name in self.moments:
            if MINUTE.fullmatch(sent := fields.get(name, "")):  # a datetime-local in HTML
                fields[name] = sent + ":00"
        return check_text(self.build(msgspec.convert(fields, self.wire, strict=False)))


def fields_of(wire: type, type_info: type) -> list[str]:
    """The names of the fields of a form that have this type, and cannot be a text."""
    if not issubclass(wire, msgspec.Struct):
        return []
    known = [(field.encode_name, msgspec.inspect.type_info(field.type)) for field in msgspec.structs.fields(wire)]
    parts = [(name, {part.__class__ for part in getattr(kind, "types", (kind,))}) for name, kind in known]
    return [name for name, kinds in parts if type_info in kinds and msgspec.inspect.StrType not in kinds]


def decode_parts(
    parts: Iterable[bytes],
    decode: Decode,
    budget: Budget,
    head: bytes = b"",
    end: bytes = b"",
    refuse: Callable[[bytes, Exception], Iterable[Result]] | None = None,
) -> Iterator[Result]:
    """The results of parts of a body, which `split_lines` or `split_elements` have made. Each invalid part is a reject.

    head, end: what makes a body of a part; of an array `end` begins with the bracket. refuse: makes the results of an
    invalid part; None: a reject.
    """
    for part in parts:
        if isinstance(part, Remainder):
            yield Reject(head + part + end[1:], Remainder.reason)
            return
        try:
            if budget.nested < 0:
                budget.charge_nested(part)
            yield from decode(part)
        except Empty as empty:
            yield empty
        except Exception as error:  # any exception of a user's record type
            yield from refuse(part, error) if refuse else (Reject(head + part + end, bodies.reject_reason(error)),)


def collect_results(results: Iterable[Result], message: Message | None, budget: Budget) -> Decoded:
    """What a body is decoded to. Each result is charged when it comes, so that the next ones end with the budget."""
    records: list[Record] = []
    rejects = Rejects(message, budget)
    without_rows: dict[str, int] = {}
    if results.__class__ is Plain:
        return Decoded(results, (), without_rows, budget.used_bytes())
    result: Any
    for result in results:
        kind = result.__class__
        if kind is Reject:
            rejects.add(result)
        elif kind is Empty:
            without_rows[result.kind] = without_rows.get(result.kind, 0) + 1
        else:
            budget.left -= 1
            records.append(result)
    return Decoded(records, rejects.finish(), without_rows, budget.used_bytes())


class Rejects:
    """The rejects of a body, each behind the head of its message.

    From the hundredth one on, they are merged as lines of larger parts: otherwise a small compressed body of invalid
    records becomes a million dead letters.
    """

    def __init__(self, message: Message | None, budget: Budget) -> None:
        self.message, self.budget = message, budget
        self.rejects: list[Reject] = []
        self.head = b""
        self.count = self.size = 0
        self.merged: list[bytes] = []
        self.reason = ""  # of the first part that is merged

    def add(self, reject: Reject) -> None:
        self.budget.charge_failure(len(reject.part))
        self.count += 1
        is_rest = reject.reason is Remainder.reason
        if is_rest or self.size >= MERGED_BYTES:
            self.finish()
        if self.count <= SEPARATE_REJECTS or is_rest:
            self.append(reject.part, reject.reason)
            return
        part = reject.part
        self.reason = self.reason or reject.reason
        # in JSON a newline is only white space
        self.merged.append(part.replace(b"\n", b" ") if part.startswith((b"{", b"[")) else part)
        self.size += len(part)

    def finish(self) -> list[Reject]:
        """Append what was merged; all rejects."""
        if self.merged:
            self.append(b"\n".join(self.merged), self.reason)
            self.size, self.merged, self.reason = 0, [], ""
        return self.rejects

    def append(self, part: bytes, reason: str) -> None:
        if self.message and not self.head:
            self.head = self.message.part_head()
        self.budget.charge_bytes(len(self.head) + len(part))
        # so that a replay does not mistake a line that begins like a gzip file or a kept message for one
        if part.startswith(compressed_beginnings()) or START.match(part):
            part = b"\n" + part
        self.rejects.append(Reject(self.head + part, one_line(reason)))


def find_opener(message: Message) -> str:
    for name, begin, target in body_openers():
        if (value := message.field(name)) and value.lower().startswith(begin):
            return target
    return ""


def out_of_range(number: float) -> Invalid:
    return Invalid(f"number out of range: {number!r:.40}")


def check_text(record: Record) -> Record:
    """The record, if no text in it contains a NUL. Raises: Invalid."""
    text = msgspec.json.encode(record)
    if NUL in text and NUL in text.replace(b"\\\\", b""):  # an escaped backslash before u0000 makes no NUL
        raise Invalid("text with a NUL")
    return record


def one_line(reason: str) -> str:
    """A reason as one line that every database can hold."""
    text = " ".join(reason.replace("\0", " ").split())
    return text[:REASON_CHARACTERS].encode("utf-8", "replace").decode()
