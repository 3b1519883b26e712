"""Declaring views, and the operator's verb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib_support.views_site import NOON, Site, site
from proving import harness
from proving.harness import PATIENCE, PYTHON, ROOT
from sluice import settings
from sluice.contrib import views
from sluice.contrib.views import contract, feed, latest, tally
from sluice.contrib.views.kinds import feed as feeds
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Gps


def load(value: str) -> dict[str, views.View]:
    return views.load_views(settings.load_settings({"INGEST_VIEWS": value}))


def module(tmp: Path, text: str) -> str:
    (tmp / "mine.py").write_text(f"from sluice.contrib.views import feed, latest, tally\n{text}\n")
    return str(tmp / "mine.py")


def test_the_built_in_views_fit_the_built_in_streams() -> None:
    assert load("") == views.VIEWS
    views.check_declarations(views.VIEWS, STREAMS)


def test_off_means_no_views() -> None:
    assert load("off") == {}


def test_the_views_of_a_module_are_added_and_may_replace(tmp: Path) -> None:
    own = module(tmp, 'VIEWS = {"/a": feed("gps", key="device", cap=7), "/gps/trail": latest("gps", key="device")}')
    assert load(own) == views.VIEWS | {
        "/a": feed("gps", key="device", cap=7),
        "/gps/trail": latest("gps", key="device"),
    }


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "the module has no dictionary VIEWS"),
        ("VIEWS = {'/gps': latest('gps', key='device')}", "'/gps': a route has this path"),
        ("VIEWS = {'gps': latest('gps', key='device')}", "a path is"),
        ("VIEWS = {'/a//b': latest('gps', key='device')}", "a path is"),
        ("VIEWS = {'/a/../b': latest('gps', key='device')}", "a path is"),
        ("VIEWS = {'/status/x': latest('gps', key='device')}", "this path has another use"),
        ("VIEWS = {'/x': 5}", "not made by a function of sluice.contrib.views"),
        ("VIEWS = {'/x': feed('gps', key='device', cap=0)}", "cap is an integer from 1 to 1000"),
        ("VIEWS = {'/x': tally('gps', key='device', by='lat', period=0)}", "period is a number of seconds"),
        ("raise OSError('no')", "cannot be imported: OSError: no"),
    ],
)
def test_an_invalid_declaration_is_one_line(tmp: Path, text: str, problem: str) -> None:
    with pytest.raises(settings.SettingError, match=problem.replace("(", ".").replace(")", ".")):
        load(module(tmp, text))


@pytest.mark.parametrize(
    "view, problem",
    [
        (latest("none", key="device"), "there is no stream 'none'"),
        (latest("gps", key="none"), "the stream 'gps' has no field 'none'"),
        (latest("gps", key="device", each=("none",)), "has no field 'none'"),
        (feed("gps", key="device", member=("none",)), "has no field 'none'"),
        (tally("votes", key="poll", by="none"), "has no field 'none'"),
        (latest("gps", key="time"), "cannot be the time"),
    ],
)
def test_a_view_of_an_unknown_stream_or_field_is_one_line(view: views.View, problem: str) -> None:
    with pytest.raises(settings.SettingError, match=problem):
        views.check_declarations({"/x": view}, STREAMS)


@pytest.mark.contract
def test_an_invalid_declaration_stops_the_follower(tmp: Path) -> None:
    own = module(tmp, "VIEWS = {'/x': latest('nothing', key='device')}")
    done = subprocess.run(
        [sys.executable, "-m", "sluice.contrib.views.follow"],
        env=harness.environment(tmp, {"INGEST_VIEWS": own}), cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "sluice: INGEST_VIEWS is invalid: '/x': there is no stream 'nothing'.\n",
    )


@pytest.mark.contract
@pytest.mark.parametrize("runtime", PYTHON)
def test_the_reader_s_half_imports_no_driver(runtime: str) -> None:
    code = (
        "import sys; from sluice import settings; from sluice.contrib import views; "
        "import sluice.contrib.views.contract; "
        "print(len(views.load_views(settings.load_settings({}))), "
        "sorted({'msgspec', 'apsw', 'psycopg', 'redis'} & {*sys.modules}))"
    )
    done = subprocess.run([PYTHON[runtime], "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "4 []\n", done.stderr


@pytest.fixture
def here() -> Iterator[Site]:
    with site(None) as found:
        yield found


def sluice(here: Site, *words: str) -> tuple[int, str]:
    """Run the operator's command; its exit status, and all that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "sluice.ops", "views", *words],
        env=harness.environment(here.tmp, here.env), cwd=ROOT, text=True, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def store(here: Site) -> None:
    for n in range(3):
        here.put("gps", [Gps(time=(NOON + n) * 10**9, device=device, lat=float(n), lon=1.0) for device in "abc"])
    here.caught_up()


@pytest.mark.contract
def test_the_list_shows_keys_memory_lag_and_reads(here: Site) -> None:
    store(here)
    here.client().hset(contract.READS, mapping={"/gps/latest 200": 1999, "/gps/latest 404": 1, "/gps/latest 503": 1})
    status, text = sluice(here)
    assert status == 0
    line = next(line.split() for line in text.splitlines() if line.startswith("/gps/latest "))
    assert line[1:3] == ["served", "3"] and line[4] == "MiB"
    assert line[-3:] == ["2001", "99.9", "%"]  # 99.95, rounded down


@pytest.mark.contract
def test_check_finds_what_was_changed(here: Site) -> None:
    store(here)
    assert sluice(here, "check")[0] == 0
    client = here.client()
    generation = client.get(contract.state_key("/gps/trail")).decode()
    prefix = contract.generation_prefix("/gps/trail", generation)
    items = feeds.decode(client.get(prefix + "a"), False)
    client.set(prefix + "a", feeds.encode_items(items[1:]))
    client.set(prefix + "ghost", feeds.encode_items([(1, b"{}", b"")]))
    status, text = sluice(here, "check", "/gps/trail")
    assert (status, text) == (1, "/gps/trail: 4 keys, 2 different\n  a\n  ghost\n")
    assert sluice(here, "check", "/gps/latest") == (0, "/gps/latest: 3 keys, 0 different\n")
    status, text = sluice(here, "rebuild", "/gps/trail")
    assert (status, text) == (0, "sluice: building\n/gps/trail: built\n")
    assert sluice(here, "check", "/gps/trail") == (0, "/gps/trail: 3 keys, 0 different\n")


@pytest.mark.contract
def test_without_a_follower_or_redis_the_verb_says_so(here: Site) -> None:
    store(here)
    assert sluice(here, "check", "/none")[0] == 2
    assert here.follower
    os.kill(here.follower.pid, signal.SIGTERM)
    assert here.follower.wait(PATIENCE) == 0
    assert sluice(here, "rebuild") == (1, "sluice: no follower runs\n")
    here.kill(here.redis)
    status, text = sluice(here)
    assert status == 1 and text.startswith("sluice: the views' Redis is unavailable")


@pytest.mark.contract
def test_a_view_that_is_not_served_is_neither_compared_nor_waited_for(here: Site) -> None:
    store(here)
    assert sluice(here, "rebuild", "/votes/tally") == (0, "A tally is not built: it is counted when a client asks.\n")
    client = here.client()
    with here.paused_follower():  # as it leaves a view whose rows do not fit into the memory
        client.set(contract.state_key("/gps/trail"), contract.FULL)
        status, text = sluice(here, "check", "/gps/trail")
    assert (status, text) == (1, "/gps/trail: full, not compared\n")


@pytest.mark.nightly
def test_a_rebuild_without_room_and_one_whose_follower_ends_are_one_line(here: Site) -> None:
    here.put("gps", [Gps(time=NOON * 10**9, device=str(n), lat=1.0, lon=1.0) for n in range(3000)])
    here.caught_up()
    client, full = here.client(), "sluice: the views' memory is full; raise INGEST_VIEWS_MEMORY\n"
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 200_000)  # for the request, not for a view
    assert sluice(here, "rebuild", "/gps/trail") == (
        1,
        "sluice: building\nsluice: /gps/trail: the memory is full; raise INGEST_VIEWS_MEMORY\n",
    )
    client.config_set("maxmemory", 1)
    assert sluice(here, "rebuild", "/gps/trail") == (1, full)
    client.config_set("maxmemory", 0)
    assert here.follower
    os.kill(here.follower.pid, signal.SIGSTOP)
    with subprocess.Popen(
        [sys.executable, "-m", "sluice.ops", "views", "rebuild", "/gps/trail"],
        env=harness.environment(here.tmp, here.env), cwd=ROOT, text=True, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        harness.poll(lambda: client.sismember(contract.REBUILD, "/gps/trail"))
        here.kill(here.follower)
        client.delete(contract.HOLDER)  # the lease of a killed one ends after seconds
        _, said = command.communicate(timeout=PATIENCE)
    ended = "sluice: the follower ended; it continues when it is started again\n"
    assert (command.returncode, said) == (1, f"sluice: building\n{ended}")


@pytest.mark.contract
def test_without_views_the_verb_says_why(here: Site) -> None:
    here.env["INGEST_VIEWS"] = "off"
    status, text = sluice(here)
    assert (status, text.startswith("There are no views: INGEST_VIEWS is off")) == (0, True)
