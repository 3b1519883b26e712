"""Print all figures in Prometheus's text format.

nginx serves the same at /status/metrics.
Prometheus computes the rates: bodies taken per second are rate(sluice_taken_bodies_total[1m]).
"""

from __future__ import annotations

import argparse

from sluice.base import terminal
from sluice.contrib.page.exporter import exposition
from sluice.ledger import Observer
from sluice.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0; 1 if Redis, the database or the views' Redis is unavailable, or a body is missing; 2 if a "
        "setting is invalid"
    )


def run(arguments: argparse.Namespace, s: Settings) -> int:
    figures = Observer(s).look()
    print(exposition(figures).decode(), end="")
    for line in figures["trouble"]:
        terminal.complain(line)
    return 1 if figures["trouble"] else 0
