"""Keys of layout 2, as commit 4e06d3b wrote them, are brought up to date once, whoever connects first."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import client
from redis.exceptions import ConnectionError, ResponseError

from proving.harness import Server, redis_server
from sluice.spool.contract import COUNTS, LAYOUT, LAYOUT_KEY, Keys
from sluice.spool.errors import NewerLayout
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector, Snapshot
from sluice.spool.outlet import Outlet

pytestmark = pytest.mark.contract

# Bodies 1 and 2 of votes are stored, 3 is in a claim, 4 was purged, 5 is READY. gps has no claim yet, logs only a list
# that a tool made
DUMP = Path(__file__).with_name("layout-2.jsonl")
VOTES, GPS = Keys.of("votes"), Keys.of("gps")


def raw(server: Server) -> Any:
    return client.Redis(unix_socket_path=str(server.socket))


@pytest.fixture
def server(tmp: Path) -> Iterator[Server]:
    """A Redis with the keys of an installation of layout 2."""
    with redis_server(tmp) as running:
        for line in DUMP.read_text().splitlines():
            raw(running).execute_command(*json.loads(line))
        yield running


def gateway(server: Server) -> None:
    inlet = Inlet(str(server.socket))
    group = inlet.append("votes", b'{"choice":"6"}')
    inlet.commit(group)
    assert group.refused is None


def worker(server: Server) -> None:
    Outlet(str(server.socket)).has_work(["votes"])


def both(server: Server) -> None:
    threads = [threading.Thread(target=worker, args=(server,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    gateway(server)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("first", [gateway, worker, both])
def test_the_keys_are_brought_up_to_date_once(first: Callable[[Server], None], server: Server) -> None:
    db = raw(server)
    epochs = db.zrange("ingest:{votes}:spools", 0, -1, withscores=True)
    commits = db.hget(COUNTS, "batch_bodies 8")
    first(server)
    if first is worker:
        gateway(server)
    assert int(db.get(LAYOUT_KEY)) == LAYOUT
    assert (db.get(VOTES.taken), db.get(VOTES.purged)) == (b"4", b"1")
    assert db.zrange(VOTES.epochs, 0, 0, withscores=True) == epochs
    assert db.exists(GPS.epochs) and not db.exists(GPS.taken)
    assert not db.keys("ingest:{*}:spools")
    assert db.hget(COUNTS, "commit_bodies 8") == commits and not db.hexists(COUNTS, "batch_bodies 8")

    votes = Inspector(str(server.socket)).snapshot("votes")
    assert (votes.taken, votes.ready, votes.purged, sum(votes.claims.values())) == (4, 2, 1, 1)
    (claim,) = votes.claims
    old, new = votes.history  # this Redis has another history than the one that was dumped
    assert (old.epoch, old.first, old.end) == (claim.partition(":")[0], 1, 6)
    assert (new.first, new.end) == (6, 7)

    outlet = Outlet(str(server.socket))
    fifth, sixth = outlet.claim("votes"), outlet.claim("votes")
    assert fifth and sixth
    assert [(each.epoch, each.first, each.count) for each in (fifth, sixth)] == [(old.epoch, 5, 1), (new.epoch, 6, 1)]
    assert list(outlet.items(fifth)) == [b'{"choice":"5"}']
    Inspector(str(server.socket)).release("votes")
    held = [outlet.claim("votes") for _ in range(3)]
    assert sorted(each.first for each in held if each) == [3, 5, 6]
    for each in held:
        assert each
        outlet.settle(each)
    assert Inspector(str(server.socket)).snapshot("votes").claims == {}


def test_a_process_of_before_gets_an_error_instead_of_numbers_that_others_have(server: Server) -> None:
    worker(server)
    for stream in "votes", "gps":
        with pytest.raises(ResponseError, match="WRONGTYPE"):  # the first command of its scripts `mark` and `claim`
            raw(server).get(f"ingest:{{{stream}}}:claimed")
        assert 0 < raw(server).ttl(f"ingest:{{{stream}}}:claimed") <= 86400


def test_an_operator_changes_no_keys_of_another_layout(server: Server) -> None:
    before = sorted(raw(server).keys())
    with pytest.raises(ConnectionError, match="layout 2, and this version knows 3: a gateway"):
        Inspector(str(server.socket)).purge("votes", Snapshot(0, 5))
    assert sorted(raw(server).keys()) == before
    raw(server).set(LAYOUT_KEY, LAYOUT + 1)
    with pytest.raises(ConnectionError, match="update Sluice"):
        Inspector(str(server.socket)).snapshot("votes")


def test_a_gateway_refuses_bodies_and_a_worker_ends_when_the_layout_is_newer(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    raw(server).set(LAYOUT_KEY, LAYOUT + 1)
    with pytest.raises(NewerLayout):
        worker(server)
    inlet = Inlet(str(server.socket))
    for _ in range(2):
        group = inlet.append("votes", b"x")
        inlet.commit(group)
        assert group.refused
    assert "update Sluice" in caplog.text
    raw(server).set(LAYOUT_KEY, LAYOUT)
    group = inlet.append("votes", b"x")
    inlet.commit(group)
    assert group.refused is None


def test_a_layout_that_cannot_be_brought_up_to_date_is_not_used(server: Server) -> None:
    raw(server).config_set("min-replicas-to-write", 1)
    with pytest.raises(ConnectionError, match="its keys have layout 2"):
        worker(server)
    raw(server).config_set("min-replicas-to-write", 0)
    worker(server)
    assert int(raw(server).get(LAYOUT_KEY)) == LAYOUT
