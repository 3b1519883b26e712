"""The database of a cell, as a verb opens it: no other one is taken for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.settings import SettingError, Settings
from sluice.store.database_identity import noted_identity
from sluice.store.registry import open_store
from sluice.store.store import Store
from sluice.streams.registry import Stream


def open_cell_store(s: Settings, streams: Mapping[str, Stream], **more: Any) -> Store[Any]:
    """The store of a cell, for a verb: `open_store` without `make`. Raises: as that, and as `require_cell_store`."""
    store = open_store(s.store, streams, make=False, **more)
    try:
        require_cell_store(store, s.home)
    except BaseException:
        store.close()
        raise
    return store


def require_cell_store(store: Store[Any], home: Path) -> None:
    """Raises: SettingError if this is not the database of the cell; Unavailable."""
    if known := noted_identity(home):
        with store.transaction(read=True) as db:
            identity = store.read_identity(db)
        if identity != known:
            raise SettingError(
                f"INGEST_STORE is not the database in which the cell of {home} stores: unset it, or name that one."
            )
