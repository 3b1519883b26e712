"""Counts what a request of remote write 2.0 has, because its sender reads in the answer how much was written.

Nothing is decoded: samples, histograms and exemplars are fields with a length, and the pass skips from one to the next.
The gateway's other clients wait for it, so it takes so many steps at most, and two for each byte of the body: what a
turn of the loop reads, so many bytes, bounds the time of a turn. It runs on PyPy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sluice.http.routes import Reply, reply

VERSION_2 = "io.prometheus.write.v2.Request"  # in the Content-Type
# 2 ms with CPython. Prometheus sends 2,000 samples at most unless told otherwise, which take 8,500 steps
MOST_STEPS = 20_000
BYTE_STEPS = 2  # for each byte of the block. The buckets of a histogram of zeros take 0.8
LONG_STEPS = 3  # for a number of several bytes
MOST_BYTES = 1 << 20  # to inflate to, 0.4 ms
SYMBOL, SERIES = 0x22, 0x2A  # tags of the fields of a request
LABELS, SAMPLE, HISTOGRAM, EXEMPLAR, METADATA = 0x0A, 0x12, 0x1A, 0x22, 0x2A  # tags of the fields of a series
CREATED = 0x30  # the only one that is a number
NAMES = "samples", "histograms", "exemplars"


class Uncounted(Exception):
    """Raised with one of these reasons."""


TOO_MANY = f"it has more than {MOST_STEPS} parts, or {BYTE_STEPS} for each byte"
TOO_LARGE = f"it inflates to more than {MOST_BYTES} bytes"
MALFORMED = "it is no snappy block with a request of remote write 2.0"
NO_SNAPPY = "the gateway has no library for snappy"


def answer_write(environ: dict[str, Any], item: bytes) -> Reply | None:
    """The answer to a request of version 2.0. item: an HTTP message."""
    if VERSION_2 not in environ.get("CONTENT_TYPE", ""):
        return None
    try:
        return counts_reply(*count_block(item.partition(b"\r\n\r\n")[2]))
    except Uncounted as error:
        return uncounted_reply(error.args[0])


@lru_cache(maxsize=128)  # the fast lane renders the head of an answer once
def counts_reply(*counts: int) -> Reply:
    """The answer to a request with so many samples, histograms and exemplars."""
    headers = [(f"X-Prometheus-Remote-Write-{name.title()}-Written", str(n)) for name, n in zip(NAMES, counts)]
    return reply("204 No Content", b"", "", *headers)


@lru_cache(maxsize=4)
def uncounted_reply(reason: str) -> Reply:
    """The answer to a request that was not counted. 204 has no body, which could say so."""
    text = f"The request is stored, but its samples were not counted: {reason}."
    return reply("200 OK", text.encode(), "text/plain; charset=utf-8")


def count_block(body: bytes) -> tuple[int, int, int]:
    """How many samples, histograms and exemplars are in the snappy block of a request. Raises: Uncounted."""
    try:
        import cramjam  # needed for few senders
    except ImportError:
        raise Uncounted(NO_SNAPPY) from None
    try:
        if cramjam.snappy.decompress_raw_len(body) > MOST_BYTES:
            raise Uncounted(TOO_LARGE)
        return count_parts(bytes(cramjam.snappy.decompress_raw(body)), min(MOST_STEPS, BYTE_STEPS * len(body)))
    except (cramjam.DecompressionError, IndexError):
        raise Uncounted(MALFORMED) from None


def count_parts(data: bytes, left: int) -> tuple[int, int, int]:
    """The same of an uncompressed request, in so many steps. A step takes 0.1 us. Raises: Uncounted, IndexError."""
    samples = histograms = exemplars = at = 0
    size = len(data)
    while at < size:
        left -= 1
        if left < 0:
            raise Uncounted(TOO_MANY)
        tag, length, at = data[at], data[at + 1], at + 2
        if length > 127:
            left -= LONG_STEPS
            length, at = read_varint(data, at)
        end = at + length
        if end > size or tag not in (SYMBOL, SERIES):
            raise Uncounted(MALFORMED)
        if tag == SYMBOL:
            at = end
        while at < end:
            left -= 1
            if left < 0:
                raise Uncounted(TOO_MANY)
            tag, length, at = data[at], data[at + 1], at + 2
            if length > 127:
                left -= LONG_STEPS
                length, at = read_varint(data, at)
            if tag == CREATED:
                continue
            at += length
            if tag == SAMPLE:
                samples += 1
            elif tag == HISTOGRAM:
                histograms += 1
            elif tag == EXEMPLAR:
                exemplars += 1
            elif tag not in (LABELS, METADATA):
                raise Uncounted(MALFORMED)
        if at != end:
            raise Uncounted(MALFORMED)
    return samples, histograms, exemplars


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of several bytes (varint), the first of which is before `at`; and its end. Raises as `count_parts`."""
    value = data[at - 1] & 0x7F
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Uncounted(MALFORMED)
