"""The program `scale_part`: it runs the workers above the minimum."""

from __future__ import annotations

from sluice.run.programs import Part
from sluice.settings import Settings


def scale_part(s: Settings) -> Part | None:
    """Its workers get the time of the others to finish their claims."""
    if s.workers.max == s.workers.min:
        return None
    return Part("{python} -m sluice.contrib.autoscale.scale", units=("sluice-scale.service",))
