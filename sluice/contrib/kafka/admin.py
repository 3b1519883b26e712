"""Kafka's topics and groups, and how INGEST_SPOOL says where they are."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType
from confluent_kafka.cimpl import NewTopic

from sluice.contrib.kafka.errors import KafkaUnavailable
from sluice.spool.contract import TIMEOUT_SECONDS

log = logging.getLogger("sluice.spool")
PARTITIONS = 4  # of a new topic, unless the URL says otherwise: as many workers can store one stream at a time
REPLICAS = 3  # of a new topic, unless the URL says otherwise or there are fewer brokers
PREFIX = "ingest"  # of the names of topics, unless the URL says otherwise
FIRST_ASK_SECONDS = 0.05  # that the first broker gets to describe a topic; the next one gets twice as long
RESULT_SECONDS = TIMEOUT_SECONDS + 1  # to wait for the outcome of a request, which has its own timeout
MAX_RECORD_BYTES = 64 << 20  # of one body; brokers accept requests of up to 100 MiB
# log_level: librdkafka's own messages, on standard error; its errors are reported by the programs
RECONNECT = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "retry.backoff.ms": 50,
    "socket.timeout.ms": int(TIMEOUT_SECONDS * 1000),  # a broker that has vanished closes no connection
}
# Nothing that is not stored may expire: workers delete what is stored. The broker's clock dates the records.
TOPIC = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(256 << 20),
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(MAX_RECORD_BYTES),
    "unclean.leader.election.enable": "false",
}


DELETES = "the topic {} has {}={}, so Kafka may delete bodies that are not stored: {}"
MEND = "kafka-configs.sh --alter --entity-type topics --entity-name {} --add-config {}={}"


class Config(NamedTuple):
    """What others may have set for a topic. max_bytes: of a batch of records. unsafe: why it may lose bodies, or ""."""

    max_bytes: int = MAX_RECORD_BYTES
    unsafe: str = ""

    @classmethod
    def of(cls, topic: str, found: Mapping[str, str]) -> Config:
        for name in KEPT:
            if name in found and found[name] != TOPIC[name]:
                mend = MEND.format(topic, name, TOPIC[name])
                return cls(int(found["max.message.bytes"]), DELETES.format(topic, name, found[name], mend))
        return cls(int(found["max.message.bytes"]))


class Address(NamedTuple):
    """What INGEST_SPOOL says. partitions, replicas: of new topics. properties: of librdkafka."""

    prefix: str
    partitions: int
    replicas: int
    properties: dict[str, Any]

    @classmethod
    def of(cls, url: str, prefix: str = PREFIX) -> Address:
        """Parse a URL that sluice/settings.py has checked. prefix: if it names none. Raises: KafkaUnavailable."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        partitions, replicas = int(query.pop("partitions", PARTITIONS)), int(query.pop("replicas", 0))
        properties: dict[str, Any] = {**RECONNECT, "message.max.bytes": MAX_RECORD_BYTES}
        if file := query.pop("properties", ""):
            properties |= read_properties(file)
        login, _, brokers = parts.netloc.rpartition("@")
        if login:
            user, _, password = login.partition(":")
            properties |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
        properties |= query | {"bootstrap.servers": brokers}
        return cls(parts.path.strip("/") or prefix, partitions, replicas, properties)

    def topic(self, stream: str) -> str:
        """The topic of a stream, and the name of the group of its workers."""
        return f"{self.prefix}.{stream}"


def read_properties(file: str) -> dict[str, str]:
    """The lines NAME=VALUE of a file; # starts a comment. Raises: KafkaUnavailable."""
    try:
        with open(file, encoding="utf-8") as lines:
            pairs = (line.partition("=") for line in map(str.strip, lines) if line and not line.startswith("#"))
            return {name.strip(): value.strip() for name, _, value in pairs}
    except (OSError, UnicodeDecodeError) as error:
        raise KafkaUnavailable(f"its properties cannot be read: {error}") from error


@contextlib.contextmanager
def ask_errors() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise KafkaUnavailable(error.args[0].str()) from error
    except TimeoutError as error:
        raise KafkaUnavailable(f"no answer within {TIMEOUT_SECONDS:g} s") from error


def error_code(error: KafkaUnavailable) -> int | None:
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return KafkaError._TIMED_OUT
    return cause.args[0].code() if isinstance(cause, KafkaException) else None


# Of TOPIC, what keeps bodies until they are stored. (Another policy than `delete` deletes records of equal keys, too)
KEPT = "cleanup.policy", "retention.ms", "retention.bytes"


class Topic(NamedTuple):
    """A topic. id: of this one, not of one that had the same name before. replicas: the brokers that have a replica of
    each partition. leaders: the broker that each is written to; -1: none. writable: the partitions that have a leader
    and the most in-sync replicas: all of them, unless a broker is away. addresses: (host, port) of these brokers.
    """

    name: str
    id: str
    replicas: list[frozenset[int]]
    leaders: list[int]
    writable: list[int]
    addresses: dict[int, tuple[str, int]]

    def epoch(self, partition: int, leader_epoch: int | None) -> str:
        """The name of an epoch of this topic."""
        return f"{self.id}.{partition}.{leader_epoch}"


class Place(NamedTuple):
    """A record of a partition: another one with this offset has another epoch."""

    offset: int
    epoch: str


class Begun(NamedTuple):
    """Records that a worker began with when it got their partition: those up to the one before the offset `end`.

    deliveries: to workers. attempts: to store the body with the offset `first` alone, which have not returned.
    """

    deliveries: int = 0
    end: int = 0
    attempts: int = 0
    first: int = 0


NOTE = re.compile(r"(\S*) (\d+) (\d+) (\d+)")


def offset_note(epoch: str, offset: int, begun: Begun) -> str:
    """The metadata of a group's offset. epoch: of the record before it."""
    return epoch if offset >= begun.end else f"{epoch} {begun.deliveries} {begun.end} {begun.attempts}"


def read_note(metadata: str | None, offset: int) -> tuple[str, Begun]:
    """What `offset_note` was given."""
    if found := NOTE.fullmatch(metadata or ""):
        return found[1], Begun(int(found[2]), int(found[3]), int(found[4]), offset)
    return metadata or "", Begun()


class Positions(NamedTuple):
    """Offsets in one partition. first: of the first record that is not settled; end: of the next record; begun: behind
    the records that a worker began with, if some of them are not settled.
    """

    first: int
    end: int
    begun: int = 0


class Admin:
    """Questions about topics and groups, and their creation. Every method raises KafkaUnavailable."""

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        self.address = Address.of(url, prefix)
        with ask_errors():
            self.client = AdminClient(self.address.properties)
        self.groups: dict[str, Consumer] = {}  # they ask for their group's offsets, and join none

    def describe(self, name: str, timeout: float = TIMEOUT_SECONDS) -> Topic | None:
        deadline, seconds = time.monotonic() + timeout, FIRST_ASK_SECONDS
        while True:
            try:
                with ask_errors():
                    asked = self.client.describe_topics(TopicCollection([name]), request_timeout=seconds)
                    topic = asked[name].result(seconds + 1)
                    break
            except KafkaUnavailable as error:
                if error_code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                if isinstance(error.__cause__, TimeoutError):  # the client's own threads are late: no time is left
                    raise
                if (
                    error_code(error) not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
                    or time.monotonic() >= deadline
                ):
                    raise
            # It asks one broker, and while that is dead, connects to it thousands of times a second (librdkafka 2.16).
            # Any broker answers this one, and the next attempt goes to the broker that the answer names
            with contextlib.suppress(KafkaException):
                self.client.list_topics(timeout=seconds)
            seconds *= 2
        leaders = [partition.leader.id if partition.leader else -1 for partition in topic.partitions]
        in_sync = {partition.id: len(partition.isr) for partition in topic.partitions if partition.leader}
        writable = [number for number, count in in_sync.items() if count == max(in_sync.values())]
        replicas = [partition.replicas for partition in topic.partitions]
        addresses = {broker.id: (broker.host, broker.port) for brokers in replicas for broker in brokers}
        ids = [frozenset(broker.id for broker in brokers) for brokers in replicas]
        return Topic(name, str(topic.topic_id), ids, leaders, writable, addresses)

    def config(self, name: str, timeout: float = TIMEOUT_SECONDS) -> Config:
        """The present configuration of a topic; of what nobody may look at, what we would have set."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            with ask_errors():
                found = self.client.describe_configs([resource], request_timeout=timeout)[resource].result(timeout + 1)
        except KafkaUnavailable as error:
            if error_code(error) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return Config()
            raise
        return Config.of(name, {key: entry.value or "" for key, entry in found.items()})

    def topic(self, name: str, config: Mapping[str, str] = TOPIC) -> Topic:
        """The topic of this name, made with this configuration if there is none."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (topic := self.describe(name)) or not topic.writable:
            if not topic:
                self.create(name, config)
            if time.monotonic() > deadline:
                raise KafkaUnavailable(f"no partition of {name} has a leader")
            time.sleep(0.02)
        return topic

    def create(self, name: str, config: Mapping[str, str]) -> None:
        with ask_errors():
            brokers = len(self.client.describe_cluster(request_timeout=TIMEOUT_SECONDS).result(RESULT_SECONDS).nodes)
        replicas = self.address.replicas or min(REPLICAS, brokers)
        # with one broker away, others still accept writes: each partition's, or those of partitions without it
        in_sync = str(max(1, replicas - 1, min(2, replicas, brokers - 1)))
        new = NewTopic(name, self.address.partitions, replicas, config={**config, "min.insync.replicas": in_sync})
        try:
            with ask_errors():
                self.client.create_topics([new], request_timeout=TIMEOUT_SECONDS)[name].result(RESULT_SECONDS)
            log.info("made the topic %s: %d partitions, %d replicas", name, self.address.partitions, replicas)
        except KafkaUnavailable as error:
            if error_code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def positions(self, topic: Topic) -> list[Positions]:
        """What is settled and what is there, by partition. The settled offset is older than the end."""
        with ask_errors():
            if topic.name not in self.groups:  # the admin client would crash if the group's coordinator moves meanwhile
                self.groups[topic.name] = Consumer(self.address.properties | {"group.id": topic.name})
            group = self.groups[topic.name]
            try:
                partitions = [TopicPartition(topic.name, number) for number in range(len(topic.replicas))]
                settled = group.committed(partitions, TIMEOUT_SECONDS)
                ends = [group.get_watermark_offsets(partition, TIMEOUT_SECONDS) for partition in settled]
            except KafkaException as error:
                if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:  # it never asks again (librdkafka 2.16)
                    self.groups.pop(topic.name).close()
                raise
        # without a settled offset of this topic, or after the loss of records, a worker starts at the first record
        ours = [(at.metadata or "").startswith(topic.id) for at in settled]
        return [
            Positions(
                at.offset if known and first <= at.offset <= end else first, end, read_note(at.metadata, 0)[1].end
            )
            for at, known, (first, end) in zip(settled, ours, ends)
        ]

    def answers(self, topic: Topic) -> bool:
        """Whether each partition has a leader that knows it: of a new one, it learns so a little later."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = {TopicPartition(topic.name, number): latest for number in range(len(topic.replicas))}
        with ask_errors():
            asked = self.client.list_offsets(ends, request_timeout=TIMEOUT_SECONDS)
            return not any(found.exception(RESULT_SECONDS) for found in asked.values())

    def delete_settled(self, settled: dict[tuple[str, int], Place]) -> None:
        """Delete records: (topic, partition) -> the last one to go. Records of a partition whose leader or topic is
        another one by now stay: they may not be those that were settled.
        """
        if not settled:
            return
        latest = {TopicPartition(*partition): OffsetSpec.latest() for partition in settled}  # type: ignore[no-untyped-call]
        with ask_errors():
            asked = self.client.list_offsets(latest, request_timeout=TIMEOUT_SECONDS)
            known = {at: found.result() for at, found in asked.items() if not found.exception(RESULT_SECONDS)}
        topics = {name: self.describe(name) for name in {name for name, _ in settled}}
        same = []
        for at, found in known.items():
            last, topic = settled[at.topic, at.partition], topics[at.topic]
            if topic and topic.epoch(at.partition, found.leader_epoch) == last.epoch:
                same.append(TopicPartition(at.topic, at.partition, last.offset + 1))
        with ask_errors():
            for future in self.client.delete_records(same, request_timeout=TIMEOUT_SECONDS).values() if same else ():
                future.result(RESULT_SECONDS)

    def streams(self, timeout: float = TIMEOUT_SECONDS) -> set[str]:
        with ask_errors():
            names = self.client.list_topics(timeout=timeout).topics
        prefix = self.address.topic("")
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
