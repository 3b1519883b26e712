"""THE sum of each stream of a cell, at any moment:

    accepted = ready + claimed + stored + dead + duplicate + expired + purged

The terms left of `stored` come from Redis, the others from the database; `stream_balance` adds them. A cell publishes
its sums in the database every few seconds, so that all cells can be looked at from any of them, and also one that is
gone.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from sluice.parsers import DEAD, Keep
from sluice.spool.snapshot import Snapshot, Snapshots
from sluice.store import database_identity
from sluice.store.store import RowDestinations, Store
from sluice.store.types import Epoch, Ledger, Unavailable
from sluice.streams.registry import Stream

log = logging.getLogger("sluice.worker")

EVERY_SECONDS = 5.0  # between two publications of a cell
LATE_INTERVALS = 3  # a cell that has published no figures for so many of its intervals is late
SAID = 3  # publications after which a name that is no longer shared is no longer said to be: workers take turns
COUNT_SHARE = 20  # counting takes at most 1/20 of a worker's time, however large the database is
SHARED = "another installation stores in this database under this name; each needs an INGEST_CELL of its own"
OTHER_STORE = (
    "INGEST_STORE is another database than before. The bodies in the former one stay there, also rows that wait for "
    "their destination; `status` counts these bodies as missing. One that was claimed during the change may be in both"
)


class Sums(TypedDict):
    """What a line of a table shows of a `Balance`."""

    accepted: int | None
    ready: int | None
    claimed: int | None
    stored: int | None
    dead: int | None
    duplicate: int | None
    missing: int | None
    oldest_seconds: float | None


class Balance(Sums):
    """Where the accepted bodies of a stream are: the terms of THE sum. None: unknown. All but these are bodies:

    deleted: rows deleted by age, of all cells
    oldest_seconds: age of the oldest body that is not in the database; None too if there is none
    """

    purged: int | None
    expired: int | None
    deleted: int | None


class StreamBalance(Balance):
    stream: str


class Shared(TypedDict):
    """The settings of a cell that others which store in its database must know, by stream.

    keep, unique: seconds; None: for ever. The longest of all cells counts: what is deleted is gone for all of them.
    rows: the address of the destination.
    """

    keep: dict[str, int | None]
    unique: dict[str, int]
    rows: dict[str, str]


class Published(TypedDict):
    """What a cell publishes. every: seconds until the next figures. epochs: of all streams, by which an installation
    knows its own figures. shared: not 0 if another one publishes under this name, and then for how many more
    publications this is said. settings: {} if they are not known.
    """

    every: float
    streams: list[StreamBalance]
    epochs: list[str]
    shared: int
    settings: Shared | dict[str, Any]


def stream_balance(snapshot: Snapshot | None, ledger: Ledger | None) -> Balance:
    """Where the accepted bodies of a stream are: THE sum, whose terms stand in the order of a body's way.

    accepted = ready + claimed + stored + dead + duplicate + expired + purged; `missing` is what it leaves, and is 0.
    Below 0, more bodies are counted than were accepted.
    """
    accepted = ready = claimed = stored = dead = duplicate = expired = purged = deleted = oldest = missing = None
    if snapshot:
        persisted = ledger.persisted if ledger else {}  # of claims that are not settled
        unstored = {claim: bodies - persisted.get(claim, 0) for claim, bodies in snapshot.claims.items()}
        accepted = snapshot.taken + snapshot.ready + (ledger.earlier if ledger else 0)
        ready = snapshot.ready - (ledger.ahead if ledger else 0)
        claimed = sum(unstored.values())
        purged = snapshot.purged
        oldest = max((age for at, age in snapshot.ages.items() if unstored.get(at, 1)), default=None)
    if ledger:
        stored = ledger.bodies - ledger.dead - ledger.duplicate - ledger.expired
        dead, duplicate = ledger.dead, ledger.duplicate
        expired, deleted = ledger.expired, ledger.deleted
    terms = ready, claimed, stored, dead, duplicate, expired, purged
    if accepted is not None and ledger:
        missing = accepted - sum(bodies or 0 for bodies in terms)
    return {
        "accepted": accepted, "ready": ready, "claimed": claimed, "stored": stored, "dead": dead,
        "duplicate": duplicate, "missing": missing, "purged": purged, "expired": expired, "deleted": deleted,
        "oldest_seconds": oldest,
    }  # fmt: skip


def stream_ledger(store: Store[Any], stream: str, snapshot: Snapshot | None, cell: str) -> Ledger:
    """The database's counts of a stream, for the bodies that were accepted at the time of the snapshot."""
    if snapshot and snapshot.partitions is not None:
        bodies, ahead, lost = snapshot.partitions.count_bodies(store, stream)
        return store.read_ledger(stream)._replace(bodies=bodies, earlier=lost, ahead=ahead)
    return store.read_ledger(stream, snapshot.history if snapshot else (), cell, snapshot.claims if snapshot else None)


def shared_settings(streams: Mapping[str, Stream], keep: Keep, row_destinations: RowDestinations) -> Shared:
    """Raises: Unavailable."""
    return {
        "keep": {name: keep.for_stream(name) for name in (*streams, DEAD)},
        "unique": {name: stream.rule.seconds for name, stream in streams.items() if stream.rule},
        "rows": dict(row_destinations.addresses()),
    }


class Publisher:
    """A worker's part in publishing the figures of its cell, as `Published`: the workers of a cell take turns."""

    def __init__(
        self,
        snapshots: Snapshots,
        streams: Iterable[str],
        name: str,
        keep: bool,
        replicas: int = 0,
        settings: Callable[[], Shared | dict[str, Any]] = dict,
        home: Path | None = None,
    ) -> None:
        """name: of the cell. keep: its Redis may be another cell's; then that name counts.

        replicas: number of replicas of Redis that must confirm a commit, at least. settings: see `shared_settings`.
        home: INGEST_HOME, where the identity of the database is noted.
        """
        self.snapshots = snapshots
        self.streams = set(streams)
        self.name, self.keep, self.replicas = name, keep, replicas
        self.settings: Callable[[], Shared | dict[str, Any]] = settings
        self.known_settings: Shared | dict[str, Any] = {}
        self.home, self.named = home, False
        self.due = 0.0  # monotonic
        self.epochs: set[str] | None = None  # that were published last
        self.shared = 0

    def publish(self, store: Store[Any], last: bool = False) -> None:
        """Publish the figures if they are due, or `last`. Raises: one of SPOOL_ERRORS, Unavailable."""
        began = time.monotonic()
        if began < self.due and not last:
            return
        self.due = began + EVERY_SECONDS
        if not self.named:
            asked, self.named = self.name, True
            self.name = self.snapshots.name_cell(asked, self.keep)
            if self.name != asked:
                log.info("this is the cell %s, as its list says, not %s", self.name, asked)
            with store.transaction(read=True) as db:
                identity = store.read_identity(db)
            if self.snapshots.name_store(identity) not in ("", identity):
                log.warning(OTHER_STORE)
            if self.home:
                database_identity.note_identity(self.home, identity)
        known = next((cell for cell in store.read_cells() if cell.cell == self.name), None)
        theirs = set(known.figures.get("epochs", ())) if known else set[str]()
        # figures of another list may be those of another installation, which is not given a turn
        ours = self.epochs is not None and (not theirs or not theirs.isdisjoint(self.epochs))
        if known and known.seconds < EVERY_SECONDS / 2 and ours and not last:
            self.due = began + EVERY_SECONDS - known.seconds
            return
        streams, epochs, confirmed, lists = list[StreamBalance](), list[Epoch](), True, set[str]()
        for stream in sorted(self.streams | self.snapshots.list_streams()):
            snapshot = self.snapshots.take_snapshot(stream, self.replicas if confirmed else 0)
            confirmed &= snapshot.confirmed
            lists |= {past.epoch for past in snapshot.history}
            if snapshot.partitions:
                lists |= snapshot.partitions.epochs
            ledger = stream_ledger(store, stream, snapshot, self.name)
            streams.append({"stream": stream, **stream_balance(snapshot, ledger)})
            if confirmed:  # else a failover may lose numbers whose bodies got no 2xx
                epochs += epoch_rows(stream, self.name, snapshot, ledger.purged)
        every = max(EVERY_SECONDS, COUNT_SHARE * (time.monotonic() - began))
        # a list that was emptied has other epochs too; then they are not those that this process has published
        same = not lists.isdisjoint(self.epochs or ())
        foreign = known and theirs and known.seconds < LATE_INTERVALS * every and same and not ours
        said = known.figures.get("shared", 0) if known else 0
        self.shared = SAID if foreign else max(0, said - 1)
        with contextlib.suppress(Unavailable):  # of a destination
            self.known_settings = self.settings()
        figures: Published = {
            "every": every, "streams": streams, "epochs": sorted(lists), "shared": self.shared,
            "settings": self.known_settings,
        }  # fmt: skip
        store.publish_figures(self.name, figures, epochs)
        self.epochs = lists
        self.due = began + every


def epoch_rows(stream: str, cell: str, snapshot: Snapshot, purged: dict[str, int]) -> list[Epoch]:
    """The rows of the epochs of a list. purged: of each epoch so far; what Redis counts beyond is the last one's."""
    if not snapshot.history:
        return []
    *before, last = snapshot.history
    rows = [Epoch(stream, past.epoch, cell, past.first, past.end - 1, purged.get(past.epoch, 0)) for past in before]
    more = snapshot.purged - sum(row.purged for row in rows)
    rows.append(Epoch(stream, last.epoch, cell, last.first, last.end - 1, max(0, more)))
    return rows
