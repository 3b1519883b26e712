"""List the dead letters: how many for which reason, then the newest few.

CONDITION is SQL on id, received_at, stream, body, reason, whole, batch, seq; for instance: reason LIKE 'missing%'
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
from typing import Any

from sluice import screen, sinks
from sluice.ledger import condition, moment, newest
from sluice.screen import shown
from sluice.settings import Settings
from sluice.sinks import DeadLetter
from sluice.sinks.schema import load_streams


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("--where", metavar="CONDITION", help="only those for which this holds")
    parser.add_argument("--stream", metavar="NAME", help="only those of this stream")
    parser.add_argument("--limit", metavar="N", type=int, default=10, help="how many of the newest (10)")
    parser.add_argument("--full", action="store_true", help="with the whole body")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.epilog = "exit status: 0; 1 if the database is away; 2 for a wrong setting or condition"


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Print the counts and the newest letters; the exit status."""
    where = condition(arguments.where, arguments.stream)
    try:
        sink = sinks.connect(s.sink, load_streams(s), make=False)
        counts = sink.reasons(where)
        letters = newest(sink, where, arguments.limit)
        sink.close()
    except (sinks.Unavailable, ImportError) as error:
        screen.complain(f"the database is away: {error}")
        return 1
    except ValueError as error:
        screen.complain(f"--where: {error}")
        return 2
    if arguments.json:
        table = [{"stream": stream, "reason": reason, "letters": count} for stream, reason, count in counts]
        print(json.dumps({"counts": table, "letters": [plain(letter) for letter in letters]}, indent=2))
    elif counts:
        rows = ((count, shown(stream), shown(reason)) for stream, reason, count in counts)
        print(screen.table(("letters", "stream", "reason"), rows, left=3))
        for letter in letters:
            print("\n" + describe(letter, arguments.full))
    else:
        print("There are no dead letters" + (" for which this holds." if where != "true" else "."))
    return 0


def plain(letter: DeadLetter) -> dict[str, Any]:
    """A letter for programs; its body as text if it is UTF-8, else as base64."""
    about = letter._asdict() | {"received_at": moment(letter)}
    del about["received"], about["body"]
    try:
        return about | {"body": letter.body.decode()}
    except UnicodeDecodeError:
        return about | {"body_base64": base64.b64encode(letter.body).decode()}


def describe(letter: DeadLetter, full: bool) -> str:
    """A letter for a person: a line about it, its reason, and its body, cut to the terminal's width."""
    part = "" if letter.whole else ", part of a body"
    about = f"{moment(letter)}  {shown(letter.stream)} {letter.seq}  ({len(letter.body)} bytes{part})"
    if full:
        return f"{about}\n  {shown(letter.reason)}\n{screen.printable(letter.body, lines=True)}"
    width = shutil.get_terminal_size().columns - 2
    # a byte is shown with up to four characters, and not all of a large body needs to be made printable
    return "\n  ".join(screen.cut(x, width) for x in (about, shown(letter.reason), shown(letter.body[: width * 4])))
