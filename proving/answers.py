"""What a view may answer to a client that knows what it has posted, and what it was answered before.

An answer may lag behind the database, so a value that is missing at its end is not wrong. Each client posts one event
at a time for keys of its own, so it knows their order: an event that was acknowledged is older than all later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proving.load import SPAN, Book

Item = Mapping[str, Any]

KINDS = {
    "status": "a status that no fault explains, or an error that is not as documented",
    "shape": "JSON that is not as documented",
    "foreign": "a value that was not posted",
    "changed": "an event with other contents than before",
    "back": "an older value than before",
    "lost": "without a value that was there before",
    "order": "a feed that is not newest first",
    "double": "an item twice in one feed",
    "cap": "a feed with more items than its cap or its limit",
    "count": "counts that do not fit the votes or their total",
}


class Wrong(Exception):
    """An answer that no view may give. Arguments: a name in KINDS, and details."""


def require(fact: bool, kind: str, *details: object) -> None:
    """Raises: Wrong unless it is a fact."""
    if not fact:
        raise Wrong(kind, " ".join(map(str, details)))


class Positions:
    """What one client knows of its device."""

    def __init__(self, device: str, number: int, book: Book) -> None:
        """number: of the client; its event n has the number SPAN * number + n. book: of the positions it posted."""
        self.device, self.base, self.book = device, SPAN * number, book
        self.items: dict[int, Item] = {}  # n -> the item as it was first answered
        self.newest: dict[str, int] = {}  # path -> n of the last answer
        self.feeds: dict[str, dict[int, Item]] = {}  # path -> n -> the item in the last answer

    def event(self, item: Any) -> int:
        """The n of an item. Raises: Wrong."""
        require(isinstance(item, dict) and {"device", "time", "altitude"} <= item.keys(), "shape", item)
        n = int(item["altitude"]) - self.base
        posted = 0 <= n < len(self.book.status)
        require(item["device"] == self.device and posted, "foreign", item)
        require(self.items.setdefault(n, item) == item, "changed", item, "was", self.items[n])
        return n

    def acknowledged(self, n: int) -> bool:
        """Whether the response to an event was a 2xx."""
        return 200 <= self.book.status[n] < 300

    def latest(self, path: str, item: Any) -> int:
        """Judge the answer of a `latest`. Returns: its n. Raises: Wrong."""
        n = self.event(item)
        before = self.newest.get(path, -1)
        if before >= 0:
            was = self.items[before]
            # an event without a response may have reached the list after events that were posted later
            older = n < before and self.acknowledged(n)
            require(item["time"] >= was["time"] and not older, "back", item, "was", was)
        self.newest[path] = n
        return n

    def feed(self, path: str, items: Any, cap: int, limit: int, member: str = "") -> int:
        """Judge the answer of a `feed`. member: the field that makes an item unique; "": all of them.

        Returns: the greatest n; -1 if there is no item. Raises: Wrong.
        """
        require(isinstance(items, list), "shape", items)
        require(len(items) <= min(cap, limit), "cap", len(items))
        numbers = [self.event(item) for item in items]
        by: dict[Any, Item] = {item[member]: item for item in items} if member else dict(zip(numbers, items))
        require(len(by) == len(items), "double", numbers)
        times = [item["time"] for item in items]
        require(times == sorted(times, reverse=True), "order", times)
        # a full feed has lost nothing but its oldest items; items of the time of its last one may be among these
        floor = times[-1] if times and len(items) == min(cap, limit) else ""
        before = self.feeds.get(path, {})
        if limit >= cap:
            self.feeds[path] = dict(zip(numbers, items))
        for n, was in before.items():
            now = by.get(was[member] if member else n)
            require(now is not None or was["time"] <= floor, "lost", was)
            require(now is None or now["time"] >= was["time"], "back", now, "was", was)
        return max(numbers, default=-1)


class Votes:
    """What one client knows of its poll. It votes for the choices in turn."""

    def __init__(self, poll: str, choices: tuple[str, ...], book: Book) -> None:
        self.poll, self.choices, self.book = poll, choices, book
        self.counts: dict[str, dict[str, int]] = {}  # path -> the choices of the last answer

    def tally(self, path: str, answer: Any) -> None:
        """Judge the answer of a `tally`. Raises: Wrong."""
        expected = {"poll", "total", "choices", "as_of"}
        require(isinstance(answer, dict) and answer.keys() == expected, "shape", answer)
        choices = answer["choices"]
        require(answer["poll"] == self.poll and choices.keys() <= set(self.choices), "foreign", answer)
        require(answer["total"] == sum(choices.values()) > 0, "count", answer)
        before = self.counts.get(path, {})
        for at, choice in enumerate(self.choices):
            posted = len(range(at, len(self.book.status), len(self.choices)))
            require(choices.get(choice, 0) <= posted, "count", answer, "of", posted)
            require(choices.get(choice, 0) >= before.get(choice, 0), "back", answer, "was", before)
        self.counts[path] = choices


class Series:
    """What one client knows of the metrics that all processes of a run post."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.newest: dict[str, Item] = {}  # tags -> the series in the last answer

    def latest(self, answer: Any) -> None:
        """Judge the answer of a `latest` with `each`. Raises: Wrong."""
        found = dict(self.series(answer))
        for series, was in self.newest.items():
            require(series in found, "lost", series)
            require(found[series]["time"] >= was["time"], "back", found[series], "was", was)
        self.newest = found

    def series(self, answer: Any) -> Iterator[tuple[str, Item]]:
        """The series of the run."""
        require(isinstance(answer, list), "shape", answer)
        seen = set()
        for item in answer:
            require(isinstance(item, dict) and {"name", "time", "field", "value"} <= item.keys(), "shape", item)
            series = f"{item['field']} {item.get('tags')}"
            require(series not in seen, "double", series)
            seen.add(series)
            if item["field"] == self.run:
                yield series, item
