"""Write the figures of the status page, once a second, to a JSON file; it includes the rates of the last hour.

nginx serves the file beside the page (sluice/contrib/page/status/): the load on Redis and the database does not grow
with readers.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from statistics import linear_regression, median
from typing import Any, NoReturn

from sluice import settings
from sluice.base import terminal
from sluice.base.files import replace_file
from sluice.base.times import iso_instant
from sluice.contrib import background
from sluice.contrib.page.rejections import Rejections
from sluice.contrib.rates import read_rates
from sluice.dead_letters import HEAD_BYTES, DeadLetters, body_excerpt
from sluice.ledger import COUNTING_SHARE, STATES, Observer, Reason, cell_sums
from sluice.routes import load_routes
from sluice.run.up import gateway_answers
from sluice.store.questions import DeadLetter, find_last_letters, find_last_rows
from sluice.store.store import Store
from sluice.store.types import Unavailable

READING_SECONDS = 1.0  # between two readings
PROBE_READINGS = 5  # per health check of the gateway
SLOT_SECONDS = 10.0  # per row of the last hour
SLOTS = 360
COLUMNS = 7
RECENT_READINGS = 5  # over which a rate is taken
# what may become full: its column in a row of the last hour, and how many rows make a forecast, at least and at most.
# Redis's memory can fill within minutes. The disk's free bytes go up and down with each rewrite of Redis's log, and
# with whatever another program does for some minutes: there is no forecast without an hour
RUNNING_OUT = {"disk": (5, SLOTS * 5 // 6, SLOTS), "memory": (6, 3, 12)}
PART_ROWS = 60  # whose rate is taken alone; that of a longer time is the median of its parts
FORESEEN_HOURS = 720.0  # what becomes full later is not foreseen
SHOWN_REASONS, SHOWN_LETTERS, EXCERPT_CHARACTERS = 20, 10, 160
VALUE_CHARACTERS, BODY_CHARACTERS = 200, 2000  # of the last rows and dead letters of a stream
# per stream, copied from Observer.look()
SHOWN = (
    *(*STATES, "purged", "expired", "deleted", "oldest_seconds", "backlog_bytes", "through", "decoder"),
    *("unpublished", "unpublished_seconds", "unpublished_reason", "error"),
)
FILE, ROWS_FILE = "status.json", "rows.json"

Row = list[Any]


def main() -> NoReturn:
    """Take a reading each second and write it, until a signal ends the process."""
    background.exit_on_signal(at_once=True)
    background.give_way()  # to gateway and workers
    with settings.exit_if_invalid():
        s = settings.load_settings()
        page = Page(s)
        rejections = Rejections(s, READING_SECONDS)
    file = s.home / "run" / FILE
    while True:
        try:
            replace_file(file, json.dumps(page.look(), separators=(",", ":")))
            rejections.write()
        except Exception as error:  # the next reading may succeed
            terminal.complain(f"the status page is not updated: {error}")
        with contextlib.suppress(Exception):  # they are in the next report
            rejections.report()
        time.sleep(READING_SECONDS)


class Page:
    def __init__(self, s: settings.Settings) -> None:
        self.gateway_sockets = s.gateway_sockets
        self.observer = Observer(s)
        self.paths: dict[str, list[str]] = {}
        for path, route in load_routes(s.routes).items():
            self.paths.setdefault(route.stream, []).append(path)
        self.looks = 0
        self.gateway = False
        self.seen: deque[tuple[float, dict[str, Row], dict[str, Any], dict[str, int]]]
        self.seen = deque(maxlen=RECENT_READINGS + 1)
        rows = []
        with contextlib.suppress(OSError, ValueError, KeyError):  # the chart survives a restart
            before = json.loads((s.home / "run" / FILE).read_text())
            rows = [row for row in before["hour"] if len(row) == COLUMNS]
        self.hour = Hour(rows)
        self.rows_file = s.home / "run" / ROWS_FILE
        self.stored: dict[str, tuple[Any, ...]] = {}  # stream -> its counts when its last rows were read
        self.last: dict[str, Any] = {}
        self.rows_due = 0.0  # monotonic
        self.counts: list[Any] | None = None  # dead letters by reason at the time `letters` was read
        self.letters: list[dict[str, Any]] = []

    def look(self) -> dict[str, Any]:
        """Take a reading; returns the content of status.json."""
        reading = self.observer.look()
        now, contributed = reading["time"], reading["contributed"]
        streams: Mapping[str, Mapping[str, Any]] = reading["streams"]
        bodies = {name: [row["accepted"], row["taken"]] for name, row in streams.items()}
        by_key = {row["sender"]: sum(row["stored"].values()) for row in contributed.get("senders", [])}
        self.seen.append((now, bodies, {view["path"]: view["reads"] for view in contributed.get("views", [])}, by_key))
        then, before, read, by_key_then = self.seen[0]
        rows, views, senders = [], [], []
        for name, row in streams.items():
            pairs = zip(before.get(name, [None, None]), bodies[name], strict=True)
            accepted, taken = (count_rate(old, new, now - then) for old, new in pairs)
            about = {"stream": name, "paths": self.paths.get(name, [])} | {at: row[at] for at in SHOWN}
            rows.append(about | {"accepted_rate": accepted, "taken_rate": taken})
        for view in contributed.get("views", []):
            reads, hits = read_rates(read.get(view["path"]), view["reads"], now - then)
            about = {name: view[name] for name in ("path", "state", "keys", "lag", "refreshes")}
            views.append(about | {"reads_rate": reads, "hits": hits})
        for row in contributed.get("senders", []):
            name = row["sender"]
            senders.append(row | {"stored_rate": count_rate(by_key_then.get(name, 0), by_key[name], now - then)})
        self.write_rows(rows)
        memory = reading["memory"]
        self.hour.add(
            now,
            rows,
            reading["disk"] and reading["disk"]["free"],
            memory["most"] - memory["used"] if memory and memory["most"] else None,
        )
        # not every second: the gateway counts its responses in Redis
        if self.looks % PROBE_READINGS == 0 or not self.gateway:
            self.gateway = gateway_answers(self.gateway_sockets, "/healthz")
        self.looks += 1
        return {
            "time": round(now, 3),
            "every": READING_SECONDS,
            "gateway": self.gateway,
            "workers": reading["processes"] and sum(process["role"] == "worker" for process in reading["processes"]),
            "hours_left": {name: hours_left(self.hour.rows, *columns) for name, columns in RUNNING_OUT.items()},
            "streams": rows,
            "cells": [
                {name: cell[name] for name in ("cell", "seconds", "late")} | cell_sums([cell])
                for cell in reading["cells"] or ()
            ],
            "views": views,
            "dead": self.dead(reading["dead_letters"]),
            "senders": senders,
            "unknown_fields": contributed.get("unknown_fields", []),
            "turned_away": turned_away(reading["answered"], reading["refused"]),
            "hour": list(self.hour.rows),
        } | {"memory": memory, "disk": reading["disk"], "trouble": reading["trouble"]}

    def write_rows(self, streams: list[dict[str, Any]]) -> None:
        """Write the last rows and dead letters of the streams whose counts have changed, if that is due."""
        store, began = self.observer.store, time.monotonic()
        if not store or began < self.rows_due:
            return
        changed = False
        for row in streams:
            name, counts = row["stream"], tuple(row[state] for state in ("stored", "dead", "deleted", "expired"))
            if None not in counts and counts != self.stored.get(name):
                with contextlib.suppress(Unavailable):  # the next reading reports it
                    self.last[name] = last(store, name, counts[1])
                    self.stored[name], changed = counts, True
        if changed or not self.rows_due:
            replace_file(self.rows_file, json.dumps(self.last, separators=(",", ":")))
        self.rows_due = time.monotonic() + (time.monotonic() - began) / COUNTING_SHARE

    def dead(self, counts: list[Reason] | None) -> dict[str, Any]:
        """Counts by reason, and the newest dead letters, which are read again when a count has changed."""
        store = self.observer.store
        if counts is not None and counts != self.counts and store:
            with contextlib.suppress(Unavailable):  # the next reading reports it
                self.letters = [letter_row(letter) for letter in DeadLetters(store).newest(SHOWN_LETTERS)]
                self.counts = counts
        known = self.counts or []
        return {"reasons": known[:SHOWN_REASONS], "more": len(known[SHOWN_REASONS:]), "letters": self.letters}


def last(store: Store[Any], stream: str, dead: int) -> dict[str, Any]:
    """The last rows of a stream and its last dead letters, newest first."""
    columns, rows = find_last_rows(store, stream, SHOWN_LETTERS, VALUE_CHARACTERS + 1)
    letters = find_last_letters(store, stream, SHOWN_LETTERS, HEAD_BYTES + 4 * BODY_CHARACTERS) if dead else []
    return {
        "columns": columns,
        "rows": [[value and cell_text(value) for value in row] for row in rows],
        "letters": [
            {
                "time": iso_instant(letter.received), "reason": letter.reason, "bytes": size,
                "body": body_excerpt(letter.body, BODY_CHARACTERS),
            }
            for letter, size in letters
        ],
    }  # fmt: skip


def cell_text(value: str) -> str:
    return terminal.cut_text(terminal.printable(value), VALUE_CHARACTERS)


def letter_row(letter: DeadLetter) -> dict[str, Any]:
    about = {"time": iso_instant(letter.received), "stream": letter.stream, "seq": letter.seq, "reason": letter.reason}
    return about | {"bytes": len(letter.body), "excerpt": body_excerpt(letter.body, EXCERPT_CHARACTERS)}


def turned_away(answered: list[dict[str, Any]], refused: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests that the gateway rejected since counting began: number, path or stream, reason; most frequent first."""
    # a 503 is also counted by its reason; use that count
    rows = [{"answers": row["bodies"], "where": row["stream"], "reason": f"503 {row['reason']}"} for row in refused]
    for row in answered:
        if row["status"] >= "400" and row["status"] != "503":
            reason = f"{row['status']} {HTTPStatus(int(row['status'])).phrase}"
            rows.append({"answers": row["count"], "where": row["route"] or "other paths", "reason": reason})
    return sorted(rows, key=lambda row: -row["answers"])[:SHOWN_REASONS]


class Hour:
    """The last hour in rows of SLOT_SECONDS: end (Unix time), accepted/s, taken/s, waiting, oldest, disk, memory.

    taken: bodies claimed by workers. waiting: maximum number of READY and CLAIMED bodies. oldest: maximum age of one
    of them, seconds. disk, memory: free bytes of the disk and of Redis's memory.
    """

    def __init__(self, rows: list[Row]) -> None:
        self.rows: deque[Row] = deque(rows, SLOTS)
        self.start: tuple[float, int | None, int | None] | None = None
        self.waiting: list[int] = []
        self.oldest: list[float] = []

    def add(self, now: float, rows: list[dict[str, Any]], disk: int | None = None, memory: int | None = None) -> None:
        """Add a reading; every SLOT_SECONDS a row is completed."""
        accepted = total_count(rows, lambda row: row["accepted"])
        waiting = total_count(rows, lambda row: None if row["ready"] is None else row["ready"] + row["claimed"])
        taken = total_count(rows, lambda row: None if row["ready"] is None else row["accepted"] - row["ready"])
        if waiting is not None:
            self.waiting.append(waiting)
            self.oldest.append(round(max((row["oldest_seconds"] or 0 for row in rows), default=0), 2))
        if self.start is None:
            self.start = now, accepted, taken
        elapsed = now - self.start[0]
        if elapsed >= SLOT_SECONDS or elapsed < 0:  # the clock may have been set
            rates = count_rate(self.start[1], accepted, elapsed), count_rate(self.start[2], taken, elapsed)
            peak = max(self.waiting, default=None), max(self.oldest, default=None)
            while self.rows and not now - SLOT_SECONDS * SLOTS < self.rows[0][0] <= now:
                self.rows.popleft()
            self.rows.append([round(now), *rates, *peak, disk, memory])
            self.start = now, accepted, taken
            self.waiting, self.oldest = [], []


def hours_left(rows: Sequence[Row], column: int, least: int, most: int) -> float | None:
    """Hours until a column of free bytes is 0, by the last `least` to `most` rows; None if that is not foreseen."""
    known = [(row[0], row[column]) for row in list(rows)[-most:] if row[column] is not None]
    if len(known) < least:
        return None
    size = len(known) // max(1, len(known) // PART_ROWS)
    parts = [known[start : start + size] for start in range(0, len(known) - size + 1, size)]
    rate = median(linear_regression(*zip(*part)).slope for part in parts)
    hours = known[-1][1] / -rate / 3600 if rate < 0 else FORESEEN_HOURS
    return round(hours, 2) if hours < FORESEEN_HOURS else None


def total_count(rows: list[dict[str, Any]], count: Callable[[dict[str, Any]], int | None]) -> int | None:
    """The sum of a count over all streams; None if a stream's is unknown."""
    counts = [count(row) for row in rows]
    return None if None in counts else sum(filter(None, counts))


def count_rate(before: int | None, after: int | None, seconds: float) -> float | None:
    """Increments per second; None if unknown or if the counter went back."""
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return round((after - before) / seconds, 1)


if __name__ == "__main__":
    main()
