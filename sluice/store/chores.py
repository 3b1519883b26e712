"""What a worker does beside storing, in small steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice import registry
from sluice.parsers import DEAD, Keep
from sluice.store.decoding import trace_of
from sluice.store.expiry import Expiry, KeyExpiry
from sluice.store.store import RowDestinations, Store
from sluice.store.types import NewerTables, Unavailable
from sluice.streams.registry import Stream

SHARE = 10  # chores take at most 1/10 of the time
BURST_SECONDS = 1.0  # for a chore at the end of a burst
FOLD_SECONDS = 10.0  # between two looks for old batches
LEFT_SECONDS = 86400  # that keys are kept if no stream has any now


@dataclass
class Chore:
    """step: one step, a few milliseconds; whether there may be more to do. pause: seconds until the next one if not."""

    name: str
    step: Callable[[Store[Any]], bool]
    pause: float
    due: float = 0.0  # monotonic


class Chores:
    """The chores of a worker. One that fails delays only itself, and does not end the worker, which stores beside it.

    log_change: of the name of a chore, and of why it is not done or None. Every method raises NewerTables.
    """

    def __init__(self, chores: Iterable[Chore], log_change: Callable[[str, str | None], None]) -> None:
        self.chores, self.log_change = list(chores), log_change
        self.due = 0.0  # monotonic: when the next step of any of them may begin

    def do_next(self, store: Store[Any] | None) -> None:
        """Do one step of the chore that is due first, if it is time."""
        chore = min(self.chores, key=lambda chore: chore.due)
        if time.monotonic() >= max(self.due, chore.due):
            self.do_step(chore, store)

    def do_each(self, store: Store[Any] | None, stopping: Callable[[], bool]) -> None:
        """Do each chore, for BURST_SECONDS at most: no other worker may ever do it."""
        for chore in self.chores:
            end = time.monotonic() + BURST_SECONDS
            while self.do_step(chore, store) and time.monotonic() < end and not stopping():
                pass

    def do_step(self, chore: Chore, store: Store[Any] | None) -> bool:
        """Do one step of a chore, if the store was available at last; whether there may be more."""
        if store is None or store.db is None:
            return False
        began, more, why = time.monotonic(), False, None
        try:
            more = chore.step(store)
        except NewerTables:
            raise
        except Unavailable as error:
            why = f"not done: {error}"
        except Exception as error:
            why = f"an error, tried again: {trace_of(error)}"
        now = time.monotonic()
        rest = SHARE * (now - began)
        if why is None:
            chore.due, self.due = now + (0 if more else chore.pause), now + rest
        else:  # a destination that is down may take seconds to fail
            chore.due = now + max(chore.pause, rest)
        self.log_change(chore.name, why)
        return more


def worker_chores(
    streams: Mapping[str, Stream], keep: Keep, row_destinations: RowDestinations | None
) -> Iterator[Chore]:
    """Fold old batches, delete old keys, rows and dead letters, and what contributions do besides."""
    yield Chore("folding of batches", lambda store: store.fold_batches(), FOLD_SECONDS)
    for more in registry.load_hooks("chores"):
        yield from more(row_destinations)
    # without a stream that has keys, those from before INGEST_UNIQUE=off are deleted
    keys = KeyExpiry({name: each.rule.seconds for name, each in streams.items() if each.rule} or {"": LEFT_SECONDS})
    yield Chore("deleting old keys", keys.step, keys.pause_seconds())
    for name in (*streams, DEAD):
        age = keep.for_stream(name)
        if age is not None:
            expiry = Expiry(name, age)
            yield Chore(f"deleting old rows of {name}", expiry.step, expiry.pause_seconds())
