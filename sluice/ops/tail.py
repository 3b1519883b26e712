"""Show the bodies of a stream as they arrive, without taking them.

Ctrl-C ends it.
The list is read 200 times a second. Bodies that arrive and are stored between two reads are counted, not shown.
"""

from __future__ import annotations

import argparse
import sys
import time

from sluice import ledger, screen
from sluice.settings import Settings

EVERY = 0.005  # seconds between two reads: the worker stores a single body in about as long


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("--count", metavar="N", type=int, default=0, help="stop after N bodies")
    parser.add_argument("--full", action="store_true", help="show whole bodies")
    parser.epilog = (
        "exit status: 0; 1 if Redis is unavailable; 2 if a setting is invalid or there is no such stream; "
        "130 if interrupted"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print the bodies; returns the exit status."""
    name, inspector = arguments.stream, ledger.inspector(arguments.stream, s)
    shown = 0
    following = inspector.peek(name, limit=0)[0] + 1
    print(f"sluice: {name}: from sequence number {following}", file=sys.stderr, flush=True)
    while True:
        last, found = inspector.peek(name, following)
        for seq, state, body in found:
            if seq > following:
                print(f"… {seq - following} not shown", flush=True)
            print(screen.body_line(seq, state, body, arguments.full), flush=True)
            following, shown = seq + 1, shown + 1
            if shown == arguments.count:
                return 0
        if not found:
            if last >= following:
                print(f"… {last + 1 - following} not shown", flush=True)
            following = last + 1  # a lower number: Redis was emptied, or lost the end of its log
            time.sleep(EVERY)
