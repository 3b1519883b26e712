"""The decoder of a stream that has wire formats, and takes what is nearly JSON.

It stands between the core's `JsonDecoder` and the decoder of a stream: what that one overrides is as it is in the core.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from sluice import registry
from sluice.base.override import override
from sluice.contrib.formats.json_repair import repair_json
from sluice.contrib.formats.json_rows import walk_json, walk_rows
from sluice.http.request import FORM
from sluice.http.routes import pattern, varies
from sluice.streams import body as bodies
from sluice.streams.body import NOT_JSON, Budget, Empty, Form
from sluice.streams.decoder import NUL, JsonDecoder, Result, check_text, load
from sluice.streams.format import Format
from sluice.streams.message import Message
from sluice.streams.record import Decoded, Record

UTF16 = re.compile(rb"\xff\xfe[^\0]\0|\xfe\xff\0[^\0]")  # a byte order mark, and a character below U+0100
BLANK = b" \t\n\r\v\f\0"
SEPARATOR = b"\x1e"


def formats_of(stream: str) -> list[Format]:
    return [known for known in registry.listed("formats") if known.stream == stream]


class FormatDecoder(JsonDecoder):
    """formats: in the order in which they are tried."""

    def __init__(self, wire: type, build: Callable[[Any], Record], formats: Sequence[Format] = ()) -> None:
        super().__init__(wire, build)
        self.bodies = {
            path: known.decoder for known in formats if known.objects is None and known.decoder for path in known.paths
        }
        self.varying = [
            (re.compile(f"{pattern(path)}$"), self.bodies.pop(path)) for path in [*self.bodies] if varies(path)
        ]
        self.objects = {name: known.decoder for known in formats for name in known.objects or ()}
        self.objects_at = {path: known.decoder for known in formats if known.objects == () for path in known.paths}
        self.forms = [known.form for known in formats if known.form]
        self.beginnings = [(known.begins, known.decoder) for known in formats if known.begins]
        self.texts = [known.decoder for known in formats if known.text]
        shape = msgspec.defstruct(
            "Shape", [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in self.objects]
        )
        self.no_shape = shape()
        self.read_shape: Callable[[bytes], Any] = msgspec.json.Decoder(shape).decode

    @override
    def is_plain(self, path: bytes) -> bool:
        return self.exact_decoder(path.decode("latin-1")) is None

    def exact_decoder(self, path: str) -> str | None:
        """What decodes all bodies that came to a path."""
        if exact := self.bodies.get(path):
            return exact
        for end, decoder in self.bodies.items():
            if path.endswith(end):  # a user's route may have a prefix, such as /plant/write
                return decoder
        return next((decoder for among, decoder in self.varying if among.search(path)), None)

    @override
    def decode_body(self, body: bytes, message: Message | None, budget: Budget) -> Decoded:
        try:
            return super().decode_body(body, message, budget)
        except Exception as error:
            repaired = repair_json(body, budget) if bodies.reject_reason(error).startswith(NOT_JSON) else b""
            if not 0 < len(repaired) <= budget.limits.inflated:
                raise
        return super().decode_body(repaired, message, budget)

    @override
    def decode_contents(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        if message and (exact := self.exact_decoder(message.path)):
            return load(exact)(body, message, budget)
        for begins, decoder in self.beginnings:
            if begins.match(body):
                return load(decoder)(body, message, budget)
        if UTF16.match(body):  # as PowerShell writes a file
            body = body.decode("utf-16").encode()
        body = body.removeprefix(bodies.BOM).strip() or (message.query if message else b"")
        if not body:
            raise Empty
        if body.startswith(SEPARATOR):  # RFC 7464; no JSON text contains it
            body = body.replace(SEPARATOR, b"\n").strip()
        if not body.startswith((b"{", b"[")):
            return self.decode_text(body, message, budget)
        if body.endswith(b"\0") and (text := body.rstrip(BLANK)).endswith((b"}", b"]")):
            body = text  # C's programs send the end of a text, too
        return self.decode_json(body, message, budget)

    @override
    def walk_json(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        return walk_json(body, message, budget, self.decode_value, self.decode_contents)

    @override
    def walk_lines(self, body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
        return walk_rows(body, message, budget, self.decode_value, self.decode_contents)

    @override
    def decode_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Iterable[Result]:
        if self.objects and (shape := self.read_shape(part)) != self.no_shape:
            for name, decoder in self.objects.items():
                if getattr(shape, name) is not msgspec.UNSET:
                    return load(decoder)(part, message, budget)
        if message and message.path in self.objects_at:
            return load(self.objects_at[message.path])(part, message, budget)
        if not self.bounded and len(part) > budget.limits.record:
            raise error
        record = self.loose_object(part, message, budget, error)
        return (check_text(record) if NUL in part else record,)

    @override
    def decode_text(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        if b"\n" in body:
            return self.walk_lines(body, message, budget)
        fields = bodies.decode_form(body, budget.limits)
        if wrapped := self.wrapped_json(fields):
            return self.decode_json(wrapped, message, budget)
        return self.form_records(fields, message, budget)

    def wrapped_json(self, fields: dict[str, str]) -> bytes:
        """The JSON that is all of a form, in a field that no record has: GitHub's and Slack's `payload`. b"": none."""
        (name, value), *others = fields.items() or [("", "")]
        unknown = name not in getattr(self.wire, "__struct_encode_fields__", ())
        return value.encode() if unknown and not others and value.startswith(("{", "[")) else b""

    @override
    def decode_form(self, fields: dict[str, str], message: Message | None, budget: Budget) -> Record:
        for form in self.forms:
            record = cast("Record | None", load(form)(fields))
            if record is not None:
                return record
        return super().decode_form(fields, message, budget)


def typed_form(body: bytes, message: Message | None, budget: Budget, names: Sequence[str]) -> Form | None:
    """The fields of a form that its sender has not encoded, so that it has spaces; None if it has none of these fields.

    The Content-Type alone does not say so: curl sends it with any body. Raises: Invalid.
    """
    declared = message is not None and message.field("Content-Type").lower().startswith(FORM)
    if not declared or b"=" not in body or b"\n" in body:
        return None
    fields = bodies.decode_form(body, budget.limits)
    return fields if any(name in fields for name in names) else None
