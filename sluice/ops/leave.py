"""Take this installation out of its balancer: /readyz answers 503, then each 2xx response closes its connection.

No request fails: whatever still arrives is accepted and answered. When the command ends, a balancer that asks /readyz
sends no more requests, and bin/up may be stopped. The installation stays out, also after a start, until `join`.
"""

from __future__ import annotations

import argparse
import time

from sluice.base import screen
from sluice.run.reload import NOTICE
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument(
        "--notice", type=int, default=NOTICE, metavar="S",
        help="seconds for the balancer to see the 503, and again for its connections to close (%(default)s)",
    )  # fmt: skip
    parser.epilog = "exit status: 0; 1 if nothing runs here; 2 if a setting is invalid"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Leave; returns the exit status."""
    run = s.home / "run"
    if not run.is_dir():
        screen.complain(f"nothing runs in {s.home}")
        return 1
    for name, said in ("left", "/readyz answers 503"), ("closing", "connections close"):
        (run / name).touch()
        print(said, flush=True)
        for _ in range(10 * arguments.notice):  # turns, not time: while the machine is suspended, nobody asks
            time.sleep(0.1)
    print("left; bin/sluice join puts it back")
    return 0
