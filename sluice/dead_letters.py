"""Dead letters, as an operator asks for them: `dead` lists, `replay` decodes again, `discard` deletes them."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from typing import Any

from sluice.base import terminal
from sluice.settings import SettingError
from sluice.store.questions import DeadLetter, count_reasons, find_letters
from sluice.store.store import Store
from sluice.streams.message import after_head

HEAD_BYTES = 40_000  # that the kept head of a body may have: more than nginx takes (large_client_header_buffers)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of a verb for dead letters."""
    # SUPPRESS: one that is not given must not hide --stream
    parser.add_argument(
        "stream", metavar="STREAM", nargs="?", default=argparse.SUPPRESS, help="only letters of this stream"
    )
    parser.add_argument("--stream", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--where", metavar="CONDITION", help="only letters that match this condition")


class DeadLetters:
    def __init__(self, store: Store[Any], where: str | None = None, stream: str | None = None) -> None:
        """where: a condition in SQL."""
        self.store, self.stream = store, stream
        parts = [streams_condition([stream])] if stream is not None else []
        if where is not None:
            parts.append(f"({where}\n)")  # a comment at its end must not hide the parenthesis
        self.where = " AND ".join(parts) or "true"

    def reasons(self, streams: Collection[str]) -> list[tuple[str, str, int]]:
        """(stream, reason, letters), the most frequent first.

        Raises: SettingError if `where` is not valid SQL, or if none is found and the stream is none of these.
        """
        try:
            found = count_reasons(self.store, self.where)
        except ValueError as error:
            raise SettingError(f"--where: {error}") from None
        if not found and self.stream is not None:
            require_stream(self.stream, streams)
        return found

    def newest(self, limit: int) -> list[DeadLetter]:
        """The newest letters, newest first. The store returns them in parts that fit into memory."""
        letters: list[DeadLetter] = []
        below = 1 << 62  # above any id
        while missing := max(0, limit - len(letters)):
            part = find_letters(self.store, self.where, 0, below, missing, newest=True)
            if not part:
                break
            letters += part
            below = part[-1].id
        return letters

    def oldest_first(self, streams: Collection[str], number: int) -> Iterator[list[DeadLetter]]:
        """The letters of these streams that are dead now, up to `number` at once.

        A letter that is buried meanwhile gets a higher id, also one that is buried again, and is not among them.
        """
        newest = self.newest(1)
        last = newest[0].id if newest else 0
        above = 0
        while part := find_letters(
            self.store, f"{streams_condition(streams)} AND {self.where}", above, last + 1, number, newest=False
        ):
            yield part
            above = part[-1].id


def body_excerpt(body: bytes, characters: int) -> str:
    """The start of a body as text, without a stored request head: its URL may contain a password.

    body: its first HEAD_BYTES and four times as many bytes as characters are enough.
    """
    shown = after_head(body)
    if shown is body and body.startswith(b"POST /") and len(body) >= HEAD_BYTES:
        return "…"  # a head without end
    return terminal.cut_text(terminal.printable(shown[: 4 * characters]), characters)


def reasons_table(counts: list[tuple[str, str, int]]) -> str:
    rows = ((letters, stream, reason) for stream, reason, letters in counts)
    return terminal.format_table(("letters", "stream", "reason"), rows, left=3)


def require_stream(name: str, streams: Collection[str]) -> None:
    """Raises: SettingError."""
    if name not in streams:
        raise SettingError(f"there is no stream {name!r}; there are {', '.join(sorted(streams))}.")


def streams_condition(streams: Collection[str]) -> str:
    """The SQL condition that a dead letter belongs to one of these streams."""
    return "stream IN ({})".format(",".join("'{}'".format(name.replace("'", "''")) for name in streams))
