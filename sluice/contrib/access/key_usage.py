"""What is counted by the names of API keys: bodies in the database, by the worker; rejections, by nginx's log.

Names are an operator's, and may be thousands: a process counts SENDERS of them, and the figures show SHOWN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sluice.base.counters import Counts
from sluice.settings import Settings

SENDERS = 1000  # whose counts a process keeps
SHOWN = 100
NAMES = "names"  # of keys, as a start or a reload of nginx found them: a file in $INGEST_HOME/etc
OTHERS = "other keys"  # no key can have this name


class KeyUsage:
    """The counts of one process, by name."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.names: set[str] = set()

    def stored(self, stream: str, names: Iterable[str]) -> None:
        """names: of each body that has one."""
        for name, n in Counter(names).items():
            self.counts.counter(f"stored_from {stream} {self.known(name)}").n += n

    def rejected(self, status: int, name: str) -> None:
        if name:
            self.counts.counter(f"rejected_from {status} {self.known(name)}").n += 1

    def known(self, name: str) -> str:
        """The name, or OTHERS if it is one too many."""
        if name not in self.names and len(self.names) >= SENDERS:
            return OTHERS
        self.names.add(name)
        return name


class KeyUsageFigures:
    """What `Observer` reads of the names of keys."""

    def __init__(self, s: Settings) -> None:
        self.names = s.home / "etc" / NAMES

    def read(self, counted: Mapping[str, int] | None, trouble: list[str]) -> list[dict[str, Any]]:
        return usage_rows(counted or {}, self.names)


def usage_rows(counted: Mapping[str, int], file: Path) -> list[dict[str, Any]]:
    """The counts by name: a list of sender, stored (by stream) and rejected (by status); most bodies first.

    file: has the present names. The first SHOWN of them, and then of earlier ones, are shown; the rest is OTHERS. So
    each sum keeps its place while the counts change.
    """
    found: dict[str, tuple[Counter[str], Counter[str]]] = {}
    for field, n in counted.items():
        kind, _, rest = field.partition(" ")
        of, _, name = rest.partition(" ")
        if kind in ("stored_from", "rejected_from"):
            found.setdefault(name, (Counter(), Counter()))[kind == "rejected_from"][of] += n
    try:
        present = {name: at for at, name in enumerate(file.read_text().splitlines())}
    except OSError:  # no key has a name any more
        present = {}
    order = sorted(found.keys() - {OTHERS}, key=lambda name: (present.get(name, len(present)), name))
    for name in order[SHOWN:]:
        stored, rejected = found.pop(name)
        others = found.setdefault(OTHERS, (Counter(), Counter()))
        others[0].update(stored)
        others[1].update(rejected)
    rows = [
        {"sender": name, "stored": dict(stored), "rejected": dict(rejected)}
        for name, (stored, rejected) in sorted(found.items())
    ]
    return sorted(rows, key=lambda row: -sum(row["stored"].values()))
