"""The loss test: is anything lost or doubled while things fail?

Posts numbered events through nginx, injects faults meanwhile, and holds what the clients were told against what lies
in the database. Status 0: nothing acknowledged is missing, and nothing is stored twice.

Against a private installation, which it starts itself with the settings of the environment, or with `--home` against
one that runs already: that one will hold the drill's events afterwards, as metrics called `drill`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sluice.drill.conduct import run
from sluice.drill.faults import FAULTS

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    listed = "".join(
        f"\n  {name:<17} {fault.words}{' (private only)' * fault.private}{' (only if named)' * fault.proof}"
        for name, fault in FAULTS.items()
    )
    parser.epilog = f"faults:{listed}"
    add = parser.add_argument
    add("--home", type=Path, help="INGEST_HOME of an installation that runs (else a private one is started)")
    add("--header", default="", metavar="LINE", help="to send with each request there, such as `X-API-Key: …`")
    add("--duration", type=float, default=60, metavar="SECONDS", help="of posts and faults (60)")
    add("--rounds", type=int, help="inject each fault so many times instead, however long that takes")
    add("--rate", type=int, default=5000, help="events/s; what is due in an outage is posted afterwards (5000)")
    add("--clients", type=int, default=64, help="connections (64)")
    add("--faults", default="all", help="names with commas between, `none`, `all` (default); -NAME: not this one")
    add("--seed", type=int, help="the order of the faults and what chance decides; printed")
    add("--report", type=Path, metavar="DIR", help="where the report goes (INGEST_HOME/drill)")
    add("--keep", action="store_true", help="keep the private installation's files")
