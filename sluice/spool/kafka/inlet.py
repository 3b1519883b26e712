"""The gateway's side of Kafka: a commit produces the bodies of many requests, and waits for all in-sync replicas."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluice.spool import inlet
from sluice.spool.contract import TIMEOUT, KafkaUnavailable
from sluice.spool.inlet import Batch, Refusal, log
from sluice.spool.kafka import Admin, Topic, asking

REFRESH = 0.25  # seconds between two looks at what the workers have settled
AVOID = 5.0  # seconds for which a partition gets no bodies after it failed to acknowledge some
KAFKA_REFUSES = "Kafka refuses to write: %s"
SILENT = (
    KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN,
    KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT,
)  # fmt: skip
UNKNOWN = KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART
# No retry of ours. The client's own, within the timeout, cannot double a record: the broker knows its number.
PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0,
    "message.timeout.ms": int(TIMEOUT * 1000),
    "topic.metadata.propagation.max.ms": 1000,  # a topic that is unknown for longer was deleted
    "delivery.report.only.error": True,  # a call per acknowledged body would take as long as all the rest
}


class Backlog(inlet.Backlog):
    """One stream's topic as a gateway process sees it."""

    def __init__(self, stream: str, topic: Topic, max_bodies: int, max_bytes: int) -> None:
        super().__init__(stream, max_bodies, max_bytes)
        self.topic = topic
        self.accepted = 0  # bodies, by this process
        self.turn = random.randrange(topic.partitions)  # noqa: S311  # so that processes do not move in step
        self.avoid: dict[int, float] = {}  # partition -> until (monotonic)

    def partition(self, now: float) -> int:
        """The partition of the next commit: the bodies of one commit stay together, in one request."""
        for _ in range(self.topic.partitions):
            self.turn = (self.turn + 1) % self.topic.partitions
            if self.avoid.get(self.turn, 0.0) <= now:
                break
        return self.turn

    def look(self, admin: Admin) -> None:
        """Update length, limit and drain rate. Raises: KafkaUnavailable."""
        positions = admin.positions(self.topic)
        settled, end = sum(one.first for one in positions), sum(one.end for one in positions)
        size = self.bytes.n * (end - settled) // self.accepted if self.accepted else 0
        self.update(settled, end - settled, b"%d" % (time.time() * 1e6), size)


class Inlet(inlet.Inlet):
    """The gateway's side, one per process. It connects at the first commit, because Kafka's threads survive no fork."""

    down = "Kafka does not acknowledge."
    backlogs: dict[str, Backlog]  # type: ignore[assignment]

    def __init__(self, url: str, figures: str, max_bytes: int) -> None:
        """url: of Kafka. figures: address of the Redis that keeps the counts. max_bytes: as for Redis."""
        super().__init__(figures, max_bytes=max_bytes)
        self.url = url
        self.admin: Admin | None = None
        self.producer: Producer | None = None
        self.failed: dict[str, KafkaError] = {}  # topic -> error, in this commit

    def connect(self) -> tuple[Admin, Producer]:
        """The connections to Kafka, opened if they are closed. Raises: KafkaUnavailable."""
        if self.admin is None:
            self.admin = Admin(self.url)
            threading.Thread(target=self.look, args=(self.admin,), name="backlog", daemon=True).start()
        if self.producer is None:
            with asking():
                self.producer = Producer(self.admin.address.properties | PRODUCER | {"on_delivery": self.delivered})
        return self.admin, self.producer

    def look(self, admin: Admin) -> None:
        """Learn what the workers have settled, for ever."""
        while True:
            time.sleep(REFRESH)
            for backlog in list(self.backlogs.values()):
                try:
                    backlog.look(admin)
                except KafkaUnavailable as error:
                    log.debug("%s", error)

    def delivered(self, error: KafkaError, message: Message) -> None:
        """Called for each body that is not acknowledged."""
        topic = str(message.topic())
        self.failed.setdefault(topic, error)
        for backlog in self.backlogs.values():
            if backlog.topic.name == topic:
                backlog.avoid[message.partition()] = time.monotonic() + AVOID  # type: ignore[index]

    def push(self, batch: Batch) -> None:
        """Produce the bodies, and wait until each of them is acknowledged or has failed."""
        now = time.monotonic()
        self.failed.clear()
        sent = []
        for stream, bodies in batch.bodies.items():
            try:
                admin, producer = self.connect()
                backlog = self.backlogs.get(stream) or self.open_backlog(stream, admin)
            except KafkaUnavailable as away:
                self.refuse(batch, stream, Refusal(KAFKA_REFUSES % away.reason, 1))
                continue
            if backlog.length >= backlog.limit:
                self.refuse_excess(batch, stream, backlog)
                continue
            self.produce(producer, backlog, bodies, now)
            sent.append((stream, bodies, backlog))
        if sent and producer.flush(TIMEOUT):
            producer.purge()  # 503 is the answer: what was not sent by now must not be sent later
            if producer.flush(TIMEOUT):  # what became of them was not reported
                self.failed |= {backlog.topic.name: KafkaError(KafkaError._TIMED_OUT) for _, _, backlog in sent}
        accepted = 0
        for stream, bodies, backlog in sent:
            if error := self.failed.get(backlog.topic.name):
                detail = self.down if error.code() in SILENT else KAFKA_REFUSES % error.str()
                self.refuse(batch, stream, Refusal(detail, 1))
                if error.code() in UNKNOWN:
                    del self.backlogs[stream]  # the topic was deleted; the next body makes it again
                continue
            backlog.refused_bodies = 0
            backlog.length += len(bodies)
            backlog.accepted += len(bodies)
            backlog.bytes.n += sum(map(len, bodies))
            accepted += len(bodies)
            self.log_change(stream, None)
        if any(error.fatal() or error.code() == KafkaError._FATAL for error in self.failed.values()):
            self.producer = None  # it never sends again
        self.batches.add(accepted)
        self.commits.add(time.monotonic() - now)

    def open_backlog(self, stream: str, admin: Admin) -> Backlog:
        """The backlog of a stream's first body. Raises: KafkaUnavailable."""
        backlog = Backlog(stream, admin.topic(admin.address.topic(stream)), *self.limits)
        self.counts.counters[f"bytes {stream}"] = backlog.bytes
        self.backlogs[stream] = backlog
        return backlog

    def produce(self, producer: Producer, backlog: Backlog, bodies: list[bytes], now: float) -> None:
        """Give the bodies of one stream to the client, which sends them at once."""
        topic = backlog.topic.name
        records: list[dict[str, Any]] = [{"value": body} for body in bodies]
        try:
            if producer.produce_batch(topic, records, backlog.partition(now)) < len(records):
                self.failed[topic] = next(record["_error"] for record in records if "_error" in record)
        except KafkaException as error:
            self.failed[topic] = error.args[0]

    def ready(self) -> str | None:
        """None if Kafka answers and each known topic can be written to, else the reason why not."""
        with self.turn:
            try:
                admin = self.connect()[0]
                admin.streams()
                for backlog in self.backlogs.values():
                    topic = admin.describe(backlog.topic.name)
                    if topic and not topic.has_leader:
                        return self.down
            except KafkaUnavailable as error:
                return KAFKA_REFUSES % error.reason
        return None
