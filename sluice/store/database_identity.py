"""Which database has what a cell has stored: no verb takes another one for it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sluice import settings
from sluice.base.files import read_file, replace_file
from sluice.settings import SettingError, Settings


def note_identity(home: Path, identity: str) -> None:
    """Note the identity of the database in INGEST_HOME. A home that cannot be written to has none."""
    file = home / settings.STORE
    with contextlib.suppress(OSError):
        if noted_identity(home) != identity:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(file, f"{identity}\n")


def noted_identity(home: Path) -> str:
    """The identity of the database; "" if none is noted."""
    with contextlib.suppress(OSError):
        return read_file(home / settings.STORE).strip()
    return ""


def has_stored(s: Settings) -> bool:
    """Whether the cell has stored into its database, as its home knows."""
    same = settings.of_last_start(s.home).get("INGEST_STORE") == s.given.get("INGEST_STORE")
    return same and bool(noted_identity(s.home))


def require_file(s: Settings) -> None:
    """Raises: SettingError if the file of SQLite is missing into which the cell has stored: a new one would be made."""
    file = s.store.removeprefix("sqlite:///")
    if s.store.startswith("sqlite:") and has_stored(s) and not os.path.lexists(file):
        raise SettingError(
            f"INGEST_STORE: {file} is missing, where the cell of {s.home} has stored: put it back or mount its disk; "
            f"or remove {s.home / settings.STORE}, for a new database."
        )
