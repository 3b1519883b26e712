"""Numeric metrics as packets for statsd: each number once, in packets that fit a frame; best effort."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib_support.outbox_contract import outbox
from sluice import settings
from sluice.contrib.destinations.registry import check_rows, open_destinations
from sluice.contrib.destinations.statsd import PACKET_BYTES
from sluice.store.questions import count_overdue
from sluice.store.registry import open_store
from sluice.store.store import Store
from sluice.store.types import Outcome
from sluice.streams.built_in import STREAMS
from support.folders import needs
from support.store_contract import claim, decoded

pytestmark = needs("formats")  # its bodies are line protocol


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A socket in the place of a server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        yield server


def connected(tmp: Path, where: str) -> Store:
    rows = settings.load_settings({"INGEST_ROWS": f"metrics=statsd://{where}"}).rows
    return open_store(f"sqlite:///{tmp}/ingest.db", STREAMS, row_destinations=open_destinations(rows, STREAMS))


@pytest.fixture
def store(tmp: Path, server: socket.socket) -> Iterator[Store]:
    with contextlib.closing(connected(tmp, f"127.0.0.1:{server.getsockname()[1]}")) as store:
        yield store


def persist(store: Store, *lines: bytes, first: int = 1) -> Outcome:
    return store.persist(claim("metrics", len(lines), first), decoded(STREAMS["metrics"], lines, first))


def received(server: socket.socket, count: int) -> list[str]:
    """The next lines of so many packets."""
    return [line for _ in range(count) for line in server.recv(65536).decode().split("\n")]


def test_each_number_is_a_gauge_with_its_tags(store: Store, server: socket.socket) -> None:
    lines = b"room,floor=2,house=a temperature=21.5,door=true 1\ncount value=3i\nbig value=18446744073709551615u"
    assert persist(store, lines) == Outcome(4, 0)
    assert received(server, 1) == [
        *("room.temperature:21.5|g|#floor:2,house:a", "room.door:1|g|#floor:2,house:a", "count:3|g"),
        "big:18446744073709551615|g",
    ]


def test_a_negative_gauge_is_set_to_zero_first(store: Store, server: socket.socket) -> None:
    persist(store, b"cold,at=pole value=-40.5")
    assert received(server, 1) == ["cold:0|g|#at:pole", "cold:-40.5|g|#at:pole"]


def test_strings_are_left_out_and_characters_of_the_format_replaced(store: Store, server: socket.socket) -> None:
    assert persist(store, b'a\\ b:c|d,k\\ 1=v\\,2#@ value=1,text="x"') == Outcome(2, 0)
    assert received(server, 1) == ["a_b_c_d:1.0|g|#k_1:v_2_"]


def test_packets_fit_a_frame_and_have_each_line_once(store: Store, server: socket.socket) -> None:
    names = [f"name-{number}" for number in range(300)]
    persist(store, *(f"{name} value=1i".encode() for name in names))
    found: list[str] = []
    while len(found) < len(names):
        packet = server.recv(65536)
        assert len(packet) <= PACKET_BYTES
        found += packet.decode().split("\n")
    assert found == [f"{name}:1|g" for name in names]


def test_a_claim_that_comes_again_is_sent_once(store: Store, server: socket.socket) -> None:
    persist(store, b"a value=1")
    assert persist(store, b"a value=1").again
    persist(store, b"b value=2", first=2)
    assert received(server, 2) == ["a:1.0|g", "b:2.0|g"]


def test_a_body_that_is_invalid_is_buried_and_nothing_is_noted(store: Store, server: socket.socket) -> None:
    assert persist(store, b"a value=1", b"no line") == Outcome(1, 1)
    assert received(server, 1) == ["a:1.0|g"]
    assert (
        outbox(store).publish(store) is False
        and outbox(store).tidy("metrics", store) is False
        and count_overdue(store, "metrics", 1 << 62) == 0
    )
    with store.transaction() as db:
        assert db.execute("SELECT * FROM batches_objects").fetchall() == []


def test_a_server_that_is_away_loses_packets_and_stops_nothing(tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(connected(tmp, "nowhere.invalid:1")) as store:
        assert persist(store, b"a value=1") == persist(store, b"a value=1", first=2) == Outcome(1, 0)
        assert store.read_ledger("metrics").bodies == 2
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["metrics are lost"]


@pytest.mark.parametrize("text", ["statsd://h:1", "gps=statsd://h:1", "metrics=statsd://h", "metrics=statsd://h:1/x"])
def test_only_metrics_go_there(text: str) -> None:
    with pytest.raises(settings.SettingError, match=r"metrics=statsd://HOST:PORT"):
        check_rows(settings.load_settings({"INGEST_ROWS": text}).rows, STREAMS)
