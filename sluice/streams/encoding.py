"""Content codings (RFC 9110, 8.4.1): what a compressed body inflates to, in bounded memory and time.

gzip is known by the first bytes, whatever the head says; deflate by Content-Encoding, so the gateway keeps its head
(sluice/http/request.py). Contributions have other codings, of either kind.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from sluice import registry
from sluice.http.request import listed_codings
from sluice.registry import Coding
from sluice.streams.record import Invalid

GZIP = b"\x1f\x8b"
CHUNK = 1 << 16
MEMBERS = 1_000  # of a gzip file, or frames of zstd: each takes as long as 100 KB, and an empty one has 20 bytes


@cache
def contributed_codings() -> dict[str, Coding]:
    """Those of contributions, by the name in Content-Encoding."""
    return registry.declared_entries("codings")


@cache
def compressed_beginnings() -> tuple[bytes, ...]:
    """How compressed bodies begin that are known by that."""
    return GZIP, *(coding.magic for coding in contributed_codings().values() if coding.magic)


def coding_function(coding: Coding) -> Callable[[bytes, int], bytes]:
    function: Callable[[bytes, int], bytes] = coding.load()
    return function


def inflate_body(body: bytes, encoding: str, limit: int) -> bytes:
    """The content of a body; the body itself if it is not compressed. An empty body has an empty content.

    encoding: the value of Content-Encoding, or "". limit: bytes of content.
    Raises: Invalid if the body is damaged or truncated, inflates to more, or is followed by other bytes.
    """
    encoding = encoding.lower()
    if "," in encoding:
        for coding in reversed(listed_codings(encoding)):
            body = inflate_body(body, coding, limit)
        return body
    named = contributed_codings().get(encoding)
    if named and not named.magic:
        return coding_function(named)(body, limit) if body else body
    if body.startswith(GZIP):
        return inflate_members("gzip", body, partial(zlib.decompressobj, 31), GZIP, limit)
    for known in contributed_codings().values():
        if known.magic and body.startswith(known.magic):
            return coding_function(known)(body, limit)
    return inflate_deflate(body, limit) if encoding == "deflate" and body else body


def inflate_members(name: str, data: bytes, start: Callable[[], Any], magic: bytes, limit: int) -> bytes:
    """The content of one or more members; zeros after the last one are allowed. Raises: Invalid.

    start: makes the decompressor of a member. magic: how each member begins; b"": there is one.
    """
    out: list[bytes] = []
    size = at = 0
    for _ in range(MEMBERS):
        member = start()
        while not member.eof:
            chunk = data[at : at + CHUNK]
            if not chunk:
                raise Invalid(f"{name}: truncated")
            try:
                out.append(member.decompress(chunk, limit + 1 - size))
            except Exception as error:  # each library has its own
                raise Invalid(f"{name}: {error}") from None
            size += len(out[-1])
            if size > limit:
                raise Invalid(f"{name}: inflates to more than {limit} bytes")
            at += len(chunk) - len(member.unused_data)
        if not (magic and data.startswith(magic, at)):
            if data[at:].strip(b"\0"):
                raise Invalid(f"{name}: other bytes after the last member")
            return b"".join(out)
    raise Invalid(f"{name}: more than {MEMBERS} members")


def inflate_deflate(data: bytes, limit: int) -> bytes:
    """The content of zlib (RFC 1950) or, as some clients understand "deflate", of its data alone (RFC 1951).

    Raises: Invalid.
    """
    # no sender's raw data begins like a head of zlib: it would be an uncompressed block with a bit set in its padding
    is_zlib = len(data) > 1 and data[0] & 0x8F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return inflate_members("deflate", data, lambda: zlib.decompressobj(15 if is_zlib else -15), b"", limit)
