"""The destinations of rows of an installation: what the drill reads from them. The ledger is in SQLite."""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proving.store import ALIVE, EVENTS, Rows, Sqlite
from sluice.store.types import Unavailable


class Elsewhere(Sqlite, ABC):
    """Rows in a destination, and the ledger in SQLite. others: where rows went while INGEST_ROWS named them."""

    def __init__(self, url: str) -> None:
        """url: INGEST_STORE."""
        super().__init__(url)
        self.others: list[Elsewhere] = []

    def tables(self, stream: str, columns: list[str]) -> Any:
        """The rows of a stream, wherever they are, as a table of Arrow. Raises: Unavailable."""
        import pyarrow as pa

        found = [self.table(stream, columns)]
        for other in self.others:
            with contextlib.suppress(Unavailable):  # it has none
                found.append(other.table(stream, columns))
        return pa.concat_tables(found, promote_options="permissive")

    @abstractmethod
    def table(self, stream: str, columns: list[str]) -> Any:
        """The rows of a stream as a table of Arrow. Raises: Unavailable."""

    def alone(self) -> bool:
        """False: a copy of the database has no rows."""
        return False

    def unpublished(self) -> int:
        """The number of objects that a worker may still publish. Raises: Unavailable."""
        return self.number("SELECT count(*) FROM batches_objects")

    def unexplained(self, stream: str) -> int:
        """Those of ALIVE that are no rows."""
        rows: int = self.tables(stream, ["seq"]).num_rows
        return self.number(ALIVE.format(stream)) - rows

    def rows(self, stream: str, run: str, above: int = 0) -> Rows:
        """The stored events of a drill in a stream, in the order of the list. above: of later batches than this one."""
        number, name, more = EVENTS[stream]
        pattern = re.compile(re.escape(run) + (r"\..*" if more else ""))
        found = self.tables(stream, [number, name, "received_at", "batch", "seq"]).sort_by("seq")
        for part in found.to_batches(10_000):
            seconds = part.column("received_at").view("int64").to_pylist()
            rows = zip(*(part.column(each).to_pylist() for each in (number, name, "batch")), seconds, strict=True)
            for event, which, batch, received in rows:
                if batch > above and pattern.fullmatch(which):
                    yield int(event), received / 1e6


class Parquet(Elsewhere):
    """Rows in Parquet files, as pyarrow reads them."""

    name = "Parquet"

    def __init__(self, url: str, rows: str, env: Mapping[str, str]) -> None:
        """url, rows: INGEST_STORE, INGEST_ROWS. env: what clients of the destination need in the environment."""
        super().__init__(url)
        self.directory = Path(rows.removeprefix("parquet://"))

    def table(self, stream: str, columns: list[str]) -> Any:
        """See `Elsewhere`. It is read again if files were merged meanwhile."""
        from pyarrow import ArrowInvalid, dataset

        for _ in range(100):
            with contextlib.suppress(FileNotFoundError, ArrowInvalid):
                return dataset.dataset(self.directory / stream, format="parquet").to_table(columns)
        raise Unavailable(f"{self.directory}: there is no {stream} yet")


class Delta(Elsewhere):
    """Rows in an object store, as a reader of Delta Lake finds them."""

    name = "S3"

    def __init__(self, url: str, rows: str, env: Mapping[str, str]) -> None:
        """See `Parquet`."""
        super().__init__(url)
        self.place, self.env = rows, dict(env)

    def table(self, stream: str, columns: list[str]) -> Any:
        """See `Elsewhere`."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return DeltaTable(f"{self.place}/{stream}", storage_options=self.env).to_pyarrow_table(columns=columns)
        except (DeltaError, OSError) as error:
            raise Unavailable(str(error)) from None


class ClickHouse(Elsewhere):
    """Rows in ClickHouse, as it counts them."""

    name = "ClickHouse"

    def __init__(self, url: str, rows: str, env: Mapping[str, str]) -> None:
        """See `Parquet`."""
        super().__init__(url)
        self.server = urlsplit(rows)

    def table(self, stream: str, columns: list[str]) -> Any:
        """See `Elsewhere`."""
        import clickhouse_connect
        from clickhouse_connect.driver.exceptions import ClickHouseError

        try:
            client = clickhouse_connect.get_client(
                host=self.server.hostname, port=self.server.port, database=self.server.path[1:], query_retries=0
            )
            with contextlib.closing(client):
                return client.query_arrow(f"SELECT {', '.join(columns)} FROM {stream}", use_strings=True)  # noqa: S608
        except (ClickHouseError, OSError) as error:
            raise Unavailable(str(error)) from None


class Topics(Elsewhere):
    """Rows in Kafka, as a consumer gets them that reads committed."""

    name = "Kafka"

    def __init__(self, url: str, rows: str, env: Mapping[str, str]) -> None:
        """See `Parquet`."""
        super().__init__(url)
        parts = urlsplit(rows)
        self.brokers, self.prefix = parts.netloc, parts.path[1:] or "rows"

    def table(self, stream: str, columns: list[str]) -> Any:
        """See `Elsewhere`."""
        import pyarrow as pa
        from confluent_kafka import KafkaException

        try:
            rows = [*consumed(self.brokers, f"{self.prefix}.{stream}")]
        except KafkaException as error:
            raise Unavailable(str(error)) from None
        found = {name: [row[name] for row in rows] for name in columns}
        if "received_at" in found:
            found["received_at"] = [datetime.fromisoformat(at) for at in found["received_at"]]
        return pa.table(found)


def consumed(brokers: str, topic: str) -> Iterator[dict[str, Any]]:
    """The values of all committed records of a topic. Raises: KafkaException."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "drill",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }  # fmt: skip
    )
    with contextlib.closing(consumer):
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        left = set(partitions)
        while left:
            message: Any = consumer.poll(10)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            if message.error() is None:
                yield json.loads(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise KafkaException(message.error())


DESTINATIONS: dict[str, Callable[[str, str, Mapping[str, str]], Elsewhere]] = {
    "parquet": Parquet,
    "s3": Delta,
    "clickhouse": ClickHouse,
    "kafka": Topics,
}
