"""Show the ledger: where the accepted bodies of each stream are.

accepted = ready + claimed + stored + dead + duplicate + missing, counted in bodies; besides those that were purged and
those whose dead letters were deleted. missing is 0, under any load. stored is the number that was ever stored.
oldest is the age of the oldest body that is not yet in the database.
With --all: the cells that store in this database, each from the figures that it published there last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from sluice.base import terminal
from sluice.base.times import format_age
from sluice.ledger import STATES, Cell, Observer, StreamRow, Sums, cell_complaints, cell_sums, discrepancies
from sluice.settings import SettingError, Settings
from sluice.store import transaction_limits
from sluice.store.cell_store import open_cell_store
from sluice.store.questions import forget_cell


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="show all cells")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--forget", metavar="CELL", help="no longer show a cell that is gone for good; its rows stay")
    parser.epilog = (
        "exit status: 0; 1 if Redis or the database is unavailable, missing is not 0, a stream cannot be stored, rows "
        "wait for their destination, a cell publishes no figures, or another one has its name; 2 if a setting is "
        "invalid or there is no such cell"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    observer = Observer(s)
    if arguments.forget is not None:
        if not forget_cell(open_cell_store(s, observer.streams), arguments.forget):
            raise SettingError(f"there is no cell {arguments.forget!r} in this database.")
        return 0
    trouble: list[str] = []
    if arguments.all:
        cells = observer.cells(trouble)
        for cell in cells or ():
            trouble += cell_complaints(cell)
            trouble += discrepancies({f"{cell['cell']}: {row['stream']}": row for row in cell["streams"]})
        show_cells(cells, trouble, arguments.json)
    else:
        ledger = observer.ledger()
        trouble = ledger["trouble"]
        show_streams(ledger["streams"], trouble, ledger["notes"], arguments.json)
    for line in trouble:
        terminal.complain(line)
    return 1 if trouble else 0


def show_streams(streams: Mapping[str, StreamRow], trouble: list[str], notes: list[str], as_json: bool) -> None:
    if as_json:
        rows = [{"stream": name} | row for name, row in streams.items()]
        print(json.dumps({"streams": rows, "trouble": trouble, "notes": notes}, indent=2))
        return
    print(
        terminal.format_table(
            ("stream", *STATES, "oldest"), ([name, *row_columns(row)] for name, row in streams.items())
        )
    )
    for name, row in streams.items():
        name = terminal.printable(name)
        if not row["decoder"]:
            print(f"{name}: no decoder, so its bodies stay on the list; INGEST_RECORDS names the module that has one.")
        if row["purged"]:
            print(f"{name}: {row['purged']} accepted bodies were discarded by `{terminal.PROGRAM} purge`.")
        if lasts := row.get("keys_seconds"):
            kept = f"{format_age(lasts)}, less than INGEST_UNIQUE"
            most = f"at most {transaction_limits.MAX_KEYS:,} of a stream are"
            print(f"{name}: at this rate keys are kept for {kept}: {most}.")
        if row["deleted"] or row["expired"]:
            gone = f"{row['deleted']} rows by age (INGEST_KEEP), and the dead letters of {row['expired']} bodies"
            print(f"{name}: deleted: {gone}.")
    for line in notes:
        print(line)


def show_cells(cells: list[Cell] | None, trouble: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"cells": cells, "trouble": trouble}, indent=2))
        return
    lines = [
        [cell["cell"], f"{format_age(cell['seconds'])} ago", *row_columns(cell_sums([cell]))] for cell in cells or ()
    ]
    print(
        terminal.format_table(
            ("cell", "seen", *STATES, "oldest"), [*lines, ["all", "", *row_columns(cell_sums(cells or ()))]]
        )
    )


def oldest_age(row: Sums) -> str:
    """The age of the oldest body; "" if there is none."""
    if row["ready"] is None:
        return "?"
    return "" if row["oldest_seconds"] is None else format_age(row["oldest_seconds"])


def row_columns(row: Sums) -> list[str]:
    """The figures of a line of the table; ? for an unknown one."""
    figures: Mapping[str, object] = row
    known = ["?" if figures[state] is None else str(figures[state]) for state in STATES]
    return [*known, oldest_age(row)]
