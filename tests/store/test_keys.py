"""Keys in SQLite. tests/contrib/postgres/test_postgres_keys.py has the same tests for PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.keys_contract import *  # noqa: F403


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ingest.db"
