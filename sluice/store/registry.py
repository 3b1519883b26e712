"""The databases: a line each. A backend is imported when its scheme is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sluice.settings import FOREVER, Keep
from sluice.store.store import Elsewhere, Store
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream

STORES = {
    "sqlite": "sluice.store.sqlite.store:Sqlite",
    "postgres": "sluice.store.postgres.store:Postgres",
    "postgresql": "sluice.store.postgres.store:Postgres",
}


def open_store(
    url: str, streams: dict[str, Stream], make: bool = True, keep: Keep = FOREVER, elsewhere: Elsewhere | None = None
) -> Store[Any]:
    """The store of a URL. make: create the database and its tables, or add missing columns.

    keep: INGEST_KEEP. elsewhere: of INGEST_ROWS; none: all rows are in tables.
    Raises: Unavailable if the database cannot be reached, or its driver is not installed.
    """
    module, _, name = STORES[url.partition("://")[0]].partition(":")
    try:
        backend = getattr(import_module(module), name)
    except ImportError as error:
        raise Unavailable(error) from error
    store: Store[Any] = backend(url, streams, make, keep, elsewhere or Elsewhere())
    return store
