"""From rows to the values of a view: each reducer holds, of the rows added, only those that the view would keep.

The result depends on the set of rows only, not on their order or on how they are divided into calls: all comparisons
are of (time, sequence number, JSON) or (time, JSON), which is a total order. The scripts in contract.py and `merge` in
feeds.py compare alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import msgspec

from sluice.views import Feed, Latest, Tally, View, contract, feeds
from sluice.views.link import Command, Place
from sluice.views.rows.source import Row, RowSource, canonical

Stamp = tuple[Any, int, bytes]  # time as the source has it, sequence number, JSON
Item = tuple[str, Stamp, Row]  # the text of the key
Read = Callable[[list[str]], list[Place | None]]  # keys -> the strings that the views' Redis has
CALL = 500  # items of one call: about a millisecond, in which the views' Redis answers no reader
FEEDS = 8  # feeds of one transaction: their values are some 10 kB each, and glibc maps memory anew for each 128 kB


class Renderer:
    """Makes the JSON of rows: the key, the time, then the other fields in their order; nulls are left out."""

    def __init__(self, source: RowSource, stream: str, key: str) -> None:
        names = source.streams[stream].record.__struct_fields__[1:]
        self.at = {name: n for n, name in enumerate(names, 2)} | {"time": 0}
        others = [name for name in names if name != key]
        struct = msgspec.defstruct(
            "Item",
            [(key, Any), ("time", Any), *((name, Any, None) for name in others)],
            omit_defaults=True,
            gc=False,
        )
        self.make = struct
        self.key = self.at[key]
        self.pick = itemgetter(self.key, 0, *(self.at[name] for name in others))
        self.converters = source.converters[stream]
        self.text = source.time_converter(stream)
        self.encode = msgspec.json.Encoder(decimal_format="number").encode

    def items(self, rows: list[Row]) -> list[Item]:
        """The rows that have a key. A row that cannot be written as JSON is left out."""
        try:
            return list(self.render(rows))
        except Exception:  # of a value that was not written by a worker
            found: list[Item] = []
            for row in rows:
                try:
                    found += self.render([row])
                except Exception:  # noqa: S112
                    continue
            return found

    def render(self, rows: list[Row]) -> Iterator[Item]:
        """`items`, as long as every row can be written."""
        make, pick, encode, at, text = self.make, self.pick, self.encode, self.key, self.text
        plain = not self.converters and text is None
        for row in rows:
            key = row[at]
            if key is None:
                continue
            if plain:
                document = encode(make(*pick(row)))
            else:
                row = self.converted(row)
                key = row[at]
                values = pick(row)
                document = encode(make(key, text(row[0]) if text else row[0], *values[2:]))
            yield key if key.__class__ is str else encode(key).decode(), (row[0], row[1], document), row

    def converted(self, row: Row) -> Row:
        """A row with its compound values as JSON."""
        values = list(row)
        for at, convert in self.converters:
            values[at] = convert(values[at])
        return tuple(values)


class Reducer(ABC):
    """What a view keeps of the rows added so far."""

    def __init__(self, view: View, source: RowSource, renderer: Renderer) -> None:
        self.nanoseconds = source.nanoseconds
        self.renderer = renderer

    @abstractmethod
    def add(self, items: list[Item]) -> None:
        """Take rows in."""

    @abstractmethod
    def values(self) -> Iterator[tuple[str, Any]]:
        """The keys, and their values as the views' Redis holds them."""

    @abstractmethod
    def commands(self, path: str, generation: str, token: str, read: Read) -> Iterator[Command]:
        """The commands that apply the values to a generation. They are sent in this order, and before another read."""

    def order(self, stamp: Stamp) -> bytes:
        """The value of a string of `latest`: ORDER bytes and the JSON."""
        return b"%020d%020d%b" % (self.nanoseconds(stamp[0]), stamp[1], stamp[2])

    def score(self, stamp: Stamp) -> int:
        """The score in a feed: microseconds since 1970."""
        return self.nanoseconds(stamp[0]) // 1000

    def part(self, row: Row, at: list[int]) -> bytes:
        """Some values of a row, such that equal values are equal bytes."""
        values = [row[n] for n in at]
        return canonical([value if value.__class__ is not float else value + 0.0 for value in values])


class Newest(Reducer):
    """Of `latest` without `each`: key -> the newest record."""

    def __init__(self, view: Latest, source: RowSource, renderer: Renderer) -> None:
        super().__init__(view, source, renderer)
        self.held: dict[str, Stamp] = {}

    def add(self, items: list[Item]) -> None:
        """See `Reducer`."""
        held = self.held
        get = held.get
        for key, stamp, _ in items:
            old = get(key)
            if old is None or stamp > old:
                held[key] = stamp

    def values(self) -> Iterator[tuple[str, bytes]]:
        """See `Reducer`. The value: ORDER bytes and JSON."""
        for key, stamp in self.held.items():
            if fits(key):
                yield key, self.order(stamp)

    def commands(self, path: str, generation: str, token: str, read: Read) -> Iterator[Command]:
        """See `Reducer`."""
        prefix = contract.prefix(path, generation)
        head = contract.HOLDER, contract.info(path, generation)
        for some in parts(self.values(), lambda value: 1):
            yield (
                *("EVAL", contract.LATEST, 2 + len(some), *head),
                *(prefix + key for key, _ in some),
                token,
                *(value for _, value in some),
            )


class Each(Reducer):
    """Of `latest` with `each`: key -> {JSON of the `each` values -> the newest record}."""

    def __init__(self, view: Latest, source: RowSource, renderer: Renderer) -> None:
        super().__init__(view, source, renderer)
        self.each = [renderer.at[name] for name in view.each]
        self.held: dict[str, dict[bytes, Stamp]] = {}

    def add(self, items: list[Item]) -> None:
        """See `Reducer`."""
        for key, stamp, row in items:
            held = self.held.setdefault(key, {})
            field = self.part(row, self.each)
            old = held.get(field)
            if old is None or stamp > old:
                held[field] = stamp

    def values(self) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        """See `Reducer`. The value: the fields of a hash."""
        for key, held in self.held.items():
            if fits(key):
                yield key, {field: self.order(stamp) for field, stamp in held.items()}

    def commands(self, path: str, generation: str, token: str, read: Read) -> Iterator[Command]:
        """See `Reducer`."""
        prefix = contract.prefix(path, generation)
        head = contract.HOLDER, contract.info(path, generation)
        cut = (
            (key, dict(some)) for key, fields in self.values() for some in parts(iter(fields.items()), lambda value: 1)
        )
        for some in parts(cut, len):
            arguments: list[Any] = [token]
            for _, fields in some:
                arguments.append(len(fields))
                for pair in fields.items():
                    arguments += pair
            yield ("EVAL", contract.EACH, 2 + len(some), *head, *(prefix + key for key, _ in some), *arguments)


class Feeds(Reducer):
    """Of `feed`: what its two kinds have in common."""

    def __init__(self, view: Feed, source: RowSource, renderer: Renderer) -> None:
        super().__init__(view, source, renderer)
        self.cap, self.member = view.cap, bool(view.member)
        self.limit = 2 * view.cap + 32  # records held of a key before they are cut to `cap`

    @abstractmethod
    def values(self) -> Iterator[tuple[str, list[feeds.Item]]]:
        """See `Reducer`. The value: items, newest first."""

    def commands(self, path: str, generation: str, token: str, read: Read) -> Iterator[Command]:
        """See `Reducer`. Only the follower writes, so it merges here what Redis has with what is new."""
        prefix = contract.prefix(path, generation)
        for some in parts(self.values(), lambda items: max(len(items), CALL // FEEDS)):
            keys = [prefix + key for key, _ in some]
            old = read(keys)
            packed: list[Any] = [b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * len(keys))]
            for name, place, (_, items) in zip(map(str.encode, keys), old, some):
                value = feeds.merge(place, items, self.member, self.cap)
                packed.append(b"$%d\r\n%b\r\n$%d\r\n" % (len(name), name, sum(map(len, value))))
                packed += value
                packed.append(b"\r\n")
            # a script would take three times as long: Lua copies and hashes each value
            yield ("MULTI",)
            yield packed
            yield "PEXPIRE", contract.HOLDER, int(contract.LEASE * 1000)
            yield "HINCRBY", contract.info(path, generation), "keys", old.count(None)
            yield ("EXEC",)


class Items(Feeds):
    """Of `feed` without `member`: key -> its last `cap` records, each once."""

    def __init__(self, view: Feed, source: RowSource, renderer: Renderer) -> None:
        super().__init__(view, source, renderer)
        self.held: dict[str, list[Stamp]] = {}

    def add(self, items: list[Item]) -> None:
        """See `Reducer`."""
        held, limit = self.held, self.limit
        get = held.get
        for key, stamp, _ in items:
            some = get(key)
            if some is None:
                held[key] = [stamp]
            else:
                some.append(stamp)
                if len(some) >= limit:
                    self.cut(some)

    def cut(self, some: list[Stamp]) -> None:
        """Keep the last `cap` different records."""
        unique = {stamp[2]: stamp for stamp in some}
        some[:] = sorted(unique.values(), key=lambda stamp: (self.score(stamp), stamp[2]))[-self.cap :]

    def values(self) -> Iterator[tuple[str, list[feeds.Item]]]:
        """See `Feeds`."""
        nanoseconds, cap = self.nanoseconds, self.cap
        for key, some in self.held.items():
            if fits(key):
                yield key, feeds.newest([(nanoseconds(time) // 1000, document, b"") for time, _, document in some], cap)


class Members(Feeds):
    """Of `feed` with `member`: key -> the last `cap` items, of each its newest record."""

    def __init__(self, view: Feed, source: RowSource, renderer: Renderer) -> None:
        super().__init__(view, source, renderer)
        self.fields = [renderer.at[name] for name in view.member]
        self.held: dict[str, dict[bytes, feeds.Item]] = {}

    def add(self, items: list[Item]) -> None:
        """See `Reducer`."""
        for key, stamp, row in items:
            held = self.held.setdefault(key, {})
            identity = blake2b(self.part(row, self.fields), digest_size=feeds.IDENTITY).digest()
            new = self.score(stamp), stamp[2], identity
            old = held.get(identity)
            if old is None or new > old:
                held[identity] = new
                if len(held) >= self.limit:
                    self.held[key] = {item[2]: item for item in feeds.newest(held.values(), self.cap)}

    def values(self) -> Iterator[tuple[str, list[feeds.Item]]]:
        """See `Feeds`."""
        for key, held in self.held.items():
            if fits(key):
                yield key, feeds.newest(held.values(), self.cap)


def reducer(view: View, source: RowSource, renderer: Renderer) -> Reducer:
    """The reducer of a view that follows rows."""
    assert not isinstance(view, Tally)
    if isinstance(view, Latest):
        return Each(view, source, renderer) if view.each else Newest(view, source, renderer)
    return Members(view, source, renderer) if view.member else Items(view, source, renderer)


def fits(key: str) -> bool:
    """Whether a view may have this key."""
    return len(key) <= contract.KEY_BYTES // 4 or len(key.encode()) <= contract.KEY_BYTES


def parts(pairs: Iterator[tuple[Any, Any]], size: Any) -> Iterator[list[tuple[Any, Any]]]:
    """The pairs in lists for one script call each."""
    some: list[tuple[Any, Any]] = []
    total = 0
    for pair in pairs:
        some.append(pair)
        total += size(pair[1])
        if total >= CALL:
            yield some
            some, total = [], 0
    if some:
        yield some
