"""The programs of the status page and of the metrics. They have no work to finish."""

from __future__ import annotations

from sluice.run.programs import Part
from sluice.settings import Settings


def metrics(s: Settings) -> Part:
    return Part("{python} -m sluice.contrib.page.exporter", units=("sluice-metrics.service",))


def page(s: Settings) -> Part:
    return Part("{python} -m sluice.contrib.page.page", units=("sluice-page.service",))


def announce(s: Settings, words: dict[str, str]) -> None:
    words["more"] += "  status     {url}/status\n"
