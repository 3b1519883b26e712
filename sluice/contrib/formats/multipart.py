"""Splits forms of browsers that are multipart/form-data (RFC 7578, WHATWG HTML), such as sendBeacon with FormData."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sluice.streams import body as bodies
from sluice.streams.body import Budget, Form
from sluice.streams.decoder import Decoder, JsonDecoder, Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Limits, Reject

BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})', re.IGNORECASE)
NAME = re.compile(rb'; *name="([^"\r\n]*)"')
FILE = re.compile(rb"; *filename\*?=")
NO_FILE = re.compile(rb'; *filename=""')  # what a browser sends for a field in which no file was chosen
ESCAPES = (b"%22", b'"'), (b"%0D", b"\r"), (b"%0A", b"\n")


class Parts(NamedTuple):
    """fields: without empty ones. plain, files: bodies with the fields or the files alone; b"": there are none."""

    fields: Form
    plain: bytes
    files: bytes


def open_form(decoder: Decoder, body: bytes, message: Message, budget: Budget) -> Iterable[Result]:
    """The record of the fields of a form, and a reject of its files; of the body itself if it is no such form.

    Raises: Invalid, also for a stream that takes lines: some of the form's could pass for records.
    """
    boundary = boundary_of(message)
    if not boundary or (isinstance(decoder, JsonDecoder) and body.startswith((b"{", b"["))):
        return decoder.decode_contents(body, message, budget)
    if not isinstance(decoder, JsonDecoder):
        raise Invalid("multipart: this stream takes lines")
    parts = split_parts(body, boundary, budget.limits)
    results: list[Result] = []
    if parts.fields:
        try:
            results += decoder.form_records(parts.fields, message, budget)
        except Exception as error:  # any exception of a user's record type
            results.append(Reject(parts.plain, bodies.reject_reason(error)))
    if parts.files:
        results.append(Reject(parts.files, "files of a form are not stored"))
    return results


def boundary_of(message: Message) -> bytes:
    """The line between the parts of a form, without line ends; b"": its head names none."""
    found = BOUNDARY.search(message.field("Content-Type"))
    return b"--" + found[1].encode() if found else b""


def split_parts(body: bytes, boundary: bytes, limits: Limits) -> Parts:
    """The parts of a form. boundary: the line between them, without line ends. Raises: Invalid."""
    if body.count(boundary) > limits.fields + 1:
        raise Invalid(f"form has more than {limits.fields} fields")
    _, *parts = (b"\r\n" + body).split(b"\r\n" + boundary)
    if not parts or not parts[-1].startswith(b"--"):
        raise Invalid("multipart: truncated")
    fields: list[tuple[str, str]] = []
    plain, files = [], []
    for part in parts[:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        name = NAME.search(head)
        if not blank or not name:
            raise Invalid("multipart: part without a name")
        if FILE.search(head):
            if content or not NO_FILE.search(head):
                files.append(part)
            continue
        plain.append(part)
        key = name[1]
        for escape, character in ESCAPES:
            key = key.replace(escape, character)
        if content:
            fields.append((key.decode(), content.decode()))
    if sum(map(len, plain)) > limits.record:
        raise Invalid(f"form larger than {limits.record} bytes")
    return Parts(Form(fields), join_parts(plain, boundary), join_parts(files, boundary))


def join_parts(parts: list[bytes], boundary: bytes) -> bytes:
    return b"".join(boundary + part + b"\r\n" for part in parts) + boundary + b"--\r\n" if parts else b""
