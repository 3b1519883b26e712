"""Logs of other systems: GELF, the reports of browsers, systemd's journal, Datadog, Logpush and MessagePack."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest
from msgspec.msgpack import Ext

from sluice.contrib.formats.register import ENVELOPES
from sluice.streams.record import Log, Reject
from support.list_items import LIMITS, decode, kept, reject_reason
from support.table_of_cases import check_each_row

NOON = 1_767_268_800 * 10**9
MESSAGE = {"version": "1.1", "host": "h", "short_message": "m", "level": 3, "timestamp": 1767268800.5, "_user": "x"}
ROW = Log(time=NOON + 500_000_000, level="error", message="m", attributes={"host": "h", "user": "x", "level": 3})


def gelf(body: bytes) -> list:
    return decode("logs", kept(body, "/gelf"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress, lambda body: zlib.compress(body, 9)])
def test_a_gelf_message_is_a_row_in_any_compression(pack: Any) -> None:
    assert gelf(pack(json.dumps(MESSAGE).encode())) == [ROW]


def test_gelf_messages_may_be_an_array_or_lines() -> None:
    one = json.dumps(MESSAGE).encode()
    assert gelf(b"[%b,%b]" % (one, one)) == gelf(one + b"\n" + one) == [ROW] * 2
    assert gelf(b"%b\n[]\n[%b]" % (one, one)) == [ROW] * 2  # each line as if it were sent alone
    assert gelf(b"%b\n\xef\xbb\xbf%b" % (one, one)) == [ROW] * 2
    good, bad = gelf(one + b"\n\xef\xbb\xbf{")
    assert good == ROW and reject_reason("logs", bad.part) == bad.reason
    assert gelf(one.replace(b"short_", b"")) == [ROW]


def test_objects_at_a_path_of_a_format_may_be_indented_or_follow_each_other() -> None:
    sent = b'{\n  "short_message": "a"\n}\n{"short_message":"b"} {"short_message":"c"}'
    assert [row.message for row in decode("logs", kept(sent, "/gelf"))] == ["a", "b", "c"]
    array = b'[{"short_message":"a"},\n{"short_message":"b"}'
    assert reject_reason("logs", kept(array, "/gelf")).startswith("not JSON: ")


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({"full_message": "m\ntrace"}, {"full_message": "m\ntrace"}),
        ({"full_message": "m"}, {}),
        ({"_host": "other"}, {"host": "h", "_host": "other"}),
        ({"_message": "n", "_time": 5, "line": 7, "_null": None}, {"message": "n", "time": 5, "line": 7}),
    ],
)
def test_additional_fields_lose_their_underscore(fields: dict, row: dict) -> None:
    (found,) = gelf(json.dumps(MESSAGE | fields).encode())
    assert found == Log(time=ROW.time, level="error", message="m", attributes=ROW.attributes | row)


def test_a_gelf_message_may_have_a_service_and_no_time() -> None:
    assert gelf(b'{"short_message":"m","_app":"web","level":6}') == [
        Log(level="info", service="web", message="m", attributes={"level": 6})
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{}", "missing: short_message"),
        (b'{"short_message":"a\\u0000"}', "text with a NUL"),
        (zlib.compress(b"{}" * 99)[:-5], "deflate: truncated"),
        (b"x\x9c" + bytes(9), "deflate: Error -3"),
        (zlib.compress(bytes(LIMITS.inflated + 1)), "deflate: inflates to more than"),
    ],
)
def test_an_invalid_gelf_message_is_buried(body: bytes, reason: str) -> None:
    assert reject_reason("logs", kept(body, "/gelf")).startswith(reason)


def test_an_invalid_gelf_message_is_buried_alone() -> None:
    good, bad = gelf(b'[{"short_message":"m"},{"host":"h"}]')
    assert good.message == "m"
    assert bad == Reject(kept(b'[{"host":"h"}]', "/gelf"), "missing: short_message")


REPORT = {"type": "deprecation", "age": 10, "url": "https://a.example/", "user_agent": "B", "body": {"id": "x"}}


def test_a_report_of_a_browser_is_a_row() -> None:
    sent = json.dumps([REPORT, REPORT | {"type": "crash"}]).encode()
    found = decode("logs", kept(sent, "/reports", "Content-Type: application/reports+json"))
    about = {name: value for name, value in REPORT.items() if name != "type"}
    assert found == [Log(message="deprecation", attributes=about), Log(message="crash", attributes=about)]


def test_a_report_of_csp_has_the_type_that_it_has_in_the_reporting_api() -> None:
    sent = b'{"csp-report":{"document-uri":"https://a.example/","violated-directive":"img-src"}}'
    body = {"document-uri": "https://a.example/", "violated-directive": "img-src"}
    assert decode("logs", kept(sent, "/reports")) == [Log(message="csp-violation", attributes={"body": body})]
    assert reject_reason("logs", kept(b"{}", "/reports")) == "missing: type"


ENTRY = {
    "__CURSOR": "s=1;i=1",
    "__REALTIME_TIMESTAMP": "1767268800500000",
    "PRIORITY": "4",
    "SYSLOG_IDENTIFIER": "web",
    "MESSAGE": "a=b",
    "_PID": "7",
}


def exported(fields: dict[str, Any], *binary: str) -> bytes:
    """An entry of the journal; the values of these fields are written with their length."""
    made = b""
    for name, value in fields.items():
        content = value if isinstance(value, bytes) else value.encode()
        size = b"\n" + len(content).to_bytes(8, "little") if name in binary else b"="
        made += name.encode() + size + content + b"\n"
    return made + b"\n"


def journal(body: bytes) -> list:
    return decode("logs", kept(body, "/upload", "Content-Type: application/vnd.fdo.journal"))


@pytest.mark.parametrize("binary", [(), ("MESSAGE",), tuple(ENTRY)])
def test_an_entry_of_the_journal_is_the_row_that_its_json_is(binary: tuple[str, ...]) -> None:
    rows = decode("logs", json.dumps(ENTRY).encode())
    assert journal(exported(ENTRY, *binary)) == rows
    assert journal(b"\n\n" + exported(ENTRY, *binary) * 3) == rows * 3
    assert journal(exported(ENTRY, *binary)[:-2]) == rows
    assert (rows[0].time, rows[0].level, rows[0].service) == (NOON + 500_000_000, "warn", "web")


def test_a_value_of_the_journal_may_have_lines_and_any_bytes_and_occur_twice() -> None:
    sent = exported(ENTRY | {"MESSAGE": b"one\n\ntwo\0\xff=", "A": ""}, "MESSAGE") + exported(ENTRY)
    first, second = journal(sent.replace(b"_PID=7\n", b"_PID=7\n_PID=8\n", 1))
    assert (first.message, first.attributes["_PID"], first.attributes["A"]) == (
        "one\n\ntwo\ufffd\ufffd=",
        ["7", "8"],
        "",
    )
    assert second == journal(exported(ENTRY))[0]


@pytest.mark.parametrize("end", [b"MESSAGE\n\x05\0\0", b"MESSAGE\n\xff\xff\xff\xff\xff\xff\xff\xffa", b"MESSAGE"])
def test_a_truncated_entry_of_the_journal_is_buried_alone(end: bytes) -> None:
    start = exported(ENTRY)[:-1]
    good, bad = journal(exported(ENTRY) + start + end)
    assert isinstance(good, Log)
    assert (bad.part, bad.reason) == (
        kept(start + end, "/upload", "Content-Type: application/vnd.fdo.journal"),
        "entry of the journal: truncated",
    )
    assert reject_reason("logs", bad.part) == bad.reason


DATADOG = {
    "message": "m",
    "status": "warn",
    "timestamp": 1767268800500,
    "hostname": "h",
    "service": "web",
    "ddsource": "nginx",
    "ddtags": "env:a",
}


def test_a_log_of_datadog_has_its_status_as_level_and_the_parameters_of_the_url() -> None:
    about = {"hostname": "h", "ddsource": "nginx", "ddtags": "env:a"}
    row = Log(time=NOON + 500_000_000, level="warn", service="web", message="m", attributes=about)
    sent = json.dumps([DATADOG, DATADOG | {"status": "error"}]).encode()
    assert decode("logs", kept(sent, "/api/v2/logs")) == [row, msgspec.structs.replace(row, level="error")]
    target = "/api/v2/logs?ddsource=node&service=s&dd-api-key=x"
    (found,) = decode("logs", kept(b'{"message":"m","level":"info","status":200}', target))
    assert found == Log(level="info", service="s", message="m", attributes={"ddsource": "node", "status": 200})


def test_the_empty_object_of_datadogs_agent_has_no_row() -> None:
    assert decode("logs", kept(b"{}", "/api/v2/logs")) == []
    assert reject_reason("logs", kept(b'{"status":"info"}', "/api/v2/logs")) == "missing: message"


REQUEST = {"ClientRequestMethod": "GET", "ClientRequestHost": "a.example", "ClientRequestURI": "/b?c", "Status": 200}


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("EdgeStartTimestamp", "2026-01-01T12:00:00Z"), ("EdgeStartTimestamp", NOON), ("Datetime", 1767268800),
        ("Timestamp", "2026-01-01T12:00:00Z"), ("EventTimestampMs", 1767268800000),
    ],
)  # fmt: skip
def test_a_record_of_logpush_has_its_request_as_message_and_all_its_fields(name: str, time: Any) -> None:
    sent = json.dumps(REQUEST | {name: time, "Ray": None}).encode()
    row = Log(time=NOON, message="GET a.example/b?c", attributes=REQUEST | {name: time})
    assert decode("logs", kept(gzip.compress(sent + b"\n" + sent + b"\n"), "/logpush")) == [row, row]


def test_the_test_of_a_destination_of_logpush_has_no_row_and_a_record_needs_no_request() -> None:
    assert decode("logs", kept(gzip.compress(b'{"content":"tests"}'), "/logpush?header_A=b")) == []
    (found,) = decode("logs", kept(b'{"QueryName":"a.example","Timestamp":"soon"}', "/logpush"))
    assert found == Log(message="", attributes={"QueryName": "a.example", "Timestamp": "soon"})
    assert reject_reason("logs", kept(b"{}", "/logpush")) == "missing: fields"


pack = msgspec.msgpack.encode
EVENT_TIME = Ext(0, (1_767_268_800).to_bytes(4, "big") + (5 * 10**8).to_bytes(4, "big"))
PACKED = {"message": "m\n", "level": "warn", "n": 1, "raw": b"a\xff", "real": 0.5, "in": {"a": [None, True]}}
UNPACKED = Log(
    time=NOON + 500_000_000,
    level="warn",
    message="m\n",
    attributes={"n": 1, "raw": "a\ufffd", "real": 0.5, "in": {"a": [None, True]}},
)


@pytest.mark.parametrize("time", [EVENT_TIME, 1767268800.5, [EVENT_TIME, {}], 1767268800500])
@pytest.mark.parametrize("path", [None, "/logs?a=b"])
def test_messagepack_of_fluent_bit_and_fluentd_is_as_json(time: Any, path: str | None) -> None:
    sent = pack([time, PACKED])
    for body, count in (sent, 1), (sent * 3, 3), (gzip.compress(sent * 2), 2):
        assert decode("logs", kept(body, path) if path else body) == [UNPACKED] * count
    assert decode("logs", pack(PACKED | {"time": 1767268800.5}) * 2) == [UNPACKED] * 2


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 255, 256, 300, 5_000, 40_000])
def test_each_record_of_an_array_of_messagepack_is_a_row(count: int) -> None:
    sent = [{"message": str(n)} for n in range(count)]
    path = kept(pack(sent), "/logs", "Content-Type: application/msgpack")
    assert [row.message for row in decode("logs", path)] == [str(n) for n in range(count)]


def test_an_element_of_an_array_of_messagepack_that_is_no_record_is_buried_alone() -> None:
    one, other, reject = decode("logs", pack([{"message": "a"}, 5, {"message": "b"}]))
    assert (one.message, other.message) == ("a", "b")
    assert reject.reason == "msgpack: neither a record nor a time and a record"


def test_a_truncated_array_of_messagepack_is_buried_beside_its_records() -> None:
    *rows, reject = decode("logs", pack([{"message": "a"}] * 300)[:-11])
    assert [row.message for row in rows] == ["a"] * 299
    assert reject.reason == "msgpack: truncated" and reject_reason("logs", reject.part) == reject.reason


def test_a_large_map_of_messagepack_and_one_in_an_array_are_records() -> None:
    many = PACKED | {f"a{n}": n for n in range(300)}
    sent = pack([EVENT_TIME, many]) + pack(many) + b"\xdf" + len(PACKED).to_bytes(4, "big") + pack(PACKED)[1:]
    first, second, third = decode("logs", sent)
    assert first.attributes == second.attributes == UNPACKED.attributes | {f"a{n}": n for n in range(300)}
    assert third == msgspec.structs.replace(UNPACKED, time=None)


@check_each_row(
    ("part", "reason"),
    [
        (b"\x05", "msgpack: neither a record"), (b"\xa3abc", "msgpack: neither a record"),
        (pack([1, 2, 3]), "msgpack: neither a record"), (pack({"n": 1}), "missing: message"),
        (pack({"message": "a\0"}), "text with a NUL"), (pack(PACKED)[:-1], "msgpack: truncated"),
        (b"\xdd\xff\xff\xff\xff\1", "msgpack: truncated"), (b"\xa3ab", "msgpack: truncated"),
        (b"\x81\xa7message\xa1\xff", "not UTF-8"), (b"\xc1", "msgpack: MessagePack data"),
    ],
)  # fmt: skip
def test_an_invalid_object_of_messagepack_is_buried_alone(part: bytes, reason: str) -> None:
    good, bad = decode("logs", pack([EVENT_TIME, PACKED]) + part)
    assert good == UNPACKED
    assert bad.reason.startswith(reason) and reject_reason("logs", bad.part) == bad.reason


@pytest.mark.parametrize("name", ENVELOPES)
def test_each_part_of_an_envelope_that_is_no_record_is_rejected_alone(name: str) -> None:
    large = json.dumps({"message": "x" * LIMITS.record}).encode()
    body = b'{"a":1,"%b":[{"message":"m"},7,%b,{"message":5},{"message":"n\\u0000"}]}' % (name.encode(), large)
    rows = decode("logs", body)
    assert [row.message for row in rows if isinstance(row, Log)] == ["m", "5"]
    rejects = [row for row in rows if isinstance(row, Reject)]
    assert [row.reason for row in rejects] == [
        "not a JSON object",
        f"record larger than {LIMITS.record} bytes",
        "text with a NUL",
    ]
    for row in rejects:
        assert reject_reason("logs", row.part) == row.reason


def test_an_entry_of_the_journal_that_is_too_large_is_rejected_alone() -> None:
    good, bad = journal(exported(ENTRY) + exported(ENTRY | {"MESSAGE": "x" * LIMITS.record}))
    assert isinstance(good, Log)
    assert bad.reason == f"entry larger than {LIMITS.record} bytes"
