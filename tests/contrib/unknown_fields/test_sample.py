"""What is found by trying is what no column has; it costs its share, and no more names are kept than said."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence

import pytest

from sluice import Limits, Record, Stream, stream
from sluice.base.counters import Counts
from sluice.contrib.unknown_fields import figures, sample
from sluice.contrib.unknown_fields.sample import Sampler
from sluice.store.types import Body
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Decoded
from support.folders import needs

LIMITS = Limits()


class Event(Record):
    kind: str
    note: str = "none"
    inner: dict[str, int] | None = None


OWN = {"events": stream("events", Event)}
HEAD = b"POST /votes HTTP/1.1\r\nX: y\r\n"
VOTE = b'{"poll":"p","choice":"c","why":"so"}'

# stream, body, the fields that no column has; None: there is nothing to look at
BODIES: list[tuple[str, bytes, Sequence[str] | None]] = [
    ("votes", b'{"poll":"p","choice":"c","voter":"a","time":1795864023}', ()),
    ("votes", VOTE, ["why"]),
    ("votes", b'{"poll":"p","choice":"c","a":null,"b":"","c":[],"d":{},"e":0,"f":false}', ["e", "f"]),
    ("votes", b'{"poll":"p","choice":"c","time":1795864023,"ts":1795864024}', ["ts"]),
    ("votes", b'  [ {"poll":"p","choice":"c","why":"so"},{"poll":"p","choice":"c","other":1}]', ["why"]),
    ("votes", b'{"poll":"p",\n"choice":"c",\n"why":{"a":1}}\n', ["why"]),
    ("votes", b"poll=p&choice=c&why=so", ["why"]),
    ("votes", HEAD + b"\r\n" + VOTE, ["why"]),
    ("votes", HEAD + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(VOTE), ["why"]),
    ("votes", gzip.compress(VOTE, mtime=0), ["why"]),
    ("gps", b'{"device":"a","lat":1,"lon":2,"speed":0,"fix":"3d"}', ["fix"]),
    ("metrics", b'{"name":"a","value":1,"field":"value","tags":{"a":"b"},"unit":"C"}', ["unit"]),
    ("logs", b'{"message":"m","a":1}', ()),
    ("logs", b"a line", None),
    ("events", b'{"kind":"a","note":"none","x":1}', ["x"]),
    ("events", b'{"kind":"a","inner":{"b":1}}', ()),
]
OF_FORMATS: list[tuple[str, bytes, Sequence[str] | None]] = [
    ("gps", b'{"_type":"location","tid":"a","lat":1,"lon":2,"tst":1795864023,"vel":0,"conn":"w"}', ["conn"]),
    ("gps", b'{"locations":[{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":'
            b'{"device_id":"a","motion":["walking"],"timestamp":"2026-11-28T11:07:03Z"}},{"x":1}]}',
     ["locations[].type", "locations[].properties.motion"]),
    ("metrics", b"cpu,host=a value=1", None),
    ("spans", b"POST /v1/traces HTTP/1.1\r\nContent-Type: application/json\r\n\r\n"
              b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c",'
              b'"spanId":"eee19b7ec3c1b174","name":"a","startTimeUnixNano":"1795864023000000000","traceFlags":1}]}]}]}',
     ["resourceSpans[].scopeSpans[].spans[].traceFlags"]),
    ("events", b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"kind":"a"}}', ["id", "source", "type"]),
]  # fmt: skip


def of(name: str) -> Stream:
    return (OWN | STREAMS)[name]


@pytest.mark.parametrize(
    ("name", "body", "unknown"),
    [*BODIES, *(pytest.param(*each, marks=needs("formats")) for each in OF_FORMATS)],
    ids=lambda value: value.decode("latin-1")[:50] if isinstance(value, bytes) else "",
)
def test_the_fields_that_no_column_has_are_found(name: str, body: bytes, unknown: Sequence[str] | None) -> None:
    sampler = Sampler(Counts(), of(name))
    for _ in range(2):  # the second time from memory
        found = sampler.unknown(body, LIMITS)
        assert found == (None if unknown is None else tuple(unknown))


def stored(stream: Stream, *items: bytes) -> list[Body]:
    return [Body.from_decoded(at, 0, item, stream.decode(item, LIMITS)) for at, item in enumerate(items, 1)]


class Counting:
    """A decoder that counts its calls, each of which costs as much CPU as it says."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.now, self.seconds = 0, 0.0, seconds
        monkeypatch.setattr(sample.time, "thread_time", lambda: self.now)

    def decode(self, item: bytes, limits: Limits) -> Decoded:
        self.calls += 1
        self.now += self.seconds
        return of("votes").decode(item, limits)


def test_a_sample_takes_one_percent_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Counting(0.001, monkeypatch)
    known = of("votes")
    sampler = Sampler(Counts(), known._replace(decode=clock.decode))
    spent = 0.0
    for at in range(2000):  # each body has other fields, so that nothing is remembered
        bodies = stored(known, b'{"poll":"p","choice":"c","f%d":1}' % at)
        spent += 0.1
        sampler.look(bodies, LIMITS, 0.1)
    a_look = 8 * clock.seconds
    assert clock.now <= 0.01 * spent + sample.FIRST_SECONDS + a_look
    assert clock.now >= 0.005 * spent


def test_shapes_that_are_known_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Counting(0.0, monkeypatch)
    sampler = Sampler(Counts(), of("votes")._replace(decode=clock.decode))
    sampler.look(stored(of("votes"), VOTE), LIMITS, 1.0)
    first = clock.calls
    sampler.look(stored(of("votes"), *[VOTE] * 10), LIMITS, 1.0)
    assert clock.calls == first > 0


def test_a_decoder_of_a_users_own_is_called_once_for_each_body() -> None:
    called = []

    def decode(item: bytes, limits: Limits) -> Decoded:
        called.append(item)
        return of("votes").decode(item, limits)

    own = Stream("votes", Event, decode)
    counts = Counts()
    Sampler(counts, own).look(stored(own, VOTE), LIMITS, 1.0)
    assert called == [VOTE] and counts.totals() == {}


def test_bodies_without_rows_and_dead_letters_are_left_out() -> None:
    counts = Counts()
    sampler = Sampler(counts, of("votes"))
    sampler.look(stored(of("votes"), b'{"poll":"p","x":1}', b"[]"), LIMITS, 1.0)
    assert counts.totals() == {}


def test_a_decoder_that_raises_on_another_body_changes_nothing() -> None:
    def decode(item: bytes, limits: Limits) -> Decoded:
        if item != VOTE:
            raise KeyboardInterrupt
        return of("votes").decode(item, limits)

    counts = Counts()
    Sampler(counts, of("votes")._replace(decode=decode)).look(stored(of("votes"), VOTE), LIMITS, 1.0)
    assert counts.totals() == {}


def test_names_are_bounded_in_number_and_length() -> None:
    counts = Counts()
    sampler = Sampler(counts, of("votes"))
    for at in range(sample.NAMES + 50):
        sampler.credit = 1.0
        sampler.look(stored(of("votes"), b'{"poll":"p","choice":"c","%d%b":1}' % (at, b"x" * 1000)), LIMITS, 1.0)
    names = [name.removeprefix("unknown votes ") for name in counts.totals() if name.startswith("unknown")]
    assert len(names) == sample.NAMES + 1
    assert max(map(len, names)) <= sample.NAME_CHARACTERS
    assert counts.totals()[f"unknown votes {sample.OTHERS}"] == 50
    assert len(sampler.shapes) <= sample.SHAPES


def test_the_most_frequent_fields_are_shown_and_cannot_control_a_terminal() -> None:
    counted = {"examined votes": 9, "unknown votes a b": 2, "unknown votes \x1b[31m": 5, "examined gps": 3, "other": 1}
    assert figures.unknown_fields(counted) == [
        {"stream": "votes", "field": "\x1b[31m", "bodies": 5, "examined": 9},
        {"stream": "votes", "field": "a b", "bodies": 2, "examined": 9},
    ]
    assert [*figures.status_lines(counted)] == [
        r"votes: of 9 bodies examined, fields that no column has: \x1b[31m (5), a b (2)."
    ]
    many = {f"unknown votes f{at}": at + 1 for at in range(30)} | {"examined votes": 99}
    assert len(figures.unknown_fields(many)) == figures.SHOWN
    assert next(figures.status_lines(many)).endswith("f25 (26) and 15 others.")
