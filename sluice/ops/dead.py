"""List the dead letters: how many by reason, then the newest ones.

CONDITION is SQL on id, received_at, stream, body, reason, whole, batch, seq; for example: reason LIKE 'missing%'
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
from typing import Any

from sluice import dead_letters
from sluice.base import terminal
from sluice.base.terminal import printable
from sluice.base.times import iso_instant
from sluice.dead_letters import DeadLetters, reasons_table
from sluice.settings import Settings
from sluice.store.cell_store import open_cell_store
from sluice.store.questions import DeadLetter
from sluice.streams.built_in import load_streams
from sluice.streams.message import after_head


def arguments(parser: argparse.ArgumentParser) -> None:
    dead_letters.arguments(parser)
    parser.add_argument("--limit", metavar="N", type=terminal.whole_number, default=10, help="how many to show (10)")
    parser.add_argument("--full", action="store_true", help="show whole bodies")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = (
        "exit status: 0; 1 if the database is unavailable; 2 if a setting or the condition is invalid, or there is no "
        "such stream"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    streams = load_streams(s)
    store = open_cell_store(s, streams)
    matching = DeadLetters(store, arguments.where, arguments.stream)
    counts = matching.reasons(streams)
    letters = matching.newest(arguments.limit)
    store.close()
    if arguments.json:
        table = [{"stream": stream, "reason": reason, "letters": count} for stream, reason, count in counts]
        print(json.dumps({"counts": table, "letters": [letter_json(letter) for letter in letters]}, indent=2))
    elif counts:
        print(reasons_table(counts))
        for letter in letters:
            print("\n" + describe(letter, arguments.full))
    else:
        print("There are no dead letters" + (" that match." if matching.where != "true" else "."))
    return 0


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """A letter for JSON: its body as text if it is UTF-8, else as base64."""
    about = letter._asdict() | {"received_at": iso_instant(letter.received)}
    del about["received"], about["body"]
    try:
        return about | {"body": letter.body.decode()}
    except UnicodeDecodeError:
        return about | {"body_base64": base64.b64encode(letter.body).decode()}


def describe(letter: DeadLetter, full: bool) -> str:
    """A letter for the terminal: its origin, its reason, and its body, cut to the width unless `full`."""
    part = "" if letter.whole else ", part of a body"
    about = f"{iso_instant(letter.received)}  {printable(letter.stream)} {letter.seq}  ({len(letter.body)} bytes{part})"
    if full:
        return f"{about}\n  {printable(letter.reason)}\n{printable(letter.body, lines=True)}"
    body = after_head(letter.body)
    width = shutil.get_terminal_size().columns - 2
    # a byte takes at most four columns (\x1b), so the rest of a large body need not be made printable
    return "\n  ".join(
        terminal.cut_text(x, width) for x in (about, printable(letter.reason), printable(body[: width * 4]))
    )
