"""Private Kafka brokers for tests and bench, removed when their `with` block ends. bin/provision test gets the jars."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sluice.drill import harness

LIBS = harness.ROOT / "var/kafka/libs"
MISSING = "no Kafka broker: bin/provision test gets one with java and mvn"
JAVA = ("java", "-Xmx192m", "-Xms64m", "-XX:+UseSerialGC", "-cp", f"{LIBS}/*")


def available() -> bool:
    """Whether brokers can be started."""
    return bool(shutil.which("java") and LIBS.is_dir())


class Broker:
    """One broker, which is also a controller."""

    def __init__(self, home: Path, number: int, ports: list[tuple[int, int]], config: dict[str, object]) -> None:
        """ports: of all brokers: for clients, for the controllers."""
        self.home = home
        self.port, controller = ports[number - 1]
        self.running = contextlib.ExitStack()
        self.process: subprocess.Popen | None = None
        replicas = min(3, len(ports))
        lines = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, (_, port) in enumerate(ports, 1)),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": home / "data",
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "share.coordinator.state.topic.replication.factor": replicas,
            "group.initial.rebalance.delay.ms": 0,
            # a dead broker is noticed after two seconds instead of nine
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            "controller.quorum.election.timeout.ms": 500,
            "controller.quorum.fetch.timeout.ms": 1000,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 4 << 20,  # the default takes half of the memory
        }
        home.mkdir()
        self.file = home / "server.properties"
        self.file.write_text("".join(f"{name}={value}\n" for name, value in (lines | config).items()))

    @property
    def url(self) -> str:
        """For INGEST_SPOOL; /NAME or ?properties may follow."""
        return f"kafka://127.0.0.1:{self.port}"

    @property
    def server(self) -> harness.Server:
        """Its process."""
        assert self.process
        return harness.Server(self.process, self.home / "kafka.out", self.home, self.port)

    def format(self, cluster: str) -> subprocess.Popen:
        """Prepare its directory; the process that does it."""
        command = [*JAVA, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", self.file]
        with open(self.home / "format.out", "wb") as out:
            return subprocess.Popen([str(word) for word in command], stdout=out, stderr=out)

    def start(self) -> None:
        """Start it; it may not answer yet."""
        command = [*JAVA, "kafka.Kafka", self.file]
        running = harness.running(command, self.home / "kafka.out", harness.environment(self.home), signal.SIGKILL)
        self.process = self.running.enter_context(running)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.running.close()
        self.process = None


class Brokers(list[Broker]):
    """All brokers of a cluster."""

    @property
    def url(self) -> str:
        """For INGEST_SPOOL; /NAME or ?properties may follow."""
        return "kafka://" + self.servers

    @property
    def servers(self) -> str:
        """For bootstrap.servers."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self)

    def wait(self) -> None:
        """Wait until all of them are in the cluster."""
        from confluent_kafka.admin import AdminClient  # an optional package

        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

        def complete() -> bool:
            if dead := [str(broker.home) for broker in self if broker.server.process.poll() is not None]:
                raise harness.Died(f"a broker ended: {dead}")
            return len(admin.list_topics(timeout=1).brokers) == len(self)

        harness.poll(complete, 60, "all brokers")


@contextlib.contextmanager
def brokers(tmp: Path, count: int = 1, **config: object) -> Iterator[Brokers]:
    """A cluster in `tmp`. config: lines of server.properties with _ for the dots."""
    ports = [(harness.free_port(), harness.free_port()) for _ in range(count)]
    lines = {name.replace("_", "."): value for name, value in config.items()}
    found = Brokers(Broker(tmp / f"kafka-{n}", n, ports, lines) for n in range(1, count + 1))
    cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").lstrip("-")
    for process in [broker.format(cluster) for broker in found]:
        assert process.wait(60) == 0, f"format.out in {tmp} has the reason"
    with contextlib.ExitStack() as stack:
        for broker in found:
            stack.callback(broker.kill)
            broker.start()
        found.wait()
        yield found
