"""Bury the claimed bodies of a stream, or one of them, undecoded.

For a body that takes too long or ends its workers, before they bury it themselves. It becomes a dead letter, which
`replay` stores later.
A body of which a worker is just storing the records is buried once that worker has ended.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from sluice import ledger
from sluice.base import screen
from sluice.elsewhere.registry import open_elsewhere
from sluice.formats.streams import load_streams
from sluice.settings import Settings
from sluice.spool.claim import Claim
from sluice.store.registry import open_store
from sluice.store.store import Store, retried
from sluice.store.types import Entry, Outcome, Unavailable
from sluice.streams.record import Reject

REASON = "buried by the operator"
PATIENCE_SECONDS = 60.0  # for a worker that holds the lock of the database: it ends itself before


def arguments(parser: argparse.ArgumentParser) -> None:
    screen.confirmed_arguments(parser)
    parser.add_argument("seq", metavar="SEQ", nargs="?", type=int, help="only the body with this sequence number")


def run(arguments: argparse.Namespace, s: Settings) -> int:
    name, inspector = arguments.stream, ledger.inspector(arguments.stream, s, "bury")
    claims = [Claim.of(name, id, count) for id, count in inspector.snapshot(name).claims.items()]
    if arguments.seq is not None:
        claims = [
            each.part(arguments.seq, arguments.seq + 1) for each in claims if each.first <= arguments.seq < each.end
        ]
    bodies, buried = sum(each.count for each in claims), 0
    if not bodies:
        print(f"{name}: no such body is claimed.")
        return 0
    if not screen.confirmed(arguments, f"{name}: bury {bodies} claimed bodies?"):
        return 1
    streams = load_streams(s)
    store = open_store(s.store, streams, make=False, elsewhere=open_elsewhere(s.rows, streams))
    deadline = time.monotonic() + PATIENCE_SECONDS
    for claim in claims:
        for seq, state, item in inspector.waiting(name, claim.first, claim.count):
            if state == "claimed" and claim.first <= seq < claim.end:  # else it is stored by now
                entry = seq, inspector.received(name, seq), item, Reject(item, REASON, True)
                buried += persist(store, claim.part(seq, seq + 1), entry, deadline).letters
    store.close()
    print(f"{name}: {buried} bodies buried" + (", the others are stored" if buried < bodies else ""))
    return 0


def persist(store: Store[Any], claim: Claim, entry: Entry, deadline: float) -> Outcome:
    while True:
        try:
            return retried(store.persist)(claim, [entry])
        except Unavailable as error:
            if time.monotonic() > deadline:
                raise
            screen.complain(f"waiting: {error}")
            time.sleep(0.1)
