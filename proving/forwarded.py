"""What the receiver of a drill got, compared with what is stored."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from proving.receiver import Program
from proving.site import Site, wait
from proving.store import EVENTS

STREAMS = "gps", "votes"
TAKEN = {"take", "lie"}
PATIENCE = 300.0  # seconds until all is posted: a row that was refused often waits for minutes


def compared(site: Site, receiver: Program, run: str) -> dict[str, Any]:
    """Wait until nothing is to be posted, then compare. Raises: Trouble.

    posts: requests. rows: that were taken, by their keys. missing: stored, and never taken. doubled: events with
    several keys, and keys with several events. disorder: positions that were first posted before an earlier one of
    their device.
    """
    wait(lambda: not site.store.number("SELECT count(*) FROM batches_carried"), PATIENCE, "all rows are posted")
    counts = dict.fromkeys(("posts", "rows", "missing", "doubled", "disorder"), 0)
    keys: dict[tuple[str, int], set[str]] = defaultdict(set)
    events: dict[str, set[tuple[str, int]]] = defaultdict(set)
    gone: set[str] = set()
    firsts: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)  # device and epoch -> numbers as first posted
    for mode, key, row in receiver.journal():
        stream = "gps" if "device" in row else "votes"
        number, name, _ = EVENTS[stream]
        if row[name] != run and not row[name].startswith(f"{run}."):
            continue
        counts["posts"] += 1
        event = stream, int(row[number])
        events[key].add(event)
        if mode == "410":
            gone.add(key)
        if stream == "gps":
            firsts[row[name], key.partition(":")[0]].setdefault(row["seq"], key)
        if mode in TAKEN:
            keys[event].add(key)
    counts["rows"] = len({key for some in keys.values() for key in some})
    counts["doubled"] = sum(len(some) > 1 for some in keys.values())
    counts["doubled"] += sum(len(some) > 1 for some in events.values())
    for stream in STREAMS:
        counts["missing"] += sum((stream, number) not in keys for number, _ in site.store.rows(stream, run))
    for posted in firsts.values():
        numbers = [number for number, key in posted.items() if key not in gone]
        counts["disorder"] += sum(before > after for before, after in zip(numbers, numbers[1:]))
    return counts
