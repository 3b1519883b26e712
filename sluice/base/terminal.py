"""Output for a terminal: tables, error lines, questions, and bodies with control characters escaped."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Sequence

from sluice import places

# as the operator calls it: the installed command, or the one of a checkout
PROGRAM = "bin/sluice" if places.CHECKOUT else "sluice"


def whole_number(text: str) -> int:
    """The type of an option that is a number of things. Raises: ArgumentTypeError."""
    if not re.fullmatch(r"[0-9]{1,18}", text):  # fits into 64 bits, as in SQL
        raise argparse.ArgumentTypeError(f"expected a number of at least 0 with at most 18 digits, not {text!r}")
    return int(text)


def system_reason(error: OSError) -> str:
    """The reason of an error of the system, after the file that has it, and without its number."""
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Rows under a head; the first `left` columns are left-aligned, the others right-aligned."""
    lines = [[printable(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def complain(problem: object) -> None:
    """Print one line on standard error."""
    print(f"sluice: {printable(' '.join(str(problem).split()))}", file=sys.stderr)


def printable(text: str | bytes, lines: bool = False) -> str:
    """Text on one line; what could control the terminal is written as \\x1b. lines: keep newlines."""
    text = text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")
    return "".join(x if x.isprintable() or (lines and x == "\n") else x.encode("unicode_escape").decode() for x in text)


def progress(share: float) -> None:
    """Show on a terminal how much of a long task is done."""
    if sys.stderr.isatty():
        print(f"sluice: {share:.0%}", end="\r" if share < 1 else "\n", file=sys.stderr, flush=True)


def confirmed_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of a verb that changes a stream and asks first."""
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.epilog = (
        "exit status: 0; 1 if the answer is no or Redis is unavailable; 2 if a setting is invalid or there is no such "
        "stream"
    )


def confirmed(arguments: argparse.Namespace, question: str) -> bool:
    """Whether --yes was given or the answer is yes. No answer means no."""
    if arguments.yes:
        return True
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def cut_text(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def body_line(seq: object, state: str, body: bytes, full: bool) -> str:
    """A body with its sequence number and state, cut to the terminal's width unless `full`."""
    about = f"{seq}  {state:<7}  "
    if full:
        return f"{about}({len(body)} bytes)\n{printable(body, lines=True)}"
    width = shutil.get_terminal_size().columns
    return cut_text(about + printable(body[: width * 4]), width)
