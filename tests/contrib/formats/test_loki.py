"""What Loki's clients push, as JSON and as protobuf: the rows, and requests that are damaged."""

from __future__ import annotations

import gzip
import json
from typing import Any

import cramjam
import pytest

from sluice.contrib.formats.loki import messages
from sluice.contrib.formats.protobuf import encode_field, split_fields, uncompress
from sluice.streams.body import Budget, Remainder
from sluice.streams.record import Invalid, Log, Reject
from support.list_items import LIMITS, decode, kept, reject_reason
from support.table_of_cases import check_each_row

NOON = 1_767_268_800_000_000_000  # 2026-01-01T12:00:00Z
PATH = "/loki/api/v1/push"
PROTOBUF = "Content-Type: application/x-protobuf"


def compressed(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def pushed(*streams: dict[str, Any]) -> bytes:
    """A request in JSON."""
    return kept(json.dumps({"streams": streams}).encode(), PATH, "Content-Type: application/json")


def protobuf(*streams: Any) -> bytes:
    """A request in protobuf."""
    return kept(compressed(messages.Push(streams=streams).SerializeToString()), PATH, PROTOBUF)


def entry(line: str, seconds: int = NOON // 10**9, **more: str) -> Any:
    pairs = [messages.Pair(name=name, value=text) for name, text in more.items()]
    return messages.Entry(timestamp=messages.Timestamp(seconds=seconds), line=line, structured_metadata=pairs)


LABELS = {"job": "api", "level": "WARNING", "service_name": "web"}
ROW = Log(time=NOON, level="warn", service="web", message="full", attributes={"job": "api", "level": "WARNING"})


def test_a_line_is_a_row_with_its_labels_as_attributes() -> None:
    sent = pushed({"stream": LABELS, "values": [[str(NOON), "full"], [str(NOON), "", {"job": "x", "trace": "4b"}]]})
    attributes = {**ROW.attributes, "job_extracted": "x", "trace": "4b"}
    second = Log(time=NOON, level="warn", service="web", message="", attributes=attributes)
    assert decode("logs", sent) == [ROW, second]
    head, body = sent.split(b"\r\n\r\n", 1)
    assert decode("logs", head + b"\r\n\r\n" + gzip.compress(body)) == [ROW, second]
    assert decode("logs", pushed({"values": [["-1", "a"]]})) == [Log(time=-1, message="a")]


# made by Loki's own Go package (grafana/loki/pkg/push, 2025-06-30)
VECTOR = (
    "c301f0c20a99010a4b7b6a6f623d22617069222c206c6576656c3d227761726e222c20736572766963655f6e616d653d22776562222c207061"
    "74683d22433a5c5c78205c22795c225c6e5c7530306130c3bc227d12350a0808c0c3d9ca06100512096469736b2066756c6c1a100a08747261"
    "63655f69641204346266391a0c0a036a6f6212056f7468657212130a0a08c0c3d9ca0610c5843d1205616761696e0a250a097b6170703d2278"
    "227d12180a0808c0c3d9ca061005120cc3bc6ec3af636f6465207b7d"
)


def test_protobuf_is_decoded_as_lokis_own_package_sends_it() -> None:
    labels = {"job": "api", "path": 'C:\\x "y"\n\xa0ü'}
    assert decode("logs", kept(bytes.fromhex(VECTOR), PATH, PROTOBUF)) == [
        Log(
            time=NOON + 5, level="warn", service="web", message="disk full",
            attributes={**labels, "trace_id": "4bf9", "job_extracted": "other"},
        ),
        Log(time=NOON + 1_000_005, level="warn", service="web", message="again", attributes=labels),
        Log(time=NOON + 5, message="ünïcode {}", attributes={"app": "x"}),
    ]  # fmt: skip


@check_each_row(
    ("text", "labels"),
    [
        ("{}", {}),
        (' { a = "b" , c="d", } ', {"a": "b", "c": "d"}),
        (r'{a="\x41\u00fc\U0001F600\a\\\""}', {"a": 'Aü😀\a\\"'}),
        ("", "not labels: ''"),
        ("{a}", "not labels: '{a}'"),
        ('{a="b"', "not labels: '{a=\"b\"'"),
        ('{a="b" c="d"}', 'not labels: \'{a="b" c="d"}\''),
        (r'{a="\ud7ff\ue000\U0010ffff"}', {"a": "\ud7ff\ue000\U0010ffff"}),
        (r'{a="\ud800"}', r"not labels: \ud800"),
        (r'{a="\udfff"}', r"not labels: \udfff"),
        (r'{a="\U00110000"}', r"not labels: \U00110000"),
        (r'{a="\UFFFFFFFF"}', r"not labels: \UFFFFFFFF"),
        (r'{a="\x00"}', "text with a NUL"),
    ],
)
def test_labels_in_protobuf_are_text(text: str, labels: dict[str, str] | str) -> None:
    sent = protobuf(messages.Stream(labels=text, entries=[entry("x")]))
    if isinstance(labels, str):
        assert reject_reason("logs", sent) == labels
    else:
        (row,) = decode("logs", sent)
        assert row.attributes == labels


def test_invalid_lines_are_buried_together_as_a_request_that_can_be_replayed() -> None:
    good = [str(NOON), "full"]
    bad: list[Any] = [[str(2**63), "a"], [str(NOON), "\0"], [str(NOON)], 5, [str(NOON), "x" * LIMITS.record]]
    last = {"stream": LABELS, "values": [good]}
    sent = pushed(
        {"stream": LABELS, "values": [bad[0], good, *bad[1:]]}, {"stream": {"a": "\0"}, "values": [good]}, last
    )
    row, after, reject = decode("logs", sent)
    assert (row, after, reject.reason, reject.whole) == (ROW, ROW, "timestamp out of range", False)
    buried = json.loads(reject.part.split(b"\r\n\r\n")[1])
    assert buried["streams"] == [{"stream": LABELS, "values": bad}, {"stream": {"a": "\0"}, "values": [good]}]
    assert decode("logs", reject.part) == [Reject(reject.part, reject.reason, True)]


@pytest.mark.parametrize("time", [-(2**63), 2**63 - 1])
def test_the_first_and_the_last_time_of_64_bits_are_times(time: int) -> None:
    (row,) = decode("logs", pushed({"stream": LABELS, "values": [[str(time), "full"]]}))
    assert row.time == time
    for beyond in -(2**63) - 1, 2**63:
        reject_reason("logs", pushed({"stream": LABELS, "values": [[str(beyond), "full"]]}))


def test_a_line_may_have_as_many_bytes_as_a_record() -> None:
    value = json.dumps([str(NOON), "full"])
    one = entry("full")
    for sent, size in (
        (pushed({"values": [[str(NOON), "full"]]}), len(value)),
        (protobuf(messages.Stream(labels="{}", entries=[one])), one.ByteSize()),
    ):
        (row,) = decode("logs", sent, LIMITS._replace(record=size))
        assert row.message == "full"
        (reject,) = decode("logs", sent, LIMITS._replace(record=size - 1))
        assert reject.reason == f"line larger than {size - 1} bytes"


def test_invalid_lines_in_protobuf_are_buried_together() -> None:
    text = '{job="api"}'
    lines = [entry("\0"), entry("full"), entry("late", 2**40), entry("x" * LIMITS.record)]
    broken = messages.Stream(labels="{", entries=[entry("b")])
    row, reject = decode("logs", protobuf(messages.Stream(labels=text, entries=lines), broken))
    assert (row.message, reject.reason) == ("full", "text with a NUL")
    part = messages.Push.FromString(uncompress(reject.part.split(b"\r\n\r\n", 1)[1], Budget(LIMITS)))
    assert decode("logs", protobuf(broken, messages.Stream(labels=text, entries=lines[1:2])))[0] == row
    assert list(part.streams) == [messages.Stream(labels=text, entries=[lines[n] for n in (0, 2, 3)]), broken]
    assert decode("logs", reject.part) == [Reject(reject.part, reject.reason, True)]


ONE_LINE = messages.Push(streams=[messages.Stream(labels="{}", entries=[entry("a")])]).SerializeToString()


@check_each_row(
    ("sent", "reason"),
    [
        (kept(b'{"streams":{}}', PATH), "streams is not an array"),
        (kept(b'{"streams":[{"values":1}]}', PATH), "values is not an array"),
        (kept(b'{"streams":[5]}', PATH), "wrong type or range: Expected `object`, got `int`"),
        (kept(b"{}", PATH), "missing: streams"),
        (kept(b"x", PATH, "Content-Type: application/json"), "not JSON: "),
        (kept(b"\xff" * 9, PATH, PROTOBUF), "snappy: "),
        (kept(compressed(b"\x0a"), PATH, PROTOBUF), "not protobuf: truncated"),
        (kept(compressed(b"\x0a\x01\x0a"), PATH, PROTOBUF), "not protobuf: truncated"),
        (kept(compressed(ONE_LINE + b"\x0a"), PATH, PROTOBUF), "not protobuf: truncated"),
        (kept(compressed(b"\x0a\x03\x0a\x01\xff"), PATH, PROTOBUF), "not UTF-8: "),
        (kept(compressed(b"\x0a\x08\x0a\x02{}\x12\x02\x0a\x7f"), PATH, PROTOBUF), "not protobuf: "),
        (kept(compressed(bytes(LIMITS.inflated + 1)), PATH, PROTOBUF), "snappy: inflates to more than"),
    ],
)
def test_a_damaged_request_is_buried_as_a_whole(sent: bytes, reason: str) -> None:
    assert reject_reason("logs", sent).startswith(reason)


def test_fields_that_are_not_known_are_skipped() -> None:
    labels = encode_field(1, b'{n="0"}')
    stream = (
        encode_field(9, b"new") + labels + encode_field(9, b"new") + encode_field(2, entry("a").SerializeToString())
    )
    body = compressed(encode_field(9, b"new") + encode_field(1, stream))
    (row,) = decode("logs", kept(body, PATH, PROTOBUF))
    assert (row.message, row.attributes) == ("a", {"n": "0"})


def test_a_stream_counts_only_for_its_brackets_and_lines() -> None:
    sent = pushed(*[{"stream": {"n": "0"}, "values": [[str(NOON), "x"]]}] * 100)
    assert len(decode("logs", sent, LIMITS._replace(records=300))) == 100


def test_a_stream_without_a_line_counts_as_one() -> None:
    empty = pushed(*({"stream": {"n": "0"}, "values": []} for _ in range(5)))
    for sent in empty, protobuf(*(messages.Stream(labels='{n="0"}') for _ in range(5))):
        assert reject_reason("logs", sent, LIMITS._replace(records=4)) == Remainder.reason
        assert decode("logs", sent, LIMITS._replace(records=50)) == []


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384])
def test_a_field_of_any_length_can_be_written_and_found_among_numbers(size: int) -> None:
    content = bytes(range(256)) * 64 + b"x"
    numbers = b"\x09" + content[:8] + b"\x15" + content[:4] + b"\x18" + b"\xff" * 9 + b"\x01"
    message = numbers + encode_field(4, content[:size]) + numbers
    (field,) = split_fields(message)
    assert (field.number, message[field.content : field.end]) == (4, content[:size])
    with pytest.raises(Invalid, match="number too long"):
        list(split_fields(b"\x18" + b"\xff" * 10 + b"\x01"))


def test_the_rest_of_a_request_with_too_many_lines_is_buried_and_continues_there() -> None:
    values = [[str(NOON), str(n)] for n in range(4)]
    json_ = pushed(*({"stream": {"n": str(n)}, "values": values} for n in range(3)))
    lines = [entry(str(n)) for n in range(4)]
    packed = protobuf(*(messages.Stream(labels=f'{{n="{n}"}}', entries=lines) for n in range(3)))
    every = [(str(stream), str(n)) for stream in range(3) for n in range(4)]
    for sent in json_, packed:
        for records in range(1, 25):
            *rows, last = decode("logs", sent, LIMITS._replace(records=records))
            if isinstance(last, Reject):
                assert last.reason == Remainder.reason
                assert sent is json_ or len(rows) == records
                rows += decode("logs", last.part)
            else:
                assert records >= 12
                rows.append(last)
            assert [(row.attributes["n"], row.message) for row in rows] == every


@pytest.mark.parametrize(
    ("time", "stored"),
    [
        ('"2024-05-08T18:52:26.164724+08:00"', 1_715_165_546_164_724_000),
        ("1715165546164724000", 1_715_165_546_164_724_000),
        ('"1715165546.5"', 1_715_165_546_500_000_000),
        ("1715165546", 1_715_165_546_000_000_000),
    ],
)
def test_a_time_may_be_in_rfc_3339_or_a_number(time: str, stored: int) -> None:
    body = b'{"streams":[{"stream":{},"values":[[%b,"a"]]}]}' % time.encode()
    (found,) = decode("logs", kept(body, "/loki/api/v1/push"))
    assert found == Log(time=stored, message="a")


@pytest.mark.parametrize("path", ["/loki/api/v1/push", "/api/prom/push"])
def test_the_shape_of_loki_before_1_0_is_stored(path: str) -> None:
    entries = (
        b'{"ts":"2024-05-08T10:52:26Z","line":"a"},{"timestamp":"1715165546000000001","line":"b"},{"ts":1,"lime":"c"}'
    )
    body = b'{"streams":[{"labels":"{job=\\"api\\",level=\\"warn\\"}","entries":[%b]}]}' % entries
    one, two, bad = decode("logs", kept(body, path))
    assert one == Log(time=1_715_165_546 * 10**9, level="warn", message="a", attributes={"job": "api"})
    assert (two.time, two.message) == (1_715_165_546_000_000_001, "b")
    assert bad.part.endswith(b'{"labels":"{job=\\"api\\",level=\\"warn\\"}","entries":[{"ts":1,"lime":"c"}]}]}')


def test_no_line_is_stored_twice_or_lost_where_a_request_parsed_whole_is_taken_apart() -> None:
    lines = [[str(10 * stream + n) for n in range(10)] for stream in range(3)]
    lines[1][4] = "\0"
    sent = protobuf(*(messages.Stream(labels='{a="b"}', entries=[*map(entry, some)]) for some in lines))
    for records in range(1, 40):
        found, limits, letters = [], LIMITS._replace(records=records), [sent]
        while letters:
            for result in decode("logs", letters.pop(), limits):
                if isinstance(result, Log):
                    found.append(result.message)
                elif result.reason != "text with a NUL":
                    letters.append(result.part)
            limits = LIMITS
        assert sorted(map(int, found)) == [n for n in range(30) if n != 14]
