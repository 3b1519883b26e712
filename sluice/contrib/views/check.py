"""Compares views with the database: the values that a rebuild would give with those in the views' Redis.

Rows may arrive meanwhile: keys that differ are compared again after more rows are read, and count as different only if
they differ every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

from sluice.contrib.views import contract
from sluice.contrib.views.client import ViewsClient
from sluice.contrib.views.follower import CHUNK_ROWS
from sluice.contrib.views.kinds.followed import Followed
from sluice.contrib.views.kinds.tally import Tally
from sluice.contrib.views.kinds.view import View
from sluice.contrib.views.render import Renderer
from sluice.contrib.views.rows.registry import open_row_source
from sluice.contrib.views.rows.source import RowSource
from sluice.parsers import FOREVER, Keep
from sluice.streams.registry import Stream

SHARE_KEYS = 50_000  # compared in one pass over the rows; a view with more keys takes several passes
TRIES = 40  # comparisons of keys that differ
PAUSE_SECONDS = 0.1  # between them: the follower applies a row within a few tens of milliseconds
ABSENT = "absent"


class Checked(NamedTuple):
    """What a check found. state: served, full, or building. keys: compared. different: those that differ."""

    state: str
    keys: int
    different: list[str]


class Checker:
    def __init__(self, socket: str, url: str, streams: dict[str, Stream], keep: Keep = FOREVER) -> None:
        """keep: INGEST_KEEP. A view may have more than the rows that were not deleted by age."""
        self.keep = keep
        self.client = ViewsClient(socket)
        self.source = open_row_source(url, streams)

    def check(self, path: str, view: View) -> Checked:
        """Compare one view. Raises: RedisError, Unavailable."""
        if isinstance(view, Tally):
            return self.check_counts(path, view)
        assert isinstance(view, Followed)
        state = (self.client.ask(("GET", contract.state_key(path)))[0] or b"").decode()
        if not state or state == contract.FULL.decode():
            return Checked(state or "building", 0, [])
        size = int(self.client.ask(("HGET", contract.info_key(path, state), "keys"))[0] or 0)
        shares = size // SHARE_KEYS + 1
        keys = 0
        different: list[str] = []
        for share in range(shares):
            compared, wrong = self.check_share(path, view, state, share, shares)
            keys, different = keys + compared, different + wrong
        if different and self.client.ask(("GET", contract.state_key(path)))[0] != state.encode():
            return self.check(path, view)  # another generation is served now, and the keys of that one are deleted
        return Checked("served", keys, different)

    def check_share(self, path: str, view: Followed, generation: str, share: int, shares: int) -> tuple[int, list[str]]:
        """Compare the keys of one share, by their hash."""

        def shared(key: str) -> bool:
            return shares == 1 or crc32(key.encode(errors="surrogateescape")) % shares == share

        crowded = self.client.ask(("GET", contract.crowded_key(path)))[0] == generation.encode()
        mirror = Mirror(self.source, view, shared)
        suspects = set(filter(shared, self.keys(view.prefix(path, generation)))) | mirror.read().keys()
        keys = len(suspects)
        aged = self.keep.for_stream(view.stream) is not None
        for again in range(TRIES):
            if again:
                time.sleep(PAUSE_SECONDS)
            before = self.values(path, view, generation, suspects)
            expected = mirror.read()
            after = self.values(path, view, generation, suspects)
            suspects = {
                key for key in suspects
                if not any(agree(view, values[key], expected.get(key, ABSENT), aged) for values in (before, after))
                and not (crowded and before[key] == after[key] == ABSENT)
            }  # fmt: skip
            if not suspects:
                break
        return keys, sorted(suspects)

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys of the values whose names begin with a prefix."""
        cursor = b"0"
        while True:
            cursor, names = self.client.ask(("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000))[0]
            yield from (name.decode().removeprefix(prefix) for name in names)
            if int(cursor) == 0:
                return

    def values(self, path: str, view: Followed, generation: str, keys: set[str]) -> dict[str, Any]:
        """The values of some keys in the views' Redis, in the form of `Reducer.values`."""
        prefix = contract.generation_prefix(path, generation)
        command = "GET" if view.string else "HGETALL"
        values: dict[str, Any] = {}
        ordered = sorted(keys)
        for start in range(0, len(ordered), 500):
            some = ordered[start : start + 500]
            for key, reply in zip(some, self.client.ask(*((command, prefix + key) for key in some))):
                values[key] = view.decode(reply) if reply else ABSENT
        return values

    def check_counts(self, path: str, view: Tally) -> Checked:
        """Compare the kept counts: the database may have more since, and a count is kept for its lifetime."""
        different = []
        prefix = view.prefix(path, "")
        keys = 0
        for key in self.keys(prefix):
            for again in range(TRIES):  # rows may be deleted by age between two counts
                if again:
                    time.sleep(PAUSE_SECONDS)
                kept = self.client.ask(("GET", prefix + key))[0]
                if not kept:
                    break
                keys += not again
                if view.may_serve(kept, view.count(self.source, key)):
                    break
            else:
                different.append(key)
        return Checked("served", keys, different)

    def close(self) -> None:
        self.client.close()
        self.source.close()


class Mirror:
    """A view in the memory of this process, restricted to one share of the keys."""

    def __init__(self, source: RowSource, view: Followed, shared: Callable[[str], bool]) -> None:
        self.source, self.view, self.shared = source, view, shared
        self.renderer = Renderer(source, view.stream, view.key)
        self.reducer = view.reducer(self.renderer)
        self.source.news()
        self.position = source.start()

    def read(self) -> dict[str, Any]:
        """The values after all rows that are committed by now."""
        self.source.news()
        more = True
        with self.source.snapshot():
            while more:
                changes = self.source.changes(self.view.stream, self.position, CHUNK_ROWS)
                for rows in changes.pieces:
                    self.reducer.add([item for item in self.renderer.items(rows) if self.shared(item[0])])
                self.position, more = changes.position, changes.more
        return dict(self.reducer.values())


def agree(view: Followed, served: Any, expected: Any, aged: bool) -> bool:
    """Whether a served value is what it should be. aged: rows are deleted by age, so it may have more."""
    if served == expected or not aged:
        return bool(served == expected)
    return expected == ABSENT or (served != ABSENT and view.may_serve(served, expected))
