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
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from proving import forwarded, read
from proving.cells import Cells, cells
from proving.cells_kafka import KafkaCells
from proving.compare import SLACK, Findings, compare
from proving.destinations import Elsewhere
from proving.faults import FAULTS, Fault, Scene
from proving.load import LOGGED, PATIENCE, SPAN, Book, is_log
from proving.outages import OUTAGES
from proving.read import Reads
from proving.report import KINDS, judged, markdown, without_service
from proving.site import AGE, STREAM, Site, Trouble, private, running, wait
from sluice.places import ROOT
from sluice.settings import Settings

PROCESSES = 2  # client processes that only post
READERS = 16  # clients of the process that also reads
CALM = (3.0, 30.0)  # seconds before the first fault: a twentieth of the drill, within these limits
PAUSE = (0.0, 0.5)  # seconds between two faults; short enough that some begin before the last is healed
LAST = 8.0  # no fault begins in the last seconds; most last no longer than this
RATE = 5000  # events/s of an installation; cells share its cores with their replicas, and have their own
MIN_CELLS = 3  # fewer have no majority of Sentinels when one dies
SPOOLS = {"redis": Cells, "kafka": KafkaCells}
COUNTS = ("sent", "acknowledged", "rejected", "unanswered", "cut")


def known_views() -> dict[str, Any]:
    """The views of which the clients know what an answer may be."""
    from proving.views import VIEWS as OWN
    from sluice.contrib import views

    return {**views.VIEWS, **OWN}


class Load:
    """The client processes and their counts."""

    def __init__(
        self, site: Site, clients: int, rate: float, run: str, folder: Path, readers: int, repeated: bool = True
    ) -> None:
        """readers: clients that also read, if the site has views. repeated: see `Crowd`."""
        each = max(1, clients // PROCESSES)
        port, tls = site.port, "tls" if site.tls else ""
        programs: list[tuple[object, ...]] = [
            (
                "proving.load",
                port,
                n,
                each,
                rate / PROCESSES,
                run,
                folder / f"book-{n}",
                tls,
                site.patience,
                "logs" * site.logs,
                "repeated" * repeated,
            )
            for n in range(PROCESSES)
        ]
        judged = known_views() if site.views else {}
        paths = [path for path in read.PATHS if path in judged and site.views.get(path) == judged[path]]
        if paths:
            programs.append(("proving.read", port, readers, PROCESSES, run, folder, ",".join(paths), tls))
        else:
            readers = 0
        self.books = [folder / f"book-{n}" for n in range(PROCESSES + 2 * readers)]
        self.reads = folder / "reads" if readers else None
        self.counts: list[dict[str, int]] = [{} for _ in programs]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", *map(str, program)],
                env={**os.environ, "SLUICE_DRILL_HEADER": site.header},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                start_new_session=True,  # Ctrl-C must not reach the clients: the drill still needs their books
            )
            for program in programs
        ]  # fmt: skip
        self.threads = [threading.Thread(target=self.listen, args=(n,)) for n in range(len(programs))]
        for thread in self.threads:
            thread.start()

    def listen(self, n: int) -> None:
        out = self.processes[n].stdout
        assert out
        for line in out:
            self.counts[n] = json.loads(line)

    def count(self, what: str) -> int:
        """The sum of a count over all processes."""
        return sum(counts.get(what, 0) for counts in self.counts)

    def send(self, command: str, processes: int | None = None) -> None:
        for process in self.processes[:processes]:
            assert process.stdin
            with contextlib.suppress(OSError):
                process.stdin.write(command + "\n")
                process.stdin.flush()

    def cut(self, clients: int) -> None:
        """Make that many additional clients close their connection early."""
        self.send(f"cut {clients // PROCESSES}", PROCESSES)

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Meanwhile the clients that read do nothing; afterwards they expect nothing of what they saw before."""
        begun = time.monotonic()
        self.send("rest")
        try:
            if self.reads:
                wait(lambda: self.count("at") > begun and self.count("resting") == READERS, 120, "the readers rest")
            yield
        finally:
            self.send("wake")

    def stop(self) -> tuple[list[Book], Reads]:
        """Stop posting and wait for the responses. Returns: the books. Raises: Trouble if a process failed."""
        self.send("stop")
        for process in self.processes:
            if process.wait(PATIENCE + 60):
                raise Trouble("a client process failed; its messages are above")
        return [Book.load(path) for path in self.books], Reads.load(self.reads) if self.reads else Reads()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for thread in self.threads:
            thread.join()


class Drill:
    """One drill."""

    def __init__(
        self, site: Site, possible: Mapping[str, Fault], options: argparse.Namespace, run: str, folder: Path
    ) -> None:
        self.site = site
        self.possible = possible
        self.options = options
        self.run = run
        self.folder = folder
        self.begun = time.monotonic()
        self.served = 0.0  # seconds from then on until all views were first built
        self.faults: list[dict[str, Any]] = []
        self.now: list[str] = []
        self.over = threading.Event()
        self.ending = threading.Event()  # no more faults
        self.trouble = ""
        self.posted: dict[str, Any] | None = None  # what was posted on; None: nothing is, or it is not known
        self.interrupted = False
        # an event that is sent again would hide that a proof has broken a promise
        repeated = not any(possible[name].proof for name in options.faults)
        self.load = Load(site, options.clients, options.rate, run, folder, READERS, repeated)

    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def say(self, words: str) -> None:
        print(f"{self.elapsed():6.1f} s  {words}", flush=True)

    def progress(self) -> None:
        """Print a line every second."""
        before = 0
        while not self.over.wait(1):
            acknowledged = self.load.count("acknowledged")
            counts = (*COUNTS[2:], *(("read", "wrong") if self.load.reads else ()))
            rest = ", ".join(f"{self.load.count(what):,} {what}" for what in counts)
            self.say(f"{acknowledged:9,} acknowledged ({acknowledged - before:5,}/s), {rest}  {', '.join(self.now)}")
            before = acknowledged

    def flows(self, what: str, seconds: float = 60) -> float:
        """Wait until new events are acknowledged, or read. Returns: the seconds waited. Raises: Trouble."""
        begun = time.monotonic()
        if what != "acknowledged":  # the counts may be older than the end of the fault
            wait(lambda: self.load.count("at") > begun, seconds, "the clients report")
        before = self.load.count(what)
        wait(lambda: self.load.count(what) > before + PROCESSES, seconds, f"events are {what}")
        return time.monotonic() - begun

    def inject(self, name: str, scene: Scene) -> None:
        """Inject a fault, then wait until events are acknowledged again, and read if it concerns reads."""
        entry: dict[str, Any] = {"fault": name, "at": round(self.elapsed(), 3), "what": "not completed"}
        self.faults.append(entry)  # one that is interrupted explains answers too
        self.now.append(name)
        entry["what"] = self.possible[name].inject(scene)
        entry["lasted"] = round(self.elapsed() - entry["at"], 3)
        self.site.mended()  # the counts of `flows` may be older than the fault
        if isinstance(self.site, Cells):
            entry["mended_after"] = round(self.elapsed() - entry["at"] - entry["lasted"], 3)
        entry["back_after"] = round(self.flows("acknowledged"), 3)
        if self.load.reads and (self.possible[name].views or self.possible[name].cuts):
            # a fault of the other sequence may make the readers rest
            entry["read_after"] = round(entry["back_after"] + self.flows("read", 300), 3)
            wait(self.site.served, 300, "all views are served")  # one that did not fit waits for its next try
            entry["served_after"] = round(self.elapsed() - entry["at"] - entry["lasted"], 3)
        self.now.remove(name)
        self.say(f"{name}: {entry['what'] or 'done'}; acknowledged again after {entry['back_after']:.1f} s")

    def rounds(self, names: list[str], seed: str) -> None:
        """Inject faults in random order, round after round, until the end of the drill or a trouble."""
        scene = Scene(self.site, random.Random(seed), self.run, self.load.cut, self.load.count, self.load.resting)
        last, count = max(self.options.duration - LAST, self.options.duration / 2), 0
        try:
            while names and (self.options.rounds is None or count < self.options.rounds):
                for name in scene.random.sample(names, len(names)):
                    self.ending.wait(scene.random.uniform(*PAUSE))
                    if self.elapsed() > last or self.ending.is_set():
                        return
                    self.inject(name, scene)
                count += 1
        except Trouble as error:
            self.trouble = self.trouble or str(error)
            self.ending.set()

    def go(self) -> dict[str, Any]:
        """Run the drill. Returns: the report."""
        speaker = threading.Thread(target=self.progress)
        speaker.start()
        # the faults of the views are a sequence of their own, so they meet all others
        names = [[name for name in self.options.faults if self.possible[name].views == kind] for kind in (False, True)]
        names[1] *= bool(self.site.views)
        names[0] = [name for name in names[0] if self.site.receiver or not self.possible[name].forward]
        beside = threading.Thread(target=self.rounds, args=(names[1], f"{self.options.seed} views"))
        try:
            self.flows("acknowledged")
            for stream in self.site.streams:
                wait(partial(self.site.store.bodies, stream), 60, "the first events are stored")  # so the tables exist
            if self.load.reads:
                self.flows("read_back")
                wait(self.site.served, 60, "all views are first built")
                self.served = round(self.elapsed(), 3)
            calm = min(CALM[1], max(CALM[0], self.options.duration / 20))
            time.sleep(CALM[0] if self.options.rounds else calm)
            beside.start()
            self.rounds(names[0], str(self.options.seed))
            while self.options.rounds is None and self.elapsed() < self.options.duration and not self.ending.is_set():
                time.sleep(0.1)
        except Trouble as error:
            self.trouble = str(error)
        except KeyboardInterrupt:
            self.say("interrupted: the comparison follows")
            self.interrupted = True
            self.ending.set()
        if beside.ident:
            beside.join()
        books, reads = self.load.stop()
        posting = self.elapsed()
        self.over.set()
        speaker.join()
        self.say("posting has ended; waiting until the backlog is drained")
        begun = time.monotonic()
        fresh: float | None = None
        checked: dict[str, Any] = {}
        try:
            wait(lambda: not self.site.waiting(), 120, "the backlog is drained")
            self.published()
            drained = time.monotonic() - begun
            fresh = self.fresh()
            self.published()
            checked = self.check() if self.site.views else {}
            if self.site.receiver:
                self.posted = forwarded.compared(self.site, self.site.receiver, self.run)
        except Trouble as error:
            self.trouble, drained = self.trouble or str(error), time.monotonic() - begun
        self.say("comparing")

        def aged(number: int, sent: float) -> bool:
            """The comparison asks this when it has read all rows."""
            last = max(time.time() - AGE + SLACK, self.site.cleared)
            return self.site.logs and number < PROCESSES * SPAN and is_log(number) and sent < last

        stored = (self.site.store.rows(stream, self.run) for stream in self.site.streams)
        found = compare(
            books, *stored, ordered=self.site.ordered, away=self.site.away, aged=aged, misdating=self.site.misdating
        )
        if self.site.private and not self.trouble:
            self.trouble = self.accounts(books)
        seen = judged(reads, self.faults, self.begun, checked, self.served) if self.site.views else None
        report = self.report(found, posting, drained, fresh, seen)
        if isinstance(self.site, Cells):
            report["cells"] = len(self.site.cells)
            report["spool"] = self.site.spool
            report["patience"] = self.site.patience
            report["refused"] = self.load.count("refused")
            report["without_service"] = without_service(books, self.faults, self.begun)
        return report

    def published(self) -> None:
        """Wait until rows that go elsewhere are there. Raises: Trouble."""
        store = self.site.store
        if isinstance(store, Elsewhere):
            wait(lambda: not store.unpublished(), 120, "all rows are published")

    def fresh(self) -> float:
        """Post a new event. Returns: the seconds until it is stored, and read from a view. Raises: Trouble."""
        name, begun = self.run + "-fresh", time.monotonic()
        load = Load(self.site, 1, 5, name, self.folder, 1)
        try:
            wait(lambda: any(True for _ in self.site.store.rows(STREAM, name)), 60, "a new event is stored")
            if load.reads:
                wait(lambda: load.count("read_back"), 60, "a new event is read")
            seconds = time.monotonic() - begun
        finally:
            load.stop()
            load.close()
        # others came after it, and the ledger would call one missing that a worker has, but not the database
        wait(lambda: not self.site.waiting(), 60, "all new events are stored")
        return seconds

    def check(self) -> dict[str, int]:
        """Run `views check` when all views are served. Returns: path -> keys that differ. Raises: Trouble."""
        return wait(self.site.different, 120, "all views are served")

    def accounts(self, books: list[Book]) -> str:
        """Which sum over a private installation is wrong; "": none. It covers the logs that were deleted by age."""
        site = self.site
        for stream in site.streams:
            if found := site.store.unexplained(stream):
                return f"{stream}: {found} stored bodies are neither rows nor dead letters"
        logs = sum(200 <= status < 300 for book in books[:PROCESSES] for status in book.status[::LOGGED])
        if site.logs and logs > site.taken("logs"):
            return f"logs: {logs} were acknowledged, {site.taken('logs')} came to a worker"
        return ""

    def report(
        self, found: Findings, posting: float, drained: float, fresh: float | None, reads: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The report as JSON."""
        dead = self.site.store.dead(self.run)
        ledger = self.site.ledger() | {"restored_away": sum(self.site.gone.values())}
        passed = found.sound and not dead and not self.trouble and fresh is not None
        if reads:
            passed = passed and bool(reads["different"]) and not any(reads["different"].values()) and not reads["wrong"]
        if self.site.receiver:
            bad = "missing", "doubled", "disorder"
            passed = passed and self.posted is not None and not any(self.posted[kind] for kind in bad)
        if self.site.private:  # the Redis of a running installation may be younger than its database
            passed = passed and ledger["missing"] == ledger["restored_away"]
        if self.site.logs:
            ledger["deleted_by_age"] = self.site.store.deleted("logs")
        ledger["batches_kept"], ledger["batches"] = self.site.store.batches()
        s = self.site.settings
        kinds = [kind for kind in KINDS if kind != "disorder" or self.site.ordered]
        return {
            "passed": passed,
            "trouble": self.trouble,
            "interrupted": self.interrupted,
            "run": self.run,
            "seed": self.options.seed,
            "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "installation": "private" if self.site.private else "running",
            "settings": {
                "runtime": s.runtime, "gateways": s.gateways, "workers": s.workers.min, "durability": s.durability,
                "store": self.site.store.name,
            },
            "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
            "rate": self.options.rate,
            "clients": self.options.clients,
            "seconds": round(posting, 1),
            "posted": found.posted,
            "again": found.again,
            "acknowledged": found.acknowledged,
            "answers": dict(found.answers.most_common()),
            "stored": found.stored,
            "dead": dead,
            "ledger": ledger,
            "counts": {kind: found.counts[kind] for kind in kinds},
            "numbers": {kind: getattr(found, kind) for kind in kinds if hasattr(found, kind)},
            "received_at": {"early": round(found.early, 3), "late": round(found.late, 3)},
            "drained_after": round(drained, 1),
            "fresh_after": fresh and round(fresh, 3),
            "faults": sorted(self.faults, key=itemgetter("at")),
            "views": reads,
            "forwarded": self.posted,
        }  # fmt: skip


def chosen(words: str, private: bool, every: Mapping[str, Fault] = FAULTS) -> list[str]:
    """The faults selected by --faults: a comma-separated list of names, `none`, `all`, and -NAME to exclude one.

    Raises: Trouble for an unknown name, and for a private fault if the installation is not private.
    """
    possible = [name for name, fault in every.items() if private or not fault.private]
    given = [name for name in words.split(",") if name and name != "none"]
    without = [name[1:] for name in given if name.startswith("-")]
    named = [name for name in given if not name.startswith("-") and name != "all"]
    if wrong := [name for name in named + without if name not in possible]:
        raise Trouble(f"unknown fault: {', '.join(wrong)}; --help lists them")
    if "all" in given or without:
        named += [
            name for name in possible if not (every[name].named or every[name].proof) and name not in without + named
        ]
    return named


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run a drill. Returns: the exit status."""
    possible = OUTAGES if options.cells else FAULTS
    try:
        options.faults = chosen(options.faults, not options.home, possible)
        if options.forward and (options.home or options.cells or not options.views):
            raise Trouble("--forward is for a private installation with views")
        if options.spool != "redis" and not options.cells:
            raise Trouble("--spool needs --cells")
        if options.cells and (options.home or options.header or options.cells < MIN_CELLS):
            raise Trouble(f"--cells takes a number from {MIN_CELLS} on, and neither --home nor --header")
    except Trouble as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 2
    if options.rounds is not None:
        options.duration = float("inf")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    options.rate = options.rate or (SPOOLS[options.spool].rate if options.cells else RATE)
    name = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{options.seed}"
    folder: Path = options.report or (options.home or settings.home) / "drill"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"seed {options.seed}; faults: {', '.join(options.faults) or 'none'}", flush=True)
    try:
        with contextlib.ExitStack() as stack:
            site: Site
            if options.cells:
                site = stack.enter_context(cells(SPOOLS[options.spool], options.cells, options.keep))
            elif options.home:
                site = running(options.home.absolute(), options.header, options.views)
            else:
                site = stack.enter_context(private(options.keep, options.views, options.forward))
            books = site.home / "drill-books"
            books.mkdir(exist_ok=True)
            stack.callback(shutil.rmtree, books)
            drill = Drill(site, possible, options, name, books)
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
