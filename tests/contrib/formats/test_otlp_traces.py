"""OTLP's spans in both encodings: their columns, what senders write in another form, and invalid ones."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sluice.contrib.formats import otlp
from sluice.contrib.formats.otlp_traces import PARTS
from sluice.contrib.formats.spans import Span
from sluice.streams.record import Reject
from support.list_items import LIMITS, decode
from support.otlp_requests import JSON, NOON, attribute, item, items

TRACE, SPAN, PARENT = bytes(range(16)), bytes(range(8)), bytes(range(8, 16))
GIVEN = {"trace_id": TRACE, "span_id": SPAN, "name": "GET /", "start_time_unix_nano": NOON}
RESOURCE = {"attributes": [attribute("service.name", string_value="web"), attribute("host", string_value="h1")]}


def request(*spans: dict[str, Any]) -> ExportTraceServiceRequest:
    scope = {"name": "lib", "version": "1.0"}
    sent = [{"resource": RESOURCE, "scope_spans": [{"scope": scope, "spans": list(spans)}]}]
    return ExportTraceServiceRequest(resource_spans=sent)  # type: ignore[arg-type]


def row(span: dict[str, Any]) -> Span:
    """The row of a span, which is the same in both encodings."""
    (binary,), (text,) = (decode("spans", sent) for sent in items("/v1/traces", request(span)))
    assert binary == text and isinstance(binary, Span)
    return binary


def in_json(**span: Any) -> list:
    """What becomes of a span with these members in JSON."""
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "", "spanId": "", **span}]}]}]}
    return decode("spans", item("/v1/traces", json.dumps(body).encode(), JSON))


def test_a_span_has_its_ids_its_times_and_the_attributes_of_its_resource_and_scope() -> None:
    more = {"parent_span_id": PARENT, "kind": 2, "end_time_unix_nano": NOON + 1_500, "status": {"code": 2}}
    assert row(GIVEN | more | {"attributes": [attribute("port", int_value=80)]}) == Span(
        time=NOON,
        trace_id=TRACE.hex(),
        span_id=SPAN.hex(),
        parent_id=PARENT.hex(),
        name="GET /",
        kind="server",
        service="web",
        start=NOON,
        duration=1_500,
        status="error",
        attributes={"host": "h1", "otel.scope.name": "lib", "otel.scope.version": "1.0", "port": 80},
    )


def test_events_and_links_are_json() -> None:
    found = row(
        GIVEN
        | {
            "events": [
                {"time_unix_nano": NOON + 1, "name": "exception", "attributes": [attribute("type", string_value="E")]},
                {"name": "bare"},
            ],
            "links": [{"trace_id": TRACE, "span_id": PARENT, "trace_state": "a=b", "dropped_attributes_count": 3}],
        }
    )
    assert found.events == [
        {"time": NOON + 1, "name": "exception", "attributes": {"type": "E"}},
        {"time": None, "name": "bare"},
    ]
    assert found.links == [
        {"trace_id": TRACE.hex(), "span_id": PARENT.hex(), "trace_state": "a=b", "dropped_attributes_count": 3}
    ]


def test_what_has_no_column_is_an_attribute() -> None:
    sent: dict[str, Any] = {"trace_state": "a=b", "flags": 0x301, "status": {"code": 2, "message": "no route"}}
    sent |= {"dropped_attributes_count": 1, "dropped_events_count": 2, "dropped_links_count": 3}
    found = row(GIVEN | sent).attributes
    assert {name: value for name, value in found.items() if name.startswith("otel.") and ".scope." not in name} == {
        "otel.trace_state": "a=b",
        "otel.trace_flags": 1,
        "otel.status_description": "no route",
        "otel.dropped_attributes_count": 1,
        "otel.dropped_events_count": 2,
        "otel.dropped_links_count": 3,
    }


def test_a_span_that_is_not_over_or_ends_before_its_start_has_no_duration() -> None:
    assert row(GIVEN).duration is None
    assert row(GIVEN | {"end_time_unix_nano": NOON - 1}).duration is None
    assert row(GIVEN | {"end_time_unix_nano": NOON}).duration == 0
    assert row({"name": "no time"}).time is None


@pytest.mark.parametrize("kind", [2, "2", "SPAN_KIND_SERVER", "server", "Server"])
def test_an_enum_may_be_sent_by_its_name(kind: object) -> None:
    (found,) = in_json(kind=kind, status={"code": "STATUS_CODE_OK"})
    assert (found.kind, found.status) == ("server", "ok")


def test_an_enum_that_is_unknown_is_stored_as_it_was_sent() -> None:
    (found,) = in_json(kind="robot", status={"code": "BAD"}, attributes=[{"key": "a", "value": {"intValue": 1}}])
    assert (found.kind, found.status) == (None, None)
    assert found.attributes == {"a": 1, "kind": "robot", "otel.status_description": "BAD"}
    (found,) = in_json(kind=9, status={"code": 7})
    assert found.attributes == {"otel.kind": 9, "otel.status_code": 7}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("5B8EFFF798038103D269B633813FC60C", "5b8efff798038103d269b633813fc60c"),
        ("ab", "ab"),
        ("W47/95gDgQPSabYzgT/GDA==", "W47/95gDgQPSabYzgT/GDA=="),
        ("sixteen letters!", "sixteen letters!"),
        ("abc", "abc"),
        ("", ""),
    ],
)
def test_an_id_that_is_not_hexadecimal_is_stored_as_it_was_sent(sent: str, stored: str) -> None:
    (found,) = in_json(traceId=sent, spanId=sent, parentSpanId=sent, links=[{"traceId": sent}])
    assert [found.trace_id, found.span_id, found.parent_id or ""] == [stored] * 3
    assert found.links == [{"trace_id": stored, "span_id": ""}]


def test_an_invalid_span_is_buried_with_its_resource_and_its_scope() -> None:
    for sent in items("/v1/traces", request(GIVEN, GIVEN | {"name": "a\0b"})):
        good, bad = decode("spans", sent)
        assert isinstance(good, Span) and bad == Reject(bad.part, "text with a NUL")
        (again,) = decode("spans", bad.part)
        assert again.whole and b"web" in again.part and b"lib" in again.part
    ((bad),) = in_json(traceId="a\0b")
    assert bad.reason == "text with a NUL"


def test_a_time_beyond_64_bits_makes_a_span_invalid() -> None:
    found = [decode("spans", sent) for sent in items("/v1/traces", request(GIVEN | {"end_time_unix_nano": 2**63}))]
    assert {reject.reason for (reject,) in found} == {"time out of range"}


def test_a_span_has_a_bounded_number_of_events() -> None:
    found = [decode("spans", sent) for sent in items("/v1/traces", request(GIVEN | {"events": [{}] * (PARTS + 1)}))]
    assert {reject.reason for (reject,) in found} == {f"span with more than {PARTS} events and links"}


def test_a_plain_object_of_a_users_own_path_has_the_fields_of_a_span() -> None:
    (found,) = decode("spans", b'{"trace_id":"a","span_id":"b","name":"c","time":1766600000,"attributes":{"d":[1]}}')
    assert found == Span(time=1_766_600_000 * 10**9, trace_id="a", span_id="b", name="c", attributes={"d": [1]})
    large = msgspec.json.encode({"trace_id": "a", "span_id": "b", "name": "c" * LIMITS.record})
    assert "larger than" in decode("spans", large)[0].reason


def test_a_small_request_is_decoded_as_a_whole_and_its_invalid_spans_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sent(*names: str) -> bytes:
        spans = [GIVEN | {"name": name, "attributes": [attribute("n", int_value=n)]} for n, name in enumerate(names)]
        return item("/v1/traces", request(*spans).SerializeToString())

    whole, partial = decode("spans", sent("a", "b")), decode("spans", sent("a", "b\0", "c"))
    assert [type(result) for result in partial] == [Span, Span, Reject]
    few = LIMITS._replace(records=5)
    cut = decode("spans", sent(*"abcde"), few)
    monkeypatch.setattr(otlp.Protobuf, "at_once", False)
    assert decode("spans", sent("a", "b")) == whole
    assert decode("spans", sent("a", "b\0", "c")) == partial
    # what is decoded one by one costs more of the limit
    assert isinstance(cut[-1], Reject) and isinstance(decode("spans", sent(*"abcde"), few)[-1], Reject)
    monkeypatch.undo()
    monkeypatch.setattr(otlp, "innermost", lambda *_: pytest.fail("one by one"))
    assert decode("spans", sent("a", "b")) == whole
