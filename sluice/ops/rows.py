"""Show the last rows and dead letters of a stream.

It reads a few pages of the table, however large that is, and no worker waits for it.
"""

from __future__ import annotations

import argparse
import json

from sluice.base import terminal
from sluice.base.terminal import cut_text, printable
from sluice.base.times import iso_instant
from sluice.dead_letters import HEAD_BYTES, body_excerpt, require_stream
from sluice.settings import Settings
from sluice.store.cell_store import open_cell_store
from sluice.store.questions import find_last_letters, find_last_rows
from sluice.streams.built_in import load_streams

MOST_ROWS = 1000
CHARACTERS, WHOLE = 40, 1 << 16  # of a value, of the body of a letter: in a table, and with --full or --json


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument(
        "--limit", metavar="N", type=some, default=10, help=f"how many to show (10; {MOST_ROWS} at most)"
    )
    parser.add_argument("--full", action="store_true", help="show whole values, each on a line")
    parser.add_argument("--json", action="store_true", help="print only the rows, an object each, with values as texts")
    parser.epilog = (
        "exit status: 0; 1 if the database is unavailable; 2 if a setting is invalid or there is no such stream"
    )


def some(text: str) -> int:
    """The type of --limit. Raises: ArgumentTypeError."""
    if (number := terminal.whole_number(text)) > MOST_ROWS:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_ROWS}, not {text}")
    return number


def run(arguments: argparse.Namespace, s: Settings) -> int:
    stream, streams = arguments.stream, load_streams(s)
    require_stream(stream, streams)
    width = WHOLE if arguments.full or arguments.json else CHARACTERS
    store = open_cell_store(s, streams)
    columns, rows = find_last_rows(store, stream, arguments.limit, width + 1)
    letters = find_last_letters(store, stream, arguments.limit, HEAD_BYTES + 4 * width)
    store.close()
    if arguments.json:
        for row in rows:
            print(json.dumps(dict(zip(columns, row)), ensure_ascii=False))
        return 0
    texts = [[cut_text(printable(value or ""), width) for value in row] for row in rows]
    if not rows:
        print(f"The table {printable(stream)} has no rows.")
    elif arguments.full:
        print("\n\n".join("\n".join(map(": ".join, zip(columns, row))) for row in texts))
    else:
        print(terminal.format_table(columns, texts, left=len(columns)))
    if letters:
        print(f"\nThe last dead letters ({terminal.PROGRAM} dead {printable(stream)} has all of them):")
        found = (
            [iso_instant(letter.received), letter.reason, body_excerpt(letter.body, width)] for letter, _ in letters
        )
        print(terminal.format_table(("received_at", "reason", "body"), found, left=3))
    return 0
