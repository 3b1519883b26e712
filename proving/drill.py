"""Post numbered events, inject faults, and check that every acknowledged event is stored exactly once.

The drill posts through nginx and compares the responses with the rows in the database. Some clients read what they post
from the views; no answer may be wrong, and at the end no view may differ from the database. The drill starts a private
installation with the settings of the environment; there, some events are logs, which are deleted by age. With --home it
uses a running installation, whose database then keeps the events: metrics named `drill`, and positions and votes. With
--forward the positions and votes are posted on, too: a receiver must get each one, and those of a device in their
order. With --cells it starts that many cells on machines of their own (namespaces; needs root), with a balancer,
PostgreSQL, and Redis with replicas and Sentinels or, with --spool kafka, a broker of Kafka on each machine.

exit status: 0 if no acknowledged event is missing or stored twice, and the other promises were kept; 1 if not, or if
the drill could not finish; 2 for wrong arguments
"""

from __future__ import annotations

import argparse
from pathlib import Path

from proving import conduct
from proving.faults import FAULTS, Fault
from proving.outages import OUTAGES
from sluice.settings import SettingError, Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    listed = [line(*item) for item in sorted(FAULTS.items(), key=lambda item: item[1].views)]
    listed.insert(sum(not fault.views for fault in FAULTS.values()), "\nfaults of the views, at the same time:")
    listed += ["\n\nfaults with --cells:", *(line(*item) for item in OUTAGES.items())]
    parser.epilog = f"faults (private only: not with --home):{''.join(listed)}"
    add = parser.add_argument
    add("--home", type=Path, help="INGEST_HOME of a running installation (default: start a private one)")
    add("--header", default="", metavar="LINE", help="header line for each request to it, such as `X-API-Key: KEY`")
    add("--cells", type=int, metavar="N", help="start N cells behind a balancer, at least 3")
    add("--spool", choices=conduct.SPOOLS, default="redis", help="what the lists of these cells are in (redis)")
    add("--duration", type=float, default=60, metavar="SECONDS", help="time of posting and faults (60)")
    add("--rounds", type=int, help="inject each fault that many times, instead of --duration")
    add("--rate", type=int, help="events/s (5000; cells 1000, with Kafka 300); those due in an outage are posted later")
    add("--clients", type=int, default=64, help="connections (64)")
    add("--forward", action="store_true", help="post positions and votes on to a receiver that fails in every way")
    add("--no-views", action="store_false", dest="views", help="without views: only post, and compare what is stored")
    add("--faults", default="all", help="comma-separated names, `none` or `all` (default); -NAME excludes one")
    add("--seed", type=int, help="seed of the random choices; the drill prints it")
    add("--report", type=Path, metavar="DIR", help="directory of the report (INGEST_HOME/drill)")
    add("--keep", action="store_true", help="keep the files of the private installation")


def line(name: str, fault: Fault) -> str:
    """A fault in the list of --help."""
    when = " (private only)" * fault.private + " (only if named)" * (fault.named or fault.proof)
    when += " (with --forward)" * fault.forward
    return f"\n  {name:<18} {fault.words}{when}"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Run the drill; returns the exit status."""
    if s.spool.startswith("kafka://"):
        raise SettingError("the drill starts Kafka itself, with --cells 3 --spool kafka: unset INGEST_SPOOL.")
    return conduct.run(arguments, s)
