"""The ledger and all other figures of an installation at one moment, as plain data for every view of them.

What lies in Redis, what lies in the database, what the processes have counted. Every way to show it reads this and
nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from sluice import settings, sinks
from sluice.settings import Settings
from sluice.sinks import DeadLetter, Sink, second
from sluice.sinks.schema import load_streams
from sluice.spool.counters import SECONDS, SIZES
from sluice.spool.inspector import Inspector, Process, Snapshot
from sluice.streams import routes

PATIENCE = 3.0  # seconds that Redis may take; somebody waits for it
ALL = 1 << 62  # beyond every sequence number
STATES = ("accepted", "ready", "claimed", "stored", "dead", "missing")
BACK = (
    "{}: more bodies are in the database than were ever accepted: Redis's counters went back. It was emptied, or lost "
    "its last writes with the power; some bodies may be stored twice, and this stream's `missing` says nothing."
)
GONE = "{}: {} bodies that were accepted are neither in Redis nor in the database."
SHARE = 20  # counting in the database may take a twentieth of the time: with millions of batches it takes a while
Figures = dict[str, Any]


class Observer:
    """Looks at an installation as often as it is asked. Keeps its connections; not for several threads."""

    def __init__(self, s: Settings) -> None:
        """Raises: SettingError if a module of the user's cannot be imported."""
        self.streams = load_streams(s)
        self.names = {*self.streams, *(route.stream for route in fed(s).values())}
        self.url = s.sink
        self.spool = Inspector(str(s.redis), PATIENCE)
        self.sink: sinks.Sink | None = None
        self.counted: Figures = {}  # what the database last said, and when (monotonic)
        self.due = 0.0

    def look(self) -> Figures:
        """The figures of this moment; what is not known is None, and `trouble` says why.

        time: seconds since 1970. trouble: a line each, for a person.
        streams: by name
            accepted, ready, claimed, stored, dead, missing, purged: bodies, as in the ledger
            drained: bodies ever claimed; through: everything up to this sequence number is in the database
            backlog_bytes: of memory, that ready and claimed bodies take, roughly
            oldest_seconds: how long the oldest body has waited that is not stored; None too if there is none
            open_claims; received_bytes, of all bodies taken; sink_errors; decoder: whether there is one
            persist, decode: histograms of seconds: a claim, a body (one in 16)
        dead_letters: a list of stream, reason, letters, the most frequent first
        ledger_seconds: how old stored, dead, missing and dead_letters are, for counting them takes its time
        answered: a list of route ("" for unknown paths), status, count
        refused: a list of stream, reason, bodies
        batch: a histogram of bodies a commit. commit: one of seconds a commit
        processes: a list of role, pid, and of a worker its claims: stream, first (sequence number), bodies, seconds
        memory: the bytes of Redis, used and most (0: no bound)

        A histogram has bounds (upper, the last is None), buckets (not added up), count and sum.
        """
        found: Figures = {"time": time.time(), "trouble": []}
        snapshots, processes, memory, counted = self.in_redis(found["trouble"])
        names = sorted({*self.names, *snapshots})
        ledgers = self.in_sink(names, snapshots, found["trouble"])
        found["streams"] = {name: self.stream(name, snapshots.get(name), ledgers.get(name), counted) for name in names}
        found["trouble"] += filter(None, (astray(name, one["missing"]) for name, one in found["streams"].items()))
        found["dead_letters"] = self.counted.get("reasons")
        found["ledger_seconds"] = time.monotonic() - self.counted["at"] if self.counted else None
        split = [(*field.partition(" ")[::2], n) for field, n in (counted or {}).items()]
        found["answered"] = [
            {"route": rest[4:], "status": rest[:3], "count": n} for name, rest, n in split if name == "answered"
        ]
        found["refused"] = [
            {"stream": rest.partition(" ")[0], "reason": rest.partition(" ")[2], "bodies": n}
            for name, rest, n in split
            if name == "refused"
        ]
        found["batch"] = histogram(counted, "batch_bodies", SIZES)
        found["commit"] = histogram(counted, "commit_seconds", SECONDS)
        found["processes"] = processes and [
            {"role": one.role, "pid": one.pid, "claims": [held(snapshots, *claim) for claim in one.claims]}
            for one in processes
        ]
        found["memory"] = memory and {"used": memory[0], "most": memory[1]}
        return found

    def in_redis(
        self, trouble: list[str]
    ) -> tuple[dict[str, Snapshot], list[Process] | None, tuple[int, int] | None, dict[str, int] | None]:
        """What Redis knows: the streams that there are, the processes, its memory, the counts."""
        try:
            snapshots = {name: self.spool.snapshot(name) for name in self.names | self.spool.streams()}
            return snapshots, self.spool.processes(), self.spool.memory(), self.spool.counted()
        except RedisError as error:
            trouble.append(f"Redis is away: {error}")
            return {}, None, None, None

    def in_sink(self, names: list[str], snapshots: dict[str, Snapshot], trouble: list[str]) -> dict[str, sinks.Ledger]:
        """What the database has of what was claimed up to the snapshots; nothing, while it is too early to ask."""
        began = time.monotonic()
        if began < self.due:
            return {}
        found = {}
        try:
            self.sink = self.sink or sinks.connect(self.url, self.streams, make=False)
            for name in names:
                one = snapshots.get(name)
                found[name] = self.sink.ledger(name, one.claimed if one else ALL, one.claims if one else ())
            letters = [{"stream": stream, "reason": reason, "letters": n} for stream, reason, n in self.sink.reasons()]
        except (sinks.Unavailable, ImportError) as error:
            trouble.append(f"the database is away: {error}")
            self.counted, self.sink = {}, None
            return {}
        now = time.monotonic()
        self.counted = {"at": now, "reasons": letters, "streams": {}}
        self.due = now + SHARE * (now - began)
        return found

    def stream(
        self, name: str, snapshot: Snapshot | None, ledger: sinks.Ledger | None, counted: dict[str, int] | None
    ) -> Figures:
        """One stream's figures."""
        found = row(name, snapshot, ledger)
        del found["stream"]
        told = self.counted.get("streams", {})
        if ledger:
            told[name] = {state: found[state] for state in ("stored", "dead", "missing")}
            told[name]["through"] = through(snapshot, ledger) if snapshot else None
        found |= told.get(name, {"through": None})
        return found | {
            "drained": snapshot and snapshot.claimed,
            "backlog_bytes": snapshot and snapshot.size,
            "open_claims": snapshot and len(snapshot.claims),
            "received_bytes": None if counted is None else counted.get(f"bytes {name}", 0),
            "sink_errors": None if counted is None else counted.get(f"sink_errors {name}", 0),
            "decoder": name in self.streams,
            "persist": histogram(counted, f"persist_seconds {name}", SECONDS),
            "decode": histogram(counted, f"decode_seconds {name}", SECONDS),
        }


def through(snapshot: Snapshot, ledger: sinks.Ledger) -> int:
    """Up to which sequence number everything that was claimed is in the database."""
    held = [int(claim.split(":")[1]) for claim in snapshot.claims if claim not in ledger.persisted]
    return min(held, default=snapshot.claimed + 1) - 1


def histogram(counted: dict[str, int] | None, field: str, bounds: Sequence[float]) -> Figures | None:
    """A histogram as the counts have it."""
    if counted is None:
        return None
    buckets = [counted.get(f"{field} {bound}", 0) for bound in (*bounds, "+Inf")]
    total = counted.get(f"{field} sum", 0) / (1e6 if bounds is SECONDS else 1)
    return {"bounds": [*bounds, None], "buckets": buckets, "count": sum(buckets), "sum": total}


def held(snapshots: dict[str, Snapshot], stream: str, first: int) -> Figures:
    """A claim that a worker holds, as it last said; of one that is settled by now nothing else is known."""
    one = snapshots.get(stream)
    claim = next((claim for claim in one.claims if f":{first}:" in claim), "") if one else ""
    bodies, seconds = (one.claims[claim], one.waiting.get(claim)) if one and claim else (None, None)
    return {"stream": stream, "first": first, "bodies": bodies, "seconds": seconds}


def astray(stream: str, missing: int | None) -> str:
    """What is to be said of a stream's `missing`; nothing if it is 0."""
    return BACK.format(stream) if (missing or 0) < 0 else GONE.format(stream, missing) if missing else ""


def known(name: str, s: Settings, inspector: Inspector) -> str:
    """The name, if there is such a stream. Raises: SettingError if not; RedisError."""
    names = {*load_streams(s), *(route.stream for route in fed(s).values())}
    if name not in names and name not in (names := names | inspector.streams()):
        raise settings.SettingError(f"there is no stream {name!r}; there are {', '.join(sorted(names))}.")
    return name


def fed(s: Settings) -> dict[str, routes.Route]:
    """All routes: the built-in ones and those of the user's module. Raises: SettingError."""
    own = getattr(settings.extension("INGEST_ROUTES", s.routes), "ROUTES", {}) if s.routes else {}
    return {**routes.ROUTES, **own}


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


def condition(where: str | None, stream: str | None) -> str:
    """The SQL condition on dead letters of both, where given."""
    parts = []
    if stream is not None:
        parts.append(among([stream]))
    if where is not None:
        parts.append(f"({where}\n)")
    return " AND ".join(parts) or "true"


def among(streams: list[str]) -> str:
    """The SQL condition that a letter is of one of these streams."""
    return "stream IN ({})".format(",".join("'{}'".format(name.replace("'", "''")) for name in streams))


def newest(sink: Sink, where: str, most: int) -> list[DeadLetter]:
    """The newest letters, newest first; the sink gives them in pieces that fit into memory."""
    found: list[DeadLetter] = []
    below = 1 << 62
    while len(found) < most:
        more = sink.letters(where, 0, below, most - len(found), newest=True)
        if not more:
            break
        found += more
        below = more[-1].id
    return found


def moment(letter: DeadLetter) -> str:
    """When it was received, as in the database."""
    return f"{second(letter.received // 1_000_000)}.{letter.received // 1000 % 1000:03d}Z"
