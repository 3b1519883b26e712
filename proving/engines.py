"""Private destinations of rows for tests, bench and drill: an object store with the interface of S3, ClickHouse, Kafka.

`bin/provision engines` installs the first two, from packages of Python; a test is skipped without them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from proving import harness, kafka
from proving.replicated import kill_at_end

ENVIRONMENT = harness.ROOT / ".venv-engines"
KEY, SECRET = "drill", "drill-secret"
BUCKET = "rows"


class Engine:
    """One of them, which may be killed and started again. env: what its clients need in the environment."""

    missing = "no object store and no ClickHouse: bin/provision engines installs them"

    @staticmethod
    def available() -> bool:
        """Whether it is installed."""
        return (ENVIRONMENT / "bin/weed").exists()

    def __init__(self, home: Path) -> None:
        self.home = home
        self.running = contextlib.ExitStack()
        self.process: subprocess.Popen[bytes] | None = None
        self.port = harness.free_port()
        self.env: dict[str, str] = {}
        home.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """For INGEST_ROWS."""
        raise NotImplementedError

    def command(self) -> list[object]:
        """What starts it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, and wait until it answers."""
        running = kill_at_end(self.command(), self.home / "engine.out", harness.environment(self.home))
        self.process = self.running.enter_context(running)
        harness.poll(self.ready, 60, "an answer of the engine", interval=0.05)

    def ready(self) -> bool:
        """Whether it answers. Raises: OSError, Died."""
        assert self.process
        if self.process.poll() is not None:
            raise harness.Died(f"{self.home} ended:\n{(self.home / 'engine.out').read_text()[-2000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", self.probe())
            return connection.getresponse().status < 500

    def probe(self) -> str:
        """What it is asked until it answers."""
        return "/"

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.running.close()
        self.process = None


class ClickHouse(Engine):
    """ClickHouse's engine."""

    @property
    def url(self) -> str:
        """For INGEST_ROWS."""
        return f"clickhouse://127.0.0.1:{self.port}/default"

    def command(self) -> list[object]:
        """What starts it."""
        program = harness.ROOT / "proving/chdb_server.py"
        return [ENVIRONMENT / "bin/python", program, self.home / "data", self.port]

    def probe(self) -> str:
        """What it is asked until it answers."""
        return "/ping"


class Store(Engine):
    """An object store with S3's interface."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.ports = [harness.free_port() for _ in range(7)]
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        }  # fmt: skip
        identity = {"name": "drill", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        (home / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (home / "data").mkdir(exist_ok=True)

    @property
    def url(self) -> str:
        """For INGEST_ROWS."""
        return f"s3://{BUCKET}/all"

    def command(self) -> list[object]:
        """What starts it."""
        names = "master", "volume", "filer"
        return [
            *(ENVIRONMENT / "bin/weed", "-v=-1", "server", f"-dir={self.home}/data", "-ip=127.0.0.1", "-s3"),
            *(f"-s3.port={self.port}", f"-s3.config={self.home}/s3.json", "-master.volumeSizeLimitMB=1024"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(f"-{name}.port={port}" for name, port in zip(names, self.ports)),
            *(f"-{name}.port.grpc={port}" for name, port in zip((*names, "s3"), self.ports[3:])),
        ]

    def start(self) -> None:
        """Start it, and make the bucket."""
        super().start()
        harness.poll(self.make, 60, "a bucket", interval=0.2)

    def make(self) -> bool:
        """Make the bucket. Raises: OSError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[2], timeout=10)
        with contextlib.closing(connection):
            connection.request("POST", f"/buckets/{BUCKET}/")  # of the filer, where a directory is a bucket
            return connection.getresponse().status in (200, 201, 409)  # 409: it is there


class Kafka(Engine):
    """One broker."""

    missing = kafka.MISSING
    available = staticmethod(kafka.available)

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        address = kafka.Address("127.0.0.1", self.port, harness.free_port())
        kafka.prepare()
        # one broker keeps the state of transactions as long as it lives
        config = {"transaction.state.log.min.isr": 1}
        self.broker = kafka.Broker(home / "broker", 1, [address], kafka.new_id(), config)

    @property
    def url(self) -> str:
        """For INGEST_ROWS."""
        return self.broker.url

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.broker.start()
        self.process = self.broker.process
        harness.poll(self.ready, 60, "an answer of the broker", interval=0.1)

    def ready(self) -> bool:
        """Whether it answers. Raises: KafkaException."""
        from confluent_kafka.admin import AdminClient  # an optional package

        return bool(
            AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0}).list_topics(timeout=2).brokers
        )

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.broker.kill()


@contextlib.contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """One that runs until the block ends. What it needs is in the environment of this process, too."""
    before = {name: os.environ.get(name) for name in engine.env}
    os.environ.update(engine.env)
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
