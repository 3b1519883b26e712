"""Views: read structures that follow the rows in the database, and the reader that answers from them."""

from __future__ import annotations

from sluice.registry import Contribution

CONTRIBUTION = Contribution(
    verbs={"views": "sluice.contrib.views.verb"},
)
