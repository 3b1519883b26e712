"""Kafka in the list's place, and as a destination of rows."""

from __future__ import annotations

from typing import Any

from sluice.contrib.urls import HOST, LOGIN
from sluice.registry import Contribution, Destination, Spool

QUERY = r"(?:partitions=[1-9][0-9]{0,4}|replicas=[1-9][0-9]?|properties=/[^&#\s]+|[a-z]+(?:\.[a-z]+)+=[^&#\s]*)"
URL = rf"kafka://(?:{LOGIN})?{HOST}(?:,{HOST})*(?:/[\w.-]{{1,100}})?(?:\?{QUERY}(?:&{QUERY})*)?"
FORM = "kafka://HOST:PORT,HOST:PORT"


def check_settings(values: dict[str, Any]) -> None:
    """Raises: SettingError for settings that Kafka in the list's place excludes."""
    from sluice.settings import SettingError  # which imports the registers

    if not values["spool"].startswith("kafka://"):
        return
    if values["runtime"] == "pypy":
        raise SettingError("INGEST_SPOOL=kafka://… needs INGEST_RUNTIME=cpython: its client does not run on PyPy.")
    if values["replicas"]:
        raise SettingError("INGEST_REPLICAS is for Redis: in INGEST_SPOOL=kafka://…?replicas=N, N counts all replicas.")


CONTRIBUTION = Contribution(
    page="protocol/spool.md",
    settle="sluice.contrib.kafka.register:check_settings",
    spools={
        "kafka": Spool(
            "sluice.contrib.kafka", "kafka", URL, f"{FORM}, or kafka://…?partitions=N&replicas=N&properties=/PATH",
            lane="sluice.contrib.kafka.lane.KafkaLane", is_redis=False, max_body=60 << 20,
        )
    },
    destinations={"kafka": Destination("sluice.contrib.kafka.topics:Topics", "kafka", FORM, URL)},
)  # fmt: skip
