"""Delete the rows and dead letters that INGEST_KEEP no longer keeps. The workers do it too, a few at a time.

A partition of PostgreSQL is dropped when all of its rows are too old, so some rows stay until then.
"""

from __future__ import annotations

import argparse
import time

from sluice.base import screen
from sluice.elsewhere.registry import open_elsewhere
from sluice.formats.streams import load_streams
from sluice.settings import DEAD, Settings
from sluice.store.registry import open_store


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only count what is too old")
    parser.epilog = "exit status: 0; 1 if the database is unavailable; 2 if a setting is invalid"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    streams = load_streams(s)
    store = open_store(s.store, streams, make=False, keep=s.keep, elsewhere=open_elsewhere(s.rows, streams))
    ages = [(name, age) for name in (*streams, DEAD) if (age := s.keep.of(name)) is not None]
    if not ages:
        print("INGEST_KEEP keeps everything.")
    for name, age in ages:
        before = int((time.time() - age) * 1e6)
        table = "dead_letters" if name == DEAD else name
        old = store.overdue(table, before)
        if not arguments.dry_run:
            began, more = time.monotonic(), old > 0
            while more:
                more = store.expire_letters(before) if name == DEAD else store.expire(name, before)
                time.sleep(time.monotonic() - began)  # the workers write meanwhile
                began = time.monotonic()
            old -= store.overdue(table, before)
        print(f"{screen.shown(name)}: {old} {'are too old' if arguments.dry_run else 'deleted'}")
    return 0
