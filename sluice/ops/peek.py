"""Show the oldest bodies of a stream that wait, ready or claimed, without taking them."""

from __future__ import annotations

import argparse

from redis.exceptions import RedisError

from sluice import screen
from sluice.ledger import PATIENCE, known
from sluice.settings import Settings
from sluice.spool.inspector import Inspector


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("--from", metavar="N", type=int, default=0, dest="first", help="from this sequence number on")
    parser.add_argument("--limit", metavar="N", type=int, default=10, help="how many (10)")
    parser.add_argument("--full", action="store_true", help="with the whole body")
    parser.epilog = "exit status: 0; 1 if Redis is away; 2 for a wrong setting or no such stream"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print them; the exit status."""
    left, first = arguments.limit, arguments.first
    try:
        inspector = Inspector(str(s.redis), PATIENCE)
        name = known(arguments.stream, s, inspector)
        while left > 0 and (found := inspector.peek(name, first, left)[1]):
            for seq, state, body in found:
                print(screen.body_line(seq, state, body, arguments.full))
            left, first = left - len(found), found[-1][0] + 1
    except RedisError as error:
        screen.complain(f"Redis is away: {error}")
        return 1
    if left == arguments.limit:
        print("Nothing waits.")
    return 0
