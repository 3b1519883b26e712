"""What all verbs print with: tables, lines of trouble, bodies that cannot harm a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Rows under a head, aligned; the first `left` columns to the left, the others to the right."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def complain(trouble: object) -> None:
    """A line for a person on standard error."""
    print(f"sluice: {' '.join(str(trouble).split())}", file=sys.stderr)


def printable(body: bytes, lines: bool = False) -> str:
    """A body as text in which nothing can harm a terminal: what cannot be shown is written as \\x1b.

    lines: newlines stay.
    """
    text = body.decode("utf-8", "backslashreplace")
    return "".join(x if x.isprintable() or (lines and x == "\n") else x.encode("unicode_escape").decode() for x in text)


def agreed(question: str) -> bool:
    """Ask, and whether the answer is yes. Who does not answer does not agree."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def cut(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def ago(seconds: float) -> str:
    """A span of time in its two leading digits or so."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    for size, name in (60, "min"), (3600, "h"):
        if seconds < 100 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds / 86400:.0f} d"


def shown(text: str | bytes) -> str:
    """Printable, on one line."""
    return printable(text if isinstance(text, bytes) else text.encode())


def body_line(seq: int, state: str, body: bytes, full: bool) -> str:
    """A body for a person: its sequence number and state, and as much of it as the line holds."""
    about = f"{seq}  {state:<7}  "
    if full:
        return f"{about}({len(body)} bytes)\n{printable(body, lines=True)}"
    width = shutil.get_terminal_size().columns
    return cut(about + printable(body[: width * 4]), width)
