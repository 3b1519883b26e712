"""Rows that wait to be posted: the destination of INGEST_ROWS, which puts them into the outbox.

The transaction of a claim adds an entry for each row to `batches_carried`, and counts it in one note of
`batches_objects` for all that waits for a receiver. So a row is stored before it is posted. The program `forward`
posts it, and deletes the entry when the receiver has taken it: what a crash leaves is posted again, under the same key.

The name of an entry has all that its place in the queue needs, in fields of a fixed width, so that any collation sorts
it, and the rows themselves are read only when they are posted.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from sluice.base.override import override
from sluice.base.times import iso_instant, iso_second
from sluice.contrib.destinations.destination import Destination, InMemory, Object, Rejected, Rows, single_body
from sluice.contrib.destinations.far_rows import FarRow
from sluice.contrib.forward.target import Target
from sluice.store.store import Store
from sluice.store.types import Origin
from sluice.streams.registry import Stream
from sluice.streams.schema import plain_records

REQUEST = {"hook", "path", "query", "head", "body", "raw"}  # fields of a record that is a request, as those of hooks
ENDED = "forwarding ended: "  # begins the reason of a dead letter; its key is at the end
KEY = re.compile(re.escape(ENDED) + r".*\[(?P<key>[^\[\]]+)\]", re.DOTALL)
NAME = re.compile(
    r"(?P<queue>f[0-9a-f]{16})(?P<batch>[0-9]{12})(?P<seq>[0-9]{16})(?P<part>[0-9]{6})(?P<since>[0-9]{16})"
    r"(?P<lane>[o0-9a-f][0-9a-f]{11})(?P<epoch>.*)",
    re.DOTALL,
)
INSERT_ROWS = 100  # of one statement
ORDERED = "o"  # begins the lane of rows that are posted one after the other
ORDER = b"\r\nSluice-Order: "  # the field of a kept head in which the gateway says the order of a request
encode = msgspec.json.Encoder(enc_hook=str).encode
pack = msgspec.msgpack.Encoder().encode


class Place(NamedTuple):
    """What the name of an entry says.

    since: microseconds since 1970, when it was put there. lane: the same of rows that are posted one after the
    other, which then begins with ORDERED.
    """

    name: str
    batch: int
    seq: int
    part: int
    since: int
    lane: str
    epoch: str


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """A row that waits. value: JSON. is_request: it is posted as the request that it is.

    key: its Idempotency-Key. received: microseconds since 1970.
    """

    key: str
    batch: int
    seq: int
    received: int
    is_request: bool
    value: bytes


unpack = msgspec.msgpack.Decoder(Entry).decode


class Waiting(NamedTuple):
    """A row on its way into the outbox.

    key: that of its dead letter; "": it is made of its number. alone: it is the only row of its body. again: it is a
    part of a body, of which other rows were stored before. lane: the value by which it is in an order; None: it
    is in none.
    """

    key: str
    alone: bool
    again: bool
    lane: str | None
    epoch: str
    batch: int
    seq: int
    received: int
    value: bytes


class Forward(Destination):
    """See `Destination`."""

    lasting = False  # `keep` notes it
    used = True
    needs_epoch = True
    GRACE_SECONDS = math.inf  # the program `forward` sends what the note counts

    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        self.target = Target.of(url)
        self.plain = plain_records(stream.record)
        self.digits, self.unit = (9, 1) if stream.precision == "ns" else (6, 1_000)
        self.names = {field.encode_name: field.name for field in msgspec.structs.fields(stream.record)}
        self.is_request = set(stream.record.__struct_fields__) >= REQUEST
        # what tells its entries from those of others
        self.queue = "f" + hashlib.sha256(f"{stream.name} {self.address()}".encode()).hexdigest()[:16]

    @override
    def place(self) -> str:
        return self.target.shown

    @override
    def address(self) -> str:
        return f"{self.place()}#{self.target.mark}"

    @override
    def is_copy(self, origin: Origin) -> bool:
        return origin.reason.startswith(ENDED)

    @override
    def open(self, received: int) -> InMemory[list[Waiting]]:
        return InMemory(self.queue, self.encoded)

    @override
    def publish(self, name: str, carried: bytes | None) -> bool:
        return True

    def encoded(self, batch: int, rows: Rows) -> list[Waiting]:
        """Raises: Rejected."""
        found = KEY.match(rows.origin.reason) if rows.origin else None
        try:
            return [*self.waiting(batch, rows, found["key"] if found else "")]
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise Rejected(str(error)) from None

    def waiting(self, batch: int, rows: Rows, key: str) -> Iterator[Waiting]:
        whole = rows.origin is None or rows.origin.whole
        fields = rows.with_rows, self.values(batch, rows), rows.records, rows.seqs, rows.received
        for body, value, record, seq, received in zip(*fields):
            order = order_of(body.item, self.target.order) if self.is_request else self.target.order
            lane = str(getattr(record, order)) if order else None
            yield Waiting(key, body.is_single and whole, not whole, lane, rows.epoch, batch, seq, received, value)

    def values(self, batch: int, rows: Rows) -> Iterator[bytes]:
        """Rows as JSON: received_at and time in ISO 8601, the fields, batch, seq and sender."""
        within = 1_000_000_000 // self.unit
        ends = b'%%b,"batch":%d,"seq":%%d,"sender":%%b}' % batch
        form = b'{"received_at":"%%b","time":"%%b.%%0%ddZ"' % self.digits + ends
        record: Any
        records = map(self.plain, rows.records) if self.plain else rows.records
        for seq, received, record in zip(rows.seqs, rows.received, records):
            when = received * 1000 if record.time is None else record.time
            own = encode(record)
            fields = own[own.index(b",") : -1]  # without `time`, which is the first one, and a number or null
            times = (
                iso_instant(received).encode(),
                iso_second(when // 1_000_000_000).encode(),
                when // self.unit % within,
            )
            yield form % (*times, fields, seq, encode(rows.senders.get(seq, "")))

    @override
    def keep(self, store: Store[Any], db: object, opened: Object, bodies: int) -> None:
        assert isinstance(opened, InMemory)
        waiting: list[Waiting] = [each for group in opened.groups for each in group]
        parts: Counter[tuple[int, int]] = Counter()
        now = int(time.time() * 1e6)
        entries = []
        for each in waiting:
            index = parts[each.batch, each.seq]
            parts[each.batch, each.seq] += 1
            key = f"{each.epoch}:{each.seq}"
            if not each.alone:
                key += f":{now}.{index}" if each.again else f":{index}"
            key = each.key or key
            lane = hashlib.sha256((key if each.lane is None else each.lane).encode()).hexdigest()[:12]
            if each.lane is not None:
                lane = ORDERED + lane[1:]
            entry = Entry(key, each.batch, each.seq, each.received, self.is_request, each.value)
            name = f"{self.queue}{each.batch:012d}{each.seq:016d}{index:06d}{now:016d}{lane}{each.epoch}"
            entries.append((name, pack(entry)))
        add(store, db, entries)
        count(store, db, self, len(entries))

    def rows(self, entries: Iterable[Entry]) -> Iterator[FarRow]:
        """What dead letters of these rows are made of."""
        for entry in entries:
            row = msgspec.json.decode(entry.value)
            body = item_of(row) if entry.is_request else single_body(self.stream, self.named(row))
            yield entry.batch, entry.seq, entry.received, body

    def named(self, row: dict[str, Any]) -> dict[str, Any]:
        """The values of a row by the names of fields, not by those in JSON."""
        return {self.names.get(name, name): value for name, value in row.items()}


def order_of(item: bytes, usual: str) -> str:
    """The field by which a request is in an order; "": it is in none. usual: where the gateway has not said so."""
    at = item.find(ORDER, 0, item.find(b"\r\n\r\n") + 2)
    if at < 0:
        return usual
    found = item[at + len(ORDER) : item.index(b"\r\n", at + 2)].decode()
    return found if found in REQUEST else ""


def body_of(row: dict[str, Any]) -> bytes:
    """The body of a request, as it was sent."""
    body: str | None = row["body"]
    return base64.b64decode(row["raw"]) if body is None else body.encode()


def address_of(row: dict[str, Any]) -> str:
    """The path and the query of a request."""
    path = f"/hooks/{row['hook']}" + (f"/{row['path']}" if row["path"] else "")
    return f"{path}?{row['query']}" if row["query"] else path


def item_of(row: dict[str, Any]) -> bytes:
    """The list item of a request, which its stream decodes to the same row."""
    lines = [f"POST {address_of(row)} HTTP/1.1"]
    if row["sender"]:
        lines.append(f"Sluice-Sender: {row['sender']}")
    lines += [f"{name}: {value}" for name, value in row["head"].items()]
    return "\r\n".join([*lines, "", ""]).encode() + body_of(row)


def place_of(name: str) -> Place | None:
    match = NAME.fullmatch(name)
    if match is None:
        return None
    batch, seq, part, since = (int(match[each]) for each in ("batch", "seq", "part", "since"))
    return Place(name, batch, seq, part, since, match["lane"], match["epoch"])


def add(store: Store[Any], db: object, entries: list[tuple[str, bytes]]) -> None:
    for at in range(0, len(entries), INSERT_ROWS):
        some = entries[at : at + INSERT_ROWS]
        values = [value for entry in some for value in entry]
        store.run_sql(
            db, f"INSERT INTO batches_carried (name, rows) VALUES {', '.join(['(?, ?)'] * len(some))}", values
        )


def count(store: Store[Any], db: object, destination: Forward, rows: int) -> None:
    """Count rows that wait in the note of a receiver, which is made for the first one."""
    put = (
        "INSERT INTO batches_objects (stream, name, address, bodies, since, reason) "
        f"VALUES (?, ?, ?, ?, {store.NOW}, '') "
        "ON CONFLICT (name) DO UPDATE SET bodies = batches_objects.bodies + excluded.bodies"
    )
    store.run_sql(db, put, (destination.stream.name, destination.queue, destination.address(), rows))
