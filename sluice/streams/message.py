"""A kept HTTP message: the list item that the gateway makes for a route with `keep_head`, and the decoders parse.

The gateway keeps the head of a body that begins like one, too, so `parse_message` never takes a body for a kept
message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl

from sluice.http.request import KEY_CHARACTERS, MAX_PARAMETERS, SENT_BY, START
from sluice.http.request import sender_head as sender_head
from sluice.streams.record import Invalid

KEPT = b"POST /"  # what a kept message begins with
NAMED = b"POST / HTTP/1.1" + SENT_BY  # what `sender_head` begins with
# The head of a JSON object that says only its path, its key (without an escape) and its sender, as most with a key do.
# Groups: the path, the key in quotation marks, the key without them, the sender
KEYED_OBJECT = re.compile(
    rb"POST (/[^ ?\r\n]*) HTTP/1\.[01](?:\r\nContent-Type: application/json[^\r\n]*)?"
    rb'\r\nIdempotency-Key: (?:"([!#-+\--\[\]-~]{1,%d})"|([!#-+\--\[\]-~]{1,%d}))'
    % (KEY_CHARACTERS, KEY_CHARACTERS)
    + rb"(?:\r\nContent-Type: application/json[^\r\n]*)?(?:%b([^\r\n]*))?\r\n\r\n(?=\{)" % SENT_BY
)
NOBODY: Mapping[int, str] = MappingProxyType({})
# these describe the original body, not a part of it
ENTITY = re.compile(rb"(?:content-encoding|content-length|transfer-encoding):[^\n]*\n", re.IGNORECASE)


class Message(NamedTuple):
    """One request (RFC 9112): `start` is the request line, `fields` the raw field lines, each with its CRLF."""

    start: bytes
    fields: bytes
    path: str
    query: bytes
    body: bytes

    def field(self, name: str) -> str:
        return field(self.fields, name)

    def parameter(self, name: str) -> str:
        return query_parameter(self.query, name)

    def part_head(self) -> bytes:
        """The head for another, uncompressed body: as received, without the fields that describe the original body."""
        lines = [line + b"\r\n" for line in self.fields.split(b"\r\n")[:-1]]  # a bare newline ends no field line
        return self.start + b"".join(line for line in lines if not ENTITY.fullmatch(line)) + b"\r\n"


def parse_message(item: bytes) -> Message | None:
    """The message in a list item, or None if the item is only a body. Raises: Invalid if the head is incomplete."""
    if not (start := START.match(item)):
        return None
    head, blank, body = item.partition(b"\r\n\r\n")
    if not blank:
        raise Invalid("kept message: the head is incomplete")
    path, _, query = start[1].partition(b"?")
    return Message(start[0], item[start.end() : len(head) + 2], path.decode("latin-1"), query, body)


def after_head(item: bytes) -> bytes:
    """The body in a list item, to show it: what a head has is longer than a line, and may be a password."""
    return item.partition(b"\r\n\r\n")[2] if START.match(item) and b"\r\n\r\n" in item else item


def sender_of(item: bytes) -> str:
    """The name of the API key with which a list item was sent; "" if it has none."""
    if not item.startswith(KEPT):
        return ""
    at = item.find(SENT_BY, 0, item.find(b"\r\n\r\n") + 2)
    if at < 0 or not START.match(item):  # a body may begin like a message without being one
        return ""
    return item[at + len(SENT_BY) : item.index(b"\r\n", at + 2)].decode("latin-1")


def named_object(item: bytes) -> bytes:
    """The JSON object behind a head that says only who sent it; b"" if the item is something else."""
    at = item.find(b"\r\n\r\n") + 4 if item.startswith(NAMED) else 0
    return item[at:] if at and item.startswith(b"{", at) else b""


def field(lines: bytes, name: str) -> str:
    """The value of the first of these field lines that has this name, as text; "" if there is none."""
    return raw_field(lines, name).decode("utf-8", "replace")


def raw_field(lines: bytes, name: str) -> bytes:
    """The value as it was sent: `field` makes one text of two that are not UTF-8."""
    at = lower_fields(lines).find(field_beginning(name))  # as a whole: three times as fast as line by line
    if at < 0:
        return b""
    start = at + len(name) + 1
    return lines[start : lines.index(b"\r\n", start)].strip()


@lru_cache(maxsize=1)  # several fields are looked for in one head
def lower_fields(lines: bytes) -> bytes:
    return b"\r\n" + lines.lower()


@lru_cache(maxsize=64)
def field_beginning(name: str) -> bytes:
    return f"\r\n{name.lower()}:".encode()


@lru_cache(maxsize=64)  # a sender has always the same query
def query_parameter(query: bytes, name: str) -> str:
    """The first parameter of this name in a query string; "" if there is none. Raises: Invalid."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), max_num_fields=MAX_PARAMETERS, errors="replace")
    except ValueError:
        raise Invalid(f"query string has more than {MAX_PARAMETERS} parameters") from None
    return next((value for key, value in pairs if key == name), "")
