"""Bury the claimed bodies of a stream, or one of them, undecoded.

For a body that takes too long or ends its workers, before they bury it themselves. It becomes a dead letter, which
`replay` stores later.
A body that a worker is just decoding is buried at once, and one of which it is storing the records, once that is done.
"""

from __future__ import annotations

import argparse
import re
import time
from typing import Any

from sluice import ledger
from sluice.base import terminal
from sluice.settings import SettingError, Settings
from sluice.spool.claim import Claim
from sluice.store.cell_store import open_cell_store
from sluice.store.registry import open_destinations
from sluice.store.retries import retry_conflicts
from sluice.store.store import Store
from sluice.store.types import Body, Outcome, Unavailable
from sluice.streams.built_in import load_streams
from sluice.streams.record import Reject

REASON = "buried by the operator"
PATIENCE_SECONDS = 60.0  # for a worker that holds the lock of the database: it ends itself before


def arguments(parser: argparse.ArgumentParser) -> None:
    terminal.confirmed_arguments(parser)
    parser.add_argument(
        "seq",
        metavar="SEQ",
        nargs="?",
        type=parse_seq,
        help="only the body with this sequence number, as `peek` shows it",
    )
    parser.epilog = (
        "exit status: 0; 1 if the answer is no, or Redis or the database is unavailable; 2 if a setting is invalid, or "
        "there is no such stream or no such body is claimed"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    name, inspector = arguments.stream, ledger.stream_inspector(arguments.stream, s, "bury")
    bodies, buried = sum(1 for _ in inspector.claimed(name, arguments.seq)), 0
    if not bodies and arguments.seq:
        raise SettingError(f"{name}: no body {arguments.seq} is claimed.")
    if not bodies:
        print(f"{terminal.printable(name)}: no such body is claimed.")
        return 0
    if not terminal.confirmed(arguments, f"{name}: bury {bodies} claimed bodies?"):
        return 1
    streams = load_streams(s)
    store = open_cell_store(s, streams, row_destinations=open_destinations(s, streams))
    deadline = time.monotonic() + PATIENCE_SECONDS
    for claim, received, item in inspector.claimed(name, arguments.seq):
        body = Body(claim.first, received, item, (), (Reject(item, REASON, True),))
        buried += persist_dead(store, claim, body, deadline).letters
    store.close()
    print(
        f"{terminal.printable(name)}: {buried} bodies buried" + (", the others are stored" if buried < bodies else "")
    )
    return 0


def parse_seq(text: str) -> str:
    if not re.fullmatch(r"(\d{1,9}:)?\d{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError("no sequence number")
    return text


def persist_dead(store: Store[Any], claim: Claim, body: Body, deadline: float) -> Outcome:
    while True:
        try:
            return retry_conflicts(store.persist)(claim, [body])
        except Unavailable as error:
            if time.monotonic() > deadline:
                raise
            terminal.complain(f"waiting: {error}")
            time.sleep(0.1)
