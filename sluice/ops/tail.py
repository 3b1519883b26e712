"""Show the bodies of a stream as they arrive, without taking them.

Ctrl-C ends it. The list is read 200 times a second. Bodies that arrive and are stored between two reads are counted,
not shown.
"""

from __future__ import annotations

import argparse
import sys

from sluice import ledger
from sluice.base import terminal
from sluice.settings import Settings
from sluice.streams.message import after_head


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("--count", metavar="N", type=terminal.whole_number, default=0, help="stop after N bodies")
    parser.add_argument("--full", action="store_true", help="show whole bodies")
    parser.epilog = (
        "exit status: 0; 1 if Redis is unavailable; 2 if a setting is invalid or there is no such stream; "
        "130 if interrupted"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    name, inspector = arguments.stream, ledger.stream_inspector(arguments.stream, s)
    start, bodies = inspector.follow(name)
    print(f"sluice: {name}: from {start}", file=sys.stderr, flush=True)
    shown = 0
    for body in bodies:
        if isinstance(body, int):
            print(f"… {body} not shown", flush=True)
            continue
        seq, state, item = body
        print(terminal.body_line(seq, state, item if arguments.full else after_head(item), arguments.full), flush=True)
        shown += 1
        if shown == arguments.count:
            break
    return 0
