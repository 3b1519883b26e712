"""CloudEvents in a stream of a user's own: structured events, batches, and what is not one."""

from __future__ import annotations

import base64
import gzip
import json

import pytest

from sluice import Record, stream
from sluice.streams.record import Limits, Reject
from support.list_items import kept


class Order(Record, kw_only=True):
    """Its fields have names that an event has, too."""

    id: str = ""
    source: str | None = None


decode = stream("orders", Order).decode
NOON = 1_767_268_800 * 10**9
EVENT = {"specversion": "1.0", "type": "order", "source": "/shop", "id": "1", "data": {"id": "A-1"}}


def decoded(*sent: object) -> list:
    """Of one event, or of a batch."""
    return list(decode(json.dumps(sent[0] if len(sent) == 1 else sent).encode(), Limits()))


def test_the_data_of_a_structured_event_is_the_record() -> None:
    assert decoded(EVENT) == [Order(id="A-1")]
    assert list(decode(gzip.compress(json.dumps(EVENT).encode()), Limits())) == [Order(id="A-1")]


def test_a_batch_may_have_events_and_plain_records() -> None:
    assert decoded(EVENT, {"id": "A-2"}, EVENT | {"data": {"id": "A-3"}}) == [Order(id=f"A-{n}") for n in (1, 2, 3)]


def test_the_data_may_be_in_base64() -> None:
    data = base64.b64encode(b'{"id":"A-1"}').decode()
    assert decoded({"specversion": "1.0", "data_base64": data}) == [Order(id="A-1")]


def test_the_data_may_be_encoded_twice() -> None:
    assert decoded({"specversion": "1.0", "data": '{"id":"A-1"}'}) == [Order(id="A-1")]


def test_a_form_may_be_one_field_with_the_record_in_json() -> None:
    assert list(decode(b"payload=%7B%22id%22%3A%22A-1%22%7D", Limits())) == [Order(id="A-1")]  # GitHub, Slack
    assert list(decode(b'mandrill_events=[{"id":"A-1"},{}]', Limits())) == [Order(id="A-1"), Order()]
    assert list(decode(b"id=%7B%7D", Limits())) == [Order(id="{}")]  # a field of the record itself
    (reject,) = decode(b"payload=%7B%22id%22%3A5%7D", Limits())
    assert isinstance(reject, Reject) and reject.whole


def test_the_time_of_the_event_is_that_of_a_record_without_its_own() -> None:
    timed = EVENT | {"time": "2026-01-01T12:00:00Z"}
    assert decoded(timed) == [Order(time=NOON, id="A-1")]
    assert decoded(timed | {"data": {"time": 5}}) == [Order(time=5 * 10**9)]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"specversion": "1.0"}, "CloudEvent without data"),
        ({"specversion": "1.0", "data": {"id": 5}}, "wrong type or range: Expected `str`, got `int` - at `$.id`"),
        ({"specversion": "1.0", "data": EVENT}, "a CloudEvent"),
        ({"specversion": "1.0", "data": {"id": "\0"}}, "text with a NUL"),
        ({"specversion": "1.0", "data_base64": "a"}, "Error: "),
    ],
)
def test_an_event_whose_data_is_no_record_is_buried(event: dict, reason: str) -> None:
    good, bad = decoded(EVENT, event)
    assert good == Order(id="A-1") and isinstance(bad, Reject)
    assert reason in bad.reason and json.loads(bad.part) == event


def test_a_record_may_have_a_field_of_the_name_specversion() -> None:
    class Own(Record, kw_only=True):
        specversion: str

    assert list(stream("own", Own).decode(b'{"specversion":"2"}', Limits())) == [Own(specversion="2")]


def binary(body: bytes, *fields: str) -> list:
    return list(decode(kept(body, "/orders", "ce-id: 1", *fields), Limits()))


def test_the_time_of_a_binary_event_is_that_of_its_records_without_their_own() -> None:
    field = "Ce-Time: 2026-01-01T12:00:00Z"
    assert binary(b'{"id":"A-1"}', field) == [Order(time=NOON, id="A-1")]
    assert binary(b'[{"id":"A-1","time":1767268801},{"id":"A-2"}]', field) == [
        Order(time=NOON + 10**9, id="A-1"),
        Order(time=NOON, id="A-2"),
    ]
    assert binary(b'{"id":"A-1"}', "ce-time: soon") == binary(b'{"id":"A-1"}') == [Order(id="A-1")]
    good, bad = binary(b'[{"id":"A-1"},{"id":5}]', field)
    assert good == Order(time=NOON, id="A-1") and isinstance(bad, Reject)
