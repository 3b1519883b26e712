"""Destinations of rows that are in no table (INGEST_ROWS), and the outbox from which they are sent."""

from __future__ import annotations

from sluice.contrib.urls import HOST, LOGIN
from sluice.parsers import ByStream, by_stream
from sluice.registry import Contribution, Destination, Setting

STORE = "store"  # the tables of the database
BESIDE = f"{STORE}+"  # before a URL: the rows are in their table, too


def parse_rows(text: str) -> ByStream[str | None]:
    """URLs of destinations; None: a table of the database."""
    between = r"[,\s]+(?=(?:\w+=)?(?:\w+:/|store\b))"  # not the commas between the brokers of a URL
    expected = "store, a URL, or both for streams: gps=parquet:///DIRECTORY,votes=store"
    found = by_stream(text, rf"(?P<url>(?:store\+)?[a-z0-9]+://\S+)|{STORE}", expected, between)
    urls = {name: match["url"] for name, match in found.items()}
    return ByStream(urls.pop("", None), urls)


CONTRIBUTION = Contribution(
    page="protocol/database.md#rows-elsewhere",
    settings={"rows": Setting(parse_rows, STORE, "where rows go instead of a table of the database")},
    destinations={
        "parquet": Destination(
            "sluice.contrib.destinations.parquet:Parquet", "parquet", "parquet:///DIRECTORY", r"parquet:///[^?#]+",
            column="hour",
        ),
        "s3": Destination(
            "sluice.contrib.destinations.delta:Delta", "s3", "s3://BUCKET/PREFIX", r"s3://[\w.-]+(?:/[\w./=-]+)?",
            column="hour",
        ),
        "clickhouse": Destination(
            "sluice.contrib.destinations.clickhouse:ClickHouse", "clickhouse",
            "clickhouse://USER:PASSWORD@HOST:PORT/DATABASE", rf"clickhouse://(?:{LOGIN})?{HOST}/\w+(?:\?secure)?",
            column="object",
        ),
        "statsd": Destination(
            "sluice.contrib.destinations.statsd:Statsd", "", "metrics=statsd://HOST:PORT", rf"statsd://{HOST}",
            stream="metrics",
        ),
    },
    rows="sluice.contrib.destinations.registry:open_rows",
    check="sluice.contrib.destinations.registry:check_destinations",
    chores="sluice.contrib.destinations.outbox:outbox_chores",
    network="sluice.contrib.destinations.start_checks:needs_network",
    places="sluice.contrib.destinations.start_checks:local_places",
)  # fmt: skip
