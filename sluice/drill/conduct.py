"""One drill from start to report: post events, inject faults, wait until everything is stored, compare."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sluice.drill.compare import Findings, compare
from sluice.drill.faults import FAULTS, Scene
from sluice.drill.load import PATIENCE, Book
from sluice.drill.site import STREAM, Site, Trouble, private, running, wait
from sluice.run.configure import ROOT
from sluice.settings import Settings

PROCESSES = 2  # client processes
PAUSE = (0.0, 0.5)  # seconds between two faults; short enough that some begin before the last is healed
LAST = 8.0  # no fault begins in the last seconds; most last no longer than this
SHOWN = 100  # event numbers of each kind in the Markdown report
COUNTS = ("sent", "acknowledged", "rejected", "unanswered", "cut")


class Load:
    """The client processes and their counts."""

    def __init__(self, site: Site, clients: int, rate: float, run: str, folder: Path) -> None:
        self.books = [folder / f"book-{n}" for n in range(PROCESSES)]
        self.counts: list[dict[str, int]] = [dict.fromkeys(COUNTS, 0) for _ in range(PROCESSES)]
        each = max(1, clients // PROCESSES)
        port, tls = site.port, "tls" if site.tls else ""
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "sluice.drill.load"]
                + [str(x) for x in (port, n, each, rate / PROCESSES, run, book, tls)],
                env={**os.environ, "SLUICE_DRILL_HEADER": site.header},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                start_new_session=True,  # Ctrl-C must not reach the clients: the drill still needs their books
            )
            for n, book in enumerate(self.books)
        ]  # fmt: skip
        self.threads = [threading.Thread(target=self.listen, args=(n,)) for n in range(PROCESSES)]
        for thread in self.threads:
            thread.start()

    def listen(self, n: int) -> None:
        out = self.processes[n].stdout
        assert out
        for line in out:
            self.counts[n] = json.loads(line)

    def count(self, what: str) -> int:
        """The sum of a count over all processes."""
        return sum(counts[what] for counts in self.counts)

    def send(self, command: str) -> None:
        for process in self.processes:
            assert process.stdin
            with contextlib.suppress(OSError):
                process.stdin.write(command + "\n")
                process.stdin.flush()

    def cut(self, clients: int) -> None:
        """Make that many additional clients close their connection early."""
        self.send(f"cut {clients // PROCESSES}")

    def stop(self) -> list[Book]:
        """Stop posting and wait for the responses. Returns: the books. Raises: Trouble if a process failed."""
        self.send("stop")
        for process in self.processes:
            if process.wait(PATIENCE + 30):
                raise Trouble("a client process failed; its messages are above")
        return [Book.load(path) for path in self.books]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for thread in self.threads:
            thread.join()


class Drill:
    """One drill."""

    def __init__(self, site: Site, options: argparse.Namespace, run: str, folder: Path) -> None:
        self.site = site
        self.options = options
        self.run = run
        self.random = random.Random(options.seed)
        self.begun = time.monotonic()
        self.faults: list[dict[str, Any]] = []
        self.now = ""
        self.over = threading.Event()
        self.load = Load(site, options.clients, options.rate, run, folder)

    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def say(self, words: str) -> None:
        print(f"{self.elapsed():6.1f} s  {words}", flush=True)

    def progress(self) -> None:
        """Print a line every second."""
        before = 0
        while not self.over.wait(1):
            acknowledged = self.load.count("acknowledged")
            rest = ", ".join(f"{self.load.count(what):,} {what}" for what in COUNTS[2:])
            self.say(f"{acknowledged:9,} acknowledged ({acknowledged - before:5,}/s), {rest}  {self.now}")
            before = acknowledged

    def order(self, names: list[str]) -> Iterator[str]:
        """All faults in random order, round after round."""
        count = 0
        while names and (self.options.rounds is None or count < self.options.rounds):
            yield from self.random.sample(names, len(names))
            count += 1

    def flows(self, seconds: float) -> float:
        """Wait until new events are acknowledged. Returns: the seconds waited. Raises: Trouble."""
        begun, before = time.monotonic(), self.load.count("acknowledged")
        wait(lambda: self.load.count("acknowledged") > before + PROCESSES, seconds, "events are acknowledged")
        return time.monotonic() - begun

    def inject(self, name: str) -> None:
        """Inject a fault, then wait until events are acknowledged again."""
        entry: dict[str, Any] = {"fault": name, "at": round(self.elapsed(), 3)}
        self.now = name
        entry["what"] = FAULTS[name].inject(Scene(self.site, self.random, self.load.cut))
        entry["lasted"] = round(self.elapsed() - entry["at"], 3)
        entry["back_after"] = round(self.flows(60), 3)
        self.now = ""
        self.faults.append(entry)
        self.say(f"{name}: {entry['what'] or 'done'}; acknowledged again after {entry['back_after']:.1f} s")

    def go(self) -> dict[str, Any]:
        """Run the drill. Returns: the report."""
        speaker = threading.Thread(target=self.progress)
        speaker.start()
        trouble = ""
        try:
            self.flows(60)
            wait(lambda: self.site.store.bodies(STREAM), 60, "the first events are stored")  # then the tables exist
            for name in self.order(self.options.faults):
                time.sleep(self.random.uniform(*PAUSE))
                if self.elapsed() > max(self.options.duration - LAST, self.options.duration / 2):
                    break
                self.inject(name)
            while self.options.rounds is None and self.elapsed() < self.options.duration:
                time.sleep(0.1)
        except Trouble as error:
            trouble = str(error)
        except KeyboardInterrupt:
            self.say("interrupted: the comparison follows")
        books = self.load.stop()
        posting = self.elapsed()
        self.over.set()
        speaker.join()
        self.say("posting has ended; waiting until the backlog is drained")
        fresh: float | None = None
        begun = time.monotonic()
        try:
            wait(lambda: not self.site.waiting(), 120, "the backlog is drained")
            drained = time.monotonic() - begun
            fresh = self.fresh()
        except Trouble as error:
            trouble, drained = trouble or str(error), time.monotonic() - begun
        self.say("comparing")
        found = compare(books, self.site.store.rows(self.run))
        return self.report(found, trouble, posting, drained, fresh)

    def fresh(self) -> float:
        """Post a new event. Returns: the seconds until it is stored. Raises: Trouble."""
        name, begun = self.run + "-fresh", time.monotonic()
        load = Load(self.site, 1, 5, name, self.load.books[0].parent)
        try:
            wait(lambda: any(True for _ in self.site.store.rows(name)), 60, "a new event is stored")
            return time.monotonic() - begun
        finally:
            load.stop()
            load.close()

    def report(
        self, found: Findings, trouble: str, posting: float, drained: float, fresh: float | None
    ) -> dict[str, Any]:
        """The report as JSON."""
        dead = self.site.store.dead(STREAM, self.run)
        ledger = self.site.ledger()
        passed = found.sound and not dead and not trouble and fresh is not None
        if self.site.private:  # the Redis of a running installation may be younger than its database
            passed = passed and ledger["missing"] == 0
        s = self.site.settings
        return {
            "passed": passed,
            "trouble": trouble,
            "run": self.run,
            "seed": self.options.seed,
            "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "installation": "private" if self.site.private else "running",
            "settings": {
                "runtime": s.runtime, "gateways": s.gateways, "workers": s.workers.min, "durability": s.durability,
                "sink": self.site.store.name,
            },
            "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
            "rate": self.options.rate,
            "clients": self.options.clients,
            "seconds": round(posting, 1),
            "posted": found.posted,
            "acknowledged": found.acknowledged,
            "answers": dict(found.answers.most_common()),
            "stored": found.stored,
            "dead": dead,
            "ledger": ledger,
            "counts": {kind: found.counts[kind] for kind in KINDS},
            "numbers": {kind: getattr(found, kind) for kind in KINDS},
            "received_at": {"early": round(found.early, 3), "late": round(found.late, 3)},
            "drained_after": round(drained, 1),
            "fresh_after": fresh and round(fresh, 3),
            "faults": self.faults,
        }  # fmt: skip


KINDS = {
    "missing": "acknowledged, not stored",
    "doubled": "stored twice",
    "torn": "stored, but never sent completely",
    "disorder": "stored behind an event that was posted after its response",
    "misdated": "received_at more than 100 ms before the request or after the response (plus 2 ms for rounding)",
    "unknown": "stored, not acknowledged (allowed)",
}


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    s = report["settings"]
    lines = [
        f"# Drill {report['run']}: {'passed' if report['passed'] else 'FAILED'}",
        "",
        f"{report['ended']}, {report['installation']} installation, {report['machine']}, {s['runtime']}, "
        f"{s['gateways']} gateway process(es), {s['workers']} worker(s), durability {s['durability']}, {s['sink']}. "
        f"Seed {report['seed']}, {report['clients']} clients, {report['rate']:,} events/s "
        f"for {report['seconds']} s, {len(report['faults'])} faults.",
        "",
        *([f"**{report['trouble']}**", ""] if report["trouble"] else []),
        "| | events |",
        "|---|---|",
        f"| posted | {report['posted']:,} ({report['posted'] / max(report['seconds'], 1):,.0f}/s) |",
        f"| acknowledged | {report['acknowledged']:,} ({report['acknowledged'] / max(report['seconds'], 1):,.0f}/s) |",
        f"| stored | {report['stored']:,} |",
        f"| in dead_letters | {report['dead']:,} |",
        *(f"| {words} | {report['counts'][kind]:,} |" for kind, words in KINDS.items()),
        f"| missing according to the ledger | {report['ledger']['missing']:,} |",
        "",
        f"Responses: {', '.join(f'{name}: {count:,}' for name, count in report['answers'].items())}. "
        f"received_at was at most {report['received_at']['early'] * 1000:.0f} ms before the request and "
        f"{report['received_at']['late'] * 1000:.0f} ms after the response. The backlog was drained "
        f"{report['drained_after']} s after the last response; a new event was "
        + (f"then stored within {report['fresh_after']} s." if report["fresh_after"] else "not stored."),
        "",
        "| at s | fault | details | duration s | acknowledged again after s |",
        "|---|---|---|---|---|",
        *(f"| {x['at']:.1f} | {x['fault']} | {x['what']} | {x['lasted']:.1f} | {x['back_after']:.1f} |"
          for x in report["faults"]),
    ]  # fmt: skip
    for kind, words in KINDS.items():
        if numbers := report["numbers"][kind]:
            more = " … (more in the JSON report)" if report["counts"][kind] > SHOWN else ""
            lines += ["", f"Event numbers, {words}: {', '.join(map(str, numbers[:SHOWN]))}{more}"]
    return "\n".join(lines) + "\n"


def chosen(words: str, private: bool) -> list[str]:
    """The faults selected by --faults: a comma-separated list of names, `none`, `all`, and -NAME to exclude one.

    Raises: Trouble for an unknown name, and for a private fault if the installation is not private.
    """
    possible = [name for name, fault in FAULTS.items() if private or not fault.private]
    given = [name for name in words.split(",") if name and name != "none"]
    without = [name[1:] for name in given if name.startswith("-")]
    named = [name for name in given if not name.startswith("-") and name != "all"]
    if wrong := [name for name in named + without if name not in possible]:
        raise Trouble(f"unknown fault: {', '.join(wrong)}; --help lists them")
    if "all" in given or without:
        named += [name for name in possible if not FAULTS[name].proof and name not in without + named]
    return named


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run a drill. Returns: the exit status."""
    try:
        options.faults = chosen(options.faults, not options.home)
    except Trouble as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 2
    if options.rounds is not None:
        options.duration = float("inf")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    name = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{options.seed}"
    folder: Path = options.report or (options.home or settings.home) / "drill"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"seed {options.seed}; faults: {', '.join(options.faults) or 'none'}", flush=True)
    try:
        with contextlib.ExitStack() as stack:
            site = (
                running(options.home.absolute(), options.header)
                if options.home
                else stack.enter_context(private(options.keep))
            )
            books = site.home / "drill-books"
            books.mkdir(exist_ok=True)
            stack.callback(shutil.rmtree, books)
            drill = Drill(site, options, name, books)
            stack.callback(drill.load.close)
            stack.callback(drill.over.set)
            report = drill.go()
    except Trouble as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"drill-{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"drill-{name}.md").write_text(markdown(report))
    print(f"\n{markdown(report)}\nreport: {folder}/drill-{name}.md and .json")
    return 0 if report["passed"] else 1
