"""Deliveries of Amazon Data Firehose: each record is a body of its stream."""

from __future__ import annotations

import base64
import gzip
import json

import pytest

from sluice import Record, Reject, stream
from sluice.streams.record import Limits, Log
from sluice.streams.unique import Rule
from support.list_items import decode, kept

ID = "X-Amz-Firehose-Request-Id: ed4acda5-034f-9f42-bba1-f29aea6d7d8f"
NOON = 1_767_268_800 * 10**9
# As CloudWatch's subscription filters send it, packed
EVENTS = {
    "messageType": "DATA_MESSAGE", "owner": "123456789123", "logGroup": "web", "logStream": "a",
    "subscriptionFilters": ["all"], "logEvents": [{"id": "1", "timestamp": 1767268800000, "message": "disk full"}],
}  # fmt: skip


class Order(Record, kw_only=True):
    sku: str = ""


orders = stream("orders", Order)


def delivery(*records: bytes) -> bytes:
    data = [{"data": base64.b64encode(record).decode()} for record in records]
    return json.dumps({"requestId": "ed4a", "timestamp": 1767268800000, "records": data}).encode()


def sent(*records: bytes, path: str = "/firehose") -> bytes:
    return kept(delivery(*records), path, ID)


def messages(results: list) -> list[str]:
    return [result.message for result in results]


def test_each_record_is_a_body_of_the_stream() -> None:
    lines = b'{"message":"a"}\n{"message":"b"}\n', b"c\nd\n", b'{"message":"e"}{"message":"f"}', gzip.compress(b"g")
    assert messages(decode("logs", sent(*lines))) == [*"abcdefg"]
    packed = kept(gzip.compress(delivery(b"a", b"b")), "/firehose", ID, "Content-Encoding: gzip")
    assert messages(decode("logs", packed)) == ["a", "b"]
    assert decode("logs", sent()) == []


def test_the_logs_of_cloudwatch_are_rows_with_their_group() -> None:
    (log,) = decode("logs", sent(gzip.compress(json.dumps(EVENTS).encode())))
    beside = {name: value for name, value in EVENTS.items() if name != "logEvents"}
    assert log == Log(time=NOON, message="disk full", attributes=beside | {"id": "1"})


def test_a_record_of_a_stream_of_ones_own_is_that_of_its_data_although_all_its_fields_are_optional() -> None:
    assert list(orders.decode(sent(b'{"sku":"a"}', b'{"sku":"b"}\n', path="/orders"), Limits())) == [
        Order(sku="a"), Order(sku="b")
    ]  # fmt: skip


def test_an_invalid_record_is_buried_alone_and_its_letter_is_decoded_as_what_it_is() -> None:
    good, bad = orders.decode(sent(b'{"sku":"a"}', b'{"sku":5}', path="/orders"), Limits())
    assert good == Order(sku="a") and isinstance(bad, Reject)
    assert bad.part.endswith(b'\r\n\r\n{"sku":5}') and ID.encode() in bad.part
    assert list(orders.decode(bad.part.replace(b"5}", b'"c"}'), Limits())) == [Order(sku="c")]


@pytest.mark.parametrize("element", [b'{"data":"not base64"}', b'{"data":5}', b"{}", b"7"])
def test_a_record_without_data_is_buried_in_a_delivery(element: bytes) -> None:
    body = delivery(b"a").replace(b"[", b"[" + element + b",")
    good, bad = orders.decode(kept(body.replace(b'"YQ=="', b'"e30="'), "/orders", ID), Limits())
    assert isinstance(bad, Reject) and bad.part.endswith(b'\r\n\r\n{"records":[%b]}' % element)
    assert good == Order()


def test_what_is_no_delivery_is_a_body_as_without_the_field() -> None:
    for body in b"a", b'{"message":"a"}', b'{"message":"a","records":5}':
        assert messages(decode("logs", kept(body, "/logs", ID))) == ["a"]


def test_all_records_together_inflate_to_as_much_as_a_body() -> None:
    limits = Limits(inflated=1000)
    results = list(orders.decode(sent(*[gzip.compress(b'{"sku":"%b"}' % (b"a" * 390))] * 3, path="/orders"), limits))
    assert [type(result) for result in results] == [Order, Order, Reject]


def test_the_id_of_the_request_is_its_key() -> None:
    rule = Rule(60)
    items = sent(b"a"), sent(b"b"), sent(b"a").replace(b"7d8f", b"7d90")
    first, again, other = (rule.body_key(item, [Order(sku="a")], (), Limits()) for item in items)
    assert first == again is not None and other != first
