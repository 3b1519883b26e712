"""The rig of all benchmarks: parameters, private servers, load, alternating rounds, and the report.

A benchmark is an executable file that imports this package first, which installs what is missing and continues in
bench/.venv:

    options = rig.options(__doc__, rounds=5, seconds=4)
    report = rig.Report("name", "The question", options)                  # prints the parameters
    with rig.Stand(options) as stand:
        ours = stand.gateway("fast lane", runtime="pypy")                 # as bin/up runs it, behind its own nginx
        noop = stand.noop("no-op")
        found = rig.rounds(options, {c.name: stand.load(c) for c in (ours, noop)}, reference="no-op")
    report.table(found); report.bars(...); report.write()

All candidates run all the time; only one of them is under load. Each has its own nginx, configured as by bin/up. Those
that use Redis share one server, which is emptied between the runs.
"""

from __future__ import annotations

from rig.environment import BENCH, ROOT, sibling  # isort: split

from proving.figures import read_tables as tables
from rig.heads import FRESH, KEYED, REAL, SAME, WEBHOOKS, Request, Requests
from rig.load import GENERATOR, Slots, body, cpu, memory, percentile, processes, stolen, summed
from rig.parameters import Figures, options, output, progress
from rig.report import (
    OURS_COLOUR,
    RATIOS,
    THEIRS_COLOUR,
    Report,
    number,
)
from rig.rounds import Ratio, ratio, rounds
from rig.stand import CFLAGS, OURS, THEIRS, Candidate, Stand

__all__ = [
    "BENCH", "CFLAGS", "GENERATOR", "OURS", "OURS_COLOUR", "RATIOS", "ROOT", "THEIRS",
    "THEIRS_COLOUR", "FRESH", "KEYED", "REAL", "SAME", "WEBHOOKS", "Candidate", "Figures", "Ratio", "Request",
    "Requests", "Report", "Slots", "Stand", "body", "cpu", "memory", "number", "options", "output", "percentile",
    "processes", "progress", "ratio", "rounds", "sibling", "stolen", "summed", "tables",
]  # fmt: skip
