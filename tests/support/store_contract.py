"""The tests that every store must pass, whatever its database: each claim is stored exactly once."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

import msgspec
import pytest

from proving.harness import PATIENCE, ROOT, poll
from sluice import parsers, settings
from sluice.account import shared_settings
from sluice.base.counters import Histogram
from sluice.parsers import DEAD, FOREVER
from sluice.spool.claim import Claim, Window
from sluice.store.bookkeeping import KEYS
from sluice.store.decoding import decode_claim
from sluice.store.expiry import Expiry, KeyExpiry
from sluice.store.questions import (
    DeadLetter,
    count_overdue,
    count_reasons,
    find_last_letters,
    find_last_rows,
    find_letters,
    forget_cell,
)
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import RowDestinations, Store
from sluice.store.tables import LAYOUT
from sluice.store.types import Body, Epoch, NewerTables, Origin, Outcome, Unavailable
from sluice.streams import registry
from sluice.streams.built_in import STREAMS
from sluice.streams.custom import stream
from sluice.streams.record import Decoded, Limits, Metric, Record, Reject, Vote
from sluice.streams.registry import Stream
from support.folders import has, needs

T = TypeVar("T")
NOON = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC in microseconds
MOST = registry.body_limits(settings.load_settings({}))


class Backend(Protocol):
    """A database under test."""

    url: str

    def ask(self, sql: str) -> list[tuple]:
        """The rows of a query, with values as SQLite stores them: int, float, str (also times) and bytes."""

    def refuse(self, table: str, column: str, value: str) -> None:
        """Make the database reject rows with this value, by a trigger or a constraint."""

    def set_layout(self, version: int) -> None:
        """Change the layout that the database says it has."""

    def clients(self) -> set[int]:
        """The ids of those that are connected, also of one that was killed, until all that it has sent is done."""

    def away(self) -> contextlib.AbstractContextManager[None]:
        """Within the `with` block the database cannot be written."""


def patiently(call: Callable[[], T]) -> T:
    """What the call returns. It is repeated while others keep it waiting for a lock for too long, as workers do."""
    return poll(lambda: (call(),), retried=(Unavailable,))[0]


class Colour(enum.Enum):
    RED = "red"


class Side(msgspec.Struct):
    name: str
    sizes: list[float] = []


class Level(enum.IntEnum):
    LOW = 1


class Parcel(Record):
    """A field of each type."""

    paid: bool | None = None
    count: int | None = None
    weight: float | None = None
    name: str | None = None
    price: Decimal | None = None
    number: UUID | None = None
    at: datetime.datetime | None = None
    local: datetime.datetime | None = None
    due: datetime.date | None = None
    opens: datetime.time | None = None
    photo: bytes | None = None
    colour: Colour | None = None
    level: Level | None = None
    size: Literal["s", "m"] | None = None
    pair: tuple[str, str] | None = None
    sides: list[Side] | None = None
    other: dict[str, Any] | None = None
    either: int | str | None = None
    digits: int | str | None = None
    exact: float | int | None = None
    flag: bool | str | None = None
    moment: datetime.datetime | int | None = None
    since: datetime.datetime | int | None = None
    step: Literal["a", 1] | None = None
    any: Any = None
    text: Any = None


PARCEL = (
    b'{"paid":true,"count":3,"weight":2.5,"name":"n","price":19.90,"number":"B7E23EC2-9AF0-4C9B-8D2B-000000000001",'
    b'"at":"2026-01-31T12:00:00.5+02:00","local":"2026-01-31T12:00:00","due":"2026-02-01","opens":"08:30:00",'
    b'"photo":"aGk=","colour":"red","level":1,"size":"m","pair":["a","b"],"sides":[{"name":"a","sizes":[1.5]}],'
    b'"other":{"a":{"b":[null]}},"either":5,"digits":"007","exact":5,"flag":true,"moment":"2026-01-31T12:00:00Z",'
    b'"since":5,"step":"a","any":true,"text":"[1]"}'
)
EMPTY_PARCEL = b'{"sku":"is no field"}'
STORED = {
    **{"paid": True, "count": 3, "weight": 2.5, "name": "n", "price": "19.90"},
    **{"number": "b7e23ec2-9af0-4c9b-8d2b-000000000001", "at": "2026-01-31T10:00:00.500000Z"},
    **{"local": "2026-01-31T12:00:00.000000Z", "due": "2026-02-01", "opens": "08:30:00", "photo": "aGk="},
    **{"colour": "red", "level": 1, "size": "m", "pair": ["a", "b"], "sides": [{"name": "a", "sizes": [1.5]}]},
    "other": {"a": {"b": [None]}},
    **{"either": 5, "digits": "007", "exact": 5, "flag": True, "moment": "2026-01-31T12:00:00.000000Z", "since": 5},
    **{"step": "a", "any": True, "text": "[1]"},
}
AS_JSON = [*STORED][[*STORED].index("pair") :]  # the fields of which JSON is stored


def plainly(row: Sequence[Any]) -> dict[str, Any]:
    """A row of a parcel, with JSON that a database has as a text read."""
    found = dict(zip(STORED, row, strict=True))
    return found | {name: json.loads(found[name]) for name in AS_JSON}


def claim(stream: str, count: int, first: int = 1) -> Claim:
    return Claim(stream, f"{stream}:{first}:{NOON}", first, count, 0, [(first, NOON)])


def decoded(stream: Stream, items: Iterable[bytes], first: int = 1) -> list[Body]:
    """Decoded bodies that arrived at intervals of a second."""
    return [
        Body.from_decoded(first + at, NOON + at * 1_000_000, item, stream.decode(item, MOST))
        for at, item in enumerate(items)
    ]


def body_with(seq: int, received: int, item: bytes, *results: Any) -> Body:
    """A body with these records and rejects."""
    records = [result for result in results if not isinstance(result, Reject)]
    rejects = [result for result in results if isinstance(result, Reject)]
    return Body.from_decoded(seq, received, item, Decoded(records, rejects))


class Watched(list[Record]):
    """Records. then: called when they have been iterated, in the transaction."""

    def __init__(self, records: Iterable[Record], then: Callable[[], object]) -> None:
        super().__init__(records)
        self.then = then

    def __iter__(self) -> Iterator[Record]:
        yield from super().__iter__()
        self.then()


def watched(bodies: Sequence[Body], then: Callable[[], object]) -> list[Body]:
    """Bodies with a call behind the records of the last one."""
    return [*bodies[:-1], msgspec.structs.replace(bodies[-1], records=Watched(bodies[-1].records, then))]


def vote(choice: object) -> bytes:
    return json.dumps({"poll": "p", "choice": str(choice)}).encode()


def votes(*choices: object, first: int = 1) -> tuple[Claim, list[Body]]:
    """A claim of votes with its bodies."""
    return claim("votes", len(choices), first), decoded(STREAMS["votes"], map(vote, choices), first)


def upto(number: int, epoch: str = "votes") -> list[Window]:
    """The history of a list in which one epoch has all numbers, up to this one."""
    return [Window(epoch, 1, number + 1, number)]


def today(letter: DeadLetter) -> Decoded:
    """The present decoder, for replay."""
    return STREAMS[letter.stream].decode(letter.body, MOST)


class StoreTests:
    """A subclass provides the fixture `store`, an empty Backend."""

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Store]:
        store = open_store(backend.url, STREAMS)
        yield store
        store.close()

    def choices(self, backend: Backend) -> list[str]:
        return [choice for (choice,) in backend.ask("SELECT choice FROM votes ORDER BY seq")]

    def test_a_vote_is_stored_with_all_columns_batch_and_seq(self, backend: Backend, store: Store) -> None:
        body = b'{"poll":"p","choice":"a","voter":"v","time":"2026-01-01T13:30:00.1239+01:00"}'
        given = claim("votes", 2, first=7)
        assert store.persist(given, decoded(STREAMS["votes"], [body, vote("b")], 7)) == Outcome(2, 0)
        assert backend.ask("SELECT received_at, time, poll, choice, voter, seq FROM votes ORDER BY seq") == [
            ("2026-01-01T12:00:00.000Z", "2026-01-01T12:30:00.123Z", "p", "a", "v", 7),
            ("2026-01-01T12:00:01.000Z", "2026-01-01T12:00:01.000Z", "p", "b", None, 8),
        ]
        traced = "SELECT claim, stream, first, bodies, records FROM votes JOIN batches ON batch = id"
        assert backend.ask(traced) == [(given.id, "votes", 7, 2, 2)] * 2

    @needs("formats")
    def test_a_span_keeps_its_nanoseconds_and_its_events_are_json(self, backend: Backend, store: Store) -> None:
        body = b'{"trace_id":"ab","span_id":"cd","name":"n","time":1767268800,"start":1767268800000000001,'
        body += b'"duration":5,"attributes":{"a":[1]},"events":[{"name":"e"}]}'
        assert store.persist(claim("spans", 1), decoded(STREAMS["spans"], [body])) == Outcome(1, 0)
        columns = "time, trace_id, parent_id, start, duration, attributes, events, links"
        ((*row, attributes, events, links),) = backend.ask(f"SELECT {columns} FROM spans")
        assert row == ["2026-01-01T12:00:00.000Z", "ab", None, 1767268800000000001, 5]
        as_json = [json.loads(x) if isinstance(x, str) else x for x in (attributes, events, links)]
        assert as_json == [{"a": [1]}, [{"name": "e"}], None]

    def test_times_have_milliseconds(self, backend: Backend, store: Store) -> None:
        arrived, time = NOON + 123_999, 1_766_600_000_123_456_789
        for name, record in (
            ("votes", Vote(time=time, poll="p", choice="a")),
            ("metrics", Metric(time=time, name="m", tags={}, field="value", value=1, type="integer")),
        ):
            store.persist(claim(name, 1), [body_with(1, arrived, b"", record)])
            ((received, at),) = backend.ask(f"SELECT received_at, time FROM {name}")
            assert received == "2026-01-01T12:00:00.123Z"
            assert at.startswith("2025-12-24T18:13:20.123")  # PostgreSQL has the nanoseconds in another column

    def test_a_record_without_a_time_has_that_of_its_arrival(self, backend: Backend, store: Store) -> None:
        arrived = NOON + 123_999
        for name, record, digits in (
            ("votes", Vote(poll="p", choice="a"), ""),
            ("metrics", Metric(name="m", tags={}, field="value", value=1, type="integer"), "000000"),
        ):
            store.persist(claim(name, 1), [body_with(1, arrived, b"", record)])
            ((at,),) = backend.ask(f"SELECT time FROM {name}")
            assert at in ("2026-01-01T12:00:00.123Z", f"2026-01-01T12:00:00.123{digits}Z")

    def test_numbers_may_begin_at_0(self, backend: Backend, store: Store) -> None:
        """Kafka's offsets do."""
        store.persist(*votes("a", "b", first=0))
        assert backend.ask("SELECT first, last FROM batches_ranges") == [(0, 1)]

    def test_a_position_is_stored_with_all_columns(self, backend: Backend, store: Store) -> None:
        full = (
            b'{"device":"d","lat":48.1,"lon":-11.6,"altitude":520,"speed":1.5,"accuracy":5,"bearing":270,"battery":80.5'
        )
        store.persist(
            claim("gps", 2), decoded(STREAMS["gps"], [full + b',"time":1}', b'{"device":"e","lat":-1,"lon":2}'])
        )
        columns = "time, device, lat, lon, altitude, speed, accuracy, bearing, battery, seq"
        assert backend.ask(f"SELECT {columns} FROM gps ORDER BY seq") == [
            ("1970-01-01T00:00:01.000Z", "d", 48.1, -11.6, 520.0, 1.5, 5.0, 270.0, 80.5, 1),
            ("2026-01-01T12:00:01.000Z", "e", -1.0, 2.0, None, None, None, None, None, 2),
        ]

    def test_a_log_is_stored_with_its_attributes(self, backend: Backend, store: Store) -> None:
        body = (
            b'{"message":"disk full","level":"ERROR","service":"web","time":"2026-01-01T12:30:00.123Z","free":0.5,'
            b'"disks":[{"name":"a","bytes":123456789012345678901234567890}]}'
        )
        store.persist(claim("logs", 2), decoded(STREAMS["logs"], [body, b"[warn] slow"]))
        one, two = backend.ask("SELECT time, level, service, message, attributes FROM logs ORDER BY seq")
        assert one[:-1] == ("2026-01-01T12:30:00.123Z", "error", "web", "disk full")
        assert json.loads(one[-1]) == {"free": 0.5, "disks": [{"name": "a", "bytes": 123456789012345678901234567890}]}
        assert two[:-1] == ("2026-01-01T12:00:01.000Z", None, None, "[warn] slow")
        assert json.loads(two[-1]) == {}

    def test_a_metric_is_stored_with_its_tags_its_type_and_its_exact_value(
        self, backend: Backend, store: Store
    ) -> None:
        values = ("idle", 97.25, "float"), ("n", 2**63 - 1, "integer"), ("on", 1, "boolean"), ("s", "x y", "string")
        tags, time = {"host": "a b", "core": "0"}, 1_767_225_600_123_456_789
        points = [Metric(time=time, name="cpu", tags=tags, field=f, value=v, type=t) for f, v, t in values]
        store.persist(claim("metrics", 1), [body_with(1, NOON, b"", *points)])
        found = backend.ask("SELECT name, tags, field, type, batch, seq FROM metrics ORDER BY field")
        assert [(name, json.loads(tags), *rest) for name, tags, *rest in found] == [
            ("cpu", {"host": "a b", "core": "0"}, field, kind, 1, 1)
            for field, kind in [("idle", "float"), ("n", "integer"), ("on", "boolean"), ("s", "string")]
        ]
        assert backend.ask("SELECT value FROM metrics WHERE type <> 'string' ORDER BY field") == [
            (97.25,),
            (2**63 - 1,),
            (1,),
        ]

    def test_a_claim_persisted_twice_is_stored_once(self, backend: Backend, store: Store) -> None:
        given = votes("a", "b", "")
        assert store.persist(*given) == Outcome(2, 1)
        assert store.persist(*given) == Outcome(0, 0, again=True)
        assert self.choices(backend) == ["a", "b"]
        assert len(find_letters(store)) == 1

    def test_two_connections_that_persist_one_claim_store_it_once(self, backend: Backend) -> None:
        both = threading.Barrier(2)
        outcomes: list[Outcome] = []

        def persist() -> None:
            store = patiently(partial(open_store, backend.url, STREAMS))
            for first in range(1, 1000, 50):
                both.wait(PATIENCE)
                outcomes.append(patiently(partial(store.persist, *votes(*range(first, first + 50), first=first))))
            store.close()

        open_store(backend.url, STREAMS).close()
        threads = [threading.Thread(target=persist) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [Outcome(0, 0, True)] * 20 + [Outcome(50, 0, False)] * 20
        assert self.choices(backend) == [str(n) for n in range(1, 1001)]

    @pytest.mark.parametrize("number, stored", [((3, 4), "34"), ((1, 8), "12345678"), ((5, 20), "56789")])
    def test_a_claim_with_other_boundaries_stores_only_what_is_not_there(
        self, number: tuple[int, int], stored: str, backend: Backend, store: Store
    ) -> None:
        """Workers on two copies of a list, of the bodies 1 to 9: this claim, then one of all of them."""
        first, last = number[0], min(number[1], 9)
        assert store.persist(*votes(*range(first, last + 1), first=first)) == Outcome(len(stored), 0)
        left = 9 - len(stored)
        again = claim("votes", 9)._replace(id=f"votes:1:{NOON + 1}")  # the same bodies, claimed at another time
        entries = votes(*range(1, 10))[1]
        assert store.read_ledger("votes", claims={again.id: 9}).persisted == {again.id: len(stored)}
        assert store.persist(again, entries) == Outcome(left, 0)
        assert store.persist(again, entries) == Outcome(0, 0, again=True)
        assert self.choices(backend) == list("123456789")
        assert store.read_ledger("votes", upto(9), claims={again.id: 9})[:3] == (9, 0, {again.id: 9})
        assert store.read_ledger("votes", upto(5)).bodies == 5  # a batch counts only up to that number
        traced = "SELECT count(*) FROM votes JOIN batches ON batch = id WHERE seq BETWEEN first AND first + bodies - 1"
        assert backend.ask(traced) == [(9,)]

    def test_the_last_rows_and_letters_of_a_stream_are_shown_newest_first(self, backend: Backend, store: Store) -> None:
        assert find_last_rows(store, "nothing", 5, 10) == ([], [])
        assert find_last_rows(store, "votes", 5, 10)[1] == find_last_letters(store, "votes", 5, 10) == []
        items = [vote(n) for n in range(1, 8)] + [b"no vote " + b"x" * 100, vote("y" * 100)]
        store.persist(claim("votes", 9), decoded(STREAMS["votes"], items))
        with store.transaction() as db:  # a worker that stores meanwhile is no hindrance
            store.run_sql(db, "DELETE FROM votes WHERE choice = '7'")
            other = open_store(backend.url, STREAMS, make=False)
            columns, rows = find_last_rows(other, "votes", 3, 12)
            ((letter, size),) = find_last_letters(other, "votes", 3, 12)
            other.close()
        shown = [dict(zip(columns, row)) for row in rows]
        assert [row["choice"] for row in shown] == ["y" * 12, "7", "6"]
        assert (shown[1]["poll"], shown[1]["voter"], shown[1]["seq"]) == ("p", None, "7")
        assert shown[1]["received_at"].startswith("2026-01-01T"[:12]) and len(shown[1]["received_at"]) == 12
        assert (letter.stream, letter.seq, letter.body, size) == ("votes", 8, b"no vote xxxx", 108)
        assert find_last_rows(store, "votes", 99, 1)[1][-1][columns.index("choice")] == "1"
        store.persist(
            claim("gps", 1), decoded(STREAMS["gps"], [b'{"device":"a","lat":1.5,"lon":-2,"time":1700000000}'])
        )
        columns, (row,) = find_last_rows(store, "gps", 1, 30)
        assert (row[columns.index("lat")], row[columns.index("time")][:19]) == ("1.5", "2023-11-14T22:13:20")

    def test_a_replay_of_letters_that_take_long_ends_between_two_of_them(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.transaction_limits.TURN_SECONDS", 0.0)
        store.persist(claim("votes", 3), decoded(STREAMS["votes"], [b"a", b"b", b"c"]))
        letters, seen = find_letters(store), 0
        while letters:
            done = replay_letters(store, letters, lambda letter: Decoded([Vote(poll="p", choice=letter.body.decode())]))
            assert (done.stored, done.seen) == (1, 1)
            letters, seen = letters[done.seen :], seen + done.seen
            assert len(self.choices(backend)) == seen
        assert self.choices(backend) == ["a", "b", "c"]

    @pytest.mark.parametrize("above", [False, True], ids=["alone", "before a stored claim"])
    def test_a_claim_whose_entries_end_early_is_stored_in_part_and_its_rest_later(
        self, above: bool, backend: Backend, store: Store
    ) -> None:
        if above:
            store.persist(*votes("y", "z", first=6))
        choices = "a", "", "c", "d", "e"
        whole, items = claim("votes", 5), [*map(vote, choices)]
        left: Claim | None = whole
        stored = []
        while left:
            group = decode_claim(left, items[-left.count :], STREAMS["votes"], MOST, Histogram((1.0,)), 0.0)
            outcome = store.persist(left.part(left.first, group.end), group.bodies)
            stored.append((group.end, outcome.records, outcome.letters))
            assert store.read_ledger("votes", claims={whole.id: 5}).persisted == {whole.id: len(stored)}
            left = left.rest_from(group.end)
        assert stored == [(2, 1, 0), (3, 0, 1), (4, 1, 0), (5, 1, 0), (6, 1, 0)]
        delivered = decode_claim(whole, items, STREAMS["votes"], MOST, Histogram((1.0,)), 9.0)
        assert store.persist(whole, delivered.bodies) == Outcome(0, 0, again=True)
        assert self.choices(backend) == ["a", "c", "d", "e", *("yz" if above else "")]
        assert store.read_ledger("votes", upto(7)).bodies == (7 if above else 5)
        assert backend.ask("SELECT sum(bodies) FROM batches") == [(7 if above else 5,)]

    def test_a_claim_that_ends_early_and_has_a_rejected_row_is_stored_in_part(
        self, backend: Backend, store: Store
    ) -> None:
        backend.refuse("votes", "choice", "b")
        assert [store.persist(*votes(choice, first=first))[:2] for first, choice in enumerate("abc", 1)] == [
            (1, 0),
            (0, 1),
            (1, 0),
        ]
        assert self.choices(backend) == ["a", "c"]
        assert [letter.seq for letter in find_letters(store)] == [2]

    def test_dead_letters_of_a_claim_that_is_stored_in_part_are_buried_once(
        self, backend: Backend, store: Store
    ) -> None:
        store.persist(*votes("", "a", first=2))
        given = claim("votes", 5)._replace(id="votes:1:1")
        entries = votes("x", "", "a", "", "b")[1]
        assert store.persist(given, entries) == Outcome(2, 1)
        assert [letter.seq for letter in find_letters(store)] == [2, 4]
        assert self.choices(backend) == ["x", "a", "b"]
        assert store.read_ledger("votes", upto(5))[:2] == (5, 2)

    def test_the_numbers_of_another_spool_or_stream_are_others(self, backend: Backend, store: Store) -> None:
        given, entries = votes("a", "b")
        assert store.persist(given, entries) == Outcome(2, 0)
        assert store.persist(given._replace(id=f"other:1:{NOON}"), entries) == Outcome(2, 0)
        body = b'{"device":"e","lat":-1,"lon":2}'
        row_destinations = Claim("gps", f"votes:1:{NOON + 1}", 1, 1, 0, [(1, NOON)])
        assert store.persist(row_destinations, decoded(STREAMS["gps"], [body])) == Outcome(1, 0)
        assert backend.ask("SELECT count(*), sum(last - first + 1) FROM batches_ranges") == [(3, 5)]

    def test_ranges_that_meet_become_one(self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 0)
        monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 1)
        for first, last, ranges in [
            (11, 20, [(11, 20)]),
            (31, 40, [(11, 20), (31, 40)]),
            (1, 10, [(1, 20), (31, 40)]),
            (21, 25, [(1, 25), (31, 40)]),
            (18, 33, [(1, 40)]),
        ]:
            given = claim("votes", last - first + 1, first)
            store.persist(given, votes(*range(first, last + 1), first=first)[1])
            while store.fold_batches():
                pass
            assert backend.ask("SELECT first, last FROM batches_ranges ORDER BY 1") == ranges
        assert self.choices(backend) == [str(n) for n in range(1, 41)]

    def test_a_number_between_folded_ranges_is_not_stored_until_it_is(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two claims that leave out one body are folded at once; a worker stores that body later."""
        monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 0)
        monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 2)
        store.persist(*votes(1, 2))
        store.persist(*votes(4, 5, first=4))
        assert store.fold_batches()
        assert backend.ask("SELECT first, last FROM batches_ranges ORDER BY 1") == [(1, 2), (4, 5)]
        whole = claim("votes", 5)
        assert store.read_ledger("votes", claims={whole.id: 5})[:3] == (4, 0, {whole.id: 4})
        assert store.persist(whole._replace(id=f"votes:1:{NOON + 1}"), votes(*range(1, 6))[1]) == Outcome(1, 0)
        assert self.choices(backend) == list("12345")

    def test_workers_that_chose_other_boundaries_at_once_store_each_body_once(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each claims all bodies in pieces of its own size: in each piece others have stored some, or are storing.

        Another connection folds meanwhile.
        """
        end = 1201
        monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 1)
        monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 1)
        folding = open_store(backend.url, STREAMS)
        start = threading.Barrier(3)
        failed: list[Exception] = []

        def persist(size: int) -> None:
            store = patiently(partial(open_store, backend.url, STREAMS))
            start.wait(PATIENCE)
            for first in range(1, end, size):
                last = min(first + size, end)
                given = Claim("votes", f"votes:{first}:{size}", first, last - first, 0, [(first, NOON)])
                entries = votes(*range(first, last), first=first)[1]
                while True:
                    try:
                        store.persist(given, entries)
                        break
                    except Unavailable as error:
                        failed.append(error)
            store.close()

        threads = [threading.Thread(target=persist, args=(size,)) for size in (50, 70, 333)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                folding.fold_batches()
            except Unavailable as error:
                failed.append(error)
        for thread in threads:
            thread.join()
        assert self.choices(backend) == [str(n) for n in range(1, end)]
        assert folding.read_ledger("votes")[:2] == (end - 1, 0)
        while folding.fold_batches():
            pass
        assert backend.ask("SELECT count(*) FROM batches") == [(1,)]
        assert backend.ask("SELECT first, last FROM batches_ranges") == [(1, end - 1)]
        folding.close()
        # on a busy machine one waits for another one longer than it may; a deadlock would be found before
        assert [error for error in failed if "lock timeout" not in str(error)] == []

    def test_old_batches_are_folded_and_their_bodies_stay_stored(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 3)
        monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 2)
        # Redis is emptied after the first half: a new epoch has the same numbers
        given = [
            (Claim("votes", f"{epoch}:{first}:{NOON}", first, 2, 0, [(first, NOON)]), votes("a", "b", first=first)[1])
            for epoch, firsts in (("old", (1, 3, 5, 9)), ("new", (1, 3, 5, 7)))
            for first in firsts
        ]
        given[2] = given[2][0], votes("", "b", first=5)[1]
        for claim_, entries in given:
            store.persist(claim_, entries)
        assert [store.fold_batches() for _ in range(4)] == [True, True, False, False]
        assert backend.ask("SELECT id FROM batches ORDER BY id") == [(id,) for id in (3, 5, 6, 7, 8)]  # 3 has a letter
        assert backend.ask("SELECT epoch, first_batch, last_batch FROM batches_folded") == [("old", 1, 4)]
        assert store.read_ledger("votes")[:2] == (16, 1)
        assert store.read_ledger("votes", upto(5, "old"))[:2] == (13, 1)
        for claim_, entries in given:
            assert store.read_ledger("votes", claims={claim_.id: 2}).persisted == {claim_.id: 2}
            assert store.persist(claim_, entries) == Outcome(0, 0, again=True)
        for first in range(20, 24):
            store.persist(*votes("a", first=first))
        assert [store.fold_batches() for _ in range(3)] == [True, True, False]
        ranges = "SELECT epoch, first, last FROM batches_ranges WHERE epoch <> 'votes' ORDER BY 1, 2"
        assert backend.ask(ranges) == [("new", 1, 8), ("old", 1, 6), ("old", 9, 10)]
        assert (
            replay_letters(store, find_letters(store), lambda letter: Decoded([Vote(poll="p", choice="mended")])).stored
            == 1
        )
        assert store.read_ledger("votes")[:2] == (20, 0)
        assert backend.ask("SELECT min(id) FROM batches") == [(9,)]
        traced = (
            "SELECT choice, f.epoch FROM votes JOIN batches_folded f ON batch BETWEEN first_batch AND last_batch "
            "JOIN batches_ranges r ON r.epoch = f.epoch AND seq BETWEEN first AND last WHERE seq = 5 ORDER BY choice"
        )
        assert backend.ask(traced) == [("a", "new"), ("mended", "old")]

    def test_rows_are_deleted_by_age_and_counted(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.transaction_limits.EXPIRE_ROWS", 3)
        store.persist(*votes(*range(1, 11)))  # a second apart
        before = NOON + 8_000_000
        assert (count_overdue(store, "votes", before), count_overdue(store, "orders", before)) == (8, 0)
        rounds = 0
        while store.expire_stream("votes", before):
            rounds += 1
        assert self.choices(backend) == ["9", "10"]
        ledger = store.read_ledger("votes")
        assert (ledger.bodies, ledger.dead, ledger.expired, ledger.deleted) == (10, 0, 0, 8)
        assert not store.expire_stream("votes", before)
        assert store.persist(*votes(*range(1, 11))).again
        assert count_overdue(store, "votes", before) == 0

    @pytest.mark.parametrize("known", ["before it stored", "after it stored", "never"])
    def test_a_clock_that_jumps_before_the_first_deletion_deletes_nothing(
        self, known: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """known: when the worker got an age, the clock being right."""
        kept, now = parsers.parse_keep("votes=3650d,dead=3650d"), time.time
        store = open_store(backend.url, STREAMS, keep=kept if known == "before it stored" else FOREVER)
        store.persist(*votes("a", "", "b", ""))
        if known == "after it stored":
            store.close()
            store = open_store(backend.url, STREAMS, keep=kept)
        monkeypatch.setattr(time, "time", lambda: now() + 20 * 365 * 86_400)
        if known == "never":  # the clock is ahead when the worker gets one
            store.close()
            store = open_store(backend.url, STREAMS, keep=kept)
        store.persist(*votes("c", first=5))
        for name, age in ("votes", 3650 * 86_400), (DEAD, 3650 * 86_400):
            expiry = Expiry(name, age)
            while expiry.step(store):
                pass
        keys = KeyExpiry({"votes": 86_400})
        while keys.step(store):
            pass
        assert self.choices(backend) == ["a", "b", "c"]
        assert backend.ask("SELECT count(*) FROM dead_letters") == [(2,)]
        assert store.read_horizon(KEYS) / 1e6 < now() + 60
        store.close()

    @pytest.mark.parametrize("what", ["votes", "dead_letters"])
    def test_old_rows_and_letters_behind_young_ones_are_deleted(
        self, what: str, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A clock was ahead when the first ones arrived."""
        for bound in "EXPIRE_ROWS", "EXPIRE_LETTERS", "SEARCH_ROWS":
            monkeypatch.setattr(f"sluice.store.transaction_limits.{bound}", 3)
        body = b"bad" if what == "dead_letters" else vote("a")
        for first, later in (1, 3600), (11, 0), (21, 3600):
            bodies = [
                msgspec.structs.replace(made, received=made.received + later * 1_000_000)
                for made in decoded(STREAMS["votes"], [body] * 10, first)
            ]
            store.persist(claim("votes", 10, first), bodies)
        before = NOON + 1800 * 1_000_000
        assert count_overdue(store, what, before) == 10
        while store.expire_letters(before) if what == "dead_letters" else store.expire_stream("votes", before):
            pass
        assert count_overdue(store, what, before) == 0
        assert backend.ask(f"SELECT count(*) FROM {what}") == [(20,)]
        ledger = store.read_ledger("votes")
        assert ledger.expired + ledger.deleted == 10

    def test_a_body_whose_letters_two_workers_delete_is_counted(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.transaction_limits.EXPIRE_LETTERS", 1)
        bodies = [b"\n".join([vote(""), vote("a"), vote("")])] * 20  # each with two letters
        store.persist(claim("votes", 20), decoded(STREAMS["votes"], bodies))
        others = [open_store(backend.url, STREAMS) for _ in range(3)]
        after = NOON + 60_000_000

        def delete(other: Store) -> None:
            while patiently(partial(count_overdue, other, "dead_letters", after)):
                patiently(partial(other.expire_letters, after))

        threads = [threading.Thread(target=delete, args=(other,)) for other in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for other in others:
            other.close()
        ledger = store.read_ledger("votes")
        assert (ledger.dead, ledger.expired) == (0, 20)

    def test_dead_letters_have_an_age_of_their_own(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.transaction_limits.EXPIRE_LETTERS", 2)
        two = b"\n".join([vote(""), vote("a"), vote("")])  # a body with two letters
        store.persist(claim("votes", 4), decoded(STREAMS["votes"], [two, vote("b"), b"bad", b"bad"]))
        assert store.read_ledger("votes").dead == 3
        before = NOON + 3_000_000
        assert count_overdue(store, "dead_letters", before) == 3
        assert [store.expire_letters(before) for _ in range(3)] == [True, True, False]
        assert [letter.seq for letter in find_letters(store)] == [4]
        ledger = store.read_ledger("votes")
        assert (ledger.bodies, ledger.dead, ledger.expired, ledger.deleted) == (4, 1, 2, 0)
        assert {epoch for (epoch,) in backend.ask("SELECT epoch FROM batches_expired")} == {"votes"}
        assert self.choices(backend) == ["a", "b"]

    @pytest.mark.parametrize("age", ["forever", "3600d"])
    @pytest.mark.parametrize("name", ["votes", DEAD])
    def test_what_another_cell_keeps_is_not_deleted_until_that_cell_is_forgotten(
        self, name: str, age: str, backend: Backend, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.persist(*votes("a", "", "b", ""))
        for cell, kept in ("ours", "1s"), ("theirs", age):
            keep = parsers.parse_keep(f"{name}={kept}")
            store.publish_figures(cell, {"settings": shared_settings(STREAMS, keep, RowDestinations())}, [])
        table = "votes" if name == "votes" else "dead_letters"

        def left() -> int:
            expiry = Expiry(name, 1)
            expiry.noted = 1
            expiry.since = int(time.time() * 1e6), time.monotonic()
            while expiry.step(store):
                pass
            return int(backend.ask(f"SELECT count(*) FROM {table}")[0][0])

        assert left() == 2
        how = "for ever" if age == "forever" else "for 3600 d"
        said = f"{name}: kept {how}, as the cell theirs keeps it; `status --forget` ends that"
        assert said in [record.getMessage() for record in caplog.records]
        assert forget_cell(store, "theirs")
        assert left() < 2

    @pytest.mark.parametrize("make", [True, False])
    def test_a_newer_layout_is_refused_and_left_alone(self, make: bool, backend: Backend, store: Store) -> None:
        store.persist(*votes("a"))
        store.close()
        backend.set_layout(7)
        backend.ask("DROP TABLE dead_letters")  # as if the newer layout had none
        with pytest.raises(NewerTables, match="has layout 7, and this version of Sluice knows only 3: update Sluice"):
            open_store(backend.url, STREAMS, make=make)
        with pytest.raises(NewerTables):
            store.persist(*votes("b", first=2))
        backend.set_layout(LAYOUT)
        assert self.choices(backend) == ["a"]

    def test_an_empty_claim_is_stored_once_too(self, backend: Backend, store: Store) -> None:
        assert store.persist(claim("votes", 0), ()) == Outcome(0, 0)
        assert store.persist(*votes("a")) == Outcome(0, 0, again=True)

    def test_an_earlier_layout_is_refused_with_what_to_do(self, backend: Backend, store: Store) -> None:
        store.close()
        backend.set_layout(2)
        with pytest.raises(Unavailable, match="has layout 2, .* knows only 3: start commit fe6a1b22 with it once"):
            open_store(backend.url, STREAMS)
        backend.set_layout(LAYOUT)

    def test_a_reject_is_buried_with_its_reason(self, backend: Backend, store: Store) -> None:
        bodies = [vote("a"), b"nonsense", vote("b"), b'[{"poll":"p","choice":"c"},{"poll":"","choice":"d"}]']
        assert store.persist(claim("votes", 4), decoded(STREAMS["votes"], bodies)) == Outcome(3, 2)
        assert self.choices(backend) == ["a", "b", "c"]
        whole, part = find_letters(store)
        assert whole == DeadLetter(
            whole.id, "votes", NOON + 1_000_000, b"nonsense", "neither JSON nor a form", True, whole.batch, 2
        )
        assert (part.body, part.whole, part.seq) == (b'{"poll":"","choice":"d"}', False, 4)
        assert backend.ask("SELECT records FROM batches") == [(3,)]
        assert [(stream, letters) for stream, _, letters in count_reasons(store)] == [("votes", 1)] * 2

    @pytest.mark.parametrize("count", [1, 2, 5_000])
    def test_a_record_that_the_database_rejects_is_found_and_buried_and_the_rest_is_stored(
        self, count: int, backend: Backend, store: Store
    ) -> None:
        backend.refuse("votes", "choice", "poison")
        bad = {count // 2, count - 1}
        given = ["poison" if n in bad else n for n in range(count)]
        assert store.persist(*votes(*given)) == Outcome(count - len(bad), len(bad))
        assert self.choices(backend) == [str(n) for n in range(count) if n not in bad]
        letters = find_letters(store)
        assert [(x.seq, x.body, x.whole) for x in letters] == [(n + 1, vote("poison"), True) for n in sorted(bad)]
        assert {x.reason.startswith("rejected by the database: ") for x in letters} == {True}
        assert store.read_ledger("votes", upto(count))[:2] == (count, len(bad))

    def test_only_the_rejected_record_of_a_body_is_buried_and_only_once(self, backend: Backend, store: Store) -> None:
        backend.refuse("votes", "choice", "poison")
        body = b"\n".join(vote(x) for x in ["a", "poison", "", "b"])
        assert store.persist(claim("votes", 1), decoded(STREAMS["votes"], [body])) == Outcome(2, 2)
        assert self.choices(backend) == ["a", "b"]
        assert sorted((json.loads(x.body)["choice"], x.whole) for x in find_letters(store)) == [
            ("", False),
            ("poison", False),
        ]
        assert store.read_ledger("votes", upto(1))[:2] == (1, 1)

    def test_the_search_for_rejected_records_ends_and_what_is_left_is_buried_together(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """65,536 records that are all rejected would take minutes, and each other stream waits."""
        monkeypatch.setattr("sluice.store.transaction_limits.SEARCH_INSERTS", 50)
        monkeypatch.setattr("sluice.store.transaction_limits.MERGED_BYTES", 1_000)
        monkeypatch.setattr("sluice.store.transaction_limits.CHUNK_RECORDS", 64)
        backend.refuse("votes", "choice", "poison")
        lines = [vote("poison" if n % 3 else n) for n in range(300)]
        bodies = [vote("first"), b"\n".join(lines), vote("poison"), vote("last")]
        insert, calls = store.insert_bodies, list[int]()

        def counted(*given: Any) -> Outcome:
            calls.append(1)
            return insert(*given)

        monkeypatch.setattr(store, "insert_bodies", counted)
        outcome = store.persist(claim("votes", 4), decoded(STREAMS["votes"], bodies))
        letters = find_letters(store)
        assert outcome == Outcome(len(self.choices(backend)), len(letters))
        buried = [line for letter in letters for line in letter.body.split(b"\n")]
        stored = [vote(choice) for choice in self.choices(backend)]
        assert sorted(json.loads(line)["choice"] for line in [*buried, *stored]) == sorted(
            json.loads(line)["choice"] for body in bodies for line in body.split(b"\n")
        )
        assert vote("first") in stored and len(stored) > 5
        assert max(len(letter.body) for letter in letters) < 1_100
        assert len(calls) < 50 + 2 * len(letters) and len(letters) < 100
        assert {letter.reason.startswith("rejected by the database: ") for letter in letters} == {True}
        assert [(letter.whole, letter.body) for letter in letters if letter.seq == 3] == [(True, vote("poison"))]

    def test_a_reject_that_the_database_rejects_is_buried_as_it_was_sent(self, backend: Backend, store: Store) -> None:
        backend.refuse("dead_letters", "reason", "poison")
        entries = [body_with(1, NOON, b"whole", Reject(b"part", "poison"))]
        assert store.persist(claim("votes", 1), entries) == Outcome(0, 1)
        (letter,) = find_letters(store)
        assert (letter.body, letter.whole) == (b"part", False)
        assert letter.reason.startswith("rejected by the database: ")

    def test_a_reason_that_no_column_can_hold_is_escaped(self, store: Store) -> None:
        entries = [body_with(1, NOON, b"whole", Reject(b"part", "a reason with a \0 and a \ud800"))]
        assert store.persist(claim("votes", 1), entries) == Outcome(0, 1)
        assert [letter.reason for letter in find_letters(store)] == ["a reason with a \\0 and a \\ud800"]

    def test_a_value_that_no_column_can_hold_is_buried(self, backend: Backend) -> None:
        class Order(Record, kw_only=True):
            count: int
            note: str = ""

        def decode(body: bytes, limits: Limits) -> Decoded:
            odd: dict[bytes, Any] = {
                b"64": Order(count=2**64),
                b"-1": Order(count=1, note="\ud800"),
                b"-2": msgspec.structs.replace(Order(count=0), count="x", time="y"),
                b"-3": "not a record",
            }
            return Decoded([odd.get(body) or Order(count=int(body))])

        own = Stream("orders", Order, decode)
        store = open_store(backend.url, {"orders": own})
        bodies = [b"1", b"64", b"2", b"-1", b"-2", b"-3", b"3"]
        assert store.persist(claim("orders", 7), decoded(own, bodies)) == Outcome(3, 4)
        assert backend.ask("SELECT count FROM orders ORDER BY seq") == [(1,), (2,), (3,)]
        assert [x.body for x in find_letters(store)] == [b"64", b"-1", b"-2", b"-3"]
        store.close()

    def test_a_new_field_is_a_new_column(self, backend: Backend) -> None:
        class Order(Record):
            sku: str

        old = stream("orders", Order)
        store = open_store(backend.url, {"orders": old})
        store.persist(claim("orders", 1), decoded(old, [b'{"sku":"a"}']))
        store.close()

        class Larger(Record):
            sku: str
            count: int = 1
            tags: list[str] | None = None

        new = stream("orders", Larger)
        store = open_store(backend.url, {"orders": new})
        store.persist(claim("orders", 1, first=2), decoded(new, [b'{"sku":"b","count":3,"tags":["x"]}'], 2))
        store.close()
        assert backend.ask("SELECT sku, count, seq FROM orders ORDER BY seq") == [("a", None, 1), ("b", 3, 2)]
        # with the old type again, as during an upgrade
        store = open_store(backend.url, {"orders": old})
        assert store.persist(claim("orders", 1, first=3), decoded(old, [b'{"sku":"c"}'], 3)) == Outcome(1, 0)
        store.close()

    def test_a_record_type_that_replaces_metrics_is_stored_like_any_other(self, backend: Backend) -> None:
        class Reading(Record):
            name: str
            value: str

        own = stream("metrics", Reading)
        store = open_store(backend.url, {"metrics": own})
        body = b'{"name":"a","value":"1","time":1766600000123456789}\n{"name":"b","value":"2"}'
        assert store.persist(claim("metrics", 1), decoded(own, [body])) == Outcome(2, 0)
        assert backend.ask("SELECT * FROM metrics ORDER BY name") == [
            ("2026-01-01T12:00:00.000Z", "2025-12-24T18:13:20.123Z", "a", "1", 1, 1, ""),
            ("2026-01-01T12:00:00.000Z", "2026-01-01T12:00:00.000Z", "b", "2", 1, 1, ""),
        ]
        store.close()

    def test_metrics_under_another_name_are_stored_as_metrics(self, backend: Backend) -> None:
        own = STREAMS["metrics"]._replace(name="readings")
        store = open_store(backend.url, {"metrics": STREAMS["metrics"], "readings": own})
        point = b'{"name":"m","field":"%b","value":%b,"time":1766600000123456789}'
        points = b"\n".join([point % (b"f", b"0.1"), point % (b"n", b"18446744073709551615")])
        for name in "metrics", "readings":
            assert store.persist(claim(name, 1), decoded(own, [points])) == Outcome(2, 0)
        columns = backend.ask("SELECT * FROM metrics ORDER BY field")
        renamed = backend.ask("SELECT * FROM readings ORDER BY field")
        assert [row[:-3] for row in columns] == [row[:-3] for row in renamed]  # all but batch, seq, sender
        assert backend.ask("SELECT name, field, type FROM readings ORDER BY field") == [
            ("m", "f", "float"),
            ("m", "n", "unsigned"),
        ]
        store.close()

    def test_a_table_that_cannot_be_written_stops_only_its_stream(self, backend: Backend, store: Store) -> None:
        backend.ask("ALTER TABLE votes RENAME TO ballots")
        backend.ask("CREATE VIEW votes AS SELECT 1 AS one")
        again = open_store(backend.url, STREAMS)
        for one in store, again:
            with pytest.raises(Unavailable):
                one.persist(*votes("a"))
            body = b'{"device":"e","lat":-1,"lon":2}'
            first = 1 if one is store else 2
            assert one.persist(claim("gps", 1, first), decoded(STREAMS["gps"], [body], first)) == Outcome(1, 0)
        backend.ask("DROP VIEW votes")
        assert store.persist(*votes("a")) == Outcome(1, 0)
        assert again.persist(*votes("a")) == Outcome(0, 0, again=True)
        again.close()

    def test_a_database_that_cannot_be_written_is_unavailable_and_nothing_is_lost(
        self, backend: Backend, store: Store
    ) -> None:
        with backend.away():
            for _ in range(2):
                with pytest.raises(Unavailable):
                    open_store(backend.url, STREAMS).persist(*votes("a"))
        assert poll(lambda: store.persist(*votes("a"))) == Outcome(1, 0)  # the first try may find a broken connection
        assert self.choices(backend) == ["a"]

    @pytest.mark.contract
    def test_a_kill_during_a_transaction_stores_all_or_nothing(self, backend: Backend, store: Store) -> None:
        program = (
            "import sys; sys.path[:0] = sys.argv[2:]\n"
            "from support import store_contract\nfrom sluice.store.registry import open_store\n"
            "store = open_store(sys.argv[1], store_contract.STREAMS)\n"
            "print(flush=True)\n"
            "for first in range(1, 10**9, 500):\n"
            "    store.persist(*store_contract.votes(*range(first, first + 500), first=first))\n"
        )
        for round in range(8):
            command = [sys.executable, "-c", program, backend.url, str(ROOT), str(ROOT / "tests")]
            known = backend.clients()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout
                process.stdout.readline()
                more = "SELECT count(*) FROM votes"
                before = backend.ask(more)
                while backend.ask(more) == before:
                    pass
                time.sleep(round / 1000)  # at another point each time
                process.send_signal(signal.SIGKILL)
            poll(lambda known=known: backend.clients() <= known)  # type: ignore[misc]
            assert backend.ask("SELECT count(*) FROM votes") == backend.ask("SELECT 500 * count(*) FROM batches")
            assert backend.ask("SELECT count(*) FROM votes") == backend.ask("SELECT count(DISTINCT choice) FROM votes")
            for table in "votes", "batches", "batches_ranges":
                backend.ask(f"DELETE FROM {table}")
            assert store.persist(*votes(*range(500))) == Outcome(500, 0)
            for table in "votes", "batches", "batches_ranges":
                backend.ask(f"DELETE FROM {table}")

    def test_a_replayed_letter_is_stored_or_stays_dead_with_the_new_reason(
        self, backend: Backend, store: Store
    ) -> None:
        store.persist(*votes("", "a", ""))
        old = find_letters(store)

        def mended(letter: DeadLetter) -> Decoded:
            if letter.seq == 1:
                return Decoded([Vote(poll="p", choice="mended"), Vote(poll="p", choice="and one")])
            return Decoded((), [Reject(letter.body, "not today", True)])

        assert replay_letters(store, old, mended, True)[:4] == (1, 2, 1, {"not today": 1})
        assert find_letters(store) == old
        assert replay_letters(store, old, mended, False)[:4] == (1, 2, 1, {"not today": 1})
        new = find_letters(store)
        assert [(x.seq, x.reason, x.received, x.whole, x.batch) for x in new] == [
            (3, "not today", NOON + 2_000_000, True, old[0].batch)
        ]
        assert new[0].id > old[-1].id
        row = "SELECT received_at, choice, batch, seq FROM votes WHERE choice = 'mended'"
        assert backend.ask(row) == [("2026-01-01T12:00:00.000Z", "mended", old[0].batch, 1)]
        assert backend.ask("SELECT records FROM batches") == [(3,)]
        assert store.read_ledger("votes", upto(3))[:2] == (3, 1)
        # the letters are gone
        assert replay_letters(store, old, mended, False)[:4] == (0, 0, 0, {})
        assert find_letters(store) == new

    def test_a_letter_that_is_gone_does_not_hold_up_the_others(self, backend: Backend, store: Store) -> None:
        store.persist(*votes("", ""))
        letters = find_letters(store)

        def mended(letter: DeadLetter) -> Decoded:
            return Decoded([Vote(poll="p", choice=str(letter.seq))])

        assert replay_letters(store, letters[:1], mended, False).stored == 1
        assert replay_letters(store, letters, mended, False).stored == 1
        assert self.choices(backend) == ["1", "2"]

    def test_a_claim_that_begins_with_the_last_stored_body_stores_the_others(
        self, backend: Backend, store: Store
    ) -> None:
        store.persist(*votes("1", "2", "3"))
        assert store.persist(*votes("3", "4", "5", first=3)).records == 2
        assert self.choices(backend) == ["1", "2", "3", "4", "5"]

    def test_an_id_of_a_dead_letter_is_never_reused(self, backend: Backend, store: Store) -> None:
        store.persist(*votes(""))
        read = find_letters(store)
        assert replay_letters(store, read, lambda letter: Decoded([Vote(poll="p", choice="a")]), False).stored == 1
        store.persist(*votes("", first=2))
        assert replay_letters(store, read, lambda letter: Decoded([Vote(poll="p", choice="b")]), False).stored == 0
        assert [x.seq for x in find_letters(store)] == [2]
        assert self.choices(backend) == ["a"]

    def test_dead_letters_are_read_until_they_have_as_many_bytes_as_fit(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rejects = [Reject(b"x" * size, "y", True) for size in (9, 1, 5, 5)]
        store.persist(claim("votes", 4), [body_with(seq, NOON, b"", one) for seq, one in enumerate(rejects, 1)])
        monkeypatch.setattr("sluice.store.questions.LETTER_BYTES", 10)
        assert [letter.seq for letter in find_letters(store)] == [1, 2]
        assert [letter.seq for letter in find_letters(store, newest=True)] == [4, 3]

    def test_a_partial_dead_letter_that_stays_dead_stays_partial(self, backend: Backend, store: Store) -> None:
        backend.refuse("votes", "choice", "poison")
        body = b"\n".join([vote(""), vote("a"), vote("poison")])
        store.persist(claim("votes", 1), decoded(STREAMS["votes"], [body]))
        before = sorted((x.body, x.whole) for x in find_letters(store))
        assert replay_letters(store, find_letters(store), today, False)[:3] == (0, 0, 2)
        assert sorted((x.body, x.whole) for x in find_letters(store)) == before
        assert self.choices(backend) == ["a"]

    def test_simultaneous_replays_store_nothing_twice(self, backend: Backend, store: Store) -> None:
        store.persist(claim("votes", 300), decoded(STREAMS["votes"], [b"%d" % n for n in range(300)]))
        assert len(find_letters(store, limit=1000)) == 300

        def replay() -> None:
            own = patiently(partial(open_store, backend.url, STREAMS, make=False))
            above = 0
            while letters := find_letters(own, above=above, limit=7):
                above = letters[-1].id
                decode = lambda letter: Decoded([Vote(poll="p", choice=letter.body.decode())])  # noqa: E731
                patiently(partial(replay_letters, own, letters, decode, False))
            own.close()

        threads = [threading.Thread(target=replay) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(int, self.choices(backend))) == list(range(300))
        assert find_letters(store) == []

    def test_dead_letters_are_selected_by_a_read_only_condition(self, backend: Backend, store: Store) -> None:
        store.persist(*votes("", "", "a", ""))
        ids = [x.id for x in find_letters(store)]
        assert [x.seq for x in find_letters(store, "seq > 1 -- the later ones")] == [2, 4]
        assert [x.seq for x in find_letters(store, "seq = 1 OR seq = 4")] == [1, 4]
        assert [x.id for x in find_letters(store, above=ids[0], below=ids[2])] == [ids[1]]
        assert [x.seq for x in find_letters(store, limit=2, newest=True)] == [4, 2]
        assert count_reasons(store, "seq > 1")[0][2] == 2
        deadly = "1=1)); DELETE FROM dead_letters; SELECT * FROM (SELECT * FROM dead_letters WHERE (1=1"
        for where in ("", "nope", "seq =", "1=1; DELETE FROM dead_letters", deadly):
            with pytest.raises(ValueError):
                find_letters(store, where)
            with pytest.raises(ValueError):
                count_reasons(store, where)
        assert [x.id for x in find_letters(store)] == ids

    def test_reasons_that_differ_in_what_was_sent_are_one_and_their_number_is_bounded(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = (
            [f"not a time: '{n}'" for n in range(5)] + [f"bad byte {n}" for n in range(3)] + ["alone: 'x'", "b", "c"]
        )
        entries = [body_with(n + 1, NOON, b"x", Reject(b"x", reason, True)) for n, reason in enumerate(given)]
        store.persist(claim("votes", len(entries)), entries)
        found = [("votes", reason, n) for reason, n in [("not a time: …", 5), ("bad byte…", 3), ("alone: 'x'", 1)]]
        assert count_reasons(store) == [*found, ("votes", "b", 1), ("votes", "c", 1)]
        assert count_reasons(store, "reason LIKE 'bad%'") == [found[1]]
        monkeypatch.setattr("sluice.store.questions.REASONS", 3)
        assert count_reasons(store) == [*found, ("votes", "others", 2)]
        seen = replay_letters(
            store, find_letters(store), lambda letter: Decoded((), [Reject(b"x", letter.reason, True)])
        ).reasons
        assert seen["not a time: …"] == 5

    def test_large_dead_letters_are_returned_a_few_at_a_time(self, backend: Backend, store: Store) -> None:
        store.persist(claim("votes", 12), decoded(STREAMS["votes"], [b"x" * (1 << 20)] * 12))
        seen: list[DeadLetter] = []
        while more := find_letters(store, above=seen[-1].id if seen else 0):
            assert len(more) < 12
            seen += more
        assert [x.seq for x in seen] == list(range(1, 13))

    def test_the_ledger_counts_bodies_up_to_a_sequence_number_and_finds_claims(
        self, backend: Backend, store: Store
    ) -> None:
        first, second = votes("a", "", first=1), votes("b", first=3)
        body = b"\n".join([vote(""), vote("c"), vote("")])  # one body, two letters
        for given in first, second, (claim("votes", 1, 4), decoded(STREAMS["votes"], [body], 4)):
            store.persist(*given)
        ids = {first[0].id: 2, second[0].id: 1, "other:9:1": 5}
        assert store.read_ledger("votes", upto(4), claims=ids)[:3] == (4, 2, ids | {"other:9:1": 0})
        assert store.read_ledger("votes", upto(3))[:3] == (3, 1, {})
        assert store.read_ledger("gps")[:3] == (0, 0, {})

    def test_the_ledger_counts_the_numbers_that_were_lost_from_the_list(self, backend: Backend, store: Store) -> None:
        """Redis went back to 3 of 6, and was emptied before: each number counts once, in the epoch that has it."""
        for epoch, first, last in ("old", 1, 4), ("lost", 1, 6), ("new", 4, 5):
            bodies = ["" if n == last else n for n in range(first, last + 1)]
            given, entries = votes(*bodies, first=first)
            store.persist(given._replace(id=f"{epoch}:{first}:{NOON}"), entries)
        assert (
            store.read_ledger("votes", [Window("new", 1, 6, 5)]).earlier == 4 + 6
        )  # without a line, they begin with 1
        for epoch, first, last, purged in ("old", 1, 9, 3), ("lost", 1, 8, 0), ("new", 4, 5, 0), ("c", 1, 9, 0):
            cell = "other" if epoch == "c" else "mine"
            store.publish_figures(cell, {}, [Epoch("votes", epoch, cell, first, last, purged)])
        history = [Window("lost", 1, 4), Window("new", 4, 8, 5)]
        # of "old" 9 numbers but 3 purged, of "lost" those from 4 to 8
        assert store.read_ledger("votes", history, "mine")[:5] == (12, 3, {}, 6 + 5, {"old": 3, "lost": 0, "new": 0})
        assert store.read_ledger("votes", history[:1] + [Window("new", 4, 8, 4)], "mine")[:2] == (11, 2)
        assert (
            store.read_ledger("votes", [Window("lost", 1, 9), Window("new", 9, 11, 9)], "mine").earlier == 6
        )  # none lost
        assert store.read_ledger("votes", (), "other")[:4] == (0, 0, {}, 9)

    def test_a_part_of_a_body_is_never_buried_as_a_whole_one(self, store: Store) -> None:
        with store.transaction() as db:
            for whole in True, False:
                rejects = [Reject(b"x", "why", each) for each in (True, False)]
                store.bury_rejects(db, "votes", Origin(1, {}, whole), [body_with(1, NOON, b"x", *rejects)])
        assert [letter.whole for letter in find_letters(store)] == [True, False, False, False]

    def test_each_cell_leaves_a_line_and_may_be_forgotten(self, backend: Backend, store: Store) -> None:
        assert store.read_cells() == []
        store.publish_figures("c1", {"streams": {"votes": {"ready": 7}}}, [Epoch("votes", "a", "c1", 1, 9, 0)])
        store.publish_figures("c2", {}, [])
        store.publish_figures("c1", {"streams": {"votes": {"ready": 8}}}, [Epoch("votes", "a", "c1", 1, 7, 2)])
        assert [(line.cell, line.figures) for line in store.read_cells()] == [
            ("c1", {"streams": {"votes": {"ready": 8}}}), ("c2", {}),
        ]  # fmt: skip
        assert all(0 <= line.seconds < 60 for line in store.read_cells())

        def is_new() -> bool:
            store.publish_figures("c2", {}, [])
            return store.read_cells()[1].seconds < 0.9

        poll(is_new)  # unless this process stands still meanwhile
        assert backend.ask("SELECT * FROM batches_epochs") == [("votes", "a", "c1", 1, 9, 2)]  # 9 was given once
        assert (forget_cell(store, "c1"), forget_cell(store, "c1")) == (True, False)
        assert [line.cell for line in store.read_cells()] == ["c2"]

    def test_readers_and_writers_do_not_block_each_other(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.persist(*votes("a", ""))
        other = open_store(backend.url, STREAMS, make=False)

        add_records = store.add_records

        def read_beside(*given: Any) -> None:
            add_records(*given)
            assert other.read_ledger("votes")[:2] == (2, 1)
            assert len(find_letters(other)) == 1

        monkeypatch.setattr(store, "add_records", read_beside)
        assert store.persist(*votes("b", first=3)) == Outcome(1, 0)
        other.close()

    def test_every_type_of_a_field_is_stored_as_the_documents_say(self, backend: Backend) -> None:
        own = stream("parcels", Parcel)
        store = open_store(backend.url, {"parcels": own})
        assert store.persist(claim("parcels", 2), decoded(own, [PARCEL, EMPTY_PARCEL])) == Outcome(2, 0)
        columns = [f'CAST("{name}" AS TEXT)' if name in AS_JSON else name for name in STORED]
        first, second = backend.ask(f"SELECT {', '.join(columns)} FROM parcels ORDER BY seq")
        assert plainly(first) == STORED
        assert set(second) == {None}
        store.close()
        if has("views"):
            self.views_read_parcels(backend, own)

    def views_read_parcels(self, backend: Backend, own: Stream) -> None:
        from sluice.contrib.views.rows.registry import open_row_source

        source = open_row_source(backend.url, {"parcels": own})
        with source.snapshot():
            row, _ = (list(row) for piece in source.changes("parcels", source.start(), 10).pieces for row in piece)
        for at, convert in source.converters["parcels"]:
            row[at] = convert(row[at])
        assert json.loads(msgspec.json.encode(row[2 : 2 + len(STORED)])) == [*STORED.values()]
        source.close()
