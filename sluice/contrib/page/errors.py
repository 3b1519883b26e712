"""Show the last rejected requests, newest first, and unknown fields.

Of a request it shows time, status, sender, path and reason. The program `page` keeps the last hundred of each kind, a
status with a reason. In a flood some are lost. Unknown fields are those of a sample of the bodies that no column has.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from sluice.base import terminal
from sluice.base.times import iso_instant
from sluice.contrib.page.page import FILE as FIGURES
from sluice.contrib.page.rejections import FILE
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sender", metavar="TEXT", help="only requests whose sender has this text")
    parser.add_argument(
        "--limit", metavar="N", type=terminal.whole_number, default=20, help="number of requests to show (20)"
    )
    parser.add_argument("--json", action="store_true", help="print all of them as JSON")
    parser.epilog = (
        "exit status: 0; 1 if the program `page` has not run here, or its list is cut off; 2 if a setting is invalid"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    try:
        entries: list[dict[str, Any]] = json.loads((s.home / "run" / FILE).read_text())
    except (OSError, ValueError):  # a power failure may cut it off
        terminal.complain(f"there is no complete list of rejected requests in {s.home}: is bin/up running there?")
        return 1
    found = [entry for entry in entries if (arguments.sender or "") in entry["sender"]]
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif found:
        names = "status", "sender", "path", "reason"
        rows = ([iso_instant(int(entry["time"] * 1e6)), *(entry[name] for name in names)] for entry in found)
        print(terminal.format_table(("time", *names), list(rows)[: arguments.limit], left=5))
    else:
        print("No request was rejected" + (" from there." if arguments.sender else "."))
    if not arguments.json and not arguments.sender:
        show_unknown_fields(s)
    return 0


def show_unknown_fields(s: Settings) -> None:
    """What the status page shows of them."""
    try:
        figures: dict[str, Any] = json.loads((s.home / "run" / FIGURES).read_text())
    except (OSError, ValueError):
        return
    names = "stream", "field", "bodies", "examined"
    if found := figures.get("unknown_fields"):
        print()
        print(terminal.format_table(names, ([row[name] for name in names] for row in found), left=2))
