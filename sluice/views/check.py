"""Compares views with the database: the values that a rebuild would give with those in the views' Redis.

Rows may arrive meanwhile: keys that differ are compared again after more rows are read, and count as different only if
they differ every time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

from sluice.settings import FOREVER, Keep
from sluice.streams.registry import Stream
from sluice.views import Feed, Latest, Tally, View, contract, feeds, refresh
from sluice.views.follower import ROWS, Link
from sluice.views.reduce import Renderer, reducer
from sluice.views.rows.registry import open_row_source
from sluice.views.rows.source import RowSource

SHARE = 50_000  # keys compared in one pass over the rows; a view with more keys takes several passes
TRIES = 40  # comparisons of keys that differ
PAUSE = 0.1  # seconds between them: the follower applies a row within a few tens of milliseconds
ABSENT = "absent"


class Checked(NamedTuple):
    """What a check found. state: served, full, or building. keys: compared. different: those that differ."""

    state: str
    keys: int
    different: list[str]


class Checker:
    """Compares the views of one cell."""

    def __init__(self, socket: str, url: str, streams: dict[str, Stream], keep: Keep = FOREVER) -> None:
        """keep: INGEST_KEEP. A view may have more than the rows that were not deleted by age."""
        self.keep = keep
        self.link = Link(socket)
        self.source = open_row_source(url, streams)

    def check(self, path: str, view: View) -> Checked:
        """Compare one view. Raises: RedisError, Unavailable."""
        if isinstance(view, Tally):
            return self.check_tally(path, view)
        state = (self.link.ask(("GET", contract.state(path)))[0] or b"").decode()
        if not state or state == contract.FULL.decode():
            return Checked(state or "building", 0, [])
        size = int(self.link.ask(("HGET", contract.info(path, state), "keys"))[0] or 0)
        shares = size // SHARE + 1
        keys = 0
        different: list[str] = []
        for share in range(shares):
            found, wrong = self.check_share(path, view, state, share, shares)
            keys, different = keys + found, different + wrong
        if different and self.link.ask(("GET", contract.state(path)))[0] != state.encode():
            return self.check(path, view)  # another generation is served now, and the keys of that one are deleted
        return Checked("served", keys, different)

    def check_share(
        self, path: str, view: Latest | Feed, generation: str, share: int, shares: int
    ) -> tuple[int, list[str]]:
        """Compare the keys of one share, by their hash."""
        mirror = Mirror(self.source, view, share, shares)
        mirror.read()
        expected = mirror.values()
        present = self.present(path, generation, share, shares)
        suspects = present | expected.keys()
        keys = len(suspects)
        for again in range(TRIES):
            if again:
                time.sleep(PAUSE)
            before = self.values(path, view, generation, suspects)
            mirror.read()
            after = self.values(path, view, generation, suspects)
            expected = mirror.values()
            aged = self.keep.of(view.stream) is not None
            suspects = {
                key for key in suspects
                if not any(agree(view, found[key], expected.get(key, ABSENT), aged) for found in (before, after))
            }  # fmt: skip
            if not suspects:
                break
        return keys, sorted(suspects)

    def present(self, path: str, generation: str, share: int, shares: int) -> set[str]:
        """The keys of a generation."""
        prefix = contract.prefix(path, generation)
        found: set[str] = set()
        cursor = b"0"
        while True:
            cursor, names = self.link.ask(("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000))[0]
            keys = (name.decode().removeprefix(prefix) for name in names)
            found.update(key for key in keys if in_share(key, share, shares))
            if int(cursor) == 0:
                return found

    def values(self, path: str, view: Latest | Feed, generation: str, keys: set[str]) -> dict[str, Any]:
        """The values of some keys in the views' Redis, in the form of `Reducer.values`."""
        prefix = contract.prefix(path, generation)
        command = "HGETALL" if isinstance(view, Latest) and view.each else "GET"
        found: dict[str, Any] = {}
        ordered = sorted(keys)
        for start in range(0, len(ordered), 500):
            some = ordered[start : start + 500]
            for key, reply in zip(some, self.link.ask(*((command, prefix + key) for key in some))):
                found[key] = value(view, reply)
        return found

    def check_tally(self, path: str, view: Tally) -> Checked:
        """Compare the kept counts: a count may have grown since, and a tally may be no older than its lifetime."""
        different = []
        prefix = contract.tally(path, view, "")
        keys, cursor = 0, b"0"
        while True:
            cursor, names = self.link.ask(("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000))[0]
            for name in names:
                key = name.decode().removeprefix(prefix)
                for again in range(TRIES):  # rows may be deleted by age between two counts
                    if again:
                        time.sleep(PAUSE)
                    text = self.link.ask(("GET", name))[0]
                    if not text:
                        break
                    keys += not again
                    now = json.loads(refresh.count(self.source, view, key) or '{"choices": {}}')["choices"]
                    if all(now.get(choice, 0) >= n for choice, n in json.loads(text)["choices"].items()):
                        break
                else:
                    different.append(key)
            if int(cursor) == 0:
                return Checked("served", keys, different)

    def close(self) -> None:
        """Close both connections."""
        self.link.close()
        self.source.close()


class Mirror:
    """A view in the memory of this process, restricted to one share of the keys."""

    def __init__(self, source: RowSource, view: Latest | Feed, share: int, shares: int) -> None:
        self.source, self.view, self.share, self.shares = source, view, share, shares
        self.renderer = Renderer(source, view.stream, view.key)
        self.reducer = reducer(view, source, self.renderer)
        self.source.news()
        self.position = source.start()

    def read(self) -> None:
        """Take in all rows that are committed by now."""
        self.source.news()
        more = True
        with self.source.snapshot():
            while more:
                changes = self.source.changes(self.view.stream, self.position, ROWS)
                for rows in changes.pieces:
                    items = self.renderer.items(rows)
                    if self.shares > 1:
                        items = [item for item in items if in_share(item[0], self.share, self.shares)]
                    self.reducer.add(items)
                self.position, more = changes.position, changes.more

    def values(self) -> Mapping[str, Any]:
        """Key -> value."""
        return dict(self.reducer.values())


def agree(view: Latest | Feed, served: Any, expected: Any, aged: bool) -> bool:
    """Whether a served value is what it should be. aged: also if the rows that are left would not change it."""
    if served == expected or not aged:
        return served == expected
    if expected == ABSENT:
        return True
    if served == ABSENT:
        return False
    if isinstance(view, Feed):
        return feeds.newest([*expected, *served], view.cap) == served
    if view.each:
        return all(served.get(field, b"") >= found for field, found in expected.items())
    return served >= expected


def in_share(key: str, share: int, shares: int) -> bool:
    """Whether a key belongs to a share."""
    return shares == 1 or crc32(key.encode(errors="surrogateescape")) % shares == share


def value(view: Latest | Feed, reply: Any) -> Any:
    """The value of one key from the reply of the views' Redis."""
    if not reply:
        return ABSENT
    if isinstance(view, Feed):
        return feeds.decode(reply, bool(view.member))
    return dict(zip(reply[::2], reply[1::2])) if view.each else reply
