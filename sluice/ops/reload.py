"""Let the gateway, the workers and the rest of a running bin/up go on with the code that is there now.

No request fails meanwhile. The gateway is upgraded (USR2): a second one starts beside it on the same sockets, and only
once that serves is the first one told to stop. Each worker finishes its batch and starts again, and so do
metrics and page. Redis and nginx are left alone, and so are the settings: they are bin/up's, from its start.
"""

from __future__ import annotations

import argparse

from sluice.run import reload
from sluice.run.reload import NOTICE
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    # not always: each client needs a new connection for it
    parser.add_argument("--nginx", action="store_true", help="nginx too: certificates and keys that have changed")
    parser.add_argument(
        "--notice", type=int, default=NOTICE, metavar="S",
        help="seconds for clients to hear that nginx is about to hang up on idle ones (%(default)s); a request of "
        "one that sends less often may cross that. 80 seconds are enough for all clients",
    )  # fmt: skip
    parser.epilog = (
        "exit status: 0; 1 if bin/up does not run here, or something does not start anew (the old one goes on then); "
        "2 for a wrong setting"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Replace all that can be replaced; the exit status."""
    return reload.run(s, arguments.notice if arguments.nginx else None)
