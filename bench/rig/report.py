"""The report of a benchmark: parameters and tables, on standard output and in files.

bench/results has what the documents show: the tables of each benchmark, and the plot in README.md. The figures of each
round (NAME.json) are below var/bench. With `--results DIR` everything is in DIR.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig import heads
from rig.environment import BENCH, ROOT
from rig.parameters import Figures, machine
from rig.rounds import Ratio

OURS_COLOUR, THEIRS_COLOUR = "#0072B2", "#999999"  # which colour-blind readers can distinguish
RATIOS = "ratios.csv"  # in the directory of the results
PATHS = ("against", "dir", "results")  # options that do not affect the figures


class Report:
    """Prints the parameters at once; collects text, tables, a plot and data for `write`."""

    def __init__(self, name: str, question: str, options: argparse.Namespace, **more: Any) -> None:
        self.kind = heads.kind(options)
        self.name = name + "-one-head" * (self.kind == heads.ONE)
        self.question = question
        self.results: Path = options.results
        self.details = ROOT / "var/bench" if self.results == BENCH / "results" else self.results
        chosen = {key: str(value) for key, value in vars(options).items() if key not in PATHS}
        if chosen.pop("one_head", None):
            chosen["heads"] = self.kind
        keys = [f"INGEST_UNIQUE={os.environ['INGEST_UNIQUE']}"] if "INGEST_UNIQUE" in os.environ else []
        words = [*keys, f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]
        command = re.sub(r" --(results|dir)[ =]\S+", "", shlex.join(words))
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

    def bars(self, bars: Sequence[tuple[str, float, str]], title: str, unit: str, suffix: str, note: str) -> None:
        """Write a horizontal bar chart as NAME-suffix.svg. bars: (name, value, colour), from the top."""
        import matplotlib  # its import takes a second

        matplotlib.use("agg")
        matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "sluice", "font.family": "DejaVu Sans"}
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(9, 1.3 + 0.34 * len(bars)), layout="constrained")
        names, values, colours = zip(*bars)
        drawn = axes.barh(range(len(bars)), values, color=colours, height=0.72)
        axes.bar_label(drawn, labels=[show(value) for value in values], padding=4, fontsize=9)
        axes.set_yticks(range(len(bars)), names, fontsize=9)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.margins(x=0.16)
        axes.set_xlabel(f"{unit}\n{note}", fontsize=9)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="both", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        p = self.parameters
        figure.supxlabel(
            f"{p['command']} · {p['machine']} · commit {p['commit']} · {p['date']}", fontsize=7, color="#666666"
        )
        stem = f"{self.name}-{suffix}"
        self.results.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.results / f"{stem}.svg", metadata={"Date": None})
        pyplot.close(figure)
        self.text += f"\n![{stem}]({stem}.svg)\n"

    def write(self) -> None:
        """Write NAME.md (the text and the parameters) and NAME.json (`data`)."""
        for directory in self.results, self.details:
            directory.mkdir(parents=True, exist_ok=True)
        (self.details / f"{self.name}.json").write_text(json.dumps(self.data, indent=1) + "\n")
        facts = "\n".join(f"- {key}: {value}" for key, value in self.parameters.items())
        (self.results / f"{self.name}.md").write_text(f"{self.text}\n## Parameters\n\n{facts}\n")
        print(f"\nwritten: {self.results}/{self.name}.md, {self.details}/{self.name}.json", flush=True)


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
