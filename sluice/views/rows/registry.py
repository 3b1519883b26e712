"""The databases that views read: a line each."""

from __future__ import annotations

from importlib import import_module

from sluice.streams.registry import Stream
from sluice.views.rows.source import RowSource

ROW_SOURCES = {
    "sqlite": "sluice.views.rows.sqlite:SqliteRows",
    "postgresql": "sluice.views.rows.postgres:PostgresRows",
    "postgres": "sluice.views.rows.postgres:PostgresRows",
}


def open_row_source(url: str, streams: dict[str, Stream]) -> RowSource:
    """What reads the rows of a store's URL; it connects with the first call."""
    module, _, name = ROW_SOURCES[url.partition(":")[0]].partition(":")
    source: RowSource = getattr(import_module(module), name)(url, streams)
    return source
