"""Show the bodies of a stream as they arrive, without taking them, until Ctrl-C.

It looks two hundred times a second. What came and went between two looks is counted, not shown.
"""

from __future__ import annotations

import argparse
import sys
import time

from redis.exceptions import RedisError

from sluice import screen
from sluice.ledger import PATIENCE, known
from sluice.settings import Settings
from sluice.spool.inspector import Inspector

EVERY = 0.005  # seconds: the worker stores a lone body in about as long


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("--count", metavar="N", type=int, default=0, help="end after so many bodies")
    parser.add_argument("--full", action="store_true", help="with the whole body")
    parser.epilog = "exit status: 0; 1 if Redis is away; 2 for a wrong setting or no such stream; 130 if interrupted"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print what comes; the exit status."""
    shown = 0
    try:
        inspector = Inspector(str(s.redis), PATIENCE)
        name = known(arguments.stream, s, inspector)
        following = inspector.peek(name, most=0)[0] + 1
        print(f"sluice: {name}: from {following} on", file=sys.stderr, flush=True)
        while True:
            last, found = inspector.peek(name, following)
            for seq, state, body in found:
                if seq > following:
                    print(f"… {seq - following} that came and went", flush=True)
                print(screen.body_line(seq, state, body, arguments.full), flush=True)
                following, shown = seq + 1, shown + 1
                if shown == arguments.count:
                    return 0
            if not found and last >= following:
                print(f"… {last + 1 - following} that came and went", flush=True)
                following = last + 1
            if last + 1 < following:  # Redis was emptied, or lost its tail
                following = last + 1
            if not found:
                time.sleep(EVERY)
    except RedisError as error:
        screen.complain(f"Redis is away: {error}")
        return 1
