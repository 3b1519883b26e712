"""Part `crowd`: reads at full speed, by more and more clients, beside other ways to serve the same values."""

from __future__ import annotations

import argparse
import contextlib
import random
from collections.abc import Iterator

import rig
from proving import harness
from proving.postgres import Postgres, postgres_server
from readside.site import FOLLOWER, Site, Targets
from rig import Candidate
from sluice.contrib.views import contract
from sluice.contrib.views.kinds import feed as feeds
from sluice.contrib.views.kinds.latest import ORDER_BYTES
from sluice.settings import SCRATCH_SOCKET

OURS, PYPY, NOOP, FILE, LUA = "Sluice, CPython", "Sluice, PyPy", "nginx -> C no-op", "nginx, a file", "nginx Lua GET"
WEBDIS, USUAL, USUAL_PYPY = "webdis", "gevent, redis-py, CPython", "gevent, redis-py, PyPy"
DATABASE = "gevent, psycopg, CPython"
LIMIT = 20  # items of a feed
ROWS = 30  # positions of each device
POLLS, CHOICES, VOTES = 100, ("oreo", "plain", "fig"), 100_000
NUMBER = 100_000  # requests, before they repeat
VIEWS = {"latest": "/gps/latest?device=", "trail": f"/gps/trail?limit={LIMIT}&device=", "tally": "/votes/tally?poll="}
WEBDIS_GET = (
    (
        "server {\n",
        "map $uri $target { /gps/latest /GET/latest:$arg_device.txt; /gps/trail /ZREVRANGE/feed:$arg_device/0/%d; "
        "default /GET/tally:$arg_poll.txt; }\nserver {\n" % (LIMIT - 1),
    ),
    ("proxy_pass http://sluice_gateway;", "proxy_pass http://sluice_gateway$target;"),
)
Cells = dict[tuple[str, int], dict[str, rig.Figures]]  # (view, connections) -> candidate -> figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", type=int, default=20_000, help="crowd: keys of latest and trail (%(default)s)")
    parser.add_argument("--views", default=",".join(VIEWS), help="crowd: views that are read (%(default)s)")
    parser.add_argument("--connections", default="64,1000,5000,15000", help="crowd: numbers of clients (%(default)s)")


def device(n: int) -> str:
    return f"dev-{n:05}"


def positions(devices: int) -> Iterator[bytes]:
    for n in range(ROWS * devices):
        name, time = device(n % devices).encode(), 1_766_600_000 + n // devices
        place = n % 10**6, n * 7 % 10**6
        yield b'{"device":"%b","lat":48.%06d,"lon":11.%06d,"speed":2.5,"time":%d}' % (name, *place, time)


def votes() -> Iterator[bytes]:
    chosen = random.Random(1)
    for n in range(VOTES):
        choice = chosen.choice(CHOICES)
        yield b'{"poll":"poll-%02d","choice":"%b","voter":"%d"}' % (n % POLLS, choice.encode(), n)


@contextlib.contextmanager
def database() -> Iterator[Postgres | None]:
    """A private PostgreSQL; None if it is not installed."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_server())
        except Exception as error:
            rig.progress(f"no PostgreSQL here: {error!r:.200}")
            server = None
        yield server


def values(site: Site, devices: int, port: int) -> dict[str, dict[str, list[bytes]]]:
    """What Sluice serves: view -> key -> JSON of the items, newest first; one for latest and tally."""
    pipe = site.client.pipeline(transaction=False)
    names = [device(n) for n in range(devices)]
    for path in "/gps/latest", "/gps/trail":
        generation = (site.client.get(contract.state_key(path)) or b"").decode()
        for name in names:
            pipe.get(contract.generation_prefix(path, generation) + name)
    found = pipe.execute()
    polls = [f"poll-{n:02}" for n in range(POLLS)]
    return {
        "latest": {name: [value[ORDER_BYTES:]] for name, value in zip(names, found)},
        "trail": {
            name: [item for _, item, _ in feeds.decode(value, False)] for name, value in zip(names, found[devices:])
        },
        "tally": {poll: [harness.get(port, VIEWS["tally"] + poll)[2]] for poll in polls},
    }


def copy(stand: rig.Stand, served: dict[str, dict[str, list[bytes]]]) -> None:
    """Give the Redis of the other candidates the same values."""
    pipe = stand.client.pipeline(transaction=False)
    for name, [value] in served["latest"].items():
        pipe.set("latest:" + name, value)
    for name, items in served["trail"].items():
        pipe.zadd("feed:" + name, {item: -n for n, item in enumerate(items)})
    for name, [value] in served["tally"].items():
        pipe.set("tally:" + name, value)
    pipe.execute()


def answer(view: str, items: list[bytes]) -> bytes:
    return b"[" + b",".join(items[:LIMIT]) + b"]" if view == "trail" else items[0]


def file(stand: rig.Stand, served: dict[str, dict[str, list[bytes]]], read: str) -> Candidate:
    """nginx, which serves the answers as files."""
    home = stand.home()
    for view, target in VIEWS.items():
        folder = home / "files" / target.partition("?")[0].strip("/")
        folder.mkdir(parents=True)
        for name, items in served[view].items():
            (folder / name).write_bytes(answer(view, items))
    text = f"default_type application/json; root {home}/files; try_files $uri/$arg_device$arg_poll =404;"
    change = "proxy_pass http://sluice_gateway;", text
    return stand.front(FILE, home, {}, change, read=read, runtime="C", worker="nginx")


def start(
    stand: rig.Stand, report: rig.Report, postgres: Postgres | None, options: argparse.Namespace
) -> tuple[dict[str, dict[str, Candidate]], dict[str, list[str]]]:
    """The candidates of each view, and the keys of each view."""
    site = Site(stand)
    site.put("gps", positions(options.devices))
    site.put("votes", votes())
    programs = {"views": site.views(), "reader": site.reader("cpython"), "follower": site.python("follower", FOLLOWER)}
    site.caught_up()
    read = VIEWS["latest"] + device(0)
    ours = site.front(OURS, programs, read, runtime="cpython")
    # another reader of the same views
    twin = Site(stand)
    (twin.home / SCRATCH_SOCKET).symlink_to(site.home / SCRATCH_SOCKET)
    pypy = twin.front(PYPY, {**programs, "reader": twin.reader("pypy")}, read, runtime="pypy")
    served = values(site, options.devices, ours.port)
    stand.client.flushall()
    copy(stand, served)

    peers = rig.sibling("peers")
    found = [
        ours, pypy, file(stand, served, read), peers.lua(stand, LUA, script="get.lua", read=read),
        peers.webdis(stand, WEBDIS, change=WEBDIS_GET, read=read),
        stand.gunicorn(USUAL, "reads_redis:app", read=read),
        stand.gunicorn(USUAL_PYPY, "reads_redis:app", "pypy", read=read),
    ]  # fmt: skip
    for name, candidate in zip((LUA, WEBDIS), found[3:5]):
        if candidate is None:
            report.say(f"{name}: left out; it is not installed here.")
    if postgres:
        other = Site(stand, INGEST_STORE=postgres.url)
        other.put("gps", positions(options.devices))
        other.put("votes", votes())
        postgres.ask("CREATE INDEX ON gps (device, time DESC)")
        postgres.ask("CREATE INDEX ON votes (poll, choice)")
        postgres.ask("VACUUM ANALYZE")
        candidate = stand.gunicorn(DATABASE, "reads_postgres:app", read=read, READS_POSTGRES=postgres.url)
        candidate.parts["redis"] = [postgres.process.pid]
        found.append(candidate)
    for view, target in VIEWS.items():
        name, items = next(iter(served[view].items()))
        for candidate in (one for one in found if one and one.name not in (WEBDIS, DATABASE)):
            body = harness.get(candidate.port, target + name)[2]
            assert body == answer(view, items), f"{candidate.name} answered {body!r}"
    candidates = {}
    for view in VIEWS:
        name, items = next(iter(served[view].items()))
        noop = stand.noop(NOOP, answer(view, items).decode(), VIEWS[view] + name)
        candidates[view] = {c.name: c for c in (*found, noop) if c}
    return candidates, {view: list(served[view]) for view in VIEWS}


def measure(
    stand: rig.Stand,
    candidates: dict[str, dict[str, Candidate]],
    keys: dict[str, list[str]],
    options: argparse.Namespace,
) -> Cells:
    """All cells."""
    steps = [int(step) for step in options.connections.split(",")]
    found: Cells = {}
    chosen = random.Random(2)
    for view in options.views.split(","):
        target = VIEWS[view]
        gets = stand.requests((target + chosen.choice(keys[view]), None) for _ in range(NUMBER))
        for step in steps if view == "latest" or not options.quick else steps[:1]:
            rig.progress(label((view, step)))
            cases = {name: stand.users(c, gets, step) for name, c in candidates[view].items()}
            warm = {name: min(1.0, options.warm) for name in cases if step != steps[0] or "PyPy" not in name}
            found[view, step] = rig.rounds(options, cases, OURS, warm)
    return found


def label(cell: tuple[str, int]) -> str:
    return f"{cell[0]}, {cell[1]:,} connections"


def tables(report: rig.Report, found: Cells) -> None:
    for cell, peers in found.items():
        report.table(
            ["", "requests/s", "of Sluice", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "failures",
             "CPU us a request: nginx", "server", "Redis, PostgreSQL"],
            [
                [name, f["rate"], f["ratio"], f["p50"], f["p99"], f["p999"], f["max"], int(f["errors"]),
                 f["cpu"]["nginx"] * 10, *(10 * sum(f["cpu"].get(part, 0) for part in parts) for parts in PARTS)]
                for name, f in sorted(peers.items(), key=lambda item: -item[1]["rate"])
            ],
            label(cell),
        )  # fmt: skip


PARTS = ("gateway", "reader"), ("redis", "views")


def targets(report: rig.Report, found: Cells) -> Targets:
    """The targets."""
    first = next(iter(found))
    found_targets = Targets(report)
    wanted = [(OURS, NOOP, 0.70), (PYPY, NOOP, 0.70), (OURS, USUAL, 5.0), (PYPY, USUAL_PYPY, 5.0), (PYPY, USUAL, 5.0)]
    for one, other, bar in wanted:
        found_targets.ratio(f"{one} / {other}: {label(first)}", rig.ratio(found[first], one, other), bar)
    last = max(cell for cell in found if cell[0] == first[0])
    for one in (OURS, PYPY):
        found_targets.at_most(f"{one}: failures: {label(last)}", int(found[last][one]["errors"]), 0)
        found_targets.at_most(f"{one}: p99 ms: {label(last)}", found[last][one]["p99"], 1000)
    return found_targets


def run(options: argparse.Namespace) -> bool:
    """Measure and report. Returns: whether the targets are met."""
    if options.quick:
        options.seconds, options.warm, options.devices, options.connections = 1.0, 0.5, 2000, "64,15000"
    report = rig.Report("reads-crowd", "How fast are values read, and by how many clients at once?", options)
    with rig.Stand(options) as stand, database() as postgres:
        candidates, keys = start(stand, report, postgres, options)
        report.data["about"] = {c.name: c.about for c in candidates["latest"].values()}
        found = measure(stand, candidates, keys, options)
    report.data["cells"] = [{"cell": label(cell), "candidates": peers} for cell, peers in found.items()]
    tables(report, found)
    return targets(report, found).write()
