"""INGEST_WORKERS=auto: starts and stops workers as the backlog needs them."""

from __future__ import annotations

import re

from sluice.parsers import Range
from sluice.registry import Contribution, Program, Setting


def parse_workers(text: str) -> Range:
    match = re.fullmatch(r"(auto)(?::([0-9]{1,3})-([0-9]{1,3}))?|([0-9]{1,3})", text)
    if match:
        low, high = (int(match[2] or 1), int(match[3] or 4)) if match[1] else (int(match[4]), int(match[4]))
        if low <= high <= 256 and (low or not match[1]):
            return Range(low, high)
    raise ValueError("an integer from 0 to 256, auto, or auto:MIN-MAX such as auto:1-4")


CONTRIBUTION = Contribution(
    page="SCALE.md",
    settings={"workers": Setting(parse_workers, "1", "worker processes; auto: as many as the backlog needs")},
    programs={"scale": Program("sluice.contrib.autoscale.part:scale_part")},
)
