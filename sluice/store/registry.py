"""The databases: a line each. A backend is imported when its scheme is used."""

from __future__ import annotations

import contextlib
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from sluice.parsers import FOREVER, Keep
from sluice.store.store import Elsewhere, Store
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream


class Database(NamedTuple):
    """A backend. folder: its modules. store: its class in the module `store`. magic: the beginning of a copy.

    A module of the folder's name in `sluice.contrib.views.rows` has the class STORE + `Rows`, from which views read.
    """

    name: str
    schemes: tuple[str, ...]
    folder: str
    store: str
    magic: bytes

    def module(self, name: str) -> ModuleType:
        """Raises: Unavailable, if its driver is not installed."""
        try:
            return import_module(f"{self.folder}.{name}")
        except ImportError as error:
            raise Unavailable(error) from error


DATABASES = (
    Database("SQLite", ("sqlite",), "sluice.store.sqlite", "Sqlite", b"SQLite format 3\0"),
    Database("PostgreSQL", ("postgresql", "postgres"), "sluice.contrib.postgres", "Postgres", b"PGDMP"),
)


def database_of(url: str) -> Database:
    return next(each for each in DATABASES if url.partition("://")[0] in each.schemes)


def check_store(url: str) -> None:
    """Raises: SettingError if no database can have this address."""
    database = database_of(url)
    with contextlib.suppress(Unavailable):  # without the driver; who opens the store says so
        getattr(database.module("store"), database.store).check(url)


def open_store(
    url: str, streams: dict[str, Stream], make: bool = True, keep: Keep = FOREVER, elsewhere: Elsewhere | None = None
) -> Store[Any]:
    """The store of a URL. make: create the database and its tables, or add missing columns.

    keep: INGEST_KEEP. elsewhere: of INGEST_ROWS; none: all rows are in tables.
    Raises: Unavailable if the database cannot be reached, or its driver is not installed; SettingError, see above.
    """
    database = database_of(url)
    backend = getattr(database.module("store"), database.store)
    store: Store[Any] = backend(url, streams, make, keep, elsewhere or Elsewhere())
    return store
