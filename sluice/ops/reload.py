"""Replace the programs of a running bin/up, except nginx and both Redis, by the code that is there now.

No request fails. A second gateway starts beside the first, on the same sockets (USR2); the first one stops once the
second one serves; likewise the reader. Each worker finishes its batch and restarts, without it if that takes more than
ten seconds, as while Redis hangs: the batch is then stored later. Follower, metrics and page restart.
Redis and nginx keep running, and the settings stay those with which bin/up was started.
"""

from __future__ import annotations

import argparse

from sluice.base import terminal
from sluice.run import reload
from sluice.run.reload import NOTICE_SECONDS
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nginx", action="store_true",
        help="reload nginx too, for changed certificates and keys; every client then needs a new connection",
    )  # fmt: skip
    parser.add_argument(
        "--notice", type=terminal.whole_number, default=NOTICE_SECONDS, metavar="S",
        help="seconds of notice to clients before nginx closes idle connections (%(default)s). A client that sends "
        "less often may lose a request; with 80 none does",
    )  # fmt: skip
    parser.epilog = (
        "exit status: 0; 1 if bin/up does not run here, or a new process does not start (the old one then continues); "
        "2 if a setting is invalid"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    return reload.run(s, arguments.notice if arguments.nginx else None)
