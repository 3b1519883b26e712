"""Private Kafka brokers for tests and bench, removed when their `with` block ends. The jars: bin/provision test."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proving import harness
from proving.replicated import Run, kill_at_end

LIBS = harness.ROOT / "var/kafka/libs"
CLASSES = LIBS.with_name("classes.jsa")  # all classes of a broker, ready for use: half of the time of its start
FAILOVER = harness.ROOT / "deploy/kafka/failover.properties"
LOOKS = 3  # one that was cut off does not know at once what it has missed
MISSING = "no Kafka broker: bin/provision test gets one with java and mvn"
BATCH = struct.Struct(">qiibIhi")  # its first offset, the bytes that follow, …, and the last offset from the first on
JAVA = ("java", "-Xmx192m", "-Xms64m", "-XX:+UseSerialGC", "-cp", f"{LIBS}/*")


def available() -> bool:
    """Whether brokers can be started."""
    return bool(shutil.which("java") and LIBS.is_dir())


class Address(NamedTuple):
    """Where a broker listens. port: for clients; controller: for the other controllers."""

    host: str
    port: int
    controller: int


class Broker:
    """One broker, which is also a controller."""

    def __init__(
        self,
        home: Path,
        number: int,
        addresses: Sequence[Address],
        cluster: str,
        config: Mapping[str, object],
        run: Run = kill_at_end,
    ) -> None:
        """Make its directory. number: from 1 on. addresses: of all brokers. cluster: see `new_id`."""
        self.home = home
        self.number = number
        self.host, self.port, controller = addresses[number - 1]
        self.run = run
        self.running = contextlib.ExitStack()
        self.process: subprocess.Popen[bytes] | None = None
        replicas = min(3, len(addresses))
        voters = (f"{n}@{one.host}:{one.controller}" for n, one in enumerate(addresses, 1))
        lines = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.host}:{self.port},CONTROLLER://{self.host}:{controller}",
            "log.dirs": home / "data",
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "share.coordinator.state.topic.replication.factor": replicas,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 4 << 20,  # the default takes half of the memory
        }
        (home / "data").mkdir(parents=True)
        # what kafka-storage.sh format writes, without the two seconds of a JVM (MetaProperties.java)
        identity = {"version": 1, "cluster.id": cluster, "node.id": number, "directory.id": new_id()}
        (home / "data/meta.properties").write_text(text(identity))
        self.file = home / "server.properties"
        failover = FAILOVER.read_text() if len(addresses) > 1 else ""
        self.file.write_text(text(lines) + failover + text(config))  # the last line of a name counts

    @property
    def url(self) -> str:
        """For INGEST_SPOOL; /NAME or ?properties may follow."""
        return f"kafka://{self.host}:{self.port}"

    @property
    def server(self) -> harness.Server:
        """Its process."""
        assert self.process
        return harness.Server(self.process, self.home / "kafka.out", self.home, self.port)

    def start(self, *options: str) -> None:
        """Start it; it may not answer yet. options: of java."""
        command = [*JAVA, *(options or (f"-XX:SharedArchiveFile={CLASSES}",)), "kafka.Kafka", self.file]
        running = self.run(command, self.home / "kafka.out", harness.environment(self.home))
        self.process = self.running.enter_context(running)

    def accepts(self) -> bool:
        """Whether it accepts connections. Raises: OSError, Died."""
        assert self.process
        if self.process.poll() is not None:
            raise harness.Died(f"{self.home} ended")
        socket.create_connection((self.host, self.port), 1).close()
        return True

    def wait(self, seconds: float) -> None:
        """Wait until it accepts connections; it may not be in the cluster yet. Raises: AssertionError, Died."""
        harness.poll(self.accepts, seconds, f"broker {self.number} accepts connections", interval=0.1)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.running.close()
        self.process = None

    def has(self, topic: str) -> bool:
        """Whether it has partitions of a topic, and takes records for them. A deleted one has another name at once."""
        return any(re.fullmatch(rf"{re.escape(topic)}-\d+", each.name) for each in self.home.glob("data/*"))

    def cut(self, topic: str, partition: int, end: int) -> int:
        """Cut off the batches of a partition's log from an offset on, as a power failure may. The number of records
        that are gone. It does not run; its indices are made again at the start.
        """
        gone = 0
        for segment in sorted((self.home / f"data/{topic}-{partition}").glob("*.log")):
            data, at, cut = segment.read_bytes(), 0, -1
            while at + BATCH.size <= len(data):
                base, size, *_, last = BATCH.unpack_from(data, at)
                if base >= end:
                    cut, gone = at if cut < 0 else cut, gone + last + 1
                at += 12 + size
            if cut >= 0:
                os.truncate(segment, cut)
                for index in segment.parent.glob(f"{segment.stem}.*index"):
                    index.unlink()
        return gone


class Brokers(list[Broker]):
    """All brokers of a cluster."""

    @property
    def url(self) -> str:
        """For INGEST_SPOOL; /NAME or ?properties may follow."""
        return "kafka://" + self.servers

    @property
    def servers(self) -> str:
        """For bootstrap.servers."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self)

    @functools.cached_property
    def admin(self) -> Any:
        """A client of the cluster."""
        from confluent_kafka.admin import AdminClient  # an optional package

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 500})

    def wait(self) -> None:
        """Wait until all of them are in the cluster, and all replicas in sync. Raises: AssertionError."""
        try:
            harness.poll(self.whole, what="all brokers, and their replicas in sync", interval=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.lack()}") from error.__cause__

    def whole(self) -> bool:
        """Whether all are there and in sync. Raises: KafkaException, OSError, Died."""
        # one that was killed counts as there until the controllers notice it; its port is open when it is back
        for broker in self:
            broker.accepts()
        for look in range(LOOKS):
            time.sleep(0.1 if look else 0)
            if self.in_sync() != {broker.number for broker in self}:
                return False
        return True

    def lack(self) -> str:
        """What the cluster lacks, for people."""
        from confluent_kafka import KafkaException

        try:
            found = self.admin.list_topics(timeout=5)
        except KafkaException as error:
            return f"no metadata: {error}"
        lines = [f"brokers {sorted(found.brokers)} of {[broker.number for broker in self]}"]
        for topic in found.topics.values():
            for number, one in topic.partitions.items():
                if set(one.replicas) - set(one.isrs):
                    lines.append(f"{topic} {number}: leader {one.leader}, {one.isrs} of {one.replicas} in sync")
        return "; ".join(lines)

    def in_sync(self) -> set[int]:
        """The brokers that are in the cluster, and lack no partition of theirs. Raises: KafkaException."""
        found = self.admin.list_topics(timeout=1)
        partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
        lagging = {number for one in partitions for number in set(one.replicas) - set(one.isrs)}
        return set(found.brokers) - lagging


def new_id() -> str:
    """An id of a cluster or a directory: 16 random bytes (Uuid.java)."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


def text(lines: Mapping[str, object]) -> str:
    """The text of a file of properties."""
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def prepare() -> None:
    """Make CLASSES if they are not there: Java writes them when a broker ends in order."""
    if CLASSES.exists():
        return
    with tempfile.TemporaryDirectory(dir=CLASSES.parent) as tmp, contextlib.ExitStack() as stack:
        address = Address("127.0.0.1", harness.free_port(), harness.free_port())
        broker = Broker(Path(tmp) / "kafka", 1, [address], new_id(), {})
        stack.callback(broker.kill)
        broker.start(f"-XX:ArchiveClassesAtExit={tmp}/{CLASSES.name}")
        Brokers([broker]).wait()
        assert broker.process
        broker.process.terminate()
        broker.process.wait(120)
        (Path(tmp) / CLASSES.name).rename(CLASSES)


@contextlib.contextmanager
def brokers(tmp: Path, count: int = 1, **config: object) -> Iterator[Brokers]:
    """A cluster in `tmp`. config: lines of server.properties with _ for the dots."""
    prepare()
    addresses = [Address("127.0.0.1", harness.free_port(), harness.free_port()) for _ in range(count)]
    lines = {name.replace("_", "."): value for name, value in config.items()}
    cluster = new_id()
    found = Brokers(Broker(tmp / f"kafka-{n}", n, addresses, cluster, lines) for n in range(1, count + 1))
    with contextlib.ExitStack() as stack:
        for broker in found:
            stack.callback(broker.kill)
            broker.start()
        found.wait()
        yield found
