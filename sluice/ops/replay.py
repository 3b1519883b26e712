"""Decode dead letters again, and store those that are valid now.

Today's decoders decode them; the others stay with the new reason.

It may be interrupted at any moment, and two may run at once: nothing is lost or stored twice. A letter whose decoder
ends its process, or uses 30 seconds of CPU, stays as it was sent.
CONDITION is SQL on id, received_at, stream, body, reason, whole, batch, seq; for example: reason LIKE 'missing%'
"""

from __future__ import annotations

import argparse
import contextlib
import operator
import os
import select
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import NoReturn

from sluice import dead_letters
from sluice.base import terminal
from sluice.base.terminal import printable
from sluice.dead_letters import DeadLetters
from sluice.settings import Settings
from sluice.store.cell_store import open_cell_store
from sluice.store.decoding import failed_decoding
from sluice.store.questions import DeadLetter
from sluice.store.registry import open_destinations
from sluice.store.replay import Replayed, replay_letters
from sluice.streams import registry
from sluice.streams.built_in import load_streams
from sluice.streams.record import Decoded, Limits, Reject

CHUNK_LETTERS = 200  # per transaction: no worker can write while it runs
CPU_SECONDS = 30.0  # for one letter
WAIT_SECONDS = 90.0  # for one letter; `sluice.streams.guard` interrupts a user's decoder before
DEADLY = "the process ended while it decoded this body"
PROGRESS_SECONDS = (0.2, 10.0)  # between two lines of progress: on a terminal, and elsewhere


def arguments(parser: argparse.ArgumentParser) -> None:
    dead_letters.arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="change nothing; show what would happen")
    parser.epilog = (
        "exit status: 0 if no letter is still dead; 1 if one is, another replay has taken one, or the database is "
        "unavailable; 2 if a setting or "
        "the condition is invalid, or there is no such stream; 130 if interrupted"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    streams = load_streams(s)
    dry = arguments.dry_run
    total = Replayed(0, 0, 0, Counter(), 0)
    undecodable: Counter[str] = Counter()
    store = open_cell_store(s, streams, row_destinations=open_destinations(s, streams))
    letters = DeadLetters(store, arguments.where, arguments.stream)
    counts = letters.reasons(streams)
    for stream, _, count in counts:
        if stream not in streams:
            undecodable[stream] += count
    progress = Progress(sum(count for _, _, count in counts) - undecodable.total())
    try:
        limits = registry.body_limits(s)
        for some in letters.oldest_first(streams, CHUNK_LETTERS):
            decode = partial(decode_letter, streams, limits, deadly=deadly_letters(streams, limits, some))
            while some:
                done = replay_letters(store, some, decode, dry, limits)
                some = some[done.seen :]
                total = Replayed(*map(operator.add, total, done))
                progress.at(total.stored + total.dead)
        store.close()
    except KeyboardInterrupt:
        terminal.complain("interrupted; the remaining letters are unchanged")
        raise
    finally:
        print_report(total, undecodable, dry)
    taken = total.seen - total.stored - total.dead
    if taken > 0:
        print(f"{count_letters(taken)} gone meanwhile: another replay has taken them, for example.")
    return int(total.dead > 0 or undecodable.total() > 0 or taken > 0)


def decoder_of(stream: registry.Stream, letter: DeadLetter) -> registry.Decode:
    return stream.decode if letter.whole else stream.part or stream.decode


def decode_letter(
    streams: dict[str, registry.Stream], limits: Limits, letter: DeadLetter, deadly: Collection[int] = ()
) -> Decoded:
    """deadly: the ids of letters that are not decoded."""
    if letter.id in deadly:
        return Decoded((), (Reject(letter.body, DEADLY, True),))
    try:
        decoded = decoder_of(streams[letter.stream], letter)(letter.body, limits)
        len(decoded.records) + len(decoded.rejects)  # a user's decoder may return anything
        return decoded
    except BaseException as error:
        return failed_decoding(letter.stream, letter.body, error)


def deadly_letters(streams: dict[str, registry.Stream], limits: Limits, letters: list[DeadLetter]) -> set[int]:
    """The ids of those letters that end the process that decodes them: children do, each after the last one."""
    found, rest = set[int](), letters
    while rest:
        done = survived(streams, limits, rest)
        found |= {letter.id for letter in rest[done : done + 1]}
        rest = rest[done + 1 :]
    return found


def survived(streams: dict[str, registry.Stream], limits: Limits, letters: list[DeadLetter]) -> int:
    """How many of these letters a child decodes before it ends, or waits too long."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread only watches this one
        child = os.fork()
    if child == 0:
        try_each(streams, limits, letters, writes)
    os.close(writes)
    done = 0
    try:
        while select.select([reads], [], [], WAIT_SECONDS)[0] and (some := os.read(reads, len(letters))):
            done += len(some)
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return done


def try_each(streams: dict[str, registry.Stream], limits: Limits, letters: list[DeadLetter], done: int) -> NoReturn:
    """In a child: decode each letter, and write a byte after it. done: the pipe."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for letter in letters:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            with contextlib.suppress(BaseException):
                decoder_of(streams[letter.stream], letter)(letter.body, limits)
            os.write(done, b".")
    finally:
        os._exit(0)


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


def print_report(total: Replayed, undecodable: Counter[str], dry: bool) -> None:
    """Print the result. undecodable: stream -> letters for which there is no decoder."""
    if total.stored + total.dead:
        stored, dead = ("would be stored", "would still be dead") if dry else ("stored", "still dead")
        letters = count_letters(total.stored + total.dead)
        print(f"{letters}: {total.stored} {stored} ({total.records} records), {total.dead} {dead}")
        if total.reasons:
            rows = ((count, reason) for reason, count in total.reasons.most_common())
            print(terminal.format_table(("letters", "reason"), rows, left=2))
    elif not (undecodable or total.seen):
        print("There are no dead letters that match.")
    for stream, count in undecodable.items():
        print(f"{count_letters(count)} of the stream {printable(stream)} unchanged: it has no decoder.")


def count_letters(letters: int) -> str:
    return f"{letters} letter" if letters == 1 else f"{letters} letters"
