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
ONE = Struct("<Iq")  # the beginning of a value with one new item
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


def page(member: bool, data: bytes, start: int, stop: int, limit: int) -> bytes:
    """The JSON array of the newest items, at most `limit`, of the value that is a part of `data`."""
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
    known = data[identities:array]  # a match that spans two is no such item, and costs only time: `newest` compares all
    (last,) = unpack_from("<q", data, scores)
    if len(new) >= cap or new[-1][0] <= last or (known and [item for item in new if item[2] in known]):
        return [encode(newest([*new, *decode(data[start:stop], member)], cap))]
    # the usual case: all are newer than the value, so its beginning is copied behind them
    kept = min(count, cap - len(new))
    end = stop - 1
    if gone := count - kept:
        end -= sum(unpack_from(f"<{gone}I", data, lengths + kept * LENGTH)) + gone
    if len(new) == 1:
        ((score, document, name),) = new
        head, sizes = ONE.pack(kept + 1, score), COUNT.pack(len(document))
    else:
        times, documents, names = zip(*new)
        head = pack(f"<I{len(new)}q", len(new) + kept, *times)
        sizes = pack(f"<{len(new)}I", *map(len, documents))
        document, name = b",".join(documents), b"".join(names)
    return [
        head,
        data[scores : scores + kept * SCORE],
        sizes,
        data[lengths : lengths + kept * LENGTH],
        name,
        known[: kept * IDENTITY],
        b"[%b," % document,
        memoryview(data)[array + 1 : end],
        b"]",
    ]


def newest(items: Iterable[Item], cap: int) -> list[Item]:
    """Of equal items the newest; of these the newest `cap`, newest first. Without identities, equal JSON is equal."""
    found: dict[bytes, Item] = {}
    for item in sorted(items, reverse=True):
        found.setdefault(item[2] or item[1], item)
        if len(found) == cap:
            break
    return list(found.values())
