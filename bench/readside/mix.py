"""Part `mix`: a feed of notifications with two reads to one write, at a fixed rate."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import msgspec

import rig
from readside.site import FOLLOWER, WORKER, Site, Targets
from sluice.contrib.views import Feed, contract
from sluice.contrib.views.check import Checker
from sluice.contrib.views.kinds import feed as feeds
from sluice.settings import SCRATCH_SOCKET
from sluice.streams.built_in import load_streams

MODULE = rig.ROOT / "examples/notifications.py"
PATH = "/notifications/feed"
FULL = 23_000_000  # users, for the extrapolation of the memory
KINDS = ("like", "follow", "mention", "reply")
NUMBER = 300_000  # requests, before they repeat
TARGETS = {5.0: 98.2, 10.0: 99.99}  # ms -> % of the requests within
FSYNC = b"aof-fsync-always"  # of Redis's latency monitor
PERCENTILES = 50, 90, 98.2, 99, 99.9, 99.99


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=5_000, help="mix: users with a full set (%(default)s)")
    parser.add_argument("--rate", type=float, default=10_000, help="mix: requests per second (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1, help="mix: minutes of a round (%(default)s)")
    parser.add_argument("--clients", type=int, default=256, help="mix: connections (%(default)s)")
    parser.add_argument("--limit", type=int, default=100, help="mix: items of an answer (%(default)s)")
    parser.add_argument("--durability", default="always", help="mix: appendfsync of the list (%(default)s)")


def notification(chosen: random.Random, user: int) -> bytes:
    kind = chosen.choice(KINDS).encode()
    actor, thing = chosen.randrange(1000), chosen.randrange(10_000)
    return b'{"user":"user-%05d","kind":"%b","actor":"actor-%04d","object":"photo %d"}' % (user, kind, actor, thing)


def full(users: int, cap: int) -> Iterator[bytes]:
    """A little more than full sets: some items are equal."""
    chosen = random.Random(1)
    for n in range(users * (cap + 5)):
        yield notification(chosen, n % users)


def mixed(users: int, limit: int, cap: int) -> Iterator[rig.Request]:
    """Two reads to one write, for users by chance."""
    chosen = random.Random(2)
    more = f"&limit={limit}" if limit < cap else ""
    for n in range(NUMBER):
        user = chosen.randrange(users)
        if n % 3 == 2:
            yield "/notifications", notification(chosen, user)
        else:
            yield f"{PATH}?user=user-{user:05}{more}", None


def within(slots: rig.Slots, milliseconds: float, failures: int) -> float:
    """Percent of the requests that were answered within this time; a slot that ends later is not."""
    total = sum(count for _, count in slots) + failures
    return 100 * sum(count for end, count in slots if end <= milliseconds) / total


def audit(site: Site, view: Feed) -> tuple[int, int, int, float]:
    """Keys, items of the largest set, items that are there twice, and mean bytes of a full key."""
    state = (site.client.get(contract.state_key(PATH)) or b"").decode()
    prefix = contract.generation_prefix(PATH, state)
    keys = largest = doubled = 0
    sizes: list[int] = []
    for name in site.client.scan_iter(prefix + "*", count=1000):
        items = [msgspec.json.decode(item) for _, item, _ in feeds.decode(site.client.get(name), bool(view.member))]
        members = {tuple(item[field] for field in view.member) for item in items}
        keys, largest, doubled = keys + 1, max(largest, len(items)), doubled + len(items) - len(members)
        if len(items) == view.cap and len(sizes) < 1000:
            sizes.append(site.client.memory_usage(name) or 0)
    return keys, largest, doubled, sum(sizes) / max(1, len(sizes))


def run(options: argparse.Namespace) -> bool:
    """Measure and report. Returns: whether the targets are met."""
    if options.quick:
        options.users, options.minutes = 500, 0.1
    report = rig.Report("reads-mix", "How fast is a feed with two reads to one write, at a fixed rate?", options)
    seconds = options.minutes * 60
    with rig.Stand(options, "no", "4g") as stand:
        module = {name: MODULE for name in ("INGEST_ROUTES", "INGEST_RECORDS", "INGEST_VIEWS")}
        site = Site(stand, **module)
        view = site.declared[PATH]
        assert isinstance(view, Feed)
        site.put("notifications", full(options.users, view.cap))
        views, follower = site.views(), site.python("follower", FOLLOWER)
        empty = site.client.info("memory")["used_memory"]
        site.caught_up()
        memory = site.client.info("memory")["used_memory"] - empty
        keys, _, _, per_key = audit(site, view)
        programs = {
            "gateway": site.gateway(options.runtime), "reader": site.reader(options.runtime), "views": views,
            "worker": site.python("worker", WORKER), "follower": follower,
        }  # fmt: skip
        candidate = site.front("Sluice", programs, f"{PATH}?user=user-00000")
        stand.set_durability(options.durability)
        stand.clear()
        asked = stand.requests(mixed(options.users, options.limit, view.cap))
        warm = min(5.0, seconds / 3)
        load = stand.users(candidate, asked, options.clients, options.rate, warm, details=True)
        runs = []
        stand.client.config_set("latency-monitor-threshold", 1)
        for n in range(options.rounds):
            stand.client.execute_command("LATENCY RESET")
            before = rig.stolen()
            runs.append(load(seconds + warm))
            runs[-1]["stolen"] = rig.stolen() - before
            events = stand.client.execute_command("LATENCY LATEST")  # name, when, the last one and the longest in ms
            runs[-1]["fsync"] = max((longest for name, _, _, longest in events if name == FSYNC), default=0)
            tail = rig.percentile(rig.summed(runs[-1:]), 99.99)
            rig.progress(f"  round {n + 1}/{options.rounds}: p99.99 {tail:.1f} ms")
        took = site.caught_up()
        keys, largest, doubled, _ = audit(site, view)
        checker = Checker(str(site.home / SCRATCH_SOCKET), site.settings.store, load_streams(site.settings))
        different = checker.check(PATH, view).different
        checker.close()

    failures = sum(int(one["errors"]) for one in runs)
    everything = rig.summed(runs)
    by_kind = {"reads": rig.summed(runs, ["GET"]), "writes": rig.summed(runs, ["other"]), "all": everything}
    report.data |= {"runs": [{k: v for k, v in one.items() if k != "timeline"} for one in runs]}
    report.data |= {"keys": keys, "bytes of a full set": per_key, "caught up after s": took}
    rows: list[list[object]] = []
    for name, slots in by_kind.items():
        shares = [f"{within(slots, ms, failures if name == 'all' else 0):.4f}" for ms in TARGETS]
        rows.append([name, *(rig.percentile(slots, part) for part in PERCENTILES), slots[-1][0], *shares])
    report.table(
        ["ms", *(f"p{part}" for part in PERCENTILES), "max", *(f"% within {ms:g} ms" for ms in TARGETS)],
        rows,
        f"From the moment when a request was due, all rounds: {sum(n for _, n in everything):,} requests",
    )
    rows = []
    for n, one in enumerate(runs):
        slots, used = rig.summed([one]), [10 * seconds for seconds in one["cpu"].values()]
        slow = [rig.percentile(slots, part) for part in PERCENTILES[2:]]
        host = one["fsync"], round(1000 * one["stolen"])
        shares = [f"{within(slots, ms, int(one['errors'])):.4f}" for ms in TARGETS]
        rows.append([f"round {n + 1}", one["rate"], *slow, one["max"], *shares, int(one["errors"]), *host, *used])
    parts = [f"CPU us a request: {part}" for part in runs[0]["cpu"]]
    columns = [f"p{part}" for part in PERCENTILES[2:]]
    columns += ["max ms", *(f"% within {ms:g} ms" for ms in TARGETS), "failures"]
    columns += ["longest fsync, ms", "CPU that the host kept, ms"]
    report.table(["", "requests/s", *columns, *parts], rows)
    gigabytes = FULL * max(per_key, memory / keys) / 1e9
    report.table(
        ["users", "bytes of a full set", "memory / users", f"for {FULL:,} users, GB"],
        [[keys, int(per_key), int(memory / keys), gigabytes]],
        f"Memory of the views' Redis: sets of {view.cap} items",
    )
    targets = Targets(report)
    for ms, bar in TARGETS.items():
        share = within(everything, ms, failures)
        targets.add(f"% of the requests within {ms:g} ms", f"min {bar}", f"{share:.4f}", share >= bar)
    targets.at_most("failures", failures, 0)
    targets.at_most("items of the largest set", largest, view.cap)
    targets.at_most("items that are there twice", doubled, 0)
    targets.at_most("keys that differ from the database", len(different), 0)
    return targets.write()
