"""Part `beside`: what readers and views cost the writers, and how soon a value that was posted can be read."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import rig
from proving import harness
from proving.postgres import postgres_server
from readside.crowd import VIEWS, device
from readside.site import FOLLOWER, WORKER, Site, Targets

ALONE, SOME, ALL = "posts alone", "beside 1,000 readers, 5 reads/s each", "beside 1,000 readers at full speed"
READERS, EACH = 1_000, 5.0
OFF, ON, OFF_STORING, ON_STORING = "views off", "views on", "views off, a worker stores", "views on, a worker stores"
DRAIN_BAR, ACCEPT_BAR, FRESH_BAR = 0.85, 0.97, 1.0
KEYS, NUMBER = 20_000, 100_000
WARM = 2.0  # seconds
PROBES, PAUSE = 4, 0.005  # clients that wait for their own value; seconds between two looks


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=float, default=5_000, help="beside: events/s for freshness (%(default)s)")
    parser.add_argument("--bodies", type=int, default=1_000_000, help="beside: bodies to drain (%(default)s)")
    parser.add_argument("--fresh", type=float, default=60, help="beside: seconds of the freshness run (%(default)s)")


def position(n: int) -> bytes:
    """Without a time: that of its arrival."""
    return b'{"device":"%b","lat":48.%06d,"lon":11.%06d}' % (device(n).encode(), n * 3 % 10**6, n * 7 % 10**6)


def drained(stand: rig.Stand, options: argparse.Namespace) -> dict[str, rig.Figures]:
    """A full list is stored, without and with a follower."""
    drain = rig.sibling("drain")
    site = Site(stand)
    site.views()
    store = drain.Store("SQLite", site.settings.store, partial(harness.ask, site.home))
    idle = drain.start_up(stand, store)
    store = drain.case(stand, store, drain.CASES["gps, JSON"], options.bodies, idle)

    def on(seconds: float) -> rig.Figures:
        with following(site):
            found: rig.Figures = store(seconds)
            found["s behind"] = site.caught_up()
            return found

    return rig.rounds(options, {OFF: store, ON: on}, OFF, {OFF: 1.0, ON: 1.0})


@contextlib.contextmanager
def following(site: Site) -> Iterator[None]:
    """A follower that has caught up."""
    command = [rig.OURS["cpython"], *FOLLOWER]
    with harness.running(command, site.home / "follower.out", site.env):
        site.caught_up()
        yield


def accepted(stand: rig.Stand, options: argparse.Namespace, posts: list[rig.Request]) -> dict[str, rig.Figures]:
    """Posts at full speed, without and with the programs of the views, and the same while a worker stores them."""
    file = stand.requests(posts)
    off = Site(stand, INGEST_VIEWS="off")
    on = Site(stand)
    read = VIEWS["latest"] + device(0)
    without = off.stand.front(OFF, off.home, {"gateway": off.gateway(options.runtime)}, env=off.env)
    programs = {"gateway": on.gateway(options.runtime), "views": on.views(), "reader": on.reader(options.runtime)}
    on.put("gps", [position(0)])
    with following(on):
        candidate = on.front(ON, programs, read)

    def case(site: Site, candidate: rig.Candidate, stores: bool) -> Callable[[float], rig.Figures]:
        load = stand.users(candidate, file, 64)

        def run(seconds: float) -> rig.Figures:
            stand.clear()
            command = [rig.OURS["cpython"], *WORKER]
            with contextlib.ExitStack() as stack:
                if site is on:
                    stack.enter_context(following(site))
                if stores:
                    stack.enter_context(harness.running(command, site.home / "worker.out", site.env))
                found = load(seconds)
                if stores:
                    harness.poll(lambda: not stand.client.exists("ingest:gps", "ingest:gps:claims"), 120, "the worker")
                    if site is on:
                        site.caught_up()
            return found

        return run

    cases = {
        OFF: case(off, without, False), ON: case(on, candidate, False),
        OFF_STORING: case(off, without, True), ON_STORING: case(on, candidate, True),
    }  # fmt: skip
    return rig.rounds(options, cases, OFF)


@contextlib.contextmanager
def readers(
    stand: rig.Stand, port: int, reads: rig.Requests, rate: float, seconds: float, found: rig.Figures
) -> Iterator[None]:
    """A crowd of readers beside the block; then `found` has what they got. rate: of all; 0: full speed."""
    command = [stand.compiled("users"), port, READERS, reads.addresses, 1, seconds, 10, rate, reads.path]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1)  # until they are connected
        yield
        found |= json.loads(process.communicate(timeout=seconds + 60)[0])
    finally:
        process.kill()


def posted(
    stand: rig.Stand,
    store: str,
    candidate: rig.Candidate,
    posts: rig.Requests,
    gets: rig.Requests,
    options: argparse.Namespace,
) -> dict[str, rig.Figures]:
    """Posts at full speed, alone and beside readers; worker and follower run. store: the name of the database."""

    def case(rate: float | None) -> Callable[[float], rig.Figures]:
        load = stand.users(candidate, posts, 64)

        def run(seconds: float) -> rig.Figures:
            if rate is None:
                return load(seconds)
            reads: rig.Figures = {}
            with readers(stand, candidate.port, gets, rate, seconds + 2, reads):
                found = load(seconds)
            more = {"reads/s": reads["rate"], "reads p99": reads["p99"]}
            return found | more | {"errors": found["errors"] + reads["errors"]}

        return run

    cases = {f"{store}, {ALONE}": case(None), f"{store}, {SOME}": case(READERS * EACH), f"{store}, {ALL}": case(0)}
    return rig.rounds(options, cases, f"{store}, {ALONE}")


class Probe(threading.Thread):
    """Posts a position of its own and asks until it is served; again and again."""

    def __init__(self, port: int, name: str, until: float) -> None:
        super().__init__(name=name)
        self.port, self.until = port, until
        self.times: list[float] = []
        self.failures = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        number = 0
        while time.monotonic() < self.until:
            number += 1
            connection.request("POST", "/gps", b'{"device":"%b","lat":1,"lon":%d}' % (self.name.encode(), number % 180))
            response = connection.getresponse()
            response.read()
            began = time.monotonic()
            if response.status != 200:
                self.failures += 1
                continue
            wanted = b'"lon":%d' % (number % 180)
            while True:
                connection.request("GET", VIEWS["latest"] + self.name)
                response = connection.getresponse()
                body = response.read()
                took = time.monotonic() - began
                if wanted + b"," in body or wanted + b"." in body or wanted + b"}" in body:
                    self.times.append(took)
                    break
                if response.status not in (200, 404) or took > 20:
                    self.failures += 1
                    break
                time.sleep(PAUSE)
            time.sleep(random.uniform(0, 0.05))


def fresh(stand: rig.Stand, candidate: rig.Candidate, posts: rig.Requests, options: argparse.Namespace) -> rig.Figures:
    """The seconds from a 2xx until a GET shows the value, while events come in."""
    until = time.monotonic() + WARM + options.fresh
    probes = [Probe(candidate.port, f"probe-{n}", until) for n in range(PROBES)]
    for probe in probes:
        threading.Timer(WARM, probe.start).start()
    found = stand.users(candidate, posts, 256, options.events, WARM)(WARM + options.fresh)
    for probe in probes:
        probe.join()
    times = sorted(took for probe in probes for took in probe.times)
    return found | {"times": times, "missing": sum(probe.failures for probe in probes)}


def run(options: argparse.Namespace) -> bool:
    """Measure and report. Returns: whether the targets are met."""
    if options.quick:
        options.bodies, options.fresh = 100_000, 5.0
    question = "What do readers and views cost the writers, and how fresh is what is read?"
    report = rig.Report("reads-beside", question, options)
    chosen = random.Random(3)
    numbers = [chosen.randrange(KEYS) for _ in range(NUMBER)]
    posts: list[rig.Request] = [("/gps", position(n)) for n in numbers]
    with rig.Stand(options) as stand:
        storing = drained(stand, options)
    with rig.Stand(options, max_memory="8g") as stand:
        accepting = accepted(stand, options, posts)
    posting: dict[str, rig.Figures] = {}
    for store in "SQLite", "PostgreSQL":
        with rig.Stand(options, "always", "8g") as stand, contextlib.ExitStack() as stack:
            events = stand.requests(posts)
            gets = stand.requests((VIEWS["latest"] + device(n), None) for n in numbers)
            more = {"INGEST_STORE": stack.enter_context(postgres_server()).url} if store == "PostgreSQL" else {}
            site = Site(stand, **more)
            site.put("gps", map(position, range(KEYS)))
            programs = {"views": site.views(), "reader": site.reader(options.runtime)}
            programs |= {"follower": site.python("follower", FOLLOWER), "worker": site.python("worker", WORKER)}
            programs["gateway"] = site.gateway(options.runtime)
            site.caught_up()
            candidate = site.front("Sluice", programs, VIEWS["latest"] + device(0))
            if store == "SQLite":
                freshness = fresh(stand, candidate, events, options)
            posting |= posted(stand, store, candidate, events, gets, options)
    report.data |= {"drained": storing, "accepted": accepting, "posted": posting, "fresh": freshness}

    report.table(
        ["", "posts/s", "to alone", "p50 ms", "p99 ms", "reads/s", "reads: p99 ms", "failures"],
        [
            [name, *(f.get(key) for key in ("rate", "ratio", "p50", "p99", "reads/s", "reads p99")), int(f["errors"])]
            for name, f in posting.items()
        ],
        "Posts at full speed over 64 connections, durability always; a worker stores them, the views follow",
    )
    report.table(
        ["", "posts/s", "to views off", "p50 ms", "p99 ms", "failures"],
        [[name, f["rate"], f["ratio"], f["p50"], f["p99"], int(f["errors"])] for name, f in accepting.items()],
        "Accepting: posts at full speed over 64 connections, durability no",
    )
    report.table(
        ["", "bodies/s", "to views off", "s until the views have the last", "not stored exactly once"],
        [[name, f["rate"], f["ratio"], f.get("s behind"), int(f["errors"])] for name, f in storing.items()],
        f"Draining {options.bodies:,} positions into SQLite",
    )
    times = freshness["times"] or [99.0]
    p50, p99 = (times[int(len(times) * part)] for part in (0.5, 0.99))
    lost = freshness["missing"] + int(freshness["errors"])
    report.table(
        ["events/s", "values posted and read", "p50 s", "p99 s", "max s", "not served, or failed"],
        [[freshness["rate"], len(times), p50, p99, times[-1], lost]],
        f"Freshness: from a 2xx until a GET shows the value; looked every {PAUSE * 1000:g} ms",
    )
    targets = Targets(report)
    targets.ratio("draining, views on / off", rig.ratio(storing, ON, OFF), DRAIN_BAR)
    targets.ratio("accepting, views on / off", rig.ratio(accepting, ON, OFF), ACCEPT_BAR)
    both = rig.ratio(accepting, ON_STORING, OFF_STORING)
    targets.ratio("accepting while a worker stores, views on / off", both, None)
    targets.at_most("a new value can be read, p99 s", p99, FRESH_BAR)
    targets.at_most("values not served, posts failed", lost, 0)
    return targets.write()
