"""Compressed bodies: each content coding, its limits, and what is no valid body of it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from itertools import product

import cramjam
import pytest

from sluice.http.request import ENCODINGS
from sluice.streams.built_in import STREAMS
from sluice.streams.encoding import MEMBERS, inflate_body
from sluice.streams.record import Invalid, Metric, Vote
from sluice.streams.unique import Rule
from support.folders import has, needs
from support.list_items import LIMITS, decode, kept, reject_reason
from support.zstd import zstd

VOTE = b'{"poll":"p","choice":"c"}'
POINT = b'{"name":"m","value":1,"time":1767268800}'
Compress = Callable[[bytes], bytes]


def raw(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


def block(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def framed(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(data))


def streamed(data: bytes) -> bytes:
    """zstd whose head does not have the size of the content."""
    compressor = zstd.ZstdCompressor()
    return compressor.compress(data) + compressor.flush()


CODINGS: list[tuple[str, Compress]] = [
    ("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("Deflate", raw),
    ("identity", bytes), ("UTF-8", bytes), ("utf8", bytes), ("none", bytes),
]  # fmt: skip
KNOWN_BY_THEIR_FIRST_BYTES: list[Compress] = [gzip.compress]
if has("formats"):
    CODINGS += [("zstd", zstd.compress), ("zstd", streamed)]
    CODINGS += [("snappy", block), ("x-snappy-framed", framed), ("snappy", framed)]
    KNOWN_BY_THEIR_FIRST_BYTES += [zstd.compress, streamed]
codings = pytest.mark.parametrize(("encoding", "compress"), CODINGS)


def test_each_coding_that_the_gateway_takes_is_here() -> None:
    assert {encoding.lower() for encoding, _ in CODINGS} == set(ENCODINGS)


@codings
def test_a_body_in_each_coding_is_stored(encoding: str, compress: Compress) -> None:
    head = f"Content-Encoding: {encoding}"
    assert decode("votes", kept(compress(VOTE), "/votes", head)) == [Vote(poll="p", choice="c")]
    large = VOTE + b"\n" + b" " * 200_000 + VOTE
    assert len(decode("votes", kept(compress(large), "/votes", head))) == 2
    (row,) = decode("metrics", kept(compress(POINT), "/metrics", head))
    assert isinstance(row, Metric) and row.value == 1


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress, lambda data: zlib.compress(gzip.compress(data))])
def test_a_list_of_codings_names_those_that_were_applied_or_one_of_them(compress: Compress) -> None:
    for encoding in "gzip,deflate", "identity, gzip, Deflate":
        assert decode("votes", kept(compress(VOTE), "/votes", f"Content-Encoding: {encoding}")) == [
            Vote(poll="p", choice="c")
        ]
    with pytest.raises(Invalid, match="inflates"):
        inflate_body(zlib.compress(gzip.compress(bytes(5000))), "gzip,deflate", 4999)


@pytest.mark.parametrize("compress", KNOWN_BY_THEIR_FIRST_BYTES)
def test_gzip_and_zstd_are_known_by_their_first_bytes(compress: Compress) -> None:
    assert decode("votes", compress(VOTE)) == [Vote(poll="p", choice="c")]
    assert len(decode("votes", compress(VOTE + b"\n") + compress(VOTE) + b"\0\0")) == 2


@codings
def test_nothing_compressed_is_an_empty_body(encoding: str, compress: Compress) -> None:
    head = f"Content-Encoding: {encoding}"
    assert inflate_body(compress(b""), encoding, 0) == b""
    assert inflate_body(b"", encoding, 0) == b""
    assert decode("metrics", kept(compress(b""), "/metrics", head)) == decode("metrics", kept(b"", "/metrics")) == []


@codings
def test_the_limit_of_the_content_is_exact(encoding: str, compress: Compress) -> None:
    if compress is bytes:
        return
    data = bytes(100_000)
    assert inflate_body(compress(data), encoding, len(data)) == data
    with pytest.raises(Invalid, match="inflates to more than"):
        inflate_body(compress(data), encoding, len(data) - 1)


@codings
def test_a_damaged_or_truncated_body_is_one_dead_letter(encoding: str, compress: Compress) -> None:
    if compress is bytes:
        return
    data = compress(VOTE * 9)
    reason = reject_reason("votes", kept(data[:-1], "/votes", f"Content-Encoding: {encoding}"))
    assert reason.startswith(encoding.lower().removeprefix("x-").removesuffix("-framed"))


@needs("formats")
def test_a_chunk_of_snappy_is_stored_if_its_checksum_is_right() -> None:
    sent = framed(VOTE)
    assert inflate_body(sent + sent, "snappy", 2 * len(VOTE)) == VOTE + VOTE
    checksum = slice(14, 18)  # behind the start of the stream, and the head of the chunk
    wrong = bytearray(sent)
    wrong[checksum] = bytes(4)
    for damaged, reason in (wrong, "snappy: corrupt input"), (sent[:-1], "snappy: truncated"):
        assert reject_reason("votes", kept(bytes(damaged), "/votes", "Content-Encoding: snappy")).startswith(reason)


@needs("formats")
def test_a_window_larger_than_8_mib_is_not_allocated() -> None:
    option = zstd.CompressionParameter
    bomb = zstd.compress(bytes(16 << 20), options={option.window_log: 24, option.content_size_flag: 0})
    assert "too much memory" in reject_reason("votes", bomb)
    fits = zstd.compress(bytes(8 << 20), options={option.window_log: 23})
    assert inflate_body(fits, "", LIMITS.inflated) == bytes(8 << 20)


@pytest.mark.parametrize("compress", KNOWN_BY_THEIR_FIRST_BYTES)
def test_many_members_are_one_dead_letter(compress: Compress) -> None:
    assert inflate_body(compress(b"") * (MEMBERS - 1) + compress(VOTE), "", LIMITS.inflated) == VOTE
    assert "more than 1000 members" in reject_reason("votes", compress(b"") * (MEMBERS + 1))


@codings
def test_a_body_has_the_same_key_in_each_coding(encoding: str, compress: Compress) -> None:
    rule = Rule(60, True)
    plain = kept(POINT, "/metrics")
    sent = kept(compress(POINT), "/metrics", f"Content-Encoding: {encoding}")
    records = decode("metrics", plain)
    assert rule.body_key(sent, records, (), LIMITS) == rule.body_key(plain, records, (), LIMITS) is not None


def test_a_head_with_a_key_means_what_it_means_with_another_field() -> None:
    position = b'{"device":"bus-7","lat":48.1,"lon":11.5,"time":1767268800}'
    nul, as_json = b'{"poll":"p\\u0000","choice":"c"}', "Content-Type: application/json"
    bodies = position, VOTE, POINT, nul, b'{"poll":1}', b"{", b"[]", b'{"poll":"p","choice":"c"}\n{}'
    heads = [[f"Idempotency-Key: {key}"] for key in ("a", '"a"', '"a', "a,b", '"a\\\\"', "a" * 255, "a" * 256)]
    heads += [[as_json, *heads[0]], [*heads[0], as_json], [*heads[0], "Idempotency-Key: b"]]
    heads += [[*heads[0], "Sluice-Sender: b"], [*heads[0], "Sluice-Sender: "], ["Content-Type: text/plain", *heads[0]]]
    paths = "/gps", "/votes", "/plant/write", "/gps?device=a"
    rule = Rule(60, True)
    for stream, body, path, fields in product(("gps", "votes", "metrics"), bodies, paths, heads):
        both = []
        for item in kept(body, path, *fields), kept(body, path, *fields, "X-Other: 1"):
            found = STREAMS[stream].decode(item, LIMITS)
            key = rule.body_key(item, found.records, found.rejects, LIMITS)
            both.append(([*found.records], [reject.reason for reject in found.rejects], found.without_rows, key))
        assert both[0] == both[1], (stream, body, path, fields)


def test_the_invalid_part_of_a_compressed_body_can_be_replayed() -> None:
    item = kept(zlib.compress(VOTE + b"\n{}\n" + VOTE), "/votes", "Content-Encoding: deflate")
    (reject,) = STREAMS["votes"].decode(item, LIMITS).rejects
    assert reject.part == kept(b"{}", "/votes")
