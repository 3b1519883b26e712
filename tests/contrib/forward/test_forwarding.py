"""Rows that are posted on: each is taken at least once, under one key, whatever the receiver does."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from email.utils import formatdate
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from proving.harness import poll, short_tmp
from proving.receiver import Post, Receiver, Reply, receiving
from sluice.contrib.destinations.register import parse_rows
from sluice.contrib.destinations.registry import open_destinations
from sluice.contrib.forward import program, schedule
from sluice.contrib.forward.destination import ENDED, ORDERED, Forward, place_of
from sluice.contrib.forward.program import Forwarder
from sluice.contrib.forward.signing import key_of, signatures
from sluice.store.questions import find_letters, find_unpublished
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import Store
from sluice.store.types import Outcome
from sluice.streams.built_in import STREAMS
from sluice.streams.custom import stream
from sluice.streams.record import Record
from sluice.streams.registry import Stream
from support.sqlite_store import SqliteStore
from support.store_contract import body_with, claim, decoded, today, votes

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Request(Record, kw_only=True):
    """As the record of `hooks`."""

    hook: str
    path: str
    query: str | None
    head: dict[str, str]
    body: str | None
    raw: str | None


REQUESTS: Stream = stream("requests", Request)


class Cell:
    """A database, a store of a worker, and the program `forward`, which runs in a thread between `start` and `stop`."""

    def __init__(self, tmp: Path, rows: str) -> None:
        self.database = SqliteStore(tmp)
        self.streams = {**STREAMS, "requests": REQUESTS}
        self.row_destinations: Any = open_destinations(parse_rows(rows), self.streams)
        self.store: Store[Any] = open_store(self.database.url, self.streams, row_destinations=self.row_destinations)
        self.batch = count(1)
        self.running: tuple[Forwarder, threading.Thread] | None = None

    def store_votes(self, *choices: object) -> None:
        first = self.database.ask("SELECT coalesce(max(last), 0) + 1 FROM batches_ranges")[0][0]
        assert self.store.persist(*votes(*choices, first=first)) == Outcome(len(choices), 0)

    def start(self) -> None:
        destinations = [each for each in self.row_destinations.destinations.values() if isinstance(each, Forward)]
        forwarder = Forwarder(lambda: open_store(self.database.url, self.streams, make=False), destinations)
        thread = threading.Thread(target=forwarder.run, daemon=True)
        thread.start()
        self.running = forwarder, thread

    def stop(self) -> None:
        assert self.running
        forwarder, thread = self.running
        self.running = None
        forwarder.stop()
        thread.join()
        if forwarder.store:
            forwarder.store.close()

    def waiting(self) -> list[tuple]:
        return self.database.ask("SELECT bodies, reason FROM batches_objects")

    def carried(self) -> int:
        return int(self.database.ask("SELECT count(*) FROM batches_carried")[0][0])

    def wait_for(self, until: Callable[[], object], what: str) -> None:
        poll(until, 60, what, 0.01)

    def drained(self) -> bool:
        return self.carried() == 0

    def letters(self) -> list[tuple]:
        return self.database.ask("SELECT reason, body FROM dead_letters ORDER BY id")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that a test has no time for."""
    monkeypatch.setattr(schedule, "ROW_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(schedule, "PAUSE_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(program, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(program, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(program, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(program, "TELL_SECONDS", 0.01)


@contextlib.contextmanager
def cell(receiver: Receiver, options: str = "", before: str = "votes=") -> Iterator[Cell]:
    with short_tmp() as tmp:
        made = Cell(tmp, f"{before}{receiver.url}{options}")
        try:
            yield made
        finally:
            if made.running:
                made.stop()
            made.store.close()


def choices(posts: list[Post]) -> list[str]:
    return [json.loads(post.body)["choice"] for post in posts]


def test_each_row_is_posted_as_json_under_a_key_of_its_own() -> None:
    with receiving() as receiver, cell(receiver) as one:
        one.store_votes("a", "b", "c")
        assert one.waiting() == [(3, "")]
        one.start()
        one.wait_for(one.drained, "all are posted")
        assert one.waiting() == []
        assert sorted(receiver.keys) == ["votes:1", "votes:2", "votes:3"]
        first = min(receiver.taken, key=lambda post: post.key)
        assert json.loads(first.body) == {
            "received_at": "2026-01-01T12:00:00.000Z", "time": "2026-01-01T12:00:00.000000Z",
            "poll": "p", "choice": "a", "voter": None, "batch": 1, "seq": 1, "sender": "",
        }  # fmt: skip
        assert first.path == "/in"
        assert first.fields["content-type"] == "application/json"
        assert first.fields["user-agent"] == "Sluice"


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(Reply(500), id="500"),
        pytest.param(Reply(404), id="404"),
        pytest.param(Reply(302, (("Location", "/elsewhere"),)), id="a redirect"),
        pytest.param(Reply(cut=True), id="taken, and cut"),
        pytest.param(Reply(429, (("Retry-After", "0"),)), id="429"),
    ],
)
def test_a_row_is_posted_again_until_it_is_taken(bad: Reply) -> None:
    seen: Counter[str] = Counter()

    def rule(post: Post, number: int) -> Reply:
        seen[post.key] += 1
        return bad if seen[post.key] <= 2 else Reply()

    with receiving(rule) as receiver, cell(receiver) as one:
        one.store_votes(*range(20))
        one.start()
        one.wait_for(one.drained, "all are posted")
        assert set(receiver.keys) == {f"votes:{number}" for number in range(1, 21)}
        assert {post.path for post in receiver.posts} == {"/in"}
        assert len({(post.key, post.body) for post in receiver.posts}) == 20  # a key has one body
        assert set(seen.values()) == {3}
        assert (one.waiting(), one.letters()) == ([], [])


def test_what_waits_is_told_with_the_last_answer_and_posted_when_the_receiver_is_back() -> None:
    with receiving() as receiver:
        pass
    with cell(receiver) as one:
        one.store_votes("a", "b")
        one.start()
        one.wait_for(lambda: one.waiting() == [(2, "no answer: Connection refused")], "the reason")
        (told,) = find_unpublished(one.store)
        assert (told.stream, told.address, told.bodies) == ("votes", f"http://127.0.0.1:{receiver.port}/…", 2)
        one.store_votes("c")  # the stream is stored meanwhile
        assert one.waiting()[0][0] == 3
        with receiving(port=receiver.port) as back:
            one.wait_for(one.drained, "all are posted")
            assert sorted(back.keys) == ["votes:1", "votes:2", "votes:3"]


def test_410_makes_a_dead_letter_with_the_answer_and_replay_posts_it_under_the_same_key() -> None:
    def rule(post: Post, number: int) -> Reply:
        return Reply(410) if number < 1 else Reply()

    with receiving(rule) as receiver, cell(receiver, "#order=poll") as one:
        one.store_votes("a", "b")
        one.start()
        one.wait_for(one.drained, "all have ended")
        assert receiver.keys == ["votes:2"]
        ((reason, body),) = one.letters()
        assert reason == f"{ENDED}answered 410 Gone [votes:1]"
        assert json.loads(body)["choice"] == "a"
        assert replay_letters(one.store, find_letters(one.store), today).stored == 1
        one.wait_for(lambda: len(receiver.keys) == 2, "the letter is posted")
        assert receiver.keys == ["votes:2", "votes:1"]
        one.wait_for(one.drained, "it is deleted")
        assert one.letters() == []


def test_a_letter_of_a_batch_that_was_folded_is_posted_under_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 0)
    monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 1)
    with receiving(lambda post, number: Reply(200 if number else 410)) as receiver, cell(receiver) as one:
        one.store_votes("a")
        one.store_votes("b")
        assert one.store.fold_batches()
        one.start()
        one.wait_for(one.drained, "all have ended")
        ((reason, _),) = one.letters()
        (other,) = receiver.keys
        assert replay_letters(one.store, find_letters(one.store), today).stored == 1
        one.wait_for(lambda: len(receiver.keys) == 2, "the letter is posted")
        assert receiver.keys[1] in reason
        assert {*receiver.keys} == {"votes:1", "votes:2"}


def test_a_row_that_is_not_taken_for_too_long_is_a_dead_letter() -> None:
    with receiving(lambda post, number: Reply(500)) as receiver, cell(receiver, "#age=1s") as one:
        one.store_votes(*range(30))
        one.start()
        one.wait_for(one.drained, "all have ended")
        assert len(one.letters()) == 30
        assert {reason.partition(" [")[0] for reason, _ in one.letters()} == {
            f"{ENDED}not taken in 1 s: answered 500 Internal Server Error"
        }
        assert one.waiting() == []


@pytest.mark.parametrize("form", ["seconds", "a date"])
def test_retry_after_is_waited_for(form: str) -> None:
    asked: list[float] = []

    def rule(post: Post, number: int) -> Reply:
        if number:
            return Reply()
        asked.append(time.time())
        return Reply(503, (("Retry-After", "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)),))

    with receiving(rule) as receiver, cell(receiver, "#parallel=1") as one:
        one.store_votes("a", "b")
        one.start()
        one.wait_for(one.drained, "all are posted")
        assert receiver.posts[1].at - receiver.posts[0].at >= 1.0


def test_rows_of_one_poll_are_posted_in_their_order_whatever_fails() -> None:
    def rule(post: Post, number: int) -> Reply:
        return (Reply(500), Reply(), Reply(cut=True), Reply())[number % 4]

    with receiving(rule) as receiver, cell(receiver, "#order=poll&parallel=4") as one:
        first = [b'{"poll":"p%d","choice":"%d"}' % (number % 3, number) for number in range(40)]
        one.store.persist(claim("votes", 40), decoded(STREAMS["votes"], first))
        one.start()
        one.wait_for(one.drained, "all are posted")
        for poll_ in "p0", "p1", "p2":
            rows = [json.loads(post.body) for post in receiver.posts if json.loads(post.body)["poll"] == poll_]
            numbers = [int(row["choice"]) for row in rows]
            assert numbers == sorted(numbers)
            assert set(numbers) == set(range(int(poll_[1]), 40, 3))


def test_a_request_is_posted_in_order_or_in_parallel_as_the_line_of_its_hook_says() -> None:
    """The gateway has noted the order in the head of the item; without that, INGEST_ROWS says it."""

    def given(seq: int, hook: str, order: str) -> Any:
        item = f"POST /hooks/{hook} HTTP/1.1\r\n{order and f'Sluice-Order: {order}'}\r\n\r\nSluice-Order: x\r\n"
        row = Request(hook=hook, path="", query=None, head={}, body=str(seq), raw=None)
        return body_with(seq, 0, item.encode(), row)

    orders = {"a": "", "b": "hook", "c": "none"}
    for option, ordered in ("#parallel=2", {"b"}), ("#order=hook&parallel=2", {"a", "b"}):
        with receiving() as receiver, cell(receiver, option, "requests=") as one:
            bodies = [given(seq, hook, orders[hook]) for seq, hook in enumerate("aabbcc", 1)]
            one.store.persist(claim("requests", 6), bodies)
            with one.store.transaction(read=True) as db:
                places = [place_of(name) for (name,) in one.store.run_sql(db, "SELECT name FROM batches_carried")]
            lanes = {(bodies[place.seq - 1].records[0].hook, place.lane) for place in places if place}
            assert {hook for hook, lane in lanes if lane.startswith(ORDERED)} == ordered
            assert len(lanes) == 6 - len(ordered)  # those in an order share one
            one.start()
            one.wait_for(one.drained, "all are posted")
            assert sorted(post.body for post in receiver.taken) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_row_is_held_until_the_bodies_before_it_are_stored() -> None:
    """Two workers: the second claim is stored first."""
    with receiving() as receiver, cell(receiver, "#order=poll") as one:
        one.store.persist(*votes("a", first=1))
        one.store.persist(*votes("d", "e", first=4))
        one.start()
        one.wait_for(lambda: choices(receiver.taken) == ["a"], "the first row")
        one.store.persist(*votes("b", "c", first=2))
        one.wait_for(one.drained, "all are posted")
        assert choices(receiver.taken) == ["a", "b", "c", "d", "e"]


def test_a_gap_that_stays_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.contrib.forward.order.GAP_SECONDS", 0.1)
    with receiving() as receiver, cell(receiver, "#order=poll") as one:
        one.store.persist(*votes("a", first=1))
        one.store.persist(*votes("d", first=4))
        one.start()
        one.wait_for(one.drained, "all are posted")
        assert choices(receiver.taken) == ["a", "d"]


def test_a_receiver_that_hangs_costs_only_its_own_rows() -> None:
    def hang(post: Post, number: int) -> Reply:
        return Reply(hang=60.0)

    with (
        receiving(hang) as slow,
        receiving() as quick,
        cell(slow, "#timeout=1&parallel=2", f"gps={quick.url},votes=") as one,
    ):
        one.store_votes(*range(10))
        one.start()
        one.wait_for(lambda: len(slow.posts) >= 2, "two requests hang")
        body = b'{"device":"d","lat":1,"lon":2}'
        one.store.persist(claim("gps", 1), decoded(STREAMS["gps"], [body]))
        one.wait_for(lambda: quick.keys == ["gps:1"], "the row of the other stream")
        one.wait_for(lambda: one.waiting() == [(10, "no answer within 1 s")], "the reason")
        slow.released.set()


def test_what_was_posted_is_posted_again_after_a_crash_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is gone between the answer and the write, as after kill -9."""
    with receiving() as receiver, cell(receiver) as one:
        one.store_votes("a", "b")
        one.start()
        one.wait_for(one.drained, "the first ones are posted")
        monkeypatch.setattr(program, "WRITE_SECONDS", 600.0)
        one.store_votes("c")
        one.wait_for(lambda: len(receiver.keys) == 3, "one is posted, and not deleted")
        assert one.running
        monkeypatch.setattr(one.running[0], "write", lambda force: None)
        one.stop()
        monkeypatch.setattr(program, "WRITE_SECONDS", 0.01)
        one.start()
        one.wait_for(one.drained, "it is deleted")
        assert Counter(receiver.keys) == {"votes:1": 1, "votes:2": 1, "votes:3": 2}


def test_the_rows_of_one_body_have_keys_with_their_index() -> None:
    batch = b'[{"poll":"p","choice":"a"},{"poll":"p"},{"poll":"p","choice":"a"}]'
    with receiving() as receiver, cell(receiver) as one:
        one.store.persist(claim("votes", 1), decoded(STREAMS["votes"], [batch]))
        one.start()
        one.wait_for(one.drained, "two are posted")
        assert sorted(receiver.keys) == ["votes:1:0", "votes:1:1"]
        one.database.ask("UPDATE dead_letters SET body = CAST(replace(body, '}', ',\"choice\":\"b\"}') AS BLOB)")
        replay_letters(one.store, find_letters(one.store), today)
        one.wait_for(lambda: len(receiver.keys) == 3, "the letter is posted")
        assert len(set(receiver.keys)) == 3
        assert choices(receiver.taken[2:]) == ["b"]


def test_rows_beside_their_table_are_in_both_and_a_replay_adds_no_row() -> None:
    def rule(post: Post, number: int) -> Reply:
        return Reply(410) if number == 0 else Reply()

    with receiving(rule) as receiver, cell(receiver, "#parallel=1", "votes=store+") as one:
        one.store_votes("a", "b")
        one.start()
        one.wait_for(one.drained, "all have ended")
        assert one.database.ask("SELECT choice FROM votes") == [("a",), ("b",)]
        assert receiver.keys == ["votes:2"]
        assert replay_letters(one.store, find_letters(one.store), today).stored == 1
        one.wait_for(lambda: receiver.keys == ["votes:2", "votes:1"], "the letter is posted")
        assert one.database.ask("SELECT choice FROM votes") == [("a",), ("b",)]
        assert one.letters() == []


def test_a_request_is_posted_as_it_came(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    body = '{"text": "ä"}'
    head = {"content-type": "application/json; charset=utf-8", "x-github-event": "push", "webhook-id": "theirs"}
    texts = Request(hook="git", path="a/b", query="x=1", head=head, body=body, raw=None)
    binary = Request(hook="bin", path="", query=None, head={}, body=None, raw="AAEC")
    with receiving() as receiver, cell(receiver, f"#order=hook&secret={secret}", "requests=") as one:
        given = [body_with(1, 0, b"item", texts), body_with(2, 0, b"item", binary)]
        one.store.persist(claim("requests", 2), given)
        one.start()
        one.wait_for(one.drained, "both are posted")
        posts = {post.key: post for post in receiver.taken}
        text, data = posts["requests:1"], posts["requests:2"]
        assert (text.body, data.body) == (body.encode(), b"\0\1\2")
        assert text.fields["content-type"] == head["content-type"]
        assert (text.fields["x-github-event"], text.fields["x-original-uri"]) == ("push", "/hooks/git/a/b?x=1")
        for post in posts.values():
            seconds = int(post.fields["webhook-timestamp"])
            assert post.fields["webhook-id"] == post.key
            made = signatures([key_of(SECRET)], post.key, seconds, post.body)
            assert post.fields["webhook-signature"] == made
            assert abs(time.time() - seconds) < 60
