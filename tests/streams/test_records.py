"""Every decoder: its guarantees for any bytes, arrays and lines, gzip, times, and user-defined streams."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as profiles
from hypothesis import strategies as st

from sluice import settings
from sluice.streams.body import INVALID_COST, Budget, split_elements
from sluice.streams.built_in import STREAMS, load_streams
from sluice.streams.custom import stream
from sluice.streams.message import parse_message
from sluice.streams.record import Decoded, Gps, Log, Metric, Record, Reject, Vote
from sluice.streams.registry import Stream
from sluice.streams.schema import stream_problem, valid_name
from sluice.streams.times import nanoseconds
from support import peak_memory
from support.folders import has, needs
from support.list_items import LIMITS, decode, kept, reject_reason
from support.table_of_cases import check_each_row

profiles.register_profile("formats", deadline=None)  # a busy machine is no failure
profiles.load_profile("formats")
GOOD = {
    "metrics": b'{"name":"room","value":21.5}',
    "gps": b'{"device":"a1","lat":48.1,"lon":11.6}',
    "votes": b'{"poll":"cookies","choice":"oreo"}',
    "logs": b'{"message":"oreo","level":"info"}',
    "spans": b'{"trace_id":"ab","span_id":"cd","name":"oreo"}',
}
BAD = {
    "metrics": b'{"name":"room"}',
    "gps": b'{"device":"a1","lat":91,"lon":11.6}',
    "votes": b'{"poll":"cookies"}',
    "logs": b'{"level":"info"}',
    "spans": b'{"trace_id":"ab","span_id":"cd"}',
}
FORMS = {
    "metrics": b"name=room&value=21.5",
    "gps": b"device=a1&lat=48.1&lon=11.6",
    "votes": b"poll=cookies&choice=oreo",
    "logs": b"level=info&message=oreo",
    "spans": b"trace_id=ab&span_id=cd&name=oreo",
}
RECORDS = {
    "metrics": Metric(name="room", tags={}, field="value", value=21.5, type="float"),
    "gps": Gps(device="a1", lat=48.1, lon=11.6),
    "votes": Vote(poll="cookies", choice="oreo"),
    "logs": Log(level="info", message="oreo"),
}
if "spans" in STREAMS:
    RECORDS["spans"] = cast("Any", STREAMS["spans"].record)(trace_id="ab", span_id="cd", name="oreo")
HEAD = b"POST /anything?x=1 HTTP/1.1\r\nHost: a\r\n"
PLAIN = [name for name in STREAMS if name in GOOD]  # whose bodies are the fields of their records
every_stream = pytest.mark.parametrize("name", PLAIN)
# logs stores any line, and any field
streams_with_a_grammar = pytest.mark.parametrize("name", [name for name in PLAIN if name != "logs"])


# --- one body of each kind


@every_stream
def test_a_plain_object_takes_the_fast_path(name):
    assert STREAMS[name].decode(GOOD[name], LIMITS) == Decoded((RECORDS[name],))


@every_stream
@check_each_row(
    "wrap",
    [
        lambda x: b"[" + x + b"]",
        lambda x: b" \r\n\t" + x + b"\n",
        lambda x: b"\xef\xbb\xbf" + x,
        lambda x: x.replace(b",", b",\n  "),
        lambda x: gzip.compress(x),
        lambda x: HEAD + b"\r\n" + x,
        lambda x: HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"[" + x + b"]"),
    ],
)
def test_an_object_is_the_same_record_in_any_wrapping(name, wrap):
    assert decode(name, wrap(GOOD[name])) == [RECORDS[name]]


@streams_with_a_grammar
def test_an_unknown_field_is_ignored_whatever_it_has(name):
    more = b',"unknown":{"time":[1,{"name":"\xff"}],"lat":null}}'
    assert decode(name, GOOD[name][:-1] + more) == [RECORDS[name]]


@every_stream
def test_an_array_ndjson_and_a_form_are_records(name):
    good, record = GOOD[name], RECORDS[name]
    assert decode(name, b"[" + good + b" ,\n" + good + b"]") == [record, record]
    assert decode(name, good + b"\r\n\n" + good + b"\n") == [record, record]
    assert decode(name, good + b"\n" + good) == [record, record]
    assert decode(name, FORMS[name]) == [record]
    assert decode(name, gzip.compress(FORMS[name])) == [record]
    for nothing in (b"", b"\r\n", gzip.compress(b"")):
        assert decode(name, kept(nothing, "/any?" + FORMS[name].decode())) == [record]
    # the query string replaces the whole body, not one line of it
    assert len(decode(name, kept(good + b"\n\xef\xbb\xbf\n" + good, "/any?" + FORMS[name].decode()))) == 3


@every_stream
@check_each_row("item", [b"", b" \n", b"[]", b"[ ]"])
def test_a_body_without_a_record_is_valid(name, item):
    assert decode(name, item) == []


@every_stream
def test_an_object_without_a_field_is_invalid(name):
    assert reject_reason(name, b"{}")


@streams_with_a_grammar
@check_each_row("item", [b"null", b"5", b'"a"', b"hello", b"=", b"&", b"a=b"])
def test_a_text_that_is_no_record_is_one_reject_of_the_whole_body(name, item):
    assert reject_reason(name, item)


@every_stream
def test_the_records_have_time_first(name):
    assert STREAMS[name].record.__struct_fields__[0] == "time"
    assert issubclass(STREAMS[name].record, Record)


# --- an invalid record does not affect the others


@every_stream
@check_each_row("at", [0, 1, 2])
def test_an_invalid_element_of_an_array_is_buried_alone(name, at):
    parts = [GOOD[name], GOOD[name]]
    parts.insert(at, BAD[name])
    *records, reject = decode(name, b"[" + b", ".join(parts) + b"]")
    assert records == [RECORDS[name]] * 2
    assert reject.part == BAD[name] and not reject.whole
    assert reject_reason(name, reject.part) == reject.reason


@every_stream
@check_each_row("bad", [b"{", b'{"a":1]', b"\xff\xfe", b"[1]", b'{"a":"\xff', b"\x1f\x8b\x08"])
def test_an_invalid_line_of_ndjson_is_buried_alone(name, bad):
    results = decode(name, GOOD[name] + b"\n" + bad + b"\n" + GOOD[name])
    assert results[:2] == [RECORDS[name]] * 2
    assert not results[2].whole
    assert reject_reason(name, results[2].part) == results[2].reason


@streams_with_a_grammar
def test_lines_beyond_the_limit_are_buried_together_after_an_invalid_one(name):
    lines = [b"{", *[GOOD[name]] * 9]
    *records, first, rest = decode(name, b"\n".join(lines), LIMITS._replace(records=INVALID_COST + 3))
    assert first.part == b"{"
    assert records == [RECORDS[name]] * len(records) and 0 < len(records) < 9
    assert rest.part == b"\n".join(lines[1 + len(records) :]) and not rest.whole


@pytest.mark.parametrize("name", ["gps", "votes"])
def test_an_invalid_first_line_does_not_affect_the_others(name):
    for bad in (b"{", b"hello", b'"a":1}'):
        record, reject = decode(name, bad + b"\n" + GOOD[name])
        assert (reject.part, reject.whole, record) == (bad, False, RECORDS[name])


@every_stream
@check_each_row("element", [b"5", b"null", b'"a,]\\""', b"[1,[2]]", b"true", b"-1.5e3"])
def test_an_element_that_is_not_an_object_is_buried_as_an_array(name, element):
    record, reject = decode(name, b"[" + GOOD[name] + b" , " + element + b"\n]")
    assert record == RECORDS[name]
    assert reject == Reject(b"[" + element + b"]", "not a JSON object", False)
    assert reject_reason(name, reject.part) == reject.reason


@every_stream
def test_a_body_of_invalid_records_is_one_reject_of_the_whole_body(name):
    for item in (b"[" + BAD[name] + b"," + BAD[name] + b"]", BAD[name] + b"\n" + BAD[name]):
        assert reject_reason(name, item) == reject_reason(name, BAD[name])


@needs("formats")
@every_stream
def test_objects_may_follow_each_other_on_one_line(name):
    good, bad = GOOD[name], BAD[name]
    for body in good + good, good + b" \t" + good, good + good + b"\n", good + b"\n" + good:
        assert decode(name, body) == [RECORDS[name]] * 2
    assert decode(name, good + b"\n" + good + good + b"\n" + good) == [RECORDS[name]] * 4
    record, reject = decode(name, good + bad)
    assert record == RECORDS[name] and reject == Reject(bad, reject_reason(name, bad), False)
    record, reject = decode(name, good + good[:-1])
    assert record == RECORDS[name] and reject == Reject(good[:-1], reject_reason(name, good[:-1]), False)
    assert reject_reason(name, good + b"x").startswith("not JSON: trailing")
    assert reject_reason(name, good + b"," + good).startswith("not JSON: trailing")
    assert reject_reason(name, good + b"[" + good + b"]").startswith("not JSON: trailing")
    assert reject_reason(name, b'{"a":"}{"').startswith("not JSON: ")


@every_stream
def test_a_truncated_array_is_one_reject_of_the_whole_body(name):
    for item in (b"[" + GOOD[name] + b"," + GOOD[name], b"[" + GOOD[name] + b",\n" + GOOD[name]):
        assert reject_reason(name, item).startswith("not JSON: ")


@every_stream
def test_a_large_array_and_many_lines_are_decoded(name):
    many = 60_000
    for item in (b"[" + b",\n".join([GOOD[name]] * many) + b"]", b"\n".join([GOOD[name]] * many)):
        results = STREAMS[name].decode(item, LIMITS)
        assert results.records == [RECORDS[name]] * many and not results.rejects


def count_records(name, item):
    return len(STREAMS[name].decode(item, LIMITS).records)


@pytest.mark.parametrize("name", ["metrics", "gps", "votes"])
def test_the_records_of_the_largest_body_fit_into_memory(name):
    item = b"[" + b",".join([GOOD[name]] * LIMITS.records) + b"]"
    count, most = peak_memory.peak(count_records, name, item)
    assert count == LIMITS.records and most < 600 * LIMITS.records


@every_stream
def test_a_rejected_part_of_a_kept_message_has_the_head_without_the_encoding(name):
    head = HEAD + b"content-encoding: gzip\r\nContent-Length: 9\r\nX-Limit-U: u\r\n\r\n"
    record, reject = decode(name, head + gzip.compress(b"[" + GOOD[name] + b"," + BAD[name] + b"]"))
    assert record == RECORDS[name]
    assert reject.part == HEAD + b"X-Limit-U: u\r\n\r\n" + BAD[name]
    assert reject_reason(name, reject.part) == reject.reason


@every_stream
def test_many_invalid_records_of_one_body_become_few_dead_letters(name):
    body = GOOD[name] + b"\n" + b"\n".join(BAD[name][:-1] + b',"n":%d}' % n for n in range(4_000))
    record, *rejects = decode(name, gzip.compress(body))
    assert record == RECORDS[name]
    assert 100 < len(rejects) < 110
    assert all(len(reject.part) < 70_000 for reject in rejects)
    assert all(not reject.whole for reject in rejects)
    assert b"\n".join(reject.part for reject in rejects) == body.partition(b"\n")[2]
    assert reject_reason(name, rejects[-1].part) == rejects[-1].reason


MANY = 3_000
FEATURE = b'{"geometry":{"type":"Point","coordinates":[11.6,48.1]},"properties":{}}'
HOLDING_MANY = {
    "lines": ("votes", b"\n".join([GOOD["votes"]] * MANY)),
    "an array": ("votes", b"[" + b",\n".join([GOOD["votes"]] * MANY) + b"]"),
    "forms": ("votes", b"\n".join([FORMS["votes"]] * MANY)),
    "line protocol": ("metrics", kept(b"\n".join([b"room value=21.5"] * MANY), "/write?precision=s")),
    "Telegraf's JSON": (
        "metrics",
        b'{"metrics":[' + b",".join([b'{"name":"room","fields":{"value":21.5}}'] * MANY) + b"]}",
    ),
    "Overland's JSON": ("gps", b'{"device_id":"a1","locations":[' + b",".join([FEATURE] * MANY) + b"]}"),
}


OF_FORMATS = "line protocol", "Telegraf's JSON", "Overland's JSON"


def kinds(table: Iterable[str]) -> pytest.MarkDecorator:
    marked = {kind: needs("formats") if kind in OF_FORMATS else () for kind in table}
    return pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks) for kind, marks in marked.items()])


@kinds(HOLDING_MANY)
def test_the_part_of_a_body_beyond_its_limit_is_buried_undecoded_and_can_be_replayed(kind):
    name, body = HOLDING_MANY[kind]
    found = []
    while body:
        *some, last = decode(name, body, LIMITS._replace(records=1_000))
        assert len(some) <= 1_000
        body = b""
        if isinstance(last, Reject):
            body, reason, whole = last
            assert (reason, whole) == ("too much in one body: the rest was not decoded", False)
        else:
            some.append(last)
        found += some
    assert len(found) == MANY
    assert all(record == RECORDS[name] for record in found)


INVALID_AMONG_VALID = {
    "lines": ("votes", GOOD["votes"], BAD["votes"], b"%b\n%b\n%b\n%b"),
    "an array": ("votes", GOOD["votes"], BAD["votes"], b"[%b,%b,%b,%b]"),
    "forms": ("votes", FORMS["votes"], b"poll=x", b"%b\n%b\n%b\n%b"),
    "line protocol": ("metrics", b"room value=21.5", b"room", b"%b\n%b\n%b\n%b"),
    "Telegraf's JSON": (
        *("metrics", b'{"name":"room","fields":{"value":21.5}}', b'{"name":"room","fields":{}}'),
        b'{"metrics":[%b,%b,%b,%b]}',
    ),
    "Overland's JSON": ("gps", FEATURE, b"{}", b'{"device_id":"a1","locations":[%b,%b,%b,%b]}'),
}


@kinds(INVALID_AMONG_VALID)
def test_an_invalid_record_counts_as_several_records_of_the_limit(kind):
    name, good, bad, body = INVALID_AMONG_VALID[kind]
    item = body % (good, bad, good, good)

    def decoded(records: int) -> list[str]:
        return [x.reason if isinstance(x, Reject) else "" for x in decode(name, item, LIMITS._replace(records=records))]

    least = 1 + INVALID_COST + 1 + 1
    limit = next(limit for limit in range(least, least + 6) if len(decoded(limit)) == 4 and decoded(limit)[2] == "")
    (reason,) = filter(None, decoded(limit))
    too_many = "too much in one body: the rest was not decoded"
    assert decoded(limit) == ["", "", "", reason]
    assert decoded(limit - 1) == ["", "", reason, too_many]
    assert decoded(limit - 2) == ["", reason, too_many]


@pytest.mark.parametrize(
    "blank, name", [(b"", "votes"), (b" \t", "votes"), pytest.param(b"# a comment", "metrics", marks=needs("formats"))]
)
def test_a_line_without_a_record_counts_as_one_record_of_the_limit(blank, name):
    good = GOOD["votes"] if name == "votes" else b"room value=21.5"
    item = b"\n".join([good, blank or b" ", b"x", good, good])
    assert sum(isinstance(x, Record) for x in decode(name, item, LIMITS._replace(records=INVALID_COST + 4))) == 3
    assert sum(isinstance(x, Record) for x in decode(name, item, LIMITS._replace(records=INVALID_COST + 3))) == 2


@pytest.mark.parametrize(
    "name, row",
    [
        ("votes", b"x"),
        ("votes", b"{}"),
        ("metrics", b"x"),
        ("metrics", b"#"),
        ("gps", b"["),
        ("gps", b"\r"),
        ("gps", b"[" + b"[]," * 200 + b"[]]"),
    ],
)
def test_a_body_of_empty_or_invalid_lines_is_decoded_up_to_its_limit(name, row):
    """8 KB of gzip may inflate to four million lines; decoding all would delay the other streams."""
    rows = (row + b"\n") * ((8 << 20) // len(row + b"\n") - 100)
    first, *rejects = decode(name, gzip.compress(GOOD[name] + b"\n" + rows + GOOD[name], 1))
    assert first == RECORDS[name]
    assert len(rejects) < 250
    assert rejects[-1].reason == "too much in one body: the rest was not decoded"
    # most of the body is left undecoded, byte for byte
    assert (GOOD[name] + b"\n" + rows + GOOD[name]).endswith(rejects[-1].part)
    assert len(rejects[-1].part) > len(rows) // 2


def test_an_object_with_a_syntax_error_has_its_own_reason():
    assert reject_reason("votes", b'{"poll":') == "not JSON: Input data was truncated"
    assert reject_reason("votes", b'{"poll":}') == "not JSON: invalid character (byte 8)"


def test_elements_are_found_between_brackets_quotes_and_escapes():
    parts = [b'{"a":"]}\\"["}', b'"x,\\\\"', b"[[],{}]", b'{"a":{"b":["}"]}}', b"1", b"null", b"{}", b'""', b"[]"]
    assert list(split_elements(b"[ " + b" ,\n".join(parts) + b"\t]", Budget(LIMITS))) == parts
    assert list(split_elements(b"[" + b",".join(parts) + b"]", Budget(LIMITS))) == parts


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_elements_are_those_of_the_json_module(value):
    text = json.dumps([value, value], indent=1).encode()
    assert [json.loads(x) for x in split_elements(text, Budget(LIMITS))] == [value, value]


# --- gzip


def test_gzip_of_several_members_and_zeros_behind_it_is_one_body():
    good = GOOD["votes"]
    assert decode("votes", gzip.compress(good[:9]) + gzip.compress(good[9:])) == [RECORDS["votes"]]
    assert decode("votes", gzip.compress(good) + b"\0" * 100) == [RECORDS["votes"]]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (gzip.compress(GOOD["votes"])[:-1], "gzip: truncated"),
        (gzip.compress(GOOD["votes"])[:12], "gzip: truncated"),
        (b"\x1f\x8b", "gzip: truncated"),
        (gzip.compress(GOOD["votes"]) + b"x", "gzip: other bytes after the last member"),
        (gzip.compress(GOOD["votes"]) + GOOD["votes"], "gzip: other bytes after the last member"),
        (gzip.compress(gzip.compress(GOOD["votes"], mtime=0)), "neither JSON nor a form"),
        pytest.param(b"\x28\xb5\x2f\xfd\x00", "zstd: truncated", marks=needs("formats")),
    ],
)
def test_gzip_that_is_truncated_or_followed_by_other_bytes_is_invalid(item, reason):
    assert reject_reason("votes", item) == reason


def test_damaged_gzip_is_invalid():
    item = bytearray(gzip.compress(GOOD["votes"] * 9))
    item[-6] ^= 1  # its checksum
    assert reject_reason("votes", bytes(item)).startswith("gzip: ")
    assert reject_reason("votes", b"\x1f\x8b\x07" + bytes(20)).startswith("gzip: ")


def test_the_limit_of_inflated_bytes_is_exact():
    good = GOOD["votes"]
    assert decode("votes", gzip.compress(good), LIMITS._replace(inflated=len(good))) == [RECORDS["votes"]]
    assert (
        reject_reason_at("votes", gzip.compress(good), len(good) - 1)
        == f"gzip: inflates to more than {len(good) - 1} bytes"
    )
    bomb = gzip.compress(bytes(50 << 20))
    assert reject_reason_at("votes", bomb, LIMITS.inflated) == f"gzip: inflates to more than {LIMITS.inflated} bytes"
    assert reject_reason_at("votes", gzip.compress(good) * 1000, 2000) == "gzip: inflates to more than 2000 bytes"


def reject_reason_at(name: str, item: bytes, limit: int) -> str:
    (reject,) = decode(name, item, LIMITS._replace(inflated=limit))
    assert reject.whole and reject.part == item
    return reject.reason


def test_a_zlib_stream_is_not_gzip():
    assert reject_reason("votes", zlib.compress(GOOD["votes"])) == "neither JSON nor a form"


# --- kept messages


def test_a_kept_message_is_recognised_by_its_request_line():
    assert parse_message(b"POST / HTTP/1.1\r\n\r\n").body == b""
    assert parse_message(b"POST /a?b=c HTTP/1.0\r\nA: 1\r\n\r\nbody\r\n\r\n").body == b"body\r\n\r\n"
    for item in (
        b"POST a HTTP/1.1\r\n\r\n",
        b"POST /a b HTTP/1.1\r\n\r\n",
        b" POST / HTTP/1.1\r\n\r\n",
        b"POST /a=1",
        b"",
    ):
        assert parse_message(item) is None
    assert reject_reason("votes", b"POST / HTTP/1.1\r\nA: 1\r\n") == "kept message: the head is incomplete"


def test_a_kept_message_has_fields_and_parameters():
    message = parse_message(kept(b"", "/a/b?u=a%20b&d=&d=x&u=c", "X-Limit-U:  Jos\u00e9 ", "x-limit-u: b", "Odd"))
    assert (message.path, message.field("x-LIMIT-u"), message.field("nothing")) == ("/a/b", "Jos\u00e9", "")
    assert (message.parameter("u"), message.parameter("d"), message.parameter("e")) == ("a b", "x", "")


# --- times


@check_each_row(
    ("written", "nanoseconds"),
    [
        ("1766600000", 1766600000_000000000),
        ("1766600000123", 1766600000_123000000),
        ("1766600000123456", 1766600000_123456000),
        ("1766600000123456789", 1766600000_123456789),
        ("1766600000.123", 1766600000_123000000),
        ("1766600000.000001", 1766600000_000001000),
        ("1766600000123.5", 1766600000_123500000),
        ("1766600000123456.5", 1766600000_123456000),
        ("1", 1_000000000),
        ('"1"', 1_000000000),
        ("100000000001", 100000000_001000000),
        ("7258118399", 7258118399_000000000),
        ("1.7666e9", 1766600000_000000000),
        ('"1766600000"', 1766600000_000000000),
        ('" 1766600000.123 "', 1766600000_123000000),
        ('"1766600000123456789"', 1766600000_123456789),
        ('"2025-12-24T18:13:20Z"', 1766600000_000000000),
        ('"2025-12-24t18:13:20z"', 1766600000_000000000),
        ('"2025-12-24 18:13:20"', 1766600000_000000000),
        ('"2025-12-24T18:13:20.123456789Z"', 1766600000_123456789),
        ('"2025-12-24T18:13:20,5+00:00"', 1766600000_500000000),
        ('"2025-12-24T20:13:20+02:00"', 1766600000_000000000),
        ('"2025-12-24T20:13:20+0200"', 1766600000_000000000),
        ('"2025-12-24T20:13:20+02"', 1766600000_000000000),
        ('"2025-12-24T20:13:20 02:00"', 1766600000_000000000),
        ('"2025-12-24T11:13:20-0700"', 1766600000_000000000),
        ('"20251224T181320Z"', 1766600000_000000000),
        ('"2025-12-24T18:13Z"', 1766599980_000000000),
        ('"2025-12-24"', 1766534400_000000000),
        ('"2016-12-31T23:59:60Z"', 1483228800_000000000),
        ('"2017-01-01T01:59:60.5+02:00"', 1483228800_500000000),
        ('"20161231T235960Z"', 1483228800_000000000),
        ('"1970-01-01T00:00:01Z"', 1_000000000),
        ("null", None),
        ('""', None),
    ],
)
@check_each_row("key", ["time", "ts", "timestamp"])
@every_stream
def test_every_form_of_time_is_converted_to_nanoseconds(name, key, written, nanoseconds):
    (record,) = decode(name, GOOD[name][:-1] + f',"{key}":{written}}}'.encode())
    assert record.time == nanoseconds


@needs("formats")
@check_each_row(
    "written",
    [
        "0",
        "-1",
        "7258118400",
        "99999999999",
        "99999999999999",
        "99999999999999999999",
        "1e300",
        '"0"',
        '"2200-01-01"',
        '"1970-01-01T00:00:00Z"',
        '"1969-12-31T23:59:59Z"',
        '"1970-01-01T00:00:01+00:01"',
        '"0001-01-01T00:00:00+14:00"',
        '"2025-13-01"',
        '"2016-12-31T12:59:60Z"',
        '"2016-12-31T23:59:61Z"',
        '"2025-12-24T25:00:00Z"',
        '"2025-12-24T25:00:Z"',
        '"2025-12-24T25:00:00.Z"',
        '"20251224T120000.123.5Z"',
        '"now"',
        '"nan"',
        '"\u0661\u0662"',
        '"1_000_000_000"',
        "true",
        "[]",
    ],
)
# a plain span is decoded as a record of a user's own stream
@check_each_row("name", [name for name in PLAIN if name != "spans"])
def test_a_time_that_is_not_understood_does_not_cost_the_record(name, written):
    (record,) = decode(name, GOOD[name][:-1] + f',"time":{written}}}'.encode())
    assert record.time is None


def test_time_takes_precedence_over_ts_and_timestamp():
    body = b'{"poll":"a","choice":"b","timestamp":3,"ts":2,"time":1}'
    assert decode("votes", body)[0].time == 1_000000000
    assert decode("votes", body.replace(b'"time":1', b'"time":null'))[0].time == 2_000000000


@given(st.integers(1, 7258118399), st.integers(0, 999999999))
def test_integers_of_every_unit_are_exact(seconds, fraction):
    for digits in (0, 3, 6, 9):
        number = seconds * 10**digits + fraction // 10 ** (9 - digits)
        if digits == 0 or seconds > 100_000_000:
            (vote,) = decode("votes", b'{"poll":"a","choice":"b","time":%d}' % number)
            assert vote.time == number * 10 ** (9 - digits)


@given(st.floats(946684800, 7258118399))
def test_floats_are_exact_to_a_microsecond(seconds):
    (vote,) = decode("votes", b'{"poll":"a","choice":"b","time":%s}' % repr(seconds).encode())
    assert abs(vote.time - int(seconds) * 10**9 - (seconds % 1) * 1e9) < 1500


# --- texts and numbers that a database cannot hold


@every_stream
@check_each_row("text", [rb"a\u0000b", b"\xff", b"\xed\xa0\x80", b"a\0b", b"\xc0\x80", rb"\x"])
def test_a_text_that_cannot_be_stored_is_invalid(name, text):
    for key in (b"oreo", b"room", b"a1"):
        if key in GOOD[name]:
            assert reject_reason(name, GOOD[name].replace(key, text))
            record, reject = decode(name, GOOD[name] + b"\n" + GOOD[name].replace(key, text))
            assert record == RECORDS[name] and not reject.whole
            assert reject_reason(name, reject.part) == reject.reason


@needs("formats")
@every_stream
@check_each_row("text", [rb"\ud800", rb"\udc00\uD800", b"\t", rb"\\\ud83d", rb"\ud83d\ude00\ud83d", b"\x1b[0m"])
def test_a_text_that_json_does_not_allow_costs_neither_its_record_nor_others(name, text):
    for key in (b"oreo", b"room", b"a1"):
        if key in GOOD[name]:
            odd = GOOD[name].replace(key, text)
            (alone,) = decode(name, odd)
            assert type(alone) is type(RECORDS[name]) and alone != RECORDS[name]
            for body in GOOD[name] + b"\n" + odd, b"[" + GOOD[name] + b"," + odd + b"]":
                assert decode(name, body) == [RECORDS[name], alone]


@needs("formats")
@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (rb"a\ud83d", "a\ufffd"), (rb"\\ud83d", r"\ud83d"), (rb"\\\ud83d", "\\\ufffd"),
        (rb"\uD83D\uDE00", "\U0001f600"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"), (rb"\ud83d\n", "\ufffd\n"), (b"\x1b[1m\t", "\x1b[1m\t"), (b"NaN", "NaN"),
    ],
)  # fmt: skip
def test_what_json_does_not_allow_is_mended_in_texts(sent, stored):
    (vote,) = decode("votes", b'{"poll":"%b","choice":NaN}' % sent)
    assert (vote.poll, vote.choice) == (stored, "NaN")


@needs("formats")
@pytest.mark.parametrize(
    "odd", [b'{"poll":NaN,"choice":"a\tb', b'{"poll":NaN,"choice":0', b'{"poll":"a\tb"}', b'{"choice":NaN}']
)
def test_what_is_invalid_although_it_was_mended_is_kept_as_it_was_sent(odd):
    (alone,) = decode("votes", odd)
    assert alone == Reject(odd, alone.reason, True)
    assert decode("votes", GOOD["votes"] + b"\n" + odd) == [RECORDS["votes"], Reject(odd, alone.reason)]


def test_an_escaped_backslash_before_u0000_is_not_a_nul():
    (vote,) = decode("votes", rb'{"poll":"a\\u0000","choice":"\\\\u0000"}')
    assert (vote.poll, vote.choice) == (r"a\u0000", r"\\u0000")
    assert reject_reason("votes", rb'{"poll":"a\\\u0000","choice":"b"}') == "text with a NUL"
    assert decode("votes", rb'{"poll":"a","choice":"b","unknown":"\u0000"}') == [Vote(poll="a", choice="b")]
    assert reject_reason("votes", b"poll=a&choice=%00") == "text with a NUL"
    assert reject_reason("metrics", rb'{"name":"a","value":1,"tags":{"b\u0000":"c"}}') == "text with a NUL"
    if has("formats"):
        assert reject_reason("metrics", rb'{"name":"a","fields":{"b":"\u0000"}}') == "text with a NUL"
    assert reject_reason("gps", b"device=%00&lat=1&lon=1") == "text with a NUL"


@every_stream
@check_each_row(
    "value",
    [b"1" * 10_000, b"-" + b"1" * 10_000, b"1." + b"1" * 10_000, b"1e10000", b"[" * 100_000, b'{"a":' * 100_000],
)
def test_extreme_values_are_one_reject_or_ignored(name, value):
    for key in (b"lat", b"value", b"poll", b"time", b"unknown"):
        for body in (
            GOOD[name][:-1] + b',"%s":%s}' % (key, value),
            b"[" + GOOD[name][:-1] + b',"%s":%s}]' % (key, value),
        ):
            (result,) = decode(name, body)
            assert isinstance(result, Record) or (result.whole and len(result.reason) <= 200)


@every_stream
def test_a_line_nested_too_deeply_does_not_affect_the_others(name):
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    record, reject = decode(name, deep + b"\n" + GOOD[name])
    assert record == RECORDS[name]
    # CPython 3.14 measures the stack that is left, and may have enough
    assert reject.reason == "not JSON: nested too deeply" or sys.version_info >= (3, 14)


def test_forms_have_limits_and_must_be_utf8():
    assert reject_reason("votes", b"a=1&" * 1001) == "form has more than 1000 fields"
    assert reject_reason("votes", b"a=" + b"1" * (1 << 20)) == "form larger than 1048576 bytes"
    assert decode("votes", FORMS["votes"], LIMITS._replace(record=len(FORMS["votes"]), fields=2)) == [RECORDS["votes"]]
    short = len(FORMS["votes"]) - 1
    for limits, reason in (
        (LIMITS._replace(record=short), f"form larger than {short} bytes"),
        (LIMITS._replace(fields=1), "form has more than 1 fields"),
    ):
        (reject,) = decode("votes", FORMS["votes"], limits)
        assert reject.reason == reason
    assert reject_reason("votes", b"poll=%ff&choice=b").startswith("not UTF-8: ")
    assert reject_reason("votes", b"poll=\xff&choice=b").startswith("not UTF-8: ")
    assert decode("votes", b"poll=a+b%20%c3%a9&choice=\xc3\xa9&voter=") == [Vote(poll="a b \u00e9", choice="\u00e9")]
    assert decode("votes", b"poll=b&choice=b&poll=a&time=1766600000") == [
        Vote(time=1766600000_000000000, poll="a", choice="b")
    ]


def test_each_choice_of_a_form_is_a_vote():
    votes = [Vote(poll="a", choice=choice, voter="u") for choice in ("b", "c", "d")]
    assert decode("votes", b"poll=a&choice=b&choice=c&voter=u&choice=d&choice=") == votes


def test_a_reason_is_one_short_line():
    long = b'{"device":"a","lon":1,"lat":"' + "\u2028\u00e9".encode() * 500 + b'"}'
    reason = reject_reason("gps", long)
    assert len(reason) <= 200 and reason.isprintable()


# --- votes


def test_votes():
    assert decode("votes", b'{"poll":"cookies","choice":"oreo","voter":"me","time":1766600000}') == [
        Vote(time=1766600000_000000000, poll="cookies", choice="oreo", voter="me")
    ]
    assert Vote.__struct_fields__ == ("time", "poll", "choice", "voter")
    assert reject_reason("votes", b'{"poll":"cookies"}') == "missing: choice"
    assert reject_reason("votes", b"poll=cookies&choice=") == "missing: choice"
    assert reject_reason("votes", b'{"poll":"","choice":"a"}').startswith(
        "wrong type or range: Expected `str` of length >= 1"
    )
    assert reject_reason("votes", b'{"poll":"a","choice":3}') == (
        "wrong type or range: Expected `str`, got `int` - at `$.choice`"
    )


# --- any bytes

shapes = st.sampled_from(
    [
        *GOOD.values(),
        *BAD.values(),
        *FORMS.values(),
        b'cpu,a=b v=1,w="x" 5\n',
        b'{"locations":[',
        b'{"_type":"location",',
        b'{"metrics":[',
        b'"fields":{"a":1}',
        b"POST /write?precision=s HTTP/1.1\r\n\r\n",
        b"POST /owntracks HTTP/1.1\r\n",
        b"\r\n\r\n",
        b"[warn] a\n",
        b"\\u0000",
        b"\x1f\x8b",
        *(bytes([x]) for x in b'\n,[]{}"\\=& \xff\0'),
    ]
)
anything = st.binary(max_size=200) | st.lists(shapes | st.binary(max_size=3), max_size=12).map(b"".join)


@every_stream
@given(anything, st.booleans(), st.sampled_from([10, 100, LIMITS.inflated]))
@example(b"\xef\xbb\xbf", False, LIMITS.inflated)
@example(b'{"locations":5}', False, LIMITS.inflated)
@example(b'{"metrics":{}}', False, LIMITS.inflated)
def test_for_any_bytes_there_are_records_or_rejects_and_never_an_exception(name, item, pack, limit):
    item = gzip.compress(item, 1) if pack else item
    results = decode(name, item, LIMITS._replace(inflated=limit))
    rejects = [x for x in results if isinstance(x, Reject)]
    assert all(type(x) is STREAMS[name].record for x in results if x not in rejects)
    for reject in rejects:
        assert reject.reason and len(reject.reason) <= 200 and reject.reason.isprintable()
        reject.reason.encode()
        assert type(reject.part) is bytes
        assert reject.whole == (len(rejects) == len(results) == 1)
        assert not reject.whole or reject.part == item
    json.dumps([x.__class__.__name__ for x in results])
    for record in results:
        if not isinstance(record, Reject):
            storable(record)


def storable(record: Record) -> None:
    for value in [getattr(record, x) for x in record.__struct_fields__]:
        for text in [*value, *value.values()] if isinstance(value, dict) else [value]:
            assert not isinstance(text, str) or (text.encode() is not None and "\0" not in text)
            assert isinstance(record, Log) or not isinstance(text, int) or -(2**63) <= text < 2**63
            assert not isinstance(text, float) or text - text == 0


@pytest.mark.parametrize("name", ["gps", "votes", "logs"])
@given(anything)
@example(GOOD["gps"] + b"\n\x1f\x8b\n" + GOOD["votes"] + b"\n\x28\xb5\x2f\xfd")
@example(b"[" + GOOD["gps"] + b",5," + GOOD["votes"] + b',[{}],{"poll":[\n]},"a=b"]')
def test_a_rejected_part_decoded_again_has_the_same_reason(name, item):
    for reject in decode(name, item):
        if isinstance(reject, Reject):
            assert reject_reason(name, reject.part) == reject.reason


lines_of_all_kinds = st.sampled_from(
    [b"cpu v=1", b"cpu", b"cpu v=x", b"{a", b"[a] b", b"name=a&value=1x", b"a=b", b"\x1f\x8b v", b"cpu,a v=1"]
    + [b'cpu v="x', b'{"name":1}', b"\xff v=1", b"# x", b"  x", b"a v=1 5 6", b"\0"]
)


@given(st.lists(lines_of_all_kinds, max_size=6), st.sampled_from([b"", kept(b"", "/write?precision=ms", "A: b")]))
def test_an_invalid_line_decoded_again_has_the_same_reason(lines, head):
    for reject in decode("metrics", head + b"a v=1\n" + b"\n".join(lines)):
        if isinstance(reject, Reject):
            assert reject_reason("metrics", reject.part) == reject.reason


# --- user-defined streams


class Order(Record):
    """An order."""

    sku: str
    count: int = 1

    def twice(self) -> int:
        return self.count * 2


def test_a_record_type_makes_a_user_defined_stream():
    orders = stream("orders", Order)
    assert isinstance(orders, Stream) and orders.name == "orders"
    assert orders.record.__struct_fields__ == ("time", "sku", "count")
    assert (orders.record.__name__, orders.record.__doc__) == ("Order", "An order.")
    (one,) = orders.decode(b'{"sku":"a","ts":1766600000}', LIMITS)
    assert (one.time, one.sku, one.count, one.twice()) == (1766600000_000000000, "a", 1, 2)
    assert type(one) is orders.record and isinstance(one, Record)
    bodies = [b'{"sku":"a","count":2}', b'[{"sku":"a","count":2}]', b"sku=a&count=2", gzip.compress(b"count=2&sku=a")]
    for body in [*bodies, *(HEAD + b"\r\n" + x for x in bodies)]:
        assert [(x.time, x.sku, x.count) for x in orders.decode(body, LIMITS)] == [(None, "a", 2)]
    results = list(orders.decode(b'{"sku":"a"}\n{"sku":5}\n{}\nsku=b&count=', LIMITS))
    assert [x if isinstance(x, Reject) else (x.sku, x.count) for x in results] == [
        ("a", 1),
        ("b", 1),
        Reject(b'{"sku":5}', "wrong type or range: Expected `str`, got `int` - at `$.sku`", False),
        Reject(b"{}", "missing: sku", False),
    ]


def test_a_keyword_only_record_type_is_used_unchanged():
    class Log(Record, kw_only=True):
        text: str

    logs = stream("logs", Log)
    assert logs.record is Log
    assert [*logs.decode(b'{"text":"a"}', LIMITS)] == [Log(text="a")]


def test_the_fields_of_a_record_type_may_have_any_order():
    class Log(Record, kw_only=True):
        level: str = "info"
        text: str

    assert list(stream("logs", Log).decode(b'{"text":"a","ts":5}', LIMITS)) == [Log(time=5 * 10**9, text="a")]


def test_a_checkbox_of_a_form_is_a_boolean():
    class Signup(Record):
        name: str
        news: bool = False
        terms: bool | None = None
        note: bool | str = ""

    signups = stream("signups", Signup)
    for form, expected in {
        b"name=on&news=on&terms=on&note=on": ("on", True, True, "on"),
        b"name=a": ("a", False, None, ""),
        b"name=a&news=false&terms=1": ("a", False, True, ""),
    }.items():
        assert [(x.name, x.news, x.terms, x.note) for x in signups.decode(form, LIMITS)] == [expected]
    (reject,) = signups.decode(b"name=a&news=maybe", LIMITS)
    assert reject.whole


def test_a_time_of_a_form_has_no_seconds_as_browsers_send_it() -> None:
    class Booking(Record):
        start: datetime

    for form in b"start=2026-11-27T12%3A30", b"start=2026-11-27T12:30:00":
        assert [x.start for x in stream("bookings", Booking).decode(form, LIMITS)] == [datetime(2026, 11, 27, 12, 30)]


class Tree(msgspec.Struct):
    branches: list[Tree] = []
    leaves: dict[str, list[set[str]]] = {}


@pytest.mark.parametrize(
    "kind, named",
    [(set[str], "set"), (frozenset[int] | None, "frozenset"), (complex, "complex"), (object, "object"), (Tree, "set"),
     (timedelta, "timedelta"), (msgspec.Raw, "Raw"), (list[complex], "complex"), (int | bytearray, "bytearray")],
)  # fmt: skip
def test_a_type_that_is_not_stored_alike_everywhere_is_refused_with_those_that_are(kind: Any, named: str) -> None:
    made = stream("own", msgspec.defstruct("Own", [("a", int), ("x", kind)], bases=(Record,), kw_only=True))
    assert stream_problem("own", made).startswith(
        f"of the stream 'own', the field 'x' has the type {named}; there are str, int, float, bool, Decimal, UUID, "
    )


class Odd(Record):
    ts: str
    big: int = 0
    real: float = 0.0
    many: list[int] = []
    sub: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if self.ts == "raise":
            raise KeyError(self.ts)


def test_a_user_defined_stream_never_raises_and_yields_only_storable_records():
    decode = stream("odd", Odd).decode
    (odd,) = decode(b'{"ts":"x","timestamp":5,"many":[1]}', LIMITS)
    assert (odd.time, odd.ts, odd.many, odd.sub) == (5_000000000, "x", [1], None)
    for body, reason in [
        (b'{"ts":"x","big":9223372036854775808}', "number out of range: 9223372036854775808"),
        (b"ts=x&real=nan", "number out of range: nan"),
        (b"ts=x&real=inf", "number out of range: inf"),
        (b'{"ts":"raise"}', "KeyError: 'raise'"),
        (rb'{"ts":"x","sub":{"a":"\u0000"}}', "text with a NUL"),
    ]:
        assert list(decode(body, LIMITS)) == [Reject(body, reason, True)]


class Count(Record, kw_only=True):
    n: int


def test_a_user_defined_stream_has_integers_of_64_bits():
    parsed = stream("counts", Count, lambda line: Count(n=int(line)))
    for number in -(2**63), 2**63 - 1:
        assert list(stream("counts", Count).decode(b'{"n":%d}' % number, LIMITS)) == [Count(n=number)]
        assert list(parsed.decode(b"%d" % number, LIMITS)) == [Count(n=number)]
    for number in -(2**63) - 1, 2**63:
        for counts, body in (stream("counts", Count), b'{"n":%d}'), (parsed, b"%d"):
            (reject,) = counts.decode(body % number, LIMITS)
            assert reject.reason == f"number out of range: {number}"


@pytest.mark.parametrize(
    ("name", "body"), [("votes", b'{"poll":"p","choice":"c"}'), ("gps", b'{"device":"a","lat":1,"lon":2}')]
)
def test_a_record_whose_type_bounds_its_memory_may_have_any_size(name, body):
    limits = LIMITS._replace(record=10)
    (record,) = STREAMS[name].decode(body, limits)
    assert next(iter(STREAMS[name].decode(b"[" + body + b",0]", limits))) == record


@given(anything)
def test_for_any_bytes_a_user_defined_stream_yields_records_or_rejects(item):
    for made in (Order, Odd):
        results = list(stream("own", made).decode(item, LIMITS))
        assert all(isinstance(x, Record | Reject) for x in results)


class Tide(Record, kw_only=True):
    station: str
    metres: float


def parse_tide(line: bytes) -> Tide:
    station, time, metres = line.decode().split(";")
    if not station:
        raise ValueError("missing: station")
    return Tide(station=station, time=nanoseconds(time), metres=float(metres))


tides = stream("tides", Tide, parse_tide)
BREST = b"Brest;2025-12-24T18:13:20Z;3.61"
TIDE = Tide(time=1766600000_000000000, station="Brest", metres=3.61)


@pytest.mark.parametrize(
    "item",
    [
        BREST,
        b"\xef\xbb\xbf\r\n\n " + BREST + b"\t\r\n",
        gzip.compress(BREST),
        HEAD + b"\r\n" + BREST,
        HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(BREST),
    ],
)
def test_a_parser_gets_the_lines_of_a_body_in_any_wrapping(item):
    assert list(tides.decode(item, LIMITS)) == [TIDE]
    head, _, _ = item.rpartition(BREST)
    assert not head or list(tides.decode(head + BREST + b"\n\n" + BREST, LIMITS)) == [TIDE, TIDE]


@check_each_row(
    ("line", "reason"),
    [
        (b"Brest;3.61", "not enough values to unpack (expected 3, got 2)"),
        (b";1766600000;3.61", "missing: station"),
        (b"Brest;noon;3.61", "time not understood: 'noon'"),
        (b"Brest;1766600000;inf", "number out of range: inf"),
        (b"Br\0st;1766600000;1", "text with a NUL"),
        (b"Br\xffst;1766600000;1", "not UTF-8: invalid start byte"),
        (b"\xef\xbb\xbfBrest;1766600000", "not enough values to unpack (expected 3, got 2)"),
        (b"\x1f\x8bBrest;1766600000", "not UTF-8: invalid start byte"),
        (b"POST / HTTP/1.1\r", "not enough values to unpack (expected 3, got 1)"),
        (b"x" * (1 << 20) + b"x", "line longer than 1048576 bytes"),
    ],
)
@check_each_row("head", [b"", HEAD + b"\r\n"])
def test_an_invalid_line_is_buried_alone_and_can_be_decoded_again(head, line, reason):
    first, last, reject = tides.decode(head + BREST + b"\n" + line + b"\n" + BREST, LIMITS)
    assert (first, last) == (TIDE, TIDE)
    assert (reject.reason, reject.whole) == (reason, False)
    assert list(tides.decode(reject.part, LIMITS)) == [Reject(reject.part, reason, True)]


@pytest.mark.parametrize("item", [b"", b"\n \r\n", gzip.compress(b"")])
def test_a_body_without_a_line_is_valid(item):
    assert list(tides.decode(item, LIMITS)) == []


def test_lines_of_a_parser_have_the_limits_of_all_bodies():
    first, second, rest = tides.decode(b"\n".join([BREST] * 5), LIMITS._replace(records=2))
    assert (first, second) == (TIDE, TIDE)
    assert rest == Reject(b"\n".join([BREST] * 3), "too much in one body: the rest was not decoded", False)
    (bomb,) = tides.decode(gzip.compress(BREST * 1000), LIMITS._replace(inflated=1000))
    assert bomb.reason == "gzip: inflates to more than 1000 bytes"
    many = list(tides.decode(BREST + b"\nx" * 5_000, LIMITS))
    assert len(many) == 102
    assert b"\n".join(x.part for x in many[1:]) == b"\n".join([b"x"] * 5_000)


def test_a_line_of_a_parser_may_have_as_many_bytes_as_a_record():
    assert list(tides.decode(BREST, LIMITS._replace(record=len(BREST)))) == [TIDE]
    (reject,) = tides.decode(BREST, LIMITS._replace(record=len(BREST) - 1))
    assert reject.reason == f"line longer than {len(BREST) - 1} bytes"


@pytest.mark.parametrize("result", [None, Vote(poll="a", choice="b"), "Brest"])
def test_a_parser_must_return_a_record_of_the_stream(result):
    (reject,) = stream("tides", Tide, lambda line: result).decode(BREST, LIMITS)
    assert reject == Reject(BREST, f"the parser returned {type(result).__name__}, not Tide", True)


def test_any_exception_of_a_parser_is_the_reason_of_its_line():
    def parse(line: bytes) -> Tide:
        raise {b"a": KeyError("x"), b"b": ValueError()}.get(line) or RecursionError

    (a, b) = (list(stream("tides", Tide, parse).decode(x, LIMITS)) for x in (b"a", b"b"))
    assert (a, b) == ([Reject(b"a", "KeyError: 'x'", True)], [Reject(b"b", "ValueError:", True)])


@given(anything)
def test_for_any_bytes_a_parser_yields_rejects_that_can_be_decoded_again(item):
    results = list(tides.decode(item, LIMITS))
    for result in results:
        assert isinstance(result, Reject)
        assert list(tides.decode(result.part, LIMITS)) == [Reject(result.part, result.reason, True)]


def test_a_record_type_for_a_parser_must_be_keyword_only():
    class Depth(Record):
        metres: float

    with pytest.raises(TypeError, match="the record type Depth needs kw_only=True: its first field must be time"):
        stream("depths", Depth, lambda line: Depth(metres=1.0))


def test_a_record_type_must_be_a_subclass_of_record():
    with pytest.raises(TypeError, match="not a subclass of sluice.Record"):
        stream("bad", dict)


def test_the_streams_of_a_user_module_are_added_or_replace_built_in_ones(tmp_path: Path):
    module = tmp_path / "mine.py"
    module.write_text(
        "from sluice import Record, stream\n\n\nclass Order(Record):\n    sku: str\n    count: int = 1\n\n\n"
        'STREAMS = {"orders": stream("orders", Order), "votes": stream("votes", Order)}\n'
    )
    streams = load_streams(settings.load_settings({"INGEST_RECORDS": str(module)}))
    assert list(streams) == [*STREAMS, "orders"]
    assert streams["orders"].decode(b'{"sku":"a"}', LIMITS).records[0].sku == "a"
    assert streams["votes"].record is sys.modules["mine"].STREAMS["votes"].record
    assert {
        name: known._replace(rule=None) for name, known in load_streams(settings.load_settings({})).items()
    } == STREAMS


@pytest.mark.parametrize("text", ["", "STREAMS = 5", "STREAMS = {'a': dict}", "import nothing_of_that_name"])
def test_an_invalid_user_module_stops_the_start_with_one_line(tmp_path: Path, text):
    module = tmp_path / "mine_bad.py"
    module.write_text(text)
    with pytest.raises(settings.SettingError, match="INGEST_RECORDS=.*mine_bad"):
        load_streams(settings.load_settings({"INGEST_RECORDS": str(module)}))


LAST_LINES = [
    ("STREAMS = {'a': stream('b', O)}", "STREAMS has the stream 'b' under the name 'a'"),
    ("STREAMS = {'a-b': stream('a-b', O)}", "the name of a stream must be an identifier of up to 63 bytes, not 'a-b'"),
    ("STREAMS = {'': stream('', O)}", "bytes, not ''"),
    ("x = 'x' * 64; STREAMS = {x: stream(x, O)}", "bytes, not 'xxxxxx"),
    ("x = 'é' * 32; STREAMS = {x: stream(x, O)}", "bytes, not 'éééééé"),
    (
        "STREAMS = {'batches': stream('batches', O)}",
        "the stream name 'batches' is reserved for the database's own tables",
    ),
    ("STREAMS = {'Dead_Letters': stream('Dead_Letters', O)}", "the stream name 'Dead_Letters' is reserved"),
    ("n = 'dead_letters_by_body'; STREAMS = {n: stream(n, O)}", "the stream name 'dead_letters_by_body' is reserved"),
    ("STREAMS = {'sqlite_x': stream('sqlite_x', O)}", "the stream name 'sqlite_x' is reserved"),
    ("STREAMS = {'GPS': stream('GPS', O)}", "the names 'gps' and 'GPS' differ by case only"),
    ("STREAMS = {'o': stream('o', O), 'O': stream('O', O)}", "the names 'o' and 'O' differ by case only"),
    (
        "STREAMS = {'o': Stream('o', dict, None)}",
        "the stream 'o' is not a subclass of sluice.Record",
    ),
    ("STREAMS = {'o': Stream('o', O, None)}", "the record type of the stream 'o' needs kw_only=True"),
    ("STREAMS = {'o': with_parser('batch')}", "the field name 'batch' of the stream 'o' is reserved: every table"),
    ("STREAMS = {'o': with_parser('seq')}", "the field name 'seq' of the stream 'o' is reserved"),
    ("STREAMS = {'o': with_parser('received_at')}", "the field name 'received_at' of the stream 'o' is reserved"),
    ("STREAMS = {'o': with_parser('Received_At')}", "the field name 'Received_At' of the stream 'o' is reserved"),
    ("STREAMS = {'o': with_parser('xmin')}", "the field name 'xmin' of the stream 'o' is reserved"),
    ("STREAMS = {'o': with_parser('Rowid')}", "the field name 'Rowid' of the stream 'o' is reserved"),
    ("STREAMS = {'o': with_parser('_rowid_')}", "the field name '_rowid_' of the stream 'o' is reserved"),
    (
        "STREAMS = {'o': with_field('x' * 64)}",
        "the name of a field must be an identifier of up to 63 bytes, not 'xxxxxx",
    ),
    ("STREAMS = {'o': with_field('SKU')}", "the names 'sku' and 'SKU' differ by case only"),
    ("STREAMS = {'o': with_field('Time')}", "the names 'time' and 'Time' differ by case only"),
]


def test_a_name_may_have_63_bytes():
    assert [valid_name(name) for name in ("x" * 63, "\u00e9" * 31, "x" * 64, "\u00e9" * 32)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("last, why", LAST_LINES, ids=[line for line, _ in LAST_LINES])
def test_a_stream_that_no_database_can_hold_stops_the_start_with_one_line(tmp_path: Path, last, why):
    module = tmp_path / "mine_unfit.py"
    module.write_text(
        "import msgspec\nfrom sluice import Record, Stream, stream\n\n\nclass O(Record):\n    sku: str = ''\n\n\n"
        "def with_field(name):\n    fields = [('sku', str), (name, str)]\n"
        "    return stream('o', msgspec.defstruct('P', fields, bases=(Record,)))\n\n\n"
        "def with_parser(name):\n"  # what it makes has the names of the fields
        "    made = msgspec.defstruct('P', [(name, str)], bases=(Record,), kw_only=True)\n"
        "    return stream('o', made, lambda line: None)\n\n\n"
        f"{last}\n"
    )
    with pytest.raises(settings.SettingError) as caught:
        load_streams(settings.load_settings({"INGEST_RECORDS": str(module)}))
    text = str(caught.value)
    assert why in text
    assert text.startswith(f"INGEST_RECORDS='{module}' is invalid: ") and "\n" not in text


TIMES = (
    "1766600000",
    "1766600000123",
    "0",
    "-1",
    "1766600000.5",
    '"1766600000"',
    '"2025-12-24T18:13:20Z"',
    "null",
    "1e300",
)
MEMBERS = [f'"{name}":{value}' for name in ("time", "ts", "timestamp") for value in TIMES] + [
    '"more":1', '"lon":1', '"voter":7', '"altitude":1e308', '"speed":-1', '"bearing":361', '"battery":null',
]  # fmt: skip


@needs("formats")
@check_each_row("name, known", [("gps", '"device":"a","lat":1,"lon":2'), ("votes", '"poll":"p","choice":"c"')])
@check_each_row("members", [[], *([one] for one in MEMBERS), ['"time":null', '"ts":5'], ['"time":"x"', '"ts":5']])
def test_an_object_alone_is_the_record_that_it_is_in_an_array(name: str, known: str, members: list[str]) -> None:
    body = "{" + ",".join([known, *members]) + "}"
    decode = STREAMS[name].decode
    assert [*decode(body.encode(), LIMITS)] == [*decode(f"[{body}]".encode(), LIMITS)]
