"""Prometheus remote write: the rows of each part of a request, and requests that are damaged or hostile."""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

import cramjam
import pytest

from sluice.contrib.formats import remote_write_counts
from sluice.contrib.formats.prometheus import messages
from sluice.contrib.formats.protobuf import encode_field
from sluice.streams.body import Remainder
from sluice.streams.record import Metric, Reject
from support.list_items import LIMITS, decode, kept, reject_reason
from support.table_of_cases import check_each_row

NOON = 1767268800000  # 2026-01-01T12:00:00Z
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
TYPES = {1: "application/x-protobuf", 2: "application/x-protobuf;proto=io.prometheus.write.v2.Request"}


def compressed(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def item(body: bytes, version: int = 1, *fields: str) -> bytes:
    """A request as it is on the list."""
    head = f"Content-Type: {TYPES[version]}", "Content-Encoding: snappy", *fields
    return kept(compressed(body), "/api/v1/write", *head)


def series(labels: dict[str, str], **parts: Any) -> Any:
    return messages.Series1(labels=[messages.Label(name=name, value=text) for name, text in labels.items()], **parts)


def request(*parts: Any, **more: Any) -> bytes:
    return messages.Request1(timeseries=parts, **more).SerializeToString()


def sample(value: float, time: int = NOON, **more: Any) -> Any:
    return messages.Sample(value=value, timestamp=time, **more)


def brief(rows: list) -> list[tuple]:
    return [(row.field, row.type, row.value) for row in rows]


UP = {"__name__": "up", "job": "a"}


def test_a_sample_is_a_row_with_the_other_labels_as_tags() -> None:
    body = request(series(UP, samples=[sample(1.5), sample(-2, -1)]), series({"__name__": "x"}, samples=[sample(0)]))
    one = Metric(time=NOON * 10**6, name="up", tags={"job": "a"}, field="value", value=1.5, type="float")
    two = Metric(time=-(10**6), name="up", tags={"job": "a"}, field="value", value=-2.0, type="float")
    three = Metric(time=NOON * 10**6, name="x", tags={}, field="value", value=0.0, type="float")
    assert decode("metrics", item(body)) == [one, two, three]


def test_the_name_of_the_compression_may_have_capital_letters() -> None:
    body = compressed(request(series(UP, samples=[sample(1)])))
    (row,) = decode(
        "metrics", kept(body, "/api/v1/write", "content-type: Application/X-Protobuf", "Content-Encoding: Snappy")
    )
    assert row.value == 1


def test_a_value_that_is_not_finite_is_a_state() -> None:
    values = [STALE, float("nan"), float("inf"), float("-inf")]
    found = decode("metrics", item(request(series(UP, samples=[sample(value) for value in values]))))
    assert brief(found) == [("state", "string", text) for text in ("stale", "NaN", "+Inf", "-Inf")]


def histogram(**more: Any) -> Any:
    given: dict[str, Any] = {"count_int": 7, "sum": 3.5, "timestamp": NOON, "schema": 0, "zero_threshold": 0.125}
    return messages.Histogram(**(given | more))


def span(offset: int, length: int) -> Any:
    return messages.BucketSpan(offset=offset, length=length)


def test_a_native_histogram_is_its_count_its_sum_and_all_of_it_as_json() -> None:
    whole = histogram(
        zero_count_int=2, negative_spans=[span(3, 1)], negative_deltas=[2], reset_hint=3,
        positive_spans=[span(-1, 2), span(2, 1)], positive_deltas=[1, 1, -1],
    )  # fmt: skip
    rows = decode("metrics", item(request(series(UP, histograms=[whole]))))
    assert brief(rows)[:2] == [("count", "integer", 7), ("sum", "float", 3.5)]
    assert (rows[2].field, rows[2].type, rows[2].time) == ("histogram", "string", NOON * 10**6)
    assert json.loads(rows[2].value) == {
        "count": 7, "sum": 3.5, "schema": 0, "zero_threshold": 0.125, "reset_hint": "gauge", "start": 0,
        "buckets": [[-8, -4, 2], [-0.125, 0.125, 2], [0.25, 0.5, 1], [0.5, 1, 2], [4, 8, 1]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "buckets"),
    [
        ({"schema": 1, "positive_spans": [span(1, 2)], "positive_deltas": [3, 0]}, [[1, 2**0.5, 3], [2**0.5, 2, 3]]),
        ({"schema": -4, "positive_spans": [span(64, 1)], "positive_deltas": [1]}, [[2.0**1008, None, 1]]),
        (
            {"schema": -53, "custom_values": [-1, 0.5], "positive_spans": [span(0, 3)], "positive_counts": [1, 1, 0.5]},
            [[None, -1, 1], [-1, 0.5, 1], [0.5, None, 0.5]],
        ),
        ({"zero_count_float": 0.5}, [[-0.125, 0.125, 0.5]]),
        ({}, []),
    ],
)
def test_the_buckets_of_a_native_histogram_have_their_bounds(more: dict[str, Any], buckets: list) -> None:
    rows = decode("metrics", item(request(series(UP, histograms=[histogram(**more)]))))
    assert json.loads(rows[2].value)["buckets"] == buckets


def test_the_sum_of_a_native_histogram_may_be_stale_or_not_a_number() -> None:
    rows = decode("metrics", item(request(series(UP, histograms=[histogram(sum=STALE), histogram(sum=float("nan"))]))))
    assert brief(rows)[:2] == [("state", "string", "stale"), ("count", "integer", 7)]
    assert len(rows) == 3 and json.loads(rows[2].value)["sum"] == "NaN"


def test_exemplars_and_metadata_are_rows() -> None:
    trace = messages.Exemplar1(labels=[messages.Label(name="trace_id", value="4bf9")], value=0.25, timestamp=NOON)
    about = messages.Metadata1(type=1, metric_family_name="up", help="Is it?", unit="s")
    later = messages.Metadata1(type=99, metric_family_name="new")
    rows = decode("metrics", item(request(series(UP, exemplars=[trace]), metadata=[about, later])))
    assert brief(rows) == [
        ("exemplar", "string", '{"value":0.25,"labels":{"trace_id":"4bf9"}}'),
        ("metadata", "string", '{"type":"counter","help":"Is it?","unit":"s"}'),
        ("metadata", "string", '{"type":"99","help":"","unit":""}'),
    ]
    assert [(row.name, row.tags, row.time) for row in rows] == [
        ("up", {"job": "a"}, NOON * 10**6), ("up", {}, None), ("new", {}, None),
    ]  # fmt: skip


INVALID = {
    "missing: __name__": series({"job": "a"}, samples=[sample(1)]),
    "text with a NUL": series({"__name__": "up", "job": "\0"}, samples=[sample(1)]),
    "timestamp out of range": series(UP, samples=[sample(1), sample(1, 2**62)]),
    "duplicate label": messages.Series1(labels=[messages.Label(name="a")] * 2, samples=[sample(1)]),
    "histogram: unknown schema 9": series(UP, histograms=[histogram(schema=9)]),
    "histogram: the spans do not fit the buckets": series(
        UP, histograms=[histogram(positive_spans=[span(0, 2**32 - 1)])]
    ),
    "histogram with more than 10000 buckets": series(UP, histograms=[histogram(positive_deltas=[0] * 10_001)]),
    "histogram: a count is out of range": series(UP, histograms=[histogram(positive_deltas=[2**63 - 1] * 2)]),
    "histogram: a number is not finite": series(UP, histograms=[histogram(zero_threshold=float("inf"))]),
    "histogram: bucket without a bound": series(
        UP, histograms=[histogram(schema=-53, positive_spans=[span(1, 1)], positive_deltas=[1])]
    ),
}


@check_each_row("reason", INVALID)
def test_an_invalid_series_is_buried_alone_as_a_request_that_can_be_replayed(reason: str) -> None:
    good = series(UP, samples=[sample(1)])
    record, reject = decode("metrics", item(request(INVALID[reason], good)))
    assert (record.value, reject.reason, reject.whole) == (1.0, reason, False)
    assert decode("metrics", reject.part) == [Reject(reject.part, reason, True)]
    # as if a later version understood it
    again = reject.part.replace(INVALID[reason].SerializeToString(), b"") + good.SerializeToString()
    assert again.startswith(b"POST /api/v1/write HTTP/1.1\r\nContent-Type: application/x-protobuf\r\n\r\n\n")


def test_the_count_of_a_native_histogram_must_be_finite() -> None:
    body = request(series(UP, histograms=[histogram(count_float=float("inf"))]))
    assert reject_reason("metrics", item(body)) == "histogram: a number is not finite"


def test_invalid_series_are_one_dead_letter() -> None:
    bad = [INVALID["missing: __name__"], INVALID["text with a NUL"]]
    _, reject = decode("metrics", item(request(bad[0], series(UP, samples=[sample(1)]), bad[1])))
    assert reject.reason == "missing: __name__"
    assert reject.part.endswith(b"\r\n\r\n" + request(*bad))


# The request that Prometheus's own Go package makes (client_golang/exp/api/remote, 2026-09-07): a counter with the time
# of its creation, an exemplar and metadata, its stale marker, and two native histograms
VECTOR = (
    "e802f05a220022085f5f6e616d655f5f2213687474705f72657175657374735f746f74616c22036a6f622203617069220f6c6174656e63795f"
    "7365636f6e6473220874726163655f69642210346266393266333537376233346461362209520d47082e220811522c2a4f0a04010203041210"
    "090005012008401080acb7cbb73315123c14401098a1b8cbb73322140a02060711092808d03f180928402a060801180820093080cfdbc9b733"
    "2a18155104020001014cf07f10b096b9cbb7332a380a04010503041a30190943782940200229fca9f1d24d62503f5a0210025a040802100162"
    "03020200700278098714080630012a540d3a004c0d3a24f8bf20695a0210036a18091004f03f36080008e03f7809b3088201100d1a00bf0908"
    "28e03f110000000000000440"
)


def test_version_2_is_decoded_as_prometheus_sends_it() -> None:
    rows = decode("metrics", kept(bytes.fromhex(VECTOR), "/api/v1/write", f"Content-Type: {TYPES[2]}", SNAPPY))
    counter = [("http_requests_total", field) for field in ("start", "value", "value", "exemplar", "metadata", "state")]
    native = [("latency_seconds", field) for field in ("count", "sum", "histogram")]
    assert [(row.name, row.field) for row in rows] == counter + native * 2
    assert all(row.tags == ({} if row.field == "metadata" else {"job": "api"}) for row in rows)
    assert [row.value for row in rows[:8]] == [
        (NOON - 3_600_000) * 10**6, 3.0, 5.0, '{"value":0.25,"labels":{"trace_id":"4bf92f3577b34da6"}}',
        '{"type":"counter","help":"Requests.","unit":"requests"}', "stale", 6, 12.5,
    ]  # fmt: skip
    assert [(row.time or 0) // 10**6 - NOON for row in rows if row.field in ("value", "state", "histogram")] == [
        0, 15_000, 30_000, 0, 15_000,
    ]  # fmt: skip
    exponential, custom = (json.loads(row.value) for row in rows if row.field == "histogram")
    assert exponential["buckets"] == [
        [-0.001, 0.001, 1], [2**-0.5, 1, 1], [1, 2**0.5, 2], [2, 2**1.5, 2],
    ]  # fmt: skip
    assert exponential["reset_hint"] == "no"
    assert custom["buckets"] == [[None, -1, 1], [-1, 0.5, 1], [0.5, None, 0.5]]


SNAPPY = "Content-Encoding: snappy"


@pytest.mark.parametrize(
    ("references", "reason"), [([1, 2, 3], "label without a value"), ([1, 9], "reference to symbol 9 of 4")]
)
def test_an_invalid_series_of_version_2_is_buried_with_the_symbols(references: list[int], reason: str) -> None:
    symbols = ["", "__name__", "up", "job"]
    good = messages.Series2(labels_refs=[1, 2], samples=[sample(1)])
    bad = messages.Series2(labels_refs=references, samples=[sample(1)])
    body = messages.Request2(symbols=symbols, timeseries=[bad, good]).SerializeToString()
    record, reject = decode("metrics", item(body, 2))
    assert (record.name, reject.reason) == ("up", reason)
    assert reject.part.endswith(messages.Request2(symbols=symbols, timeseries=[bad]).SerializeToString())
    assert decode("metrics", reject.part) == [Reject(reject.part, reason, True)]


def test_a_start_is_a_row_when_it_changes() -> None:
    starts = [sample(1, NOON, start_timestamp=5), sample(2, NOON, start_timestamp=5), sample(3, NOON)]
    part = messages.Series2(labels_refs=[1, 2], samples=starts, created_timestamp=7)
    body = messages.Request2(symbols=["", "__name__", "up"], timeseries=[part]).SerializeToString()
    expected = [("start", 5_000_000), ("value", 1), ("value", 2), ("start", 7_000_000), ("value", 3)]
    assert [(row.field, row.value) for row in decode("metrics", item(body, 2))] == expected


@pytest.mark.parametrize(("own", "start"), [(5, 5_000_000), (0, 7_000_000)])
def test_a_native_histogram_without_a_start_has_that_of_its_series(own: int, start: int) -> None:
    part = messages.Series2(labels_refs=[1, 2], histograms=[histogram(start_timestamp=own)], created_timestamp=7)
    body = messages.Request2(symbols=["", "__name__", "up"], timeseries=[part]).SerializeToString()
    (whole,) = (json.loads(row.value) for row in decode("metrics", item(body, 2)) if row.field == "histogram")
    assert whole["start"] == start


def test_metadata_that_version_2_repeats_is_one_row() -> None:
    part = messages.Series2(labels_refs=[1, 2], samples=[sample(1)], metadata=messages.Metadata2(type=2))
    body = messages.Request2(symbols=["", "__name__", "up"], timeseries=[part] * 3).SerializeToString()
    assert [row.field for row in decode("metrics", item(body, 2))] == ["value", "metadata", "value", "value"]


GOOD = request(series(UP, samples=[sample(1)]))


@pytest.mark.parametrize("kind", ["", "application/vnd.google.protobuf", "text/plain", f"{TYPES[1]}; charset=utf-8"])
def test_a_request_of_an_old_sender_is_version_1_whatever_its_type_is(kind: str) -> None:
    fields = [f"Content-Type: {kind}"] if kind else []
    (row,) = decode("metrics", kept(compressed(GOOD), "/api/v1/write", *fields, SNAPPY))
    assert row.name == "up"
    for body in compressed(GOOD), GOOD:  # nor does the head say whether it is compressed
        assert decode("metrics", kept(body, "/api/v1/write", *fields)) == [row]


@check_each_row(
    ("given", "reason"),
    [
        (kept(compressed(GOOD)[:-1], "/api/v1/write", f"Content-Type: {TYPES[1]}", SNAPPY), "snappy: corrupt input"),
        (kept(GOOD, "/api/v1/write", f"Content-Type: {TYPES[1]}", SNAPPY), "snappy: corrupt input"),
        (kept(b"\xff" * 9, "/api/v1/write", f"Content-Type: {TYPES[1]}", SNAPPY), "snappy: "),
        (item(GOOD[:-1]), "not protobuf: truncated"),
        (item(b"\x0a"), "not protobuf: truncated"),
        (item(b"\x0b"), "not protobuf: unknown wire type"),
        (item(b"\xff" * 20), "not protobuf: number too long"),
        (item(b"\x0a\x02\x0a\x7f"), "not protobuf: "),
        (item(b"\x22\x01\xff", 2), "not UTF-8: "),
        (item(GOOD, 2), "no record in it"),
        (item(b"\x08\x01\x11" + bytes(8) + b"\x1d" + bytes(4)), "no record in it"),
        (kept(b"cpu v=1", "/api/v1/write", "Content-Type: text/plain"), "not protobuf: "),
        (kept(GOOD, "/api/v1/write", f"Content-Type: {TYPES[1]};proto=x"), "not remote write: Content-Type "),
        (item(bytes(LIMITS.inflated + 1)), f"snappy: inflates to more than {LIMITS.inflated} bytes"),
        (item(request(series({"__name__": "x" * LIMITS.record}))), f"series larger than {LIMITS.record} bytes"),
        (item(b"\x22\x0cabcdefghijkl" * (LIMITS.records + 1), 2), f"more than {LIMITS.records} symbols"),
    ],
)
def test_a_damaged_request_is_buried_as_a_whole(given: bytes, reason: str) -> None:
    assert reject_reason("metrics", given).startswith(reason)


def test_a_request_without_a_series_is_valid() -> None:
    assert decode("metrics", item(b"")) == decode("metrics", item(b"\x22\x00", 2)) == []


def one_bucket_each(*deltas: int) -> bytes:
    """A request with a native histogram."""
    return request(series(UP, histograms=[histogram(positive_spans=[span(0, len(deltas))], positive_deltas=deltas)]))


def version_2(*references: int) -> bytes:
    """A request with three symbols."""
    part = messages.Series2(labels_refs=references, samples=[sample(1)])
    return messages.Request2(symbols=["", "__name__", "up"], timeseries=[part]).SerializeToString()


LAST = 2**63 // 10**6  # the milliseconds whose nanoseconds have 64 bits


@pytest.mark.parametrize(
    ("within", "beyond", "reason"),
    [
        (one_bucket_each(2**63 - 1), one_bucket_each(2**63 - 1, 1), "histogram: a count is out of range"),
        (one_bucket_each(-(2**63)), one_bucket_each(-(2**63), -1), "histogram: a count is out of range"),
        (one_bucket_each(*[0] * 10_000), one_bucket_each(*[0] * 10_001), "histogram with more than 10000 buckets"),
        *(
            (
                request(series(UP, samples=[sample(1, last)])),
                request(series(UP, samples=[sample(1, beyond)])),
                "timestamp out of range",
            )
            for last, beyond in ((LAST, LAST + 1), (-LAST, -LAST - 1))
        ),
        *(
            (
                request(series(UP, histograms=[histogram(schema=last)])),
                request(series(UP, histograms=[histogram(schema=beyond)])),
                f"histogram: unknown schema {beyond}",
            )
            for last, beyond in ((8, 9), (-4, -5))
        ),
    ],
)
def test_a_value_is_stored_up_to_its_limit(within: bytes, beyond: bytes, reason: str) -> None:
    assert all(isinstance(row, Metric) for row in decode("metrics", item(within)))
    assert reject_reason("metrics", item(beyond)) == reason


@pytest.mark.parametrize(
    ("given", "limit", "most", "reason"),
    [
        (item(GOOD), "record", series(UP, samples=[sample(1)]).ByteSize(), "series larger than {} bytes"),
        (item(GOOD), "inflated", len(GOOD), "snappy: inflates to more than {} bytes"),
        (item(version_2(1, 2), 2), "records", 3, "more than {} symbols"),
    ],
)
def test_a_request_is_stored_up_to_its_limit(given: bytes, limit: str, most: int, reason: str) -> None:
    assert all(isinstance(row, Metric) for row in decode("metrics", given, LIMITS._replace(**{limit: most})))
    (reject,) = decode("metrics", given, LIMITS._replace(**{limit: most - 1}))
    assert reject.reason == reason.format(most - 1)


def test_a_reference_ends_at_the_last_symbol() -> None:
    assert reject_reason("metrics", item(version_2(1, 3), 2)) == "reference to symbol 3 of 3"


def test_a_block_that_announces_more_than_it_has_is_not_inflated() -> None:
    lying = b"\xff\xff\xff\xff\x0f" + compressed(GOOD)[1:]
    given = kept(lying, "/api/v1/write", f"Content-Type: {TYPES[1]}", SNAPPY)
    assert reject_reason("metrics", given) == f"snappy: inflates to more than {LIMITS.inflated} bytes"


def test_the_rest_of_a_request_with_too_many_samples_is_buried_and_continues_there() -> None:
    one = messages.Series1(labels=[messages.Label(name="__name__", value="n")])
    for _ in range(LIMITS.records // 10):
        one.samples.append(messages.Sample(timestamp=1))
    *rows, reject = decode("metrics", item(request(*[one] * 12)))
    assert len(rows) == len(one.samples) * 10
    assert reject.reason == Remainder.reason
    assert decode("metrics", reject.part) == rows[: 2 * len(one.samples)]
    *rows, reject = decode("metrics", item(request(*[series(UP, samples=[sample(1)])] * 5)), LIMITS._replace(records=3))
    assert (len(rows), len(decode("metrics", reject.part))) == (3, 2)


# --- what the gateway counts -----------------------------------------------------------------------------------------


def series2(**parts: Any) -> bytes:
    return messages.Request2(timeseries=[messages.Series2(**parts)]).SerializeToString()


def test_the_gateway_counts_samples_histograms_and_exemplars() -> None:
    whole = series2(
        labels_refs=range(200), samples=[sample(n / 7) for n in range(3)], histograms=[histogram()] * 2,
        exemplars=[messages.Exemplar2(labels_refs=range(500), value=1)],
        metadata=messages.Metadata2(type=1, help_ref=300),
        created_timestamp=NOON,
    )  # fmt: skip
    symbols = messages.Request2(symbols=["", "a" * 200, "b" * 20_000]).SerializeToString()
    assert remote_write_counts.count_parts(symbols + whole * 5, 1000) == (15, 10, 5)
    assert remote_write_counts.count_block(compressed(b"")) == (0, 0, 0)


@pytest.mark.parametrize(
    "tag", [b"\x0b\0", b"\x0d1234", b"\x08\1", b"\xaa\1\0", b"\x2a\x02\x10\1", b"*\5\x12\4", b"*", b"*\xff"]
)
def test_the_gateway_does_not_count_what_it_does_not_know(tag: bytes) -> None:
    with pytest.raises((remote_write_counts.Uncounted, IndexError)):
        remote_write_counts.count_parts(tag, 1000)
    with pytest.raises(remote_write_counts.Uncounted, match="no snappy block"):
        remote_write_counts.count_block(compressed(bytes(range(256)) + tag))


def test_the_gateway_counts_in_bounded_steps_and_memory() -> None:
    long = b"*\x87\0" + b"\x12\5abcde"  # a length of two bytes counts as four steps
    assert remote_write_counts.count_parts(b"*\0" * 10, 10) == (0, 0, 0) and remote_write_counts.count_parts(
        long, 5
    ) == (1, 0, 0)
    for data, steps in (
        (b"*\0" * 11, 10),
        (b"*\2\x12\0", 1),
        (long, 4),
        (b"*\0" * 4_000_000, remote_write_counts.MOST_STEPS),
    ):
        with pytest.raises(remote_write_counts.Uncounted, match="parts"):
            remote_write_counts.count_parts(data, steps)
    with pytest.raises(remote_write_counts.Uncounted, match="parts, or 2 for each byte"):
        remote_write_counts.count_block(compressed(b"*\0" * 5000))
    with pytest.raises(remote_write_counts.Uncounted, match="inflates"):
        remote_write_counts.count_block(
            compressed(bytes(remote_write_counts.MOST_BYTES + 1))[:4]
        )  # its size stands first


def test_the_gateway_counts_what_prometheus_sends_by_default() -> None:
    """2,000 samples, each of a series with its own metadata and symbol, take half of the steps."""
    part = series2(labels_refs=range(20), samples=[sample(1)], metadata=messages.Metadata2(type=1))
    symbols = messages.Request2(symbols=[f"symbol {n}" for n in range(2_000)]).SerializeToString()
    buckets = b"".join(
        series2(labels_refs=(1, 2, 3, 4, 5, 6 + n % 12, 18, 19 + n // 12), samples=[sample(0)]) for n in range(2_000)
    )
    assert remote_write_counts.count_block(compressed(buckets)) == (
        2_000,
        0,
        0,
    )  # the most similar ones that there may be
    assert remote_write_counts.count_parts(symbols + part * 2_000, remote_write_counts.MOST_STEPS // 2) == (2_000, 0, 0)


def test_the_gateway_counts_nothing_without_a_library_for_snappy(monkeypatch: pytest.MonkeyPatch) -> None:
    body = compressed(series2(samples=[sample(1)]))
    assert remote_write_counts.count_block(body) == (1, 0, 0)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(remote_write_counts.Uncounted, match="no library for snappy"):
        remote_write_counts.count_block(body)


def test_no_sample_is_stored_twice_or_lost_where_a_request_parsed_whole_is_taken_apart() -> None:
    names = [f"m{n}" for n in range(12)]
    names[4] = ""
    sent = item(request(*(series({"__name__": name}, samples=[sample(n), sample(n)]) for n, name in enumerate(names))))
    for records in range(1, 40):
        found, limits, letters = [], LIMITS._replace(records=records), [sent]
        while letters:
            for result in decode("metrics", letters.pop(), limits):
                if isinstance(result, Metric):
                    found.append(result.value)
                elif result.reason != "missing: __name__":
                    letters.append(result.part)
            limits = LIMITS
        assert sorted(found) == [n for n in range(12) for _ in "ab" if n != 4]


LONG = {"__name__": "up", "id": "/kubepods/" + "a" * 300}
AT = b"\x10" + messages.Sample(timestamp=NOON).SerializeToString()[1:]  # the time as a field
ALIKE = {
    "a value": series(UP, samples=[sample(1.5)]).SerializeToString(),
    "zero": series(UP, samples=[sample(0)]).SerializeToString(),
    "negative zero": series(UP, samples=[sample(-0.0)]).SerializeToString(),
    "not finite": series(UP, samples=[sample(STALE)]).SerializeToString(),
    "no tags": series({"__name__": "up"}, samples=[sample(1)]).SerializeToString(),
    "a long label": series(LONG, samples=[sample(1)]).SerializeToString(),
    "an old time": series(UP, samples=[sample(1, 5)]).SerializeToString(),
    "the name is behind": series({"job": "a", **UP}, samples=[sample(1)]).SerializeToString(),
    "no name": series({"job": "a", "pod": "b"}, samples=[sample(1)]).SerializeToString(),
    "a label twice": 2 * series({"job": "a"}).SerializeToString() + series(UP, samples=[sample(1)]).SerializeToString(),
    "a name twice": series(UP).SerializeToString() + series(UP, samples=[sample(1)]).SerializeToString(),
    "two samples": series(UP, samples=[sample(1), sample(2)]).SerializeToString(),
    "a sample before the labels": series({}, samples=[sample(1)]).SerializeToString()
    + series(UP, samples=[sample(1)]).SerializeToString(),
    "the value twice": series(UP).SerializeToString() + b"\x12\x10\x09" + bytes(8) + b"\x10\x80\x80\x80\x80\x80\x00",
    "another field for the time": series(UP).SerializeToString() + b"\x12\x10\x09" + bytes(8) + b"\x18" + AT[1:],
    "the name is all of it": b"\x0a" + bytes([20]) + b"\x0a\x08__name__\x12\x08" + b"\x12\x07" + AT[1:],
    "the sample is in a label": series({"__name__": "up", "job": "\x12\x10\x09" + "a" * 15}).SerializeToString(),
}


@check_each_row("case", ALIKE)
def test_a_series_is_the_same_whether_its_request_is_parsed_whole_or_apart(case: str) -> None:
    def results(body: bytes) -> list[Any]:
        return [one.reason if isinstance(one, Reject) else one for one in decode("metrics", item(body))]

    sent = encode_field(1, ALIKE[case])
    about = messages.Metadata1(type=1, metric_family_name="m").SerializeToString()
    for _ in range(2):  # the second time its labels are known
        described, *apart = results(encode_field(3, about) + sent)
        assert described.field == "metadata" and results(sent) == apart
