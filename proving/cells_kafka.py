"""The installation under test of `drill --cells --spool kafka`: a broker on each machine instead of Redis.

The brokers are one cluster, and one may be away: each partition has two replicas, so those of the others go on. All
cells share its topics, and their workers are one group.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING

from proving import kafka
from proving.cells import GENTLE, STARTING, WHOLE, Cell, Cells, renice
from proving.harness import Died, stopped
from proving.kafka import Address, Broker, Brokers
from proving.site import Trouble, wait
from sluice.run import launch

if TYPE_CHECKING:  # its client is an optional package
    from sluice.contrib.kafka.admin import Positions

PORTS = 9092, 9093  # of each broker: for clients, for the other controllers
IN_FLIGHT = 1.0  # seconds without a record after which nothing of a stopped gateway is on its way
PARTITIONS = 2  # of a topic, for each broker
AWARE = 1.0  # seconds until a broker that was cut off knows what it has missed; before, it says that all is in sync
# The brokers of all machines share the cores of this one with everything else: a heartbeat that waits behind a batch
# of rows comes too late. So their sessions have this niceness (autogroup in sched(7)), once they accept connections
FIRST = "-10"
# The better one of Java's two compilers takes more time than it saves in a broker that is killed soon
SHORT_LIVED = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}


class KafkaCells(Cells):
    """The cells, with Kafka."""

    spool = "Kafka, a broker on each machine"
    programs = {"haproxy": "haproxy", "redis-server": "redis-server", "java": "default-jre-headless"}  # noqa: RUF012
    provision = "kafka"
    rate = 100
    patience = 0.3  # so that two requests in a row may fail within a second

    # --- its parts ---

    def build(self) -> None:
        """Start the brokers of all machines."""
        if not kafka.available():
            raise Trouble(kafka.MISSING)
        from sluice.contrib.kafka.admin import Admin

        kafka.prepare()
        self.cluster = kafka.new_id()
        self.past = Counter[str]()  # stream -> bodies that Kafka has lost after they were stored
        self.brokers = Brokers()
        for cell in self.cells:
            self.brokers.append(self.broker(cell))
            self.brokers[-1].start()
        self.settled()
        self.admin = Admin(self.brokers.url)

    def broker(self, cell: Cell) -> Broker:
        """The broker of a machine, in a new directory."""
        addresses = [Address(one.machine.address, *PORTS) for one in self.cells]

        @contextlib.contextmanager
        def run(command: Sequence[object], log: Path, env: Mapping[str, str]) -> Iterator[Popen[bytes]]:
            with cell.machine.running(command, log, {**env, **SHORT_LIVED}) as process:
                renice(process, STARTING)
                yield process

        broker = Broker(cell.home / "kafka", cell.number + 1, addresses, self.cluster, {}, run)
        cell.nodes = [broker]
        return broker

    def environ_of(self, cell: Cell) -> dict[str, str]:
        """The settings of a cell that concern its list."""
        return {"INGEST_SPOOL": f"{self.brokers.url}?partitions={PARTITIONS * len(self.cells)}&replicas=2"}

    def rescue(self, cell: Cell) -> str:
        """Wait until the other brokers have replaced that of a dead cell. Returns: the details. Raises: Trouble."""
        # an empty one that came back earlier would vote, and be taken for one that has its replicas
        number = cell.number + 1
        wait(lambda: number not in self.in_sync(), WHOLE, "its broker is replaced", interval=0.1)
        return "its broker replaced"

    def replace(self, cell: Cell) -> None:
        """A new machine in place of one whose disk is gone: its broker is empty."""
        shutil.rmtree(cell.home)
        self.brokers[cell.number] = self.broker(cell)

    # --- its state ---

    def in_sync(self) -> set[int]:
        """See `Brokers`. Raises: OSError."""
        from confluent_kafka import KafkaException

        try:
            return self.brokers.in_sync()
        except KafkaException as error:
            raise OSError(str(error)) from None

    def settled(self) -> None:
        """Wait until all brokers have all partitions. Raises: Trouble."""
        time.sleep(max(0.0, max(cell.machine.back for cell in self.cells) + AWARE - time.monotonic()))
        try:
            for broker in self.brokers:
                with contextlib.suppress(AssertionError):
                    broker.wait(GENTLE)
                assert broker.process
                renice(broker.process, FIRST)
            self.brokers.wait()
        except (AssertionError, Died) as error:
            raise Trouble(str(error)) from None

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """A block in which all that was acknowledged is stored, and no gateway runs."""
        self.settled()  # a broker that has just become a leader knows only later where the partition ends
        tags = [tag for cell in self.cells for tag in (cell.home / "run").resolve().glob("gateway*.tag")]
        with stopped(*(pid for tag in tags for pid in launch.tag_holders(tag))):
            wait(self.is_still, WHOLE, "all that was acknowledged is stored")
            yield

    def is_still(self) -> bool:
        """Whether all bodies are settled, and nothing that a stopped gateway has sent is on its way to a topic."""
        before = [self.taken(stream) for stream in self.streams]
        time.sleep(IN_FLIGHT)
        return not self.waiting() and [self.taken(stream) for stream in self.streams] == before

    def replace_topic(self, stream: str) -> str:
        """Delete the topic of a stream. Returns: the details. Raises: Trouble."""
        with self.quiet():
            ended = self.taken(stream)
            topic = self.admin.address.topic(stream)
            for deleted in self.brokers.admin.delete_topics([topic]).values():
                deleted.result()
            # a broker that has not heard of it acknowledges bodies that go with the topic
            wait(lambda: not any(broker.has(topic) for broker in self.brokers), WHOLE, "each broker has deleted it")
            self.past[stream] = ended
        return f"{stream}, {ended} bodies"

    def raise_partitions(self, stream: str) -> str:
        """Add a partition to the topic of a stream, under load. Returns: the details. Raises: Trouble."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewPartitions

        topic = self.admin.address.topic(stream)

        def count() -> int:
            return len(self.positions(stream))

        before = wait(count, WHOLE, "the topic", interval=0.1)
        try:
            for raised in self.brokers.admin.create_partitions([NewPartitions(topic, before + 1)]).values():
                raised.result()
        except KafkaException as error:
            return f"not done: {error.args[0].name()}"
        wait(lambda: count() > before, WHOLE, "the new partition", interval=0.1)
        return f"{stream}, from {before} to {before + 1}"

    def cut_log(self, stream: str, records: int) -> str:
        """Kill all brokers, and cut off the end of each partition of a stream. Returns: details. Raises: Trouble."""
        with self.quiet():
            positions, ended = self.positions(stream), self.taken(stream)
            for broker in self.brokers:
                broker.kill()
            for broker in self.brokers:
                for number, one in enumerate(positions):
                    broker.cut(self.admin.address.topic(stream), number, max(one.end - records, 0))
                broker.start()
            self.settled()
            wait(lambda: self.positions(stream), WHOLE, "the topic", interval=0.1)
            gone = ended - self.taken(stream)
            self.past[stream] += gone
        return f"{stream}, {gone} bodies"

    def positions(self, stream: str) -> list[Positions]:
        """Where the workers are, and where the topic ends, by partition. Raises: KafkaUnavailable."""
        topic = self.admin.describe(self.admin.address.topic(stream))
        return self.admin.positions(topic) if topic else []

    def waiting(self) -> int:
        """Bodies that are not settled. Raises: KafkaUnavailable."""
        return sum(one.end - one.first for stream in self.streams for one in self.positions(stream))

    def taken(self, stream: str) -> int:
        """Bodies that came since the beginning. Raises: KafkaUnavailable."""
        return int(sum(one.end for one in self.positions(stream)) + self.past[stream])
