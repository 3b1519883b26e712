"""The layout of the keys has a number: whoever connects first notes it, and nobody works with another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import client
from redis.exceptions import ConnectionError

from proving.harness import Server, redis_server
from sluice.spool.contract import LAYOUT, LAYOUT_KEY
from sluice.spool.errors import NewerLayout
from sluice.spool.inlet import Inlet
from sluice.spool.inspector import Inspector
from sluice.spool.outlet import Outlet

pytestmark = pytest.mark.contract


def raw(server: Server) -> Any:
    return client.Redis(unix_socket_path=str(server.socket))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def server(running: Server) -> Server:
    """An empty Redis."""
    raw(running).flushall()
    return running


def worker(server: Server) -> None:
    Outlet(str(server.socket)).has_work(["votes"])


def test_a_worker_and_a_gateway_note_the_layout_and_an_operator_does_not(server: Server) -> None:
    Inspector(str(server.socket)).take_snapshot("votes")
    assert not raw(server).exists(LAYOUT_KEY)
    worker(server)
    assert raw(server).get(LAYOUT_KEY) == b"%d" % LAYOUT
    raw(server).delete(LAYOUT_KEY)
    assert accepts(Inlet(str(server.socket)))
    assert raw(server).get(LAYOUT_KEY) == b"%d" % LAYOUT


def accepts(inlet: Inlet) -> bool:
    group = inlet.append("votes", b"x")
    inlet.commit(group)
    return group.refused is None


@pytest.mark.parametrize(
    ("other", "remedy", "error"),
    [(LAYOUT - 1, "start commit fe6a1b22 with it once", ConnectionError), (LAYOUT + 1, "update Sluice", NewerLayout)],
)
def test_nobody_works_with_keys_of_another_layout(
    other: int, remedy: str, error: type[Exception], server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    raw(server).set(LAYOUT_KEY, other)
    with pytest.raises(error, match=remedy):
        worker(server)
    with pytest.raises(ConnectionError, match=remedy):
        Inspector(str(server.socket)).release("votes")
    inlet = Inlet(str(server.socket))
    assert not accepts(inlet) and not accepts(inlet)
    assert remedy in caplog.text
    assert raw(server).keys() == [LAYOUT_KEY.encode()]
    raw(server).set(LAYOUT_KEY, LAYOUT)
    assert accepts(inlet)


def test_a_redis_that_takes_no_writes_has_no_layout_yet(server: Server) -> None:
    raw(server).config_set("min-replicas-to-write", 1)
    worker(server)
    raw(server).config_set("min-replicas-to-write", 0)
    assert not raw(server).exists(LAYOUT_KEY)
