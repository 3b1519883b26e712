"""Put dead letters through today's decoder: what passes is stored, the rest stays dead with today's reason.

It may be interrupted at any moment, and run twice at once: nothing is lost or doubled.
CONDITION is SQL on id, received_at, stream, body, reason, whole, batch, seq; for instance: reason LIKE 'missing%'
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable

from sluice import screen, sinks
from sluice.ledger import among, condition
from sluice.screen import shown
from sluice.settings import Settings
from sluice.sinks import DeadLetter, Replayed, Sink
from sluice.sinks.schema import load_streams
from sluice.streams import registry
from sluice.streams.record import Limits, Record, Reject

MOST = 200  # letters a transaction: while it runs no worker can write
EVERY = (0.2, 10.0)  # seconds between two lines of progress: on a terminal, elsewhere


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this verb."""
    parser.add_argument("--where", metavar="CONDITION", help="only those for which this holds")
    parser.add_argument("--stream", metavar="NAME", help="only those of this stream")
    parser.add_argument("--dry-run", action="store_true", help="only say what would become of them")
    parser.epilog = (
        "exit status: 0 if no letter stays dead; 1 if some do, or the database is away; 2 for a wrong setting or "
        "condition; 130 if interrupted"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    """Replay, and say what became of the letters; the exit status."""
    streams = load_streams(s)
    where = condition(arguments.where, arguments.stream)
    dry = arguments.dry_run
    total = Replayed(0, 0, 0, Counter())
    alone: Counter[str] = Counter()
    status = 0
    try:
        sink = sinks.connect(s.sink, streams, make=False)
        counts = sink.reasons(where)
        alone.update({stream: 0 for stream, _, _ in counts if stream not in streams})
        for stream, _, count in counts:
            if stream in alone:
                alone[stream] += count
        progress = Progress(sum(count for _, _, count in counts) - alone.total())
        for done in chunks(sink, f"{among([*streams])} AND {where}", decoder(streams, registry.limits(s)), dry):
            total = Replayed(
                total.stored + done.stored,
                total.records + done.records,
                total.dead + done.dead,
                total.reasons + done.reasons,
            )
            progress.at(total.stored + total.dead)
        sink.close()
    except (sinks.Unavailable, ImportError) as error:
        screen.complain(f"the database is away: {error}")
        status = 1
    except ValueError as error:
        screen.complain(f"--where: {error}")
        return 2
    except KeyboardInterrupt:
        screen.complain("interrupted; the other letters are as they were")
        status = 130
    report(total, alone, dry)
    return status or int(total.dead > 0 or alone.total() > 0)


def chunks(
    sink: Sink, where: str, decode: Callable[[DeadLetter], Iterable[Record | Reject]], dry: bool
) -> Iterable[Replayed]:
    """Replay chunk by chunk, oldest first.

    What stays dead is buried again with a new id, and what comes meanwhile too: neither is taken in this run.
    """
    newest = sink.letters(where, 0, 1 << 62, 1, newest=True)
    last = newest[0].id if newest else 0
    above = 0
    while letters := sink.letters(where, above, last + 1, MOST, newest=False):
        above = letters[-1].id
        yield sink.replay(letters, decode, dry)


def decoder(streams: dict[str, registry.Stream], bounds: Limits) -> Callable[[DeadLetter], list[Record | Reject]]:
    """What makes records of a letter today. All of them or none: a decoder may fail halfway."""

    def decode(letter: DeadLetter) -> list[Record | Reject]:
        stream = streams[letter.stream]
        read = stream.decode if letter.whole else stream.part or stream.decode
        try:
            return list(read(letter.body, bounds))
        except Exception as error:  # a user's decoder; it stays dead
            return [Reject(letter.body, f"the decoder failed: {type(error).__name__}", True)]

    return decode


class Progress:
    """How far it has come, on standard error."""

    def __init__(self, letters: int) -> None:
        self.letters = letters
        self.terminal = sys.stderr.isatty()
        self.due = time.monotonic() + EVERY[not self.terminal]

    def at(self, done: int) -> None:
        """Say how many letters are done, if it is time to."""
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + EVERY[not self.terminal]
            end = "\r" if self.terminal else "\n"
            print(f"sluice: {done} of {self.letters} letters", end=end, file=sys.stderr, flush=True)


def report(total: Replayed, alone: Counter[str], dry: bool) -> None:
    """Say what became of the letters."""
    if total.stored + total.dead:
        passed, stay = ("would pass", "would stay dead") if dry else ("passed", "stay dead")
        print(
            f"{some(total.stored + total.dead)}: {total.stored} {passed} ({total.records} records), {total.dead} {stay}"
        )
        if total.reasons:
            rows = ((count, shown(reason)) for reason, count in total.reasons.most_common())
            print(screen.table(("letters", "reason"), rows, left=2))
    elif not alone:
        print("There are no such dead letters.")
    for stream, count in alone.items():
        print(f"{some(count)} of the stream {shown(stream)} left alone: it has no decoder.")


def some(letters: int) -> str:
    """How many letters, in words."""
    return f"{letters} letter" if letters == 1 else f"{letters} letters"
