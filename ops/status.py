"""Show the ledger: of every stream what was accepted, and where all of it is.

accepted = ready + claimed + stored + dead + missing, counted in bodies, and missing is 0, at any load.
oldest is how long the oldest body has waited that is not yet in the database.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError

import records
import routes
import settings
import sinks
from ops import screen
from settings import Settings
from spool import Outlet, Snapshot

PATIENCE = 3.0  # seconds that Redis may take; somebody waits for it
ALL = 1 << 62  # beyond every sequence number
STATES = ("accepted", "ready", "claimed", "stored", "dead", "missing")
BACK = (
    "{}: more bodies are in the database than were ever accepted: Redis's counters went back. It was emptied, or lost "
    "its last writes with the power; some bodies may be stored twice, and this stream's `missing` says nothing."
)
GONE = "{}: {} bodies that were accepted are neither in Redis nor in the database."
PURGED = "{}: {} accepted bodies were thrown away by `bin/sluice purge`."
NO_DECODER = "{}: no decoder: what is posted to it waits on the list; INGEST_RECORDS names the module that has one."


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.epilog = "exit status: 0; 1 if Redis or the database is away or missing is not 0; 2 for a wrong setting"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print the ledger; the exit status."""
    streams = records.load(s)
    names = {*streams, *(route.stream for route in fed(s).values())}
    trouble: list[str] = []
    snapshots, others = in_redis(s, names, trouble)
    names |= others
    # Redis first, the database afterwards: what moves on meanwhile is found there, and what came later is not counted
    ledgers = in_sink(s, streams, names, snapshots, trouble)
    rows = [row(name, snapshots.get(name), ledgers.get(name)) for name in sorted(names)]
    for entry in rows:
        entry["decoder"] = entry["stream"] in streams
    trouble += filter(None, (astray(entry["stream"], entry["missing"]) for entry in rows))
    if arguments.json:
        print(json.dumps({"streams": rows, "trouble": trouble}, indent=2))
    else:
        print(screen.table(("stream", *STATES, "oldest"), map(cells, rows)))
        for name in sorted(names - streams.keys()):
            print(NO_DECODER.format(name))
        for entry in rows:
            if entry["purged"]:
                print(PURGED.format(entry["stream"], entry["purged"]))
    for line in trouble:
        screen.complain(line)
    return 1 if trouble else 0


def astray(stream: str, missing: int | None) -> str:
    """What is to be said of a stream's `missing`; nothing if it is 0."""
    return BACK.format(stream) if (missing or 0) < 0 else GONE.format(stream, missing) if missing else ""


def known(name: str, s: Settings, outlet: Outlet) -> str:
    """The name, if there is such a stream. Raises: SettingError if not; RedisError."""
    names = {*records.load(s), *(route.stream for route in fed(s).values())}
    if name not in names and name not in (names := names | outlet.streams()):
        raise settings.SettingError(f"there is no stream {name!r}; there are {', '.join(sorted(names))}.")
    return name


def fed(s: Settings) -> dict[str, routes.Route]:
    """All routes: the built-in ones and those of the user's module. Raises: SettingError."""
    own = getattr(settings.extension("INGEST_ROUTES", s.routes), "ROUTES", {}) if s.routes else {}
    return {**routes.ROUTES, **own}


def in_redis(s: Settings, names: set[str], trouble: list[str]) -> tuple[dict[str, Snapshot], set[str]]:
    """What lies in Redis of these streams and of those that are found there, whose names come with it."""
    found: dict[str, Snapshot] = {}
    others: set[str] = set()
    try:
        outlet = Outlet(str(s.redis), PATIENCE)
        others = outlet.streams()
        for name in names | others:
            found[name] = outlet.snapshot(name)
    except RedisError as error:
        trouble.append(f"Redis is away: {error}")
    return found, others


def in_sink(
    s: Settings,
    streams: dict[str, records.Stream],
    names: set[str],
    snapshots: Mapping[str, Snapshot],
    trouble: list[str],
) -> dict[str, sinks.Ledger]:
    """What is in the database of what was claimed up to the snapshots; of all, where there is none."""
    found: dict[str, sinks.Ledger] = {}
    try:
        sink = sinks.connect(s.sink, streams, make=False)
        for name in names:
            snapshot = snapshots.get(name)
            found[name] = sink.ledger(name, snapshot.claimed if snapshot else ALL, snapshot.claims if snapshot else ())
        sink.close()
    except (sinks.Away, ImportError) as error:
        trouble.append(f"the database is away: {error}")
    return found


def row(name: str, snapshot: Snapshot | None, ledger: sinks.Ledger | None) -> dict[str, Any]:
    """One stream's line; None where it is not known."""
    entry: dict[str, Any] = {"stream": name} | dict.fromkeys((*STATES, "purged", "oldest_seconds"))
    if snapshot:
        stored = ledger.persisted if ledger else set()  # their claims are not settled yet
        entry["accepted"] = snapshot.claimed + snapshot.ready
        entry["purged"] = snapshot.purged
        entry["ready"] = snapshot.ready
        entry["claimed"] = sum(bodies for claim, bodies in snapshot.claims.items() if claim not in stored)
        entry["oldest_seconds"] = max((age for at, age in snapshot.waiting.items() if at not in stored), default=None)
    if ledger:
        entry["stored"] = ledger.bodies - ledger.dead
        entry["dead"] = ledger.dead
    if snapshot and ledger:
        entry["missing"] = snapshot.claimed - snapshot.purged - entry["claimed"] - ledger.bodies
    return entry


def cells(entry: dict[str, Any]) -> list[str]:
    """A line of the table."""
    known = ["?" if entry[state] is None else str(entry[state]) for state in STATES]
    oldest = entry["oldest_seconds"]
    return [screen.printable(entry["stream"].encode()), *known, "" if oldest is None else screen.ago(oldest)]
