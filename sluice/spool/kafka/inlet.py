"""The gateway's side of Kafka: a commit produces the bodies of many requests, and waits for all in-sync replicas."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluice.spool import inlet
from sluice.spool.contract import TIMEOUT, KafkaUnavailable
from sluice.spool.inlet import Batch, Refusal, log
from sluice.spool.kafka import Admin, Topic, asking

REFRESH = 0.25  # seconds between two looks at the partitions, and at what the workers have settled
LOOK = 0.5  # seconds that the brokers get to say which partitions can be written to
AVOID = 1.0  # seconds for which brokers are suspected after a commit failed; then `Topic.writable` counts
REDUCED = 0.3  # seconds that a commit rather waits than that it goes to a partition with fewer in-sync replicas
PATIENCE = 0.1  # seconds that all clients wait for a commit; if it takes longer, only those of its bodies do
GLANCE = 0.01  # seconds between two looks at such a commit
SENDERS = 8  # commits that can be in flight at once, at least
REACH = 0.2  # seconds that a broker gets to accept a connection
WARM_UP = 5.0  # seconds that a new producer gets to connect, and to get its id
KAFKA_REFUSES = "Kafka refuses to write: %s"
SILENT = (
    KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN,
    KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT,
)  # fmt: skip
LOST = *SILENT, KafkaError._FATAL  # a producer that got this error may not send again, or not soon
UNKNOWN = KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART
# No retry of ours. The client's own, within the timeout, cannot double a record: the broker knows its number.
PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "enable.sparse.connections": False,  # connect to all brokers at once: while one is away, a connection takes long
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
        self.busy: dict[int, float] = {}  # partition that a commit is waiting for -> since when (monotonic)
        self.failed: dict[int, float] = {}  # partition -> when it last failed (monotonic)

    def choose(self, suspects: dict[int, float], brokers: frozenset[int]) -> int | None:
        """The partition of the next commit: the bodies of one commit go there together. None: the best one is busy.

        Each partition in a commit is one more request to a broker, and one more claim.

        suspects: see `Inlet.suspects`. brokers: those that the rest of the commit goes to.
        """
        count, replicas = self.topic.partitions, self.topic.replicas

        def cost(n: int) -> tuple[float, bool, float, bool]:
            wait = sum(suspects.get(one, 0.0) for one in replicas[n])
            if n not in self.topic.writable:
                wait += TIMEOUT if self.topic.leaders[n] < 0 else REDUCED
            # without its follower, a leader acknowledges the commit once that is replaced; a dead leader never does
            return wait, n in self.busy, suspects.get(self.topic.leaders[n], 0.0), replicas[n] != brokers

        best = min((n % count for n in range(self.turn + 1, self.turn + 1 + count)), key=cost)
        if best in self.busy:
            return None
        self.turn = best
        return best

    def look(self, admin: Admin) -> None:
        """Update length, limit and drain rate. Raises: KafkaUnavailable."""
        positions = admin.positions(self.topic)
        settled, end = sum(one.first for one in positions), sum(one.end for one in positions)
        size = self.bytes.n * (end - settled) // self.accepted if self.accepted else 0
        self.update(settled, end - settled, b"%d" % (time.time() * 1e6), size)


class Part(NamedTuple):
    """The bodies of one stream in a commit."""

    stream: str
    bodies: list[bytes]
    backlog: Backlog
    partition: int


def note(failed: dict[str, KafkaError], error: KafkaError, message: Message) -> None:
    """Called for each body that is not acknowledged."""
    failed.setdefault(str(message.topic()), error)


def note_loss(lost: dict[int, float], error: KafkaError) -> None:
    """Called for errors of the client: one that concerns a broker begins with `HOST:PORT/ID: `."""
    if error.code() == KafkaError._TRANSPORT and (found := re.match(r"\S+/(\d+): ", error.str())):
        lost[int(found[1])] = time.monotonic()


class Sender:
    """A producer, and the commit that it has in flight. Only flush tells that its records are acknowledged, so each
    commit that is in flight at the same time has a producer of its own.
    """

    def __init__(self, properties: dict[str, Any], lost: dict[int, float]) -> None:
        """lost: broker -> when a connection to it was lost (monotonic), kept up to date. Raises: KafkaUnavailable."""
        self.batch: Batch | None = None
        self.parts: list[Part] = []
        self.failed: dict[str, KafkaError] = {}  # topic -> error
        self.began = self.seen = 0.0  # monotonic
        self.warm = time.monotonic() + WARM_UP
        # a method of this object would make a cycle, and the client's threads would go on until it is collected
        calls = {"on_delivery": partial(note, self.failed), "error_cb": partial(note_loss, lost)}
        with asking():
            self.producer = Producer(properties | PRODUCER | calls)

    def produce(self, batch: Batch, parts: list[Part], now: float) -> None:
        """Give the bodies to the client, which sends them at once."""
        self.batch, self.parts, self.began = batch, parts, now
        self.failed.clear()
        for _, bodies, backlog, partition in parts:
            topic = backlog.topic.name
            backlog.busy[partition] = now
            records: list[dict[str, Any]] = [{"value": body} for body in bodies]
            try:
                if self.producer.produce_batch(topic, records, partition) < len(records):
                    self.failed[topic] = next(record["_error"] for record in records if "_error" in record)
            except KafkaException as error:
                self.failed[topic] = error.args[0]

    def wait(self, seconds: float) -> bool:
        """Wait until each body is acknowledged or has failed. Returns: False if that takes longer."""
        left = self.producer.flush(seconds)
        self.seen = time.monotonic()
        if left and self.seen > self.began + TIMEOUT:
            self.end()
            left = 0
        return not left

    def end(self) -> None:
        """Let what has not failed by now fail: 503 is the answer, so what was not sent must not be sent later."""
        self.producer.purge()
        self.producer.flush(0)
        for part in self.parts:
            self.failed.setdefault(part.backlog.topic.name, KafkaError(KafkaError._TIMED_OUT))


class Inlet(inlet.Inlet):
    """The gateway's side, one per process. It connects at the first commit, because Kafka's threads survive no fork."""

    down = "Kafka does not acknowledge."
    pause = 0.0004  # a commit costs this much CPU, however few bodies it has
    backlogs: dict[str, Backlog]  # type: ignore[assignment]

    def __init__(self, url: str, figures: str, max_bytes: int) -> None:
        """url: of Kafka. figures: address of the Redis that keeps the counts. max_bytes: as for Redis."""
        super().__init__(figures, max_bytes=max_bytes)
        self.url = url
        self.admin: Admin | None = None
        self.senders: list[Sender] = []
        self.lost: dict[int, float] = {}  # broker -> when a connection to it was lost (monotonic)
        self.heard: dict[int, float] = {}  # broker -> when the last commit began that it acknowledged (monotonic)
        self.later: type[Exception] | None = None
        self.answered = 0.0  # when Kafka last answered `look_at_topics` (monotonic)
        self.detail: str | None = None  # what it found: why /readyz says 503

    def connect(self) -> Admin:
        """The connection to Kafka, opened if it is closed. Raises: KafkaUnavailable."""
        if self.admin is None:
            self.admin = Admin(self.url)
            for look, pause in (
                (self.look_at_topics, REFRESH), (self.look_at_backlogs, REFRESH), (self.look_at_suspects, PATIENCE),
            ):  # fmt: skip
                arguments = look, self.admin, pause
                threading.Thread(target=self.keep, args=arguments, name=look.__name__, daemon=True).start()
            for _ in range(SENDERS):
                self.add_sender()  # in time: while a broker is away, it may get no id
        return self.admin

    def keep(self, look: Callable[[Admin], None], admin: Admin, pause: float) -> None:
        """Look again and again."""
        while True:
            time.sleep(pause)
            try:
                look(admin)
            except KafkaUnavailable as error:
                log.debug("%s", error)

    def look_at_backlogs(self, admin: Admin) -> None:
        """Learn what the workers have settled. Raises: KafkaUnavailable."""
        for backlog in list(self.backlogs.values()):
            backlog.look(admin)

    def look_at_topics(self, admin: Admin) -> None:
        """Learn which partitions can be written to. Raises: KafkaUnavailable."""
        detail = None
        if not self.backlogs:
            admin.streams(LOOK)
        for backlog in list(self.backlogs.values()):
            topic = admin.describe(backlog.topic.name, LOOK)
            if topic and topic.id == backlog.topic.id:
                backlog.topic = topic
                if not topic.writable:
                    detail = self.down
        self.answered, self.detail = time.monotonic(), detail

    def look_at_suspects(self, _: Admin) -> None:
        """Learn which of the brokers that may be dead accept no connection. One that is frozen does."""
        addresses: dict[int, tuple[str, int]] = {}
        for backlog in list(self.backlogs.values()):
            addresses |= backlog.topic.addresses
        for broker, waited in self.suspects(time.monotonic()).items():
            if PATIENCE < waited < TIMEOUT:
                try:
                    socket.create_connection(addresses[broker], REACH).close()
                except OSError:
                    self.lost[broker] = time.monotonic()

    def answer_later(self, exception: type[Exception]) -> None:
        """Let `commit` raise this exception instead of waiting longer than PATIENCE, and be called again."""
        self.later = exception

    def commit(self, batch: Batch) -> None:
        """See `inlet.Inlet`. While a commit waits for a leader that has died, others go on with other partitions."""
        with self.turn:
            while not batch.done:
                try:
                    self.push(batch)
                except BaseException as error:  # a signal: the outcome is unknown, so nothing gets 2xx
                    for sender in [one for one in self.senders if one.batch is batch]:
                        sender.end()
                        self.finish(sender)
                    self.refuse_all(batch, error)
                    batch.done = True
                    raise
                if not batch.done and self.later:
                    raise self.later

    def push(self, batch: Batch) -> None:
        """Send the batch, if that has not been done, and learn what has become of it and of others in flight."""
        now = time.monotonic()
        if batch is self.open:
            sender = self.send(batch, now)
            if sender and sender.wait(PATIENCE):
                self.finish(sender)
            if sender or batch.done:
                return
        for sender in [one for one in self.senders if one.batch and not (self.later and now < one.seen + GLANCE)]:
            if sender.wait(0 if self.later else PATIENCE):
                self.finish(sender)

    def send(self, batch: Batch, now: float) -> Sender | None:
        """Produce the bodies. None: nothing was sent. `done` is set if all of them are refused; else the batch stays
        open until a partition is free.
        """
        suspects, brokers, chosen = self.suspects(now), frozenset[int](), {}
        with self.entry:
            for stream in batch.bodies:
                if known := self.backlogs.get(stream):
                    partition = known.choose(suspects, brokers)
                    if partition is None:
                        return None
                    chosen[stream], brokers = partition, known.topic.replicas[partition]
            self.open = Batch()
        parts = []
        for stream, bodies in batch.bodies.items():
            try:
                backlog = self.backlogs.get(stream) or self.open_backlog(stream, self.connect())
            except KafkaUnavailable as away:
                self.refuse(batch, stream, Refusal(KAFKA_REFUSES % away.reason, 1))
                continue
            if backlog.length >= backlog.limit:
                self.refuse_excess(batch, stream, backlog)
            else:
                partition = chosen[stream] if stream in chosen else backlog.choose(suspects, brokers)
                assert partition is not None, "none of a new backlog is busy"
                parts.append(Part(stream, bodies, backlog, partition))
        if not parts:
            batch.done = True
            return None
        idle = [one for one in self.senders if not one.batch]
        sender = next((one for one in idle if one.warm < now), idle[0] if idle else self.add_sender())
        self.senders.remove(sender)
        self.senders.append(sender)  # so that all of them stay connected
        sender.produce(batch, parts, now)
        return sender

    def suspects(self, now: float) -> dict[int, float]:
        """Brokers that may be dead, with the seconds that commits have waited for partitions of theirs, or had waited
        when they failed of late; TIMEOUT for a lost connection. A broker that has acknowledged a later commit is alive.
        Safe with threads.
        """
        found = defaultdict[int, float](float)
        for broker, at in self.lost.copy().items():
            if at > now - AVOID and self.heard.get(broker, 0.0) <= at:
                found[broker] = TIMEOUT
        for backlog in list(self.backlogs.values()):
            failed = {n: at - TIMEOUT for n, at in backlog.failed.copy().items() if at > now - AVOID}
            for partition, since in (failed | backlog.busy).items():
                for broker in backlog.topic.replicas[partition]:
                    if self.heard.get(broker, 0.0) <= since:
                        found[broker] += now - since
        return found

    def add_sender(self) -> Sender:
        """Another producer. Raises: KafkaUnavailable."""
        sender = Sender(self.connect().address.properties, self.lost)
        self.senders.append(sender)
        return sender

    def finish(self, sender: Sender) -> None:
        """The outcome of a commit is known."""
        batch, parts, sender.batch, sender.parts = sender.batch, sender.parts, None, []
        assert batch
        now, accepted = time.monotonic(), 0
        for stream, bodies, backlog, partition in parts:
            del backlog.busy[partition]
            subject = f"{stream}, partition {partition}"  # while one fails, others go on
            if error := sender.failed.get(backlog.topic.name):
                backlog.failed[partition] = now
                detail = self.down if error.code() in SILENT else KAFKA_REFUSES % error.str()
                self.refuse(batch, stream, Refusal(detail, 1), subject)
                if error.code() in UNKNOWN and self.backlogs.get(stream) is backlog:
                    del self.backlogs[stream]  # the topic was deleted; the next body makes it again
                continue
            for broker in backlog.topic.replicas[partition]:
                self.heard[broker] = sender.began
            backlog.refused_bodies = 0
            backlog.length += len(bodies)
            backlog.accepted += len(bodies)
            backlog.bytes.n += sum(map(len, bodies))
            accepted += len(bodies)
            self.log_change(stream, None)
            self.log_change(subject, None)
        if any(error.fatal() or error.code() in LOST for error in sender.failed.values()):
            self.senders.remove(sender)
            with contextlib.suppress(KafkaUnavailable):
                self.add_sender()
        batch.done = True
        self.batches.add(accepted)
        self.commits.add(now - sender.began)

    def open_backlog(self, stream: str, admin: Admin) -> Backlog:
        """The backlog of a stream's first body. Raises: KafkaUnavailable."""
        backlog = Backlog(stream, admin.topic(admin.address.topic(stream)), *self.limits)
        self.counts.counters[f"bytes {stream}"] = backlog.bytes
        self.backlogs[stream] = backlog
        return backlog

    def ready(self) -> str | None:
        """None if Kafka answers and each known topic can be written to, else the reason why not."""
        with self.turn:
            try:
                admin = self.connect()
                if not self.answered:
                    self.look_at_topics(admin)
            except KafkaUnavailable as error:
                return KAFKA_REFUSES % error.reason
            return self.detail if time.monotonic() < self.answered + TIMEOUT else self.down
