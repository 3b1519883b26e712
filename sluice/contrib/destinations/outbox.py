"""The outbox: rows that are committed with their claim, and wait for their destination.

Rows become visible in two steps. Before the transaction of their claim commits, an object with them is on disk, where
no reader sees it, and the transaction notes its name and the address of its destination in `batches_objects`. After the
commit the object is published, and a later transaction deletes the note. So a crash leaves an object with a note, which
any worker publishes, or one without, which any worker deletes. Each attempt to store has a name of its own, so
publishing twice changes nothing. Where nothing can be stored invisibly, the note carries the rows (`Carried`), and
publishing sends them with the name.

What waits names its destination. Only a destination with that address publishes it, and nobody else takes it away: if
INGEST_ROWS has changed, it waits until the address is back, and the worker says so.

What waits can end. An object that its destination will never take is halved until the rows that it refuses are alone;
they become dead letters, which `replay` sends again. So is one that has failed for FAILING_SECONDS in a way that no
destination is known for; if its rows cannot be read either, its note is set aside, and kept. Whatever happens to an
object holds up its stream alone.

A note ends only when its object is proved to be published. One that is missing keeps its note, which holds up nothing,
and is looked for again. A destination may go and come: the database knows which ones were used, so one that is missing
is not made again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sluice.base.override import override
from sluice.contrib.destinations.destination import (
    GROUP_RECORDS,
    Carried,
    Destination,
    InMemory,
    Object,
    Rejected,
    Rows,
    Unused,
    Unwritable,
)
from sluice.contrib.destinations.far_rows import bury_rows
from sluice.store.bisection import Bisection
from sluice.store.chores import Chore
from sluice.store.decoding import trace_of
from sluice.store.questions import bare_url
from sluice.store.store import Attempt, RowDestinations, Store
from sluice.store.types import Body, Origin, Outcome, RowsRejected, Unavailable

NOTES = "SELECT stream, name, address, reason FROM batches_objects ORDER BY name"
CARRY = "INSERT INTO batches_carried (name, rows) VALUES (?, ?)"
CARRIED = "SELECT rows FROM batches_carried WHERE name = ?"
# Objects of a stream that are refused one after another before the next ones become dead letters as a whole: enough to
# find a few rows among 65,536; if a column has another type, all rows are refused
REFUSALS = 64
FAILING_SECONDS = 600.0  # an unexpected error may be one of the network, which its client has no name for
MISSING = "an object of these rows is missing"
USED = "SELECT stream, address FROM batches_destinations"
USE = "INSERT INTO batches_destinations (stream, address) VALUES (?, ?) ON CONFLICT DO NOTHING"
DAMAGED = "#damaged"  # the end of the address in a note that is set aside

PUBLISH_SECONDS, TIDY_SECONDS = 10.0, 60.0  # between two looks for rows to publish, and for objects to merge

log = logging.getLogger("sluice.outbox")


def outbox_chores(row_destinations: RowDestinations | None) -> Iterator[Chore]:
    """Publish what waits, and merge small objects."""
    if isinstance(row_destinations, Outbox):
        yield Chore("publishing of rows", row_destinations.publish, PUBLISH_SECONDS)
        for name in row_destinations.streams:
            yield Chore(f"merging of {name}", partial(row_destinations.tidy, name), TIDY_SECONDS)


class Away(Unavailable):
    """A destination cannot be written now."""

    what = "the destination of its rows"


class Outbox(RowDestinations):
    """The destinations of the streams whose rows are in no table, and what waits for them."""

    def __init__(self, destinations: Mapping[str, Destination], copied: Collection[str] = ()) -> None:
        self.destinations = destinations
        self.copied = copied
        self.streams = [name for name in destinations if name not in copied]
        self.published: list[str] = []  # names of objects whose notes may be deleted
        self.late: dict[str, str] = {}  # streams with an object that could not be published, and why
        self.seen: dict[str, float] = {}  # name of another worker's object -> when its note was first read, monotonic
        self.used: set[tuple[str, str]] = set()  # stream and address, as the database has them
        self.refused: Counter[str] = Counter()  # objects of each stream since the last one that was published

    @override
    def addresses(self) -> Mapping[str, str]:
        found = {}
        with destination_errors():
            for stream, destination in self.destinations.items():
                with contextlib.suppress(Unused):
                    found[stream] = destination.address()
        return found

    def recognise(self, store: Store[Any], db: object) -> None:
        """Let destinations know that the database has stored rows there, also if another worker did."""
        if not all(destination.used for destination in self.destinations.values()):
            self.used = {(stream, address) for stream, address in store.run_sql(db, USED)}
            places = {(stream, bare_url(address)) for stream, address in self.used}
            for stream, destination in self.destinations.items():
                destination.used = (stream, destination.place()) in places

    @override
    @contextlib.contextmanager
    def begin_attempt(self, store: Store[Any], streams: set[str]) -> Iterator[Storing]:
        """A transaction that stores rows of these streams. What it stores elsewhere is published after its commit.

        A stream of which an object could not be published stores nothing more until it is: what waits stays in the
        spool, which is bounded, and the objects of a worker are published in their order.
        """
        if streams & self.late.keys():
            self.publish_noted(store)
            for stream in streams & self.late.keys():
                raise Away(self.late[stream])
        attempt = Storing(store, self)
        noted = False
        try:
            done = self.published
            with store.transaction() as attempt.db:
                yield attempt
                attempt.note()
                forget_notes(store, attempt.db, done)
                noted = True  # if the commit fails, it may have succeeded
            self.used |= attempt.new
            self.published = self.published[len(done) :]
            while attempt.objects:
                stream, made = attempt.objects.popitem()
                destination = self.destinations[stream]
                destination.used = True
                try:
                    if destination.publish(made.name, made.carried) and destination.lasting:
                        self.published = [*self.published, made.name]
                except Exception as error:
                    self.late[stream] = wait_reason(stream, error)
                    if isinstance(error, Rejected):
                        self.publish_noted(store)
                    elif destination.lasting:
                        with contextlib.suppress(Unavailable):  # the claim is stored
                            note_reason(store, made.name, self.late[stream])
                finally:
                    made.close(delete=False)
        finally:
            for stream, made in attempt.objects.items():
                if noted:
                    self.late[stream] = "it is not known whether the database has committed"
                made.close(delete=not noted)

    def publish(self, store: Store[Any]) -> bool:
        """Publish objects that a worker has left with a note; False. Raises: Unavailable."""
        if why := self.publish_noted(store):
            raise Away(why)
        return False

    def publish_noted(self, store: Store[Any]) -> str:
        """Publish objects with a note, those of a stream in the order of their names; why one could not be.

        Raises: Unavailable.
        """
        with store.transaction(read=True) as db:
            self.recognise(store, db)
            notes = store.run_sql(db, NOTES)
        now = time.monotonic()
        self.seen = {name: self.seen.get(name, now) for _, name, *_ in notes}
        line = ""
        late: dict[str, str] = {}
        done: list[str] = []
        theirs: set[tuple[str, str]] | None = None
        for stream, name, address, known in notes:
            destination = self.destinations.get(stream)
            why = late.get(stream, "")
            try:
                if destination is None or bare_url(address) != destination.place() or destination.address() != address:
                    if theirs is None:
                        theirs = {pair for _, rows in store.read_settings("rows") for pair in rows.items()}
                    if (stream, address) in theirs:  # the workers of that cell publish it
                        continue
                    why = known if address.endswith(DAMAGED) else "INGEST_ROWS does not name it now"
                elif name in self.published:
                    done.append(name)
                elif not why and (destination.own(name) or self.seen[name] + destination.GRACE_SECONDS <= now):
                    why = "" if self.publish_one(store, destination, stream, name) else MISSING
            except Unavailable:
                raise
            except Exception as error:  # of this stream: the others go on
                why = late[stream] = wait_reason(stream, error, known)
            if why:
                line = f"rows of {stream} wait for {bare_url(address)}: {why}"
                if why != known:
                    note_reason(store, name, why)
        self.late = late
        if done:
            with store.transaction() as db:
                forget_notes(store, db, done)
        self.published = [name for name in self.published if name not in done]
        return line

    def publish_one(self, store: Store[Any], destination: Destination, stream: str, name: str) -> bool:
        """Publish an object with a note, or what remains of it, and forget it; False if it is missing.

        Raises: Unwritable, Unavailable.
        """
        names, failing = [name], self.seen[name] + FAILING_SECONDS <= time.monotonic()
        while names:
            name = names.pop(0)
            with store.transaction(read=True) as db:
                rows = store.run_sql(db, CARRIED, (name,))
            carried = rows[0][0] if rows else None
            try:
                if not destination.publish(name, carried):
                    return False
            except (Unwritable, Unavailable):
                raise
            except Exception as error:
                rejected = isinstance(error, Rejected)
                if not isinstance(destination, Carried) or carried is None or not (rejected or failing):
                    raise
                self.refused[stream] += 1
                rest = error.rest if isinstance(error, Rejected) else None
                names = self.refuse(store, destination, [name, *names], rest or carried, wait_reason(stream, error))
                continue
            del self.refused[stream]
            with store.transaction() as db:
                forget_notes(store, db, [name])
        return True

    def refuse(
        self, store: Store[Any], destination: Carried[Any], names: list[str], carried: bytes, why: str
    ) -> list[str]:
        """Note the halves of the first of these objects in its place, or bury its rows; the objects to be published.

        All of them get new names, of a writer of their own: those of a writer are published in the order of their
        numbers, and objects of this process or of another one may still wait.
        """
        stream = destination.stream.name
        try:
            halves = destination.halves(carried) if self.refused[stream] <= REFUSALS else []
            for _ in () if halves else destination.parts(carried):
                pass
        except Exception as error:
            set_aside(store, stream, names[0], f"its note is damaged: {type(error).__name__}")
            return names[1:]
        new = destination.new_names(len(halves) + len(names) - 1)
        with store.transaction() as db:
            if not store.run_sql(db, "DELETE FROM batches_objects WHERE name = ? RETURNING 1", names[:1]):
                return []  # another worker has done it
            forget_notes(store, db, names[:1])
            for half, (bodies, rows) in zip(new, halves):
                note_object(store, db, stream, half, destination.address(), bodies, rows)
            for old, name in zip(names[1:], new[len(halves) :]):
                for table in "batches_objects", "batches_carried":
                    store.run_sql(db, f"UPDATE {table} SET name = ? WHERE name = ?", (name, old))
            if not halves:
                count = bury_rows(store, db, stream, destination.parts(carried), f"rejected by the destination: {why}")
                log.warning("%s: %d records buried, which the destination rejects", stream, count)
        return new

    def tidy(self, stream: str, store: Store[Any]) -> bool:
        """`Destination.tidy` of a stream. Raises: Unavailable."""

        def noted() -> set[str]:
            with store.transaction(read=True) as db:
                return {name for of, name, *_ in store.run_sql(db, NOTES) if of == stream}

        with store.transaction(read=True) as db:
            self.recognise(store, db)
            self.destinations[stream].database = store.read_identity(db)
        with destination_errors():
            return self.destinations[stream].tidy(noted)

    @override
    def end(self, store: Store[Any]) -> None:
        # the next worker may have another INGEST_ROWS, and would say that they wait
        if self.published:
            with store.transaction() as db:
                forget_notes(store, db, self.published)
            self.published = []

    @override
    def expire_rows(self, stream: str, before: int, dry: bool = False) -> int:
        with destination_errors():
            return self.destinations[stream].expire(before, dry)


class Storing(Attempt):
    """An attempt whose rows go elsewhere: it opens an object for the first row of each stream."""

    def __init__(self, store: Store[Any], outbox: Outbox) -> None:
        super().__init__(store)
        self.destinations = outbox.destinations
        self.outbox = outbox
        self.new: set[tuple[str, str]] = set()  # stream and address of destinations that this transaction adds
        self.objects: dict[str, Object] = {}
        self.bodies: Counter[str] = Counter()  # stream -> bodies with rows in its object

    @override
    def store_bodies(self, stream: str, origin: Origin, bodies: Sequence[Body]) -> Outcome:
        if not self.is_sent_only(stream, origin):
            return super().store_bodies(stream, origin, bodies)
        outcome = Outcome(0, 0)
        for group in split_bodies(bodies, GROUP_RECORDS):
            try:
                sent = self.send_bodies(stream, origin, group)
            except RowsRejected:
                sent = Bisection(partial(self.send_bodies, stream, origin)).store_bodies(group)
            outcome = outcome.plus(sent)
        return outcome

    def is_sent_only(self, stream: str, origin: Origin) -> bool:
        """Whether these rows go into no table: their stream has none, or what is replayed is in it."""
        if stream in self.outbox.copied:
            return self.destinations[stream].is_copy(origin)
        return stream in self.destinations

    def send_bodies(self, stream: str, origin: Origin, bodies: Sequence[Body]) -> Outcome:
        """`insert_bodies` into the object of the stream, which takes nothing back."""
        rows = Rows(bodies, origin.senders, origin)
        if rows.seqs:
            with rejected_rows(), destination_errors():
                self.object(stream, rows).add(origin.batch, rows)
            self.bodies[stream] += len({*rows.seqs})
        return Outcome(len(rows.seqs), self.store.bury_rejects(self.db, stream, origin, bodies))

    @override
    def insert_bodies(self, stream: str, origin: Origin, bodies: Sequence[Body]) -> Outcome:
        rows = Rows(bodies, origin.senders, origin) if stream in self.outbox.copied else None
        if rows is None or not rows.seqs:
            return super().insert_bodies(stream, origin, bodies)
        with rejected_rows(), destination_errors():
            made = self.object(stream, rows)
            assert isinstance(made, InMemory)
            group = made.encoded(origin.batch, rows)
        outcome = super().insert_bodies(stream, origin, bodies)
        made.put(group)
        self.bodies[stream] += len({*rows.seqs})
        return outcome

    def object(self, stream: str, rows: Rows) -> Object:
        """The object of a stream, opened for the first of its rows. Raises: Unwritable."""
        if stream not in self.objects:
            if not self.destinations[stream].used:
                self.outbox.recognise(self.store, self.db)
            self.destinations[stream].database = self.store.read_identity(self.db)
            self.objects[stream] = self.destinations[stream].open(rows.received[0])
        if self.destinations[stream].needs_epoch and rows.origin:
            asked = f"SELECT {self.store.EPOCH_OF} FROM batches WHERE id = ?"
            ((rows.epoch,),) = self.store.run_sql(self.db, asked, (rows.origin.batch,))
        return self.objects[stream]

    def note(self) -> None:
        """Note what is to be published when this transaction has committed. An object without rows never is."""
        for stream, made in [*self.objects.items()]:
            destination = self.destinations[stream]
            if not made.row_groups:
                made.close(delete=True)
                del self.objects[stream]
                continue
            with destination_errors():
                made.finish()
                address = destination.address()
            destination.keep(self.store, self.db, made, self.bodies[stream])
            if destination.lasting:
                if (stream, address) not in self.outbox.used:
                    self.new.add((stream, address))
                    self.store.run_sql(self.db, USE, (stream, address))
                note_object(self.store, self.db, stream, made.name, address, self.bodies[stream], made.carried)


@contextlib.contextmanager
def rejected_rows() -> Iterator[None]:
    try:
        yield
    except Rejected as error:
        raise RowsRejected(str(error), "the destination") from None


def split_bodies(bodies: Sequence[Body], size: int) -> Iterator[list[Body]]:
    """The bodies in lists of so many records and rejects; a body may be in several."""
    if sum([len(body.records) + len(body.rejects) for body in bodies]) <= size:
        yield [*bodies]
        return
    piece: list[Body] = []
    room = size
    for body in bodies:
        at, count = 0, len(body)
        while at < count:
            part = body if count <= room and not at else body.part(at, at + room)
            piece.append(part)
            at += len(part)
            room -= len(part)
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


@contextlib.contextmanager
def destination_errors() -> Iterator[None]:
    try:
        yield
    except Unwritable as error:
        raise Away(str(error)) from error


def wait_reason(stream: str, error: Exception, known: str = "") -> str:
    """Why an object is not published. known: the same of the last attempt."""
    if isinstance(error, (Unwritable, Rejected)):
        return str(error)
    why = f"unexpected error: {type(error).__name__}"
    if why != known:
        log.error("%s: unexpected error; will retry\n%s", stream, trace_of(error))
    return why


def note_object(
    store: Store[Any], db: object, stream: str, name: str, address: str, bodies: int, carried: bytes | None
) -> None:
    """Note an object that is to be published. bodies: that have rows in it."""
    columns = "stream, name, address, bodies, since, reason"
    put = f"INSERT INTO batches_objects ({columns}) VALUES (?, ?, ?, ?, {store.NOW}, '')"
    store.run_sql(db, put, (stream, name, address, bodies))
    if carried is not None:
        store.run_sql(db, CARRY, (name, carried))


def note_reason(store: Store[Any], name: str, why: str) -> None:
    """Write beside a note why its object waits."""
    with store.transaction() as db:
        store.run_sql(db, "UPDATE batches_objects SET reason = ? WHERE name = ?", (why, name))


def set_aside(store: Store[Any], stream: str, name: str, why: str) -> None:
    """Let a note hold up nothing any more; `unpublished` has it until somebody deletes it."""
    with store.transaction() as db:
        store.run_sql(
            db, "UPDATE batches_objects SET address = address || ?, reason = ? WHERE name = ?", (DAMAGED, why, name)
        )
    log.error("%s: the rows of %s cannot be read, and are not sent: %s", stream, name, why)


def forget_notes(store: Store[Any], db: object, names: Iterable[str]) -> None:
    for name in names:
        store.run_sql(db, "DELETE FROM batches_objects WHERE name = ?", (name,))
        store.run_sql(db, "DELETE FROM batches_carried WHERE name = ?", (name,))
