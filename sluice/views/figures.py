"""The figures of all views at one moment, for every display of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from sluice.views import Tally, contract
from sluice.views import View as Declaration
from sluice.views.follower import Link

SAMPLE = 200  # keys of a view whose memory is measured; its memory is their mean times its keys
STEPS = 50  # of SCAN in search of them


class View(NamedTuple):
    """The figures of one view.

    state: served, full, or building (for the first time). keys: of a tally, those with a kept value.
    bytes: of memory, from a sample; None if there is no key. rows: applied since the generation was begun.
    lag: seconds; rows committed earlier are applied. Of a tally: the age of the oldest kept value. None: not known.
    refreshes: of a tally, the counts made.
    """

    path: str
    state: str
    keys: int
    bytes: int | None
    rows: int
    lag: float | None
    refreshes: int


def look(link: Link, declared: Mapping[str, Declaration]) -> list[View]:
    """The figures of the declared views. Raises: RedisError."""
    sizes = sample(link)
    found = []
    for path, view in declared.items():
        size = sizes.get(path, [])
        mean = sum(size) / len(size) if size else None
        if isinstance(view, Tally):
            found.append(tally(link, path, view, mean))
            continue
        state = (link.ask(("GET", contract.state(path)))[0] or b"").decode()
        if not state or state == contract.FULL.decode():
            found.append(View(path, state or "building", 0, None, 0, None, 0))
            continue
        fields = link.ask(("HMGET", contract.info(path, state), "keys", "rows", "synced"))[0]
        keys, rows, synced = (int(field or 0) for field in fields)
        lag = max(0.0, time.time() - synced / 1000) if synced else None
        found.append(View(path, "served", keys, None if mean is None else int(mean * keys), rows, lag, 0))
    return found


def tally(link: Link, path: str, view: Tally, mean: float | None) -> View:
    """The figures of a tally."""
    keys = [key.decode(errors="surrogateescape") for key in link.ask(("ZRANGE", contract.wanted(path), 0, 999))[0]]
    ages = []
    if keys:
        left = link.ask(*(("PTTL", contract.tally(path, key)) for key in keys))
        ages = [2 * view.period - milliseconds / 1000 for milliseconds in left if milliseconds > 0]
    refreshes = int(link.ask(("HGET", contract.REFRESHES, path))[0] or 0)
    return View(
        path,
        "served",
        len(ages),
        None if mean is None else int(mean * len(ages)),
        0,
        max(ages, default=None),
        refreshes,
    )


def sample(link: Link) -> dict[str, list[int]]:
    """The memory of some keys, by the path of their view."""
    names: dict[str, list[bytes]] = {}
    cursor: Any = b"0"
    for _ in range(STEPS):
        cursor, keys = link.ask(("SCAN", cursor, "COUNT", 500))[0]
        for key in keys:
            kind, _, rest = key.partition(b":")
            if kind in (b"v", b"t"):
                names.setdefault(rest.partition(b":")[0].decode(), []).append(key)
        if int(cursor) == 0:
            break
    found = {}
    for path, some in names.items():
        step = max(1, len(some) // SAMPLE)
        sizes = link.ask(*(("MEMORY", "USAGE", key) for key in some[::step]))
        found[path] = [size for size in sizes if size]
    return found
