"""The tables of docs/protocol/ that come from the code: `python -m proving.documents` writes them into the pages.

A page has a table between <!-- NAME --> and <!-- /NAME -->. `tests/test_docs.py` checks that each is up to date.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sluice.ops import __main__ as command

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/protocol"
INVALID = r"; 2 (if|for) [^;]*"  # in the exit status of every verb: the page says it once


class Sample(dict[str, Any]):
    """Figures of which every one is known, so that the exporter shows each of its metrics."""

    def __missing__(self, key: str) -> Any:
        return Sample() if key in ("memory", "disk") else 0

    def get(self, key: str, default: Any = None) -> Any:
        """The figure, known or not."""
        return self[key]


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown. A `|` within a cell is escaped."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |").replace("| --- ", "|---")


def verbs_table() -> str:
    """Each verb with its usage, the first line of its help and its exit status."""
    return markdown(("verb", "what it does", "exit status"), map(verb_row, command.verb_modules()))


def verb_row(verb: str) -> tuple[str, str, str]:
    """A row of `verbs_table`."""
    module = importlib.import_module(command.verb_modules()[verb])
    parser = argparse.ArgumentParser(prog=verb, add_help=False)
    module.arguments(parser)
    about = str(module.__doc__)
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    (status,) = re.findall(r"exit status: (.*?)\n\n", f"{about}\n{parser.epilog}\n\n", re.DOTALL)
    return f"`{usage}`", about.partition("\n")[0], re.sub(INVALID, "", " ".join(status.split()))


def metrics_table() -> str:
    """Each metric with its type, its labels and its help."""
    from sluice.contrib.page import exporter

    return markdown(("metric", "type", "labels", "what"), map(metric_row, exporter.metric_families(sample())))


def sample() -> Any:
    """Figures for the exporter: one stream, one view, one cell."""
    histogram = {"bounds": [None], "buckets": [0], "sum": 0}
    stream = Sample(decode=histogram, persist=histogram)
    cell = Sample(cell="", streams=[collections.defaultdict(int)])
    return Sample(
        streams={"": stream}, commit=histogram, commit_bodies=histogram, answered=[], refused=[], without_rows=[],
        dead_letters=[], cells=[cell], processes=[],
        contributed={"senders": [], "views": [Sample(path="", reads={})]},
    )  # fmt: skip


def metric_row(family: Any) -> tuple[str, str, str, str]:
    """A row of `metrics_table`."""
    name = family.name + "_total" * (family.type == "counter")
    labels = ", ".join(f"`{label}`" for label in family._labelnames)
    return f"`{name}`", family.type, labels, family.documentation.rstrip(".")


TABLES: dict[str, Callable[[], str]] = {"verbs": verbs_table, "metrics": metrics_table}


def written(text: str) -> str:
    """A page with the present tables between their markers."""

    def table(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{TABLES[found[1]]()}<!-- /{found[1]} -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", table, text, flags=re.DOTALL)


def main() -> None:
    """Write the tables into all pages."""
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()
