"""Splits forms of browsers that are multipart/form-data (RFC 7578, WHATWG HTML), such as sendBeacon with FormData."""

from __future__ import annotations

import re
from typing import NamedTuple

from sluice.http.request import MULTIPART
from sluice.streams.body import Form
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Limits

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


def boundary_of(message: Message | None) -> bytes:
    """The line between the parts of a message, without line ends; b"" if it is no such form."""
    given = message.field("Content-Type") if message else ""
    found = BOUNDARY.search(given) if given.lower().startswith(MULTIPART) else None
    return b"--" + found[1].encode() if found else b""


def split(body: bytes, boundary: bytes, limits: Limits) -> Parts:
    """The parts of a form. Raises: Invalid."""
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
    return Parts(Form(fields), joined(plain, boundary), joined(files, boundary))


def joined(parts: list[bytes], boundary: bytes) -> bytes:
    return b"".join(boundary + part + b"\r\n" for part in parts) + boundary + b"--\r\n" if parts else b""
