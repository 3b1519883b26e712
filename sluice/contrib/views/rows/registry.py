"""The databases that views read are those that workers store in: `sluice.store.registry` has a line each."""

from __future__ import annotations

from importlib import import_module

from sluice.contrib.views.rows.source import RowSource
from sluice.store.registry import database_of
from sluice.streams.registry import Stream


def open_row_source(url: str, streams: dict[str, Stream]) -> RowSource:
    """What reads the rows of a store's URL; it connects with the first call."""
    database = database_of(url)
    module = import_module(database.view_rows)
    source: RowSource = getattr(module, f"{database.store}Rows")(url, streams)
    return source
