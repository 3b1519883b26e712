"""Show the ledger: of every stream what was accepted, and where all of it is.

accepted = ready + claimed + stored + dead + missing, counted in bodies, and missing is 0, at any load.
oldest is how long the oldest body has waited that is not yet in the database.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from sluice import screen
from sluice.ledger import STATES, Observer
from sluice.settings import Settings

PURGED = "{}: {} accepted bodies were thrown away by `bin/sluice purge`."
NO_DECODER = "{}: no decoder: what is posted to it waits on the list; INGEST_RECORDS names the module that has one."
KEYS = (*STATES, "purged", "oldest_seconds", "decoder")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.epilog = "exit status: 0; 1 if Redis or the database is away or missing is not 0; 2 for a wrong setting"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print the ledger; the exit status."""
    figures = Observer(s).look()
    rows = [{"stream": name} | {key: one[key] for key in KEYS} for name, one in figures["streams"].items()]
    trouble = figures["trouble"]
    if arguments.json:
        print(json.dumps({"streams": rows, "trouble": trouble}, indent=2))
    else:
        print(screen.table(("stream", *STATES, "oldest"), map(cells, rows)))
        for row in rows:
            if not row["decoder"]:
                print(NO_DECODER.format(row["stream"]))
        for row in rows:
            if row["purged"]:
                print(PURGED.format(row["stream"], row["purged"]))
    for line in trouble:
        screen.complain(line)
    return 1 if trouble else 0


def cells(entry: dict[str, Any]) -> list[str]:
    """A line of the table."""
    known = ["?" if entry[state] is None else str(entry[state]) for state in STATES]
    oldest = entry["oldest_seconds"]
    return [screen.printable(entry["stream"].encode()), *known, "" if oldest is None else screen.ago(oldest)]
