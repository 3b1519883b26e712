"""Delete rows and dead letters that INGEST_KEEP no longer keeps.

The workers do it too, a few at a time.
They delete slowly after an outage, because the clock may be wrong; this verb then needs --catch-up.
Of cells that share the database, the longest INGEST_KEEP counts.
A partition of a table is dropped when all of its rows are too old, so some rows stay until then.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

from sluice.base import terminal
from sluice.base.times import format_age, uptime_seconds
from sluice.parsers import DEAD
from sluice.settings import Settings
from sluice.store.cell_store import open_cell_store
from sluice.store.expiry import longest_kept
from sluice.store.questions import count_overdue
from sluice.store.registry import open_destinations
from sluice.store.retries import retry_conflicts
from sluice.streams.built_in import load_streams

SLACK_SECONDS = 86_400  # by which the clock may be ahead of the last deletion


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only count what is too old")
    parser.add_argument(
        "--catch-up", action="store_true", help="also what is too old only because the clock has jumped"
    )
    parser.epilog = "exit status: 0; 1 if the database is unavailable; 2 if a setting is invalid"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    streams = load_streams(s)
    store = open_cell_store(s, streams, keep=s.keep, row_destinations=open_destinations(s, streams))
    ages = [(name, age) for name in (*streams, DEAD) if (age := s.keep.for_stream(name)) is not None]
    if not ages:
        print("INGEST_KEEP keeps everything.")
    for name, own in ages:
        age, keeper = longest_kept(store, "keep", name, own)
        if keeper:
            terminal.complain(f"{name}: the cell {keeper} keeps it longer; `status --forget` ends that")
        if age is None:
            continue
        before = until = int((time.time() - age) * 1e6)
        if not arguments.catch_up:
            with store.transaction(read=True) as db:
                done = store.get_horizon(db, name) or store.safe_present(db) - age * 1_000_000
            believed = (store.latest_boot() or 0) + int((uptime_seconds() - age) * 1e6)
            before = min(until, max(done + SLACK_SECONDS * 1_000_000, believed))
        table = "dead_letters" if name == DEAD else name
        old = count_overdue(store, table, before)
        if not arguments.dry_run:
            step = retry_conflicts(store.expire_letters if name == DEAD else partial(store.expire_stream, name))
            began, more = time.monotonic(), old > 0
            while more:
                more = step(before)
                time.sleep(time.monotonic() - began)  # the workers write meanwhile
                began = time.monotonic()
            old -= count_overdue(store, table, before)
            store.set_horizons({name: before})
        if before < until:
            ahead = format_age((until - before) / 1e6)
            terminal.complain(f"{name}: the clock is {ahead} ahead of the last deletion; if it is right: --catch-up")
        print(f"{terminal.printable(name)}: {old} {'are too old' if arguments.dry_run else 'deleted'}")
    return 0
