"""The databases: a line each."""

from __future__ import annotations

from sluice import settings
from sluice.elsewhere.registry import open_destinations
from sluice.settings import FOREVER, IN_TABLES, Keep
from sluice.store.store import Store
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream


def open_store(
    url: str, streams: dict[str, Stream], make: bool = True, keep: Keep = FOREVER, rows: settings.Rows = IN_TABLES
) -> Store:
    """The store of a URL. make: create the database and its tables, or add missing columns.

    keep, rows: INGEST_KEEP, INGEST_ROWS.
    Raises: Unavailable if the database cannot be reached, or its driver is not installed.
    """
    elsewhere = open_destinations(rows, streams)
    if url.startswith("sqlite:///"):
        from sluice.store.sqlite.store import Sqlite

        return Sqlite(url[len("sqlite:///") :], streams, make, keep, elsewhere)
    try:
        from sluice.store.postgres.store import Postgres
    except ImportError as error:
        raise Unavailable(error) from error
    return Postgres(url, streams, make, keep, elsewhere)
