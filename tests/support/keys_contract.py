"""Keys: what is sent again is stored once, whatever is killed or stored at the same time.

A module with these tests has the fixture `url`, of an empty database: tests/store/test_keys.py.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from proving.harness import ROOT, poll
from sluice import settings
from sluice.base import times
from sluice.base.counters import Histogram
from sluice.base.daemon import Interrupted
from sluice.dead_letters import DeadLetters
from sluice.ops.replay import decode_letter
from sluice.spool.claim import Claim
from sluice.store import chores, expiry, transaction_limits
from sluice.store.decoding import decode_claim
from sluice.store.expiry import KeyExpiry
from sluice.store.questions import kept_seconds
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import RowDestinations, Store
from sluice.store.types import Unavailable
from sluice.streams import custom
from sluice.streams.built_in import load_streams, stream_rule
from sluice.streams.record import Limits, Record

pytestmark = pytest.mark.contract

NOON = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC in microseconds
READING = b'{"time":%d,"station":"a","value":1.0}'
POSITION = b'{"device":"a","lat":%b,"lon":1.0,"time":%d}'


class Order(Record, kw_only=True):
    id: str
    total: int | None = None
    at: datetime | None = None


class Reading(Record, kw_only=True):
    station: str
    value: float


ORDERS = custom.stream("orders", Order, unique=("id",))
READINGS = custom.stream("readings", Reading, unique=("station", "time"))


class Here:
    """A database, and a list of bodies that are claimed one claim after the other."""

    def __init__(
        self, url: str, unique: str = "1d", epoch: str = "e", row_destinations: RowDestinations | None = None
    ) -> None:
        config = settings.load_settings({"INGEST_UNIQUE": unique})
        own = {
            stream.name: stream._replace(rule=stream_rule(stream, *config.unique.for_stream(stream.name)))
            for stream in (ORDERS, READINGS)
        }
        self.streams = load_streams(config) | own
        self.url = url
        self.store: Store[Any] = open_store(url, self.streams, row_destinations=row_destinations)
        self.epoch, self.next = epoch, 1

    def claim(self, stream: str, *items: bytes, size: int = 0) -> Claim:
        first, self.next = self.next, self.next + len(items)
        return Claim(stream, f"{self.epoch}:{first}:{NOON}", first, len(items), size, [(first, NOON)])

    def put(self, stream: str, *items: bytes, limits: Limits = Limits(), size: int = 0) -> tuple[int, int]:  # noqa: B008
        """Store bodies of one claim, which may take several transactions: (records, letters)."""
        claim: Claim | None = self.claim(stream, *items, size=size)
        counts, records, letters = Histogram((1.0,)), 0, 0
        self.store.rules[stream] = self.streams[stream].rule  # tests change it
        while claim:
            bodies = [*items[-claim.count :]]
            group = decode_claim(claim, bodies, self.streams[stream], limits, counts, transaction_limits.TURN_SECONDS)
            stored = self.store.persist(claim.part(claim.first, group.end), group.bodies, limits)
            records, letters = records + stored.records, letters + stored.letters
            claim = claim.rest_from(group.end)
        return records, letters

    def rows(self, stream: str) -> int:
        with self.store.transaction(read=True) as db:
            return int(self.store.run_sql(db, f'SELECT count(*) FROM "{stream}"')[0][0])

    def replay(self, limits: Limits = Limits()) -> tuple[int, int, list[str]]:  # noqa: B008  # it cannot change
        """Letters that are stored now, and that are still dead with their reasons."""
        letters = [letter for some in DeadLetters(self.store).oldest_first([*self.streams], 100) for letter in some]
        stored, dead, reasons = 0, 0, list[str]()
        while letters:
            done = replay_letters(
                self.store, letters, lambda letter: decode_letter(self.streams, limits, letter), limits=limits
            )
            letters = letters[done.seen :]  # a transaction takes about a second
            stored, dead, reasons = stored + done.stored, dead + done.dead, [*reasons, *done.reasons]
        return stored, dead, reasons


def fix(device: str, time: int | None = 1_767_000_000) -> bytes:
    return json.dumps({"device": device, "lat": 1, "lon": 2} | ({"time": time} if time else {})).encode()


def keyed(key: str, body: bytes, path: str = "/votes", field: str = "Idempotency-Key") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{field}: {key}\r\n\r\n".encode() + body


LARGE = 1 << 16  # bytes of a body
VOTE = b'{"poll":"p","choice":"c"}'


def test_a_body_with_a_key_is_stored_once_whatever_it_says(url: str) -> None:
    here = Here(url)
    assert here.put("votes", VOTE, VOTE) == (2, 0)
    assert here.put("votes", keyed('"a"', VOTE), keyed("a", b'{"poll":"q","choice":"c"}'), keyed("b", VOTE)) == (2, 0)
    assert here.put("votes", keyed("a", VOTE), VOTE) == (1, 0)
    assert here.put("gps", keyed("a", fix("bus"), "/gps")) == (1, 0)  # of another stream
    ledger = here.store.read_ledger("votes")
    assert (ledger.bodies, ledger.duplicate, here.rows("votes")) == (7, 2, 5)


@pytest.mark.parametrize("unique", ["1d", "gps=1d/record"])
def test_what_two_named_api_keys_send_is_never_one(url: str, unique: str) -> None:
    here = Here(url, unique)

    def named(name: str, item: bytes) -> bytes:
        return item.replace(b"\r\n\r\n", f"\r\nSluice-Sender: {name}\r\n\r\n".encode(), 1)

    bus = b"POST /gps HTTP/1.1\r\nHost: x\r\n\r\n" + fix("bus")
    many = b"POST /gps HTTP/1.1\r\nHost: x\r\n\r\n[" + b",".join(fix(f"d{n}") for n in range(1_000)) + b"]"
    for stream, item, rows in ("gps", keyed("1", bus.partition(b"\r\n\r\n")[2], "/gps"), 1), ("gps", many, 1_000):
        sent = named("a", item), named("b", item), item
        assert here.put(stream, *sent, *sent) == (3 * rows, 0)
        assert here.put(stream, *sent) == (0, 0)
    if unique == "1d":  # else the record of this one is known
        assert here.put("gps", named("a", bus), named("a", bus), named("b", bus)) == (2, 0)
    line = b'{"id":"7"}'
    orders = b"POST /orders HTTP/1.1\r\nHost: x\r\n\r\n" + line
    assert here.put("orders", named("a", orders), named("b", orders), named("b", orders), line, orders) == (3, 0)


@pytest.mark.parametrize("field", ["webhook-id", "X-GitHub-Delivery", "x-github-delivery"])
def test_the_key_of_a_webhook_counts_unless_there_is_an_idempotency_key(url: str, field: str) -> None:
    here = Here(url)
    assert here.put("votes", keyed("w", VOTE, field=field), keyed("w", VOTE, field=field), keyed("w", VOTE)) == (2, 0)
    both = keyed("x", VOTE).replace(b"\r\n\r\n", b"\r\nwebhook-id: w\r\n\r\n")
    assert here.put("votes", both, keyed("w", VOTE, field=field)) == (1, 0)


@pytest.mark.parametrize("field", [b"webhook-id", b"X-GitHub-Delivery", b"ce-id"])
def test_keys_that_are_no_utf_8_are_not_one(url: str, field: bytes) -> None:
    here = Here(url)
    items = [
        b"POST /votes HTTP/1.1\r\nce-source: %b\r\n%b: %b\r\n\r\n%b" % (source, field, key, VOTE)
        for source, key in ((b"a", b"\xe8"), (b"a", b"\xe9"), (b"\xe9", b"x"), (b"\xe8", b"y"), (b"a", b"\xe8"))
    ]
    assert here.put("votes", *items) == (4, 0)


def test_a_cloud_event_is_known_by_source_and_id(url: str) -> None:
    here = Here(url)

    def event(source: str, id: str) -> bytes:
        return keyed(id, VOTE, field="ce-id").replace(b"\r\n\r\n", f"\r\nce-source: {source}\r\n\r\n".encode())

    assert here.put("votes", event("/a", "1"), event("/a", "1"), event("/b", "1"), event("/a", "2")) == (3, 0)
    assert here.put("votes", keyed("1", VOTE, field="ce-id"), keyed("1", VOTE, field="ce-id")) == (2, 0)  # no source


def test_telemetry_is_its_own_key_if_each_record_has_its_time(url: str) -> None:
    here = Here(url)
    pair = b"[" + fix("a") + b"," + fix("a") + b"]"
    assert here.put("gps", fix("a"), fix("a"), fix("a", None), fix("a", None)) == (3, 0)
    assert here.put("gps", pair, pair) == (2, 0)  # equal records of one body count
    half = b"[" + fix("a") + b"," + fix("b", None) + b"]"
    assert here.put("gps", half, half, fix("a")) == (4, 0)
    point = b'{"name":"m","value":%d,"time":%d}'
    twice, never = point % (1, 1_767_000_000), b'{"name":"m","value":1}'
    assert here.put("metrics", twice, twice, never, never) == (3, 0)
    assert here.store.read_ledger("gps").duplicate == 3


def test_a_large_body_is_its_own_key_only_if_its_last_record_has_a_time_too(url: str) -> None:
    here = Here(url)
    many = b",".join(fix(f"d{n}") for n in range(3_000))
    assert len(many) > LARGE
    assert here.put("gps", b"[" + many + b"]", b"[" + many + b"]", fix("a")) == (3_001, 0)
    assert here.put("gps", fix("a"), b"[" + many + b"]") == (0, 0)
    open_ended = b"[" + many + b"," + fix("z", None) + b"]"
    assert here.put("gps", open_ended) == here.put("gps", open_ended) == (3_001, 0)


def test_the_records_of_a_batch_that_was_grouped_anew_are_stored_once(url: str) -> None:
    here = Here(url, "gps=1d/record")
    a, b, c, untimed = fix("a"), fix("b"), fix("c"), fix("a", None)
    assert here.put("gps", b"[" + a + b"," + b + b"]", b"[" + b + b"," + c + b"," + untimed + b"]") == (4, 0)
    assert here.put("gps", b"[" + a + b"," + c + b"]", a, untimed, b'{"device":"x"}') == (1, 1)
    assert here.store.read_ledger("gps").duplicate == 2  # of which nothing is new
    many = b"[" + b",".join(fix(f"d{n}") for n in range(3_000)) + b"]"
    assert here.put("gps", many, many[:-1] + b"," + fix("z") + b"]", many) == (3_001, 0)
    assert here.store.read_ledger("gps").duplicate == 3


@pytest.mark.parametrize("unique", ["1d", "gps=1d/record"])
def test_a_body_without_rows_is_stored_and_is_no_duplicate(url: str, unique: str) -> None:
    here = Here(url, unique)
    nothing = b"[]", b" ", keyed("a", b"[]", "/gps"), keyed("a", b"[]", "/gps")
    assert here.put("gps", *nothing, fix("a"), fix("a"), b"[" + b" " * LARGE + b"]") == (1, 0)
    ledger = here.store.read_ledger("gps")
    assert (ledger.bodies, ledger.dead, ledger.duplicate, here.rows("gps")) == (7, 0, 1, 1)


def test_a_stream_of_ones_own_says_which_fields_make_records_one(url: str) -> None:
    here = Here(url)
    assert here.put("orders", b'{"id":"1","total":5}\n{"id":"2"}\n{"id":"1","total":6}', b'{"id":"3"}') == (3, 0)
    assert here.put("orders", b'{"id":"2"}', b'{"id":"4"}') == (1, 0)


def test_the_value_of_another_field_is_no_key_after_the_declaration_has_changed(url: str) -> None:
    here = Here(url)

    def declare(field: str) -> None:
        gps = custom.stream("gps", here.streams["gps"].record, unique=(field,))
        here.streams["gps"] = gps._replace(rule=stream_rule(gps, *settings.load_settings({}).unique.for_stream("gps")))

    declare("lat")
    assert here.put("gps", b'{"device":"a","lat":7,"lon":1}', b'{"device":"b","lat":7,"lon":2}') == (1, 0)
    declare("lon")
    assert here.put("gps", b'{"device":"c","lat":8,"lon":7}', b'{"device":"d","lat":9,"lon":7}') == (1, 0)
    declare("lat")
    assert here.put("gps", b'{"device":"e","lat":7,"lon":3}') == (0, 0)


@pytest.mark.parametrize("fields", [("at",), ("id", "at")])
def test_a_datetime_that_is_stored_alike_makes_records_one(url: str, fields: tuple[str, ...]) -> None:
    here = Here(url)
    orders = custom.stream("orders", Order, unique=fields)
    here.streams["orders"] = orders._replace(
        rule=stream_rule(orders, *settings.load_settings({}).unique.for_stream("orders"))
    )
    same = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00+01:00", "2026-01-01T12:00:00.000", "2026-01-01T06:30:00-05:30"
    assert here.put("orders", *(b'{"id":"1","at":"%b"}' % at.encode() for at in same)) == (1, 0)
    assert here.put("orders", b'{"id":"1","at":"2026-01-01T12:00:00+01:00"}') == (1, 0)
    assert here.put("orders", b'{"id":"1","at":"0001-01-01T00:00:00+01:00"}', b'{"id":"2"}') == (1, 1)  # no year in UTC
    with here.store.transaction(read=True) as db:
        found = here.store.run_sql(db, "SELECT at FROM orders WHERE at IS NOT NULL ORDER BY at")
    assert [at for (at,) in found] == ["2026-01-01T11:00:00.000000Z", "2026-01-01T12:00:00.000000Z"]


def test_two_zeros_are_stored_alike(url: str) -> None:
    here = Here(url)
    gps = custom.stream("gps", here.streams["gps"].record, unique=("lat", "lon"))
    here.streams["gps"] = gps._replace(rule=stream_rule(gps, *settings.load_settings({}).unique.for_stream("gps")))
    zeros = b'{"device":"a","lat":0.0,"lon":-0.0}', b'{"device":"b","lat":-0.0,"lon":0.0}'
    assert here.put("gps", *zeros) == (1, 0)


def test_values_that_are_stored_alike_are_one_in_keys_of_records(url: str) -> None:
    here = Here(url, "1d,gps=1d/record")
    unit = here.store.TIME_UNIT
    times = [NOON * 1000 + more for more in (0, unit // 2, unit - 1, unit)]
    here.put("readings", *(READING % time for time in times))
    here.put("gps", *(POSITION % (zero, time) for zero in (b"0.0", b"-0.0") for time in times))
    assert (here.rows("readings"), here.rows("gps")) == (2, 2)


@pytest.mark.parametrize("rules", [("1d", "gps=1d/record"), ("gps=1d/record", "1d")])
def test_a_change_of_the_rule_doubles_nothing_that_is_younger_than_its_window(url: str, rules: tuple[str, str]) -> None:
    bodies = fix("a"), b"[" + fix("b") + b"," + fix("c") + b"]"
    for unique in (*rules, *rules):
        Here(url, unique, epoch=f"e{time.time_ns()}").put("gps", *bodies)
    assert Here(url).rows("gps") == 3


def test_without_a_window_nothing_is_one(url: str) -> None:
    here = Here(url, "off")
    assert here.put("votes", keyed("a", VOTE), keyed("a", VOTE)) == (2, 0)
    assert here.put("gps", fix("a"), fix("a")) == (2, 0)
    assert here.put("orders", b'{"id":"1"}', b'{"id":"1"}') == (2, 0)


def test_a_dead_body_has_its_key_and_its_replay_is_no_duplicate_of_it(url: str) -> None:
    here = Here(url)
    assert here.put("votes", keyed("a", b'{"poll":"p"}'), keyed("a", VOTE)) == (0, 1)
    assert here.replay() == (0, 1, ["missing: choice"])
    with here.store.transaction() as db:
        body = here.store.run_sql(db, "SELECT body FROM dead_letters")[0][0]
        here.store.run_sql(db, "UPDATE dead_letters SET body = ?", (bytes(body).replace(b'"p"', b'"p","choice":"c"'),))
    assert here.replay() == (1, 0, [])
    assert here.put("votes", keyed("a", VOTE)) == (0, 0)
    assert here.rows("votes") == 1


def test_a_letter_whose_key_was_stored_meanwhile_says_so(url: str) -> None:
    here = Here(url)
    assert here.put("votes", keyed("a", b'{"poll":"p"}')) == (0, 1)
    with here.store.transaction() as db:  # as after the window
        here.store.run_sql(db, "DELETE FROM batches_keys")
    assert here.put("votes", keyed("a", VOTE)) == (1, 0)
    stored, dead, (reason,) = here.replay()
    assert (stored, dead) == (0, 1) and reason.startswith("duplicate: ")
    assert here.rows("votes") == 1


@pytest.mark.parametrize(("unique", "partly"), [("1d", False), ("1d", True), ("gps=1d/record", False)])
def test_of_two_copies_that_are_dead_in_one_batch_a_replay_stores_one(url: str, unique: str, partly: bool) -> None:
    here = Here(url, unique)
    gps = here.streams["gps"]

    def broken(item: bytes, limits: Limits) -> Any:
        raise RuntimeError

    here.streams["gps"] = gps._replace(decode=broken)
    body = b"[" + fix("a") + b"," + (b'{"device":"x"}' if partly else fix("b")) + b"]"
    assert here.put("gps", body, body) == (0, 2)
    here.streams["gps"] = gps
    stored, dead, reasons = here.replay()
    assert here.rows("gps") == (1 if partly else 2)
    assert (stored, dead) == ((0, 2) if partly else (1, 1))
    assert any(reason.startswith("duplicate: ") for reason in reasons)
    here.replay()
    assert here.rows("gps") == (1 if partly else 2)


def test_a_replay_reads_the_content_of_a_compressed_body_to_the_limit_that_is_set(url: str) -> None:
    here, limits = Here(url), Limits(inflated=16 << 20)
    gps = here.streams["gps"]

    def broken(item: bytes, limits: Limits) -> Any:
        raise RuntimeError

    here.streams["gps"] = gps._replace(decode=broken)
    body = gzip.compress(b"[" + b" " * (9 << 20) + fix("a") + b"]")
    assert here.put("gps", body, body, limits=limits) == (0, 2)
    here.streams["gps"] = gps
    assert here.replay(limits)[:2] == (1, 1)
    assert here.rows("gps") == 1


DYING = """
import os, signal, sys
sys.path[:0] = [{root!r}, {tests!r}]
from support.keys_contract import Here, fix
here = Here({url!r}, epoch="killed")
def die(*given): os.kill(os.getpid(), signal.SIGKILL)
here.store.add_records = die  # behind the keys and the rows, before the commit
here.put("gps", fix("a"))
"""


def test_a_key_is_not_kept_without_its_rows_when_the_worker_is_killed(url: str) -> None:
    Here(url)
    program = DYING.format(root=str(ROOT), tests=str(ROOT / "tests"), url=url)
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    here = Here(url)
    assert here.put("gps", fix("a"), fix("a")) == (1, 0)


def test_copies_that_two_workers_store_at_the_same_time_are_stored_once(url: str) -> None:
    first, second = Here(url, epoch="one"), Here(url, epoch="two")
    bodies = [fix(f"d{n}") for n in range(500)]
    with first.store.transaction():  # both are open and their tables are there
        pass
    done: list[int] = []

    def run(here: Here) -> None:
        def store() -> bool:
            done.append(here.put("gps", *bodies)[0])
            return True

        poll(store, retried=(Unavailable,))  # one of them may have to wait too long

    threads = [threading.Thread(target=run, args=(here,)) for here in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 500]
    assert first.rows("gps") == 500


@pytest.mark.parametrize("limit", [1, 5_000, transaction_limits.HELD_BYTES])
def test_bodies_are_stored_in_their_order_however_many_are_held_at_once(
    url: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_limits, "HELD_BYTES", limit)
    here = Here(url)
    several = [b"[%s]" % b",".join(fix(f"d{n}") for n in range(at, at + 3)) for at in range(0, 60, 3)]
    single = [fix(f"d{n}") for n in range(60, 80)]
    bodies = [body for pair in zip(several, single) for body in pair]
    assert here.put("gps", *bodies[:20], bodies[0], bodies[1], *bodies[20:]) == (80, 0)
    assert here.put("gps", *bodies[30:], *bodies, gzip.compress(bodies[7]), fix("new")) == (1, 0)
    with here.store.transaction(read=True) as db:
        rows = here.store.run_sql(db, "SELECT seq, device FROM gps")  # in the order of the table
    assert sorted(device for _, device in rows) == sorted(f"d{n}" for n in range(80)) + ["new"]
    assert [seq for seq, _ in rows] == sorted(seq for seq, _ in rows)


def test_all_keys_of_a_claim_are_one_statement_before_its_rows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(url)
    assert here.put("gps", fix("first")) == (1, 0)
    put_keys: Any = here.store.put_keys
    insert, seen = here.store.insert_bodies, list[object]()

    def count_keys(*given: Any) -> Any:
        pieces = [*given[-1]]
        seen.append(sum(map(len, pieces)))
        return put_keys(*given[:-1], iter(pieces))

    def note_rows(*given: Any) -> Any:
        seen.append("rows")
        return insert(*given)

    monkeypatch.setattr(here.store, "put_keys", count_keys)
    monkeypatch.setattr(here.store, "insert_bodies", note_rows)
    several = [b"[" + fix(f"a{n}") + b"," + fix(f"b{n}") + b"]" for n in range(700)]
    assert here.put("gps", *several, *(fix(f"c{n}") for n in range(700)), keyed("k", fix("d"), "/gps")) == (2_101, 0)
    assert seen == [1_401, "rows"]


def test_keys_that_are_put_in_pieces_are_those_of_their_bodies(url: str) -> None:
    here = Here(url)
    at = 1_767_268_800
    bodies = [fix(f"d{n}", at + n * 7 % 900) for n in range(1_300)]
    assert here.put("gps", *bodies[600:700]) == (100, 0)
    assert here.put("gps", *bodies, *bodies[::3]) == (1_200, 0)
    assert here.put("gps", *reversed(bodies), fix("new")) == (1, 0)
    with here.store.transaction(read=True) as db:
        assert here.store.run_sql(db, "SELECT count(*) FROM batches_keys") == [(1_301,)]
        rows = here.store.run_sql(db, "SELECT device FROM gps ORDER BY batch, seq")
        assert rows == [(f"d{n}",) for n in (*range(600, 700), *range(600), *range(700, 1_300))] + [("new",)]


def test_a_rejected_row_takes_neither_the_others_nor_their_keys_along(url: str, tmp_path: Path) -> None:
    here = Here(url)
    refuse_bad(here)
    assert here.put("gps", fix("a"), fix("bad"), fix("b")) == (2, 1)
    assert here.put("gps", fix("b"), fix("bad"), fix("a")) == (0, 0)
    assert here.replay()[:2] == (0, 1)


def test_a_rejected_record_of_several_is_replayed_as_its_senders(url: str) -> None:
    here = Here(url)
    accept_bad = refuse_bad(here)
    body = b"[" + fix("a") + b"," + fix("bad") + b"," + fix("bad", None) + b"]"
    named = b"POST /gps?device=x HTTP/1.1\r\nSluice-Sender: acme\r\n\r\n" + body
    assert here.put("gps", named) == (1, 2)
    with here.store.transaction() as db:
        here.store.run_sql(db, accept_bad)
    assert here.replay()[:2] == (2, 0)
    with here.store.transaction(read=True) as db:
        rows = here.store.run_sql(db, "SELECT device, sender FROM gps ORDER BY device")
    assert [tuple(row) for row in rows] == [("a", "acme"), ("bad", "acme"), ("bad", "acme")]


def refuse_bad(here: Here) -> str:
    """Have the database refuse rows of the device "bad"; the SQL that has it accept them."""
    here.put("gps", fix("first"))
    with here.store.transaction() as db:
        here.store.run_sql(db, "DELETE FROM gps")
        if here.url.startswith("sqlite"):
            here.store.run_sql(
                db, "CREATE TRIGGER t BEFORE INSERT ON gps WHEN new.device = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            return "DROP TRIGGER t"
        here.store.run_sql(db, "ALTER TABLE gps ADD CONSTRAINT t CHECK (device <> 'bad')")
        return "ALTER TABLE gps DROP CONSTRAINT t"


def test_a_body_on_which_the_decoder_fails_is_buried_and_the_others_are_stored(url: str) -> None:
    here = Here(url)
    gps = here.streams["gps"]

    def decode(item: bytes, limits: Limits) -> Any:
        if b"odd" in item:
            raise RuntimeError
        return gps.decode(item, limits)

    here.streams["gps"] = gps._replace(decode=decode)
    for _ in range(2):
        here.put("gps", *(fix(f"odd{n}" if n % 2 else f"d{n}") for n in range(40)))
    assert (here.rows("gps"), here.store.read_ledger("gps").dead) == (20, 40)


def test_an_interrupt_while_keys_are_put_stores_nothing_and_leaves_the_connection_usable(url: str) -> None:
    here = Here(url)
    items = [fix("car", 1_767_000_000 + n) for n in range(1_001)]
    decode, seen = here.streams["gps"].decode, []

    def interrupted(item: bytes, limits: Limits) -> Any:
        seen.append(item)
        if len(seen) == len(items):
            raise Interrupted
        return decode(item, limits)

    here.streams["gps"] = here.streams["gps"]._replace(decode=interrupted)
    with pytest.raises(Interrupted):
        here.put("gps", *items)
    assert len(seen) == len(items)
    here.next = 1
    assert here.put("gps", *items) == (len(items), 0)
    assert here.put("gps", *items) == (0, 0)
    assert here.rows("gps") == len(items)


def test_copies_within_a_piece_of_keys_across_pieces_and_in_another_claim_are_stored_once(url: str) -> None:
    here = Here(url)
    items = [fix("car", 1_767_000_000 + n) for n in range(510)]
    assert here.put("gps", *items[:7]) == (7, 0)
    assert here.put("gps", *items, *items, items[-1]) == (len(items) - 7, 0)
    assert here.rows("gps") == len(items)


def test_old_keys_are_deleted_in_steps_and_are_as_old_as_their_rows_whatever_the_clock_of_redis_says(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_limits, "SEARCH_ROWS", 10)
    here = Here(url)
    assert here.put("gps", *(fix(f"d{n}") for n in range(35))) == (35, 0)
    assert here.put("votes", keyed("a", VOTE)) == (1, 0)
    old, now = KeyExpiry({"gps": 60, "votes": 120}), int(time.time() * 1e6)
    while old.delete_old(here.store, now):
        pass
    assert here.put("gps", fix("d3")) == (0, 0)
    now, steps = now + 90_000_000, 1
    while old.delete_old(here.store, now):
        steps += 1
    assert steps == 4
    assert here.put("votes", keyed("a", VOTE)) == (0, 0)
    assert here.put("gps", fix("d3")) == (1, 0)


def test_a_key_is_kept_for_its_window_though_the_clock_was_behind_when_it_was_put(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "EXPIRE_PART", 1e9)  # no time between two passes
    here, ages, right = Here(url), {"votes": 86_400, "gps": 7 * 86_400}, time.time()

    def expire(at: float) -> None:
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: at)
            for old in KeyExpiry(ages), KeyExpiry({"votes": 86_400}):  # of another cell
                while old.step(here.store):
                    pass

    expire(right)
    for behind in 3_600, 40 * 86_400:
        key = f"k{behind}"
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: right - behind)  # noqa: B023  # it is called in this pass
            assert here.put("votes", keyed(key, VOTE)) == (1, 0)
        expire(right)
        assert here.put("votes", keyed(key, VOTE)) == (0, 0)


@pytest.mark.parametrize("ours", [{"gps": 60}, {"gps": 60, "votes": 60}])
def test_keys_are_kept_for_the_longest_window_of_all_cells(url: str, ours: dict[str, int]) -> None:
    here, now = Here(url), int(time.time() * 1e6)
    theirs = {"settings": {"unique": {"votes": 3600, "orders": 60}}}
    here.store.publish_figures("theirs", theirs, [])
    assert here.put("votes", keyed("a", VOTE)) == (1, 0)
    old = KeyExpiry(ours)
    for seconds, new in (1800, 0), (3700, 1):
        while old.delete_old(here.store, now + seconds * 1_000_000):
            pass
        assert here.put("votes", keyed("a", VOTE)) == (new, 0)


def test_without_a_rule_the_keys_from_before_are_deleted(url: str) -> None:
    here = Here(url)
    assert here.put("gps", fix("a")) == (1, 0)
    here = Here(url, unique="off")
    (old,) = [
        each
        for each in chores.worker_chores({"gps": here.streams["gps"]}, settings.load_settings({}).keep, None)
        if "keys" in each.name
    ]
    keys = old.step.__self__  # type: ignore[attr-defined]
    now = int(time.time() * 1e6)
    for seconds, left in (86_000, 1), (86_500, 0):
        while keys.delete_old(here.store, now + seconds * 1_000_000):
            pass
        with here.store.transaction(read=True) as db:
            assert here.store.run_sql(db, "SELECT count(*) FROM batches_keys", ())[0][0] == left


def test_beyond_a_number_the_oldest_keys_of_this_stream_go(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_limits, "MAX_KEYS", 10)
    here = Here(url)
    assert here.put("votes", keyed("a", VOTE)) == (1, 0)
    assert here.put("gps", *(fix(f"d{n}") for n in range(40))) == (40, 0)
    old = KeyExpiry({"gps": 400, "votes": 400})
    now = int(time.time() * 1e6) + 150_000_000
    assert not old.delete_old(here.store, now)  # a pass counts them
    assert not old.delete_old(here.store, now)  # the next one keeps those of the last 100 seconds
    assert here.put("gps", fix("d3")) == (1, 0)
    assert here.put("votes", keyed("a", VOTE)) == (0, 0)


def test_a_worker_that_lives_for_a_moment_looks_at_no_keys_soon_after_all_were_looked_at(url: str) -> None:
    here, now = Here(url), int(time.time() * 1e6)
    assert here.put("votes", keyed("a", VOTE)) == (1, 0)

    def keys_left() -> int:
        with here.store.transaction(read=True) as db:
            count: int = here.store.run_sql(db, "SELECT count(*) FROM batches_keys", ())[0][0]
        return count

    for seconds, left in (995, 1), (1_004, 1), (1_020, 0):
        while KeyExpiry({"votes": 1_000}).delete_old(here.store, now + seconds * 1_000_000):
            pass
        assert keys_left() == left


def test_the_end_of_a_burst_looks_at_no_keys_soon_after_the_burst_looked_at_all(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, looks = Here(url), list[bytes]()
    assert here.put("votes", keyed("a", VOTE)) == (1, 0)
    first, second = KeyExpiry({"votes": 1_000}), KeyExpiry({"votes": 1_000})  # of two lives
    look, uptime = here.store.expire_keys, times.uptime_seconds()

    def expire_keys(above: bytes, before: Mapping[str, int], recent: int) -> object:
        looks.append(above)
        return look(above, before, recent)

    monkeypatch.setattr(here.store, "expire_keys", expire_keys)
    for later, keys, passes in (0, first, 1), (0, second, 1), (9, second, 1), (9, first, 1), (11, first, 2):
        monkeypatch.setattr(times, "uptime_seconds", lambda: uptime + later)  # noqa: B023  # it is called in this pass
        while keys.step(here.store):
            pass
        assert len(looks) == passes


def test_workers_that_live_for_a_moment_delete_old_keys_and_those_beyond_a_number(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes one step, from where the last one was."""
    monkeypatch.setattr(transaction_limits, "SEARCH_ROWS", 10)
    monkeypatch.setattr(transaction_limits, "MAX_KEYS", 20)
    monkeypatch.setattr(expiry, "NOTE_SECONDS", 0.0)
    monkeypatch.setattr(expiry, "EXPIRE_PART", 1_000)  # less than a second between two passes
    here, now = Here(url), int(time.time())

    def put(name: str, at: int) -> None:
        with here.store.transaction() as db:
            here.store.run_sql(
                db, "INSERT INTO batches_keys (key, stream, at, batch) VALUES (?, 'votes', ?, 0)", (name.encode(), at)
            )

    for n in range(45):
        put(f"old {n:03}", now - 500)
        put(f"new {n:03}", now - n)
    for _ in range(60):
        KeyExpiry({"votes": 400}).delete_old(here.store, now * 1_000_000)
    with here.store.transaction(read=True) as db:
        left = [row for (row,) in here.store.run_sql(db, "SELECT at FROM batches_keys ORDER BY at")]
    assert 10 <= len(left) <= 20
    assert min(left) >= now - 45
    assert kept_seconds(here.store, "votes", 400) < 100
