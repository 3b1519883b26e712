"""Makes the keys of bodies in pieces: the database puts the first ones while this process makes the next ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from sluice.store.types import Body
from sluice.streams.times import SECOND
from sluice.streams.unique import CONTENT_BYTES, SPECIAL, Rule

PIECE_KEYS = 500


def key_beginnings(rule: Rule, bodies: Sequence[Body]) -> Sequence[bytes]:
    """The seconds with which the key of each begins, if all are plain objects with a time; else ()."""
    if rule.key is not None or not rule.content:
        return ()
    found = list[bytes]()
    add = found.append
    last, seconds = None, b""
    for body in bodies:
        records = body.records
        if len(records) != 1 or body.item[:1] in SPECIAL or (time := records[0].time) is None:
            return ()
        if (second := time // SECOND) != last:
            last, seconds = second, (second & 0xFFFFFFFF).to_bytes(4, "big")
        add(seconds)
    return found


def order_by_time(
    begins: Sequence[bytes], bodies: Sequence[Body], keys: list[bytes | None]
) -> Iterator[Sequence[bytes]]:
    """As `Bookkeeping.order_keys`, of bodies whose keys begin so; each key is made when its piece is."""
    keys[:] = [None] * len(bodies)
    order = sorted(range(len(bodies)), key=begins.__getitem__)
    start = 0
    while start < len(order):
        end = min(start + PIECE_KEYS, len(order))
        while end < len(order) and begins[order[end]] == begins[order[end - 1]]:
            end += 1
        piece: dict[bytes, None] = {}
        for at in order[start:end]:
            keys[at] = key = begins[at] + sha256(bodies[at].item).digest()[:CONTENT_BYTES]
            piece[key] = None
        yield sorted(piece)
        start = end
