"""List the views, compare them with the database, or rebuild them.

views                   the list; reads since the views' Redis was started; hits: of the
                        answers 200 and 404, the share of 200
views check [PATH]      compare each view with the database; lists keys that differ
views rebuild [PATH]    build each view, or one, from the database while the old one is served, and wait for it
"""

from __future__ import annotations

import argparse
import sys
import time

from redis.exceptions import RedisError

from sluice.base import terminal
from sluice.base.times import format_age
from sluice.contrib import views
from sluice.contrib.rates import format_percent, read_rates
from sluice.contrib.views import contract
from sluice.contrib.views.check import Checker
from sluice.contrib.views.client import Full, ViewsClient
from sluice.contrib.views.figures import view_figures
from sluice.contrib.views.kinds.followed import Followed
from sluice.contrib.views.kinds.view import ViewFigures
from sluice.settings import SettingError, Settings
from sluice.streams.built_in import load_streams

SHOWN_KEYS = 5  # keys that differ, of each view
POLL_SECONDS = 0.1


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="check|rebuild", nargs="?", choices=("check", "rebuild"))
    parser.add_argument("path", metavar="PATH", nargs="?", help="of one view, such as /gps/latest; all unless given")
    parser.epilog = (
        "exit status: 0; 1 if a key differs, a view is not served or has no room, no follower runs, or Redis or the "
        "database is unavailable; 2 for an invalid setting or an unknown path"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    streams = load_streams(s)
    declared = views.load_views(s)
    views.check_declarations(declared, streams)
    path = arguments.path
    if path is not None and path not in declared:
        raise SettingError(f"there is no view {path!r}; the views are {', '.join(sorted(declared))}.")
    chosen = {path: declared[path]} if path else declared
    try:
        if arguments.action == "check":
            return check_values(Checker(s.scratch_redis, s.store, streams, s.keep), chosen)
        client = ViewsClient(s.scratch_redis)
        return rebuild_views(client, chosen) if arguments.action == "rebuild" else show_views(client, declared)
    except RedisError as error:
        terminal.complain(f"the views' Redis is unavailable: {error}")
    except Full:
        terminal.complain("the views' memory is full; raise INGEST_VIEWS_MEMORY")
    return 1


def show_views(client: ViewsClient, declared: dict[str, views.View]) -> int:
    if not declared:
        print("There are no views: INGEST_VIEWS is off, or INGEST_ROWS sends the rows of their streams elsewhere.")
        return 0
    figures = view_figures(client, declared)
    print(
        terminal.format_table(
            ("view", "state", "keys", "memory", "lag", "reads", "hits"), map(view_cells, figures), left=2
        )
    )
    return 0 if all(view.state == "served" for view in figures) else 1


def view_cells(view: ViewFigures) -> list[str]:
    lag = "" if view.lag is None else format_age(view.lag)
    size = "" if view.bytes is None else f"{view.bytes / 1048576:.1f} MiB"
    reads, hits = read_rates({}, view.reads, 1)
    return [view.path, view.state, str(view.keys or 0), size, lag, f"{reads:.0f}", format_percent(hits)]


def check_values(checker: Checker, chosen: dict[str, views.View]) -> int:
    status = 0
    for path, view in chosen.items():
        comparison = checker.check(path, view)
        if comparison.state != "served":
            print(f"{path}: {comparison.state}, not compared")
            status = 1
            continue
        print(f"{path}: {comparison.keys} keys, {len(comparison.different)} different")
        for key in comparison.different[:SHOWN_KEYS]:
            print(f"  {terminal.printable(key)}")
        status |= bool(comparison.different)
    checker.close()
    return status


def rebuild_views(client: ViewsClient, chosen: dict[str, views.View]) -> int:
    """Ask the follower, and wait until the new generations are served."""
    paths = [path for path, view in chosen.items() if isinstance(view, Followed)]
    if not paths:
        print("A tally is not built: it is counted when a client asks.")
        return 0
    if not client.ask(("EXISTS", contract.HOLDER))[0]:
        terminal.complain("no follower runs")
        return 1
    old = dict(zip(paths, client.ask(*(("GET", contract.state_key(path)) for path in paths))))
    client.ask(("SADD", contract.REBUILD, *paths))
    print("sluice: building", file=sys.stderr, flush=True)
    while paths:
        time.sleep(POLL_SECONDS)
        asked, building, state = client.ask(
            ("SISMEMBER", contract.REBUILD, paths[0]),
            ("GET", contract.building(paths[0])),
            ("GET", contract.state_key(paths[0])),
        )
        if not asked and not building and state:
            path = paths.pop(0)
            if state in (contract.FULL, old[path]):
                terminal.complain(f"{path}: the memory is full; raise INGEST_VIEWS_MEMORY")
                return 1
            print(f"{path}: built")
        elif not client.ask(("EXISTS", contract.HOLDER))[0]:
            terminal.complain("the follower ended; it continues when it is started again")
            return 1
    return 0
