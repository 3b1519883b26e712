"""Every sink, by one set of tests: what is in it afterwards, exactly once, whatever the database says or dies of."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import apsw
import msgspec
import pytest

from sluice import settings, sinks
from sluice.drill.harness import ROOT, poll, short_tmp
from sluice.sinks import DeadLetter, Entry, Outcome, Sink, Unavailable
from sluice.spool.contract import Claim
from sluice.streams import registry
from sluice.streams.record import Gps, Limits, Metric, Record, Reject, Vote
from sluice.streams.registry import STREAMS, Stream, stream

NOON = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC in microseconds
MOST = registry.limits(settings.load({}))


class Store(Protocol):
    """A database to test a sink on."""

    url: str

    def ask(self, sql: str) -> list[tuple]:
        """What a query gives: times as SQLite holds them, no types but int, float, str and bytes."""

    def refuse(self, table: str, column: str, value: str) -> None:
        """Make the database refuse rows with this value, as a user's own trigger or constraint would."""

    def away(self) -> contextlib.AbstractContextManager[None]:
        """Nothing can be written meanwhile."""


class Colour(enum.Enum):
    RED = "red"


def claim(stream: str, count: int, first: int = 1) -> Claim:
    return Claim(stream, f"{stream}:{first}:{NOON}", first, count, 0, [(first, NOON)])


def decoded(stream: Stream, bodies: Iterable[bytes], first: int = 1) -> Callable[[], Iterator[Entry]]:
    """What the worker hands over for bodies that arrived a second after one another."""
    bodies = list(bodies)

    def entries() -> Iterator[Entry]:
        for at, body in enumerate(bodies):
            for thing in stream.decode(body, MOST):
                yield first + at, NOON + at * 1_000_000, body, thing

    return entries


def vote(choice: object) -> bytes:
    return json.dumps({"poll": "p", "choice": str(choice)}).encode()


def votes(*choices: object, first: int = 1) -> tuple[Claim, Callable[[], Iterator[Entry]]]:
    """A claim of votes with its entries."""
    return claim("votes", len(choices), first), decoded(STREAMS["votes"], map(vote, choices), first)


def today(letter: DeadLetter) -> list[Record | Reject]:
    """Today's decoder, for replay."""
    return list(STREAMS[letter.stream].decode(letter.body, MOST))


def gone(error: type[BaseException]) -> Callable[[], Iterator[Entry]]:
    """Entries that end with an error after the first."""

    def entries() -> Iterator[Entry]:
        yield next(votes("a")[1]())
        raise error

    return entries


class SinkTests:
    """To be run on every database: a subclass has the fixture `store`, a Store with nothing in it."""

    @pytest.fixture
    def sink(self, store: Store) -> Iterator[Sink]:
        sink = sinks.connect(store.url, STREAMS)
        yield sink
        sink.close()

    def choices(self, store: Store) -> list[str]:
        return [choice for (choice,) in store.ask("SELECT choice FROM votes ORDER BY seq")]

    def test_a_vote_arrives_with_its_columns_and_its_trace(self, store: Store, sink: Sink) -> None:
        body = b'{"poll":"p","choice":"a","voter":"v","time":"2026-01-01T13:30:00.1239+01:00"}'
        given = claim("votes", 2, first=7)
        assert sink.persist(given, decoded(STREAMS["votes"], [body, vote("b")], 7)) == Outcome(2, 0)
        assert store.ask("SELECT received_at, time, poll, choice, voter, seq FROM votes ORDER BY seq") == [
            ("2026-01-01T12:00:00.000Z", "2026-01-01T12:30:00.123Z", "p", "a", "v", 7),
            ("2026-01-01T12:00:01.000Z", "2026-01-01T12:00:01.000Z", "p", "b", None, 8),
        ]
        traced = "SELECT claim, stream, first, bodies, records FROM votes JOIN batches ON batch = id"
        assert store.ask(traced) == [(given.id, "votes", 7, 2, 2)] * 2

    def test_a_position_arrives_with_its_columns(self, store: Store, sink: Sink) -> None:
        full = (
            b'{"device":"d","lat":48.1,"lon":-11.6,"altitude":520,"speed":1.5,"accuracy":5,"bearing":270,"battery":80.5'
        )
        sink.persist(
            claim("gps", 2), decoded(STREAMS["gps"], [full + b',"time":1}', b'{"device":"e","lat":-1,"lon":2}'])
        )
        columns = "time, device, lat, lon, altitude, speed, accuracy, bearing, battery, seq"
        assert store.ask(f"SELECT {columns} FROM gps ORDER BY seq") == [
            ("1970-01-01T00:00:01.000Z", "d", 48.1, -11.6, 520.0, 1.5, 5.0, 270.0, 80.5, 1),
            ("2026-01-01T12:00:01.000Z", "e", -1.0, 2.0, None, None, None, None, None, 2),
        ]

    def test_a_metric_arrives_with_its_tags_its_type_and_every_digit_of_its_value(
        self, store: Store, sink: Sink
    ) -> None:
        lines = b'cpu,host=a\\ b,core=0 idle=97.25,n=9223372036854775807i,on=t,s="x y" 1767225600123456789'
        sink.persist(claim("metrics", 1), decoded(STREAMS["metrics"], [lines]))
        found = store.ask("SELECT name, tags, field, type, batch, seq FROM metrics ORDER BY field")
        assert [(name, json.loads(tags), *rest) for name, tags, *rest in found] == [
            ("cpu", {"host": "a b", "core": "0"}, field, kind, 1, 1)
            for field, kind in [("idle", "float"), ("n", "integer"), ("on", "boolean"), ("s", "string")]
        ]
        assert store.ask("SELECT value FROM metrics WHERE type <> 'string' ORDER BY field") == [
            (97.25,),
            (2**63 - 1,),
            (1,),
        ]

    def test_a_claim_that_is_persisted_twice_is_stored_once(self, store: Store, sink: Sink) -> None:
        given = votes("a", "b", "")
        assert sink.persist(*given) == Outcome(2, 1)
        assert sink.persist(*given) == Outcome(0, 0, again=True)
        assert self.choices(store) == ["a", "b"]
        assert len(sink.letters()) == 1

    def test_two_connections_with_one_claim_at_once_store_it_once(self, store: Store) -> None:
        both = threading.Barrier(2)
        outcomes: list[Outcome] = []

        def persist() -> None:
            sink = sinks.connect(store.url, STREAMS)
            for first in range(1, 1000, 50):
                both.wait(20)
                outcomes.append(sink.persist(*votes(*range(first, first + 50), first=first)))
            sink.close()

        sinks.connect(store.url, STREAMS).close()
        threads = [threading.Thread(target=persist) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [Outcome(0, 0, True)] * 20 + [Outcome(50, 0, False)] * 20
        assert self.choices(store) == [str(n) for n in range(1, 1001)]

    def test_an_empty_claim_is_remembered_too(self, store: Store, sink: Sink) -> None:
        assert sink.persist(claim("votes", 0), lambda: iter(())) == Outcome(0, 0)
        assert sink.persist(*votes("a")) == Outcome(0, 0, again=True)

    def test_what_a_decoder_refuses_is_buried_with_its_reason(self, store: Store, sink: Sink) -> None:
        bodies = [vote("a"), b"nonsense", vote("b"), b'[{"poll":"p","choice":"c"},{"poll":"","choice":"d"}]']
        assert sink.persist(claim("votes", 4), decoded(STREAMS["votes"], bodies)) == Outcome(3, 2)
        assert self.choices(store) == ["a", "b", "c"]
        whole, part = sink.letters()
        assert whole == DeadLetter(
            whole.id, "votes", NOON + 1_000_000, b"nonsense", "neither JSON nor a form", True, whole.batch, 2
        )
        assert (part.body, part.whole, part.seq) == (b'{"poll":"","choice":"d"}', False, 4)
        assert store.ask("SELECT records FROM batches") == [(3,)]
        assert [(stream, letters) for stream, _, letters in sink.reasons()] == [("votes", 1)] * 2

    @pytest.mark.parametrize("count", [1, 2, 5_000])
    def test_what_the_database_refuses_is_found_and_buried_and_the_rest_is_stored(
        self, count: int, store: Store, sink: Sink
    ) -> None:
        store.refuse("votes", "choice", "poison")
        bad = {count // 2, count - 1}
        given = ["poison" if n in bad else n for n in range(count)]
        assert sink.persist(*votes(*given)) == Outcome(count - len(bad), len(bad))
        assert self.choices(store) == [str(n) for n in range(count) if n not in bad]
        letters = sink.letters()
        assert [(x.seq, x.body, x.whole) for x in letters] == [(n + 1, vote("poison"), True) for n in sorted(bad)]
        assert {x.reason.startswith("rejected by the database: ") for x in letters} == {True}
        assert sink.ledger("votes", count, ())[:2] == (count, len(bad))

    def test_of_a_body_of_many_only_the_refused_record_is_buried_and_rejects_once(
        self, store: Store, sink: Sink
    ) -> None:
        store.refuse("votes", "choice", "poison")
        body = b"\n".join(vote(x) for x in ["a", "poison", "", "b"])
        assert sink.persist(claim("votes", 1), decoded(STREAMS["votes"], [body])) == Outcome(2, 2)
        assert self.choices(store) == ["a", "b"]
        assert sorted((json.loads(x.body)["choice"], x.whole) for x in sink.letters()) == [
            ("", False),
            ("poison", False),
        ]
        assert sink.ledger("votes", 1, ())[:2] == (1, 1)

    def test_a_value_that_no_column_can_hold_is_buried(self, store: Store) -> None:
        class Order(Record, kw_only=True):
            count: int
            note: str = ""

        def decode(body: bytes, bounds: Limits) -> list[Any]:
            odd: dict[bytes, Any] = {
                b"64": Order(count=2**64),
                b"-1": Order(count=1, note="\ud800"),
                b"-2": msgspec.structs.replace(Order(count=0), count="x", time="y"),
                b"-3": "not a record",
            }
            return [odd.get(body) or Order(count=int(body))]

        own = Stream("orders", Order, decode)
        sink = sinks.connect(store.url, {"orders": own})
        bodies = [b"1", b"64", b"2", b"-1", b"-2", b"-3", b"3"]
        assert sink.persist(claim("orders", 7), decoded(own, bodies)) == Outcome(3, 4)
        assert store.ask("SELECT count FROM orders ORDER BY seq") == [(1,), (2,), (3,)]
        assert [x.body for x in sink.letters()] == [b"64", b"-1", b"-2", b"-3"]
        sink.close()

    def test_an_error_of_the_entries_passes_and_nothing_is_stored(self, store: Store, sink: Sink) -> None:
        class Gone(Exception):
            pass

        for error in Gone, ValueError, TypeError, KeyError:  # also one that looks like the database's own
            with pytest.raises(error):
                sink.persist(claim("votes", 1), gone(error))
        assert store.ask("SELECT (SELECT count(*) FROM votes) + (SELECT count(*) FROM batches)") == [(0,)]
        assert sink.persist(*votes("a", "b")) == Outcome(2, 0)

    def test_a_new_field_is_a_new_column(self, store: Store) -> None:
        class Order(Record):
            sku: str

        old = stream("orders", Order)
        sink = sinks.connect(store.url, {"orders": old})
        sink.persist(claim("orders", 1), decoded(old, [b'{"sku":"a"}']))
        sink.close()

        class Larger(Record):
            sku: str
            count: int = 1
            tags: list[str] | None = None

        new = stream("orders", Larger)
        sink = sinks.connect(store.url, {"orders": new})
        sink.persist(claim("orders", 1, first=2), decoded(new, [b'{"sku":"b","count":3,"tags":["x"]}'], 2))
        sink.close()
        assert store.ask("SELECT sku, count, seq FROM orders ORDER BY seq") == [("a", None, 1), ("b", 3, 2)]
        # and with the old type again, as during an upgrade
        sink = sinks.connect(store.url, {"orders": old})
        assert sink.persist(claim("orders", 1, first=3), decoded(old, [b'{"sku":"c"}'], 3)) == Outcome(1, 0)
        sink.close()

    def test_a_record_type_that_replaces_metrics_is_stored_like_any_other(self, store: Store) -> None:
        class Reading(Record):
            name: str
            value: str

        own = stream("metrics", Reading)
        sink = sinks.connect(store.url, {"metrics": own})
        body = b'{"name":"a","value":"1","time":1766600000123456789}\n{"name":"b","value":"2"}'
        assert sink.persist(claim("metrics", 1), decoded(own, [body])) == Outcome(2, 0)
        assert store.ask("SELECT * FROM metrics ORDER BY name") == [
            ("2026-01-01T12:00:00.000Z", "2025-12-24T18:13:20.123Z", "a", "1", 1, 1),
            ("2026-01-01T12:00:00.000Z", "2026-01-01T12:00:00.000Z", "b", "2", 1, 1),
        ]
        sink.close()

    def test_metrics_under_another_name_are_stored_as_metrics(self, store: Store) -> None:
        own = STREAMS["metrics"]._replace(name="readings")
        sink = sinks.connect(store.url, {"metrics": STREAMS["metrics"], "readings": own})
        line = b"m f=0.1,n=18446744073709551615u 1766600000123456789"
        for name in "metrics", "readings":
            assert sink.persist(claim(name, 1), decoded(own, [line])) == Outcome(2, 0)
        columns = store.ask("SELECT * FROM metrics ORDER BY field")
        renamed = store.ask("SELECT * FROM readings ORDER BY field")
        assert [row[:-2] for row in columns] == [row[:-2] for row in renamed]  # all but batch and seq
        assert store.ask("SELECT name, field, type FROM readings ORDER BY field") == [
            ("m", "f", "float"),
            ("m", "n", "unsigned"),
        ]
        sink.close()

    def test_a_table_that_cannot_be_written_holds_up_its_own_stream_only(self, store: Store, sink: Sink) -> None:
        store.ask("ALTER TABLE votes RENAME TO ballots")
        store.ask("CREATE VIEW votes AS SELECT 1 AS one")
        again = sinks.connect(store.url, STREAMS)
        for one in sink, again:
            with pytest.raises(Unavailable):
                one.persist(*votes("a"))
            body = b'{"device":"e","lat":-1,"lon":2}'
            first = 1 if one is sink else 2
            assert one.persist(claim("gps", 1, first), decoded(STREAMS["gps"], [body], first)) == Outcome(1, 0)
        store.ask("DROP VIEW votes")
        assert sink.persist(*votes("a")) == Outcome(1, 0)
        assert again.persist(*votes("a")) == Outcome(0, 0, again=True)
        again.close()

    def test_a_database_that_cannot_be_written_is_away_and_nothing_is_lost(self, store: Store, sink: Sink) -> None:
        with store.away():
            for _ in range(2):
                with pytest.raises(Unavailable):
                    sinks.connect(store.url, STREAMS).persist(*votes("a"))
        assert poll(lambda: sink.persist(*votes("a"))) == Outcome(1, 0)  # a connection that broke costs a try
        assert self.choices(store) == ["a"]

    def test_a_kill_in_the_middle_of_a_transaction_stores_nothing_or_everything(self, store: Store, sink: Sink) -> None:
        program = (
            "import sys; sys.path[:0] = sys.argv[2:]\n"
            "import test_sinks\nfrom sluice import sinks\n"
            "sink = sinks.connect(sys.argv[1], test_sinks.STREAMS)\n"
            "print(flush=True)\n"
            "for first in range(1, 10**9, 500):\n"
            "    sink.persist(*test_sinks.votes(*range(first, first + 500), first=first))\n"
        )
        for round in range(8):
            command = [
                sys.executable,
                "-c",
                program,
                store.url,
                str(ROOT),
                str(ROOT / "tests"),
                str(ROOT / "tests/sinks"),
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout
                process.stdout.readline()
                more = "SELECT count(*) FROM votes"
                before = store.ask(more)
                while store.ask(more) == before:
                    pass
                time.sleep(round / 1000)  # at another point each time
                process.send_signal(signal.SIGKILL)
            assert store.ask("SELECT count(*) FROM votes") == store.ask("SELECT 500 * count(*) FROM batches")
            assert store.ask("SELECT count(*) FROM votes") == store.ask("SELECT count(DISTINCT choice) FROM votes")
            store.ask("DELETE FROM votes")
            store.ask("DELETE FROM batches")
            assert sink.persist(*votes(*range(500))) == Outcome(500, 0)
            store.ask("DELETE FROM votes")
            store.ask("DELETE FROM batches")

    def test_a_replayed_letter_passes_or_stays_dead_with_todays_reason(self, store: Store, sink: Sink) -> None:
        sink.persist(*votes("", "a", ""))
        old = sink.letters()

        def mended(letter: DeadLetter) -> list[Record | Reject]:
            if letter.seq == 1:
                return [Vote(poll="p", choice="mended"), Vote(poll="p", choice="and one")]
            return [Reject(letter.body, "not today", True)]

        assert sink.replay(old, mended, True) == (1, 2, 1, {"not today": 1})
        assert sink.letters() == old
        assert sink.replay(old, mended, False) == (1, 2, 1, {"not today": 1})
        new = sink.letters()
        assert [(x.seq, x.reason, x.received, x.whole, x.batch) for x in new] == [
            (3, "not today", NOON + 2_000_000, True, old[0].batch)
        ]
        assert new[0].id > old[-1].id
        row = "SELECT received_at, choice, batch, seq FROM votes WHERE choice = 'mended'"
        assert store.ask(row) == [("2026-01-01T12:00:00.000Z", "mended", old[0].batch, 1)]
        assert store.ask("SELECT records FROM batches") == [(3,)]
        assert sink.ledger("votes", 3, ())[:2] == (3, 1)
        # they are not there any more
        assert sink.replay(old, mended, False) == (0, 0, 0, {})
        assert sink.letters() == new

    def test_a_letter_is_never_taken_for_another_one(self, store: Store, sink: Sink) -> None:
        sink.persist(*votes(""))
        read = sink.letters()
        assert sink.replay(read, lambda letter: [Vote(poll="p", choice="a")], False).stored == 1
        sink.persist(*votes("", first=2))
        assert sink.replay(read, lambda letter: [Vote(poll="p", choice="b")], False).stored == 0
        assert [x.seq for x in sink.letters()] == [2]
        assert self.choices(store) == ["a"]

    def test_a_part_of_a_body_stays_a_part_when_it_stays_dead(self, store: Store, sink: Sink) -> None:
        store.refuse("votes", "choice", "poison")
        body = b"\n".join([vote(""), vote("a"), vote("poison")])
        sink.persist(claim("votes", 1), decoded(STREAMS["votes"], [body]))
        before = sorted((x.body, x.whole) for x in sink.letters())
        assert sink.replay(sink.letters(), today, False)[:3] == (0, 0, 2)
        assert sorted((x.body, x.whole) for x in sink.letters()) == before
        assert self.choices(store) == ["a"]

    def test_two_replays_at_once_double_nothing(self, store: Store, sink: Sink) -> None:
        sink.persist(claim("votes", 300), decoded(STREAMS["votes"], [b"%d" % n for n in range(300)]))
        assert len(sink.letters(limit=1000)) == 300

        def replay() -> None:
            own = sinks.connect(store.url, STREAMS, make=False)
            above = 0
            while letters := own.letters(above=above, limit=7):
                above = letters[-1].id
                own.replay(letters, lambda letter: [Vote(poll="p", choice=letter.body.decode())], False)
            own.close()

        threads = [threading.Thread(target=replay) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(int, self.choices(store))) == list(range(300))
        assert sink.letters() == []

    def test_letters_are_found_by_a_condition_that_can_change_nothing(self, store: Store, sink: Sink) -> None:
        sink.persist(*votes("", "", "a", ""))
        ids = [x.id for x in sink.letters()]
        assert [x.seq for x in sink.letters("seq > 1 -- the later ones")] == [2, 4]
        assert [x.seq for x in sink.letters("seq = 1 OR seq = 4")] == [1, 4]
        assert [x.id for x in sink.letters(above=ids[0], below=ids[2])] == [ids[1]]
        assert [x.seq for x in sink.letters(limit=2, newest=True)] == [4, 2]
        assert sink.reasons("seq > 1")[0][2] == 2
        deadly = "1=1)); DELETE FROM dead_letters; SELECT * FROM (SELECT * FROM dead_letters WHERE (1=1"
        for where in ("", "nope", "seq =", "1=1; DELETE FROM dead_letters", deadly):
            with pytest.raises(ValueError):
                sink.letters(where)
            with pytest.raises(ValueError):
                sink.reasons(where)
        assert [x.id for x in sink.letters()] == ids

    def test_large_letters_come_a_few_at_a_time(self, store: Store, sink: Sink) -> None:
        sink.persist(claim("votes", 12), decoded(STREAMS["votes"], [b"x" * (1 << 20)] * 12))
        seen: list[DeadLetter] = []
        while more := sink.letters(above=seen[-1].id if seen else 0):
            assert len(more) < 12
            seen += more
        assert [x.seq for x in seen] == list(range(1, 13))

    def test_the_ledger_counts_bodies_up_to_a_number_and_says_which_claims_are_there(
        self, store: Store, sink: Sink
    ) -> None:
        first, second = votes("a", "", first=1), votes("b", first=3)
        body = b"\n".join([vote(""), vote("c"), vote("")])  # one body, two letters
        for given in first, second, (claim("votes", 1, 4), decoded(STREAMS["votes"], [body], 4)):
            sink.persist(*given)
        ids = [first[0].id, second[0].id, "other:9:1"]
        assert sink.ledger("votes", 4, ids) == (4, 2, set(ids[:2]))
        assert sink.ledger("votes", 3, ()) == (3, 1, set())
        assert sink.ledger("gps", 1 << 62, ()) == (0, 0, set())

    def test_nobody_waits_for_a_reader_and_no_reader_for_a_writer(self, store: Store, sink: Sink) -> None:
        sink.persist(*votes("a", ""))
        other = sinks.connect(store.url, STREAMS, make=False)

        def entries() -> Iterator[Entry]:
            yield from votes("b", first=3)[1]()
            assert other.ledger("votes", 9, ())[:2] == (2, 1)
            assert len(other.letters()) == 1

        assert sink.persist(claim("votes", 1, 3), entries) == Outcome(1, 0)
        other.close()

    def test_a_user_may_leave_types_to_the_sink(self, store: Store) -> None:
        class Order(Record):
            paid: bool
            weight: float | None
            colour: Colour
            size: Literal["s", "m"]
            due: datetime.date | None
            lines: list[dict[str, int]]

        own = stream("orders", Order)
        sink = sinks.connect(store.url, {"orders": own})
        body = b'{"paid":true,"weight":2.5,"colour":"red","size":"m","due":"2026-02-01","lines":[{"a":1}]}'
        assert sink.persist(claim("orders", 1), decoded(own, [body])) == Outcome(1, 0)
        ((paid, weight, colour, size, due, lines),) = store.ask(
            "SELECT paid, weight, colour, size, due, lines FROM orders"
        )
        assert (paid, weight, json.loads(lines)) == (1, 2.5, [{"a": 1}])
        assert [x.strip('"') for x in (colour, size, due)] == ["red", "m", "2026-02-01"]
        sink.close()


class SqliteStore:
    """A database file. Through apsw, as the sink: two copies of SQLite in one process undo each other's locks."""

    def __init__(self, tmp: Path) -> None:
        self.path = tmp / "ingest.db"
        self.url = f"sqlite:///{self.path}"

    def ask(self, sql: str) -> list[tuple]:
        with contextlib.closing(apsw.Connection(str(self.path))) as db:
            db.set_busy_timeout(10_000)
            return db.execute(sql).fetchall()

    def refuse(self, table: str, column: str, value: str) -> None:
        self.ask(
            f"CREATE TRIGGER t BEFORE INSERT ON {table} WHEN new.{column} = '{value}' "
            "BEGIN SELECT RAISE(ABORT, 'not in this house'); END"
        )

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with contextlib.closing(apsw.Connection(str(self.path))) as db, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sluice.sinks.sqlite.BUSY", 0.1)
            db.execute("BEGIN IMMEDIATE")
            yield


class TestSqlite(SinkTests):
    @pytest.fixture
    def store(self) -> Iterator[SqliteStore]:
        with short_tmp() as tmp:
            yield SqliteStore(tmp)

    def test_values_are_as_the_protocol_says(self, store: SqliteStore, sink: Sink) -> None:
        lines = b'm on=t,off=false,u=18446744073709551615u,s="x" -1\nm old=1 0'
        sink.persist(claim("metrics", 1), decoded(STREAMS["metrics"], [lines]))
        assert store.ask("SELECT field, value, typeof(value), type, time FROM metrics ORDER BY rowid") == [
            ("on", 1, "integer", "boolean", "1969-12-31T23:59:59.999999999Z"),
            ("off", 0, "integer", "boolean", "1969-12-31T23:59:59.999999999Z"),
            ("u", "18446744073709551615", "text", "unsigned", "1969-12-31T23:59:59.999999999Z"),
            ("s", "x", "text", "string", "1969-12-31T23:59:59.999999999Z"),
            ("old", 1.0, "real", "float", "1970-01-01T00:00:00.000000000Z"),
        ]

    def test_the_tables_are_those_of_the_protocol(self, store: SqliteStore, sink: Sink) -> None:
        columns = {
            name: ", ".join(row[1] for row in store.ask(f"PRAGMA table_info({name})"))
            for name in ("metrics", "gps", "votes", "dead_letters", "batches")
        }
        protocol = (ROOT / "docs/PROTOCOL.md").read_text()
        for name, listed in columns.items():
            assert f"| `{name}` | `{listed}` |" in protocol
        for record in Metric, Gps, Vote:  # in the order of the record type
            assert (
                ", ".join(x.name for x in msgspec.structs.fields(record))
                in columns[record.__name__.lower() + ("s" if record is not Gps else "")]
            )

    @pytest.mark.parametrize("more", ["", ", mine TEXT DEFAULT 'mine'"])
    def test_a_table_that_was_there_is_filled_whatever_the_order_of_its_columns(
        self, more: str, store: SqliteStore
    ) -> None:
        with contextlib.closing(apsw.Connection(str(store.path))) as db:
            db.execute(f"CREATE TABLE votes (choice, seq, voter{more}, time, poll, batch, received_at)")
        sink = sinks.connect(store.url, STREAMS)
        assert sink.persist(*votes("a", "b")) == Outcome(2, 0)
        sink.close()
        (first, _) = store.ask(f"SELECT poll, choice, voter, batch, seq{', mine' * bool(more)} FROM votes ORDER BY seq")
        assert first == ("p", "a", None, 1, 1, *["mine"] * bool(more))
        assert store.ask("SELECT count(*) FROM votes WHERE received_at LIKE '20%Z' AND time = received_at") == [(2,)]

    def test_what_is_committed_is_synced(self, sink: Any) -> None:
        assert sink.db.execute("PRAGMA journal_mode").get == "wal"
        assert sink.db.execute("PRAGMA synchronous").get == 2  # FULL

    def test_a_full_database_is_away_until_there_is_room(self, store: SqliteStore, sink: Any) -> None:
        full = sink.db.execute("PRAGMA page_count").get + 2
        sink.db.execute(f"PRAGMA max_page_count={full}")
        with pytest.raises(Unavailable, match="full"):
            sink.persist(*votes(*["x" * 1000] * 100))
        assert self.choices(store) == []
        assert sink.persist(*votes("a")) == Outcome(1, 0)  # opened anew, without that limit

    def test_a_read_only_database_is_away(self, sink: Any) -> None:
        sink.db.execute("PRAGMA query_only=1")  # permissions do not hold for root; the error is the same
        with pytest.raises(Unavailable, match="readonly"):
            sink.persist(*votes("a"))
        assert sink.persist(*votes("a")) == Outcome(1, 0)

    def test_a_missing_folder_is_made_and_one_that_cannot_be_is_away(self, store: SqliteStore) -> None:
        deep = store.path.parent / "a/b/c.db"
        sink = sinks.connect(f"sqlite:///{deep}", STREAMS)
        assert sink.persist(*votes("a")) == Outcome(1, 0)
        sink.close()
        assert deep.parent.stat().st_mode & 0o77 == 0
        with pytest.raises(Unavailable):
            sinks.connect(f"sqlite:///{deep}/d/e.db", STREAMS)

    def test_a_file_that_is_no_database_is_away_and_stays_as_it_is(self, store: SqliteStore) -> None:
        store.path.write_bytes(b"somebody's letters " * 100)
        with pytest.raises(Unavailable, match="not a database"):
            sinks.connect(store.url, STREAMS)
        assert store.path.read_bytes() == b"somebody's letters " * 100

    def test_a_corrupt_database_is_away_and_buries_nothing(self, store: SqliteStore, sink: Sink) -> None:
        sink.persist(*votes(*range(2000)))
        sink.close()
        with open(store.path, "r+b") as file:
            size = file.seek(0, 2)
            for page in range(4096, size, 4096):
                file.seek(page)
                file.write(os.urandom(200))
        with pytest.raises(Unavailable, match="malformed|corrupt|schema"):
            sinks.connect(store.url, STREAMS).persist(*votes("a", first=2001))
        assert not (store.path.parent / "ingest.db-journal").exists()

    def test_a_trigger_that_ends_the_transaction_stores_nothing(self, store: SqliteStore, sink: Sink) -> None:
        store.ask(
            "CREATE TRIGGER t BEFORE INSERT ON votes WHEN new.choice = 'z' BEGIN SELECT RAISE(ROLLBACK, 'not now'); END"
        )
        for _ in range(2):
            with pytest.raises(Unavailable, match="not now"):
                sink.persist(*votes("a", "z", "b"))
        assert self.choices(store) == []
        store.ask("DROP TRIGGER t")
        assert sink.persist(*votes("a", "z", "b")) == Outcome(3, 0)

    def test_an_operator_makes_no_database(self, store: SqliteStore) -> None:
        with pytest.raises(Unavailable, match="no database yet"):
            sinks.connect(store.url, STREAMS, make=False)
        assert not store.path.exists()
