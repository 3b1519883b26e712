"""Watch streams, workers, views and dead letters live.

q or Ctrl-C ends it.
in/s is bodies accepted per second, out/s bodies that workers claimed, over the last five seconds. The chart
shows the waiting bodies, one reading per column, the newest at the right, scaled to its maximum.
Of a view, reads/s and hits (of the answers 200 and 404, the share of 200) are over the same time. Its lag is how far
it may be behind the database; of a tally, the age of its oldest count.
Without a terminal, one screen is printed after another. NO_COLOR=1 switches colours off; they carry no information.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sluice.base import terminal
from sluice.base.times import format_age
from sluice.contrib.page import page
from sluice.contrib.rates import format_percent, read_rates
from sluice.ledger import Observer, Reading
from sluice.settings import Settings

SPAN_SECONDS = 5.0  # over which a rate is taken
CHART_COLUMNS = 18
RAMPS = {"utf-8": " ▁▂▃▄▅▆▇█", "ascii": " .:-=+*#@"}
SHOWN_REASONS = 5
OLD_SECONDS = 60.0  # a greater age is coloured


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every", metavar="S", type=parse_seconds, default=1.0, help="seconds between two readings (1)"
    )
    parser.add_argument("--count", metavar="N", type=terminal.whole_number, default=0, help="stop after N readings")
    parser.epilog = "exit status: 0; 2 if a setting is invalid"


def parse_seconds(text: str) -> float:
    """The type of an option that is a time. Raises: ArgumentTypeError."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", text) or float(text) < 0.01:
        raise argparse.ArgumentTypeError(f"expected seconds, at least 0.01, not {text!r}")
    return float(text)


def run(arguments: argparse.Namespace, s: Settings) -> int:
    dashboard = Dashboard(Observer(s), Console(highlight=False))
    readings = 0
    with contextlib.suppress(KeyboardInterrupt), frame_display(dashboard.console) as show, key_waiter() as pressed:
        while True:
            show(dashboard.frame())
            readings += 1
            if readings == arguments.count or pressed(max(arguments.every, 0.1)):
                break
    return 0


@contextlib.contextmanager
def frame_display(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """A function that shows a frame: on a terminal it replaces the last one, elsewhere it follows it."""
    if not console.is_terminal:
        yield lambda frame: console.print(frame, "")
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda frame: live.update(frame, refresh=True)


@contextlib.contextmanager
def key_waiter() -> Iterator[Callable[[float], bool | None]]:
    """A function that waits up to a number of seconds; it returns True if q was pressed."""
    if not sys.stdin.isatty():
        yield time.sleep
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))[0]:
            if sys.stdin.read(1) in ("q", "Q", ""):
                return True
        return False

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class Dashboard:
    def __init__(self, observer: Observer, console: Console) -> None:
        self.observer = observer
        self.console = console
        self.ramp = RAMPS["utf-8" if console.encoding.startswith("utf") else "ascii"]
        self.seen: deque[Reading] = deque()
        self.charts: dict[str, deque[int]] = {}

    def frame(self) -> RenderableType:
        now = self.observer.look()
        while len(self.seen) > 1 and now["time"] - self.seen[1]["time"] >= SPAN_SECONDS:
            self.seen.popleft()
        self.seen.append(now)
        parts: list[RenderableType] = [self.head(now)]
        parts += [Text(f"! {line}", "bold red") for line in now["trouble"]]  # not below the edge of the terminal
        parts += ["", self.streams(now)]
        if workers := self.workers(now):
            parts += ["", workers]
        if views_of(now):
            parts += ["", self.views(now)]
        if now["dead_letters"]:
            parts += ["", self.letters(now)]
        return Group(*parts)

    def head(self, now: Reading) -> Text:
        """The first line: time, processes, memory of Redis, cost of a commit."""
        parts = [time.strftime("%H:%M:%S", time.localtime(now["time"]))]
        if now["processes"] is not None:
            for role in "gateway", "worker":
                parts.append(f"{role}s {sum(process['role'] == role for process in now['processes'])}")
        if now["memory"]:
            limit = now["memory"]["most"]
            parts.append(f"Redis {format_size(now['memory']['used'])}" + (f"/{format_size(limit)}" if limit else ""))
        then, then_bodies = self.seen[0]["commit"], self.seen[0]["commit_bodies"]
        took, bodies = now["commit"], now["commit_bodies"]
        if then and then_bodies and took and bodies and (commits := took["count"] - then["count"]) > 0:
            mean, seconds = (bodies["sum"] - then_bodies["sum"]) / commits, (took["sum"] - then["sum"]) / commits
            parts.append(f"commits of {mean:.0f} in {seconds * 1000:.1f} ms")
        return Text("  ".join(parts), "bold", overflow="ellipsis", no_wrap=True)

    def streams(self, now: Reading) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
        table.add_column("stream", max_width=14, no_wrap=True)
        for name in "in/s", "out/s", "waiting", "bytes":
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", width=CHART_COLUMNS, no_wrap=True)
        for name in "oldest", "dead", "missing":
            table.add_column(name, justify="right", no_wrap=True)
        for name, row in now["streams"].items():
            waits = None if row["ready"] is None else row["ready"] + (row["claimed"] or 0)
            chart = self.charts.setdefault(name, deque(maxlen=CHART_COLUMNS))
            chart.append(waits or 0)
            old = row["oldest_seconds"]
            table.add_row(
                Text(terminal.printable(name), "bold"),
                self.rate(name, "accepted"),
                self.rate(name, "taken"),
                format_number(waits),
                "?" if row["backlog_bytes"] is None else format_size(row["backlog_bytes"]) if waits else "",
                Text(draw_bars(chart, self.ramp), "cyan"),
                Text(
                    "?" if row["ready"] is None else "" if old is None else format_age(old),
                    "bold yellow" if (old or 0) >= OLD_SECONDS else "",
                ),
                Text(format_number(row["dead"]), "yellow" if row["dead"] else ""),
                Text(format_number(row["missing"]), "bold red" if row["missing"] else ""),
            )
        return table

    def rate(self, stream: str, figure: str) -> str:
        """Bodies per second over the recent readings; ? if unknown."""
        old, new = self.seen[0], self.seen[-1]
        rows: list[Mapping[str, Any]] = [reading["streams"].get(stream) or {} for reading in (old, new)]
        before, after = (row.get(figure) for row in rows)
        rate = page.count_rate(before, after, new["time"] - old["time"])
        if rate is None:
            return "?" if after is None else ""
        return per_second(rate)

    def workers(self, now: Reading) -> Table | None:
        workers = [worker for worker in now["processes"] or () if worker["role"] == "worker"]
        if not workers:
            return None
        table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
        for worker in workers:
            held = [
                f"{claim['stream']}: {format_number(claim['bodies'])} bodies"
                + (f" for {format_age(claim['seconds'])}" if claim["seconds"] else "")
                for claim in worker["claims"]
                if claim["bodies"]
            ]
            table.add_row(
                Text(f"worker {worker['pid']}", "dim"), "holds " + ", ".join(held) if held else "holds nothing"
            )
        return table

    def views(self, now: Reading) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
        table.add_column("view", max_width=22, no_wrap=True)
        table.add_column("", no_wrap=True)
        for name in "reads/s", "hits", "keys", "lag", "refreshes":
            table.add_column(name, justify="right", no_wrap=True)
        then = self.seen[0]
        before = {view["path"]: view["reads"] for view in views_of(then)}
        for view in views_of(now):
            reads, hits = read_rates(before.get(view["path"]), view["reads"], now["time"] - then["time"])
            lag, made = view["lag"], view["refreshes"]
            late = lag is not None and lag >= OLD_SECONDS and made is None  # a tally may be as old as its period
            table.add_row(
                Text(view["path"], "bold"),
                Text(view["state"], "" if view["state"] == "served" else "bold yellow"),
                "" if reads is None else per_second(reads),
                format_percent(hits),
                "" if view["keys"] is None else format_number(view["keys"]),
                Text("" if lag is None else format_age(lag), "bold yellow" if late else ""),
                "" if made is None else format_number(made),
            )
        return table

    def letters(self, now: Reading) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("letters", justify="right")
        table.add_column("stream", no_wrap=True)
        table.add_column("dead because", no_wrap=True, overflow="ellipsis")
        reasons = now["dead_letters"] or []
        for row in reasons[:SHOWN_REASONS]:
            texts = [terminal.printable(row["stream"]), terminal.printable(row["reason"])]
            table.add_row(format_number(row["letters"]), *map(Text, texts))
        if (more := len(reasons) - SHOWN_REASONS) > 0:
            table.add_row("", "", f"and {more} other reasons: {terminal.PROGRAM} dead")
        return table


def views_of(reading: Reading) -> list[dict[str, Any]]:
    views: list[dict[str, Any]] = reading["contributed"].get("views", [])
    return views


def per_second(rate: float) -> str:
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def format_number(n: int | None) -> str:
    """A number with separators, large ones in millions; ? if unknown."""
    return "?" if n is None else f"{n:,}" if abs(n) < 10_000_000 else f"{n / 1e6:,.0f}M"


def format_size(n: float) -> str:
    """Bytes in at most five characters."""
    for unit in "B", "K", "M", "G":
        if n < 1000 or unit == "G":
            break
        n /= 1024
    return f"{n:.1f}{unit}" if n < 10 and unit != "B" else f"{n:.0f}{unit}"


def draw_bars(values: deque[int], ramp: str) -> str:
    """A line of bars; every value above 0 has a visible bar."""
    top = max(values, default=0) or 1
    last = len(ramp) - 1
    return "".join(ramp[0 if not value else max(1, round(value / top * last))] for value in values).rjust(CHART_COLUMNS)
