"""Content codings (RFC 9110, 8.4.1): what a compressed body inflates to, in bounded memory and time.

gzip and zstd are known by the first bytes, whatever the head says; the others by Content-Encoding, so the gateway keeps
their heads (sluice/http/request.py).
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from sluice.http.request import SNAPPY, codings
from sluice.streams.record import Invalid

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
FRAMED = b"\xff\x06\x00\x00sNaPpY"  # a stream of snappy (google/snappy, framing_format.txt)
CHUNK = 1 << 16
MEMBERS = 1_000  # of a gzip file, or frames of zstd: each takes as long as 100 KB, and an empty one has 20 bytes
SNAPPY_GROWTH = 22  # bytes of content that a byte of snappy makes, at most: three copy 64
# What cramjam says of a stream
SNAPPY_ERRORS = {
    "failed to write whole buffer": "inflates to more than {limit} bytes",
    "failed to fill whole buffer": "truncated",
}
WINDOW_BYTES = 8 << 20  # that zstd may ask for in HTTP (RFC 9659)


def inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """The content of a body; the body itself if it is not compressed. An empty body has an empty content.

    encoding: the value of Content-Encoding, or "". limit: bytes of content.
    Raises: Invalid if the body is damaged or truncated, inflates to more, or is followed by other bytes.
    """
    encoding = encoding.lower()
    if "," in encoding:
        for coding in reversed(codings(encoding)):
            body = inflated(body, coding, limit)
        return body
    if encoding in SNAPPY:
        return unsnapped(body, limit)
    if body.startswith(GZIP):
        return joined("gzip", body, partial(zlib.decompressobj, 31), GZIP, limit)
    if body.startswith(ZSTD):
        return joined("zstd", body, unzstd(), ZSTD, limit)
    return deflated(body, limit) if encoding == "deflate" and body else body


def unzstd() -> Callable[[], Any]:
    """What makes a decompressor. Imported when it is needed."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_BYTES.bit_length() - 1}
    return lambda: zstd.ZstdDecompressor(options=options)


def joined(name: str, data: bytes, start: Callable[[], Any], magic: bytes, limit: int) -> bytes:
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


def deflated(data: bytes, limit: int) -> bytes:
    """The content of zlib (RFC 1950) or, as some clients understand "deflate", of its data alone (RFC 1951).

    Raises: Invalid.
    """
    # no sender's raw data begins like a head of zlib: it would be an uncompressed block with a bit set in its padding
    is_zlib = len(data) > 1 and data[0] & 0x8F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return joined("deflate", data, lambda: zlib.decompressobj(15 if is_zlib else -15), b"", limit)


def unsnapped(data: bytes, limit: int) -> bytes:
    """The content of a block of snappy (google/snappy, format_description.txt), or of a stream of it.

    A block begins with its size, and only as much is allocated. Raises: Invalid.
    """
    if not data:
        return data
    import cramjam  # needed for few senders

    try:
        if data.startswith(FRAMED):
            content = bytearray(min(limit, SNAPPY_GROWTH * len(data)))
            size = cramjam.snappy.decompress_into(data, content)
            return bytes(memoryview(content)[:size])
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise Invalid(f"snappy: inflates to more than {limit} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        text = str(error).removeprefix("snappy: ")
        raise Invalid("snappy: " + SNAPPY_ERRORS.get(text, text).format(limit=limit)) from None
