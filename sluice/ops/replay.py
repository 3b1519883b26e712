"""Decode dead letters again with today's decoders: valid ones are stored, the others stay, with the new reason.

It may be interrupted at any moment, and two may run at once: nothing is lost or stored twice.
CONDITION is SQL on id, received_at, stream, body, reason, whole, batch, seq; for example: reason LIKE 'missing%'
"""

from __future__ import annotations

import argparse
import operator
import sys
import time
from collections import Counter
from functools import partial

from sluice.base import screen
from sluice.base.screen import shown
from sluice.contrib.destinations.registry import open_elsewhere
from sluice.dead_letters import Letters, require_stream
from sluice.settings import Settings
from sluice.store.decoding import failed
from sluice.store.registry import open_store
from sluice.store.types import DeadLetter, Replayed
from sluice.streams import registry
from sluice.streams.built_in import load_streams
from sluice.streams.record import Decoded, Limits

CHUNK_LETTERS = 200  # per transaction: no worker can write while it runs
PROGRESS_SECONDS = (0.2, 10.0)  # between two lines of progress: on a terminal, and elsewhere


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--where", metavar="CONDITION", help="only letters that match this condition")
    parser.add_argument("--stream", metavar="NAME", help="only letters of this stream")
    parser.add_argument("--dry-run", action="store_true", help="change nothing; show what would happen")
    parser.epilog = (
        "exit status: 0 if no letter is still dead; 1 if one is, or the database is unavailable; 2 if a setting or "
        "the condition is invalid, or there is no such stream; 130 if interrupted"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    streams = load_streams(s)
    dry = arguments.dry_run
    total = Replayed(0, 0, 0, Counter(), 0)
    undecodable: Counter[str] = Counter()
    store = open_store(s.store, streams, make=False, elsewhere=open_elsewhere(s.rows, streams))
    letters = Letters(store, arguments.where, arguments.stream)
    counts = letters.reasons()
    if not counts:
        require_stream(arguments.stream, streams)
    for stream, _, count in counts:
        if stream not in streams:
            undecodable[stream] += count
    progress = Progress(sum(count for _, _, count in counts) - undecodable.total())
    try:
        limits = registry.limits(s)
        decode = partial(decode_letter, streams, limits)
        for some in letters.oldest_first(streams, CHUNK_LETTERS):
            while some:
                done = store.replay(some, decode, dry, limits)
                some = some[done.seen :]
                total = Replayed(*map(operator.add, total, done))
                progress.at(total.stored + total.dead)
        store.close()
    except KeyboardInterrupt:
        screen.complain("interrupted; the remaining letters are unchanged")
        raise
    finally:
        report(total, undecodable, dry)
    return int(total.dead > 0 or undecodable.total() > 0)


def decode_letter(streams: dict[str, registry.Stream], limits: Limits, letter: DeadLetter) -> Decoded:
    stream = streams[letter.stream]
    decode = stream.decode if letter.whole else stream.part or stream.decode
    try:
        return decode(letter.body, limits)
    except Exception as error:
        return failed(letter.stream, letter.body, error)


class Progress:
    def __init__(self, letters: int) -> None:
        self.letters = letters
        self.terminal = sys.stderr.isatty()
        self.due = time.monotonic() + PROGRESS_SECONDS[not self.terminal]

    def at(self, done: int) -> None:
        """Print how many letters are done, if a line is due."""
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + PROGRESS_SECONDS[not self.terminal]
            end = "\r" if self.terminal else "\n"
            print(f"sluice: {done} of {self.letters} letters", end=end, file=sys.stderr, flush=True)


def report(total: Replayed, undecodable: Counter[str], dry: bool) -> None:
    """Print the result. undecodable: stream -> letters for which there is no decoder."""
    if total.stored + total.dead:
        stored, dead = ("would be stored", "would still be dead") if dry else ("stored", "still dead")
        letters = counted(total.stored + total.dead)
        print(f"{letters}: {total.stored} {stored} ({total.records} records), {total.dead} {dead}")
        if total.reasons:
            rows = ((count, shown(reason)) for reason, count in total.reasons.most_common())
            print(screen.table(("letters", "reason"), rows, left=2))
    elif not undecodable:
        print("There are no dead letters that match.")
    for stream, count in undecodable.items():
        print(f"{counted(count)} of the stream {shown(stream)} unchanged: it has no decoder.")


def counted(letters: int) -> str:
    return f"{letters} letter" if letters == 1 else f"{letters} letters"
