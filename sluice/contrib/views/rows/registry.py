"""The databases that views read are those that workers store in; registers name the class that reads."""

from __future__ import annotations

from sluice import registry
from sluice.contrib.views.rows.source import RowSource
from sluice.streams.registry import Stream


def open_row_source(url: str, streams: dict[str, Stream]) -> RowSource:
    """What reads the rows of a store's URL; it connects with the first call."""
    source: RowSource = registry.load_target(registry.of_url("row_sources", url))(url, streams)
    return source
