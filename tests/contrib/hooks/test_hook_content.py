"""`by content within 5m`: an equal body is one for that time, and never without that line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.base.counters import Histogram
from sluice.spool.claim import Claim
from sluice.store import transaction_limits
from sluice.store.decoding import decode_claim
from sluice.streams.record import Limits
from support.keys_contract import NOON, Here

pytestmark = pytest.mark.contract
SECOND = 1_000_000


def item(body: str, seconds: int = 300, path: str = "alerts", sender: str = "") -> bytes:
    within = f"Sluice-Within: {seconds}\r\n" if seconds else ""
    named = f"Sluice-Sender: {sender}\r\n" if sender else ""
    return f"POST /hooks/{path} HTTP/1.1\r\nUser-Agent: a\r\n{named}{within}\r\n{body}".encode()


def put(here: Here, *arrivals: tuple[float, bytes]) -> int:
    """Store the bodies of one claim, each with its seconds after noon; how many are rows."""
    first, here.next = here.next, here.next + len(arrivals)
    times = [(first + at, NOON + int(seconds * SECOND)) for at, (seconds, _) in enumerate(arrivals)]
    items = [body for _, body in arrivals]
    claim = Claim("hooks", f"e:{first}:{NOON}", first, len(items), 0, times)
    group = decode_claim(
        claim, items, here.streams["hooks"], Limits(), Histogram((1.0,)), transaction_limits.TURN_SECONDS
    )
    return here.store.persist(claim, group.bodies, Limits()).records


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(f"sqlite:///{tmp_path}/ingest.db")


@pytest.mark.parametrize("start", [0, 17.5, 299.9])
def test_an_equal_body_is_one_for_its_time_and_a_tenth_at_most(start: float, here: Here) -> None:
    assert put(here, (start, item("a"))) == 1
    assert put(here, (start + 1, item("a")), (start + 300, item("a"))) == 0
    assert put(here, (start + 331, item("a")), (start + 332, item("a")), (start + 332, item("b"))) == 2
    assert put(here, (start + 331 + 299, item("a"))) == 0
    assert here.store.read_ledger("hooks").duplicate == 4


def test_of_equal_bodies_in_one_claim_the_first_counts_and_those_that_came_long_after_it(here: Here) -> None:
    assert put(here, (0, item("a")), (1, item("a")), (3600, item("a")), (3601, item("a"))) == 2


def test_what_differs_is_two(here: Here) -> None:
    others = item("a"), item("b"), item("a", path="alerts/x"), item("a", path="alerts?x=1"), item("a", path="others")
    assert put(here, *((0, each) for each in (*others, item("a", sender="jane")))) == 6


def test_without_the_line_equal_bodies_are_two(here: Here) -> None:
    assert put(here, (0, item("a", 0)), (0, item("a", 0))) == 2
    assert put(here, (0, item("a", 0))) == 1
