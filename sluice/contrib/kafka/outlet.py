"""The worker's side of Kafka: claim, read, settle. The workers of a stream are one consumer group.

A committed offset is only a hint where to go on. What is stored, the database decides: a worker that was frozen, or
whose partition was given to another one, may store a claim late, and the database takes what it does not have yet.

The rule: an offset says nothing without its epoch. A leader that lost the end of its log, or a topic that was made
again, gives the same offsets to other bodies. So nothing is skipped before the record in front of it was read and has
the epoch that it had when it was settled, and nothing is deleted from a log that has another epoch by now. Whoever
cannot tell reads from the first record: the database refuses what it has.

Deliveries are counted beside the offset, in its metadata (`Begun`). There the count goes wherever the partition goes,
and needs no other server: the Redis of the figures is that of one machine. It costs one commit when a worker begins
with a partition. While a worker lives, its claims are its first delivery, and nothing is counted; so a body ends the
worker that comes to it, two that begin with it, and two that store it alone.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluice.base.override import override
from sluice.contrib.background import background
from sluice.contrib.kafka.admin import Admin, Begun, Place, ask_errors, log, offset_note, read_note
from sluice.contrib.kafka.errors import KafkaUnavailable
from sluice.spool import outlet
from sluice.spool.claim import Claim
from sluice.spool.contract import LEASE_SECONDS, TIMEOUT_SECONDS
from sluice.spool.errors import Lost
from sluice.spool.outlet import MAX_BODIES, MAX_BYTES, Request

TRIM_SECONDS = 10.0  # between two deletions of what is stored
# Between two looks while nothing comes: the client fetches nothing from a topic that was made again, and tells nobody,
# if the leader epoch there is lower than that of the former one (librdkafka 2.16)
CHECK_SECONDS = 5.0
CONFIG_SECONDS = 10.0  # between two looks at the topic's configuration
GONE_SECONDS = 2.0  # from which a topic that no broker knows was deleted: not each knows a new one at once
POLL_SECONDS = 1.0  # between two looks while records are here: when partitions change hands, each member is waited for
COMMIT_SECONDS = 1.0  # until an offset is committed again whose commit failed, for example when the coordinator died
CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "partition.assignment.strategy": "cooperative-sticky",  # the other partitions go on while one is given away
    "session.timeout.ms": 6000,  # as short as brokers allow: until then, nobody gets the partitions of a dead worker
    "heartbeat.interval.ms": 1000,
    "max.poll.interval.ms": 60_000,  # until then, one that hangs keeps the others from partitions that change hands
    "topic.metadata.refresh.interval.ms": int(CHECK_SECONDS * 1000),  # partitions may be added; unless told, 5 minutes
    "queued.max.messages.kbytes": 2 * MAX_BYTES >> 10,  # fetched ahead; one read takes no more than this
}


class Source:
    """The records of one stream, as one member of its group.

    A shared consumer with `pause` would throw away what it has fetched of the other streams.
    """

    def __init__(self, stream: str, admin: Admin) -> None:
        self.stream = stream
        self.admin = admin
        self.topic = admin.topic(admin.address.topic(stream))
        self.assigned: set[int] | None = None  # partitions; None: the group has not assigned any yet
        self.ended: set[int] = set()  # those that have been read to their end
        self.unchecked: list[Message] = []
        self.fetched: dict[int, deque[Message]] = {}
        self.error: KafkaError | None = None
        self.room = 0  # bytes that may be taken while others are here
        self.before: dict[int, Place] = {}  # partition -> the last record that was taken, or settled by another worker
        self.doubted: set[int] = set()  # partitions that are read from that record on, to see whether it is still there
        self.uncommitted: dict[int, Place] = {}  # partition -> the last settled record
        self.epochs: dict[int, str] = {}  # partition -> epoch of the last settled record
        self.begun: dict[int, Begun] = {}  # partition -> what a worker has begun with
        self.counted: set[int] = set()  # partitions whose delivery to this worker is counted
        self.commit_at = self.check_at = self.poll_at = self.config_at = 0.0  # monotonic
        self.unsafe = ""  # what the log has said of the topic's configuration
        self.gone_since: float | None = None  # when a broker first said that there is no such topic, monotonic
        self.look_at_config()
        self.pending = Future[Any]()  # the last commit that was waited for
        self.pending.set_result(None)
        with ask_errors():
            config = {"group.id": self.topic.name, "error_cb": self.note_error, "on_commit": self.committed, **CONSUMER}
            self.consumer = Consumer(admin.address.properties | config)
            self.consumer.subscribe(
                [self.topic.name], on_assign=self.assign, on_revoke=self.revoke, on_lost=self.revoke
            )

    def note_error(self, error: KafkaError) -> None:
        """Called for an error that belongs to no record. The client goes on by itself."""
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION) or error.fatal():
            self.error = error

    def assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start at the last settled record of each partition, or at the first record if the group does not know it."""
        self.assigned = (self.assigned or set()) | {each.partition for each in partitions}
        with contextlib.suppress(KafkaException):
            for at in consumer.committed(partitions, TIMEOUT_SECONDS):
                epoch, self.begun[at.partition] = read_note(at.metadata, at.offset)
                if at.offset > 0 and epoch:
                    self.epochs[at.partition] = epoch
                    self.before[at.partition] = Place(at.offset - 1, epoch)
                    self.doubted.add(at.partition)
        for each in partitions:
            each.offset = self.before[each.partition].offset if each.partition in self.before else OFFSET_BEGINNING
        consumer.incremental_assign(partitions)

    def revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        lost = {each.partition for each in partitions}
        self.assigned = (self.assigned or set()) - lost
        for partition in lost:
            self.drop(partition)
            for known in self.before, self.uncommitted, self.epochs, self.begun:
                known.pop(partition, None)
            self.doubted.discard(partition)
            self.counted.discard(partition)

    def drop(self, partition: int) -> None:
        """Forget what was fetched of a partition."""
        self.ended.discard(partition)
        self.unchecked = [message for message in self.unchecked if message.partition() != partition]
        self.fetched.pop(partition, None)

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            last = self.uncommitted.get(at.partition)
            if (
                last
                and not error
                and not at.error
                and (at.offset, read_note(at.metadata, 0)[0]) == (last.offset + 1, last.epoch)
            ):
                del self.uncommitted[at.partition]

    def commit(self) -> None:
        """Commit what is not committed yet. Only `committed` says whether that succeeds."""
        self.commit_at = time.monotonic() + COMMIT_SECONDS
        offsets = [self.offset(number, last.offset + 1, last.epoch) for number, last in self.uncommitted.items()]
        with contextlib.suppress(KafkaException):
            self.consumer.commit(offsets=offsets)

    def offset(self, number: int, offset: int, epoch: str, begun: Begun | None = None) -> TopicPartition:
        """An offset as it is committed. epoch: of the record before it."""
        metadata = offset_note(epoch, offset, begun or self.begun.get(number, Begun()))
        return TopicPartition(self.topic.name, number, offset, metadata)

    def count(self, number: int, first: int, last: int, epoch: str) -> None:
        """Count the delivery of the first claim of a partition that this worker got: the offsets of its records."""
        self.counted.add(number)
        begun = self.begun.get(number, Begun())
        if begun.end <= first:
            end = self.consumer.get_watermark_offsets(TopicPartition(self.topic.name, number), cached=True)[1]
            begun = Begun(end=min(max(end, last + 1), first + MAX_BODIES))
        self.begun[number] = begun._replace(deliveries=begun.deliveries + 1)
        try:
            self.commit_now(self.offset(number, first, self.epochs.get(number, epoch)))
        except KafkaUnavailable as error:  # this delivery is not counted
            log.warning("%s: the group does not confirm a commit: %s", self.stream, error.reason)

    def attempt(self, claim: Claim, change: int) -> int | None:
        """See `Outlet.count_attempt`; None if the partition is another worker's by now.

        Raises: KafkaUnavailable; then nothing was tried, and nothing is counted.
        """
        topic_id, number, first = claim.epoch.split(".")[0], int(claim.epoch.split(".")[1]), claim.first - 1
        if topic_id != self.topic.id or number not in (self.assigned or ()):
            return None
        begun = self.begun.get(number, Begun())
        begun = begun._replace(attempts=begun.attempts * (begun.first == first) + change, first=first)
        at = self.offset(number, first, self.epochs.get(number, claim.epoch), begun)
        if change > 0:
            self.commit_now(at)
        self.begun[number] = begun
        if change < 0:
            with ask_errors():
                self.consumer.commit(offsets=[at])
        return begun.attempts

    def commit_now(self, at: TopicPartition) -> None:
        """Commit an offset. While its coordinator hangs, the client would wait for ever, so a thread waits for it.

        Raises: KafkaUnavailable.
        """
        if not self.pending.done():
            raise KafkaUnavailable("the commit before has no answer yet")
        self.pending = background(partial(self.consumer.commit, offsets=[at], asynchronous=False))
        with ask_errors():
            if error := self.pending.result(TIMEOUT_SECONDS)[0].error:
                raise KafkaException(error)

    def close(self) -> None:
        """Leave the group, so that others need not wait for its partitions, once no thread uses the client."""
        self.pending.add_done_callback(lambda done: self.consumer.close())

    def has_work(self) -> bool:
        """Whether there are records, or may be: a partition has not been read to its end. Raises: KafkaUnavailable."""
        if not self.fetched:
            self.room = 3 * MAX_BYTES  # one more than the client may have fetched
            self.fetch(MAX_BODIES)
        elif self.room > 0 and time.monotonic() >= self.poll_at:
            self.fetch(1)
        return bool(self.fetched) or self.assigned is None or bool(self.assigned - self.ended)

    def fetch(self, records: int) -> None:
        """Take what the client has fetched, and obey the group. Raises: KafkaUnavailable."""
        self.poll_at = time.monotonic() + POLL_SECONDS
        if self.uncommitted and time.monotonic() >= self.commit_at:
            self.commit()
        with ask_errors():
            for message in self.consumer.consume(records, 0):
                error, partition = message.error(), message.partition()
                if not error:
                    self.unchecked.append(message)
                    self.room -= len(message.value() or b"")
                    self.ended.discard(partition)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self.ended.add(partition)  # type: ignore[arg-type]
                else:
                    self.error = error
        if self.error or self.unchecked or time.monotonic() >= self.check_at:
            self.check()

    def check(self) -> None:
        """Make sure that the records come from the topic that this source knows. Raises: KafkaUnavailable.

        Its id did not change between before they were fetched and now, so it is theirs.
        """
        topic, self.check_at = self.admin.describe(self.topic.name), time.monotonic() + CHECK_SECONDS
        if self.error and self.error.code() == KafkaError._AUTHENTICATION:
            raise KafkaUnavailable(self.error.str())
        self.error = None
        if topic is None:  # or this broker does not know it yet
            self.gone_since = self.gone_since or time.monotonic()
            if time.monotonic() < self.gone_since + GONE_SECONDS:
                self.check_at = self.gone_since + GONE_SECONDS
                return
        if topic is None or topic.id != self.topic.id:
            raise Replaced
        self.gone_since = None
        self.topic = topic
        if time.monotonic() >= self.config_at:
            self.look_at_config()
        for message in self.unchecked:
            self.fetched.setdefault(message.partition(), deque()).append(message)  # type: ignore[arg-type]
        self.unchecked = []

    def look_at_config(self) -> None:
        """Say when the topic's configuration begins to let Kafka delete what is not stored."""
        self.config_at = time.monotonic() + CONFIG_SECONDS
        with contextlib.suppress(KafkaUnavailable):
            unsafe = self.admin.config(self.topic.name).unsafe
            if unsafe and unsafe != self.unsafe:
                log.warning("%s", unsafe)
            self.unsafe = unsafe

    def take(self, max_bodies: int, max_bytes: int) -> tuple[Claim, list[bytes]] | None:
        """The next claim and its items: consecutive records of one partition and one leader epoch.

        Raises: KafkaException; then this source has lost its place.
        """
        number = next((number for number in [*self.fetched] if self.continues(number)), None)
        if number is None:
            return None
        messages = self.fetched[number]
        first, epoch = messages[0].offset(), messages[0].leader_epoch()
        assert first is not None
        items: list[bytes] = []
        marks: list[tuple[int, int]] = []
        size = 0
        while messages and len(items) < max_bodies and size < max_bytes:
            message = messages[0]
            if message.offset() != first + len(items) or message.leader_epoch() != epoch:
                break
            messages.popleft()
            at = message.timestamp()[1] * 1000
            if not marks or marks[-1][1] != at:
                marks.append((first + len(items) + 1, at))
            items.append(message.value() or b"")
            size += len(items[-1])
        del self.fetched[number]
        if messages:
            self.fetched[number] = messages  # the other partitions are next
        name, last = self.topic.epoch(number, epoch), first + len(items) - 1
        self.before[number] = Place(last, name)
        if number not in self.counted:
            self.count(number, first, last, name)
        begun = self.begun[number]
        deliveries = begun.deliveries if first < begun.end else 1
        id = f"{name}:{first + 1}:{time.time() * 1e6:.0f}"
        return Claim(self.stream, id, first + 1, len(items), size, marks, deliveries), items

    def continues(self, number: int) -> bool:
        """Whether the fetched records of a partition continue what was read before, in the log as it is now. If not,
        or if another leader may have cut the log, the partition is read again: from the record before them, to see
        whether that is still there, and if not, from the first record.
        """
        messages = self.fetched[number]
        offset, epoch = messages[0].offset() or 0, self.topic.epoch(number, messages[0].leader_epoch())
        before = self.before.get(number)
        if before is None or offset < before.offset:  # the first record, or the client has gone back to it
            self.doubted.discard(number)
            return True
        if number not in self.doubted:
            if epoch == before.epoch:
                return True
            self.doubted.add(number)
            self.seek(number, before.offset)
            return False
        self.doubted.discard(number)
        del self.before[number]
        if offset > before.offset:  # that record was deleted, so this one is the first
            return True
        if epoch != before.epoch:
            log.warning(
                "%s: partition %d has other records than those that are stored: read from the first one",
                self.stream, number,
            )  # fmt: skip
            self.seek(number, OFFSET_BEGINNING)
            return False
        messages.popleft()
        if not messages:
            del self.fetched[number]
        return bool(messages)

    def seek(self, number: int, offset: int) -> None:
        self.drop(number)
        self.consumer.seek(TopicPartition(self.topic.name, number, offset))

    def settle(self, claim: Claim) -> int | None:
        """Commit the offset after a claim; its partition, unless another topic has its name by now."""
        topic_id, partition, _ = claim.epoch.split(".")
        if topic_id != self.topic.id:
            return None
        number = int(partition)
        if number in (self.assigned or ()):  # else it is another worker's by now
            self.uncommitted[number] = Place(claim.end - 2, claim.epoch)
            self.epochs[number] = claim.epoch
            self.begun[number] = self.begun.get(number, Begun())._replace(attempts=0)
            self.commit()
        return number


class Replaced(Exception):
    """The topic was deleted, and perhaps another one made with its name."""


class Outlet(outlet.Outlet):
    """The worker's side. Safe with threads, except where noted."""

    name = "kafka"

    def __init__(self, url: str, figures: str, replicas: int = 0) -> None:
        super().__init__(figures, replicas)
        self.url = url
        self.sources: dict[str, Source] = {}
        self.held: dict[str, list[bytes]] = {}  # claim id -> items
        self.settled: dict[tuple[str, int], Place] = {}  # topic and partition -> the last record that may be deleted
        self.trim_at = time.monotonic() + TRIM_SECONDS

    @cached_property
    def admin(self) -> Admin:
        """Connected at the first question, so that a worker starts while Kafka is away."""
        return Admin(self.url)

    @override
    def has_work(self, streams: list[str]) -> list[bool]:
        work = []
        for stream in streams:
            if stream not in self.sources:
                self.sources[stream] = Source(stream, self.admin)
            try:
                work.append(self.sources[stream].has_work())
            except Replaced:
                log.warning("%s: its topic was deleted; what was in it is lost", stream)
                self.sources.pop(stream).close()
                work.append(True)
        return work

    @override
    def has_more(self, stream: str) -> bool:
        return stream in self.sources and bool(self.sources[stream].fetched)

    @override
    def request_claim(
        self, stream: str, max_bodies: int = MAX_BODIES, max_bytes: int = MAX_BYTES, lease: float = LEASE_SECONDS
    ) -> Request:
        return Request(partial(self.take, stream, max_bodies, max_bytes))  # nothing is sent: the records are here

    def take(self, stream: str, max_bodies: int, max_bytes: int) -> Claim | None:
        try:
            taken = self.sources[stream].take(max_bodies, max_bytes) if stream in self.sources else None
        except KafkaException:
            self.sources.pop(stream).close()  # a new one begins where the group is
            taken = None
        if taken is None:
            return None
        claim, self.held[claim.id] = taken
        return claim

    @override
    def read_items(self, claim: Claim) -> list[bytes]:
        return self.held[claim.id]

    @override
    def count_attempt(self, claim: Claim, change: int = 1) -> int:
        source = self.sources.get(claim.stream)
        attempts = source.attempt(claim, change) if source else None
        if attempts is None and change > 0:
            del self.held[claim.id]
            raise Lost(f"{claim.stream}: claim {claim.id} is another worker's by now")
        return attempts or 0

    @override
    def renew(self, claim: Claim, lease: float = LEASE_SECONDS) -> bool:
        return True  # the client's heartbeats keep the partitions

    @override
    def settle(self, claim: Claim, end: int | None = None) -> Claim | None:
        """Commit the offset after bodies that are in the store, and now and then delete such records."""
        rest, items = claim.rest_from(end or claim.end), self.held.pop(claim.id)
        if rest:
            self.held[rest.id] = items[rest.first - claim.first :]
            claim = claim.part(claim.first, rest.first)
        source = self.sources.get(claim.stream)
        if source and (partition := source.settle(claim)) is not None:
            self.settled[source.topic.name, partition] = Place(claim.end - 2, claim.epoch)
        if time.monotonic() >= self.trim_at:
            self.trim()
        return rest

    def trim(self) -> None:
        """Delete what is settled, but not from a log that another leader may have cut."""
        self.trim_at = time.monotonic() + TRIM_SECONDS
        settled, self.settled = self.settled, {}
        try:
            self.admin.delete_settled(settled)
        except KafkaUnavailable as error:
            log.info("what is stored stays in Kafka: %s", error.reason)

    @override
    def is_empty(self) -> bool:
        # a worker knows only its own partitions, and one that has died keeps its own for seconds
        topics = [source.topic for source in self.sources.values()]
        return all(at.first == at.end for topic in topics for at in self.admin.positions(topic))

    @override
    def close(self) -> None:
        """Leave the groups, so that other workers need not wait for the partitions."""
        for source in self.sources.values():
            source.close()
