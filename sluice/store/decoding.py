"""From a claim to rows.

    claim ──decode_claim──► bodies ──Store.persist──► one transaction ──► settled
                               │                          │
              records, rejects, parts without a row       ├─ range of the bodies (refused if one of them is stored)
                                                          ├─ keys: which bodies and records are new
                                                          ├─ rows of what is new
                                                          └─ dead letters of the rejects

A body is decoded once, by a pure function, before the transaction begins: whoever else writes to the database, such as
`bin/sluice bury`, does not wait for a decoder. What is decoded is a list, so all that follows may look at it as often
as it needs: the keys, which need the time of the last record, and the search for a row that the database rejects.

So the list must fit into memory, and must not take long. `decode_claim` ends after a body with which it has taken
TURN_SECONDS, or with which what it holds is large; the bodies up to there are a claim of their own, which is stored and
settled, and the rest follows when the other streams had their turn. Only the size of one body is not bounded here: a
body has at most `Limits.records` records.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sluice.base.counters import Histogram
from sluice.base.daemon import Interrupted
from sluice.spool.claim import Claim
from sluice.store import transaction_limits
from sluice.store.types import Body
from sluice.streams.record import Decoded, Limits, Reject
from sluice.streams.registry import Stream

log = logging.getLogger("sluice.worker")
SAMPLE = 16  # the decoding of one in so many items is timed


class Group(NamedTuple):
    """The first bodies of a claim, decoded.

    end: the number after the last one. without_rows: how many parts of them have no row, by kind.
    """

    bodies: list[Body]
    end: int
    without_rows: Counter[str]


def decode_claim(
    claim: Claim, items: Sequence[bytes], stream: Stream, limits: Limits, times: Histogram, seconds: float
) -> Group:
    """Decode the bodies of a claim, at least one, until `seconds` are over or what is decoded is large.

    items: the first ones of the claim. limits: of one body. times: gets the seconds of decoding an item.
    """
    bodies, without_rows = list[Body](), Counter[str]()
    decode, add, monotonic = stream.decode, bodies.append, time.monotonic
    began = look_at = monotonic()
    blocks, held, full = sys.getallocatedblocks(), 0, False
    for received, numbered in claim_arrivals(claim, items):
        for seq, item in numbered:
            try:
                decoded = decode(item, limits) if seq % SAMPLE else decode_timed(stream, item, limits, times)
                records, rejects = decoded.records, decoded.rejects
            except BaseException as error:  # a user's decoder may raise anything, and return anything
                decoded = failed_decoding(stream.name, item, error)
                records, rejects = decoded.records, decoded.rejects
            count = len(records) + len(rejects)
            add(Body(seq, received, item, records, rejects, count == 1))
            if count != 1 or decoded.without_rows:  # of the others, a claim has few enough
                held += decoded.size * transaction_limits.TEXT_FACTOR + count * transaction_limits.RECORD_BYTES
                full = held >= transaction_limits.HELD_BYTES
                without_rows.update(decoded.without_rows)
            if full or (now := monotonic()) >= look_at:
                if full or now - began >= seconds or sys.getallocatedblocks() - blocks > transaction_limits.HELD_BLOCKS:
                    return Group(bodies, seq + 1, without_rows)
                look_at = now + min(transaction_limits.LOOK_SECONDS, seconds)
    return Group(bodies, bodies[-1].seq + 1, without_rows)


def claim_arrivals(claim: Claim, items: Sequence[bytes]) -> Iterator[tuple[int, Iterator[tuple[int, bytes]]]]:
    """Each time of arrival, with the sequence number and the item of each body that has it."""
    first, end = claim.first, claim.first + len(items)
    while first < end:
        received, until = claim.arrival_of(first)
        yield received, enumerate(items[first - claim.first : until - claim.first], first)
        first = until


def decode_timed(stream: Stream, item: bytes, limits: Limits, times: Histogram) -> Decoded:
    began = time.perf_counter()
    decoded = stream.decode(item, limits)
    times.add(time.perf_counter() - began)
    return decoded


def failed_decoding(stream: str, item: bytes, error: BaseException) -> Decoded:
    """One reject of an item whose decoder raised anything: also SystemExit, or a KeyboardInterrupt of its own.

    Raises: Interrupted, which the decoder did not raise.
    """
    if isinstance(error, Interrupted):
        raise error
    log.error("%s: the decoder failed\n%s", stream, trace_of(error))
    return Decoded((), (Reject(item, f"the decoder failed: {type(error).__name__}", True),))


def trace_of(error: BaseException) -> str:
    """The traceback and the type of an error, without its text, which may quote a body."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
