"""Throw away the bodies of a stream that are ready. There is no way back; `status` says how many there were.

Only those that were there when the question was asked. What a worker has claimed stays.
"""

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
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.epilog = "exit status: 0; 1 if the answer is no or Redis is away; 2 for a wrong setting or no such stream"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Ask, and purge; the exit status."""
    try:
        inspector = Inspector(str(s.redis), PATIENCE)
        name = known(arguments.stream, s, inspector)
        seen = inspector.snapshot(name)
        if not seen.ready:
            print(f"{name}: no body is ready.")
            return 0
        question = f"{name}: {seen.ready} accepted bodies wait to be stored. Throw them away for good?"
        if not arguments.yes and not screen.agreed(question):
            return 1
        print(f"{name}: {inspector.purge(name, seen.claimed + seen.ready)} bodies thrown away")
    except RedisError as error:
        screen.complain(f"Redis is away: {error}")
        return 1
    return 0
