"""Rows in an object store, in ClickHouse and in Kafka: each is there exactly once, whatever is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from contrib_support import outbox_contract
from contrib_support.outbox_contract import outbox
from proving import destinations as witness
from proving import engines, harness
from proving.harness import ROOT
from proving.postgres import postgres_server
from sluice import settings
from sluice.contrib.destinations import destination
from sluice.contrib.destinations.outbox import Outbox, note_object
from sluice.contrib.destinations.register import parse_rows
from sluice.contrib.destinations.registry import check_rows, open_destination, open_destinations
from sluice.store.questions import count_overdue, find_letters, find_unpublished
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import Store
from sluice.store.types import Outcome, Unavailable
from sluice.streams.built_in import STREAMS
from sluice.streams.custom import stream
from sluice.streams.record import Record
from support import store_contract
from support.sender_configs import samples
from support.store_contract import NOON, body_with, claim, decoded, today, votes

pytestmark = pytest.mark.nightly

KINDS = {"s3": engines.Store, "clickhouse": engines.ClickHouse, "kafka": engines.Kafka}
each = pytest.mark.parametrize("engine", KINDS, indirect=True)


def only(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", [kind], indirect=True)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, engines.Engine]]:
    """The engines that tests of this module have asked for."""
    found: dict[str, engines.Engine] = {}
    yield found
    for engine in found.values():
        engine.kill()


@pytest.fixture
def engine(
    request: pytest.FixtureRequest, started: dict[str, engines.Engine], tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> engines.Engine:  # fmt: skip
    kind = KINDS[request.param]
    if not kind.available():
        pytest.skip(kind.missing)
    if request.param not in started:
        started[request.param] = kind(tmp_path_factory.mktemp(request.param))
    if started[request.param].process is None:
        started[request.param].start()
    for name, value in started[request.param].env.items():
        monkeypatch.setenv(name, value)
    return started[request.param]


class Place(NamedTuple):
    """A place of its own in an engine, and a database for the ledger."""

    kind: str
    rows: str
    ledger: str
    engine: engines.Engine

    def connect(self, streams: Any = STREAMS) -> Store:
        return open_store(self.ledger, streams, row_destinations=open_destinations(parse_rows(self.rows), streams))

    def read(self, stream: str, *columns: str) -> list[tuple]:
        """The rows of a stream, in the order of their bodies; none if the stream has never been stored."""
        names = [*columns, *({"seq"} - {*columns})]
        try:
            table = witness.DESTINATIONS[self.kind](self.ledger, self.rows, self.engine.env).table(stream, names)
        except (Unavailable, KeyError):
            return []
        found = sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=lambda row: row[-1])
        return [row[: len(columns)] for row in found]

    def choices(self) -> list[str]:
        return [choice for (choice,) in self.read("votes", "choice")]

    def killed(self, program: str) -> None:
        """Run a program that kills itself."""
        outbox_contract.killed(self.ledger, self.rows, PREPARED + program, self.engine.env)


@pytest.fixture
def place(request: pytest.FixtureRequest, engine: engines.Engine, tmp: Path) -> Place:
    kind = next(name for name, of in KINDS.items() if isinstance(engine, of))
    own = f"t{uuid.uuid4().hex}"
    if kind == "clickhouse":
        asked(engine, f"CREATE DATABASE {own}")
    rows = engine.url.replace("/default", f"/{own}") if kind == "clickhouse" else f"{engine.url}/{own}"
    return Place(kind, rows, f"sqlite:///{tmp}/ingest.db", engine)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another worker has left is published at once."""
    monkeypatch.setattr(destination.Carried, "GRACE_SECONDS", 0.0)


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    with contextlib.closing(place.connect()) as store:
        yield store


def asked(engine: engines.Engine, statement: str) -> str:
    """The answer of ClickHouse to a statement."""
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/", statement)
        response = connection.getresponse()
        answer = response.read().decode()
        assert response.status == 200, answer
        return answer


def noted(store: Store) -> list[tuple]:
    """What is noted, and what the notes carry."""
    with store.transaction() as db:
        found = db.execute("SELECT name FROM batches_objects UNION ALL SELECT name FROM batches_carried").fetchall()
        return [tuple(row) for row in found]


# --- What arrives as what --------------------------------------------------------------------------------------------


@each
def test_rows_have_the_columns_of_their_table(store: Store, place: Place) -> None:
    body = b'{"poll":"p","choice":"a","voter":"v","time":"2026-01-01T13:30:00.123+01:00"}'
    entries = decoded(STREAMS["votes"], [body, b"poll=p&choice=b"], 7)
    assert store.persist(claim("votes", 2, first=7), entries) == Outcome(2, 0)
    assert store.persist(claim("votes", 2, first=7), entries) == Outcome(0, 0, again=True)
    found = place.read("votes", "received_at", "time", "poll", "choice", "voter", "batch", "seq")
    times = [row[:2] for row in found]
    assert [row[2:] for row in found] == [("p", "a", "v", 1, 7), ("p", "b", None, 1, 8)]
    assert [at.timestamp() * 1e6 for at, _ in times] == [NOON, NOON + 1_000_000]
    own = times[0][1]
    assert own == "2026-01-01T12:30:00.123Z" or own.timestamp() * 1e6 == NOON + 1_800_123_000


@each
def test_every_stream_and_value_is_stored(store: Store, place: Place) -> None:
    lines = b'm,a=b on=t,n=3i,u=18446744073709551615u,f=0.1,s="x" 1700000000123456789\nm old=-1 -1'
    store.persist(claim("metrics", 1), decoded(STREAMS["metrics"], [lines]))
    store.persist(claim("gps", 1), decoded(STREAMS["gps"], [b'{"device":"d","lat":1.5,"lon":2}']))
    body = b'{"message":"disk full","level":"ERROR","disks":[{"bytes":123456789012345678901234567890}]}'
    store.persist(claim("logs", 1), decoded(STREAMS["logs"], [body]))
    assert not outbox(store).late
    assert {row[:2] for row in place.read("metrics", "field", "type")} == {
        *(("on", "boolean"), ("n", "integer"), ("u", "unsigned"), ("f", "float"), ("s", "string"), ("old", "float")),
    }
    assert place.read("gps", "device", "lat", "altitude") == [("d", 1.5, None)]
    assert place.read("logs", "level", "service", "message") == [("error", None, "disk full")]


@each
def test_every_type_of_a_field_is_stored_as_in_a_table(place: Place) -> None:
    own = stream("parcels", store_contract.Parcel)
    with contextlib.closing(place.connect({"parcels": own})) as store:
        store.persist(claim("parcels", 2), decoded(own, [store_contract.PARCEL, store_contract.EMPTY_PARCEL]))
        assert not outbox(store).late
    first, second = place.read("parcels", *store_contract.STORED)
    natural = place.kind == "kafka"  # a row is JSON there
    assert (
        dict(zip(store_contract.STORED, first)) if natural else store_contract.plainly(first)
    ) == store_contract.STORED
    assert set(second) == {None}


@only("s3")
def test_times_of_metrics_in_an_object_store_have_their_nanoseconds_beside(store: Store, place: Place) -> None:
    store.persist(claim("metrics", 1), decoded(STREAMS["metrics"], [b"m a=1 1700000000123456789\nm b=1 -1"]))
    found = {field: (at.isoformat(), rest) for field, at, rest in place.read("metrics", "field", "time", "nanoseconds")}
    assert found == {
        "a": ("2023-11-14T22:13:20.123456+00:00", 789),
        "b": ("1969-12-31T23:59:59.999999+00:00", 999),
    }


@only("clickhouse")
def test_tables_of_clickhouse_have_the_types_that_its_users_expect(store: Store, place: Place) -> None:
    line = b"room,floor=2 temperature=21.5 1700000000123456789"
    store.persist(claim("metrics", 1), decoded(STREAMS["metrics"], [line]))
    table = f"`{place.rows.rpartition('/')[2]}`.metrics"
    types = dict(line.split("\t")[:2] for line in asked(place.engine, f"DESCRIBE TABLE {table}").splitlines())
    assert types["tags"] == "Map(LowCardinality(String), String)" and types["name"] == "LowCardinality(String)"
    assert types["time"] == r"DateTime64(9, \'UTC\')" and types["value"] == "Nullable(Float64)"
    assert asked(place.engine, f"SELECT time, value, tags['floor'] FROM {table}") == (
        "2023-11-14 22:13:20.123456789\t21.5\t2\n"
    )


@only("clickhouse")
def test_a_table_that_is_complete_needs_no_right_to_create_or_alter(place: Place) -> None:
    """The engine has no users, so the statements are looked at."""
    with contextlib.closing(place.connect()) as store:
        store.persist(*votes("a"))
    with contextlib.closing(place.connect()) as store:
        far: Any = outbox(store).destinations["votes"]
        with far.storing() as client:
            sent: list[str] = []
            client.command = sent.append
        far.client = None
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("clickhouse_connect.get_client", lambda **given: client)
            store.persist(*votes("b", first=2))
        assert sent == [] and place.choices() == ["a", "b"]


@only("kafka")
def test_the_rows_of_one_key_are_in_one_partition_in_their_order(store: Store, place: Place) -> None:
    bodies = [b'{"device":"d%d","lat":1,"lon":%d}' % (n % 7, n % 90) for n in range(70)]
    store.persist(claim("gps", 40), decoded(STREAMS["gps"], bodies[:40]))
    store.persist(claim("gps", 30, first=41), decoded(STREAMS["gps"], bodies[40:], 41))
    at = parse_rows(place.rows).rest
    assert at
    parts: dict[str, list[int]] = {}
    for row in witness.consumed(at.split("/")[2], f"{at.rpartition('/')[2]}.gps"):
        parts.setdefault(row["device"], []).append(row["seq"])
    assert {device: seqs == sorted(seqs) for device, seqs in parts.items()} == {f"d{n}": True for n in range(7)}
    assert sum(map(len, parts.values())) == 70


@only("kafka")
@pytest.mark.parametrize("group", [2, 1000])
def test_a_record_that_the_client_refuses_becomes_a_dead_letter_and_the_others_are_there_in_order(
    place: Place, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.contrib.destinations.outbox.GROUP_RECORDS", group)
    bodies = [b'{"message":"%s"}' % (b"x" * (3000 if n in (4, 7) else n)) for n in range(1, 11)]
    with contextlib.closing(place._replace(rows=f"{place.rows}?message.max.bytes=2000").connect()) as store:
        # a broker that takes three seconds for one answer is away; a worker then tries again
        outcome = store_contract.patiently(lambda: store.persist(claim("logs", 10), decoded(STREAMS["logs"], bodies)))
        assert (outcome.records, outcome.letters) == (8, 2)
        assert not outbox(store).late
        store.persist(claim("logs", 1, first=11), decoded(STREAMS["logs"], [b'{"message":"later"}'], 11))
        assert not outbox(store).late
    assert [len(message) for (message,) in place.read("logs", "message")] == [1, 2, 3, 5, 6, 8, 9, 10, 5]


@only("kafka")
def test_a_log_without_a_service_has_no_key(place: Place) -> None:
    from sluice.contrib.kafka import topics
    from sluice.streams.record import Log

    logs = [Log(message="a", service=name) for name in (None, "web")]
    rows = destination.Rows([body_with(n, NOON, b"", made) for n, made in enumerate(logs)])
    found = topics.Topics(place.rows, STREAMS["logs"]).encoded(1, rows)
    assert [key for key, _ in found] == [None, b"web"]


class Count(Record, kw_only=True):
    name: str
    number: int


@each
@pytest.mark.parametrize("group", [1, 1000])
def test_a_value_that_does_not_fit_becomes_a_dead_letter_and_the_others_are_stored(
    place: Place, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.contrib.destinations.outbox.GROUP_RECORDS", group)
    odd: Any = object()  # what a decoder of one's own may yield
    entries = [body_with(n, NOON, b"%d" % n, Count(name="n", number=odd if n == 5 else n)) for n in range(1, 10)]
    with contextlib.closing(place.connect({"counts": stream("counts", Count)})) as store:
        # a broker that takes three seconds for one answer is away; a worker then tries again
        store_contract.patiently(lambda: store.persist(claim("counts", 9), entries))
        assert not outbox(store).late
        assert [letter.seq for letter in find_letters(store)] == [5]
    assert [number for (number,) in place.read("counts", "number")] == [1, 2, 3, 4, 6, 7, 8, 9]


# --- Exactly once ----------------------------------------------------------------------------------------------------

PREPARED = """
from sluice.contrib.destinations import outbox
kind = type(store.row_destinations.destinations["votes"])
if "kafka:" in sys.argv[2]:
    from sluice.contrib.kafka import topics
    class Producer(topics.Producer):
        def commit_transaction(self, *given):
            super().commit_transaction(*given)
    topics.Producer = sends = Producer
    send = "commit_transaction"
elif "s3:" in sys.argv[2]:
    from sluice.contrib.destinations import delta as sends
    send = "write_deltalake"
else:
    sends, send = kind, "insert"
"""
MOMENTS = {
    "before the claim is noted": "outbox.Storing.note = die",
    "when it is noted": "die_after(outbox.Storing, 'note')",
    "when it is committed": "kind.publish = die",
    "before the rows are sent": "setattr(sends, send, die)",
    "when they are there, before anybody is told": "die_after(sends, send)",
    "when they are published": "die_after(kind, 'publish')",
    "when the note of the claim before is deleted": "store.persist(*store_contract.votes('before', first=100)); "
    "die_after(outbox, 'forget_notes')",
}


@each
@pytest.mark.parametrize("moment", MOMENTS)
def test_rows_are_there_once_after_a_kill(moment: str, place: Place) -> None:
    place.killed(f"{MOMENTS[moment]}; store.persist(*store_contract.votes('a', 'b'))")
    with contextlib.closing(place.connect()) as store:
        store.persist(*votes("a", "b"))
        outbox(store).publish(store)
        outbox(store).publish(store)
        assert place.choices() == ["a", "b"] + ["before"] * ("before'" in MOMENTS[moment])
        assert store.read_ledger("votes").bodies == len(place.choices())
        assert noted(store) == []


@each
def test_rows_are_there_once_if_the_ledger_is_in_postgresql(place: Place) -> None:
    with postgres_server() as server:
        place = place._replace(ledger=str(server.url))
        place.killed("kind.publish = die; store.persist(*store_contract.votes('a', 'b'))")
        with contextlib.closing(place.connect()) as store:
            harness.poll(lambda: store.persist(*votes("a", "b")) or True)
            outbox(store).publish(store)
            assert place.choices() == ["a", "b"] and noted(store) == []


@each
def test_a_worker_that_was_frozen_sends_what_another_one_has_published(place: Place) -> None:
    with contextlib.closing(place.connect()) as one, contextlib.closing(place.connect()) as other:
        one.persist(*votes("1"))
        frozen = outbox(one).destinations["votes"].publish

        def publish(name: str, carried: bytes | None) -> bool:
            outbox(other).publish(other)  # meanwhile
            return frozen(name, carried)

        outbox(one).destinations["votes"].publish = publish  # type: ignore[method-assign]
        one.persist(*votes("2", first=2))
        outbox(one).destinations["votes"].publish = frozen  # type: ignore[method-assign]
        if outbox(one).late:  # it could not know
            outbox(one).publish(one)
        one.persist(*votes("3", first=3))
        other.persist(*votes("4", first=4))
        assert place.choices() == ["1", "2", "3", "4"]


@each
def test_a_worker_leaves_the_new_rows_of_another_one_to_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.killed("kind.publish = die; store.persist(*store_contract.votes('a'))")
    with contextlib.closing(place.connect()) as store:
        monkeypatch.setattr(destination.Carried, "GRACE_SECONDS", 3600.0)
        outbox(store).publish(store)
        assert place.choices() == [] and noted(store)
        monkeypatch.setattr(destination.Carried, "GRACE_SECONDS", 0.0)
        outbox(store).publish(store)
        assert place.choices() == ["a"] and not noted(store)


@only("clickhouse")
def test_while_the_destination_is_away_a_stream_stores_nothing_more_and_others_go_on(place: Place) -> None:
    rows = parse_rows(f"votes={place.rows}")
    with contextlib.closing(
        open_store(place.ledger, STREAMS, row_destinations=open_destinations(rows, STREAMS))
    ) as store:
        store.persist(*votes("1"))
        place.engine.kill()
        assert store.persist(*votes("2", first=2)) == Outcome(1, 0)  # its note has the rows
        with pytest.raises(Unavailable, match="ClickHouse"):
            store.persist(*votes("3", first=3))
        with pytest.raises(Unavailable, match="ClickHouse"):
            outbox(store).publish(store)
        gps = decoded(STREAMS["gps"], [b'{"device":"d","lat":1,"lon":2}'])
        assert store.persist(claim("gps", 1), gps) == Outcome(1, 0)
        place.engine.start()
        assert store.persist(*votes("3", first=3)) == Outcome(1, 0)
        assert place.choices() == ["1", "2", "3"]


@only("kafka")
def test_without_a_broker_a_claim_is_postponed(place: Place) -> None:
    away = place._replace(rows=f"kafka://127.0.0.1:{harness.free_port()}")
    with contextlib.closing(away.connect()) as store:
        with pytest.raises(Unavailable, match="Kafka"):
            store.persist(*votes("1"))
        assert noted(store) == [] and store.read_ledger("votes").bodies == 0


@only("clickhouse")
def test_rows_are_not_inserted_again_beyond_the_window_of_tokens(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.contrib.destinations import clickhouse

    monkeypatch.setattr(clickhouse, "WINDOW_INSERTS", 2)
    place.killed("die_after(kind, 'publish'); store.persist(*store_contract.votes('a'))")
    with contextlib.closing(place.connect()) as store:
        monkeypatch.setattr(destination.Carried, "GRACE_SECONDS", 3600.0)
        for number in range(2, 12):
            store.persist(*votes(number, first=number))
        monkeypatch.setattr(destination.Carried, "GRACE_SECONDS", 0.0)
        outbox(store).publish(store)
    assert place.choices() == ["a", *map(str, range(2, 12))]


@each
def test_dead_letters_are_replayed_into_the_destination(store: Store, place: Place) -> None:
    store.persist(claim("votes", 2), decoded(STREAMS["votes"], [b"{", b"poll=p&choice=a"]))
    (letter,) = find_letters(store)
    mended = letter._replace(body=b"poll=p&choice=b")
    assert replay_letters(store, [mended], today, dry=True).stored == 1
    assert place.choices() == ["a"]
    assert replay_letters(store, [mended], today).stored == 1
    assert place.read("votes", "choice", "seq") == [("b", 1), ("a", 2)]
    assert find_letters(store) == [] and replay_letters(store, [mended], today).stored == 0


# --- Another destination -------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("back", [True, False], ids=["there and back", "another cell"])
def test_rows_that_wait_stay_for_their_destination(back: bool, place: Place, tmp: Path) -> None:
    """INGEST_ROWS names another destination while one is away; or another cell, with the same database, has another."""
    place.killed("kind.publish = die; store.persist(*store_contract.votes('a', 'b'))")
    others = [f"parquet://{tmp}/one", f"parquet://{tmp}/two", f"{place.rows}x"]
    if place.kind == "clickhouse":
        asked(place.engine, f"CREATE DATABASE {place.rows.rpartition('/')[2]}x")
    for number, rows in enumerate(others, 3):
        with contextlib.closing(place._replace(rows=rows).connect()) as other:
            waits = f"rows of votes wait for {re.escape(place.rows)}: INGEST_ROWS does not name it now"
            with pytest.raises(Unavailable, match=waits):
                outbox(other).publish(other)
            other.persist(*votes(f"{number}", first=number))
            outbox(other).tidy("votes", other)
            with contextlib.suppress(Unavailable):
                outbox(other).publish(other)
            (one,) = find_unpublished(other)
            assert (one.stream, one.address, one.bodies) == ("votes", place.rows, 2)
        if not back:
            break
    assert place.choices() == []
    with contextlib.closing(place.connect()) as store:
        outbox(store).publish(store)
        assert place.choices() == ["a", "b"] and noted(store) == [] == find_unpublished(store)


@only("s3")
def test_a_bucket_of_another_store_is_another_destination(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.killed("kind.publish = die; store.persist(*store_contract.votes('a'))")
    with monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with contextlib.closing(place.connect()) as other, pytest.raises(Unavailable, match="does not name it now"):
            outbox(other).publish(other)
    with contextlib.closing(place.connect()) as store:
        outbox(store).publish(store)
        assert place.choices() == ["a"]


# --- What a destination refuses for good ------------------------------------------------------------------------------

POISON = random.Random(1).randbytes(50_000).hex()


def refuse(place: Place, poison: bool) -> None:
    """Let the destination refuse votes for POISON; or no longer."""
    if place.kind == "clickhouse":
        table = f"`{place.rows.rpartition('/')[2]}`.votes"
        what = "ADD CONSTRAINT short CHECK length(choice) < 1000" if poison else "DROP CONSTRAINT short"
        asked(place.engine, f"ALTER TABLE {table} {what}")
    elif place.kind == "s3":
        from deltalake import DeltaTable

        alter = DeltaTable(f"{place.rows}/votes", storage_options=place.engine.env).alter
        if poison:
            alter.add_constraint({"short": f"choice <> '{POISON}'"})
        else:
            alter.drop_constraint("short")
    else:
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )  # fmt: skip

        size = ConfigEntry("max.message.bytes", "40000" if poison else "1000000")
        size.incremental_operation = AlterConfigOpType.SET
        topic = ConfigResource(ResourceType.TOPIC, f"{place.rows.rpartition('/')[2]}.votes", incremental_configs=[size])
        client = AdminClient({"bootstrap.servers": place.rows.split("/")[2]})
        for done in client.incremental_alter_configs([topic]).values():
            done.result()


@each
def test_a_row_that_is_refused_becomes_a_dead_letter_and_the_others_are_there(store: Store, place: Place) -> None:
    store.persist(*votes("first"))
    refuse(place, True)
    choices = [f"{n}" if n != 7 else POISON for n in range(2, 40)]
    assert store.persist(*votes(*choices, first=2)) == Outcome(38, 0)
    assert not outbox(store).late
    assert place.choices() == ["first", *(choice for choice in choices if choice != POISON)]
    (letter,) = find_letters(store)
    assert (letter.seq, letter.whole, letter.received) == (7, False, NOON + 5_000_000)
    assert letter.reason.startswith("rejected by the destination: ")
    assert store.read_ledger("votes")[:2] == (39, 1)
    assert replay_letters(store, [letter], today)[:4] == (0, 0, 1, {letter.reason: 1})
    store.persist(*votes("next", first=40))
    refuse(place, False)
    assert replay_letters(store, find_letters(store), today)[:3] == (1, 1, 0)
    assert place.read("votes", "choice", "seq")[6:8] == [(POISON, 7), ("8", 8)] and len(place.choices()) == 40
    outbox(store).publish(store)
    assert noted(store) == []


def records(name: str, body: bytes) -> list[Any]:
    return [*STREAMS[name].decode(body, store_contract.MOST)]


@each
def test_every_row_that_is_refused_comes_back_as_it_was(store: Store, place: Place) -> None:
    lines = b'm,a=b on=t,n=3i,u=18446744073709551615u,b=9007199254740993i,f=3,s="x" 1700000000123456789\nm new=-1'
    bodies = {
        "metrics": lines, "gps": b'{"device":"d","lat":1.5,"lon":2,"time":1}',
        "logs": b'{"message":"full","level":"ERROR","disks":[{"bytes":123456789012345678901234567890}],"at":null}',
        "votes": "poll=p&choice=\u00e4".encode(),
    }  # fmt: skip
    for name, body in bodies.items():
        far: Any = outbox(store).destinations[name]
        made = far.open(NOON)
        own = records(name, body)
        made.add(3, destination.Rows([body_with(7, NOON, body, *own)]))
        made.finish()
        made.close(delete=True)
        found = [*far.parts(made.carried)]
        assert [part[:3] for part in found] == [(3, 7, NOON)] * len(own)
        again = [record for *_, body in found for record in records(name, body)]
        for record in own:
            record.time = NOON * 1000 if record.time is None else record.time
        assert again == own, name
        halves = far.halves(made.carried)
        assert [part for _, half in halves for part in far.parts(half)] == (found if len(found) > 1 else [])


class Named(Record, kw_only=True):
    name: str
    number: str


@pytest.mark.parametrize("engine", ["s3", "clickhouse"], indirect=True)
def test_rows_of_a_field_with_another_type_wait(place: Place) -> None:
    with contextlib.closing(place.connect({"counts": stream("counts", Count)})) as store:
        store.persist(claim("counts", 1), [body_with(1, NOON, b"", Count(name="n", number=1))])
    with contextlib.closing(place.connect({"counts": stream("counts", Named)})) as store:
        for n in 2, 3:
            with contextlib.suppress(Unavailable):
                store.persist(claim("counts", 1, first=n), [body_with(n, NOON, b"", Named(name="n", number="007"))])
        with pytest.raises(Unavailable, match="column number .*has the type"):
            store.persist(claim("counts", 1, first=4), [body_with(4, NOON, b"", Named(name="n", number="007"))])
        assert find_letters(store) == []
    assert place.read("counts", "number") == [(1,)]


def test_a_delta_table_gets_no_value_of_another_type(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delta = pytest.importorskip("sluice.contrib.destinations.delta")
    monkeypatch.setattr(delta, "OPTIONS", None)

    def connected(kind: type[Record]) -> Store:
        own = {"counts": stream("counts", kind)}
        rows = Outbox({"counts": delta.Delta(f"file://{tmp}", own["counts"])})
        return open_store(f"sqlite:///{tmp}/ingest.db", own, row_destinations=rows)

    with contextlib.closing(connected(Count)) as store:
        store.persist(claim("counts", 1), [body_with(1, NOON, b"", Count(name="n", number=1))])
    with contextlib.closing(connected(Named)) as store:
        with pytest.raises(Unavailable, match="column number has the type int64, and the field string"):
            store.persist(claim("counts", 1, first=2), [body_with(2, NOON, b"", Named(name="n", number="007"))])
        assert find_unpublished(store) == [] == find_letters(store)
    with contextlib.closing(connected(Count)) as store:
        store.persist(claim("counts", 1, first=2), [body_with(2, NOON, b"", Count(name="n", number=2))])
    assert sorted(delta.DeltaTable(f"{tmp}/counts").to_pyarrow_table()["number"].to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    "ours, theirs, same",
    [
        ("LowCardinality(Nullable(String))", "LowCardinality(String)", True), ("String", "Enum8('a' = 1)", True),
        ("Nullable(Int64)", "UInt32", True), ("Int64", "String", False), ("Nullable(String)", "Nullable(Int64)", False),
        ("Float64", "Nullable(Decimal(9, 2))", False),
        ("Map(LowCardinality(String), String)", "Map(String, String)", True),
        ("DateTime64(6, 'UTC')", "DateTime", True), ("Bool", "String", False),
    ],
)  # fmt: skip
def test_a_column_of_clickhouse_is_known_by_its_kind(ours: str, theirs: str, same: bool) -> None:
    clickhouse = pytest.importorskip("sluice.contrib.destinations.clickhouse")
    kind = clickhouse.KINDS[clickhouse.bare_type(ours).partition("(")[0]]
    assert bool(clickhouse.re.fullmatch(kind, clickhouse.bare_type(theirs))) is same


@each
def test_an_object_without_rows_or_of_another_kind_holds_up_its_stream_for_a_while(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that an earlier version has noted."""
    far: Any = outbox(store).destinations["votes"]
    made = far.open(NOON)
    made.finish()
    made.close(delete=True)
    with store.transaction() as db:
        note_object(store, db, "votes", "00-1", far.address(), 0, made.carried)
        note_object(store, db, "gps", "2026-01-01T12/a", far.address(), 1, b"no table")
    with pytest.raises(Unavailable, match="rows of gps wait for .*: unexpected error: ValueError"):
        outbox(store).publish(store)
    store.persist(*votes("a"))
    assert place.choices() == ["a"]
    position = decoded(STREAMS["gps"], [b'{"device":"d","lat":1,"lon":2}'])
    with pytest.raises(Unavailable, match="unexpected error: ValueError"):
        store.persist(claim("gps", 1), position)
    monkeypatch.setattr("sluice.contrib.destinations.outbox.FAILING_SECONDS", 0.0)
    assert store.persist(claim("gps", 1), position) == Outcome(1, 0)
    assert place.read("gps", "device") == [("d",)]
    with pytest.raises(Unavailable, match="rows of gps wait for .*: its note is damaged"):
        outbox(store).publish(store)
    (left,) = find_unpublished(store)
    assert (left.stream, left.bodies) == ("gps", 1)


@each
def test_rows_on_which_the_client_of_a_destination_fails_become_dead_letters_in_the_end(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    far: Any = outbox(store).destinations["votes"]
    send, failing = far.send, True

    def fail(name: str, carried: bytes) -> None:
        if failing and any(seq == 3 for _, seq, *_ in far.parts(carried)):
            raise LookupError
        send(name, carried)

    far.send = fail
    store.persist(*votes("a", "b", "c", "d"))
    with pytest.raises(Unavailable, match="unexpected error: LookupError"):
        outbox(store).publish(store)
    monkeypatch.setattr("sluice.contrib.destinations.outbox.FAILING_SECONDS", 0.0)
    outbox(store).publish(store)
    assert place.choices() == ["a", "b", "d"]
    (letter,) = find_letters(store)
    assert (letter.seq, letter.reason) == (3, "rejected by the destination: unexpected error: LookupError")
    failing = False
    assert replay_letters(store, [letter], today)[:3] == (1, 1, 0)
    assert place.choices() == ["a", "b", "c", "d"]


# --- Merging, deletion by age ----------------------------------------------------------------------------------------


@only("s3")
def test_small_objects_are_merged_and_readers_find_each_row_once(store: Store, place: Place) -> None:
    from deltalake import DeltaTable

    for number in range(1, 13):
        store.persist(*votes(number, first=number))
        assert outbox(store).tidy("votes", store) is (number > 1)
        assert place.choices() == [str(n) for n in range(1, number + 1)]
    assert not outbox(store).tidy("votes", store)
    assert len(DeltaTable(f"{place.rows}/votes", storage_options=place.engine.env).file_uris()) == 1


@only("s3")
def test_a_stream_that_gains_a_field_gains_a_column(place: Place) -> None:
    class Longer(Count, kw_only=True):
        unit: str | None = None

    for seq, kind in enumerate((Count, Longer), 1):
        with contextlib.closing(place.connect({"counts": stream("counts", kind)})) as store:
            entry = body_with(seq, NOON, b"", kind(name="n", number=seq))
            assert store.persist(claim("counts", 1, first=seq), [entry]) == Outcome(1, 0)
            assert not outbox(store).late
    assert place.read("counts", "number", "unit") == [(1, None), (2, None)]


DAY = 86_400_000_000


@each
def test_old_rows_are_deleted_and_counted(store: Store, place: Place) -> None:
    if place.kind == "kafka":
        pytest.skip("a topic has a retention of its own")
    entries = decoded(STREAMS["votes"], [b"poll=p&choice=%d" % n for n in range(4)])
    days = [msgspec.structs.replace(body, received=body.received + (body.seq > 2) * 2 * DAY) for body in entries]
    store.persist(claim("votes", 4), days)
    assert count_overdue(store, "votes", NOON + DAY) == 2 and len(place.choices()) == 4
    store.expire_stream("votes", NOON + DAY)
    assert place.choices() == ["2", "3"]
    assert store.read_ledger("votes").deleted == 2
    store.expire_stream("votes", NOON + DAY)
    assert store.read_ledger("votes").deleted == 2


@only("clickhouse")
def test_rows_that_two_workers_delete_are_counted_once(place: Place) -> None:
    with contextlib.closing(place.connect()) as one, contextlib.closing(place.connect()) as other:
        one.persist(*votes("a", "b"))
        mine: Any = outbox(one).destinations["votes"]
        ask = mine.client.query

        def query(*given: Any, **more: Any) -> Any:
            found = ask(*given, **more)
            mine.client.query = ask
            other.expire_stream("votes", NOON + DAY)
            return found

        mine.client.query = query
        one.expire_stream("votes", NOON + DAY)
        assert one.read_ledger("votes").deleted == 2 and place.choices() == []


@only("clickhouse")
def test_rows_whose_deletion_was_cut_off_are_deleted_and_counted_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(place.connect()) as store:
        store.persist(*votes("a", "b"))
        place.killed(f"kind.drop = die; store.expire_stream('votes', {NOON + DAY})")
        store.expire_stream("votes", NOON + DAY)
        assert store.read_ledger("votes").deleted == 0 and place.choices() == []
        monkeypatch.setattr("sluice.contrib.destinations.clickhouse.LEFT_SECONDS", 0)
        store.expire_stream("votes", NOON + DAY)
        assert store.read_ledger("votes").deleted == 2
        assert asked(place.engine, f"SHOW TABLES FROM {place.rows.rpartition('/')[2]}").split() == ["votes"]


# --- The setting -----------------------------------------------------------------------------------------------------


def test_the_setting_names_destinations_of_streams() -> None:
    rows = parse_rows("s3://b/c, votes=kafka://a:1,b:2/own?partitions=8 gps=clickhouse://u:p@h:8123/d,logs=store")
    assert [rows.for_stream(name) for name in ("metrics", "votes", "gps", "logs")] == [
        *("s3://b/c", "kafka://a:1,b:2/own?partitions=8", "clickhouse://u:p@h:8123/d", None),
    ]


@pytest.mark.parametrize("url", ["s3:///b", "clickhouse://h/d", "clickhouse://h:1", "kafka://h", "kafka://h:1,"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(settings.SettingError, match="INGEST_ROWS=.* expected store"):
        check_rows(settings.load_settings({"INGEST_ROWS": url}).rows, STREAMS)


@pytest.mark.parametrize(
    ("url", "library"), [("s3://b/c", "deltalake"), ("clickhouse://u:secret@h:1/d", "clickhouse_connect")]
)
def test_a_library_that_is_not_installed_is_named_and_no_password(
    url: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for module in "delta", "clickhouse":
        monkeypatch.delitem(sys.modules, f"sluice.contrib.destinations.{module}", raising=False)
    with pytest.raises(settings.SettingError, match=f"needs {library}: bin/provision") as raised:
        open_destination(url, STREAMS["gps"])
    assert "secret" not in str(raised.value)


# --- The lines of docs/INTEGRATIONS.md, with the address of an engine ------------------------------------------------


@each
def test_a_worker_stores_with_the_line_of_the_manual(place: Place, tmp: Path) -> None:
    heading = {"s3": "Object stores", "clickhouse": "ClickHouse", "kafka": "Kafka"}[place.kind]
    line = next(line for line in samples(heading) if "INGEST_ROWS=" in line)
    words = dict(word.split("=", 1) for word in line.split() if "=" in word)
    env = {name: value for name, value in words.items() if not name.startswith("AWS_")}
    assert env["INGEST_ROWS"].partition(":")[0] == place.kind
    env["INGEST_ROWS"] = place.rows
    with harness.redis_server(tmp, appendfsync="no") as server:
        env |= {"INGEST_SPOOL": str(server.socket), **place.engine.env}
        push = ["redis-cli", "-s", str(server.socket), "RPUSH", "ingest:{votes}"]
        subprocess.run([*push, *(json.dumps({"poll": "p", "choice": str(n)}) for n in range(100))], check=True)
        command = [sys.executable, str(ROOT / "worker.py"), "burst"]
        done = subprocess.run(command, env=harness.environment(tmp, env), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(map(int, place.choices())) == [*range(100)]
