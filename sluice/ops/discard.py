"""Delete dead letters of bodies that are stored, or that match.

A body whose key, or all of whose records, another one has is dead after a `replay`, with a reason that begins with
`duplicate: `. Nothing of it is missing from the tables, and no replay stores it.
CONDITION is SQL on id, received_at, stream, body, reason, whole, batch, seq; for example: reason LIKE 'missing%'
`status` counts the bodies as those whose dead letters were deleted. This cannot be undone.
"""

from __future__ import annotations

import argparse
import time

from sluice import dead_letters
from sluice.base import terminal
from sluice.dead_letters import DeadLetters, reasons_table
from sluice.settings import Settings
from sluice.store.cell_store import open_cell_store
from sluice.store.retries import retry_conflicts
from sluice.streams.built_in import load_streams

ANSWERED = "reason LIKE 'duplicate: %'"
PART = 200  # letters in a transaction
PAUSE_SECONDS = 0.1  # while a worker deletes by age


def arguments(parser: argparse.ArgumentParser) -> None:
    dead_letters.arguments(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.epilog = (
        "exit status: 0; 1 if the answer is no or the database is unavailable; 2 if a setting or the condition is "
        "invalid, or there is no such stream"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    streams = load_streams(s)
    store = open_cell_store(s, streams)
    letters = DeadLetters(store, arguments.where or ANSWERED, arguments.stream)
    counts = letters.reasons(streams)
    if not counts:
        print("There are no dead letters that match.")
        return 0
    number = sum(count for _, _, count in counts)
    print(reasons_table(counts), flush=True)
    if not terminal.confirmed(arguments, f"delete {number} dead letters for good?"):
        return 1
    deleted = 0
    for part in letters.oldest_first([stream for stream, _, _ in counts], PART):
        ids = [letter.id for letter in part]
        while (gone := retry_conflicts(store.delete_letters)(ids)) is None:
            time.sleep(PAUSE_SECONDS)
        deleted += gone
    store.close()
    print(f"{deleted} dead letters deleted")
    return 0
