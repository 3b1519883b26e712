"""The program `forward`: it posts the rows that wait in the outbox, and deletes each when its receiver has taken it.

    one thread                    reads names and rows from the database, and writes what has ended, many at a time
    some threads of each receiver post one row at a time

A receiver that hangs holds up its own threads alone, for `timeout` seconds; the worker does not know of it. A row that
is posted, and not yet deleted when this program is killed, is posted again under the same key.

With several cells on one database, one program at a time posts the rows of a receiver: it holds the database's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sluice import settings
from sluice.base import daemon
from sluice.contrib.destinations.far_rows import bury_rows
from sluice.contrib.destinations.outbox import Outbox
from sluice.contrib.forward.client import Answer, Client
from sluice.contrib.forward.destination import ENDED, ORDERED, Entry, Forward, Place, place_of, unpack
from sluice.contrib.forward.order import Order
from sluice.contrib.forward.request import Requests
from sluice.contrib.forward.schedule import Row, Schedule
from sluice.store.decoding import trace_of
from sluice.store.registry import check_store, open_destinations, open_store
from sluice.store.store import Store
from sluice.store.types import Unavailable
from sluice.streams.built_in import load_streams

log = logging.getLogger("sluice.forward")

LOOK_SECONDS = 0.1  # between two looks for new rows
AGAIN_SECONDS = 5.0  # between two looks at all that waits: a row of an earlier batch may come late
LOCK_SECONDS = 1.0  # between two attempts to get the lock of a receiver
PAGE_ROWS = 1_000  # of a look
WINDOW_ROWS = 20_000  # of a receiver, whose names are in memory
WRITE_SECONDS, WRITE_ROWS = 0.1, 256  # what has ended is written after this time, or with so many rows
TELL_SECONDS = 1.0  # between two changes of what the note says, if nothing has ended
UNWRITTEN_ROWS = 1_024  # of a receiver: with more of them nothing is posted until they are written
BACKOFF_SECONDS = 1.0  # while the database is away
WORDS = 70  # characters of an answer in the reason of a dead letter, which has 200
NAMES = "SELECT name FROM batches_carried WHERE name > ? AND name < ? ORDER BY name LIMIT ?"
ROWS = "SELECT name, rows FROM batches_carried WHERE name IN ({})"
DELETE = "DELETE FROM batches_carried WHERE name = ? RETURNING rows"
TELL = "UPDATE batches_objects SET bodies = bodies - ?, reason = ?, since = ? WHERE name = ?"
Results = queue.SimpleQueue["tuple[Line, Row, Answer]"]


class Line:
    """The rows of one stream on their way to their receiver."""

    def __init__(self, destination: Forward, results: Results) -> None:
        self.destination = destination
        self.target = destination.target
        self.name = destination.stream.name
        self.requests = Requests(self.target)
        self.results = results
        self.jobs: queue.SimpleQueue[tuple[Row, Entry]] = queue.SimpleQueue()
        self.clients: list[Client] = []
        self.schedule = Schedule(self.target.parallel)
        self.order = Order(self.name)
        self.epochs: dict[str, int] = {}  # in the order in which they were seen
        self.unwritten: dict[str, str] = {}  # names of rows that have ended -> why they are dead; "": they were taken
        self.written_at = 0.0  # monotonic, as all below
        self.told = "", 0.0  # what the note says: the last answer, and since when
        self.logged = ""
        self.after = self.start = f"{destination.queue}{0:012d}"
        self.again_at = self.look_at = 0.0
        self.held = False  # the lock

    @property
    def window(self) -> int:
        return len(self.schedule.rows) + len(self.order.names)

    def start_threads(self) -> None:
        for number in range(self.target.parallel):
            client = Client(self.target.url, self.target.timeout)
            self.clients.append(client)
            threading.Thread(target=self.post, args=(client,), name=f"{self.name} {number}", daemon=True).start()

    def post(self, client: Client) -> None:
        """A thread: post one row after the other."""
        while True:
            row, entry = self.jobs.get()
            try:
                answer = client.post(*self.requests.make(entry))
            except (OSError, ValueError) as error:  # of the file with the secrets
                answer = Answer(0, f"the secret cannot be read: {getattr(error, 'strerror', '') or error}")
            except Exception as error:
                log.error("%s: unexpected error; will retry\n%s", self.name, trace_of(error))
                answer = Answer(0, f"unexpected error: {type(error).__name__}")
            self.results.put((self, row, answer))

    def due(self, now: float) -> float:
        """When there is something to do, if no answer comes."""
        return min(self.look_at, self.schedule.next_at(now)) if self.held else self.look_at

    def take(self, row: Row, answer: Answer, now: float) -> None:
        """Take the answer to a row."""
        if answer.taken or answer.gone:
            self.schedule.end(row, answer.taken)
            self.unwritten[row.name] = "" if answer.taken else answer.words
        elif time.time() - row.since >= self.target.age:
            self.schedule.end(row, False)
            self.unwritten[row.name] = self.too_old(answer.words)
        else:
            self.schedule.fail(row, now, answer.words, answer.after)

    def expire(self) -> None:
        """End rows that wait for too long, and are not being posted, while their receiver refuses rows.

        After an outage of this program each row is posted once, however old it is.
        """
        for row in self.schedule.expired(time.time() - self.target.age):
            if len(self.unwritten) >= WRITE_ROWS:
                return
            words = row.words or self.schedule.words
            if not words:
                return
            self.schedule.drop(row)
            self.unwritten[row.name] = self.too_old(words)

    def too_old(self, words: str) -> str:
        return f"not taken in {self.target.age} s: {words}"

    def must_write(self, now: float) -> bool:
        if self.unwritten:
            return len(self.unwritten) >= WRITE_ROWS or now >= self.written_at + WRITE_SECONDS
        return self.held and self.note() != self.told and now >= self.written_at + TELL_SECONDS

    def note(self) -> tuple[str, float]:
        words = self.schedule.words
        return words, self.schedule.oldest if words else 0.0

    def write(self, store: Store[Any], now: float) -> None:
        """Delete the rows that have ended, bury those that were not taken, and tell what waits. Raises: Unavailable."""
        note, buried, gone, queued = self.note(), 0, 0, self.destination.queue
        with store.transaction() as db:
            for name, why in self.unwritten.items():
                found = store.run_sql(db, DELETE, (name,))
                gone += len(found)
                for (packed,) in found if why else ():
                    entry = unpack(packed)
                    reason = f"{ENDED}{why[:WORDS]} [{entry.key}]"
                    buried += bury_rows(store, db, self.name, self.destination.rows([entry]), reason, entry.is_request)
            since = store.stored_time(int((self.schedule.oldest or time.time()) * 1e6))
            store.run_sql(db, TELL, (gone, note[0], since, queued))
            store.run_sql(db, "DELETE FROM batches_objects WHERE name = ? AND bodies <= 0", (queued,))
        self.unwritten, self.written_at, self.told = {}, now, note
        if buried:
            shown = self.target.shown
            log.warning("%s: %d buried, which %s did not take; `bin/sluice dead` lists them", self.name, buried, shown)
        self.log_change(note[0])

    def log_change(self, words: str) -> None:
        if words != self.logged:
            self.logged = words
            if words:
                log.warning("rows of %s wait for %s: %s", self.name, self.target.shown, words)
            else:
                log.info("rows of %s: %s has taken what waited", self.name, self.target.shown)

    def read(self, store: Store[Any], now: float) -> None:
        """Look for rows that wait. Raises: Unavailable."""
        with store.transaction(read=True) as db:
            if not self.held and not store.hold_lock(db, self.destination.queue):
                self.look_at = now + LOCK_SECONDS
                return
            self.held = True
            if now >= self.again_at:
                self.after, self.again_at = self.start, now + AGAIN_SECONDS
            full = True
            while full and self.window < WINDOW_ROWS:
                names = store.run_sql(db, NAMES, (self.after, f"{self.destination.queue}a", PAGE_ROWS))
                full = len(names) == PAGE_ROWS
                for (name,) in names:
                    self.after = name
                    place = place_of(name)
                    if place is None or name in self.unwritten or name in self.schedule.rows:
                        continue
                    if place.lane.startswith(ORDERED):
                        self.order.add(place)
                    else:
                        self.add(place)
            for place in self.order.release(store, db, now):
                self.add(place)
        self.look_at = now + LOOK_SECONDS

    def add(self, place: Place) -> None:
        rank = self.epochs.setdefault(place.epoch, len(self.epochs))
        self.schedule.add(Row(place.name, place.lane, (rank, place.seq, place.part), place.since / 1e6))

    def send(self, store: Store[Any], now: float) -> None:
        """Post the rows that are due, as many as may be. Raises: Unavailable."""
        taken = []
        while len(self.unwritten) < UNWRITTEN_ROWS and (row := self.schedule.take(now)):
            taken.append(row)
        if not taken:
            return
        try:
            with store.transaction(read=True) as db:
                found: dict[str, bytes] = dict(
                    store.run_sql(db, ROWS.format(", ".join("?" * len(taken))), [row.name for row in taken])
                )
        except BaseException:
            for row in taken:
                self.schedule.put_back(row)
            raise
        for row in taken:
            if row.name in found:
                self.jobs.put((row, unpack(found[row.name])))
            else:  # somebody has deleted it
                self.schedule.end(row, False)


class Forwarder:
    """The loop. connect: opens the store."""

    def __init__(self, connect: Callable[[], Store[Any]], destinations: Iterable[Forward]) -> None:
        self.connect = connect
        self.store: Store[Any] | None = None
        self.results: Results = queue.SimpleQueue()
        self.lines = [Line(destination, self.results) for destination in destinations]
        self.stopping = False
        self.trouble = ""

    def stop(self) -> None:
        self.stopping = True

    def run(self) -> None:
        """Work until `stop`."""
        watchdog = daemon.Watchdog()
        for line in self.lines:
            line.start_threads()
        while not self.stopping:
            watchdog.report_alive()
            try:
                self.turn()
                self.log_change("")
            except Exception as error:
                self.log_change(str(error) if isinstance(error, Unavailable) else f"an error: {trace_of(error)}")
                time.sleep(BACKOFF_SECONDS)
        with contextlib.suppress(Unavailable):
            self.write(force=True)

    def turn(self) -> bool:
        """Take answers, write, read and post; whether anything waits. Raises: Unavailable."""
        if self.store is None:
            self.store = self.connect()
        if self.store.db is None:  # the locks have gone with the connection
            for line in self.lines:
                line.held = False
        self.collect()
        for line in self.lines:
            if line.held:
                line.expire()
        self.write()
        now = time.monotonic()
        for line in self.lines:
            if now >= line.look_at:
                line.read(self.store, now)
            if line.held:
                line.send(self.store, now)
        return any(line.window or line.unwritten for line in self.lines)

    def collect(self) -> None:
        """Wait a moment for answers, and take all that there are."""
        now = time.monotonic()
        due = min([line.due(now) for line in self.lines], default=now + LOOK_SECONDS)
        with contextlib.suppress(queue.Empty):
            line, row, answer = self.results.get(timeout=min(max(due - now, 0.001), LOOK_SECONDS))
            while True:
                line.take(row, answer, time.monotonic())
                line, row, answer = self.results.get_nowait()
        now = time.monotonic()
        for client in (client for line in self.lines for client in line.clients):
            if client.deadline and now > client.deadline:
                client.abort()

    def write(self, force: bool = False) -> None:
        """Raises: Unavailable."""
        now = time.monotonic()
        for line in self.lines:
            if self.store is not None and (line.must_write(now) or (force and line.unwritten)):
                line.write(self.store, now)

    def log_change(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("%s", trouble)
            else:
                log.info("recovered")


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Wait until no other program of this cell posts rows."""
    with open(home / "run/forward.lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    os.umask(0o077)
    with settings.exit_if_invalid():
        s = settings.load_settings()
        daemon.start_logging(s.log)
        streams = load_streams(s)
        check_store(s.store)
        row_destinations = open_destinations(s, streams)
    found = row_destinations.destinations.values() if isinstance(row_destinations, Outbox) else ()
    destinations = [destination for destination in found if isinstance(destination, Forward)]
    forwarder = Forwarder(lambda: open_store(s.store, streams, make=False), destinations)
    daemon.notify_systemd("READY=1")
    with alone(s.home):
        daemon.stop_on_signal(forwarder)
        forwarder.run()
    logging.shutdown()
    os._exit(0)  # threads may wait for their receivers


if __name__ == "__main__":
    main()
