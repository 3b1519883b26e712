"""Rows as records of Kafka: kafka://HOST:PORT/PREFIX, a topic PREFIX.STREAM, one transaction for each claim.

A transaction commits the claim's rows together with the number of its object, as the offset of a group that nobody
consumes with: PREFIX.STREAM.WRITER. So a worker that does not know whether an object was committed asks for that
offset; before it does, it takes the writer's transactional id, and Kafka refuses what the writer itself still sends
(KIP-98). Consumers that read committed see each row once, and the rows of one key in their order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import cramjam
import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sluice.base.override import override
from sluice.base.times import iso_instant, iso_second, microseconds
from sluice.contrib.destinations.destination import (
    GROUP_RECORDS,
    Carried,
    InMemory,
    Rejected,
    Rows,
    Unwritable,
    single_body,
    writer_of,
)
from sluice.contrib.destinations.far_rows import FarRow
from sluice.contrib.kafka.admin import MAX_RECORD_BYTES, Admin, ask_errors, error_code
from sluice.contrib.kafka.errors import KafkaUnavailable
from sluice.spool.contract import TIMEOUT_SECONDS
from sluice.streams.registry import Stream
from sluice.streams.schema import plain_records

PREFIX = "rows"  # of the names of topics and groups, unless the URL says otherwise
KEYS = {"logs": "service"}  # the key is the first field of other streams: device, name, poll
QUEUE_RECORDS = 1 << 17  # of librdkafka's queue: four groups of a claim
PRODUCER = {
    "compression.type": "snappy",
    "linger.ms": 5,  # at most; a full batch is sent at once
    "queue.buffering.max.messages": QUEUE_RECORDS,
    "queue.buffering.max.kbytes": 1 << 20,
    "transaction.timeout.ms": 60_000,
}
# A group's broker is being chosen, or reads the group's offsets; librdkafka does not ask again
MOVING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
}  # fmt: skip
# A topic never takes such a record, unless its configuration is changed
REFUSED = {
    *(KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE),
    *(KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP),
}
START_SECONDS, COMMIT_SECONDS = 10.0, 30.0  # to take over a transactional id, and to commit the rows of a claim
T = TypeVar("T")
Pair = tuple[bytes | None, bytes]  # key and value
encode = msgspec.json.Encoder().encode
packer = msgspec.msgpack.Encoder()
unpacker = msgspec.msgpack.Decoder(list[list[Pair]])


class Writer(NamedTuple):
    """A producer in the place of a writer. group: the group of its numbers; last: the last number committed there."""

    producer: Producer
    group: Any
    last: int


class Transaction(InMemory[list[Pair]]):
    """The records of a claim, sent as they come, in a transaction that is committed when the database has committed."""

    def __init__(self, name: str, topics: Topics, writer: Writer) -> None:
        """Raises: KafkaException."""
        super().__init__(name, topics.encoded, topics.packed)
        self.topics = topics
        self.writer: Writer | None = writer  # None: the transaction has ended
        self.marked = topics.begin(writer, name)

    @override
    def add(self, batch: int, rows: Rows) -> None:
        assert self.writer
        super().add(batch, rows)
        try:
            with write_errors():
                enqueue_records(self.writer.producer, self.topics.name, self.groups[-1])
        except Rejected:
            # a transaction has no way to take records back, so those that stay are sent again in another
            self.groups.pop()
            self.row_groups -= 1
            with write_errors():
                self.abort()
                self.marked = self.topics.begin(self.writer, self.name)
                for pairs in self.groups:
                    enqueue_records(self.writer.producer, self.topics.name, pairs)
            raise

    def abort(self) -> None:
        """End the transaction. Raises: KafkaException."""
        assert self.writer
        wait([self.marked])
        self.writer.producer.abort_transaction(COMMIT_SECONDS)

    @override
    def close(self, delete: bool) -> None:
        # the producer is not used again: brokers sometimes refuse what it does after an abort
        if self.writer is not None:
            with contextlib.suppress(KafkaException):
                self.abort()


class Topics(Carried[list[Pair]]):
    def __init__(self, url: str, stream: Stream) -> None:
        super().__init__(url, stream)
        self.key = attrgetter(KEYS.get(stream.name, stream.record.__struct_fields__[1]))
        self.plain = plain_records(stream.record)
        self.width, self.unit = (9, 1) if stream.precision == "ns" else (3, 1_000_000)  # digits of a time; nanoseconds
        self.admin: Admin | None = None
        self.idle: Writer | None = None  # this one, between two transactions; None: the producer's state is not known
        self.marks = ThreadPoolExecutor(1)
        self.opened: Transaction | None = None
        self.name = ""  # of the topic

    @override
    def open(self, received: int) -> Transaction:
        with write_errors():
            writer, self.idle = self.idle or self.connect(self.writer), None
            self.opened = Transaction(self.next_name(), self, writer)
        return self.opened

    @override
    def send(self, name: str, carried: bytes) -> None:
        owner, number = writer_of(name)
        opened, self.opened = self.opened, None
        with write_errors():
            if opened is not None and opened.name == name and opened.writer is not None:
                writer, opened.writer = opened.writer, None
                commit_object(writer, opened.marked)
            else:
                writer = self.connect(owner)
                if writer.last < number:
                    marked = self.begin(writer, name)
                    pairs = unpacked(carried)
                    for at in range(0, len(pairs), GROUP_RECORDS):
                        enqueue_records(writer.producer, self.name, pairs[at : at + GROUP_RECORDS])
                    commit_object(writer, marked)
            if owner == self.writer:
                self.idle = writer

    @override
    def halves(self, carried: bytes) -> list[tuple[int, bytes]]:
        pairs = unpacked(carried)
        middle = len(pairs) // 2
        parts = (pairs[:middle], pairs[middle:]) if middle else ()
        return [(len({part[:2] for part in self.rows(pairs)}), self.packed([pairs])) for pairs in parts]

    @override
    def parts(self, carried: bytes) -> Iterator[FarRow]:
        return self.rows(unpacked(carried))

    def rows(self, pairs: list[Pair]) -> Iterator[FarRow]:
        for _, value in pairs:
            row = msgspec.json.decode(value)
            yield row["batch"], row["seq"], microseconds(row["received_at"]), single_body(self.stream, row)

    def begin(self, writer: Writer, name: str) -> Future[None]:
        """Begin the transaction of an object, and send its number while the caller produces its records.

        Two round trips take longer than a commit. Raises: KafkaException.
        """
        writer.producer.begin_transaction()
        mark = [TopicPartition(self.name, 0, writer_of(name)[1])]
        return self.marks.submit(writer.producer.send_offsets_to_transaction, mark, writer.group, TIMEOUT_SECONDS)

    def connect(self, owner: str) -> Writer:
        """Take the place of a writer. Raises: KafkaException, KafkaUnavailable."""
        if self.admin is None:
            admin = Admin(self.url, PREFIX)
            self.name = admin.address.topic(self.stream.name)
            admin.topic(self.name, {"max.message.bytes": str(MAX_RECORD_BYTES)})
            self.admin = admin
        identity = f"{self.name}.{owner}"
        producer = Producer(self.admin.address.properties | PRODUCER | {"transactional.id": identity})
        settled_answer(partial(producer.init_transactions, START_SECONDS))
        with contextlib.closing(Consumer(self.admin.address.properties | {"group.id": identity})) as group:
            mark = [TopicPartition(self.name, 0)]
            (at,) = settled_answer(partial(group.committed, mark, TIMEOUT_SECONDS))  # below 0 if there is none
            return Writer(producer, group.consumer_group_metadata(), at.offset)

    @override
    def encoded(self, batch: int, rows: Rows) -> list[Pair]:
        try:
            return [*self.pairs(batch, rows)]
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise Rejected(str(error)) from None

    @override
    def packed(self, groups: list[list[Pair]]) -> bytes:
        return bytes(cramjam.zstd.compress(packer.encode(groups), 1))

    def pairs(self, batch: int, rows: Rows) -> Iterator[Pair]:
        """The records of rows; those of which the key is unknown go to any partition. Raises: an error of msgspec."""
        key, unit, within = self.key, self.unit, 1_000_000_000 // self.unit
        # between the times and the batch are the fields without `time`, which is the first one and a number or null
        ends = b'"batch":%d,"seq":%%d,"sender":"%%b"}' % batch
        form = b'{"received_at":"%%b","time":"%%b.%%0%ddZ"%%b,' % self.width + ends
        last, arrived, moment, text = -1, b"", -1, b""
        record: Any
        records = map(self.plain, rows.records) if self.plain else rows.records
        for seq, received, record in zip(rows.seqs, rows.received, records):
            who = rows.senders.get(seq, "")
            if received != last:
                last, arrived = received, iso_instant(received).encode()
            when = received * 1000 if record.time is None else record.time
            if when // 1_000_000_000 != moment:
                moment = when // 1_000_000_000
                text = iso_second(moment).encode()
            own = encode(record)
            value = form % (arrived, text, when // unit % within, own[own.index(b",") : -1], seq, who.encode())
            owner = key(record)
            yield None if owner is None else str(owner).encode(), value


def settled_answer(ask: Callable[[], T]) -> T:
    """The answer of a group's broker, once there is one. Raises: KafkaException."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in MOVING or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def unpacked(carried: bytes) -> list[Pair]:
    return [*chain.from_iterable(unpacker.decode(cramjam.zstd.decompress(carried)))]


def commit_object(writer: Writer, marked: Future[None]) -> None:
    """Commit the transaction of an object. Raises: KafkaException."""
    try:
        marked.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError._STATE:
            writer.producer.begin_transaction()  # raises the error that has ended the transaction
        raise
    writer.producer.commit_transaction(COMMIT_SECONDS)


def enqueue_records(producer: Producer, topic: str, pairs: list[Pair]) -> None:
    """Produce records, when the queue has room for all of them: one that is refused would come behind later ones."""
    deadline = time.monotonic() + COMMIT_SECONDS
    while len(producer) + len(pairs) > QUEUE_RECORDS:
        producer.poll(0.01)
        if time.monotonic() > deadline:
            raise BufferError("the brokers have not taken the rows of a claim in time")
    records: list[Any] = [{"key": key, "value": value} for key, value in pairs]
    if producer.produce_batch(topic, records) < len(records):
        raise next(KafkaException(record["_error"]) for record in records if "_error" in record)


@contextlib.contextmanager
def write_errors() -> Iterator[None]:
    try:
        with ask_errors():
            yield
    except (KafkaUnavailable, BufferError) as error:
        if isinstance(error, KafkaUnavailable) and (number := error_code(error)) in REFUSED:
            raise Rejected(KafkaError(number).str()) from error  # the text of this one has numbers of its own
        raise Unwritable(f"Kafka: {error.reason if isinstance(error, KafkaUnavailable) else error}") from error
