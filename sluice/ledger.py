"""The observer: the ledger and all other figures of a cell, as plain data.

A figure comes from Redis, from the database, from the counters that the processes keep in Redis, or
from a contribution. `sluice status` and contributions show them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

from sluice import registry, settings
from sluice.account import LATE_INTERVALS, SHARED, Balance, StreamBalance, Sums, stream_balance, stream_ledger
from sluice.base import terminal
from sluice.base.counters import SECONDS, SIZES
from sluice.base.disk import spare_bytes
from sluice.base.times import format_age
from sluice.routes import load_routes
from sluice.settings import Settings
from sluice.spool import open_spool
from sluice.spool.claim import Claim
from sluice.spool.errors import SPOOL_ERRORS, in_one_line
from sluice.spool.inspector import Inspector, Process
from sluice.spool.snapshot import Snapshot
from sluice.store.cell_store import open_cell_store
from sluice.store.questions import count_reasons, find_unpublished, kept_seconds
from sluice.store.registry import check_store
from sluice.store.store import Store
from sluice.store.types import Ledger, Unavailable
from sluice.streams.built_in import load_streams

T = TypeVar("T")
STATES = ("accepted", "ready", "claimed", "stored", "dead", "duplicate", "missing")
TIMEOUT_SECONDS = 3.0  # for a reply of Redis; an operator is waiting too
# counters by two things: their names, and that of the number
LISTED = {
    "answered": ("status", "route", "count"),
    "refused": ("stream", "reason", "bodies"),
    "without_rows": ("stream", "kind", "messages"),
}
COUNTING_SHARE = 1 / 20  # of the time, for counts in the database: they are slow with millions of batches


class StreamRow(Balance, total=False):
    """Where the bodies of a stream are, and what keeps them from where they should be.

    decoder: whether the stream has one.
    unpublished: bodies in the database whose rows are not in their destination, of all cells
    unpublished_seconds: since when; unpublished_reason: the destination, and why
    error: why a worker of this cell cannot store the stream
    keys_seconds: see `kept_seconds`; only of `Observer.ledger`
    """

    decoder: bool
    unpublished: int | None
    unpublished_seconds: float | None
    unpublished_reason: str | None
    error: str | None
    keys_seconds: float | None


class Histogram(TypedDict):
    """bounds: upper ones; the last is None. buckets: not cumulative."""

    bounds: list[float | None]
    buckets: list[int]
    count: int
    sum: float


class StreamFigures(StreamRow, total=False):
    """All figures of one stream.

    taken: bodies ever claimed; through: all bodies up to this sequence number are in the database
    backlog_bytes: memory of the READY and CLAIMED bodies, approximately
    received_bytes: of all accepted bodies
    persist, decode: seconds: a claim, a body (one in 16)
    """

    taken: int | None
    through: int | None
    backlog_bytes: int | None
    open_claims: int | None
    received_bytes: int | None
    store_errors: int | None
    persist: Histogram | None
    decode: Histogram | None


class LedgerReading(TypedDict):
    """trouble: a line per problem. notes: lines of contributions."""

    streams: dict[str, StreamRow]
    trouble: list[str]
    notes: list[str]


class HeldClaim(TypedDict):
    """A claim that a worker reported; bodies and seconds are None if it is settled by now. first: a sequence number."""

    stream: str
    first: int
    bodies: int | None
    seconds: float | None


class ProcessRow(TypedDict):
    """claims: those that a worker holds."""

    role: str
    pid: int
    claims: list[HeldClaim]


class Reason(TypedDict):
    stream: str
    reason: str
    letters: int


class Memory(TypedDict):
    """Bytes of Redis: used, and most (maxmemory; 0: no limit)."""

    used: int
    most: int


class Disk(TypedDict):
    """Bytes of the file system with the data: free, and size."""

    free: int
    size: int


class Reading(TypedDict):
    """All figures of a moment; an unknown one is None, and `trouble` has the reason.

    time: seconds since 1970. trouble: one line per problem. streams: by name. dead_letters: the most frequent first.
    ledger_seconds: the age of stored, dead, missing and dead_letters, which take long to count
    answered: a list of route ("" for unknown paths, "nginx" for its own), status, count
    refused: a list of stream, reason, bodies. without_rows: of stream, kind, messages
    commit_bodies: bodies per commit. commit: seconds per commit
    contributed: those of contributions, by name
    """

    time: float
    trouble: list[str]
    streams: dict[str, StreamFigures]
    dead_letters: list[Reason] | None
    ledger_seconds: float | None
    answered: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    without_rows: list[dict[str, Any]]
    commit_bodies: Histogram | None
    commit: Histogram | None
    processes: list[ProcessRow] | None
    memory: Memory | None
    cells: list[Cell] | None
    disk: Disk | None
    contributed: dict[str, Any]


class Counted(TypedDict, total=False):
    """The database's last answer. at: when it came (monotonic). streams: what of them takes long to count."""

    at: float
    reasons: list[Reason]
    streams: dict[str, dict[str, int | None]]


class Observer:
    """Reads the figures of a cell, any number of times. Keeps its connections; not thread-safe."""

    def __init__(self, s: Settings) -> None:
        """Raises: SettingError if a user's module cannot be imported."""
        self.streams = load_streams(s)
        # the streams that have a decoder or a route
        self.names = {*self.streams, *(route.stream for route in load_routes(s.routes).values())}
        self.settings, self.cell = s, s.cell
        check_store(s.store)
        self.places = [s.home]  # where bytes are written
        if s.store.startswith("sqlite:"):
            self.places.append(Path(s.store.removeprefix("sqlite:///")).parent)
        self.contributed = {
            name: registry.load_target(each)(s) for name, each in registry.declared_entries("figures").items()
        }
        self.spool = open_inspector(s)
        self.store: Store[Any] | None = None
        self.counted: Counted = {}
        self.earlier: dict[str, int] = {}  # bodies of earlier lists, from the database
        self.due = 0.0

    def ledger(self) -> LedgerReading:
        """The streams only."""
        trouble: list[str] = []
        snapshots = self.ask_spool(self.snapshots, trouble) or {}
        # they may be in the second Redis, without which the sums are known all the same
        processes = self.ask_spool(self.spool.processes, trouble) or [] if not trouble else []
        counted = self.ask_spool(self.spool.counters, trouble) or {} if not trouble else {}
        names = sorted(self.names | snapshots.keys())
        ledgers = self.ask_store(lambda store: self.ledgers(store, names, snapshots), trouble) or {}
        rows: dict[str, StreamRow] = {}
        for name in names:
            row = cast("StreamRow", stream_balance(snapshots.get(name), ledgers.get(name)))
            row["decoder"] = name in self.streams
            rows[name] = row
        trouble += discrepancies(rows)
        trouble += [snapshot.warning for snapshot in snapshots.values() if snapshot.warning]
        self.hindrances(rows, processes, trouble)
        for name, row in rows.items():
            rule = self.streams[name].rule if name in self.streams else None
            asked = partial(kept_seconds, stream=name, age=rule.seconds) if rule else None
            row["keys_seconds"] = self.ask_store(asked, trouble) or None if asked and self.store else None
        for cell in (self.store and self.cells(trouble)) or ():
            if cell["cell"] == self.cell:
                trouble += cell_complaints({**cell, "late": False})  # its own state is shown above
        notes = [line for lines in registry.load_hooks("status") for line in lines(counted)]
        return {"streams": rows, "trouble": trouble, "notes": notes}

    def hindrances(self, rows: Mapping[str, StreamRow], processes: list[Process], trouble: list[str]) -> None:
        """Add to the rows of streams what keeps their bodies from where they should be."""
        if any(spare_bytes(place) < 0 for place in self.places):
            trouble.append("the disk is almost full: posts get 503, and little is stored, until there is room")
        found = self.ask_store(lambda store: find_unpublished(store), trouble) if self.store else None
        for row in rows.values():
            row["unpublished"] = None if found is None else 0
            row["unpublished_seconds"] = row["unpublished_reason"] = row["error"] = None
        for one in found or ():
            where = f"{one.address}: {one.reason or 'no worker has sent them'}"
            trouble.append(f"rows of {one.stream} wait for {where} ({one.bodies:,} bodies, {format_age(one.seconds)})")
            if one.stream in rows:
                row = rows[one.stream]
                row["unpublished"] = (row["unpublished"] or 0) + one.bodies
                row["unpublished_seconds"] = max(one.seconds, row["unpublished_seconds"] or 0)
                row["unpublished_reason"] = "; ".join(filter(None, (row["unpublished_reason"], where)))
        for stream, error in {pair for process in processes for pair in process.errors.items()}:
            if stream in rows:
                rows[stream]["error"] = error
        if found is not None:  # else there is one cause for all of them
            trouble += [
                f"bodies of {name} cannot be stored: {row['error']}"
                for name, row in rows.items()
                if row["error"] and not row["unpublished"]
            ]

    def cells(self, trouble: list[str]) -> list[Cell] | None:
        """The cells that store in this database, by name; None, with a line in `trouble`, if it is unavailable."""
        published = self.ask_store(lambda store: store.read_cells(), trouble)
        if published is None:
            return None
        return [
            {
                "cell": cell, "seconds": age, "late": age > LATE_INTERVALS * known["every"],
                "shared": bool(known.get("shared")), "streams": known["streams"],
            }
            for cell, age, known in published
        ]  # fmt: skip

    def look(self) -> Reading:
        """All figures of this moment."""
        trouble: list[str] = []
        snapshots = self.ask_spool(self.snapshots, trouble) or {}
        # the others may be in the second Redis, without which the streams are known all the same
        others = lambda: (self.spool.processes(), self.spool.memory(), self.spool.counters())  # noqa: E731
        found = None if trouble else self.ask_spool(others, trouble)
        processes, memory, counted = found or (None, None, None)
        names = sorted(self.names | snapshots.keys())
        ledgers = self.count(names, snapshots, trouble)
        rows = {name: self.stream(name, snapshots.get(name), ledgers.get(name), counted) for name in names}
        trouble += discrepancies(rows)
        self.hindrances(rows, processes or [], trouble)
        cells = self.cells(trouble) if self.store else None
        for cell in cells or ():
            cell["late"] &= cell["cell"] != self.cell  # its own state is shown above
            trouble += cell_complaints(cell)
        listed = counted_by_two(counted or {})
        return {
            "time": time.time(),
            "trouble": trouble,
            "streams": rows,
            "dead_letters": self.counted.get("reasons"),
            "ledger_seconds": time.monotonic() - self.counted["at"] if self.counted else None,
            "answered": listed["answered"],
            "refused": listed["refused"],
            "without_rows": listed["without_rows"],
            "commit_bodies": histogram(counted, "commit_bodies", SIZES),
            "commit": histogram(counted, "commit_seconds", SECONDS),
            "processes": None if processes is None else [process_row(process, snapshots) for process in processes],
            "memory": memory and {"used": memory[0], "most": memory[1]},
            "cells": cells,
            "disk": disk_bytes(self.places),
            "contributed": {name: figures.read(counted, trouble) for name, figures in self.contributed.items()},
        }

    def snapshots(self) -> dict[str, Snapshot]:
        """The state of every stream in the spool. Raises: one of SPOOL_ERRORS."""
        self.cell = self.spool.read_cell(self.cell)
        return {name: self.spool.take_snapshot(name) for name in self.names | self.spool.list_streams()}

    def ask_spool(self, question: Callable[[], T], trouble: list[str]) -> T | None:
        """The answer of the spool; None, with a line in `trouble`, if it is unavailable."""
        try:
            return question()
        except SPOOL_ERRORS as error:
            trouble.append(in_one_line(error))
            return None

    def ask_store(self, question: Callable[[Store[Any]], T], trouble: list[str]) -> T | None:
        """The answer of the database; None, with a line in `trouble`, if it is unavailable."""
        try:
            self.store = self.store or open_cell_store(self.settings, self.streams)
            return question(self.store)
        except settings.SettingError as error:
            trouble.append(str(error))
        except Unavailable as error:
            trouble.append(f"the database is unavailable: {error}")
        self.store = None
        return None

    def ledgers(self, store: Store[Any], names: list[str], snapshots: dict[str, Snapshot]) -> dict[str, Ledger]:
        """The database's figures for the bodies that were claimed at the time of the snapshots.

        The spool is read first: a body stored meanwhile is found in the database, and later ones are not counted.
        """
        return {name: stream_ledger(store, name, snapshots.get(name), self.cell) for name in names}

    def count(self, names: list[str], snapshots: dict[str, Snapshot], trouble: list[str]) -> dict[str, Ledger]:
        """`ledgers`, and the dead letters by reason in `counted`; empty while the next count is not yet due."""
        began = time.monotonic()
        if began < self.due:
            return {}
        answer = self.ask_store(lambda store: (self.ledgers(store, names, snapshots), count_reasons(store)), trouble)
        self.counted = {}
        if answer is None:
            return {}
        ledgers, reasons = answer
        letters: list[Reason] = [{"stream": stream, "reason": reason, "letters": n} for stream, reason, n in reasons]
        now = time.monotonic()
        self.counted = {"at": now, "reasons": letters, "streams": {}}
        self.due = now + (now - began) / COUNTING_SHARE
        return ledgers

    def stream(
        self, name: str, snapshot: Snapshot | None, ledger: Ledger | None, counted: dict[str, int] | None
    ) -> StreamFigures:
        """All figures of one stream. Without a `ledger`, those of the last count are used again."""
        row = stream_balance(snapshot, ledger)
        last = self.counted.get("streams", {})
        if ledger:
            self.earlier[name] = ledger.earlier
            kept: Mapping[str, Any] = row
            last[name] = {state: kept[state] for state in (*STATES[3:], "expired", "deleted")}
            last[name]["through"] = stored_through(snapshot, ledger) if snapshot else None
        elif row["accepted"] is not None:
            row["accepted"] += self.earlier.get(name, 0)
        more = {
            **row,
            "decoder": name in self.streams,
            "taken": snapshot and snapshot.taken,
            "backlog_bytes": snapshot and snapshot.size,
            "open_claims": snapshot and len(snapshot.claims),
            "received_bytes": None if counted is None else counted.get(f"bytes {name}", 0),
            "store_errors": None if counted is None else counted.get(f"store_errors {name}", 0),
            "persist": histogram(counted, f"persist_seconds {name}", SECONDS),
            "decode": histogram(counted, f"decode_seconds {name}", SECONDS),
        }
        return cast("StreamFigures", more | last.get(name, {"through": None}))


def counted_by_two(counted: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
    """The counters of LISTED."""
    listed: dict[str, list[dict[str, Any]]] = {name: [] for name in LISTED}
    for field, n in counted.items():
        name, key, rest, *_ = [*field.split(" ", 2), "", ""]
        if name in LISTED:
            listed[name].append(dict(zip(LISTED[name], (key, rest, n))))
    return listed


def process_row(process: Process, snapshots: dict[str, Snapshot]) -> ProcessRow:
    claims = [held_claim(snapshots, *claim) for claim in process.claims]
    return {"role": process.role, "pid": process.pid, "claims": claims}


def disk_bytes(places: Sequence[Path]) -> Disk | None:
    """Free bytes and size of the file system of these directories that has the fewest free bytes."""
    try:
        systems = [os.statvfs(place) for place in places]
    except OSError:
        return None
    fullest = min(systems, key=lambda system: system.f_bavail * system.f_frsize)
    return {"free": fullest.f_bavail * fullest.f_frsize, "size": fullest.f_blocks * fullest.f_frsize}


def stored_through(snapshot: Snapshot, ledger: Ledger) -> int:
    """The number of the last body before which each accepted one is in the database, counted as `accepted` is."""
    claims = snapshot.claims.items()
    held = (Claim.from_id("", claim, bodies).first for claim, bodies in claims if ledger.persisted[claim] < bodies)
    return min(held, default=snapshot.taken + 1) - 1 + ledger.earlier


def histogram(counted: dict[str, int] | None, field: str, bounds: Sequence[float]) -> Histogram | None:
    if counted is None:
        return None
    buckets = [counted.get(f"{field} {bound}", 0) for bound in (*bounds, "+Inf")]
    total = counted.get(f"{field} sum", 0) / (1e6 if bounds is SECONDS else 1)
    return {"bounds": [*bounds, None], "buckets": buckets, "count": sum(buckets), "sum": total}


def held_claim(snapshots: dict[str, Snapshot], stream: str, first: int) -> HeldClaim:
    snapshot = snapshots.get(stream)
    claim = next((claim for claim in snapshot.claims if f":{first}:" in claim), "") if snapshot else ""
    bodies, seconds = (snapshot.claims[claim], snapshot.ages.get(claim)) if snapshot and claim else (None, None)
    return {"stream": stream, "first": first, "bodies": bodies, "seconds": seconds}


def discrepancies(rows: Mapping[str, Balance]) -> list[str]:
    """One line per stream whose `missing` is known and not 0."""
    return [
        f"{name}: {row['missing']} bodies that were accepted are neither in Redis nor in the database."
        if row["missing"] > 0
        else f"{name}: {-row['missing']} bodies more are counted than were accepted: as purged by mistake, for example."
        for name, row in rows.items()
        if row["missing"]
    ]


def cell_complaints(cell: Cell) -> list[str]:
    """A line if this cell publishes no figures any more, or another one publishes under its name."""
    if cell["late"]:
        seen, bodies = format_age(cell["seconds"]), shown_bodies(waiting_bodies(cell))
        return [f"{cell['cell']}: last seen {seen} ago, {bodies} bodies waiting there."]
    return [f"{cell['cell']}: {SHARED}."] if cell["shared"] else []


def shown_bodies(bodies: int | None) -> str:
    return "?" if bodies is None else f"{bodies:,}"


def waiting_bodies(cell: Cell) -> int | None:
    total = cell_sums([cell])
    return None if total["ready"] is None or total["claimed"] is None else total["ready"] + total["claimed"]


def open_inspector(s: Settings) -> Inspector:
    opened: Inspector = open_spool("inspector:Inspector", s.spool, s.figures, timeout=TIMEOUT_SECONDS)
    return opened


def stream_inspector(stream: str, s: Settings, verb: str = "") -> Inspector:
    """Access to the spool, for a stream that exists. Raises: SettingError; one of SPOOL_ERRORS; NoSuchVerb."""
    opened = open_inspector(s)
    opened.require(verb)
    names = {*load_streams(s), *(route.stream for route in load_routes(s.routes).values())}
    if stream not in names and stream not in (names := names | opened.list_streams()):
        raise settings.SettingError(
            f"there is no stream {stream!r}; there are {', '.join(map(terminal.printable, sorted(names)))}."
        )
    return opened


class Cell(TypedDict):
    """A cell that stores in this database. seconds: the age of its figures. late: it should have published others
    since. shared: another installation publishes under its name.
    """

    cell: str
    seconds: float
    late: bool
    shared: bool
    streams: list[StreamBalance]


def cell_sums(cells: Iterable[Cell]) -> Sums:
    """The sums over the streams of some cells; their oldest body."""
    rows = [row for cell in cells for row in cell["streams"]]
    figures: list[Mapping[str, Any]] = [*rows]
    total: dict[str, Any] = {state: sum_known(row.get(state, 0) for row in figures) for state in STATES}
    total["oldest_seconds"] = max((row["oldest_seconds"] or 0 for row in rows), default=0) or None
    return cast("Sums", total)


def sum_known(figures: Iterable[int | None]) -> int | None:
    """A sum; None if a figure is unknown."""
    known = list(figures)
    return None if None in known else sum(filter(None, known))
