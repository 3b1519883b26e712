"""The report of a benchmark: parameters, tables and plots, on standard output and in files.

bench/results has what the documents show: the tables of each benchmark, and the plots in SHOWN. All other plots, and
the figures of each round (NAME.json), are below var/bench. With `--results DIR` everything is in DIR.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig import heads
from rig.environment import BENCH, ROOT
from rig.parameters import Figures, machine
from rig.rounds import Ratio

# The palette of Okabe and Ito, which colour-blind readers can distinguish.
OURS_COLOUR, THEIRS_COLOUR, LIMIT_COLOUR = "#0072B2", "#999999", "#E69F00"
STACK = ("#E69F00", "#0072B2", "#D55E00", "#BBBBBB", "#009E73", "#CC79A7")
COLOURS = (OURS_COLOUR, "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
RATIOS = "ratios.csv"  # in the directory of the results
SHOWN = {  # the plots that bench/README.md and README.md show
    "autoscale-day", "autoscale-live-live", "drain", "latency", "peers", "peers-durability", "soak-memory",
    "spike-failures", "sustained-backlog", "sustained-keep-size",
}  # fmt: skip
PATHS = ("against", "dir", "results")  # options that do not affect the figures


class Report:
    """Prints the parameters at once; collects text, tables, plots and data for `write`."""

    def __init__(self, name: str, question: str, options: argparse.Namespace, **more: Any) -> None:
        self.kind = heads.kind(options)
        self.name = name + "-one-head" * (self.kind == heads.ONE)
        self.question = question
        self.results: Path = options.results
        self.details = ROOT / "var/bench" if self.results == BENCH / "results" else self.results
        chosen = {key: str(value) for key, value in vars(options).items() if key not in PATHS}
        if chosen.pop("one_head", None):
            chosen["heads"] = self.kind
        command = re.sub(r" --(results|dir)[ =]\S+", "", " ".join([f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]))
        command = re.sub(r"--against[ =]\S+", "--against DIR", command)
        self.parameters = {"command": command, **machine(options.dir), **chosen}
        self.parameters |= {key: str(value) for key, value in more.items()}
        self.data: Figures = {"question": question, "parameters": self.parameters}
        self.text = f"# {question}\n"
        print(question)
        for key, value in self.parameters.items():
            print(f"  {key:<12} {value}")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self.text += f"\n{text}\n"
        print("\n" + text, flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
        """Add a table. Numbers are formatted by `show`. The title says if all clients send one head."""
        if self.kind == heads.ONE:
            title = ", ".join(filter(None, [title, self.kind]))
        cells = [[show(cell) for cell in row] for row in rows]
        lines = [list(head), ["---"] + ["--:"] * (len(head) - 1), *cells]
        wide = [max(len(line[n]) for line in lines) for n in range(len(head))]
        lines[1] = ["-" * wide[0]] + ["-" * (width - 1) + ":" for width in wide[1:]]
        text = "\n".join(
            "| "
            + " | ".join(f"{cell:<{w}}" if n == 0 else f"{cell:>{w}}" for n, (cell, w) in enumerate(zip(line, wide)))
            + " |"
            for line in lines
        )
        self.say((f"**{title}**\n\n" if title else "") + text)

    def remember(self, ratios: Mapping[str, Ratio]) -> None:
        """Add those that are sure to ratios.csv."""
        path = self.results / RATIOS
        told = {key: self.parameters[key] for key in ("date", "commit", "machine", "command")}
        rows = [
            {**told, "ratio": name, **each._asdict(), "rounds": len(each.rounds)}
            for name, each in ratios.items()
            if each.sure and len(each.rounds) > 1
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with open(path, "a", newline="") as file:
            writer = csv.DictWriter(file, [*told, "ratio", "median", "low", "high", "rounds"], lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(rows)

    def bars(
        self, bars: Sequence[tuple[str, float, str]], title: str, unit: str, suffix: str = "",
        labels: Sequence[str] | None = None, log: bool = False, note: str = "",
    ) -> None:  # fmt: skip
        """Add a horizontal bar chart. bars: (name, value, colour), from the top. labels: texts at their ends."""
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(9, 1.3 + 0.34 * len(bars)), layout="constrained")
        names, values, colours = zip(*bars)
        drawn = axes.barh(range(len(bars)), values, color=colours, height=0.72)
        axes.bar_label(drawn, labels=labels or [show(value) for value in values], padding=4, fontsize=9)
        axes.set_yticks(range(len(bars)), names, fontsize=9)
        axes.invert_yaxis()
        if log:
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.margins(x=0.16)
        axes.set_xlabel(unit + (f"\n{note}" if note else ""), fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        self.save(figure, axes, suffix)

    def stacks(
        self, bars: Mapping[str, Sequence[float]], parts: Sequence[str], title: str, unit: str, suffix: str = ""
    ) -> None:
        """Add a stacked horizontal bar chart. bars: name -> a value per part."""
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(9, 1.5 + 0.34 * len(bars)), layout="constrained")
        left = [0.0] * len(bars)
        for n, part in enumerate(parts):
            values = [bar[n] for bar in bars.values()]
            drawn = axes.barh(range(len(bars)), values, left=left, color=STACK[n % len(STACK)], height=0.72, label=part)
            left = [a + b for a, b in zip(left, values)]
        axes.bar_label(drawn, labels=[show(float(value)) for value in left], padding=4, fontsize=9)
        axes.set_yticks(range(len(bars)), list(bars), fontsize=9)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.margins(x=0.1)
        axes.set_xlabel(unit, fontsize=9)
        axes.legend(loc="lower right", fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        self.save(figure, axes, suffix)

    def lines(
        self, series: Mapping[str, Sequence[tuple[float, float]]], title: str, x: str, y: str, suffix: str = "",
        log_x: bool = False, log_y: bool = False, colours: Mapping[str, str] | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """Add a line chart; each line has its name at its end. series: name -> [(x, y), …]"""
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
        ends = []
        for n, (name, points) in enumerate(series.items()):
            colour = (colours or {}).get(name, COLOURS[n % len(COLOURS)])
            axes.plot(*zip(*points), color=colour, marker="osD^vP*X"[n % 8], linewidth=1.8, markersize=5)
            ends.append((points[-1][1], points[-1][0], name, colour))
        if log_x:
            axes.set_xscale("log")
            ticks = sorted({at for line in series.values() for at, _ in line})
            axes.set_xticks(ticks, [show(at) for at in ticks])
            axes.set_xticks([], minor=True)
        else:
            axes.xaxis.set_major_formatter("{x:,g}")
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,g}")
        figure.draw_without_rendering()
        last = -1e9
        for value, at, name, colour in sorted(ends):  # move names up where they would overlap
            height = axes.transData.transform((at, value))[1] * 72 / figure.dpi
            last = max(height, last + 11)
            axes.annotate(
                name,
                (at, value),
                xytext=(8, last - height),
                textcoords="offset points",
                color=colour,
                va="center",
                fontsize=9,
            )
        axes.set_xlabel(x + (f"\n{note}" if note else ""), fontsize=9)
        axes.set_ylabel(y, fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        self.save(figure, axes, suffix)

    def density(
        self, series: Mapping[str, Sequence[tuple[float, float]]], title: str, marks: Mapping[str, float],
        suffix: str = "", note: str = "",
    ) -> None:  # fmt: skip
        """Add a plot of the density of latencies. series: name -> [(upper end of a slot in ms, requests), …]

        Both axes are logarithmic: of a million requests, even one is visible. marks: text -> ms of a vertical line.
        """
        plt = pyplot()
        figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
        for n, (name, slots) in enumerate(series.items()):
            total = sum(count for _, count in slots)
            bins: dict[int, float] = {}
            for end, count in slots:
                at = math.ceil(math.log2(end) * 16)
                bins[at] = bins.get(at, 0) + count
            ends = range(min(bins), max(bins) + 1)
            edges = [2 ** ((at - 1) / 16) for at in (*ends, ends[-1] + 1)]
            shares = [100 * bins.get(at, 0) / total for at in ends]
            axes.stairs(shares, edges, fill=True, color=COLOURS[n], alpha=0.35, label=name)
            axes.stairs(shares, edges, color=COLOURS[n], linewidth=1.2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in axes.xaxis, axes.yaxis:
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter("")
        for n, (text, value) in enumerate(marks.items()):
            axes.axvline(value, color="#444444", linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(
                text, (value, 1 - 0.06 * n), xycoords=("data", "axes fraction"), xytext=(3, -10),
                textcoords="offset points", fontsize=8, color="#444444",
            )  # fmt: skip
        axes.legend(loc="upper left", fontsize=9)
        axes.set_xlabel("ms" + (f"\n{note}" if note else ""), fontsize=9)
        axes.set_ylabel("% of the requests, per 1/16 octave", fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        self.save(figure, axes, suffix)

    def save(self, figure: Any, axes: Any, suffix: str = "") -> None:
        """Write a figure as SVG, with the command, the machine and the commit below it."""
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="both", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        p = self.parameters
        figure.supxlabel(
            f"{p['command']} · {p['machine']} · commit {p['commit']} · {p['date']}", fontsize=7, color="#666666"
        )
        stem = self.name + (f"-{suffix}" if suffix else "")
        where = self.results if stem in SHOWN else self.details
        where.mkdir(parents=True, exist_ok=True)
        figure.savefig(where / f"{stem}.svg", metadata={"Date": None}, dpi=130)  # dpi: of rasterized parts
        pyplot().close(figure)
        if where == self.results:
            self.text += f"\n![{stem}]({stem}.svg)\n"

    def write(self) -> None:
        """Write NAME.md (the text and the parameters) and NAME.json (`data`)."""
        for directory in self.results, self.details:
            directory.mkdir(parents=True, exist_ok=True)
        (self.details / f"{self.name}.json").write_text(json.dumps(self.data, indent=1) + "\n")
        facts = "\n".join(f"- {key}: {value}" for key, value in self.parameters.items())
        (self.results / f"{self.name}.md").write_text(f"{self.text}\n## Parameters\n\n{facts}\n")
        print(f"\nwritten: {self.results}/{self.name}.md, {self.details}/{self.name}.json", flush=True)


def tables(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    """The tables of a Markdown file that `Report` wrote: title, or first cell of the head -> row -> column -> cell."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    pattern = r"(?:^\*\*(.+)\*\*\n\n)?^\|(.*)\|\n\|[-:| ]+\|\n((?:\|.*\|\n)+)"
    for title, head, body in re.findall(pattern, path.read_text(), re.MULTILINE):
        names = cells(head)
        found[title or names[0]] = {row[0]: dict(zip(names, row)) for row in map(cells, body.splitlines())}
    return found


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def number(cell: str) -> float:
    """The number in a cell of a table."""
    return float(cell.replace(",", ""))


def show(value: object) -> str:
    """A table cell: floats as integers from 100 on, else with three significant digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def pyplot() -> Any:
    """matplotlib.pyplot without a display. Imported on first use, because the import takes a second."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "sluice", "font.family": "DejaVu Sans"}
    from matplotlib import pyplot as plt

    return plt
