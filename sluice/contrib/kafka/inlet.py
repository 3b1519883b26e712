"""The gateway's side of Kafka: a commit produces the bodies of many requests, and waits for all in-sync replicas."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluice.base.override import override
from sluice.contrib.kafka.admin import Admin, ask_errors, error_code
from sluice.contrib.kafka.backlog import Backlog
from sluice.contrib.kafka.errors import KafkaUnavailable
from sluice.spool import inlet
from sluice.spool.contract import TIMEOUT_SECONDS
from sluice.spool.errors import Refusal
from sluice.spool.inlet import Group, log

REFRESH_SECONDS = 0.25  # between two looks at the partitions, and at what the workers have settled
LOOK_SECONDS = 0.5  # that the brokers get to say which partitions can be written to
AVOID_SECONDS = 1.0  # for which brokers are suspected after a commit failed; then `Topic.writable` counts
PATIENCE_SECONDS = 0.1  # that all clients wait for a commit; if it takes longer, only those of its bodies do
CONFIG_SECONDS = 5.0  # between two looks at the configuration of the topics
GLANCE_SECONDS = 0.01  # between two looks at such a commit
SENDERS = 8  # commits that can be in flight at once, at least
REACH_SECONDS = 0.2  # that a broker gets to accept a connection
WARM_UP_SECONDS = 5.0  # that a new producer gets to connect, and to get its id
BATCH_BYTES = 1_000_000  # of the records that go to a broker together; of a topic that takes less, less
FRAME_BYTES = 100  # that a record has more than its body, with the head of its batch
TOO_LARGE = "A body may have at most %d bytes, because the Kafka topic %s takes no more; the request had no effect."
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
    "message.timeout.ms": int(TIMEOUT_SECONDS * 1000),
    "topic.metadata.propagation.max.ms": 1000,  # a topic that is unknown for longer was deleted
    "delivery.report.only.error": True,  # a call per acknowledged body would take as long as all the rest
}


class StreamItems(NamedTuple):
    """The items of one stream in a commit."""

    stream: str
    items: list[bytes]
    backlog: Backlog
    partition: int


class Commit(Group):
    """A group whose bodies may have outcomes of their own. failed: stream -> body -> why it is refused alone."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, dict[bytes, Refusal]] = {}


class Body(Group):
    """A body in a group, with what became of this one."""

    __slots__ = ("group", "item", "stream")

    def __init__(self, group: Commit, stream: str, item: bytes) -> None:
        self.group, self.stream, self.item = group, stream, item

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self.group.done

    @property
    def refused(self) -> dict[str, Refusal] | None:  # type: ignore[override]
        alone = self.group.failed.get(self.stream)
        return {self.stream: alone[self.item]} if alone and self.item in alone else self.group.refused


def note_failure(failed: dict[str, dict[bytes, KafkaError]], error: KafkaError, message: Message) -> None:
    """Called for each body that is not acknowledged."""
    failed.setdefault(str(message.topic()), {})[message.value() or b""] = error


def note_loss(lost: dict[int, float], error: KafkaError) -> None:
    """Called for errors of the client: one that concerns a broker begins with `HOST:PORT/ID: `."""
    if error.code() == KafkaError._TRANSPORT and (broker := re.match(r"\S+/(\d+): ", error.str())):
        lost[int(broker[1])] = time.monotonic()


class Sender:
    """A producer, and the commit that it has in flight. Only flush tells that its records are acknowledged, so each
    commit that is in flight at the same time has a producer of its own.
    """

    def __init__(self, properties: dict[str, Any], lost: dict[int, float], batch: int) -> None:
        """lost: broker -> when a connection to it was lost (monotonic), kept up to date. batch: see BATCH_BYTES.

        Raises: KafkaUnavailable.
        """
        self.group: Commit | None = None
        self.parts: list[StreamItems] = []
        self.failed: dict[str, KafkaError] = {}  # topic -> error of all of its bodies
        self.refused: dict[str, dict[bytes, KafkaError]] = {}  # topic -> body -> error
        self.batch = batch
        self.began = self.seen = 0.0  # monotonic
        self.warm = time.monotonic() + WARM_UP_SECONDS
        # a method of this object would make a cycle, and the client's threads would go on until it is collected
        calls = {"on_delivery": partial(note_failure, self.refused), "error_cb": partial(note_loss, lost)}
        with ask_errors():
            self.producer = Producer(properties | {"batch.size": batch} | PRODUCER | calls)

    def produce(self, group: Commit, parts: list[StreamItems], now: float) -> None:
        self.group, self.parts, self.began = group, parts, now
        self.failed.clear()
        self.refused.clear()
        for _, items, backlog, partition in parts:
            topic = backlog.topic.name
            backlog.busy[partition] = now
            error = self.enqueue(topic, items, partition)
            if error and error.code() == KafkaError._UNKNOWN_PARTITION:
                # it was added, and this producer would ask for it within five minutes only
                with contextlib.suppress(KafkaException):
                    self.producer.list_topics(topic, LOOK_SECONDS)
                error = self.enqueue(topic, items, partition)
            if error:
                self.failed[topic] = error

    def enqueue(self, topic: str, items: list[bytes], partition: int) -> KafkaError | None:
        """The error of a body that the producer does not take, or None. Without the partition it takes none."""
        records: list[dict[str, Any]] = [{"value": item} for item in items]
        try:
            if self.producer.produce_batch(topic, records, partition) == len(records):
                return None
            found: KafkaError = next(record["_error"] for record in records if "_error" in record)
        except KafkaException as error:
            found = error.args[0]
        return found

    def wait(self, seconds: float) -> bool:
        """Wait until each body is acknowledged or has failed. Returns: False if that takes longer."""
        left = self.producer.flush(seconds)
        self.seen = time.monotonic()
        if left and self.seen > self.began + TIMEOUT_SECONDS:
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
    # What `commit` raises instead of waiting longer than PATIENCE_SECONDS; then it is called again. None: it waits
    later: type[Exception] | None = None
    backlogs: dict[str, Backlog]  # type: ignore[assignment]

    def __init__(self, url: str, figures: str, max_bytes: int, gateways: int = 1, replicas: int = 0) -> None:
        super().__init__(figures, replicas=replicas, max_bytes=max_bytes, gateways=gateways)
        self.url = url
        self.admin: Admin | None = None
        self.senders: list[Sender] = []
        self.lost: dict[int, float] = {}  # broker -> when a connection to it was lost (monotonic)
        self.heard: dict[int, float] = {}  # broker -> when the last commit began that it acknowledged (monotonic)
        self.open: Commit = Commit()
        self.batch = BATCH_BYTES
        self.answered = 0.0  # when Kafka last answered `look_at_topics` (monotonic)

    def connect(self) -> Admin:
        """The connection to Kafka, opened if it is closed. Raises: KafkaUnavailable."""
        if self.admin is None:
            self.admin = Admin(self.url)
            for look, pause in (
                (self.look_at_topics, REFRESH_SECONDS), (self.look_at_backlogs, REFRESH_SECONDS),
                (self.look_at_suspects, PATIENCE_SECONDS), (self.look_at_configs, CONFIG_SECONDS),
            ):  # fmt: skip
                arguments = look, self.admin, pause
                threading.Thread(target=self.keep, args=arguments, name=look.__name__, daemon=True).start()
            for _ in range(SENDERS):
                self.add_sender()  # in time: while a broker is away, it may get no id
        return self.admin

    def keep(self, look: Callable[[Admin], None], admin: Admin, pause: float) -> None:
        """Look again and again, whatever fails. The first reason is logged, until a look succeeds again."""
        failed = False
        while True:
            time.sleep(pause)
            try:
                look(admin)
                failed = False
            except Exception as error:
                if not failed:
                    log.warning("%s", error, exc_info=not isinstance(error, KafkaUnavailable))
                failed = True

    def look_at_backlogs(self, admin: Admin) -> None:
        for backlog in list(self.backlogs.values()):
            backlog.look(admin)

    def look_at_configs(self, admin: Admin) -> None:
        for backlog in list(self.backlogs.values()):
            backlog.configure(admin.config(backlog.topic.name))
        self.batch = min([BATCH_BYTES, *(backlog.config.max_bytes for backlog in list(self.backlogs.values()))])

    def look_at_topics(self, admin: Admin) -> None:
        reason = None
        if not self.backlogs:
            admin.streams(LOOK_SECONDS)
        for backlog in list(self.backlogs.values()):
            topic = admin.describe(backlog.topic.name, LOOK_SECONDS)
            # another one of this name may have fewer partitions; then a commit fails, and opens it anew
            if topic and len(topic.replicas) >= len(backlog.topic.replicas):
                if len(topic.replicas) > len(backlog.topic.replicas) and not admin.answers(topic):
                    continue
                backlog.topic = topic
                if not topic.writable:
                    reason = self.down
        self.answered, self.reason = time.monotonic(), reason

    def look_at_suspects(self, _: Admin) -> None:
        """Learn which of the brokers that may be dead accept no connection. One that is frozen does."""
        addresses: dict[int, tuple[str, int]] = {}
        for backlog in list(self.backlogs.values()):
            addresses |= backlog.topic.addresses
        for broker, waited in self.suspects(time.monotonic()).items():
            if PATIENCE_SECONDS < waited < TIMEOUT_SECONDS:
                try:
                    socket.create_connection(addresses[broker], REACH_SECONDS).close()
                except OSError:
                    self.lost[broker] = time.monotonic()

    @override
    def append(self, stream: str, item: bytes) -> Group:
        with self.entry:
            group = self.open
            try:
                group.items[stream].append(item)
            except KeyError:
                group.items[stream] = [item]
            return Body(group, stream, item)

    @override
    def commit(self, group: Group) -> None:
        """Send the group, unless another thread has. While it waits for a leader that has died, others go on."""
        group = group.group if isinstance(group, Body) else group
        assert isinstance(group, Commit)
        with self.turn:
            while not group.done:
                try:
                    self.push_group(group)
                except BaseException as error:  # a signal: the outcome is unknown, so nothing gets 2xx
                    for sender in [each for each in self.senders if each.group is group]:
                        sender.end()
                        self.finish(sender)
                    self.cause = type(error).__name__
                    self.refuse_all(group)
                    group.done = True
                    raise
                if not group.done and self.later:
                    raise self.later

    @override
    def push_group(self, group: Commit) -> None:  # type: ignore[override]
        """Send the group, if that has not been done, and learn what has become of it and of others in flight."""
        now = time.monotonic()
        if group is self.open:
            sender = self.send(group, now)
            if sender and sender.wait(PATIENCE_SECONDS):
                self.finish(sender)
            if sender or group.done:
                return
        due = now - GLANCE_SECONDS if self.later else now
        for sender in [each for each in self.senders if each.group and each.seen <= due]:
            if sender.wait(0 if self.later else PATIENCE_SECONDS):
                self.finish(sender)

    def send(self, group: Commit, now: float) -> Sender | None:
        """Produce the bodies. None: nothing was sent. `done` is set if all of them are refused; else the group stays
        open until a partition is free.
        """
        suspects, brokers, chosen = self.suspects(now), frozenset[int](), {}
        with self.entry:
            for stream in group.items:
                if known := self.backlogs.get(stream):
                    partition = known.choose(suspects, brokers)
                    if partition is None:
                        return None
                    chosen[stream], brokers = partition, known.topic.replicas[partition]
            self.open = Commit()
        parts = []
        for stream, items in group.items.items():
            try:
                backlog = self.backlogs.get(stream) or self.open_backlog(stream)
            except KafkaUnavailable as away:
                reason, cause = self.told(error_code(away), away.reason)
                self.refuse_stream(group, stream, Refusal(reason, 1), cause=cause)
                continue
            if backlog.excess_bodies():
                self.refuse_excess(group, stream, backlog)
            elif items := self.fitting(group, stream, items, backlog):
                partition = chosen[stream] if stream in chosen else backlog.choose(suspects, brokers)
                assert partition is not None, "none of a new backlog is busy"
                parts.append(StreamItems(stream, items, backlog, partition))
        if not parts:
            group.done = True
            return None
        for former in [each for each in self.senders if not each.group and each.batch > self.batch]:
            self.senders.remove(former)
            self.add_sender()
        idle = [each for each in self.senders if not each.group]
        sender = next((each for each in idle if each.warm < now), idle[0] if idle else self.add_sender())
        self.senders.remove(sender)
        self.senders.append(sender)  # so that all of them stay connected
        sender.produce(group, parts, now)
        return sender

    def fitting(self, group: Commit, stream: str, items: list[bytes], backlog: Backlog) -> list[bytes]:
        """The bodies that the topic takes; each of the others is refused for good."""
        limit = backlog.config.max_bytes - FRAME_BYTES
        if max(map(len, items)) <= limit:
            return items
        refusal = Refusal(TOO_LARGE % (limit, backlog.topic.name), 0)
        self.refuse_alone(group, stream, {item: refusal for item in items if len(item) > limit}, items)
        return [item for item in items if len(item) <= limit]

    def refuse_alone(self, group: Commit, stream: str, refused: dict[bytes, Refusal], items: list[bytes]) -> None:
        """Refuse some of the bodies of one stream."""
        group.failed.setdefault(stream, {}).update(refused)
        for item in items:
            if refusal := refused.get(item):
                kind = "too large for the Kafka topic" if not refusal.retry_after else refusal.reason.partition(":")[0]
                self.counts.counter(f"refused {stream} {kind.rstrip('.')}").n += 1

    def suspects(self, now: float) -> dict[int, float]:
        """Brokers that may be dead, with the seconds that commits have waited for partitions of theirs, or had waited
        when they failed of late; TIMEOUT_SECONDS for a lost connection. A broker that has acknowledged a later commit
        is alive. Safe with threads.
        """
        waited = defaultdict[int, float](float)
        for broker, at in self.lost.copy().items():
            if at > now - AVOID_SECONDS and self.heard.get(broker, 0.0) <= at:
                waited[broker] = TIMEOUT_SECONDS
        for backlog in list(self.backlogs.values()):
            failed = {n: at - TIMEOUT_SECONDS for n, at in backlog.failed.copy().items() if at > now - AVOID_SECONDS}
            for partition, since in (failed | backlog.busy).items():
                for broker in backlog.topic.replicas[partition]:
                    if self.heard.get(broker, 0.0) <= since:
                        waited[broker] += now - since
        return waited

    def told(self, number: int | None, text: object) -> tuple[str, str]:
        """The reason that clients get, and the cause that the log has beside it. number: of a KafkaError.

        A broker that does not answer is one reason, whichever step timed out.
        """
        return (self.down, str(text)) if number in SILENT else (KAFKA_REFUSES % text, "")

    def add_sender(self) -> Sender:
        sender = Sender(self.connect().address.properties, self.lost, self.batch)
        self.senders.append(sender)
        return sender

    def finish(self, sender: Sender) -> None:
        group, parts, sender.group, sender.parts = sender.group, sender.parts, None, []
        assert group
        now, accepted = time.monotonic(), 0
        for stream, items, backlog, partition in parts:
            del backlog.busy[partition]
            subject = f"{stream}, partition {partition}"  # while one fails, others go on
            alone = sender.refused.get(backlog.topic.name, {})
            left = [item for item in items if item not in alone] if alone else items
            error = sender.failed.get(backlog.topic.name)
            if why := error or next(iter(alone.values()), None):
                reason, cause = self.told(why.code(), why.str())
                if why.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    self.relook(backlog)
                else:
                    backlog.failed[partition] = now
                if error or not left:
                    self.refuse_stream(group, stream, Refusal(reason, 1), subject, cause)
                    if why.code() in UNKNOWN and self.backlogs.get(stream) is backlog:
                        del self.backlogs[stream]  # the topic was deleted; the next body makes it again
                    continue
                self.refuse_alone(group, stream, dict.fromkeys(alone, Refusal(reason, 1)), items)
                self.log_change(subject, reason, cause)
                items = left
            for broker in backlog.topic.replicas[partition]:
                self.heard[broker] = sender.began
            backlog.count_pushed(sum(map(len, items)))
            backlog.length += len(items)
            backlog.accepted += len(items)
            accepted += len(items)
            self.log_change(stream, None)
            if not why:
                self.log_change(subject, None)
        errors = [*sender.failed.values(), *(error for each in sender.refused.values() for error in each.values())]
        if any(error.fatal() or error.code() in LOST for error in errors):
            self.senders.remove(sender)
            with contextlib.suppress(KafkaUnavailable):
                self.add_sender()
        group.done = True
        self.sizes.add(accepted)
        self.seconds.add(now - sender.began)

    @override
    def open_backlog(self, stream: str) -> Backlog:
        admin = self.connect()
        topic = admin.topic(admin.address.topic(stream))
        backlog = Backlog(stream, topic, *self.limits)
        backlog.configure(admin.config(topic.name))
        self.backlogs[stream] = backlog
        self.batch = min(self.batch, backlog.config.max_bytes)
        self.counts.counters[f"bytes {stream}"] = backlog.bytes
        return backlog

    def relook(self, backlog: Backlog) -> None:
        """Ask for the configuration of a topic that has refused a body for its size."""
        with contextlib.suppress(KafkaUnavailable):
            backlog.configure(self.connect().config(backlog.topic.name, LOOK_SECONDS))
            self.batch = min(self.batch, backlog.config.max_bytes)

    @override
    def unready_reason(self) -> str | None:
        with self.turn:
            try:
                admin = self.connect()
                if not self.answered:
                    self.look_at_topics(admin)
            except KafkaUnavailable as error:
                return self.told(error_code(error), error.reason)[0]
            return self.reason if time.monotonic() < self.answered + TIMEOUT_SECONDS else self.down
