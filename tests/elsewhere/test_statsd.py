"""Numeric metrics as packets for statsd: each number once, in packets that fit a frame; best effort."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice import settings
from sluice.elsewhere.statsd import PACKET
from sluice.store.registry import open_store
from sluice.store.store import Sink
from sluice.store.types import Outcome
from sluice.streams.registry import STREAMS
from store_tests import claim, decoded


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A socket in the place of a server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        yield server


def connected(tmp: Path, where: str) -> Sink:
    rows = settings.load({"INGEST_ROWS": f"metrics=statsd://{where}"}).rows
    return open_store(f"sqlite:///{tmp}/ingest.db", STREAMS, rows=rows)


@pytest.fixture
def sink(tmp: Path, server: socket.socket) -> Iterator[Sink]:
    with contextlib.closing(connected(tmp, f"127.0.0.1:{server.getsockname()[1]}")) as sink:
        yield sink


def persist(sink: Sink, *lines: bytes, first: int = 1) -> Outcome:
    return sink.persist(claim("metrics", len(lines), first), decoded(STREAMS["metrics"], lines, first))


def received(server: socket.socket, count: int) -> list[str]:
    """The next lines of so many packets."""
    return [line for _ in range(count) for line in server.recv(65536).decode().split("\n")]


def test_each_number_is_a_gauge_with_its_tags(sink: Sink, server: socket.socket) -> None:
    lines = b"room,floor=2,house=a temperature=21.5,door=true 1\ncount value=3i\nbig value=18446744073709551615u"
    assert persist(sink, lines) == Outcome(4, 0)
    assert received(server, 1) == [
        *("room.temperature:21.5|g|#floor:2,house:a", "room.door:1|g|#floor:2,house:a", "count:3|g"),
        "big:18446744073709551615|g",
    ]


def test_a_negative_gauge_is_set_to_zero_first(sink: Sink, server: socket.socket) -> None:
    persist(sink, b"cold,at=pole value=-40.5")
    assert received(server, 1) == ["cold:0|g|#at:pole", "cold:-40.5|g|#at:pole"]


def test_strings_are_left_out_and_characters_of_the_format_replaced(sink: Sink, server: socket.socket) -> None:
    assert persist(sink, b'a\\ b:c|d,k\\ 1=v\\,2#@ value=1,text="x"') == Outcome(2, 0)
    assert received(server, 1) == ["a_b_c_d:1.0|g|#k_1:v_2_"]


def test_packets_fit_a_frame_and_have_each_line_once(sink: Sink, server: socket.socket) -> None:
    names = [f"name-{number}" for number in range(300)]
    persist(sink, *(f"{name} value=1i".encode() for name in names))
    found: list[str] = []
    while len(found) < len(names):
        packet = server.recv(65536)
        assert len(packet) <= PACKET
        found += packet.decode().split("\n")
    assert found == [f"{name}:1|g" for name in names]


def test_a_claim_that_comes_again_is_sent_once(sink: Sink, server: socket.socket) -> None:
    persist(sink, b"a value=1")
    assert persist(sink, b"a value=1").again
    persist(sink, b"b value=2", first=2)
    assert received(server, 2) == ["a:1.0|g", "b:2.0|g"]


def test_a_body_that_is_invalid_is_buried_and_nothing_is_noted(sink: Sink, server: socket.socket) -> None:
    assert persist(sink, b"a value=1", b"no line") == Outcome(1, 1)
    assert received(server, 1) == ["a:1.0|g"]
    assert sink.publish() is False and sink.tidy("metrics") is False and sink.overdue("metrics", 1 << 62) == 0
    with sink.transaction() as db:
        assert db.execute("SELECT * FROM batches_objects").fetchall() == []


def test_a_server_that_is_away_loses_packets_and_stops_nothing(tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(connected(tmp, "nowhere.invalid:1")) as sink:
        assert persist(sink, b"a value=1") == persist(sink, b"a value=1", first=2) == Outcome(1, 0)
        assert sink.ledger("metrics").bodies == 2
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["metrics are lost"]


@pytest.mark.parametrize("text", ["statsd://h:1", "gps=statsd://h:1", "metrics=statsd://h", "metrics=statsd://h:1/x"])
def test_only_metrics_go_there(text: str) -> None:
    with pytest.raises(settings.SettingError, match=r"metrics=statsd://HOST:PORT"):
        settings.load({"INGEST_ROWS": text})
