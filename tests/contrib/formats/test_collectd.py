"""collectd's write_http: its JSON and its lines of PUTVAL."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.streams.record import Metric
from support.list_items import decode, kept, reject_reason

# collectd.conf(5) and its wiki, "JSON"
SENT = {
    "values": [197141504, 175136768],
    "dstypes": ["counter", "counter"],
    "dsnames": ["read", "write"],
    "time": 1251533299.265,
    "interval": 10.0,
    "host": "leeloo.lan.home.verplant.org",
    "plugin": "disk",
    "plugin_instance": "sda",
    "type": "disk_octets",
    "type_instance": "",
}
TAGS = {"host": "leeloo.lan.home.verplant.org", "plugin_instance": "sda", "type": "disk_octets"}
NOON = 1_767_268_800 * 10**9


def sent(body: bytes) -> list:
    return decode("metrics", kept(body, "/collectd"))


def in_json(**more: Any) -> list:
    return sent(json.dumps([SENT | more]).encode())


def line(text: str) -> list[tuple]:
    return [(row.name, row.field, row.value, row.type, row.time, row.tags) for row in sent(text.encode())]


def test_a_value_is_a_row() -> None:
    assert in_json() == [
        Metric(time=1_251_533_299_265_000_000, name="disk", tags=TAGS, field=field, value=value, type="integer")
        for field, value in (("read", 197141504), ("write", 175136768))
    ]
    assert [row.value for row in in_json(values=[1.5, 2])] == [1.5, 2]


def test_an_unknown_value_is_a_state() -> None:
    assert [(row.field, row.value) for row in in_json(values=[None, 2])] == [("read_state", "NaN"), ("write", 2)]
    assert [(row.field, row.value) for row in in_json(values=[None], dsnames=["value"])] == [("state", "NaN")]


def test_a_line_of_putval_has_rows() -> None:
    tags = {"host": "h", "plugin_instance": "0", "type": "cpu", "type_instance": "idle"}
    assert line("PUTVAL h/cpu-0/cpu-idle interval=10.000 1767268800.000:98.5\r\n") == [
        ("cpu", "value", 98.5, "float", NOON, tags)
    ]
    assert line('PUTVAL "a host/disk/io" interval="10" N:1:U') == [
        ("disk", "value0", 1, "integer", None, {"host": "a host", "type": "io"}),
        ("disk", "value1_state", "NaN", "string", None, {"host": "a host", "type": "io"}),
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'[{"plugin":"a"}]', "values and dsnames are not arrays of the same length"),
        (b'[{"values":[1],"dsnames":["a"]}]', "missing: plugin"),
        (b'[{"plugin":"a","values":["x"],"dsnames":["a"]}]', "not a number: 'x'"),
        (b'[{"plugin":"a","values":[],"dsnames":[]}]', "no value"),
        (b'[{"plugin":"a\\u0000","values":[1],"dsnames":["a"]}]', "text with a NUL"),
        (b"PUTNOTIF a/b/c N:1", "not a PUTVAL of collectd: 'PUTNOTIF a/b/c N:1'"),
        (b"PUTVAL a/b N:1", "not a PUTVAL of collectd: 'PUTVAL a/b N:1'"),
        (b"PUTVAL a/b/c N:x", "not a number: 'x'"),
        (b"PUTVAL a/b/c N", "no value"),
    ],
)
def test_what_is_invalid_is_buried(body: bytes, reason: str) -> None:
    assert reject_reason("metrics", kept(body, "/collectd")) == reason


def test_an_invalid_element_is_buried_alone() -> None:
    *good, bad = sent(json.dumps([SENT, {"plugin": "a"}]).encode())
    assert len(good) == 2 and bad.part.endswith(b'\r\n\r\n[{"plugin": "a"}]')


def test_a_line_of_json_among_commands_is_decoded_as_if_it_were_sent_alone() -> None:
    lines = b"PUTVAL h/cpu-0/cpu 1767268800:1", b"[]", b'[{"plugin":"a"}]', json.dumps(SENT).encode()
    one, *two, reject = sent(b"\n".join(lines))
    assert [row.name for row in (one, *two)] == ["cpu", "disk", "disk"]
    assert reject.reason == reject_reason("metrics", reject.part)
