"""The status page, the exporter for Prometheus, and the verbs that look at a running Sluice."""

from __future__ import annotations

from sluice.registry import Contribution

CONTRIBUTION = Contribution(
    verbs={name: f"sluice.contrib.page.{name}" for name in ("errors", "top", "metrics")},
)
