"""The destinations of INGEST_ROWS: a line each. A destination is imported when its scheme is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from sluice import settings
from sluice.contrib.destinations.destination import Destination
from sluice.contrib.destinations.outbox import Outbox
from sluice.parsers import HOST, KAFKA_URL, LOGIN, ByStream
from sluice.streams.registry import Stream


class Kind(NamedTuple):
    """A kind of destination.

    target: "module:Class". form: how a URL is written. pattern: of its URLs. library: `bin/provision TARGET` installs
    it. stream: the only one that it takes, if it is not for all. column: that it adds to those of a table.
    """

    target: str
    form: str
    pattern: str
    library: str = ""
    stream: str = ""
    column: str = ""


DESTINATIONS = {
    "parquet": Kind(
        "sluice.contrib.destinations.parquet:Parquet", "parquet:///DIRECTORY", r"parquet:///[^?#]+", "parquet", column="hour"
    ),
    "s3": Kind(
        "sluice.contrib.destinations.delta:Delta", "s3://BUCKET/PREFIX", r"s3://[\w.-]+(?:/[\w./=-]+)?", "s3", column="hour"
    ),
    "clickhouse": Kind(
        "sluice.contrib.destinations.clickhouse:ClickHouse", "clickhouse://USER:PASSWORD@HOST:PORT/DATABASE",
        rf"clickhouse://(?:{LOGIN})?{HOST}/\w+(?:\?secure)?", "clickhouse", column="object",
    ),
    "kafka": Kind("sluice.contrib.kafka.topics:Topics", "kafka://HOST:PORT,HOST:PORT", KAFKA_URL, "kafka"),
    "statsd": Kind(
        "sluice.contrib.destinations.statsd:Statsd", "metrics=statsd://HOST:PORT", rf"statsd://{HOST}", stream="metrics"
    ),
}  # fmt: skip


def open_elsewhere(rows: ByStream[str | None], streams: Mapping[str, Stream]) -> Outbox:
    """Where the rows of these streams go that are in no table, and what waits there. Raises: SettingError."""
    return Outbox({name: open_destination(url, streams[name]) for name in streams if (url := rows.of(name))})


def check_rows(rows: ByStream[str | None], streams: Mapping[str, Stream]) -> None:
    """Check the URLs of INGEST_ROWS, without the libraries of their destinations. Raises: SettingError."""
    for name, stream in streams.items():
        if url := rows.of(name):
            kind_of(url, stream)


def kind_of(url: str, stream: Stream) -> Kind:
    """The kind of destination that a URL names. Raises: SettingError if a stream cannot have it."""
    kind = DESTINATIONS.get(url.partition(":")[0])
    shown = f"INGEST_ROWS={settings.without_password(url)!r} is invalid for {stream.name}"
    if kind is None or not re.fullmatch(kind.pattern, url, re.ASCII) or kind.stream not in ("", stream.name):
        forms = ", ".join(kind.form for kind in DESTINATIONS.values())
        raise settings.SettingError(f"{shown}: expected store or one of {forms}.")
    if kind.column and kind.column in map(str.lower, stream.record.__struct_fields__):
        raise settings.SettingError(f"{shown}: it has a field {kind.column}, and the destination has such a column.")
    return kind


def open_destination(url: str, stream: Stream) -> Destination:
    """The destination of a URL. Raises: SettingError if it is invalid, or a library is not installed."""
    kind = kind_of(url, stream)
    module, _, name = kind.target.partition(":")
    try:
        destination: Destination = getattr(import_module(module), name)(url, stream)
    except ImportError as error:
        shown = f"INGEST_ROWS={settings.without_password(url)}"
        problem = f"{shown} needs {error.name}: bin/provision {kind.library} installs it."
        raise settings.SettingError(problem) from None
    return destination
