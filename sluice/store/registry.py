"""The databases: SQLite, and those of contributions. A backend is imported when its scheme is used."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from sluice import registry
from sluice.registry import Database
from sluice.settings import Settings
from sluice.store.store import RowDestinations, Store
from sluice.store.types import Unavailable
from sluice.streams.registry import Stream

SQLITE = Database("sluice.store.sqlite", "", "SQLite", "Sqlite", "sqlite:///.+", "sqlite:///PATH", b"SQLite format 3\0")


def database_of(url: str) -> Database:
    found: Database = registry.of_url("databases", url) or SQLITE
    return found


def module_of(database: Database, name: str) -> ModuleType:
    """A module of the database's package. Raises: Unavailable, if its driver is not installed."""
    try:
        found: ModuleType = database.load(name)
        return found
    except (ImportError, registry.NotInstalled) as error:
        raise Unavailable(error) from error


def check_store(url: str) -> None:
    """Raises: SettingError if no database can have this address."""
    if check := database_of(url).check:
        with contextlib.suppress(ImportError):  # without the driver; who opens the store says so
            registry.load_target(check)(url)


def open_store(url: str, streams: Mapping[str, Stream], **how: Any) -> Store[Any]:
    """The store of a URL. how: see `Store`.

    Raises: Unavailable if the database cannot be reached, or its driver is not installed; SettingError, see above.
    """
    database = database_of(url)
    store: Store[Any] = getattr(module_of(database, "store"), database.store)(url, streams, **how)
    store.database = database
    return store


def open_destinations(s: Settings, streams: Mapping[str, Stream]) -> RowDestinations:
    """Where the rows go that are in no table. Raises: SettingError."""
    for open_rows in registry.load_hooks("rows"):
        opened: RowDestinations = open_rows(s, streams)
        return opened
    return RowDestinations()
