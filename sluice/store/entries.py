"""The entries of a claim: its items, read from the spool and decoded."""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from sluice.base.counters import Histogram
from sluice.base.daemon import Interrupted
from sluice.base.override import override
from sluice.spool.claim import Claim
from sluice.store import bounds
from sluice.store.fill import Given, Part
from sluice.store.keys import Keys
from sluice.store.memory import Watch
from sluice.store.store import Store
from sluice.store.types import Entry, Outcome
from sluice.store.unique import Body, Small, Unique, body_key
from sluice.streams.message import senders
from sluice.streams.record import Limits, Record, Reject
from sluice.streams.registry import Stream
from sluice.streams.unique import GIVEN_BYTES, Rule

log = logging.getLogger("sluice.worker")
SAMPLE = 16  # the decoding of one in so many items is timed


class PartialDecode(Exception):
    """A decoder failed after it had yielded records. They must not be stored, because the whole item is buried."""


class Repeated(Exception):
    """A body has the key of another one, and its rows are in the transaction."""


class Repeats:
    """claims: the next ones of a stream in which a duplicate is to be expected, so that their keys are put first."""

    claims = 0


class Entries(Given):
    """The entries of a claim, decoded anew each time it is iterated; see `sluice.store.types.Entry`.

    The store iterates it within its transaction, so nothing here waits for the spool.
    end: the number after the last body that is stored: all that were read, or fewer if they took too long.
    """

    def __init__(
        self,
        claim: Claim,
        items: list[bytes],
        stream: Stream,
        limits: Limits,
        decoded: Histogram,
        seconds: float = bounds.TURN_SECONDS,
        repeats: Repeats | None = None,
    ) -> None:
        """items: the first ones of the claim. limits: of one body. decoded: gets the seconds of decoding an item.

        seconds: once they are over, no further body is decoded. repeats: of the stream, from claim to claim.
        """
        self.claim, self.items, self.stream, self.limits = claim, items, stream, limits
        self.decoded, self.seconds = decoded, seconds
        self.end = claim.first + len(items)
        self.senders = senders(items, claim.first)
        self.buffered = False  # decode each item completely before its first entry
        self.repeats = repeats or Repeats()
        self.keys_last = False  # put the keys of bodies after their rows

    def persist(self, store: Store[Any]) -> Outcome:
        """Store them. Raises: as `Store.persist`."""
        rule, claim = self.stream.rule, self.claim
        self.end = claim.first + len(self.items)
        by_body = rule is not None and rule.fields is None
        self.keys_last = by_body and not self.repeats.claims and claim.size > claim.count * bounds.SEVERAL_BYTES
        self.repeats.claims = max(0, self.repeats.claims - 1)
        try:
            return store.persist(claim.part(claim.first, self.end), self)
        except Repeated:
            self.repeats.claims = bounds.REPEATING_CLAIMS
            return self.persist(store)
        except PartialDecode:
            if self.buffered:
                raise
            self.buffered = True
            return self.persist(store)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.part(self.claim.first, self.claim.first + len(self.items)))

    @override
    def part(self, first: int, end: int) -> Part:
        return Decoded(self, first, end)


class Decoded(Part):
    """A part of `Entries`."""

    entries: Entries

    def runs(self) -> Iterator[tuple[int, Iterator[tuple[int, bytes]]]]:
        """A time of arrival, and the sequence number and the item of each body that has it; one after the other."""
        claim, seq = self.entries.claim, self.first
        while seq < self.end:
            received, until = claim.received(seq)
            until = min(until, self.end)
            items = self.entries.items[seq - claim.first : until - claim.first]
            yield received, enumerate(items, seq)
            seq = until

    def stop(self, seq: int) -> None:
        """This body is the last one: the time is over."""
        self.end = self.entries.end = seq + 1

    def __iter__(self) -> Iterator[Entry]:
        decode, limits = self.entries.stream.decode, self.entries.limits
        monotonic, due = time.monotonic, time.monotonic() + self.entries.seconds
        results: Any
        for received, bodies in self.runs():
            for seq, item in bodies:
                results = None
                if seq % SAMPLE:
                    try:
                        results = decode(item, limits)
                    except BaseException as error:
                        results = (failed(self.entries.claim.stream, item, error),)
                if results.__class__ is tuple:  # a generator for each body would cost a tenth
                    for result in results:
                        yield seq, received, item, result
                else:
                    yield from self.decoded(seq, received, item, results)
                if monotonic() >= due:
                    self.stop(seq)
                    break

    def decoded(self, seq: int, received: int, item: bytes, results: Any = None) -> Iterator[Entry]:
        """The entries of an item. results: of its decoder, if it was called. If it raises, the item is buried.

        Raises: PartialDecode, unless `buffered`.
        """
        entries = self.entries
        decode, limits, yielded = entries.stream.decode, entries.limits, False
        try:
            if results is None:
                results = decode(item, limits) if seq % SAMPLE else timed(decode, item, limits, entries.decoded)
            for result in list(results) if entries.buffered else results:
                yielded = True
                yield seq, received, item, result
        except GeneratorExit:
            raise
        except BaseException as error:
            if yielded:
                raise PartialDecode from error
            yield seq, received, item, failed(entries.claim.stream, item, error)

    @override
    def units(self, keys: Keys) -> Iterator[tuple[Iterable[Entry], bool]]:
        rule = self.entries.stream.rule
        if rule is None:
            yield self, False
            return
        if self.entries.keys_last:
            unit = KeysLast(self, rule)
            yield unit, False
            if unit.repeated or (unit.keys and keys.claim(unit.keys, unit.received)):
                raise Repeated
            return
        with contextlib.closing(Unique(rule, keys)) as unique:
            yield from self.keyed(unique, rule)

    def keyed(self, unique: Unique, rule: Rule) -> Iterator[tuple[Iterable[Entry], bool]]:
        """`units` of a stream whose bodies or records have keys."""
        decode, limits = self.entries.stream.decode, self.entries.limits
        monotonic, due = time.monotonic, time.monotonic() + self.entries.seconds
        content, add_record, full = rule.content, unique.add_record, bounds.KEYED_BYTES
        results: Any
        received, watch = 0, Watch()
        for received, bodies in self.runs():
            for seq, item in bodies:
                results, large = None, False
                if content and seq % SAMPLE and item.startswith(b"{") and len(item) <= bounds.SMALL_BYTES:
                    try:
                        results = decode(item, limits)
                    except BaseException as error:
                        results = [failed(self.entries.claim.stream, item, error)]
                if results.__class__ is tuple:  # one plain object
                    add_record(seq, received, item, results[0])
                else:
                    digest, size = rule.read(item, limits)
                    large = size > bounds.SMALL_BYTES
                    if not large:
                        unique.add(digest, size, Small(seq, received, item, self.whole(seq, item, results)))
                now = monotonic()
                if large or unique.size >= full or watch.is_full(now):
                    results = None
                    yield unique.flush(received)
                    watch.begin()
                if large:
                    yield from unique.large(digest, Body(partial(self.decoded, seq, received, item), seq), watch)
                    now = monotonic()
                if now >= due:
                    self.stop(seq)
                    break
        yield unique.flush(received)

    def whole(self, seq: int, item: bytes, results: Any = None) -> list[Record | Reject]:
        """All records and rejects of an item. results: of its decoder, if it was called."""
        entries = self.entries
        decode, limits = entries.stream.decode, entries.limits
        try:
            if results is None:
                results = decode(item, limits) if seq % SAMPLE else timed(decode, item, limits, entries.decoded)
            return list(results)
        except BaseException as error:
            return [failed(entries.claim.stream, item, error)]


class KeysLast:
    """The entries of a part, and the keys of its bodies, which are known once it was iterated.

    Nothing of it is held, and the database stores the first rows while the next bodies are decoded: bodies of 100
    records are stored in 4 % less time than by `Unique`. If a body turns out to be a duplicate, all of it was in vain.
    """

    def __init__(self, part: Decoded, rule: Rule) -> None:
        self.part, self.rule = part, rule
        self.keys: set[bytes] = set()
        self.repeated = False  # two bodies have one key
        self.received = 0  # when the last of them came

    def __iter__(self) -> Iterator[Entry]:
        part, entries = self.part, self.part.entries
        self.keys, self.repeated = set(), False
        monotonic, due = time.monotonic, time.monotonic() + entries.seconds
        for received, bodies in part.runs():
            self.received = received
            for seq, item in bodies:
                digest, size = self.rule.read(item, entries.limits)
                if digest is None:
                    yield from part.decoded(seq, received, item)
                elif size <= bounds.SMALL_BYTES:
                    small = Small(seq, received, item, part.whole(seq, item))
                    self.note(body_key(digest, small.results))
                    yield from small
                else:
                    body = Body(partial(part.decoded, seq, received, item), seq)
                    first = body.first_entry
                    yield from body
                    if first and (body.timed or len(digest) == GIVEN_BYTES):
                        self.note(body_key(digest, (first[3],)))
                if monotonic() >= due:
                    part.stop(seq)
                    break

    def note(self, key: bytes | None) -> None:
        """Add the key of a body, if it has one."""
        if key:
            self.repeated |= key in self.keys
            self.keys.add(key)


def failed(stream: str, item: bytes, error: BaseException) -> Reject:
    """The reject of an item whose decoder raised anything: also SystemExit, or a KeyboardInterrupt of its own.

    Raises: Interrupted, which the decoder did not raise.
    """
    if isinstance(error, Interrupted):
        raise error
    log.error("%s: the decoder failed\n%s", stream, trace(error))
    return Reject(item, f"the decoder failed: {type(error).__name__}", True)


def trace(error: BaseException) -> str:
    """The traceback and the type of an error, without its text, which may quote a body."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__


def timed(
    decode: Callable[[bytes, Limits], Iterable[Record | Reject]], item: bytes, limits: Limits, times: Histogram
) -> Iterator[Record | Reject]:
    """The results of a decoder. Adds its time to the histogram, without the time that the store takes in between."""
    took, began = 0.0, time.perf_counter()
    for result in decode(item, limits):
        took += time.perf_counter() - began
        yield result
        began = time.perf_counter()
    times.add(took + time.perf_counter() - began)
