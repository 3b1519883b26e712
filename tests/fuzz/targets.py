"""Properties that hold for any bytes: each target is a function that raises if its property does not hold.

`bin/fuzz` generates the bytes; `bin/test` replays those saved in `corpus/`.
"""

from __future__ import annotations

import base64
import gzip
import importlib
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import cramjam  # noqa: E402
import msgspec  # noqa: E402
from backports import zstd  # noqa: E402
from google.protobuf.message import DecodeError  # noqa: E402

from sluice import settings  # noqa: E402
from sluice.contrib.formats import remote_write_counts  # noqa: E402
from sluice.contrib.formats.codings import inflate_snappy  # noqa: E402
from sluice.contrib.formats.otlp import Protobuf  # noqa: E402
from sluice.contrib.formats.prometheus import messages  # noqa: E402
from sluice.contrib.formats.register import MSGPACK, ZSTD  # noqa: E402
from sluice.contrib.formats.spans import Span  # noqa: E402
from sluice.http.request import sender_head  # noqa: E402
from sluice.streams import built_in as streams  # noqa: E402
from sluice.streams import custom, registry  # noqa: E402
from sluice.streams.body import BOM  # noqa: E402
from sluice.streams.decoder import SEPARATE_REJECTS  # noqa: E402
from sluice.streams.encoding import GZIP, inflate_body  # noqa: E402
from sluice.streams.message import parse_message, sender_of  # noqa: E402
from sluice.streams.record import Gps, Invalid, Log, Record, Reject  # noqa: E402
from sluice.streams.registry import Stream  # noqa: E402
from support import generated_requests  # noqa: E402

# what decoders import late: here it is instrumented
LATE = (
    "collectd",
    "datadog",
    "envelopes",
    "gelf",
    "geojson",
    "journal",
    "logpush",
    "loki",
    "msgpack",
    "otlp_logs",
    "otlp_metrics",
    "otlp_traces",
    "prometheus",
    "reports",
)
for name in (*LATE, "firehose"):
    importlib.import_module(f"sluice.contrib.formats.{name}")
LIMITS = registry.body_limits(settings.load_settings({}))
UNNAMED = "any", "gps", "overland", "owntracks", "traccar"
HEAD = b"POST /any HTTP/1.1\r\nContent-Encoding: gzip\r\n\r\n"


class Odd(Record):
    """A user-defined stream, with a field of each kind."""

    name: str
    ts: str = ""
    count: int = 1
    real: float = 0.0
    flag: bool = False
    many: list[int] = []
    tags: dict[str, str] | None = None


STREAMS = {**streams.STREAMS, "own": custom.stream("own", Odd)}
GOOD = {
    "metrics": b'{"name":"room","value":21.5}',
    "gps": b'{"device":"a1","lat":48.1,"lon":11.6}',
    "votes": b'{"poll":"cookies","choice":"oreo"}',
    "logs": b'{"message":"a"}',
    "spans": b'{"trace_id":"a","span_id":"b","name":"c"}',
    "own": b'{"name":"a"}',
}


def metrics(data: bytes) -> None:
    """JSON, forms, line protocol and Telegraf's JSON."""
    decoder(STREAMS["metrics"], data)


def gps(data: bytes) -> None:
    """JSON, forms, OwnTracks, Overland and Traccar."""
    decoder(STREAMS["gps"], data)


def plain(data: bytes) -> None:
    """Votes, logs, spans, and a user-defined stream."""
    decoder(STREAMS["votes"], data)
    decoder(STREAMS["logs"], data)
    decoder(STREAMS["spans"], data)
    decoder(STREAMS["own"], data)


def influx(data: bytes) -> None:
    """Line protocol; the fast path and the full grammar agree."""
    head = b"POST /write HTTP/1.1\r\n\r\n"
    may_be_empty = not data.strip() or data.startswith((GZIP, ZSTD, BOM))  # then there is no record in it
    results = promises(STREAMS["metrics"], head + data)
    if may_be_empty:
        return
    # a quote anywhere in the body switches to another search for line ends
    same(results, promises(STREAMS["metrics"], head + b'#"\n' + data))
    for line in data.split(b"\n"):
        if not any(odd in line for odd in (b'"', b"\\", b"  ", b"#", b"\r")) and b" " in line.strip(b" "):
            first, _, rest = line.strip(b" ").partition(b" ")
            quick, whole = (
                promises(STREAMS["metrics"], head + b"a v=1\n" + first + gap + rest) for gap in (b" ", b"  ")
            )
            assert good(quick) == good(whole), f"{line!r} depends on its spaces"


def prometheus(data: bytes) -> None:
    """Remote write: an uncompressed request, of both versions, and the same compressed. The gateway counts alike."""
    for version in b"prometheus.WriteRequest", b"io.prometheus.write.v2.Request":
        head = b"POST /api/v1/write HTTP/1.1\r\nContent-Type: application/x-protobuf;proto=%b\r\n" % version
        if data.strip() and not data.startswith((GZIP, ZSTD)) and not is_block(data):  # see Decoder.unpack
            results = promises(STREAMS["metrics"], head + b"\r\n" + data)
            block = bytes(cramjam.snappy.compress_raw(data))
            same(results, promises(STREAMS["metrics"], head + b"Content-Encoding: snappy\r\n\r\n" + block))
        promises(STREAMS["metrics"], head + b"Content-Encoding: snappy\r\n\r\n" + data)
    try:
        counted = remote_write_counts.count_parts(data, len(data))
        series = messages.Request2.FromString(data).timeseries
    except (remote_write_counts.Uncounted, IndexError, DecodeError):
        return
    assert counted == tuple(sum(len(getattr(each, name)) for each in series) for name in remote_write_counts.NAMES)


def is_block(data: bytes) -> bool:
    """Whether snappy uncompresses these bytes."""
    try:
        inflate_snappy(data, LIMITS.inflated)
        return True
    except Invalid:
        return False


def loki(data: bytes) -> None:
    """A push to Loki as JSON, as protobuf, and as bytes that may be a snappy block."""
    head = b"POST /loki/api/v1/push HTTP/1.1\r\n"
    promises(STREAMS["logs"], head + b"\r\n" + data)
    head += b"Content-Type: application/x-protobuf\r\n\r\n"
    promises(STREAMS["logs"], head + data)
    promises(STREAMS["logs"], head + bytes(cramjam.snappy.compress_raw(data)))


def otlp(data: bytes) -> None:
    """A request of OTLP for metrics, logs and traces, as JSON and as protobuf; and the same compressed.

    A message that is decoded as a whole has the results of its children one by one.
    """
    for signal, stream in {"metrics": STREAMS["metrics"], "logs": STREAMS["logs"], "traces": STREAMS["spans"]}.items():
        for kind in b"json", b"x-protobuf":
            head = b"POST /v1/%b HTTP/1.1\r\nContent-Type: application/%b\r\n" % (signal.encode(), kind)
            results = promises(stream, head + b"\r\n" + data)
            Protobuf.at_once = False
            same(results, promises(stream, head + b"\r\n" + data))
            Protobuf.at_once = True
            if not data.startswith((GZIP, ZSTD, BOM)):
                packed = head + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(data, 1)
                same(results, promises(stream, packed))


def gelf(data: bytes) -> None:
    """Graylog's messages, as they are and packed by zlib."""
    for body in data, zlib.compress(data):
        promises(STREAMS["logs"], b"POST /gelf HTTP/1.1\r\n\r\n" + body)


def reports(data: bytes) -> None:
    """Reports of browsers."""
    promises(STREAMS["logs"], b"POST /reports HTTP/1.1\r\n\r\n" + data)


def posted(data: bytes) -> None:
    """Entries of systemd's journal, also behind a valid one, Datadog's and Cloudflare's logs, MessagePack, and
    Firehose's deliveries.
    """
    promises(STREAMS["logs"], b"POST /upload HTTP/1.1\r\n\r\n" + data)
    promises(STREAMS["logs"], b"POST /upload HTTP/1.1\r\n\r\nMESSAGE=a\n\n" + data)
    promises(STREAMS["logs"], b"POST /api/v2/logs?service=a HTTP/1.1\r\n\r\n" + data)
    promises(STREAMS["logs"], b"POST /logpush HTTP/1.1\r\n\r\n" + data)
    promises(STREAMS["logs"], b"\x81\xa3msg\xa1a" + data)
    firehose = b"POST /firehose HTTP/1.1\r\nX-Amz-Firehose-Request-Id: a\r\n\r\n"
    promises(STREAMS["logs"], firehose + data)
    promises(STREAMS["logs"], firehose + b'{"records":[{"data":"%b"}]}' % base64.b64encode(data))


def collectd(data: bytes) -> None:
    """collectd's JSON and its commands."""
    promises(STREAMS["metrics"], b"POST /collectd HTTP/1.1\r\n\r\n" + data)


def cloudevents(data: bytes) -> None:
    """CloudEvents for a user-defined stream: as the event, as its `data`, and in a batch."""
    event = b'{"specversion":"1.0","data":%b}' % data
    for body in data, event, b"[%b]" % event:
        promises(STREAMS["own"], body)


def v3(data: bytes) -> None:
    """Line protocol without a precision, as version 3 of InfluxDB takes it."""
    promises(STREAMS["metrics"], b"POST /api/v3/write_lp HTTP/1.1\r\n\r\n" + data)


def packed(data: bytes) -> None:
    """gzip: several members, trailing zeros, damage. The result, if any, is that of the standard library."""
    choices = generated_requests.Choices(data)
    content, whole = b"", bytearray()
    for _ in range(1 + choices.number(3)):
        part = bytes(choices.number(256) for _ in range(choices.number(8))) * (1 + choices.place(2000))
        content += part
        whole += gzip.compress(part, choices.number(10), mtime=0)
    whole += bytes(choices.number(4))
    assert inflate_body(bytes(whole), "", len(content)) == content
    if content:
        try:
            inflate_body(bytes(whole), "", len(content) - 1)
        except Invalid:
            pass
        else:
            raise AssertionError("the limit is not kept")
    for _ in range(choices.number(3)):
        whole[choices.place(len(whole) - 1)] ^= 1 << choices.number(8)
    del whole[choices.place(len(whole)) if choices.seldom() else len(whole) :]
    if not whole.startswith(GZIP):
        return
    try:
        given = inflate_body(bytes(whole), "", LIMITS.inflated)
    except Invalid:
        return
    # unlike zlib, the standard library ignores a wrong header checksum and other defects
    assert given == gzip.decompress(bytes(whole))


CODINGS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("zstd", zstd.compress),
    ("deflate", zlib.compress),
    ("deflate", lambda data: zlib.compress(data, wbits=-15)),
    ("snappy", lambda data: bytes(cramjam.snappy.compress_raw(data))),
    ("snappy", lambda data: bytes(cramjam.snappy.compress(data))),
)


def encodings(data: bytes) -> None:
    """The codings besides gzip: compressed bytes inflate to themselves, others within the limit."""
    where = data[0] if data else 0
    for coding, compress in CODINGS:
        whole = compress(data)
        assert inflate_body(whole, coding, len(data)) == data
        if not whole:  # the framing of snappy, of nothing
            continue
        damaged = bytearray(whole)
        damaged[where % len(whole)] ^= 1 << where % 8
        for sent, limit in (data, 1 << 20), (bytes(damaged), 1 << 20), (whole, max(0, len(data) - 1)):
            try:
                assert len(inflate_body(sent, coding, limit)) <= max(limit, len(sent))
            except Invalid:
                continue
            assert sent is not whole or not data, "the limit is not kept"


def multipart(data: bytes) -> None:
    """Forms of browsers, as the body itself and as a field and a file of one."""
    head = b"POST /any HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
    field = b'--b\r\nContent-Disposition: form-data; name="message"%b\r\n\r\n%b\r\n'
    # what begins as JSON is taken for it, whatever the head says; a part of it may not begin so
    plain = () if data.startswith((b"{", b"[")) else (data,)
    for body in *plain, field % (b"", data) + field % (b'; filename="a"', data) + b"--b--\r\n":
        for name in "logs", "votes":
            promises(STREAMS[name], head + body)


everywhere = generated_requests.Everywhere()


def fastlane(data: bytes) -> None:
    """The fast lane declines, or agrees with gunicorn's parser.

    The first byte says where the request arrives, and whether the rest is choices for `generated_requests` or the bytes
    themselves, in one piece or in two.
    """
    first, rest = data[:1] or b"\0", data[1:]
    place = everywhere.places[first[0] % len(everywhere.places)]
    if first[0] >= 128:
        choices = generated_requests.Choices(rest)
        sent = generated_requests.stream(choices)
        place.check(generated_requests.pieces(choices, sent))
    else:
        place.check([rest])
        place.check([part for part in (rest[: len(rest) // 2], rest[len(rest) // 2 :]) if part])


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        metrics,
        influx,
        prometheus,
        loki,
        otlp,
        gps,
        plain,
        packed,
        gelf,
        reports,
        posted,
        collectd,
        cloudevents,
        v3,
        encodings,
        multipart,
        fastlane,
    )
}


def decoder(stream: Stream, item: bytes) -> None:
    """The promises of docs/protocol/http.md, for an item and its equivalents."""
    results = promises(stream, item)
    if not parse_or_none(item):
        named = promises(stream, sender_head("acme") + item)
        assert [result.reason if isinstance(result, Reject) else result for result in named] == [
            result.reason if isinstance(result, Reject) else result for result in results
        ], f"{named} is not {results}"
        assert all(sender_of(result.part) == "acme" for result in named if isinstance(result, Reject))
    if parse_or_none(item) or item.startswith((GZIP, ZSTD, BOM)) or MSGPACK.match(item) or not item.strip():
        return
    # a byte order mark is ignored, but disables the fast path
    same(results, promises(stream, BOM + item))
    same(results, promises(stream, gzip.compress(item, 1)))
    same(results, promises(stream, HEAD + item))
    same(results, promises(stream, HEAD + gzip.compress(item, 1)))
    if is_object(item):
        same(results, promises(stream, b" [ " + item + b"\t]"))
    if b"\n" not in item and item == item.strip():
        first, *others = promises(stream, GOOD[stream.name] + b"\n" + item)
        assert isinstance(first, Record)
        if not good(results):  # rejected as a whole, for the first reason; a comment in a line has no result
            assert not good(others)
            results, others = results[: len(others)], others[:1]
        same(results, others)


def promises(stream: Stream, item: bytes) -> list[Record | Reject]:
    """The results of an item. Raises: AssertionError if they break a promise."""
    results = list(stream.decode(item, LIMITS))
    rejects = 0
    for result in results:
        if not isinstance(result, Reject):
            assert type(result) is stream.record
            storable(result)
            continue
        assert result.reason and len(result.reason) <= 200 and result.reason.isprintable(), result.reason
        result.reason.encode()
        assert result.whole == (len(results) == 1 and result.part == item), "whole or not"
        rejects += 1
        if not result.whole and rejects <= SEPARATE_REJECTS:  # the later ones are buried together
            again = list(stream.decode(result.part, LIMITS))
            assert again == [Reject(result.part, result.reason, True)], f"{result} becomes {again}"
    return results


def storable(record: Record) -> None:
    """Check that any database can hold a record."""
    for value in (getattr(record, name) for name in record.__struct_fields__):
        for part in [*value, *value.values()] if isinstance(value, dict) else [value]:
            assert not isinstance(part, str) or (part.encode() is not None and "\0" not in part)
            assert isinstance(record, (Log, Span)) or not isinstance(part, int) or -(2**63) <= part < 2**63
            assert not isinstance(part, float) or part - part == 0
    assert record.time is None or -(2**63) <= record.time < 2**63


def good(results: Iterable[Record | Reject]) -> list[Record]:
    """The records among the results."""
    return [result for result in results if isinstance(result, Record)]


def same(one: list[Record | Reject], other: list[Record | Reject]) -> None:
    """Check that two equivalent items have the same records and the same reasons."""
    assert [plainly(x) for x in one] == [plainly(x) for x in other], f"{one} is not {other}"


def plainly(result: Record | Reject) -> object:
    """A record, or the reason of a reject without its position. A device that is not named has that of the path."""
    if isinstance(result, Gps) and result.device in UNNAMED:
        return msgspec.structs.replace(result, device="")
    return re.sub(r"\(byte \d+\)", "", result.reason) if isinstance(result, Reject) else result


def parse_or_none(item: bytes) -> bool:
    """Whether an item is a kept message, possibly with an incomplete head."""
    try:
        return parse_message(item) is not None
    except Invalid:
        return True


def is_object(item: bytes) -> bool:
    """Whether an item is one JSON object."""
    try:
        return isinstance(json.loads(item.decode()), dict)
    except (ValueError, RecursionError):
        return False
