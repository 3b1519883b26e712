"""What every store must do with rows that wait for a destination elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from proving.harness import ROOT
from sluice.contrib.destinations.destination import Rows, Unwritable
from sluice.contrib.destinations.far_rows import bury_rows
from sluice.contrib.destinations.outbox import CARRIED, NOTES, Outbox, note_object, note_reason
from sluice.contrib.destinations.register import parse_rows
from sluice.contrib.destinations.registry import open_destinations
from sluice.store.questions import find_letters, find_unpublished
from sluice.store.registry import open_store
from sluice.store.replay import replay_letters
from sluice.store.store import Store
from sluice.store.types import Unavailable
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Vote
from support.store_contract import NOON, Backend, body_with, today, upto, vote, votes

DYING = """
import os, signal, sys
sys.path[:0] = sys.argv[3:]
from support import store_contract
from sluice.contrib.destinations.register import parse_rows
from sluice.contrib.destinations.registry import open_destinations
from sluice.store.registry import open_store
def die(*given, **more):
    os.kill(os.getpid(), signal.SIGKILL)
def die_after(of, name):
    whole = getattr(of, name)
    def call(*given, **more):
        whole(*given, **more)
        die()
    setattr(of, name, call)
row_destinations = open_destinations(parse_rows(sys.argv[2]), store_contract.STREAMS)
store = open_store(sys.argv[1], store_contract.STREAMS, row_destinations=row_destinations)
"""


def killed(url: str, rows: str, program: str, env: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a program that kills itself. url, rows: of its `store`. It has `die` and `die_after`."""
    command = [sys.executable, "-c", DYING + program, url, rows, str(ROOT), str(ROOT / "tests")]
    done = subprocess.run(command, stderr=subprocess.PIPE, env=os.environ | env)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def outbox(store: Store[Any]) -> Outbox:
    assert isinstance(store.row_destinations, Outbox)
    return store.row_destinations


class OutboxTests:
    """A subclass provides the fixture `backend`, an empty Backend."""

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Store]:
        store = open_store(backend.url, STREAMS)
        yield store
        store.close()

    def test_a_note_may_carry_rows(self, store: Store) -> None:
        with store.transaction() as db:
            note_object(store, db, "votes", "a", "here", 1, None)
            note_object(store, db, "votes", "b", "here", 1, b"rows")
            assert store.run_sql(db, NOTES) == [("votes", "a", "here", ""), ("votes", "b", "here", "")]
            assert [store.run_sql(db, CARRIED, (name,)) for name in ("a", "b")] == [[], [(b"rows",)]]

    def test_an_object_that_cannot_be_published_holds_up_only_those_of_its_stream(self, store: Store) -> None:
        tried: list[str] = []

        class Far:
            GRACE_SECONDS = 3600.0
            used = True

            def place(self) -> str:
                return "far"

            address = place

            def own(self, name: str) -> bool:
                return name != "of another worker"

            def publish(self, name: str, carried: bytes | None) -> bool:
                tried.append(name)
                if name == "2":
                    raise Unwritable("away")
                return True

        names = {"1": "gps", "2": "votes", "3": "votes", "4": "logs", "of another worker": "logs"}
        with store.transaction() as db:
            for name, stream in names.items():
                note_object(store, db, stream, name, "far", 1, None)
        far: Any = Far()
        store.row_destinations = Outbox({"votes": far, "logs": far})
        with pytest.raises(Unavailable, match="away"):
            store.row_destinations.publish(store)
        assert tried == ["2", "4"]
        with store.transaction() as db:
            assert [name for _, name, *_ in store.run_sql(db, NOTES)] == ["1", "2", "3", "of another worker"]
        with pytest.raises(Unavailable, match="away"):  # or the objects of its stream would not be in their order
            store.persist(*votes("a"))
        store.row_destinations = Outbox({"logs": far})
        with pytest.raises(Unavailable, match="rows of votes wait for far: INGEST_ROWS does not name it now"):
            store.row_destinations.publish(store)

    def test_a_destination_without_an_address_holds_up_no_other(self, store: Store, tmp_path: Path) -> None:
        """A Parquet directory that cannot be made, beside one that can."""
        (tmp_path / "file").write_text("")
        rows = parse_rows(f"gps=parquet://{tmp_path}/file,votes=parquet://{tmp_path}/rows")
        destinations = open_destinations(rows, STREAMS)
        made = destinations.destinations["votes"].open(NOON)
        made.add(1, Rows([body_with(1, NOON, b"", Vote(poll="p", choice="a"))]))
        made.finish()
        made.close(delete=False)
        with store.transaction() as db:
            note_object(store, db, "gps", "2026-01-01T12/a", f"parquet://{tmp_path}/file#id", 1, None)
            note_object(store, db, "votes", made.name, destinations.destinations["votes"].address(), 1, None)
        with pytest.raises(Unavailable, match="file"):
            destinations.publish(store)
        with store.transaction() as db:
            assert [stream for stream, *_ in store.run_sql(db, NOTES)] == ["gps"]

    def test_what_waits_is_published_by_its_own_destination_only(self, store: Store) -> None:
        """As after a change of INGEST_ROWS, or with another cell that has a destination of its own."""
        sent: list[tuple[str, str]] = []

        class Place:
            GRACE_SECONDS = 0.0
            lasting = used = True

            def __init__(self, name: str) -> None:
                self.name = name

            def place(self) -> str:
                return self.name

            address = place

            def own(self, name: str) -> bool:
                return True

            def publish(self, name: str, carried: bytes | None) -> bool:
                sent.append((self.name, name))
                return True

        old: Any = Place("old")
        new: Any = Place("new")
        with store.transaction() as db:
            note_object(store, db, "votes", "a", "old", 1, b"rows")
        with pytest.raises(Unavailable, match="rows of votes wait for old: INGEST_ROWS does not name it now"):
            Outbox({"votes": new}).publish(store)
        assert sent == []
        assert not Outbox({"votes": old}).publish(store)
        assert sent == [("old", "a")]
        with store.transaction() as db:
            assert store.run_sql(db, NOTES) == [] == store.run_sql(db, CARRIED, ("a",))

    def test_what_waits_is_counted_once_it_has_a_reason_or_is_late(self, backend: Backend, store: Store) -> None:
        with store.transaction() as db:
            for name, bodies in ("1", 3), ("2", 4), ("3", 5):
                note_object(store, db, "votes", name, "parquet:///rows#abc", bodies, None)
        assert find_unpublished(store) == []
        note_reason(store, "1", "no space left")
        (one,) = find_unpublished(store)
        assert one[:3] == ("votes", "parquet:///rows", 3) and one.reason == "no space left" and 0 <= one.seconds < 60
        with store.transaction() as db:
            store.run_sql(db, "UPDATE batches_objects SET since = ? WHERE name = '2'", (store.stored_time(NOON),))
        (one,) = find_unpublished(store)
        assert one.bodies == 7 and one.seconds > 3600

    def test_a_row_elsewhere_that_is_refused_after_its_batch_was_folded_is_dead_and_replayed(
        self, backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sluice.store.transaction_limits.KEEP_BATCHES", 1)
        monkeypatch.setattr("sluice.store.transaction_limits.FOLD_BATCHES", 2)
        for number in range(1, 6):
            store.persist(*votes(number, first=number))
        ((first,),) = backend.ask("SELECT min(id) FROM batches")
        while store.fold_batches():
            pass
        assert backend.ask(f"SELECT 1 FROM batches WHERE id = {first}") == []
        with store.transaction() as db:
            assert bury_rows(store, db, "votes", [(first, 1, NOON, vote("again"))], "rejected\n by it") == 1
        assert store.read_ledger("votes", upto(5))[:2] == (5, 1)
        (letter,) = find_letters(store)
        assert (letter.reason, letter.whole, letter.seq) == ("rejected by it", False, 1)
        assert replay_letters(store, [letter], today).stored == 1
        assert store.read_ledger("votes", upto(5))[:2] == (5, 0)
        assert backend.ask(f"SELECT 1 FROM batches WHERE id = {first}") == []
