"""The outbox: what is refused becomes dead letters, and nothing else is lost by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.contrib.destinations.destination import Carried, Rejected, Rows, Unwritable, single_body, writer_of
from sluice.contrib.destinations.far_rows import FarRow
from sluice.contrib.destinations.outbox import Outbox
from sluice.parsers import FOREVER
from sluice.spool.claim import Claim
from sluice.store.questions import find_letters
from sluice.store.registry import open_store
from sluice.store.types import Body
from sluice.streams.custom import stream
from sluice.streams.record import Decoded, Record
from sluice.streams.registry import Stream


class Order(Record, kw_only=True):
    id: str


class Shelf:
    """A destination that knows the number of each writer's last object. It refuses the order "refused"."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.last: dict[str, int] = {}
        self.closed = True


class ToShelf(Carried[list[Any]]):
    GRACE_SECONDS = 0.0

    def __init__(self, shelf: Shelf, orders: Stream, writer: str) -> None:
        super().__init__("shelf://orders", orders)
        self.shelf, self.writer = shelf, writer

    def encoded(self, batch: int, rows: Rows) -> list[Any]:
        return [[batch, seq, at, record.id] for seq, at, record in zip(rows.seqs, rows.received, rows.records)]  # type: ignore[attr-defined]

    def packed(self, groups: list[list[Any]]) -> bytes:
        return json.dumps([row for group in groups for row in group]).encode()

    def send(self, name: str, carried: bytes) -> None:
        if self.shelf.closed:
            raise Unwritable("closed")
        writer, number = writer_of(name)
        orders = [row[3] for row in json.loads(carried)]
        if "refused" in orders:
            raise Rejected("refused")
        if self.shelf.last.get(writer, 0) < number:
            self.shelf.last[writer] = number
            self.shelf.orders += orders

    def halves(self, carried: bytes) -> list[tuple[int, bytes]]:
        rows = json.loads(carried)
        parts = (rows[: len(rows) // 2], rows[len(rows) // 2 :]) if len(rows) > 1 else ()
        return [(len(part), json.dumps(part).encode()) for part in parts]

    def parts(self, carried: bytes) -> Iterator[FarRow]:
        for batch, seq, at, id in json.loads(carried):
            yield batch, seq, at, single_body(self.stream, {"id": id})


def test_what_a_destination_refuses_does_not_hide_what_waits_of_another_worker(tmp: Path) -> None:
    # proving.histories, seed 133: the halves had higher numbers of the writer whose earlier object still waited
    orders, shelf, url = stream("orders", Order), Shelf(), f"sqlite:///{tmp}/db"
    stores = []
    for writer, first, ids in ("a", 1, ("refused", "one")), ("b", 3, ("two", "three")):
        outbox = Outbox({"orders": ToShelf(shelf, orders, writer)})
        store = open_store(url, {"orders": orders}, keep=FOREVER, row_destinations=outbox)
        claim = Claim("orders", f"epoch:{first}:0", first, len(ids), 0, [(first, 0)])
        bodies = [Body.from_decoded(first + n, 0, b"{}", Decoded((Order(id=id),))) for n, id in enumerate(ids)]
        store.persist(claim, bodies)
        stores.append((store, outbox))
    shelf.closed = False
    store, outbox = stores[1]
    outbox.publish(store)
    assert sorted(shelf.orders) == ["one", "three", "two"]
    assert [json.loads(letter.body)["id"] for letter in find_letters(store)] == ["refused"]
    for store, _ in stores:
        store.close()
