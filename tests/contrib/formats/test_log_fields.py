"""Logs: the fields of common log libraries, levels, attributes, and plain lines."""

from __future__ import annotations

import json

import msgspec
import pytest

from sluice.contrib.formats.log_fields import LEVELS, stored_level
from sluice.contrib.formats.register import ENVELOPES
from sluice.streams.record import Log, Reject
from support.folders import has
from support.list_items import LIMITS, decode, reject_reason
from support.table_of_cases import check_each_row

NOON = 1_767_268_800_000_000_000

# what the libraries write by default
LIBRARIES: dict[str, tuple[dict, Log]] = {
    "pino": (
        {"level": 40, "time": 1767268800000, "pid": 7, "msg": "slow"},
        Log(time=NOON, level="warn", message="slow", attributes={"pid": 7, "level": 40}),
    ),
    "slog": (
        {"time": "2026-01-01T13:00:00.000000000+01:00", "level": "INFO", "msg": "hello", "count": 3},
        Log(time=NOON, level="info", message="hello", attributes={"count": 3}),
    ),
    "zap": (
        {"level": "error", "ts": 1767268800.0, "caller": "main.go:9", "msg": "no", "stacktrace": "main\n\tx"},
        Log(time=NOON, level="error", message="no", attributes={"caller": "main.go:9", "stacktrace": "main\n\tx"}),
    ),
    "structlog": (
        {"event": "login", "level": "warning", "timestamp": "2026-01-01T12:00:00Z", "user": {"id": 5}},
        Log(time=NOON, level="warn", message="login", attributes={"user": {"id": 5}, "level": "warning"}),
    ),
    "Elastic's ECS": (
        {"@timestamp": "2026-01-01T12:00:00Z", "log.level": "DEBUG", "message": "m", "service.name": "web"},
        Log(time=NOON, level="debug", service="web", message="m"),
    ),
    "Docker": (
        {"log": "line\n", "stream": "stderr", "time": "2026-01-01T12:00:00.000000001Z"},
        Log(time=NOON + 1, message="line\n", attributes={"stream": "stderr"}),
    ),
    "ECS in objects": (
        {"@timestamp": "2026-01-01T12:00:00Z", "log": {"level": "WARN"}, "service": {"name": "web"}, "message": "m"},
        Log(
            time=NOON,
            level="warn",
            service="web",
            message="m",
            attributes={"log": {"level": "WARN"}, "service": {"name": "web"}},
        ),
    ),
    "Rust's tracing": (
        {"timestamp": "2026-01-01T12:00:00Z", "level": "INFO", "fields": {"message": "m", "n": 1}, "target": "app"},
        Log(time=NOON, level="info", message="m", attributes={"fields": {"message": "m", "n": 1}, "target": "app"}),
    ),
    "pino, an object alone": (
        {"level": 30, "time": 1767268800000, "req": {"id": 1}},
        Log(time=NOON, level="info", message="", attributes={"req": {"id": 1}, "level": 30}),
    ),
    "Google Cloud": (
        {"severity": "CRITICAL", "message": {"text": "a"}, "time": "2026-01-01T12:00:00Z"},
        Log(time=NOON, level="fatal", message='{"text":"a"}', attributes={"level": "CRITICAL"}),
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_objects_of_common_libraries_are_records(name: str) -> None:
    sent, expected = LIBRARIES[name]
    assert decode("logs", json.dumps(sent).encode()) == [expected]


@check_each_row(
    ("sent", "stored"),
    [
        *((text, text) for text in ("trace", "debug", "info", "warn", "error", "fatal")),
        *(("TRACE", "trace"), ("Error", "error")),
        *(("WARN+1", "warn"), ("debug-4", "debug"), ("dpanic", "fatal"), ("x+1", "x+1")),
        *(("Warning", "warn"), ("err", "error"), ("NOTICE", "info"), ("emerg", "fatal"), ("Verbose", "trace")),
        *((0, "fatal"), (3, "error"), ("4", "warn"), (6, "info"), (7, "debug"), (10, "trace"), (60, "fatal")),
        *(("Audit", "audit"), (35, "35")),
    ],
)
def test_a_level_is_one_of_six_or_as_it_was_sent_and_nothing_of_it_is_lost(sent: str | int, stored: str) -> None:
    result, kept = stored_level(sent)
    assert result == stored
    assert sent == kept if kept is not None else str(sent).lower() == stored


def test_every_level_is_itself() -> None:
    assert all(LEVELS[name] == name for name in LEVELS.values())


@pytest.mark.parametrize("sent", [True, 1.5, ["info"], {"name": "info"}])
def test_a_level_or_service_of_another_type_is_an_attribute(sent: object) -> None:
    body = json.dumps({"message": "m", "level": sent, "service": 5}).encode()
    assert decode("logs", body) == [Log(message="m", attributes={"level": sent, "service": 5})]


def test_null_and_an_empty_level_are_no_level() -> None:
    body = b'{"message":"","level":"","service":null,"user":null,"time":null}'
    assert decode("logs", body) == [Log(message="")]


def test_the_first_name_of_a_field_counts_and_the_others_are_attributes() -> None:
    body = b'{"msg":"b","message":"a","severity":"x","level":"info","ts":2,"time":1,"service.name":"t","service":"s"}'
    assert decode("logs", body) == [
        Log(time=10**9, level="info", service="s", message="a", attributes={
            "msg": "b", "severity": "x", "ts": 2, "service.name": "t"
        })
    ]  # fmt: skip


def test_the_object_attributes_is_merged_unless_it_has_the_name_of_a_field() -> None:
    assert decode("logs", b'{"message":"m","a":1,"attributes":{"b":2}}')[0].attributes == {"a": 1, "b": 2}
    assert decode("logs", b'{"message":"m","a":1,"attributes":{"a":2}}')[0].attributes == {
        "a": 1, "attributes": {"a": 2}
    }  # fmt: skip
    assert decode("logs", b'{"message":"m","attributes":5}')[0].attributes == {"attributes": 5}


def test_a_record_encoded_as_a_body_is_the_same_record() -> None:
    """A record that the database rejects is buried so."""
    record = Log(time=NOON, level="warn", service="s", message="m", attributes={"level": "WARNING", "a": [None, 1]})
    assert decode("logs", msgspec.json.encode(record)) == [record]


PLAIN = [
    "disk full",
    "[warn] disk full",
    "[2026-01-01 12:00:00] started",
    "[",
    "null",
    '"quoted"',
    "level=info msg=x",
    "GET /?message=1&a=2 200",
    "<34>1 2026-01-01T12:00:00Z host su - - - failed",
    "\x1b[31mred\x1b[0m",
    "ünïcode",
]


@check_each_row("line", PLAIN)
def test_a_line_is_a_message(line: str) -> None:
    assert decode("logs", line.encode()) == [Log(message=line)]


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (
            "83 <40>1 2026-01-01T12:00:00+00:00 host app web.3 - State changed",
            Log(level="fatal", service="app", message="State changed", attributes={"procid": "web.3", "level": 0}),
        ),
        (
            "9 <134>1 2026-01-01T12:00:00Z host web - ID [a@1 b=\"\\]\"] GET /",
            Log(
                level="info", service="web", message="GET /",
                attributes={"msgid": "ID", "structured_data": '[a@1 b="\\]"]', "level": 6},
            ),
        ),
        ("9 <11>1 - host - - - - x", Log(time=None, level="error", message="x", attributes={"level": 3})),
    ],
)  # fmt: skip
def test_a_message_of_syslog_behind_its_length_is_a_record(line: str, record: Log) -> None:
    record.attributes = {"host": "host"} | record.attributes
    record.time = None if " - host" in line else NOON
    assert decode("logs", line.encode()) == [record]
    assert decode("logs", b"%b\n%b\n" % (line.encode(), line.encode())) == [record] * 2
    for other in line.partition(" ")[2], line.replace(">1", ">2"), "7 apples":
        assert decode("logs", other.encode()) == [Log(message=other)]


def test_lines_and_objects_may_be_mixed() -> None:
    body = "\r\n".join([*PLAIN, '{"message":"o","level":"info"}', "", "  indented "]).encode()
    assert decode("logs", body) == [
        *(Log(message=line) for line in PLAIN),
        *(Log(level="info", message="o"), Log(message="indented")),
    ]


ENTRY = {
    "__CURSOR": "s=1", "__REALTIME_TIMESTAMP": "1767268800000000", "PRIORITY": "3", "SYSLOG_IDENTIFIER": "sshd"
}  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ("a", "a"),
        ([106, 98, 27], "jb\x1b"),
        ([255, 10, 0], "\ufffd\n\ufffd"),
        ([256, 1], "[256,1]"),
        (["a", "b"], '["a","b"]'),  # a field that occurs twice
        ([[106], "b"], '[[106],"b"]'),
        (None, ""),  # of more than 4 KiB, without --all
    ],
)
def test_an_entry_of_the_journal_is_a_record(sent: object, message: str) -> None:
    expected = Log(time=NOON, level="error", service="sshd", message=message)
    for numbers in {}, {"PRIORITY": 3, "__REALTIME_TIMESTAMP": 1767268800000000}:
        (found,) = decode("logs", json.dumps(ENTRY | {"MESSAGE": sent} | numbers).encode())
        assert (found.attributes.pop("__CURSOR"), found.attributes.pop("level", 3)) == ("s=1", 3 if numbers else "3")
        assert found == expected


def test_the_json_formats_of_journalctl_are_read() -> None:
    entries = [json.dumps(ENTRY | {"MESSAGE": text}) for text in ("a", "b")]
    plain = decode("logs", "\n".join(entries).encode())
    assert [log.message for log in plain] == ["a", "b"]
    for mark, end in ("\x1e", "\n"), ("data: ", "\n\n"), ("data: ", "\r\n"):
        assert decode("logs", "".join(mark + entry + end for entry in entries).encode()) == plain
    pretty = "".join(json.dumps(json.loads(entry), indent=8) + "\n" for entry in entries)
    assert decode("logs", pretty.encode()) == plain


def test_a_line_that_only_looks_like_an_event_is_a_line() -> None:
    assert decode("logs", b"data: {'a': 1}") == [Log(message="data: {'a': 1}")]
    assert reject_reason("logs", b'data: {"a":1}') == "missing: message"
    assert reject_reason("logs", b'{"level":"info"}') == reject_reason("logs", b'{"time":1}') == "missing: message"


def test_json_that_is_no_log_is_not_taken_for_a_line() -> None:
    assert reject_reason("logs", b"[5]") == "not a JSON object"
    assert reject_reason("logs", b'["a"]') == "not a JSON object"
    assert reject_reason("logs", b'{"message":').startswith("not JSON: ")
    assert reject_reason("logs", b'[ {"message":').startswith("not JSON: ")
    assert reject_reason("logs", b'{"message":null}') == "missing: message"


@pytest.mark.parametrize(
    "sent",
    ['{"message":null,"level":"info"}', '{"msg":null,"a":1}', '{"date":1767268800,"cpu_p":1.5}', '{"time":"x","a":1}'],
)
def test_a_record_may_lack_its_message_if_it_has_a_time_or_says_so(sent: str) -> None:
    (log,) = decode("logs", sent.encode())
    assert log.message == ""
    for envelope in ENVELOPES if has("formats") else ():
        (log,) = decode("logs", b'{"time":1767268800,"%b":[{"message":"m"}]}' % envelope.encode())
        assert (log.message, log.time) == ("m", NOON)


def test_a_line_that_cannot_be_stored_is_buried_alone() -> None:
    for bad, reason in ((b"a\0b", "text with a NUL"), (b"\xff", "not UTF-8: invalid start byte")):
        assert decode("logs", b"one\n" + bad + b"\ntwo") == [
            Log(message="one"), Log(message="two"), Reject(bad, reason, False)
        ]  # fmt: skip
        assert reject_reason("logs", bad) == reason
    assert reject_reason("logs", rb'{"message":"m","a":{"b":["\u0000"]}}') == "text with a NUL"
    long = b"x" * (LIMITS.record + 1)
    assert reject_reason("logs", long) == "line longer than 1048576 bytes"
    assert reject_reason("logs", b'{"message":"%b"}' % long) == "record larger than 1048576 bytes"
    assert decode("logs", long, LIMITS._replace(record=len(long))) == [Log(message=long.decode())]
