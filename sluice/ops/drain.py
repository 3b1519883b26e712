"""Take this cell out of its balancer: /readyz answers 503, then each 2xx response closes its connection.

No request fails: whatever still arrives is accepted and answered. When the command ends, a balancer that asks /readyz
sends no more requests, and bin/up may be stopped. The cell is draining, also after a start, until `undrain`.
"""

from __future__ import annotations

import argparse
import time

from sluice.base import terminal
from sluice.run.reload import NOTICE_SECONDS
from sluice.run.up import connected
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--notice", type=terminal.whole_number, default=NOTICE_SECONDS, metavar="S",
        help="seconds for the balancer to see the 503, and again for its connections to close (%(default)s)",
    )  # fmt: skip
    parser.epilog = "exit status: 0; 1 if nothing runs here; 2 if a setting is invalid"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    gateway = connected(s.gateway_sockets)
    if not gateway:
        terminal.complain(f"nothing runs in {s.home}")
        return 1
    gateway.close()
    for file, message in (s.draining, "/readyz answers 503"), (s.closing, "connections close"):
        file.touch()
        print(message, flush=True)
        for _ in range(10 * arguments.notice):  # turns, not time: while the machine is suspended, nobody asks
            time.sleep(0.1)
    print(f"draining; {terminal.PROGRAM} undrain puts it back")
    return 0
