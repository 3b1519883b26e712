"""Rows as records of Kafka: kafka://HOST:PORT/PREFIX, a topic PREFIX.STREAM, one transaction for each claim.

A transaction commits the claim's rows together with the number of its object, as the offset of a group that nobody
consumes with: PREFIX.STREAM.WRITER. So a worker that does not know whether an object was committed asks for that
offset; before it does, it takes the writer's transactional id, and Kafka refuses what the writer itself still sends
(KIP-98). Consumers that read committed see each row once, and the rows of one key in their order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import cramjam
import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sluice.sinks import second
from sluice.sinks.destination import Carried, Object, Refused, Rows, Unwritable, writer_of
from sluice.sinks.sqlite import instant
from sluice.spool.contract import TIMEOUT, KafkaUnavailable
from sluice.spool.kafka import MAX_RECORD, Admin, asking
from sluice.streams.record import Metric
from sluice.streams.registry import Stream

PREFIX = "rows"  # of the names of topics and groups, unless the URL says otherwise
KEYS = {"logs": "service"}  # the key is the first field of other streams: device, name, poll
QUEUE = 1 << 17  # records of librdkafka's queue: four groups of a claim
PRODUCER = {
    "compression.type": "snappy",
    "linger.ms": 5,  # at most; a full batch is sent at once
    "queue.buffering.max.messages": QUEUE,
    "queue.buffering.max.kbytes": 1 << 20,
    "transaction.timeout.ms": 60_000,
}
START, COMMIT = 10.0, 30.0  # seconds to take over a transactional id, and to commit the rows of a claim
Pair = tuple[bytes | None, bytes]  # key and value
encode = msgspec.json.Encoder().encode
packer = msgspec.msgpack.Encoder()
unpacker = msgspec.msgpack.Decoder(list[list[Pair]])


class Transaction(Object):
    """The records of a claim, sent as they come, in a transaction that is committed when the database has committed."""

    def __init__(self, name: str, topics: Topics, producer: Producer) -> None:
        """Raises: KafkaException."""
        self.name = name
        self.topics = topics
        self.producer: Producer | None = producer  # None: the transaction has ended
        self.groups = 0
        self.pairs: list[list[Pair]] = []
        producer.begin_transaction()

    def add(self, batch: int, rows: Rows) -> None:
        """See `Object`."""
        try:
            pairs = [*self.topics.encoded(batch, rows)]
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise Refused(str(error)) from None
        self.pairs.append(pairs)
        self.groups += 1
        with writing():
            assert self.producer
            enqueue(self.producer, self.topics.name, pairs)

    def undo(self, groups: int) -> None:
        """See `Object`. A transaction has no way to take records back, so those that stay are sent again in another."""
        del self.pairs[groups:]
        self.groups = groups
        with writing():
            assert self.producer
            self.producer.abort_transaction(COMMIT)
            self.producer.begin_transaction()
            for pairs in self.pairs:
                enqueue(self.producer, self.topics.name, pairs)

    def finish(self) -> None:
        """See `Object`."""
        self.carried = bytes(cramjam.zstd.compress(packer.encode(self.pairs), 1))

    def close(self, delete: bool) -> None:
        """See `Object`. The producer is not used again: brokers sometimes refuse what it does after an abort."""
        if self.producer is not None:
            with contextlib.suppress(KafkaException):
                self.producer.abort_transaction(COMMIT)


class Topics(Carried):
    """See `Destination`."""

    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(stream)
        self.url = url
        self.key = attrgetter(KEYS.get(stream.name, stream.record.__struct_fields__[1]))
        self.width, self.unit = (9, 1) if stream.record is Metric else (3, 1_000_000)  # digits of a time; nanoseconds
        self.admin: Admin | None = None
        self.producer: Producer | None = None  # of this writer, between two transactions; None: its state is not known
        self.opened: Transaction | None = None
        self.name = ""  # of the topic

    def open(self, received: int) -> Transaction:
        """See `Destination`."""
        with writing():
            producer, self.producer = self.producer or self.connect(self.writer)[0], None
            self.opened = Transaction(self.next_name(), self, producer)
        return self.opened

    def publish(self, name: str, carried: bytes | None) -> bool:
        """See `Destination`."""
        if carried is None:  # another worker has published it
            return True
        writer, number = writer_of(name)
        opened, self.opened = self.opened, None
        with writing():
            if opened is not None and opened.name == name and opened.producer is not None:
                producer, opened.producer = opened.producer, None
            else:
                producer, last = self.connect(writer)
                if last < number:
                    producer.begin_transaction()
                    for pairs in unpacker.decode(cramjam.zstd.decompress(carried)):
                        enqueue(producer, self.name, pairs)
                else:
                    number = 0
            if number:
                with contextlib.closing(self.group(writer)) as group:
                    mark = TopicPartition(self.name, 0, number)
                    producer.send_offsets_to_transaction([mark], group.consumer_group_metadata(), TIMEOUT)
                producer.commit_transaction(COMMIT)
            if writer == self.writer:
                self.producer = producer
        return True

    def connect(self, writer: str) -> tuple[Producer, int]:
        """A producer in the place of a writer, and the number of the writer's last object that was committed.

        Raises: KafkaException, KafkaUnavailable.
        """
        if self.admin is None:
            admin = Admin(self.url, PREFIX)
            self.name = admin.address.topic(self.stream.name)
            admin.topic(self.name, {"max.message.bytes": str(MAX_RECORD)})
            self.admin = admin
        identity = {"transactional.id": f"{self.name}.{writer}"}
        producer = Producer(self.admin.address.properties | PRODUCER | identity)
        producer.init_transactions(START)
        with contextlib.closing(self.group(writer)) as group:
            (found,) = group.committed([TopicPartition(self.name, 0)], TIMEOUT)
        return producer, found.offset

    def group(self, writer: str) -> Consumer:
        """The group whose offset is the number of the writer's last object. It consumes nothing."""
        assert self.admin
        return Consumer(self.admin.address.properties | {"group.id": f"{self.name}.{writer}"})

    def encoded(self, batch: int, rows: Rows) -> Iterator[Pair]:
        """The records of rows; those of which the key is unknown go to any partition. Raises: an error of msgspec."""
        key, unit, within, width = self.key, self.unit, 1_000_000_000 // self.unit, self.width
        last, arrived, end = -1, "", f',"batch":{batch},"seq":'
        record: Any
        for seq, received, record in zip(rows.seqs, rows.received, rows.records):
            if received != last:
                last, arrived = received, instant(received)
            when = received * 1000 if record.time is None else record.time
            own = encode(record)
            head = (
                f'{{"received_at":"{arrived}",'
                f'"time":"{second(when // 1_000_000_000)}.{when // unit % within:0{width}d}Z"'
            )
            # between them the fields without `time`, which is the first one and a number or null
            value = head.encode() + own[own.index(b",") : -1] + f"{end}{seq}}}".encode()
            owner = key(record)
            yield None if owner is None else str(owner).encode(), value

    def prune(self, before: int, dry: bool = False) -> int:
        """See `Destination`. Topics have a retention of their own."""
        return 0


def enqueue(producer: Producer, topic: str, pairs: list[Pair]) -> None:
    """Produce records, when the queue has room for all of them: one that is refused would come behind later ones."""
    deadline = time.monotonic() + COMMIT
    while len(producer) + len(pairs) > QUEUE:
        producer.poll(0.01)
        if time.monotonic() > deadline:
            raise BufferError("the brokers have not taken the rows of a claim in time")
    records: list[Any] = [{"key": key, "value": value} for key, value in pairs]
    if producer.produce_batch(topic, records) < len(records):
        raise next(KafkaException(record["_error"]) for record in records if "_error" in record)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raise Unwritable for an error of Kafka."""
    try:
        with asking():
            yield
    except (KafkaUnavailable, BufferError) as error:
        raise Unwritable(f"Kafka: {error}") from error
