"""Logs in an envelope."""

from __future__ import annotations

from sluice.contrib.formats.register import ENVELOPES
from sluice.streams.record import Log, Reject
from support.list_items import LIMITS, decode, reject_reason


def test_an_invalid_record_in_an_envelope_is_buried_alone() -> None:
    good, bad = decode("logs", b'{"host":"h","events":[{"message":"m","host":"own"},{"a":1}]}')
    assert good == Log(message="m", attributes={"host": "own"})
    assert bad == Reject(b'{"host":"h","events":[{"a":1}]}', "missing: message")
    both = b'{"service":"s","time":5,"logs":[{"message":"m"},{"msg":"n","service":"t","level":"warn"}]}'
    assert decode("logs", both) == [
        Log(time=5 * 10**9, service="s", message="m"),
        Log(time=5 * 10**9, level="warn", service="t", message="n"),
    ]
    (odd,) = decode("logs", b'{"message":"m","events":[1e999]}')
    assert odd == Log(message="m", attributes={"events": ["1e999"]})
    for name in ENVELOPES:
        assert decode("logs", b'{"%b":[{"message":"m"}]}' % name.encode()) == [Log(message="m")]
        assert reject_reason("logs", b'{"%b":5}' % name.encode()) == "missing: message"
        assert decode("logs", b'{"%b":[]}' % name.encode()) == []


def test_what_stands_beside_the_records_of_an_envelope_is_paid_for() -> None:
    body = b'{"x":"%b","events":[%b]}' % (b"x" * 200_000, b",".join([b'{"message":"m"}'] * 1000))
    *logs, rest = decode("logs", body)
    assert 0 < len(logs) < 1000 and rest.reason.startswith("too much in one body")
    assert reject_reason("logs", body.replace(b'"x":"', b'"x":"' + b"y" * (LIMITS.record // 4))).startswith(
        "more than "
    )
