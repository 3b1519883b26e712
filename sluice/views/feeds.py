"""The value of a feed: one string with its items, newest first, as a client gets them.

    count        4 bytes: the number of items, n
    scores       n times 8 bytes: microseconds since 1970
    lengths      n times 4 bytes: of the JSON of each item
    identities   n times 8 bytes, only with `member`: a hash of these fields
    array        a JSON array

Integers are little-endian; scores have a sign. Newest first is descending by (score, JSON). Standard library only: the
reader runs on PyPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.views.link import Place

IDENTITY = 8  # bytes
COUNT = Struct("<I")
SCORE, LENGTH = 8, 4  # bytes

Item = tuple[int, bytes, bytes]  # score, JSON, identity; the identity is b"" without `member`


def encode(items: Sequence[Item]) -> bytes:
    """The value with these items, at least one, newest first."""
    scores, documents, identities = zip(*items)
    head = pack(f"<I{len(items)}q{len(items)}I", len(items), *scores, *map(len, documents))
    return b"%b%b[%b]" % (head, b"".join(identities), b",".join(documents))


def decode(value: bytes, member: bool) -> list[Item]:
    """The items of a value, newest first. member: the feed has `member`."""
    count, lengths, identities, array = parts(value, member)
    scores = unpack_from(f"<{count}q", value, COUNT.size)
    sizes = unpack_from(f"<{count}I", value, lengths)
    starts = accumulate((size + 1 for size in sizes), initial=array + 1)
    width = (array - identities) // count
    names = (value[at : at + width] for at in range(identities, identities + count * 8, 8))
    return [
        (score, value[start : start + size], name) for score, start, size, name in zip(scores, starts, sizes, names)
    ]


def parts(value: bytes, member: bool, start: int = 0) -> tuple[int, int, int, int]:
    """The number of items, and where lengths, identities and array begin. start: of the value."""
    (count,) = COUNT.unpack_from(value, start)
    lengths = start + COUNT.size + count * SCORE
    identities = lengths + count * LENGTH
    return count, lengths, identities, identities + (count * IDENTITY if member else 0)


def page(member: bool, place: Place, limit: int) -> bytes:
    """The JSON array of the newest items, at most `limit`, of a value."""
    data, start, stop = place
    count, lengths, _, array = parts(data, member, start)
    if limit >= count:
        return data[array:stop]
    return data[array : array + size_of(data, lengths, limit)] + b"]"


def size_of(value: bytes, lengths: int, count: int) -> int:
    """Bytes of the beginning of the array: "[" and the first items, with the commas between them."""
    return sum(unpack_from(f"<{count}I", value, lengths)) + count


def merge(place: Place | None, new: list[Item], member: bool, cap: int) -> list[Any]:
    """The pieces of a value with more items: of equal ones the newest, and of all the newest `cap`.

    place: of the value; None if there is none yet. new: at least one item, newest first, no two equal.
    """
    if place is None:
        return [encode(newest(new, cap))]
    data, start, stop = place
    count, lengths, identities, array = parts(data, member, start)
    scores = start + COUNT.size
    known = data[identities:array]
    (last,) = unpack_from("<q", data, scores)
    # the usual cases: all are newer than the value, and what stays of it is copied behind them; its last items go, or
    # the one that the only new item replaces
    first, end = min(count, cap - len(new)), count
    if known and [item for item in new if item[2] in known]:
        first = find(known, new[0][2]) if len(new) == 1 else 0
        first, end = (count if count < cap else count - 1, count) if first < 0 else (first, first + 1)
    if new[-1][0] <= last or first < 1:
        return [encode(newest([*new, *decode(data[start:stop], member)], cap))]
    scored, documents, names = zip(*new)
    gone = sum(unpack_from(f"<{end - first}I", data, lengths + first * LENGTH)) + end - first
    stays = array + size_of(data, lengths, first) if end < count else stop - 1 - gone
    view = memoryview(data)
    return [
        pack(f"<I{len(new)}q", len(new) + count - end + first, *scored),
        data[scores : scores + first * SCORE],
        data[scores + end * SCORE : lengths],
        pack(f"<{len(new)}I", *map(len, documents)),
        data[lengths : lengths + first * LENGTH],
        data[lengths + end * LENGTH : identities],
        *names,
        known[: first * IDENTITY],
        known[end * IDENTITY :],
        b"[%b," % b",".join(documents),
        view[array + 1 : stays],
        view[stays + gone : stop],
    ]


def find(identities: bytes, one: bytes) -> int:
    """The number of the item with an identity, or -1. A match that spans two identities is no such item."""
    at = identities.find(one)
    while at % IDENTITY and at > 0:
        at = identities.find(one, at + 1)
    return at // IDENTITY


def newest(items: Iterable[Item], cap: int) -> list[Item]:
    """Of equal items the newest; of these the newest `cap`, newest first. Without identities, equal JSON is equal."""
    found: dict[bytes, Item] = {}
    for item in sorted(items, reverse=True):
        found.setdefault(item[2] or item[1], item)
        if len(found) == cap:
            break
    return list(found.values())
