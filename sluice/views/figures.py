"""The figures of all views at one moment, for every display of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from sluice.views import Tally, contract
from sluice.views import View as Declaration
from sluice.views.follower import Link

PATIENCE = 0.5  # seconds a display waits for a reply: its other figures come once a second
NEWEST = 100  # keys of a tally whose age is taken: those that clients asked for last
SAMPLE = 200  # keys of a view whose memory is measured; its memory is their mean times its keys
STEPS = 50  # of SCAN in search of them


class View(NamedTuple):
    """The figures of one view; an unknown one is None.

    state: served, full, building (for the first time), or unavailable (so is the views' Redis).
    keys: of a tally, those that clients asked for within two periods. rows: applied since the generation was begun.
    lag: seconds; rows committed earlier are applied. Of a tally: the age of its oldest kept count.
    refreshes: of a tally, the counts made; None for other views. reads: answers by status. Both since the views' Redis
    was started.
    bytes: of memory, from a sample, if it was asked for and there is a key.
    """

    path: str
    state: str
    keys: int | None = None
    rows: int | None = None
    lag: float | None = None
    refreshes: int | None = None
    reads: dict[str, int] | None = None
    bytes: int | None = None


def look(link: Link, declared: Mapping[str, Declaration]) -> list[View]:
    """The figures of the declared views without their memory, in two round trips. Raises: RedisError."""
    now = time.time()
    counted, refreshed, *firsts = link.ask(
        ("HGETALL", contract.READS),
        ("HGETALL", contract.REFRESHES),
        *(
            ("ZREVRANGE", contract.wanted(path), 0, NEWEST - 1)
            if isinstance(view, Tally)
            else ("GET", contract.state(path))
            for path, view in declared.items()
        ),
    )
    reads: dict[str, dict[str, int]] = {}
    for field, n in pairs(counted).items():
        path, _, status = field.rpartition(" ")
        reads.setdefault(path, {})[status] = n
    refreshes = pairs(refreshed)
    commands: list[tuple[Any, ...]] = []
    for (path, view), first in zip(declared.items(), firsts):
        if isinstance(view, Tally):
            names = [contract.tally(path, view, key.decode(errors="surrogateescape")) for key in first]
            commands.append(("ZCARD", contract.wanted(path)))
            commands += [(verb, name) for name in names for verb in ("PTTL", "STRLEN")]
        elif first not in (None, contract.FULL):
            commands.append(("HMGET", contract.info(path, first.decode()), "keys", "rows", "synced"))
    replies = iter(link.ask(*commands))
    found = []
    for (path, view), first in zip(declared.items(), firsts):
        one = View(path, "served", reads=reads.get(path, {}))
        if isinstance(view, Tally):
            known, kept = next(replies), [(next(replies), next(replies)) for _ in first]
            ages = [2 * view.period - left / 1000 for left, size in kept if size]  # empty: the key is unknown
            one = one._replace(keys=known, lag=max(ages, default=None), refreshes=refreshes.get(path, 0))
        elif first in (None, contract.FULL):
            one = one._replace(state="full" if first else "building")
        else:
            keys, rows, synced = (int(field or 0) for field in next(replies))
            one = one._replace(keys=keys, rows=rows, lag=max(0.0, now - synced / 1000) if synced else None)
        found.append(one)
    return found


def pairs(flat: list[bytes]) -> dict[str, int]:
    """The reply to HGETALL, of a hash of counts."""
    return {field.decode(): int(n) for field, n in zip(flat[::2], flat[1::2])}


def rates(
    before: Mapping[str, int] | None, now: Mapping[str, int] | None, seconds: float
) -> tuple[float | None, float | None]:
    """Reads per second between two looks, and the hit rate: of the answers 200 and 404, the share of 200.

    None: unknown, as after a restart of the views' Redis; without such an answer there is no hit rate.
    """
    if before is None or now is None or seconds <= 0:
        return None, None
    new = {status: n - before.get(status, 0) for status, n in now.items()}
    if min(new.values(), default=0) < 0 or before.keys() - now.keys():
        return None, None
    asked = new.get("200", 0) + new.get("404", 0)
    return sum(new.values()) / seconds, new.get("200", 0) / asked if asked else None


def measured(link: Link, found: list[View]) -> list[View]:
    """The figures with the memory. Looks at some keys of each view: too slow for every second. Raises: RedisError."""
    means = sample(link)
    return [one._replace(bytes=int(means[one.path] * (one.keys or 0))) if one.path in means else one for one in found]


def sample(link: Link) -> dict[str, float]:
    """The mean memory of a key, by the path of the view; from some keys of each."""
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
    means: dict[str, float] = {}
    for path, some in names.items():
        step = max(1, len(some) // SAMPLE)
        sizes = [size for size in link.ask(*(("MEMORY", "USAGE", key) for key in some[::step])) if size]
        if sizes:
            means[path] = sum(sizes) / len(sizes)
    return means
