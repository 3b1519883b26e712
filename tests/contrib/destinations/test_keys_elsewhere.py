"""Keys of rows that are in no table."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.contrib.destinations.register import parse_rows
from sluice.contrib.destinations.registry import open_destinations
from sluice.streams.built_in import STREAMS
from support.keys_contract import Here, fix

pytestmark = pytest.mark.contract


def test_rows_elsewhere_have_their_keys_in_the_database(tmp_path: Path) -> None:
    row_destinations = open_destinations(parse_rows(f"parquet://{tmp_path}/rows"), STREAMS)
    here = Here(f"sqlite:///{tmp_path}/ingest.db", row_destinations=row_destinations)
    assert here.put("gps", fix("a"), fix("a"), fix("b")) == (2, 0)
    assert here.put("gps", fix("b"), fix("c")) == (1, 0)
    assert here.store.read_ledger("gps").duplicate == 2
