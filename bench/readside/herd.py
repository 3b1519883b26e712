"""Part `herd`: an expensive value that many clients ask for, when a plain cache expires, and with refresh-ahead."""

from __future__ import annotations

import argparse

import rig
from proving import harness
from readside.site import Site, Targets

AHEAD, CACHE = "refresh-ahead", "plain cache"
TARGET = "/votes/tally?poll=cookies"
SLOWEST = 50.0  # ms
VIEWS = """
from sluice.contrib.views import tally

VIEWS = {"/votes/tally": tally("votes", key="poll", by="choice", period=%g)}
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--readers", type=int, default=6_000, help="herd: clients (%(default)s)")
    parser.add_argument("--reads", type=float, default=3_000, help="herd: requests per second of all (%(default)s)")
    parser.add_argument("--period", type=float, default=5, help="herd: seconds, instead of 90 (%(default)s)")
    parser.add_argument("--work", type=float, default=2, help="herd: seconds of CPU of a computation (%(default)s)")
    parser.add_argument("--periods", type=int, default=12, help="herd: duration, in periods (%(default)s)")


def ahead(stand: rig.Stand, options: argparse.Namespace) -> rig.Candidate:
    """The tally of Sluice; its follower counts slowly."""
    (stand.tmp / "views.py").write_text(VIEWS % options.period)
    site = Site(stand, INGEST_VIEWS=stand.tmp / "views.py")
    site.put("votes", (b'{"poll":"cookies","choice":"%b"}' % choice for choice in (b"oreo", b"oreo", b"fig")))
    programs = {"views": site.views(), "reader": site.reader(options.runtime)}
    path = f"{rig.ROOT}:{rig.BENCH}/wsgi"
    env = {"HERD_SECONDS": options.work, "PYTHONPATH": path}
    programs["follower"] = site.python("follower", [rig.BENCH / "wsgi/herd_follow.py"], **env)
    return site.front(AHEAD, programs, TARGET)


def cache(stand: rig.Stand, options: argparse.Namespace) -> rig.Candidate:
    """The usual service with a plain cache."""
    env = {"HERD_SECONDS": options.work, "HERD_PERIOD": options.period}
    return stand.gunicorn(CACHE, "herd_cache:app", options.runtime, read=TARGET, **env)


def herd(stand: rig.Stand, candidate: rig.Candidate, options: argparse.Namespace) -> rig.Figures:
    """Load, with the value in the cache at the start."""
    reads = stand.requests([(TARGET, None)])
    harness.get(candidate.port, TARGET)
    warm = options.period
    seconds = warm + options.periods * options.period
    stand.client.delete("computed", "missed")
    load = stand.users(candidate, reads, options.readers, options.reads, warm, details=True)
    found = load(seconds)
    begins = sorted(map(float, stand.client.lrange("computed", 0, -1)))
    gaps = [b - a for a, b in zip(begins, begins[1:])]
    return found | {
        "computations": len(begins),
        "missed": int(stand.client.get("missed") or 0),
        "gaps": gaps,
        "seconds": seconds,
    }


def run(options: argparse.Namespace) -> bool:
    """Measure and report. Returns: whether the targets are met."""
    if options.quick:
        options.periods = 4
    report = rig.Report(
        "reads-herd", "What happens when an expensive value expires, and many clients ask for it?", options
    )
    found = {}
    for name, make in ((AHEAD, ahead), (CACHE, cache)):
        with rig.Stand(options) as stand:
            found[name] = herd(stand, make(stand, options), options)
        rig.progress(f"  {name}: {found[name]['computations']} computations, slowest {found[name]['max']:.0f} ms")
    report.data |= {"cases": found}
    ours = found[AHEAD]
    rows = []
    for name, f in found.items():
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in f["errors by kind"].items() if n)
        share = f"{f['errors'] / (f['errors'] + f['requests']):.1%}"
        rows.append([name, f["rate"], f["p50"], f["p99"], f["max"], int(f["errors"]), share, kinds, f["computations"]])
        rows[-1].append(f["missed"])
    head = ["", "answers/s", "p50 ms", "p99 ms", "slowest ms", "failures", "of all", "kinds of failures"]
    report.table(
        [*head, "computations", "requests that had to compute"],
        rows,
        f"{options.readers:,} clients, {options.reads:,.0f} requests/s for {ours['seconds']:.0f} s; period "
        f"{options.period:g} s, a computation takes {options.work:g} s of CPU",
    )
    # a value is computed again when it is a period old; within a second more, the refresher sees that
    longest = options.period + 2 * options.work + 1.5
    targets = Targets(report)
    shortest, most = min(ours["gaps"], default=0.0), max(ours["gaps"], default=99.0)
    is_met = shortest >= options.period and most <= longest
    between = f"{shortest:.1f} to {most:.1f}"
    targets.add("s between computations", f"{options.period:g} to {longest:g}", between, is_met)
    targets.at_most("slowest answer, ms", ours["max"], SLOWEST)
    targets.at_most("failures", int(ours["errors"]), 0)
    return targets.write()
