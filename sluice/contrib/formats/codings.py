"""zstd and snappy: what bodies in these content codings inflate to, in bounded memory and time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sluice.contrib.formats.register import ZSTD
from sluice.streams.encoding import inflate_members
from sluice.streams.record import Invalid

FRAMED = b"\xff\x06\x00\x00sNaPpY"  # a stream of snappy (google/snappy, framing_format.txt)
SNAPPY_GROWTH = 22  # bytes of content that a byte of snappy makes, at most: three copy 64
# What cramjam says of a stream
SNAPPY_ERRORS = {
    "failed to write whole buffer": "inflates to more than {limit} bytes",
    "failed to fill whole buffer": "truncated",
}
WINDOW_BYTES = 8 << 20  # that zstd may ask for in HTTP (RFC 9659)


def inflate_zstd(body: bytes, limit: int) -> bytes:
    """The content of one or more frames. Raises: Invalid."""
    return inflate_members("zstd", body, decompressor(), ZSTD, limit)


def decompressor() -> Callable[[], Any]:
    """What makes a decompressor of a frame. Imported when it is needed."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_BYTES.bit_length() - 1}
    return lambda: zstd.ZstdDecompressor(options=options)


def inflate_snappy(data: bytes, limit: int) -> bytes:
    """The content of a block of snappy (google/snappy, format_description.txt), or of a stream of it.

    A block begins with its size, and only as much is allocated. Raises: Invalid.
    """
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
