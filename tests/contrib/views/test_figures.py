"""The figures of the views, and what top, the status page and the metrics make of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from contrib_support.views_site import NOON, Site, site
from proving import harness
from sluice import settings
from sluice.contrib.page import exporter
from sluice.contrib.page.page import Page
from sluice.contrib.page.top import Dashboard as Top
from sluice.contrib.views import Tally, contract
from sluice.ledger import Observer
from sluice.store.types import Epoch
from sluice.streams.record import Gps, Vote

pytestmark = pytest.mark.contract

FOLLOWED = ["/gps/latest", "/gps/trail", "/metrics/latest", "/notices/all", "/notices/feed", "/notices/object"]
UNAVAILABLE = "the views' Redis is unavailable: "


@pytest.fixture
def here() -> Iterator[Site]:
    """Three devices, and a kept tally."""
    with site(None) as found:
        found.put(
            "gps", [Gps(time=(NOON + n) * 10**9, device=device, lat=1.0, lon=1.0) for n, device in enumerate("abc")]
        )
        found.put("votes", [Vote(poll="cookies", choice="oreo")])
        found.caught_up()
        yield found


def ask(here: Site, key: str) -> None:
    """Do as the reader does when a client asks for a tally that is not kept."""
    here.client().zadd(contract.wanted_key("/votes/tally"), {key: time.time() * 1000})
    here.client().rpush(contract.asked_key("/votes/tally"), key)
    harness.poll(lambda: here.client().exists(contract.kept_key("/votes/tally", here.views["/votes/tally"], key)))


def count(here: Site, path: str, **statuses: int) -> None:
    """Count answers as the reader does: s200=3."""
    for status, n in statuses.items():
        here.client().hincrby(contract.READS, f"{path} {status[1:]}", n)


def views(here: Site, observer: Observer | None = None) -> dict[str, dict[str, Any]]:
    """The views' figures, by path."""
    return {one["path"]: one for one in (observer or Observer(here.settings)).look()["contributed"]["views"]}


def test_the_figures_of_a_view_that_follows_rows(here: Site) -> None:
    count(here, "/gps/latest", s200=3, s404=1, s503=2)
    one = views(here)["/gps/latest"]
    assert 0 <= one.pop("lag") < 60
    assert one.pop("bytes") > 0
    assert one == {
        "path": "/gps/latest", "state": "served", "keys": 3, "rows": 3, "refreshes": None,
        "reads": {"200": 3, "404": 1, "503": 2},
    }  # fmt: skip


def test_the_lag_grows_when_the_follower_stands_still(here: Site) -> None:
    assert here.follower
    os.kill(here.follower.pid, signal.SIGSTOP)
    try:
        first = views(here)["/gps/latest"]["lag"]
        harness.poll(lambda: views(here)["/gps/latest"]["lag"] >= first + 0.2)
    finally:
        os.kill(here.follower.pid, signal.SIGCONT)


def test_the_age_of_a_tally_is_that_of_its_counts_and_not_of_unknown_keys(here: Site) -> None:
    view = here.views["/votes/tally"]
    assert isinstance(view, Tally) and view.period == 1
    assert views(here)["/votes/tally"]["lag"] is None
    ask(here, "nobody")
    assert views(here)["/votes/tally"]["lag"] is None
    ask(here, "cookies")
    one = views(here)["/votes/tally"]
    assert 0 <= one["lag"] < 2
    assert one["refreshes"] >= 2
    assert one["keys"] in (1, 2)  # those that nobody asks for again are forgotten


def test_a_view_is_building_then_served_or_full(here: Site) -> None:
    assert here.follower
    here.follower.send_signal(signal.SIGTERM)
    here.follower.wait()
    client = here.client()
    client.delete(contract.state_key("/gps/latest"))
    client.set(contract.state_key("/gps/trail"), contract.FULL)
    found = views(here)
    assert [found[path]["state"] for path in FOLLOWED] == ["building", "full", *["served"] * 4]
    assert (found["/gps/trail"]["keys"], found["/gps/trail"]["lag"]) == (None, None)


def test_with_views_off_no_display_shows_any(here: Site) -> None:
    here.env["INGEST_VIEWS"] = "off"
    here.settings = settings.load_settings(harness.environment(here.tmp, here.env))
    here.kill(here.redis)
    observer = Observer(here.settings)
    found = observer.look()
    assert found["contributed"]["views"] == []
    assert not any(line.startswith(UNAVAILABLE) for line in found["trouble"])
    assert Page(here.settings).look()["views"] == []
    assert b"sluice_view" not in exporter.exposition(found)
    assert "reads/s" not in screen(Top(observer, Console(width=80)))


def screen(top: Top) -> str:
    """The frame as text."""
    with top.console.capture() as captured:
        top.console.print(top.frame())
    return captured.get()


@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
def test_every_display_says_that_the_views_redis_is_unavailable(here: Site, how: str) -> None:
    cell = here.settings.cell
    here.store.publish_figures(cell, {"every": 5, "streams": []}, [Epoch("gps", "run", cell, 1, 3, 0)])
    observer, page = Observer(here.settings), Page(here.settings)
    assert views(here, observer)["/gps/latest"]["state"] == "served"
    assert here.redis
    os.kill(here.redis.pid, signal.Signals[how])
    if how == "SIGKILL":
        here.redis.wait()
    try:
        found = observer.look()
        assert {one["state"] for one in found["contributed"]["views"]} == {"unavailable"}
        assert [line for line in found["trouble"] if line.startswith(UNAVAILABLE)]
        assert found["streams"]["gps"]["stored"] == 3  # the other figures are there
        shown = page.look()["views"][0]
        assert shown == {
            "path": "/gps/latest", "state": "unavailable", "keys": None, "lag": None, "refreshes": None,
            "reads_rate": None, "hits": None,
        }  # fmt: skip
        text = exporter.exposition(found)
        assert b'sluice_view_served{view="/gps/latest"} 0.0' in text
        assert b"sluice_view_lag_seconds{" not in text
        top = screen(Top(observer, Console(width=80)))
        assert "/gps/latest" in top and "unavailable" in top and f"! {UNAVAILABLE}" in top
    finally:
        if how == "SIGSTOP":
            os.kill(here.redis.pid, signal.SIGCONT)
        else:
            here.start_redis()
    harness.poll(lambda: views(here, observer)["/gps/latest"]["state"] == "served")


def test_top_and_the_page_show_rates_of_reads_and_hits(here: Site) -> None:
    top, page = Top(Observer(here.settings), Console(width=80)), Page(here.settings)
    screen(top), page.look()
    count(here, "/gps/latest", s200=3000, s404=1000)
    ask(here, "cookies")
    lines = {line.split()[0]: line for line in screen(top).splitlines() if line.startswith("/")}
    assert max(map(len, lines.values())) <= 80
    name, state, reads, share, percent, keys, *lag = lines["/gps/latest"].split()
    assert (name, state, share, percent, keys, lag[1:]) == ("/gps/latest", "served", "75", "%", "3", ["s"])
    assert float(reads.replace(",", "")) > 0
    assert int(lines["/votes/tally"].split()[-1]) >= 1
    shown = {one["path"]: one for one in page.look()["views"]}
    assert shown["/gps/latest"]["hits"] == 0.75
    assert shown["/gps/latest"]["reads_rate"] > 0
    assert (shown["/gps/trail"]["hits"], shown["/gps/trail"]["reads_rate"]) == (None, 0)
    page = Page(here.settings)
    page.look()
    here.client().delete(contract.READS)  # as after a restart of the views' Redis
    shown = {one["path"]: one for one in page.look()["views"]}
    assert (shown["/gps/latest"]["hits"], shown["/gps/latest"]["reads_rate"]) == (None, None)


def test_the_metrics_of_the_views(here: Site) -> None:
    count(here, "/gps/latest", s200=3, s404=1)
    ask(here, "cookies")
    lines = exporter.exposition(Observer(here.settings).look()).decode().splitlines()
    for line in (
        'sluice_view_reads_total{status="200",view="/gps/latest"} 3.0',
        'sluice_view_reads_total{status="404",view="/gps/latest"} 1.0',
        'sluice_view_served{view="/gps/latest"} 1.0',
        'sluice_view_keys{view="/gps/latest"} 3.0',
        'sluice_view_keys{view="/votes/tally"} 1.0',
    ):
        assert line in lines
    names = {line.partition(" ")[0] for line in lines}
    assert 'sluice_view_refreshes_total{view="/votes/tally"}' in names
    assert 'sluice_view_refreshes_total{view="/gps/latest"}' not in names
    assert {f'sluice_view_lag_seconds{{view="{path}"}}' for path in (*FOLLOWED, "/votes/tally")} <= names


def test_the_memory_is_about_that_of_the_keys(here: Site) -> None:
    notice: Any = here.streams["notices"].record
    here.put("notices", [notice(user="jane", kind="like", object=n, note={"text": "x" * 1000}) for n in range(4)])
    here.caught_up()
    ask(here, "cookies")
    found, client = views(here), here.client()
    generation = client.get(contract.state_key("/notices/feed")).decode()
    used = client.memory_usage(contract.generation_prefix("/notices/feed", generation) + "jane")
    assert found["/notices/feed"]["bytes"] == pytest.approx(used, rel=0.25)
    used = client.memory_usage(contract.kept_key("/votes/tally", here.views["/votes/tally"], "cookies"))
    assert found["/votes/tally"]["bytes"] == pytest.approx(used, rel=0.25)
    assert found["/metrics/latest"]["bytes"] == 0


def test_a_view_that_refuses_new_keys_is_shown_as_crowded(here: Site) -> None:
    client = here.client()
    client.set(contract.crowded_key("/gps/latest"), client.get(contract.state_key("/gps/latest")))
    assert {path: one["state"] for path, one in views(here).items() if one["state"] != "served"} == {
        "/gps/latest": "crowded"
    }
