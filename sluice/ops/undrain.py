"""Put this cell back behind its balancer.

/readyz answers 200 again, once Redis accepts writes.
"""

from __future__ import annotations

import argparse
import time

from sluice.base import terminal
from sluice.run.up import gateway_answers
from sluice.settings import Settings

PATIENCE_SECONDS = 10.0  # for Redis to accept writes


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0; 1 if /readyz does not answer 200 within ten seconds; 2 if a setting is invalid"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    for file in s.closing, s.draining:
        file.unlink(missing_ok=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not gateway_answers(s.gateway_sockets, "/readyz"):
        if time.monotonic() > deadline:
            terminal.complain("/readyz does not answer 200: does bin/up run here, and does Redis accept writes?")
            return 1
        time.sleep(0.1)
    print("undrained: /readyz answers 200")
    return 0
