"""Release the claims of a stream: end their leases now.

The next worker that claims gets them, with the same ids and bodies.
The claims of a dead worker are claimed again without this, after five seconds. A worker that hangs but renews its
leases keeps its claims; this takes them from it. Nothing is lost or stored twice, even if that worker continues.
"""

from __future__ import annotations

import argparse

from sluice import ledger
from sluice.base import terminal
from sluice.settings import Settings

arguments = terminal.confirmed_arguments


def run(arguments: argparse.Namespace, s: Settings) -> int:
    name, inspector = arguments.stream, ledger.stream_inspector(arguments.stream, s, "release")
    claims = inspector.take_snapshot(name).claims
    if not claims:
        print(f"{terminal.printable(name)}: no claim is open.")
        return 0
    holders = [process.pid for process in inspector.processes() if any(stream == name for stream, _ in process.claims)]
    by = f", held by {', '.join(f'worker {pid}' for pid in holders)}" if holders else ""
    question = f"{name}: end the leases of {len(claims)} open claims with {sum(claims.values())} bodies{by}?"
    if not terminal.confirmed(arguments, question):
        return 1
    print(f"{terminal.printable(name)}: {inspector.release(name)} leases ended")
    return 0
