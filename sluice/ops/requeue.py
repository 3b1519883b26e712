"""End the leases of a stream's claims now: whoever claims next gets them, with the same ids and bodies.

A claim of a dead worker is claimed again by itself, five seconds later. A worker that hangs keeps its claims; this
takes them away from it. Nothing is lost or doubled, whatever that worker still does.
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
    """Ask, and end the leases; the exit status."""
    try:
        inspector = Inspector(str(s.redis), PATIENCE)
        name = known(arguments.stream, s, inspector)
        claims = inspector.snapshot(name).claims
        if not claims:
            print(f"{name}: no claim is open.")
            return 0
        holders = [one.pid for one in inspector.processes() if any(stream == name for stream, _ in one.claims)]
        by = f", held by {', '.join(f'worker {pid}' for pid in holders)}" if holders else ""
        question = f"{name}: {len(claims)} open claims with {sum(claims.values())} bodies{by}. End their leases?"
        if not arguments.yes and not screen.agreed(question):
            return 1
        print(f"{name}: {inspector.requeue(name)} leases ended")
    except RedisError as error:
        screen.complain(f"Redis is away: {error}")
        return 1
    return 0
