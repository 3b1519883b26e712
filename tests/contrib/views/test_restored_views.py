"""The views follow a database that was restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib_support.views_site import NOON, site
from proving.harness import poll
from proving.postgres import Postgres, postgres_server
from sluice.store import copies
from sluice.streams.record import Gps

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(fsync="off") as found:
        yield found


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_views_follow_the_restored_database(kind: str, tmp: Path, request: pytest.FixtureRequest) -> None:
    def moved(second: int) -> Gps:
        return Gps(time=(NOON + second) * 10**9, device="bike", lat=1.5, lon=float(second))

    with site(request.getfixturevalue("server") if kind == "postgres" else None) as here:
        here.put("gps", [moved(1), moved(2)])
        here.caught_up()
        copies.backup_store(here.url, tmp / "copy", lambda share: None)
        here.put("gps", [moved(3)])
        here.caught_up()
        copies.restore_store(here.url, tmp / "copy", True, lambda share: None)
        # the views of each stream are built anew when the follower next looks at it
        poll(lambda: here.equal() and here.differences() == {}, what="views of the restored database")
        assert len(here.rows("gps")) == 2
        here.put("gps", [moved(4)])  # in PostgreSQL and SQLite it gets the id of the batch that is gone
        here.caught_up()
