"""The reader's lane, whose answers may be heavy."""

from __future__ import annotations

import threading

import pytest

from proving.harness import (
    stopped,
)
from support.lane_clients import Client, memory, plain, site

pytestmark = pytest.mark.contract
READER = "sluice.contrib.views.lane.ReaderLane"  # whose answers may be heavy


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
