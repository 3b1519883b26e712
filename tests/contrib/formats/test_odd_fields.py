"""One odd optional field never costs a record: each field of a valid body of each format is made odd in turn."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from sluice.streams.record import Reject
from support.list_items import decode, kept
from support.table_of_cases import check_each_row

ODD = "null", '""', '"odd"', "[]", "[1,[2]]", "{}", '{"a":{"b":1}}', "1e400", "9" * 60, "-1", "true"
JSON = "Content-Type: application/json"
POINT = {"geometry": {"type": "Point", "coordinates": [1, 2]}}
# path -> a valid body, and the names of what must not be odd
BODIES: dict[str, tuple[str, Any, set[str]]] = {
    "/gps": (
        "gps",
        {"device": "a", "lat": 1, "lon": 2, "time": 1766600000, "altitude": 1, "speed": 1, "accuracy": 1, "battery": 1},
        {"lat", "lon"},
    ),
    "/votes": ("votes", {"poll": "a", "choice": "b", "voter": "c", "time": 1766600000}, {"poll", "choice"}),
    "/metrics": (
        "metrics",
        {"name": "a", "value": 1, "field": "b", "tags": {"t": "u"}, "time": 1766600000},
        {"name", "value"},
    ),
    "/metrics?": (
        "metrics",
        {"name": "a", "fields": {"f": 1, "g": 2}, "tags": {"t": "u"}, "timestamp": 1766600000},
        {"name", "fields"},
    ),
    "/logs": (
        "logs",
        {"message": "a", "level": "info", "service": "s", "time": 1766600000, "attributes": {"a": 1}, "b": 2},
        {"message"},
    ),
    "/owntracks": (
        "gps",
        {"_type": "location", "lat": 1, "lon": 2, "tid": "a", "topic": "t", "tst": 1766600000, "vel": 1, "acc": 1},
        {"_type", "lat", "lon"},
    ),
    "/overland": (
        "gps",
        {"locations": [POINT | {"properties": {"device_id": "a", "timestamp": 1766600000}}], "device_id": 1},
        {"locations", "geometry", "properties", "type", "coordinates", "0", "1"},
    ),
    "/traccar": (
        "gps",
        {
            "location": {"timestamp": 1766600000, "coords": {"latitude": 1, "longitude": 2, "speed": 1},
                         "battery": {"level": 0.5}},
            "device_id": "a",
        },
        {"location", "coords", "latitude", "longitude"},
    ),
    "/homeassistant": (
        "gps",
        {"type": "update_location", "data": {"gps": [1, 2], "speed": 1, "battery": 1, "gps_accuracy": 1}},
        {"type", "data", "gps", "0", "1"},
    ),
    "/v1/logs": (
        "logs",
        {"resourceLogs": [{"resource": {"attributes": [{"key": "a", "value": {"stringValue": "b"}}]},
                           "scopeLogs": [{"scope": {"name": "s", "version": "1"}, "logRecords": [
            {"timeUnixNano": "1766600000000000000", "observedTimeUnixNano": "1766600000000000000",
             "severityNumber": 9, "severityText": "INFO", "body": {"stringValue": "m"}, "flags": 1,
             "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "eventName": "e",
             "droppedAttributesCount": 1, "attributes": [{"key": "n", "value": {"intValue": "5"}}]}]}]}]},
        {"resourceLogs", "scopeLogs", "logRecords", "0"},
    ),
    "/v1/metrics": (
        "metrics",
        {"resourceMetrics": [{"resource": {"attributes": []}, "scopeMetrics": [{"scope": {"name": "s"}, "metrics": [
            {"name": "m", "unit": "s", "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [
                {"timeUnixNano": "1766600000000000000", "startTimeUnixNano": "1766600000000000000", "asInt": "1",
                 "flags": 0, "attributes": [{"key": "n", "value": {"intValue": "5"}}]}]}}]}]}]},
        {"resourceMetrics", "scopeMetrics", "metrics", "name", "sum", "dataPoints", "asInt", "0"},
    ),
}  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields of a body."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(inner, (*at, key))


CASES = [
    (path, place)
    for path, (_, body, needed) in BODIES.items()
    for place in places(body)
    if str(place[-1]) not in needed or (path.startswith("/v1") and place[-2:-1] == ("scope",))
]


@check_each_row(("path", "place"), CASES)
def test_an_odd_optional_field_does_not_cost_the_record(path: str, place: tuple[Any, ...]) -> None:
    stream, body, _ = BODIES[path]
    for odd in ODD:
        changed = copy.deepcopy(body)
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = "ODD"
        results = decode(stream, kept(json.dumps(changed).replace('"ODD"', odd).encode(), path.rstrip("?"), JSON))
        assert results and not any(isinstance(result, Reject) for result in results), (odd, results)
