"""The worker's side of Kafka: claim, read, settle. The workers of a stream are one consumer group.

A committed offset is only a hint where to go on. What is stored, the database decides: a worker that was frozen, or
whose partition was given to another one, may store a claim late, and the database takes what it does not have yet.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluice.base.override import override
from sluice.spool import outlet
from sluice.spool.claim import Claim
from sluice.spool.contract import LEASE_SECONDS
from sluice.spool.errors import KafkaUnavailable
from sluice.spool.kafka.admin import Admin, asking, log
from sluice.spool.outlet import MAX_BODIES, MAX_BYTES

TRIM_SECONDS = 10.0  # between two deletions of what is stored
COMMIT_SECONDS = 1.0  # until an offset is committed again whose commit failed, for example when the coordinator died
CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "partition.assignment.strategy": "cooperative-sticky",  # the other partitions go on while one is given away
    "session.timeout.ms": 6000,  # as short as brokers allow: until then, nobody gets the partitions of a dead worker
    "heartbeat.interval.ms": 1000,
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
        self.uncommitted: dict[int, int] = {}  # partition -> the offset after the last settled record
        self.commit_at = 0.0  # monotonic
        with asking():
            config = {"group.id": self.topic.name, "error_cb": self.note, "on_commit": self.committed, **CONSUMER}
            self.consumer = Consumer(admin.address.properties | config)
            self.consumer.subscribe(
                [self.topic.name], on_assign=self.assign, on_revoke=self.revoke, on_lost=self.revoke
            )

    def note(self, error: KafkaError) -> None:
        """Called for an error that belongs to no record. The client goes on by itself."""
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION) or error.fatal():
            self.error = error

    def assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = (self.assigned or set()) | {each.partition for each in partitions}

    def revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        lost = {each.partition for each in partitions}
        self.assigned = (self.assigned or set()) - lost
        self.ended -= lost
        self.unchecked = [message for message in self.unchecked if message.partition() not in lost]
        for partition in lost:
            self.fetched.pop(partition, None)
            self.uncommitted.pop(partition, None)

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            if not error and not at.error and self.uncommitted.get(at.partition) == at.offset:
                del self.uncommitted[at.partition]

    def commit(self) -> None:
        """Commit what is not committed yet. Only `committed` says whether that succeeds."""
        self.commit_at = time.monotonic() + COMMIT_SECONDS
        offsets = [TopicPartition(self.topic.name, *at) for at in self.uncommitted.items()]
        with contextlib.suppress(KafkaException):
            self.consumer.commit(offsets=offsets)

    def has_work(self) -> bool:
        """Whether there are records, or may be: a partition has not been read to its end. Raises: KafkaUnavailable."""
        if not self.fetched:
            self.fetch()
        return bool(self.fetched) or self.assigned is None or bool(self.assigned - self.ended)

    def fetch(self) -> None:
        """Take what the client has fetched. Raises: KafkaUnavailable."""
        if self.uncommitted and time.monotonic() >= self.commit_at:
            self.commit()
        with asking():
            for message in self.consumer.consume(MAX_BODIES, 0):
                error, partition = message.error(), message.partition()
                if not error:
                    self.unchecked.append(message)
                    self.ended.discard(partition)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self.ended.add(partition)  # type: ignore[arg-type]
                else:
                    self.error = error
        if self.error or self.unchecked:
            self.check()

    def check(self) -> None:
        """Make sure that the records come from the topic that this source knows. Raises: KafkaUnavailable.

        Its id did not change between before they were fetched and now, so it is theirs.
        """
        topic = self.admin.describe(self.topic.name)
        if self.error and self.error.code() == KafkaError._AUTHENTICATION:
            raise KafkaUnavailable(self.error.str())
        self.error = None
        if topic is None or topic.id != self.topic.id:
            raise Replaced
        for message in self.unchecked:
            self.fetched.setdefault(message.partition(), deque()).append(message)  # type: ignore[arg-type]
        self.unchecked = []

    def take(self, max_bodies: int, max_bytes: int) -> tuple[Claim, list[bytes]] | None:
        """The next claim and its items: consecutive records of one partition and one leader epoch."""
        if not self.fetched:
            return None
        number, messages = next(iter(self.fetched.items()))
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
        id = f"{self.topic.id}.{number}.{epoch}:{first + 1}:{time.time() * 1e6:.0f}"
        return Claim(self.stream, id, first + 1, len(items), size, marks), items

    def settle(self, claim: Claim) -> tuple[str, int] | None:
        """Commit the offset after a claim; the partition, unless another topic has its name by now."""
        topic_id, number, _ = claim.epoch.split(".")
        if topic_id != self.topic.id:
            return None
        if int(number) in (self.assigned or ()):  # else it is another worker's by now
            self.uncommitted[int(number)] = claim.end - 1
            self.commit()
        return self.topic.name, int(number)


class Replaced(Exception):
    """The topic was deleted, and perhaps another one made with its name."""


class Outlet(outlet.Outlet):
    """The worker's side. Safe with threads, except where noted."""

    name = "kafka"

    def __init__(self, url: str, figures: str) -> None:
        super().__init__(figures)
        self.url = url
        self.sources: dict[str, Source] = {}
        self.held: dict[str, list[bytes]] = {}  # claim id -> items
        self.settled: dict[tuple[str, int], int] = {}  # partition -> offset up to which records may be deleted
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
                self.sources.pop(stream).consumer.close()
                work.append(True)
        return work

    @override
    def has_more(self, stream: str) -> bool:
        return bool(self.sources[stream].fetched)

    @override
    def request_claim(
        self, stream: str, max_bodies: int = MAX_BODIES, max_bytes: int = MAX_BYTES, lease: float = LEASE_SECONDS
    ) -> Callable[[], Claim | None]:
        return partial(self.take, stream, max_bodies, max_bytes)  # nothing is sent: the records are here

    def take(self, stream: str, max_bodies: int, max_bytes: int) -> Claim | None:
        if stream not in self.sources or not (taken := self.sources[stream].take(max_bodies, max_bytes)):
            return None
        claim, self.held[claim.id] = taken
        return claim

    @override
    def items(self, claim: Claim) -> list[bytes]:
        return self.held[claim.id]

    @override
    def renew(self, claim: Claim, lease: float = LEASE_SECONDS) -> bool:
        return True  # the client's heartbeats keep the partitions

    @override
    def settle(self, claim: Claim, end: int | None = None) -> Claim | None:
        """Commit the offset after bodies that are in the store, and now and then delete such records."""
        rest, items = claim.after(end or claim.end), self.held.pop(claim.id)
        if rest:
            self.held[rest.id] = items[rest.first - claim.first :]
            claim = claim.part(claim.first, rest.first)
        source = self.sources.get(claim.stream)
        if source and (partition := source.settle(claim)):
            self.settled[partition] = claim.end - 1
        if time.monotonic() >= self.trim_at:
            self.trim_at = time.monotonic() + TRIM_SECONDS
            settled, self.settled = self.settled, {}
            try:
                self.admin.delete_before(settled)
            except KafkaUnavailable as error:
                log.info("what is stored stays in Kafka: %s", error.reason)
        return rest

    @override
    def is_empty(self) -> bool:
        # a worker knows only its own partitions, and one that has died keeps its own for seconds
        topics = [source.topic for source in self.sources.values()]
        return all(at.first == at.end for topic in topics for at in self.admin.positions(topic))

    @override
    def close(self) -> None:
        """Leave the groups, so that other workers need not wait for the partitions."""
        for source in self.sources.values():
            source.consumer.close()
