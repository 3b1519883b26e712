"""The column `extra` has what the record type does not name, and nothing else."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice import Limits, Record, Stream, nanoseconds, settings, stream
from sluice.contrib.unknown_fields.extra import extend_streams, keep_extra
from sluice.spool.claim import Claim
from sluice.store.registry import open_store
from sluice.store.types import Body, Origin
from sluice.streams.built_in import STREAMS, load_streams
from support.folders import needs

LIMITS = Limits(inflated=1 << 20)
AT = 1_795_864_023


class Reading(Record):
    station: str
    metres: float = 0.0

    def __post_init__(self) -> None:
        self.metres *= 2


class Sub(Record):
    user: str
    part: str = ""


OWN = stream("readings", Reading, extra=True)
AT_PATH = stream("subs", Sub, path="/subs/{part}", extra=True)

# stream, body, the value of the column of each row
BODIES: list[tuple[str, bytes, list[dict[str, Any] | None]]] = [
    ("votes", b'{"poll":"p","choice":"c"}', [None]),
    ("votes", b'{"poll":"p","choice":"c","voter":null,"ip":null}', [None]),
    ("votes", b'{"poll":"p","choice":"c","why":"\xc3\xa4","n":{"a":[1,null]}}', [{"why": "ä", "n": {"a": [1, None]}}]),
    ("votes", b'[{"poll":"p","choice":"c","a":1},{"poll":"p","choice":"c"}]', [{"a": 1}, None]),
    ("votes", b"poll=p&choice=c&why=because&empty=", [{"why": "because"}]),
    ("votes", b"poll=p&choice=a&choice=b&x=1", [{"x": "1"}, {"x": "1"}]),
    ("votes", b'{"poll":"p","choice":"c","time":%d,"ts":5}' % AT, [{"ts": 5}]),
    ("votes", b'{"poll":"p","choice":"c","n":1e999,"m":123456789012345678901234567890}',
     [{"n": "1e999", "m": 123456789012345678901234567890}]),
    ("votes", b'{"poll":"p","choice":"c","extra":{"a":1},"b":2}', [{"b": 2, "a": 1}]),
    ("votes", b'{"poll":"p","choice":"c","extra":{"b":1},"b":2}', [{"extra": {"b": 1}, "b": 2}]),
    ("votes", b'{"poll":"p","choice":"c","extra":7}', [{"extra": 7}]),
    ("gps", b'{"device":"a","lat":1,"lon":2,"fix":"3d"}', [{"fix": "3d"}]),
    ("metrics", b'{"name":"a","value":1,"unit":"C"}', [{"unit": "C"}]),
    ("metrics", b'{"name":"a","value":"x"}', [None]),
    ("readings", b'{"station":"Brest","unit":"m"}', [{"unit": "m"}]),
]  # fmt: skip
OF_FORMATS: list[tuple[str, bytes, list[dict[str, Any] | None]]] = [
    ("votes", b'{"poll":"p","choice":"c","a":1}\n{"poll":"p","choice":"c","voter":5,"b":2}', [{"a": 1}, {"b": 2}]),
    ("gps", b'{"id":"x","device":"a","latitude":1,"lon":2,"accuracy":null}', [{"id": "x"}]),
    ("gps", b'{"_type":"location","tid":"a","lat":1,"lon":2,"conn":"w"}', [None]),
    ("gps", b"device=a&lat=1&lon=2&sat=9", [{"sat": "9"}]),
    ("metrics", b"cpu,host=a value=1", [None]),
    ("readings", b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"station":"a","x":1}}', [{"x": 1}]),
]


def kept(name: str) -> Stream:
    return OWN if name == "readings" else keep_extra(STREAMS[name])


@pytest.mark.parametrize(
    ("name", "body", "extra"),
    [*BODIES, *(pytest.param(*each, marks=needs("formats")) for each in OF_FORMATS)],
    ids=lambda value: value.decode()[:50] if isinstance(value, bytes) else "",
)
def test_what_no_column_has_is_kept(name: str, body: bytes, extra: list[dict[str, Any] | None]) -> None:
    decoded = kept(name).decode(body, LIMITS)
    assert not decoded.rejects, decoded.rejects
    assert [record.extra for record in decoded.records] == extra  # type: ignore[attr-defined]
    if name != "readings":  # the other fields are as without the column
        plain = STREAMS[name].decode(body, LIMITS).records
        assert [{**msgspec.structs.asdict(one), "extra": None} for one in plain] == [
            {**msgspec.structs.asdict(one), "extra": None} for one in decoded.records
        ]


def test_a_record_is_made_once() -> None:
    (record,) = OWN.decode(b'{"station":"a","metres":1,"x":1}', LIMITS).records
    assert (record.metres, record.extra) == (2.0, {"x": 1})  # type: ignore[attr-defined]


def test_the_parts_of_a_path_stay_fields() -> None:
    (record,) = AT_PATH.decode(b'POST /subs/7 HTTP/1.1\r\n\r\n{"user":"a","x":1}', LIMITS).records
    assert (record.part, record.extra) == ("7", {"x": 1})  # type: ignore[attr-defined]


def test_what_is_invalid_stays_so() -> None:
    for body in (
        b'{"poll":"p","x":1}',
        b'{"poll":"p","choice":"c","x":"\\u0000"}',
        b'{"poll":"p","choice":"c","x":1e',
    ):
        assert [reject.whole for reject in kept("votes").decode(body, LIMITS).rejects] == [True]
    large = b'{"poll":"p","choice":"c","x":"%b"}' % (b"x" * LIMITS.record)
    assert "record larger" in kept("votes").decode(large, Limits()).rejects[0].reason


def test_a_stream_that_cannot_have_the_column_says_so() -> None:
    class Taken(Record):
        Extra: int = 0

    def parse(line: bytes) -> Record:
        return Reading(time=nanoseconds(line.decode()), station="")

    with pytest.raises(TypeError, match="has a field 'extra'"):
        stream("taken", Taken, extra=True)
    with pytest.raises(TypeError, match="a parser of their own"):
        stream("lines", Parsed, parse, extra=True)


class Parsed(Record, kw_only=True):
    station: str


def test_the_setting_names_built_in_streams() -> None:
    s = settings.load_settings({"INGEST_EXTRA": "gps, votes"})
    found = load_streams(s)
    names = [name for name, known in found.items() if "extra" in known.record.__struct_fields__]
    assert sorted(names) == ["gps", "votes"]
    for wrong in "logs", "nothing":
        with pytest.raises(settings.SettingError, match="expected gps, metrics, votes; the other"):
            extend_streams(STREAMS, settings.load_settings({"INGEST_EXTRA": wrong}))


def test_a_table_gains_the_column(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ingest.db"
    body = b'{"poll":"p","choice":"c","why":"so"}'
    for at, known in enumerate((STREAMS["votes"], kept("votes")), 1):
        store = open_store(url, {"votes": known})
        claim = Claim("votes", f"e:{at}:{AT}000000", at, 1, 0, [(at, AT * 1_000_000)])
        store.persist(claim, [Body.from_decoded(at, AT * 1_000_000, body, known.decode(body, LIMITS))])
    with sqlite3.connect(f"{tmp_path}/ingest.db") as db:
        rows = db.execute("SELECT choice, extra, extra->>'$.why' FROM votes").fetchall()
    assert rows == [("c", None, None), ("c", '{"why":"so"}', "so")]


@needs("destinations")
def test_a_row_that_is_sent_again_is_the_same() -> None:
    from sluice.contrib.destinations.destination import single_body

    known = kept("votes")
    (record,) = known.decode(b'{"poll":"p","choice":"c","why":"so"}', LIMITS).records
    values = msgspec.structs.asdict(record)
    assert list(known.decode(single_body(known, values), LIMITS).records) == [record]


@needs("destinations")
def test_destinations_have_the_column_as_json() -> None:
    from sluice.contrib.destinations.columns import Columns
    from sluice.contrib.destinations.destination import Rows

    known = kept("metrics")
    body = b'[{"name":"a","value":1,"unit":"C"},{"name":"b","value":2}]'
    table = Columns(known).table(1, Rows([Body.from_decoded(1, AT, body, known.decode(body, LIMITS))]))
    assert table["extra"].to_pylist() == ['{"unit":"C"}', None]


def test_postgres_gets_the_column_of_a_typed_stream() -> None:
    pytest.importorskip("psycopg")
    from sluice.contrib.postgres.table import Table

    known = kept("metrics")
    table = Table(known)
    for body, value in (b'{"name":"a","value":1,"unit":"C"}', b'\1{"unit":"C"}'), (b'{"name":"a","value":1}', None):
        (values,) = table.rows(Origin(1, {}), [Body.from_decoded(1, AT, body, known.decode(body, LIMITS))])
        row = dict(zip(table.columns, values, strict=True))
        assert (row["extra"], row["type"], row["text"], row["batch"]) == (value, "integer", None, 1)


@pytest.mark.contract
@needs("postgres")
def test_postgres_stores_the_column_of_streams_with_and_without_types() -> None:
    from proving.postgres import postgres_server

    streams = {name: kept(name) for name in ("votes", "metrics", "gps")}
    sent = {
        "votes": b'{"poll":"p","choice":"c","why":"so","no":[1]}',
        "metrics": b'[{"name":"a","value":1,"unit":"\xc3\x84"},{"name":"b","value":2}]',
        "gps": b'{"device":"d","lat":1,"lon":2,"sats":{"n":7}}',
    }
    with postgres_server(fsync="off") as server:
        store = open_store(server.url, streams)
        for at, (name, body) in enumerate(sent.items(), 1):
            claim = Claim(name, f"e:{at}:{AT}000000", at, 1, 0, [(at, AT * 1_000_000)])
            store.persist(claim, [Body.from_decoded(at, AT * 1_000_000, body, streams[name].decode(body, LIMITS))])
        store.close()
        found = {name: server.ask(f"SELECT extra::text FROM {name} ORDER BY seq") for name in sent}
        assert found["metrics"] == [('{"unit": "\xc4"}',), (None,)]
        assert found["votes"] == [('{"no": [1], "why": "so"}',)]
        assert server.ask("SELECT extra->'sats'->>'n' FROM gps") == [("7",)]
