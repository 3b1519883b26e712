"""The judge of the drill's reads: it accepts every answer of a view that lags, and no wrong one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest

from proving.answers import Positions, Series, Votes, Wrong
from proving.harness import PATIENCE, ROOT
from proving.load import SPAN, UNANSWERED, Book
from proving.read import Reads
from proving.report import judged
from support.table_of_cases import check_each_row

CAP = 5


def book(*statuses: int) -> Book:
    made = Book()
    for status in statuses:
        made.status[made.post(1.0)] = status
    return made


def item(n: int, second: int | None = None, **more: Any) -> dict[str, Any]:
    """Position n of client 3."""
    time = f"2026-01-01T12:00:{n if second is None else second:02d}.000Z"
    return {"device": "bike", "time": time, "altitude": float(3 * SPAN + n), "battery": n % 3, **more}


def trail(*numbers: int) -> list[dict[str, Any]]:
    return [item(n) for n in numbers]


@pytest.fixture
def positions() -> Positions:
    """A client that has posted ten positions; the response to the fourth one was lost."""
    return Positions("bike", 3, book(*[200] * 3, UNANSWERED, *[200] * 6))


def kind(judge: Any, *arguments: Any) -> str:
    """The kind of a wrong answer."""
    with pytest.raises(Wrong) as wrong:
        judge(*arguments)
    return wrong.value.args[0]


def test_a_latest_that_lags_and_catches_up_is_right(positions: Positions) -> None:
    assert [positions.latest("/l", item(n)) for n in (0, 0, 2, 2, 9)] == [0, 0, 2, 2, 9]


def test_an_event_without_a_response_may_be_newer_than_later_ones(positions: Positions) -> None:
    positions.latest("/l", item(5, second=5))
    positions.latest("/l", item(3, second=6))  # it was on its way for that long
    positions.latest("/l", item(7, second=7))


def test_a_latest_that_goes_back_is_wrong(positions: Positions) -> None:
    positions.latest("/l", item(5))
    assert kind(positions.latest, "/l", item(4)) == "back"
    assert kind(positions.latest, "/l", item(2, second=30)) == "back"  # whatever its time: it was acknowledged before
    assert kind(positions.latest, "/l", item(3)) == "back"  # older by its time
    assert positions.latest("/other", item(4)) == 4  # two views are not in step


@pytest.mark.parametrize(
    "wrong", [item(10), item(-1), item(1, device="car"), item(1, altitude=4.0), item(1, altitude=float(4 * SPAN))]
)
def test_a_value_that_was_not_posted_is_wrong(positions: Positions, wrong: Any) -> None:
    assert kind(positions.latest, "/l", wrong) == "foreign"


@pytest.mark.parametrize("wrong", [None, [], "bike", {}, {"device": "bike"}])
def test_other_json_is_wrong(positions: Positions, wrong: Any) -> None:
    assert kind(positions.latest, "/l", wrong) == "shape"


def test_an_event_that_changes_is_wrong(positions: Positions) -> None:
    positions.latest("/l", item(1))
    assert kind(positions.latest, "/l", item(1, lat=4)) == "changed"
    assert kind(positions.feed, "/f", [item(1, second=2)], CAP, CAP) == "changed"


def test_a_feed_loses_its_oldest_items_only_when_it_is_full(positions: Positions) -> None:
    for numbers in (1, 0), (2, 1, 0), (2, 1, 0), (6, 5, 4, 2, 1), (9, 8, 7, 6, 5):
        assert positions.feed("/f", trail(*numbers), CAP, CAP) == numbers[0]
    assert positions.feed("/f", trail(9, 8), CAP, 2) == 9


@pytest.mark.parametrize("now", [(4, 3, 1), (4, 2, 1), (), (9, 8, 7, 6, 3), (3, 2, 1)])
def test_a_feed_without_an_item_that_it_had_is_wrong(positions: Positions, now: tuple[int, ...]) -> None:
    positions.feed("/f", trail(4, 3, 2, 1), CAP, CAP)
    assert kind(positions.feed, "/f", trail(*now), CAP, CAP) == "lost"


def test_a_feed_above_its_cap_or_limit_is_wrong(positions: Positions) -> None:
    assert kind(positions.feed, "/f", trail(5, 4, 3, 2, 1, 0), CAP, 100) == "cap"
    assert kind(positions.feed, "/f", trail(5, 4, 3), CAP, 2) == "cap"


def test_a_feed_with_an_item_twice_is_wrong(positions: Positions) -> None:
    assert kind(positions.feed, "/f", trail(5, 5), CAP, CAP) == "double"
    assert kind(positions.feed, "/m", trail(5, 2), CAP, CAP, "battery") == "double"


def test_a_feed_that_is_not_newest_first_is_wrong(positions: Positions) -> None:
    assert kind(positions.feed, "/f", trail(4, 5), CAP, CAP) == "order"


def test_an_item_of_a_feed_with_a_member_is_replaced_by_a_newer_one_only(positions: Positions) -> None:
    positions.feed("/m", trail(3, 2, 1), CAP, CAP, "battery")
    positions.feed("/m", trail(5, 4, 3), CAP, CAP, "battery")
    assert kind(positions.feed, "/m", trail(5, 3, 1), CAP, CAP, "battery") == "back"
    assert kind(positions.feed, "/m", trail(5, 4), CAP, CAP, "battery") == "lost"
    positions.feed("/m", trail(5, 4), CAP, CAP, "battery")  # each answer is compared with the one before


def counts(oreo: int, fig: int, total: int | None = None, poll: str = "p") -> dict[str, Any]:
    total = oreo + fig if total is None else total
    return {"poll": poll, "total": total, "choices": {"oreo": oreo, "fig": fig}, "as_of": "2026-01-01T12:00:00Z"}


def test_counts_grow_up_to_the_votes_that_were_posted() -> None:
    votes = Votes("p", ("oreo", "fig"), book(*[200] * 5))
    for oreo, fig in (1, 0), (2, 1), (2, 1), (3, 2):
        votes.tally("/t", counts(oreo, fig))
    assert kind(votes.tally, "/t", counts(4, 2)) == "count"
    assert kind(votes.tally, "/t", counts(3, 2, total=6)) == "count"
    assert kind(votes.tally, "/t", counts(3, 1)) == "back"
    assert kind(votes.tally, "/t", counts(3, 2, poll="q")) == "foreign"
    assert kind(votes.tally, "/t", {"poll": "p"}) == "shape"


def series(tag: str, second: int, field: str = "run") -> dict[str, Any]:
    time = f"2026-01-01T12:00:{second:02d}.000Z"
    return {"name": "drill", "time": time, "field": field, "tags": {"series": tag}, "value": 1}


def test_series_are_added_and_become_newer() -> None:
    known = Series("run")
    known.latest([series("1", 5)])
    known.latest([series("1", 5), series("2", 3), series("2", 1, field="another run")])
    known.latest([series("1", 6), series("2", 3)])
    assert kind(known.latest, [series("1", 6)]) == "lost"
    assert kind(known.latest, [series("1", 6), series("2", 2)]) == "back"
    assert kind(known.latest, [series("1", 6), series("1", 6), series("2", 3)]) == "double"
    assert kind(known.latest, {}) == "shape"


# --- the faults that explain a status ---

DONE = {"lasted": 1.0, "back_after": 0.5, "read_after": 2.0, "served_after": 2.0}


@check_each_row(
    "fault, entry, at, right",
    [
        ("kill-reader", DONE, 12.9, True),
        ("kill-reader", DONE, 13.1, False),  # reads were back
        ("kill-reader", DONE, 9.0, False),
        ("kill-reader", {}, 99.0, True),  # it was interrupted
        ("kill-nginx", {"lasted": 1.0, "back_after": 0.5}, 99.0, True),  # its wait for reads was interrupted
        ("kill-follower", DONE, 11.0, False),  # it does not concern the reader
        ("kill-worker", {"lasted": 1.0, "back_after": 0.5}, 11.0, False),
    ],
)
@check_each_row("status", [UNANSWERED, 502, 504])
def test_a_read_may_fail_only_while_a_fault_cuts_it_off(
    fault: str, entry: dict[str, float], at: float, right: bool, status: int
) -> None:
    begun = 1000.0
    odd = [(begun + at, begun + at + 0.01, "/gps/latest", status)]
    found = judged(Reads(odd=odd), [{"fault": fault, "at": 10.0, **entry}], begun, {})
    assert found["wrong"] == ({} if right else {"status": 1})


def test_no_fault_explains_another_status_and_503_is_counted() -> None:
    odd = [(11.0, 11.1, "/gps/latest", 500), (11.0, 11.1, "/gps/latest", 503), (50.0, 50.1, "/gps/trail", 503)]
    found = judged(Reads(odd=odd), [{"fault": "restart", "at": 10.0, **DONE}], 0.0, {})
    assert (found["wrong"], found["unavailable_without_a_fault"]) == ({"status": 1}, {"/gps/trail": 1})


@pytest.mark.parametrize("fault", ["views-full", "restart"])
def test_a_fault_explains_503_until_all_views_are_served(fault: str) -> None:
    odd = [(at, at + 0.1, "/gps/latest", 503) for at in (12.5, 18.0, 21.5)]
    found = judged(Reads(odd=odd), [{"fault": fault, "at": 10.0, **DONE, "served_after": 10.0}], 0.0, {})
    assert (found["wrong"], found["unavailable_without_a_fault"]) == ({}, {"/gps/latest": 1})


def test_until_the_views_were_first_built_503_is_counted_by_itself() -> None:
    odd = [(at, at + 0.1, "/gps/latest", 503) for at in (1001.0, 1001.9, 1002.1)]
    found = judged(Reads(odd=odd), [], 1000.0, {}, served=2.0)
    assert (found["unavailable_until_then"], found["unavailable_without_a_fault"]) == (2, {"/gps/latest": 1})


# --- the clients that read ---


class Latest(BaseHTTPRequestHandler):
    """Stores positions in memory and answers /gps/latest, every tenth time wrongly."""

    protocol_version = "HTTP/1.1"
    wrong = ""
    held: ClassVar[dict[str, list[dict[str, Any]]]] = {}
    count = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/gps":
            found = self.held.setdefault(body["device"], [])
            found.append({**body, "time": f"2026-01-01T12:00:00.{len(found):06d}Z"})
        self.answer(200, b"{}")

    def do_GET(self) -> None:
        devices = parse_qs(self.path.partition("?")[2])["device"]
        found = [self.held[one][-1] if one in self.held else None for one in devices]
        if len(devices) > 1:
            self.answer(200, json.dumps(found).encode())
            return
        type(self).count += 1
        due = self.count % 10 == 0
        if due and self.wrong == "back":
            self.answer(200, json.dumps(self.held[devices[0]][0]).encode())
        elif due and self.wrong == "lost":
            self.answer(404)
        elif due and self.wrong == "status":
            self.answer(503)
        elif due and self.wrong == "shape":
            self.answer(200, b"{")
        elif due and self.wrong == "none":
            self.close_connection = True
        elif due:
            self.answer(503, headers={"Retry-After": "1"})
        else:
            self.answer(200, json.dumps(found[0]).encode())

    def answer(self, status: int, body: bytes = b"{}", headers: dict[str, str] | None = None) -> None:
        kind = "application/json" if status == 200 else "application/problem+json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def reads(tmp: Path, wrong: str) -> Reads:
    """What ten clients have noted after a hundred reads."""
    kinds = type("Handler", (Latest,), {"wrong": wrong, "held": {}, "count": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), kinds) as door, contextlib.ExitStack() as stack:
        threading.Thread(target=door.serve_forever, args=(0.05,)).start()
        stack.callback(door.shutdown)
        arguments = map(str, (door.server_port, 10, 2, "run", tmp, "/gps/latest"))
        command = [sys.executable, "-m", "proving.read", *arguments]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        stack.callback(program.communicate)
        stack.callback(program.kill)
        assert program.stdin and program.stdout
        assert any(json.loads(line)["read"] > 100 for line in program.stdout)
        program.stdin.write("stop\n")
        program.stdin.flush()
        assert program.wait(PATIENCE) == 0
    assert len(Book.load(tmp / "book-2").status) > 5  # positions of the first client
    assert len(Book.load(tmp / "book-5").status) > 5  # votes of the second one
    return Reads.load(tmp / "reads")


@pytest.mark.contract
@pytest.mark.parametrize("wrong", ["back", "lost", "status", "shape"])
def test_the_clients_note_each_wrong_answer(tmp: Path, wrong: str) -> None:
    found = reads(tmp, wrong)
    assert {kind for _, _, kind, _ in found.wrong} == {wrong}
    assert len(found.wrong) >= 3


@pytest.mark.contract
def test_the_clients_accept_503_and_note_when_a_read_failed(tmp: Path) -> None:
    found = reads(tmp, "")
    assert found.wrong == []
    assert len(found.odd) == found.statuses["503"] >= 3
    assert {(path, status) for _, _, path, status in found.odd} == {("/gps/latest", 503)}
    assert len(found.fresh) > 5
    assert found.unread == 0


@pytest.mark.contract
def test_the_clients_note_a_missing_response(tmp: Path) -> None:
    assert {status for _, _, _, status in reads(tmp, "none").odd} == {UNANSWERED}
