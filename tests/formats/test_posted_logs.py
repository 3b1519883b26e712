"""Logs of other systems: GELF, and the reports of browsers."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from items import LIMITS, decode, kept, reject_reason
from sluice.streams.record import Log, Reject

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
