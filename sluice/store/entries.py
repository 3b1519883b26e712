"""The entries of a claim: its items, read from the spool and decoded."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sluice.base.counters import Histogram
from sluice.spool.claim import Claim
from sluice.spool.outlet import Outlet
from sluice.store.store import Store
from sluice.store.types import Entry, Outcome
from sluice.streams.record import Limits, Record, Reject
from sluice.streams.registry import Stream

log = logging.getLogger("sluice.worker")
SAMPLE = 16  # the decoding of one in so many items is timed


class PartialDecode(Exception):
    """A decoder failed after it had yielded records. They must not be stored, because the whole item is buried."""


class Entries:
    """The entries of a claim, decoded anew each time it is iterated; see `sluice.store.types.Entry`.

    The store iterates it within its transaction. It raises what `Outlet.items` raises.
    """

    def __init__(
        self,
        claim: Claim,
        outlet: Outlet,
        stream: Stream,
        limits: Limits,
        decoded: Histogram,
        prefetch: Callable[[], None] = lambda: None,
    ) -> None:
        """limits: of one body. decoded: gets the seconds of decoding an item.

        prefetch: called when the items are read. The spool then executes the next claim while these are stored; if it
        were requested earlier, the items would have to wait for it.
        """
        self.claim, self.outlet, self.stream, self.limits = claim, outlet, stream, limits
        self.decoded, self.prefetch = decoded, prefetch
        self.buffered = False  # decode each item completely before its first entry

    def persist(self, store: Store[Any]) -> Outcome:
        """Store them. Raises: as `Store.persist`."""
        try:
            return store.persist(self.claim, self)
        except PartialDecode:
            self.buffered = True
            return store.persist(self.claim, self)

    def __iter__(self) -> Iterator[Entry]:
        items = self.outlet.items(self.claim)
        self.prefetch()
        return self.decode(items)

    def decode(self, items: Iterable[bytes]) -> Iterator[Entry]:
        """Decode each item. If a decoder raises, its item is buried, and the others are stored.

        Raises: PartialDecode, unless `buffered`; any exception of `items`.
        """
        claim, decode, limits, buffered = self.claim, self.stream.decode, self.limits, self.buffered
        seq, until = claim.first, 0
        for item in items:
            if seq >= until:
                received, until = claim.received(seq)
            yielded = False
            try:
                results = decode(item, limits) if seq % SAMPLE else timed(decode, item, limits, self.decoded)
                for result in list(results) if buffered else results:
                    yielded = True
                    yield seq, received, item, result
            except Exception as error:
                if yielded:
                    raise PartialDecode from error
                yield seq, received, item, failed(claim.stream, item, error)
            seq += 1


def failed(stream: str, item: bytes, error: Exception) -> Reject:
    """The reject of an item whose decoder raised; a user's decoder may raise anything."""
    log.error("%s: the decoder failed\n%s", stream, trace(error))
    return Reject(item, f"the decoder failed: {type(error).__name__}", True)


def trace(error: Exception) -> str:
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
