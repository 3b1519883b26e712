"""The destinations: a line each."""

from __future__ import annotations

from collections.abc import Mapping

from sluice import settings
from sluice.elsewhere.destination import Destination
from sluice.streams.registry import Stream


def open_destinations(rows: settings.Rows, streams: Mapping[str, Stream]) -> dict[str, Destination]:
    """The destinations of the streams that have one. Raises: SettingError if a library is not installed."""
    return {
        name: open_destination(url, stream) for name, stream in streams.items() if (url := rows.of(name)) is not None
    }


def open_destination(url: str, stream: Stream) -> Destination:
    """The destination of a URL that the setting accepts."""
    scheme, _, rest = url.partition("://")
    try:
        if scheme == "parquet":
            from sluice.elsewhere.parquet import Parquet

            return Parquet(rest, stream)
        if scheme == "s3":
            from sluice.elsewhere.delta import Delta

            return Delta(url, stream)
        if scheme == "kafka":
            from sluice.elsewhere.topics import Topics

            return Topics(url, stream)
        if scheme == "clickhouse":
            from sluice.elsewhere.clickhouse import ClickHouse

            return ClickHouse(url, stream)
    except ImportError as error:
        problem = (
            f"INGEST_ROWS={settings.without_password(url)} needs {error.name}: bin/provision {scheme} installs it."
        )
        raise settings.SettingError(problem) from None
    from sluice.elsewhere.statsd import Statsd

    host, _, port = rest.rpartition(":")
    return Statsd(host.strip("[]"), int(port), stream)
