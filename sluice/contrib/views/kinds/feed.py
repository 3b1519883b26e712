"""`feed`: the last records of a key, at most `cap`, newest first: descending by (time, JSON).

A value is one string with its items, newest first, as a client gets them:

    count        4 bytes: the number of items, n
    scores       n times 8 bytes: microseconds since 1970
    lengths      n times 4 bytes: of the JSON of each item
    identities   n times 8 bytes, only with `member`: a hash of these fields
    array        a JSON array

Integers are little-endian; scores have a sign.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, Any

from sluice.base.override import override
from sluice.contrib.views import contract
from sluice.contrib.views.kinds.followed import CALL_ITEMS, Followed, Reducer, script_calls
from sluice.contrib.views.kinds.view import ToJson

if TYPE_CHECKING:
    from sluice.contrib.views.link import Command, Place, Read
    from sluice.contrib.views.render import Rendered, Renderer

MAX_CAP = 1000  # items of a feed
CALL_FEEDS = 8  # of one transaction: their values are some 10 kB each, and glibc maps memory anew for each 128 kB
IDENTITY_BYTES, SCORE_BYTES, LENGTH_BYTES = 8, 8, 4
COUNT = Struct("<I")

Item = tuple[int, bytes, bytes]  # score, JSON, identity; the identity is b"" without `member`


@dataclass(frozen=True)
class Feed(Followed):
    """The last records of a key; two are one item if their `member` fields (none: all) are equal."""

    cap: int
    member: tuple[str, ...]

    @property
    @override
    def fields(self) -> tuple[str, ...]:
        return self.key, *self.member

    @property
    @override
    def problem(self) -> str:
        return "" if type(self.cap) is int and 1 <= self.cap <= MAX_CAP else f"cap is an integer from 1 to {MAX_CAP}"

    @property
    @override
    def max_limit(self) -> int:
        return self.cap

    @override
    def to_json(self) -> ToJson:
        return partial(items_page, bool(self.member))

    @override
    def reducer(self, renderer: Renderer) -> Reducer:
        return Feeds(self, renderer)

    @override
    def decode(self, reply: Any) -> list[Item]:
        return decode(reply, bool(self.member))

    @override
    def may_serve(self, served: Any, expected: Any) -> bool:
        return bool(newest_items([*expected, *served], self.cap) == served)


def feed(stream: str, key: str, cap: int = 100, member: Collection[str] = ()) -> Feed:
    """A view with the last records of a key, newest first, such as a user's notifications.

    cap: records, 1 to 1000.
    member: fields; records in which they are equal are one item, and the newest is it. Without `member`, records
        that are equal in all fields and the time are one item.
    """
    return Feed(stream, key, cap, tuple(member))


class Feeds(Reducer):
    """Key -> its last items, each once, by identity, or by JSON if they have none."""

    held: dict[str, dict[bytes, Item]]

    def __init__(self, view: Feed, renderer: Renderer) -> None:
        super().__init__()
        self.cap, self.member = view.cap, bool(view.member)
        self.limit = 2 * view.cap + 32  # items held of a key before they are cut to `cap`
        self.part = renderer.part
        self.fields = [renderer.at[name] for name in view.member]

    @override
    def add(self, items: list[Rendered]) -> None:
        get, member, limit = self.held.get, self.member, self.limit
        name = identity = b""
        for key, (time, _, document), row in items:
            held = get(key)
            if held is None:
                held = self.held[key] = {}
            if member:
                name = identity = blake2b(self.part(row, self.fields), digest_size=IDENTITY_BYTES).digest()
            else:
                name = document
            new, old = (time // 1000, document, identity), held.get(name)
            if old is None or new > old:
                held[name] = new
                if len(held) >= limit:
                    self.held[key] = {item[2] or item[1]: item for item in newest_items(held.values(), self.cap)}

    @override
    def value(self, held: dict[bytes, Item]) -> list[Item]:
        return newest_items(held.values(), self.cap)

    @override
    def commands(self, path: str, generation: str, token: str, room: int, read: Read) -> Iterator[Command]:
        prefix = contract.generation_prefix(path, generation)  # only the follower writes, so it merges here
        for call in script_calls(self.values(), lambda items: max(len(items), CALL_ITEMS // CALL_FEEDS)):
            keys = [prefix + key for key, _ in call]
            old = read(keys)
            packed: list[Any] = [b""]
            count = made = grown = 0
            for name, place, (_, items) in zip(map(str.encode, keys), old, call):
                value = merge_items(place, items, self.member, self.cap)
                size = sum(map(len, value))
                if place is None:
                    if len(name) + size + contract.ENTRY_BYTES > room - grown:
                        continue
                    made += 1
                    grown += len(name) + size + contract.ENTRY_BYTES
                else:
                    grown += size - place[2] + place[1]
                count += 1
                packed.append(b"$%d\r\n%b\r\n$%d\r\n" % (len(name), name, size))
                packed += value
                packed.append(b"\r\n")
            packed[0] = b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * count)
            room -= grown
            info = contract.info_key(path, generation)
            # a script would take three times as long: Lua copies and hashes each value
            yield ("MULTI",)
            if count:
                yield packed
            yield "PEXPIRE", contract.HOLDER, int(contract.LEASE_SECONDS * 1000)
            yield "HINCRBY", info, "keys", made
            yield "HINCRBY", info, "bytes", grown
            yield "HINCRBY", info, "refused", len(keys) - count
            yield ("EXEC",)


def encode_items(items: Sequence[Item]) -> bytes:
    """The value with these items, at least one, newest first."""
    scores, documents, identities = zip(*items)
    head = pack(f"<I{len(items)}q{len(items)}I", len(items), *scores, *map(len, documents))
    return b"%b%b[%b]" % (head, b"".join(identities), b",".join(documents))


def decode(value: bytes, member: bool) -> list[Item]:
    count, lengths, identities, array = value_layout(value, member)
    scores = unpack_from(f"<{count}q", value, COUNT.size)
    sizes = unpack_from(f"<{count}I", value, lengths)
    starts = accumulate((size + 1 for size in sizes), initial=array + 1)
    width = (array - identities) // count
    names = (value[at : at + width] for at in range(identities, identities + count * 8, 8))
    return [
        (score, value[start : start + size], name) for score, start, size, name in zip(scores, starts, sizes, names)
    ]


def value_layout(value: bytes, member: bool, start: int = 0) -> tuple[int, int, int, int]:
    """The number of items, and where lengths, identities and array begin. start: of the value."""
    (count,) = COUNT.unpack_from(value, start)
    lengths = start + COUNT.size + count * SCORE_BYTES
    identities = lengths + count * LENGTH_BYTES
    return count, lengths, identities, identities + (count * IDENTITY_BYTES if member else 0)


def items_page(member: bool, place: Place, limit: int) -> bytes:
    """The JSON array of the newest items, at most `limit`, of a value."""
    data, start, stop = place
    count, lengths, _, array = value_layout(data, member, start)
    if limit >= count:
        return data[array:stop]
    return data[array : array + size_of(data, lengths, limit)] + b"]"


def size_of(value: bytes, lengths: int, count: int) -> int:
    """Bytes of the beginning of the array: "[" and the first items, with the commas between them."""
    sizes: tuple[int, ...] = unpack_from(f"<{count}I", value, lengths)
    return sum(sizes) + count


def merge_items(place: Place | None, new: list[Item], member: bool, cap: int) -> list[Any]:
    """The pieces of a value with more items: of equal ones the newest, and of all the newest `cap`.

    place: of the value; None if there is none yet. new: at least one item, newest first, no two equal.
    """
    if place is None:
        return [encode_items(newest_items(new, cap))]
    data, start, stop = place
    count, lengths, identities, array = value_layout(data, member, start)
    scores = start + COUNT.size
    known = data[identities:array]
    (last,) = unpack_from("<q", data, scores)
    # the usual cases: all are newer than the value, and what stays of it is copied behind them; its last items go, or
    # the one that the only new item replaces
    first, end = min(count, cap - len(new)), count
    if known and [item for item in new if item[2] in known]:
        first = find_item(known, new[0][2]) if len(new) == 1 else 0
        first, end = (count if count < cap else count - 1, count) if first < 0 else (first, first + 1)
    if new[-1][0] <= last or first < 1:
        return [encode_items(newest_items([*new, *decode(data[start:stop], member)], cap))]
    scored, documents, names = zip(*new)
    gone = sum(unpack_from(f"<{end - first}I", data, lengths + first * LENGTH_BYTES)) + end - first
    stays = array + size_of(data, lengths, first) if end < count else stop - 1 - gone
    view = memoryview(data)
    return [
        pack(f"<I{len(new)}q", len(new) + count - end + first, *scored),
        data[scores : scores + first * SCORE_BYTES],
        data[scores + end * SCORE_BYTES : lengths],
        pack(f"<{len(new)}I", *map(len, documents)),
        data[lengths : lengths + first * LENGTH_BYTES],
        data[lengths + end * LENGTH_BYTES : identities],
        *names,
        known[: first * IDENTITY_BYTES],
        known[end * IDENTITY_BYTES :],
        b"[%b," % b",".join(documents),
        view[array + 1 : stays],
        view[stays + gone : stop],
    ]


def find_item(identities: bytes, identity: bytes) -> int:
    """The number of the item with an identity, or -1. A match that spans two identities is no such item."""
    at = identities.find(identity)
    while at % IDENTITY_BYTES and at > 0:
        at = identities.find(identity, at + 1)
    return at // IDENTITY_BYTES


def newest_items(items: Iterable[Item], cap: int) -> list[Item]:
    """Of equal items the newest; of these the newest `cap`, newest first. Without identities, equal JSON is equal."""
    kept: dict[bytes, Item] = {}
    for item in sorted(items, reverse=True):
        kept.setdefault(item[2] or item[1], item)
        if len(kept) == cap:
            break
    return list(kept.values())
