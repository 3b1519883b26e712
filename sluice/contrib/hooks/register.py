"""Webhooks of any sender, at /hooks/NAME: the stream `hooks`."""

from __future__ import annotations

from sluice.http.routes import OK, Route
from sluice.registry import Contribution

PATH = "/hooks/{hook}/*"

CONTRIBUTION = Contribution(
    page="HOOKS.md",
    streams={"hooks": "sluice.contrib.hooks.hook:HOOKS"},
    routes={PATH: Route("hooks", OK, keep_head=True, batch=True, get=True, methods=("PUT",))},
)
