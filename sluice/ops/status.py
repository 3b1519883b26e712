"""Show the ledger: for each stream, how many bodies were accepted, and where they are.

accepted = ready + claimed + stored + dead + missing, counted in bodies. missing is 0, under any load.
oldest is the age of the oldest body that is not yet in the database.
"""

from __future__ import annotations

import argparse
import json

from sluice import screen
from sluice.ledger import STATES, Figures, Observer
from sluice.settings import Settings

PURGED = "{}: {} accepted bodies were discarded by `{} purge`."
NO_DECODER = "{}: no decoder, so its bodies stay on the list; INGEST_RECORDS names the module that has one."


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = (
        "exit status: 0; 1 if Redis or the database is unavailable, or missing is not 0; 2 if a setting is invalid"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print the ledger; returns the exit status."""
    found = Observer(s).ledger()
    if arguments.json:
        rows = [{"stream": name} | row for name, row in found["streams"].items()]
        print(json.dumps({"streams": rows, "trouble": found["trouble"]}, indent=2))
    else:
        print(screen.table(("stream", *STATES, "oldest"), (cells(*item) for item in found["streams"].items())))
        for name, row in found["streams"].items():
            if not row["decoder"]:
                print(NO_DECODER.format(name))
            if row["purged"]:
                print(PURGED.format(name, row["purged"], screen.PROGRAM))
    for line in found["trouble"]:
        screen.complain(line)
    return 1 if found["trouble"] else 0


def cells(name: str, row: Figures) -> list[str]:
    """A line of the table; ? for an unknown figure."""
    known = ["?" if row[state] is None else str(row[state]) for state in STATES]
    oldest = row["oldest_seconds"]
    return [screen.shown(name), *known, "" if oldest is None else screen.ago(oldest)]
