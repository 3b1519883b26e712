"""Which entries of a claim are not stored yet, by the keys of their bodies and of their records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain, islice, repeat
from typing import Any

from sluice.base.override import override
from sluice.store import bounds
from sluice.store.fill import Part
from sluice.store.keys import Keys, end
from sluice.store.memory import Watch
from sluice.store.types import Entry
from sluice.streams.record import Record, Reject
from sluice.streams.times import SECOND
from sluice.streams.unique import CONTENT_BYTES, FORGED, GIVEN_BYTES, Rule, key_of, record_key, sent_by

Unit = tuple[Iterable[Entry], bool]


class Small:
    """The entries of one decoded body. Each is made when it is asked for: thousands that wait leave the CPU's cache."""

    def __init__(self, seq: int, received: int, item: bytes, results: Sequence[Any]) -> None:
        self.seq, self.received, self.item, self.results = seq, received, item, results

    def __iter__(self) -> Iterator[Entry]:
        return zip(repeat(self.seq), repeat(self.received), repeat(self.item), self.results)


class Held:
    """Entries of bodies, as often as they are iterated."""

    def __init__(self, pieces: Iterable[Iterable[Entry]]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self.pieces)


class Body(Part):
    """The entries of one large body, decoded while they are iterated.

    decode: them, each time it is called. first_entry: None: there is none. timed: each record so far had its own time.
    """

    def __init__(self, decode: Callable[[], Iterator[Entry]], seq: int) -> None:
        super().__init__((), seq, seq + 1)
        self.decode = decode
        self.begun: Iterator[Entry] | None = decode()
        self.first_entry = next(self.begun, None)
        self.timed = True

    @override
    def __iter__(self) -> Iterator[Entry]:
        if self.begun and self.first_entry:
            entries: Iterable[Entry] = chain((self.first_entry,), self.begun)
        else:
            entries = self.decode()
        self.begun = None
        for entry in entries:
            self.timed &= isinstance(entry[3], Reject) or entry[3].time is not None
            yield entry


class Unique:
    """Takes bodies, and gives back what is not stored yet of them. size: bytes of memory that these
    take, about; without those of one record, of which a claim has few enough.

    While it holds bodies, nothing else may use the connection of the keys. To be closed.
    """

    def __init__(self, rule: Rule, keys: Keys) -> None:
        self.keys = keys
        self.record_key = None if rule.fields is None else record_key(rule.fields)
        self.held: list[Iterable[Entry]] = []
        self.entries: list[Entry] = []  # after what is held, of bodies of one record
        self.new: dict[bytes, int] = {}  # key -> sequence number
        self.begun = 0  # how many of them the database has
        self.claiming: Generator[None, Any, set[bytes]] | None = None
        self.size = 0

    def add(self, digest: bytes | None, size: int, body: Small) -> None:
        """Hold a body. digest, size: see `Rule.read`."""
        if digest and (key := body_key(digest, body.results)):
            if key in self.new:
                self.keys.duplicates += 1
                return
            self.new[key] = body.seq
        if self.entries:
            self.held.append(self.entries)
            self.entries = []
        self.held.append(body)
        self.size += size * bounds.TEXT_FACTOR + len(body.results) * bounds.RECORD_BYTES

    def add_record(self, seq: int, received: int, item: bytes, record: Record) -> None:
        """`add` for a body without a given key that is one record, in a third of the time."""
        new, time = self.new, record.time
        if time is not None:
            key = (time // SECOND & 0xFFFFFFFF).to_bytes(4, "big") + sha256(item).digest()[:CONTENT_BYTES]
            if key in new:
                self.keys.duplicates += 1
                return
            new[key] = seq
            if len(new) >= self.begun + bounds.PIECE_KEYS:
                self.begin(received)
        self.entries.append((seq, received, item, record))

    def begin(self, received: int) -> None:
        """Have the database put the keys that it does not have, while the next bodies are decoded."""
        if self.claiming is None:
            self.claiming = self.keys.claiming()
            next(self.claiming)
        self.claiming.send((list(islice(self.new, self.begun, None)), received))
        self.begun = len(self.new)

    def flush(self, received: int) -> Unit:
        """What is new of the bodies that were held. received: when the last of them came."""
        entries: Iterable[Entry] = Held((*self.held, self.entries))
        if self.begun < len(self.new):
            self.begin(received)
        taken = end(self.claiming) if self.claiming else ()
        if taken:
            again = {self.new[key] for key in taken}
            entries = [entry for entry in entries if entry[0] not in again]
            self.keys.duplicates += len(again)
        self.held, self.entries, self.new, self.begun, self.claiming, self.size = [], [], {}, 0, None, 0
        return self.new_records(list(entries), complete=True) if self.record_key else (entries, False)

    def close(self) -> None:
        """Take back what was begun."""
        if self.claiming:
            self.claiming.close()

    def large(self, digest: bytes | None, body: Body, watch: Watch) -> Iterator[Unit]:
        """What is new of a large body."""
        first = body.first_entry
        key = body_key(digest, (first[3],)) if digest and first else None
        if key and first and self.keys.claim((key,), first[1]):
            self.keys.duplicates += 1
            return
        if not self.record_key:
            yield body, False
        else:
            entries, duplicates = iter(body), self.keys.duplicates
            any_new = False
            while piece := pieces(entries, watch):
                unit = self.new_records(piece, complete=False)
                any_new |= bool(unit[0])
                yield unit
                del unit, piece
            self.keys.duplicates = duplicates + (not any_new and first is not None)
        if key and digest and len(digest) < GIVEN_BYTES and not body.timed:
            self.keys.release(key)

    def new_records(self, entries: list[Entry], complete: bool) -> Unit:
        """The entries without the records that are stored. complete: they are all of their bodies.

        Counts the bodies of which nothing is new, if they are complete.
        """
        assert self.record_key
        keys: list[bytes | None] = []
        new, repeated = set[bytes](), set[int]()  # repeated: positions
        item, who = b"", b""
        for at, entry in enumerate(entries):
            thing: Any = entry[3]
            if entry[2] is not item:
                item = entry[2]
                who = sent_by(item)
            key = None if thing.__class__ is Reject else self.record_key(thing, who)
            keys.append(key)
            if key is not None:
                if key in new:
                    repeated.add(at)
                new.add(key)
        taken = self.keys.claim(new, entries[-1][1]) if new else ()
        kept = [entry for at, entry in enumerate(entries) if at not in repeated and keys[at] not in taken]
        if len(kept) < len(entries) and complete:
            self.keys.duplicates += len({entry[0] for entry in entries} - {entry[0] for entry in kept})
        return kept, not complete or len(kept) < len(entries)


def pieces(entries: Iterator[Entry], watch: Watch) -> list[Entry]:
    """The next entries of a body: KEYED_RECORDS, or fewer if they are large."""
    watch.begin()
    piece: list[Entry] = []
    for entry in entries:
        piece.append(entry)
        if len(piece) >= bounds.KEYED_RECORDS or watch.is_full(time.monotonic()):
            break
    return piece


def body_key(digest: bytes, results: Sequence[Any]) -> bytes | None:
    """The key of a body. results: the first ones; all of them must have a time of their own."""
    if len(digest) == CONTENT_BYTES:
        with contextlib.suppress(AttributeError):  # a reject has no time
            times: list[int | None] = [record.time for record in results]
            return None if None in times or not times else key_of(digest, times[0])
    first = None
    for thing in results:
        if thing.__class__ is Reject:
            if thing.whole and thing.reason.startswith(FORGED):  # whoever knows the key could take it from the sender
                return None
        elif first is None:
            first = thing
            if len(digest) == GIVEN_BYTES or thing.time is None:
                break
        elif thing.time is None:
            return None
    if len(digest) == GIVEN_BYTES:
        return digest if results else None
    return key_of(digest, first.time) if first else None
