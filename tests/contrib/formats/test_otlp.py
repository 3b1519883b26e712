"""OTLP: every kind of data point and log record in both encodings; invalid parts, limits, any bytes."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from hypothesis import example, given
from hypothesis import settings as profiles
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from sluice.contrib.formats.rpc_status import rpc_status
from sluice.http import replies
from sluice.streams.decoder import CHUNK_BYTES
from sluice.streams.record import Log, Metric, Reject
from support.list_items import LIMITS, decode, reject_reason
from support.otlp_requests import JSON, NOON, attribute, in_json, item, items
from support.table_of_cases import check_each_row

profiles.register_profile("otlp", deadline=None)  # a busy machine is no failure
profiles.load_profile("otlp")
LATER = NOON + 10**9
TRACE, SPAN = bytes(range(16)), bytes(range(8))
TAGS = {"service.name": "web", "otel.scope.name": "lib", "otel.scope.version": "1.0"}


def metrics(*sent: dict[str, Any]) -> ExportMetricsServiceRequest:
    """A request with these metrics, of one resource and scope."""
    return ExportMetricsServiceRequest(
        resource_metrics=[{  # type: ignore[list-item]
            "resource": {"attributes": [attribute("service.name", string_value="web")]},
            "scope_metrics": [{"scope": {"name": "lib", "version": "1.0"}, "metrics": list(sent)}],
        }]
    )  # fmt: skip


def gauge(*points: dict[str, Any], name: str = "g") -> dict[str, Any]:
    return {"name": name, "gauge": {"data_points": list(points)}}


def rows(metric: dict[str, Any]) -> list[Metric]:
    """The rows of a metric, which are the same in both encodings; without the tags that all have."""
    binary, text = (decode("metrics", sent) for sent in items("/v1/metrics", metrics(metric)))
    assert binary == text
    for row in binary:
        assert TAGS.items() <= row.tags.items()
    return binary


def fields(found: list[Metric]) -> list[tuple]:
    """Field, value, type, and the tags that not all rows have."""
    return [
        (row.field, row.value, row.type, {name: row.tags[name] for name in row.tags.keys() - TAGS.keys()})
        for row in found
    ]


# --- metrics


def test_a_gauge_keeps_its_name_and_its_value_is_in_value() -> None:
    point = {"as_double": 21.5, "time_unix_nano": NOON, "attributes": [attribute("room", string_value="a")]}
    assert rows(gauge(point, name="http.requests")) == [
        Metric(time=NOON, name="http.requests", tags={**TAGS, "room": "a"}, field="value", value=21.5, type="float")
    ]


def test_a_sum_has_its_unit_its_temporality_and_its_start() -> None:
    points = [{"as_int": -(2**63), "time_unix_nano": LATER, "start_time_unix_nano": NOON}]
    for number, name, monotonic in (1, "delta", False), (2, "cumulative", True):
        total = {"data_points": points, "aggregation_temporality": number, "is_monotonic": monotonic}
        tags = {"otel.unit": "By", "otel.temporality": name, "otel.monotonic": str(monotonic).lower()}
        metrics = rows({"name": "s", "unit": "By", "sum": total})
        assert fields(metrics) == [("value", -(2**63), "integer", tags), ("start", NOON, "integer", tags)]
        assert {row.time for row in metrics} == {LATER}


def test_a_metric_with_two_kinds_of_data_keeps_both() -> None:
    text = in_json(metrics(gauge({"as_int": 1})))
    text = text.replace(b'"gauge"', b'"sum":{"dataPoints":[{"asInt":"2"}]},"gauge"')
    assert [row.value for row in decode("metrics", item("/v1/metrics", text, JSON))] == [1, 2]


def test_a_histogram_has_cumulative_buckets_as_prometheus_has() -> None:
    point = {
        **{"count": 6, "sum": 9.5, "min": 0.25, "max": 5.0, "bucket_counts": [1, 2, 3], "explicit_bounds": [0.5, 1]},
        "time_unix_nano": NOON,
    }
    tags = {"otel.temporality": "delta"}
    assert fields(rows({"name": "h", "histogram": {"aggregation_temporality": 1, "data_points": [point]}})) == [
        *(("count", 6, "integer", tags), ("sum", 9.5, "float", tags)),
        *(("min", 0.25, "float", tags), ("max", 5.0, "float", tags)),
        *(("bucket", n, "integer", tags | {"le": le}) for n, le in ((1, "0.5"), (3, "1.0"), (6, "+Inf"))),
    ]


def test_a_histogram_may_have_only_a_count() -> None:
    assert fields(rows({"name": "h", "histogram": {"data_points": [{"count": 2**64 - 1}]}})) == [
        ("count", str(2**64 - 1), "unsigned", {})
    ]


def test_an_exponential_histogram_has_its_filled_buckets() -> None:
    point = {
        **{"count": 7, "sum": -1.5, "scale": -1, "zero_count": 2, "zero_threshold": 0.001},
        **{"positive": {"offset": -2, "bucket_counts": [1, 0, 3]}, "negative": {"offset": 4, "bucket_counts": [1]}},
    }
    count, total, (field, value, *_) = fields(rows({"name": "e", "exponential_histogram": {"data_points": [point]}}))
    assert (count, total, field) == (("count", 7, "integer", {}), ("sum", -1.5, "float", {}), "histogram")
    buckets = [[-1024, -256, 1], [-0.001, 0.001, 2], [0.0625, 0.25, 1], [1, 4, 3]]
    about = {"count": 7, "sum": -1.5, "schema": -1, "zero_threshold": 0.001, "buckets": buckets}
    assert json.loads(value) == about


def test_a_bucket_without_a_finite_bound_and_a_scale_out_of_range() -> None:
    point: dict[str, Any] = {"count": 1, "scale": 0, "positive": {"offset": 1023, "bucket_counts": [1]}}
    (_, row) = rows({"name": "e", "exponential_histogram": {"data_points": [point]}})
    assert json.loads(str(row.value))["buckets"] == [[2.0**1023, None, 1]]
    for sent in items("/v1/metrics", metrics({"name": "e", "exponential_histogram": {"data_points": [{"scale": 65}]}})):
        assert reject_reason("metrics", sent) == "exponential histogram with a scale of 65"


def test_a_summary_has_its_quantiles() -> None:
    point = {"count": 3, "sum": 6.0, "quantile_values": [{"quantile": 0.5, "value": 2}, {"quantile": 1, "value": 3}]}
    assert fields(rows({"name": "s", "summary": {"data_points": [point]}})) == [
        *(("count", 3, "integer", {}), ("sum", 6.0, "float", {})),
        *(("quantile", 2.0, "float", {"quantile": "0.5"}), ("quantile", 3.0, "float", {"quantile": "1.0"})),
    ]


def test_exemplars_are_json_with_their_ids_and_attributes_at_their_time() -> None:
    exemplar = {"as_double": 0.7, "time_unix_nano": NOON, "trace_id": TRACE, "span_id": SPAN}
    exemplar["filtered_attributes"] = [attribute("user", int_value=5)]
    assert json.loads(str(rows(gauge({"as_int": 1, "exemplars": [{"as_int": 3}]}))[1].value))["value"] == 3
    _, row = rows(gauge({"as_int": 1, "time_unix_nano": LATER, "exemplars": [exemplar]}))
    about = {"value": 0.7, "labels": {"user": "5", "trace_id": TRACE.hex(), "span_id": SPAN.hex()}}
    ((field, value, *_),) = fields([row])
    assert (field, json.loads(value), row.tags) == ("exemplar", about, TAGS)
    assert row.time == NOON


def test_a_point_without_a_recorded_value_says_so() -> None:
    assert fields(rows(gauge({"flags": 1}))) == [("state", "stale", "string", {})]
    assert fields(rows(gauge({"flags": 5, "as_int": 1}))) == [
        ("value", 1, "integer", {}), ("state", "stale", "string", {}), ("flags", 5, "integer", {})
    ]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")])
def test_a_number_that_is_not_finite_has_a_field_of_its_own(value: float, text: str) -> None:
    assert fields(rows(gauge({"as_double": value}))) == [("state", text, "string", {})]
    point = {"count": 1, "sum": value}
    assert fields(rows({"name": "h", "histogram": {"data_points": [point]}}))[1:] == [("sum_state", text, "string", {})]


def test_attributes_of_every_type_are_texts() -> None:
    pair = {"values": [{"key": "k", "value": {"double_value": math.inf}}]}
    sent: dict[str, dict] = {
        **{"s": {"string_value": "ü"}, "b": {"bool_value": True}, "i": {"int_value": -5}, "d": {"double_value": 0.5}},
        **{"bytes": {"bytes_value": b"\xff"}, "array": {"array_value": {"values": [{"int_value": 1}, {}]}}},
        **{"map": {"kvlist_value": pair}, "none": {}},
    }
    point = {"as_int": 1, "attributes": [attribute(key, **value) for key, value in sent.items()]}
    ((*_, tags),) = fields(rows(gauge(point)))
    assert tags == {
        **{"s": "ü", "b": "true", "i": "-5", "d": "0.5", "bytes": "/w==", "array": "[1,null]"},
        **{"map": '{"k":"+Inf"}', "none": ""},
    }


def test_an_attribute_that_a_nearer_one_hides_is_renamed() -> None:
    request = metrics(gauge({"as_int": 1, "attributes": [attribute(n, string_value="point") for n in "abd"]}))
    resource = request.resource_metrics[0]
    for name in "abcd":
        resource.resource.attributes.add(key=name).value.string_value = "resource" if name != "d" else "point"
    for name in "bc":
        resource.scope_metrics[0].scope.attributes.add(key=name).value.string_value = "scope"
    for sent in items("/v1/metrics", request):
        (row,) = decode("metrics", sent)
        assert row.tags == TAGS | {
            **{"a": "point", "b": "point", "c": "scope", "d": "point"},
            **{"resource.a": "resource", "resource.b": "resource", "scope.b": "scope", "resource.c": "resource"},
        }


# --- logs


def logs(*sent: dict[str, Any]) -> ExportLogsServiceRequest:
    """A request with these log records, of one resource and scope."""
    attributes = [attribute("service.name", string_value="web"), attribute("host.name", string_value="h")]
    return ExportLogsServiceRequest(
        resource_logs=[{  # type: ignore[list-item]
            "resource": {"attributes": attributes},
            "scope_logs": [{"scope": {"name": "lib"}, "log_records": list(sent)}],
        }]
    )  # fmt: skip


def log(sent: dict[str, Any]) -> Log:
    """The record of a log record, which is the same in both encodings; without the attributes that all have."""
    (binary,), (text,) = (decode("logs", one) for one in items("/v1/logs", logs(sent)))
    assert binary == text
    assert (binary.attributes.pop("host.name"), binary.attributes.pop("otel.scope.name")) == ("h", "lib")
    assert binary.service == "web"
    return binary


def test_a_log_record_has_its_level_its_body_its_ids_and_its_attributes() -> None:
    record = log(
        {
            **{
                "time_unix_nano": NOON,
                "observed_time_unix_nano": LATER,
                "severity_number": 18,
                "severity_text": "ERROR",
            },
            **{"body": {"string_value": "disk full"}, "trace_id": TRACE, "span_id": SPAN, "flags": 1},
            **{"event_name": "disk", "dropped_attributes_count": 3},
            "attributes": [attribute("free", double_value=0.5), attribute("a", array_value={"values": [{}]})],
        }
    )
    assert record == Log(
        time=NOON, level="error", service="web", message="disk full", attributes={
            **{"free": 0.5, "a": [None], "severity_number": 18, "observed_time_unix_nano": LATER, "trace_flags": 1},
            **{"trace_id": TRACE.hex(), "span_id": SPAN.hex(), "event_name": "disk", "dropped_attributes_count": 3},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "text", "level", "kept"),
    [
        *(
            (0, "", None, {}),
            (1, "", "trace", {}),
            (9, "", "info", {}),
            (9, "INFO", "info", {}),
            (13, "WARNING", "warn", {"level": "WARNING"}),
        ),
        *((24, "", "fatal", {"severity_number": 24}), (0, "Notice", "info", {"level": "Notice"}), (0, "x", "x", {})),
        (25, "", None, {"severity_number": 25}),
    ],
)
def test_a_severity_becomes_a_level_and_nothing_of_it_is_lost(number: int, text: str, level: str, kept: dict) -> None:
    record = log({"severity_number": number, "severity_text": text, "body": {"string_value": "m"}})
    assert (record.level, record.attributes) == (level, kept)


def test_a_body_that_is_no_text_is_json_and_the_observed_time_replaces_a_missing_one() -> None:
    body = {"kvlist_value": {"values": [attribute("k", int_value=1)]}}
    assert log({"body": body, "observed_time_unix_nano": NOON}) == Log(time=NOON, service="web", message='{"k":1}')
    assert log({"event_name": "e"}) == Log(service="web", message="e", attributes={"event_name": "e"})
    assert log({}) == Log(service="web", message="")


def test_an_attribute_with_the_name_of_a_field_is_renamed() -> None:
    record = log({"trace_id": TRACE, "attributes": [attribute("trace_id", string_value="mine")]})
    assert record.attributes == {"trace_id": TRACE.hex(), "attributes.trace_id": "mine"}


# --- invalid parts, and nothing at all


POINTS = [{"as_int": 1}, {}, {"as_int": 2}]
NUL = {"as_int": 1, "attributes": [attribute("a", string_value="b\0")]}
INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "a point without a value": (gauge(*POINTS), "data point without a value"),
    "a NUL": (gauge(POINTS[0], NUL, POINTS[2]), "text with a NUL"),
    "a late time": (gauge(POINTS[0], {"as_int": 1, "time_unix_nano": 2**63}, POINTS[2]), "time out of range"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_an_invalid_data_point_is_buried_alone_and_can_be_decoded_again(kind: str) -> None:
    metric, reason = INVALID[kind]
    for sent in items("/v1/metrics", metrics(gauge({"as_int": 0}), metric, gauge({"as_int": 3}))):
        found = decode("metrics", gzipped(sent))
        (reject,) = [x for x in found if isinstance(x, Reject)]
        assert [x.value for x in found if x is not reject] == [0, 1, 2, 3]
        assert (reject.reason, reject.whole) == (reason, False)
        assert reject_reason("metrics", reject.part) == reason
        # with its resource, its scope and its metric
        assert b"service.name" in reject.part and b"lib" in reject.part and len(reject.part) < len(sent)


def gzipped(sent: bytes) -> bytes:
    head, _, body = sent.partition(b"\r\n\r\n")
    return head + b"\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(body)


def test_a_metric_without_a_name_is_buried_and_one_without_data_has_no_row() -> None:
    for sent in items("/v1/metrics", metrics({"gauge": {"data_points": POINTS}})):
        assert reject_reason("metrics", sent) == "missing: name"
    for sent in items("/v1/metrics", metrics({"name": "m"})):
        assert decode("metrics", sent) == []


def test_a_request_may_have_the_names_of_the_protobuf() -> None:
    """As opentelemetry-cpp sends it. Names and texts of the telemetry stay as they are."""
    pair = {"key": "a_b", "value": {"string_value": 'x_y": "a_b":'}}
    point = {"as_int": 5, "time_unix_nano": "1767268800000000000", "attributes": [pair]}
    sent = {
        "resource_metrics": [{"scope_metrics": [{"metrics": [{"name": "m_n", "gauge": {"data_points": [point]}}]}]}]
    }
    (found,) = decode("metrics", item("/v1/metrics", json.dumps(sent, indent=1).encode(), JSON))
    assert (found.name, found.value, found.tags, found.time) == (
        "m_n",
        5,
        {"a_b": 'x_y": "a_b":'},
        1_767_268_800 * 10**9,
    )
    del point["as_int"]
    reject = reject_reason("metrics", item("/v1/metrics", json.dumps(sent).encode(), JSON))
    assert reject == "data point without a value"


@pytest.mark.parametrize(
    ("path", "stream", "body"),
    [
        ("/v1/traces", "spans", {"resourceSpans": [{"instrumentationLibrarySpans": [{"spans": [{"name": "a"}]}]}]}),
        ("/v1/traces", "spans", {"resourceSpans": [{"resource": {}, "scope_spans": [{"spans": [{"name": "a"}]}]}]}),
        ("/v1/logs", "logs", {"resourceLogs": [{"scopeLogs": [{"scope": {}, "logs": [{}]}]}]}),
    ],
)
def test_a_message_whose_content_is_not_known_is_buried(path: str, stream: str, body: Any) -> None:
    reason = reject_reason(stream, item(path, json.dumps(body).encode(), JSON))
    assert reason.startswith("not OTLP: ") and " without " in reason


def test_a_resource_of_protobuf_whose_content_is_not_known_is_buried() -> None:
    old = b"\xc2\x3e\x02\x12\x00"  # field 1000, `instrumentation_library_spans`
    for content, lost in (old, True), (b"\x0a\x00", False):
        results = decode("spans", item("/v1/traces", b"\x0a%c%b" % (len(content), content)))
        assert [result.reason for result in results] == ["not OTLP: ResourceSpans without scopeSpans"] * lost


def test_a_histogram_may_lack_its_last_bucket() -> None:
    point = {"count": 1, "bucket_counts": [1, 0], "explicit_bounds": [1, 2]}
    for sent in items("/v1/metrics", metrics({"name": "h", "histogram": {"data_points": [point]}})):
        assert [row.field for row in decode("metrics", sent)] == ["count", "bucket", "bucket", "bucket"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"resourceMetrics":[]}', b'{"resourceMetrics":null}'])
def test_a_request_without_telemetry_is_valid_and_has_no_record(body: bytes) -> None:
    assert decode("metrics", item("/v1/metrics", body, JSON if body else "")) == []
    for sent in items("/v1/metrics", metrics()):
        assert decode("metrics", sent) == []


@check_each_row("body", [b"room value=1", b'{"name":"room","value":1}', b"[]", b"\n\x03abc", b"\x0a\xff"])
@check_each_row("path, stream", [("/v1/metrics", "metrics"), ("/v1/logs", "logs")])
def test_a_body_of_another_format_is_buried_whole(body: bytes, path: str, stream: str) -> None:
    for content_type in "application/x-protobuf", JSON:
        assert reject_reason(stream, item(path, body, content_type))


def test_logs_sent_to_the_path_of_metrics_are_buried() -> None:
    for sent in items("/v1/metrics", logs({"body": {"string_value": "m"}})):
        assert reject_reason("metrics", sent)


def test_json_is_recognised_without_its_content_type_and_may_be_lines() -> None:
    text = in_json(metrics(gauge({"as_int": 1})))
    assert [row.value for row in decode("metrics", item("/v1/metrics", text, "text/plain"))] == [1]
    assert len(decode("metrics", item("/v1/metrics", text + b"\n\n" + text + b"\n", JSON))) == 2
    one, reject = decode("metrics", item("/v1/metrics", text + b"\n" + text[:-1], JSON))
    assert (one.value, reject.part.endswith(text[:-1])) == (1, True)
    indented = text.replace(b", ", b",\n  ")
    assert decode("metrics", item("/v1/metrics", indented, "Application/JSON; charset=utf-8")) == [one]


@pytest.mark.parametrize("line", [b"1 2", b'name", "a"c', b"\x28\xb5\x2f\xfd", b'{"resourceMetrics": []} x'])
def test_the_dead_letter_of_a_line_of_json_has_the_same_reason_again(line: bytes) -> None:
    text = in_json(metrics(gauge({"as_int": 1})))
    _, reject = decode("metrics", item("/v1/metrics", text + b"\n" + line, JSON))
    assert reject.reason == reject_reason("metrics", reject.part)


def test_an_id_in_json_that_is_not_hexadecimal_is_stored_as_it_was_sent() -> None:
    body = in_json(logs({"trace_id": TRACE})).replace(TRACE.hex().encode(), b"A" * 4 + b"//" + b"A" * 26)
    (found,) = decode("logs", item("/v1/logs", body, JSON))
    assert found.attributes["trace_id"] == "AAAA//" + "A" * 26


@pytest.mark.parametrize(
    "field",
    ['"timeUnixNano":1.5', '"body":5', '"attributes":{}', '"body":[]', '"severityText":5', '"attributes":[null]'],
)
def test_a_field_of_another_type_in_json_is_stored_as_it_was_sent(field: str) -> None:
    body = f'{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"eventName":"e",{field}}}]}}]}}]}}'.encode()
    (found,) = decode("logs", item("/v1/logs", body, JSON))
    name, _, sent = field.partition(":")
    assert found.message == (sent if "body" in field else "e")
    if "body" not in field and "null" not in field:
        assert found.attributes[name.strip('"')] == sent


def test_many_invalid_data_points_become_few_dead_letters_that_can_be_decoded_again() -> None:
    for sent in items("/v1/metrics", metrics(gauge({"as_int": 1}, *[{}] * 1000))):
        record, *rejects = decode("metrics", sent)
        assert record.value == 1
        assert len(rejects) < 110
        assert reject_reason("metrics", rejects[-1].part) == rejects[-1].reason == "data point without a value"
        fixed = rejects[-1].part  # all of them: as many as the single ones leave
        once = len(
            decode("metrics", fixed + (b"\n" if JSON.encode() in sent else b"") + sent.partition(b"\r\n\r\n")[2])
        )
        assert once > 1


def test_what_exceeds_the_limit_of_records_is_buried_undecoded_and_can_be_replayed() -> None:
    many = metrics(*(gauge(*({"as_int": n * 10 + k} for k in range(10)), name=f"m{n}") for n in range(300)))
    many.resource_metrics.append(metrics(gauge({"as_int": 3000})).resource_metrics[0])
    for sent in items("/v1/metrics", many):
        letters, found = [sent], []
        while letters:
            for result in decode("metrics", letters.pop(), LIMITS._replace(records=2500)):
                if isinstance(result, Reject):
                    assert result.reason == "too much in one body: the rest was not decoded"
                    letters.append(result.part)
                else:
                    found.append(result.value)
        assert sorted(found) == list(range(3001))


def test_a_request_is_decoded_up_to_its_limit() -> None:
    many = metrics(*(gauge({"as_int": n}, name=f"m{n}") for n in range(9)))
    for sent in items("/v1/metrics", many):
        # two for resource and scope; four for each metric, its data, the point and the row
        for records, count in (12, 2), (13, 3):
            found = decode("metrics", sent, LIMITS._replace(records=records))
            assert [row.value for row in found if not isinstance(row, Reject)] == list(range(count))


def test_the_fields_of_a_message_in_protobuf_are_bounded() -> None:
    sent = item("/v1/metrics", metrics(*[gauge({"as_int": 1})] * 9).SerializeToString())
    assert reject_reason("metrics", sent, LIMITS._replace(records=2)) == "not OTLP: a message with more than 8 fields"
    assert len(decode("metrics", sent, LIMITS._replace(records=10))) > 1


def test_a_name_in_protobuf_that_is_not_utf_8_is_invalid() -> None:
    body = metrics(gauge({"as_int": 1}, name="name")).SerializeToString().replace(b"name", b"nam\xff")
    assert reject_reason("metrics", item("/v1/metrics", body)) == "not a ResourceMetrics of OTLP"


def test_unknown_fields_and_nulls_in_json_are_skipped() -> None:
    text = in_json(metrics(gauge({"as_int": 1}))).replace(b'"asInt"', b'"new": [1], "flags": null, "asInt"')
    assert [row.value for row in decode("metrics", item("/v1/metrics", text, JSON))] == [1]


def test_a_long_array_in_json_is_decoded_one_element_at_a_time() -> None:
    long = [attribute("a", string_value="x" * 10_000)]
    request = metrics(gauge(*({"as_int": n, "attributes": long} for n in range(120))))
    assert len(in_json(request)) > CHUNK_BYTES
    sent = item("/v1/metrics", in_json(request), JSON)
    assert [row.value for row in decode("metrics", sent)] == list(range(120))
    *found, reject = decode("metrics", sent, LIMITS._replace(records=100))
    assert found
    assert [row.value for row in [*found, *decode("metrics", reject.part)]] == list(range(120))


def test_the_brackets_of_a_short_array_in_json_do_not_count_towards_the_limit_of_records() -> None:
    many = [attribute(f"a{n}", int_value=n) for n in range(100)]
    sent = item("/v1/metrics", in_json(metrics(gauge(*[{"as_int": 1, "attributes": many}] * 10))), JSON)
    assert [row.value for row in decode("metrics", sent, LIMITS._replace(records=50))] == [1] * 10


@pytest.mark.parametrize("size", [1, 127, 128, 300])
def test_an_error_in_protobuf_has_its_detail_as_message(size: int) -> None:
    given = rpc_status(replies.unavailable("x" * size, 1), False)
    assert Status.FromString(b"".join(given.chunks)).message == "x" * size


def test_what_many_points_inherit_counts_towards_the_limit_of_records() -> None:
    """Otherwise a body of 8 MiB with large attributes of its resource becomes many gigabytes of rows."""
    request = metrics(gauge(*({"as_int": n} for n in range(1000))))
    request.resource_metrics[0].resource.attributes.add(key="large").value.string_value = "x" * 100_000
    for sent in items("/v1/metrics", request):
        found = decode("metrics", sent, LIMITS._replace(records=20_000))
        assert len(found) < 250
        assert found[-1].reason == "too much in one body: the rest was not decoded"


def test_a_data_point_may_take_a_quarter_of_the_bytes_of_a_record() -> None:
    message = metrics(gauge({"as_int": 1, "attributes": [attribute("a", string_value="x" * 1000)]}))
    (point,) = message.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    sizes = point.ByteSize(), len(json.dumps(json.loads(in_json(point))))
    for sent, size in zip(items("/v1/metrics", message), sizes, strict=True):
        (row,) = decode("metrics", sent, LIMITS._replace(record=4 * size))
        assert row.value == 1
        (reject,) = decode("metrics", sent, LIMITS._replace(record=4 * size - 1))
        assert reject.reason == f"NumberDataPoint larger than {size - 1} bytes"


def test_a_data_point_has_at_most_10000_buckets_or_exemplars() -> None:
    buckets = {"bucket_counts": [1] * 10_000, "explicit_bounds": range(9_999)}
    assert len(rows({"name": "h", "histogram": {"data_points": [{"count": 1} | buckets]}})) == 10_001
    assert len(rows(gauge({"as_int": 1, "exemplars": [{"as_int": 1}] * 10_000}))) == 10_001
    many = {"bucket_counts": [1] * 10_001, "explicit_bounds": range(10_000)}
    for point in {"count": 1} | many, {"count": 1, "exemplars": [{"as_int": 1}] * 10_001}:
        for sent in items("/v1/metrics", metrics({"name": "h", "histogram": {"data_points": [point]}})):
            assert reject_reason("metrics", sent) == "data point with more than 10000 parts"


def test_the_last_time_of_64_bits_is_a_time() -> None:
    assert rows(gauge({"as_int": 1, "time_unix_nano": 2**63 - 1}))[0].time == 2**63 - 1


@pytest.mark.parametrize(("last", "beyond"), [(-64, -65), (64, 65)])
def test_an_exponential_histogram_may_have_a_scale_from_minus_64_to_64(last: int, beyond: int) -> None:
    def histogram(scale: int) -> dict[str, Any]:
        return {"name": "e", "exponential_histogram": {"data_points": [{"count": 1, "scale": scale}]}}

    (_, row) = rows(histogram(last))
    assert json.loads(str(row.value))["schema"] == last
    for sent in items("/v1/metrics", metrics(histogram(beyond))):
        assert reject_reason("metrics", sent) == f"exponential histogram with a scale of {beyond}"


BOMBS = {
    "points": ("/v1/metrics", b"\n\0", (0x2A, 0x12, 0x12, 0x0A)),
    "metrics": ("/v1/metrics", b"\x12\0", (0x12, 0x0A)),
    "resources": ("/v1/metrics", b"\n\0", ()),
    "log records": ("/v1/logs", b"\x12\0", (0x12, 0x0A)),
    "attributes": ("/v1/logs", b"\x32\0", (0x12, 0x12, 0x0A)),
}
DECODE = """
import resource, sys
from support.list_items import LIMITS, decode
item = open(sys.argv[2], "rb").read()
from sluice.contrib.formats import otlp_logs, otlp_metrics
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = sum(1 for _ in decode(sys.argv[1], item))
print(found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.contract
@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_body_that_inflates_to_millions_of_messages_takes_little_memory(kind: str, tmp_path: Any) -> None:
    path, unit, around = BOMBS[kind]
    body = unit * ((8 << 20) // len(unit) - 50)
    for key in around:
        size = len(body)
        length = bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        body = bytes([key, *length, size]) + body
    (tmp_path / "item").write_bytes(item(path, gzip.compress(body, 1)))
    done = subprocess.run(
        [sys.executable, "-c", DECODE, path.rpartition("/")[2], tmp_path / "item"],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": ".:tests"},
    )  # fmt: skip
    found, mebibytes = map(int, done.stdout.split())
    assert found < 300
    assert mebibytes < 64


# --- any bytes

PIECES = [
    *(metrics(gauge({"as_int": 1, "attributes": [attribute("a", string_value="b")]})).SerializeToString(),),
    *(b"\n", b"\x12", b"\x0a\x02", b"\x12\x03abc", b"\x2a\x02\x0a\x00", b"\xff", b"\0", b"{", b"}", b"]", b"["),
    *(
        b'{"resourceMetrics":',
        b'"scopeMetrics":[',
        b'{"metrics":[{"name":"x","gauge":{"dataPoints":[{}',
        b'"asInt":"5"',
    ),
    in_json(metrics(gauge({"as_int": 1}))),
]


@example(in_json(metrics(gauge({"as_int": 1}))) + b"\nC", False, ("/v1/metrics", "metrics", Metric))
@given(
    st.binary(max_size=100) | st.lists(st.sampled_from(PIECES) | st.binary(max_size=2), max_size=8).map(b"".join),
    st.booleans(),
    st.sampled_from([("/v1/metrics", "metrics", Metric), ("/v1/logs", "logs", Log)]),
)
def test_for_any_bytes_there_are_records_or_rejects_and_never_an_exception(
    body: bytes, text: bool, kind: tuple[str, str, type]
) -> None:
    path, stream, record = kind
    sent = item(path, body, JSON if text else "application/x-protobuf")
    for result in (results := decode(stream, sent)):
        if isinstance(result, Reject):
            assert result.whole == (len(results) == 1 and result.part == sent)
            assert [x.reason for x in decode(stream, result.part)] == [result.reason]
        else:
            assert type(result) is record
