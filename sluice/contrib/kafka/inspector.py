"""The operator's side of Kafka: snapshot, and what the processes of this machine report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from sluice.base.override import override
from sluice.contrib.kafka.admin import Admin, Positions, Topic, ask_errors
from sluice.spool import inspector
from sluice.spool.claim import Claim
from sluice.spool.contract import TIMEOUT_SECONDS, UNHURRIED_SECONDS
from sluice.spool.inspector import NoSuchVerb, Seen
from sluice.spool.outlet import MAX_BODIES
from sluice.spool.snapshot import Snapshot
from sluice.store.store import Store

REFUSED = {
    "purge": "Kafka has the bodies: kafka-delete-records.sh discards them, and `status` then calls them missing.",
    "release": "Kafka gives the partitions of a worker that has died to others after 6 s, of one that hangs after 60.",
}
READER = {"group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10}


def seen_record(message: Message) -> Seen:
    """A record whose number is PARTITION:NUMBER."""
    return f"{message.partition()}:{(message.offset() or 0) + 1}", "ready", message.value() or b""


class TopicPartitions:
    """Counts the bodies of a topic. positions: epoch without its leader epoch -> the last number that is settled, and
    the last one to count.
    """

    def __init__(self, positions: Mapping[str, tuple[int, int]]) -> None:
        self.positions, self.epochs = positions, positions.keys()

    def count_bodies(self, store: Store[Any], stream: str) -> tuple[int, int, int]:
        bodies = ahead = lost = 0
        reached: Counter[str] = Counter()
        with store.transaction(read=True) as db:
            asked = "SELECT epoch, first, last FROM batches_ranges WHERE stream = ? ORDER BY first"
            ranges = store.run_sql(db, asked, (stream,))
        for epoch, first, last in ranges:
            partition = epoch.rpartition(".")[0]
            settled, end = self.positions.get(partition, (0, 0))
            last, before = min(last, end), reached[partition]
            bodies += max(0, last - first + 1)
            ahead += max(0, last - max(first - 1, settled, before))
            lost += max(0, min(last, before) - first + 1)
            reached[partition] = max(last, before)
        return bodies, ahead, lost


class Inspector(inspector.Inspector):
    """Reads the state of topics and groups. Every method raises KafkaUnavailable, or RedisError."""

    def __init__(self, url: str, figures: str, timeout: float = UNHURRIED_SECONDS) -> None:
        super().__init__(figures, timeout)
        self.url = url
        self.reader: Consumer | None = None

    @cached_property
    def admin(self) -> Admin:
        """Connected at the first question, so that an Inspector can be made while Kafka is away."""
        return Admin(self.url)

    @override
    def require(self, verb: str) -> None:
        if verb in REFUSED:
            raise NoSuchVerb(REFUSED[verb])

    @override
    def list_streams(self) -> set[str]:
        return self.admin.streams()

    @override
    def read_cell(self, default: str) -> str:
        """All cells that share the topics are one here: no body waits in a cell."""
        return self.admin.address.prefix

    @override
    def name_cell(self, name: str, keep: bool) -> str:
        return self.read_cell(name)

    @override
    def memory(self) -> tuple[int, int]:
        return super().memory()[0], 0  # bodies do not fill the Redis of the counts

    @override
    def take_snapshot(self, stream: str, replicas: int = 0) -> Snapshot:
        """The state of a stream. What workers hold counts as READY, and the memory is unknown."""
        topic = self.admin.describe(self.admin.address.topic(stream))
        if topic is None:
            return Snapshot(0, 0)
        positions = self.admin.positions(topic)
        ready = sum(at.end - at.first for at in positions)
        oldest = min((message.timestamp()[1] for message in self.read(topic, positions, 1)), default=0)
        settled = sum(at.first for at in positions)
        return Snapshot(
            settled,
            ready,
            ages={"": max(0.0, time.time() - oldest / 1000)} if oldest else {},
            size=None if ready else 0,
            warning=self.admin.config(topic.name).unsafe,
            partitions=TopicPartitions(
                {f"{topic.id}.{number}": (at.first, at.end) for number, at in enumerate(positions)}
            ),
        )

    def read(self, topic: Topic, positions: list[Positions], limit: int) -> Iterator[Message]:
        """The first records of each partition that are not settled, at most `limit` of each."""
        left = {number: min(limit, at.end - at.first) for number, at in enumerate(positions) if at.end > at.first}
        if not left:
            return
        with ask_errors():
            self.reader = self.reader or Consumer(self.admin.address.properties | READER)
            self.reader.assign([TopicPartition(topic.name, number, positions[number].first) for number in left])
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while any(n > 0 for n in left.values()) and time.monotonic() < deadline:
                for message in self.reader.consume(sum(left.values()), 0.1):
                    number = message.partition()
                    assert number is not None
                    if message.error():  # the end: what was there was deleted meanwhile
                        left[number] = 0
                    elif left[number] > 0:
                        left[number] -= 1
                        yield message
            self.reader.unassign()

    @override
    def waiting(self, stream: str, first: int, limit: int) -> Iterator[Seen]:
        """Bodies that are not settled, from a number on in each partition; the oldest `limit` of them."""
        topic = self.admin.describe(self.admin.address.topic(stream))
        if topic and limit > 0:
            positions = [at._replace(first=min(max(at.first, first - 1), at.end)) for at in self.admin.positions(topic)]
            messages = sorted(self.read(topic, positions, limit), key=lambda message: message.timestamp()[1])
            yield from map(seen_record, messages[:limit])

    @override
    def claimed(self, stream: str, seq: str | None = None) -> Iterator[tuple[Claim, int, bytes]]:
        """Those that a worker began with when it got their partition, or one that is not settled: PARTITION:NUMBER."""
        topic = self.admin.describe(self.admin.address.topic(stream))
        if topic is None:
            return
        positions = self.admin.positions(topic)
        if seq is not None:
            partition, n = (int(part) for part in f"-1:{seq}".split(":")[-2:])
            at = positions[partition] if 0 <= partition < len(positions) else Positions(0, 0)
            empty = [Positions(0, 0)] * len(positions)
            if at.first < n <= at.end:
                empty[partition] = Positions(n - 1, n)
            positions = empty
        else:
            positions = [at._replace(end=min(at.end, at.begun)) for at in positions]
        for message in [*self.read(topic, positions, MAX_BODIES)]:
            first, arrived = (message.offset() or 0) + 1, message.timestamp()[1] * 1000
            id = f"{topic.epoch(message.partition() or 0, message.leader_epoch())}:{first}:{arrived}"
            yield Claim.from_id(stream, id, 1), arrived, message.value() or b""

    @override
    def follow(self, stream: str) -> tuple[str, Iterator[Seen | int]]:
        topic = self.admin.topic(self.admin.address.topic(stream))
        ends = [TopicPartition(topic.name, number, at.end) for number, at in enumerate(self.admin.positions(topic))]

        def bodies() -> Iterator[Seen | int]:
            with ask_errors():
                reader = Consumer(self.admin.address.properties | READER)
                reader.assign(ends)
                while True:
                    message = reader.poll(1.0)
                    if message and not message.error():
                        yield seen_record(message)

        return ", ".join(f"{end.partition}:{end.offset + 1}" for end in ends), bodies()
