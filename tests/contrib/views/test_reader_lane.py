"""The reader's lane, whose answers may be heavy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from proving.harness import poll, stopped
from support.lane_clients import CODED, Client, Site, descriptors, memory, plain, site, unread

pytestmark = pytest.mark.contract
READER = "sluice.contrib.views.lane.ReaderLane"  # whose answers may be heavy


@pytest.fixture(scope="module")
def reader() -> Iterator[Site]:
    with site("support.wsgi_apps:odd", "-k", READER) as running:
        yield running


def test_many_large_answers_of_one_turn_take_bounded_memory() -> None:
    """Their clients read, as nginx does, but not before the loop has gone on."""
    with site("support.wsgi_apps:odd", "-k", READER) as running:
        worker, count = running.worker(), 100
        clients = [Client(running["unix"]) for _ in range(count)]
        readers = [threading.Thread(target=client.answer) for client in clients]
        before = memory(worker, "VmHWM")
        with stopped(worker):
            for client, reader in zip(clients, readers):
                client.send(plain(b"", "/large"))
                reader.start()
        for client, reader in zip(clients, readers):
            reader.join()
            client.close()
        assert memory(worker, "VmHWM") - before < 48 << 20  # UNSENT_BYTES, and as many in the making


def test_large_answers_that_nobody_takes_take_bounded_memory_and_keep_nobody_waiting_for_long() -> None:
    with site("support.wsgi_apps:odd", "-k", READER) as running:
        worker, count = running.worker(), 40
        clients = [Client(running["unix"]) for _ in range(count)]
        before = memory(worker, "VmHWM")
        with stopped(worker):
            for client in clients:
                client.send(plain(b"", "/large"))
        with Client(running["unix"]) as other:
            other.send(plain(b"", "/eager"))
            assert other.answer()[2] == b"eager"
        assert memory(worker, "VmHWM") - before < 48 << 20
        for client in clients:
            client.close()


WAITS = b"GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_an_answer_that_is_not_ready_delays_only_its_own_client(reader: Site) -> None:
    with Client(reader["unix"]) as first, Client(reader["unix"]) as other:
        # behind it: the fast lane, the slow lane, the fast lane with the end of the connection
        coded = CODED.replace(b"slow", b"own-headers")
        first.send(WAITS + plain(b"a", "/shared-headers") + coded + b"\r\n1\r\nb\r\n")
        for n in range(3):
            other.send(plain(b"%d" % n, "/shared-headers"))
            assert other.answer()[2] == b"%d" % n
        first.send(b"0\r\n\r\n" + plain(b"c", "/shared-headers", "Connection: close"))
        other.send(plain(b"x", "/release"))
        assert other.answer()[2] == b"plain"
        assert [first.answer()[2] for _ in range(4)] == [b"later", b"a", b"b", b"c"]
        assert first.ended()


def test_nothing_is_read_from_a_client_whose_answer_is_not_ready(reader: Site) -> None:
    with Client(reader["unix"]) as client, Client(reader["unix"]) as other:
        client.send_apart(WAITS)
        client.send(plain(b"a", "/shared-headers"))
        for _ in range(3):  # turns of the loop
            other.send(plain(b"x", "/shared-headers"))
            assert other.answer()[2] == b"x"
        assert unread(client) > 0
        other.send(plain(b"x", "/release"))
        assert other.answer()[2] == b"plain"
        assert [client.answer()[2] for _ in range(2)] == [b"later", b"a"]


def test_a_client_may_leave_before_its_answer_is_ready(reader: Site) -> None:
    worker = reader.worker()
    with Client(reader["unix"]) as other:
        other.send(plain(b"x"))
        assert other.answer()[2] == b"plain"
        before = descriptors(worker)
        for _ in range(10):
            with Client(reader["unix"]) as first:
                first.send_apart(WAITS + plain(b"a", "/shared-headers"))

        def ended() -> bool:
            other.send(plain(b"x", "/release"))  # each time: a client may be accepted after it
            assert other.answer()[2] == b"plain"
            return descriptors(worker) <= before  # less, if a client of an earlier test was still open

        poll(ended)
    assert reader.worker() == worker
    assert "Error in the loop" not in reader.server.said()
