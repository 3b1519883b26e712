"""Webhooks of any sender, at /hooks/NAME: the stream `hooks`."""

from __future__ import annotations

from sluice import parsers
from sluice.http.routes import OK, Route
from sluice.registry import Contribution, Entry, Setting

PATH = "/hooks/{hook}/*"
FASTLY = "/.well-known/fastly/logging/challenge"

CONTRIBUTION = Contribution(
    page="HOOKS.md",
    settings={
        "hooks": Setting(parsers.parse_file, "", "file with what is said of webhooks: signatures, sizes, answers")
    },
    streams={"hooks": "sluice.contrib.hooks.hook:HOOKS"},
    routes={PATH: Route("hooks", OK, keep_head=True, batch=True, get=True, methods=("PUT",))},
    probes={FASTLY: Entry("sluice.contrib.hooks.gateway:answer_fastly")},
    gateway="sluice.contrib.hooks.gateway:extend",
    nginx="sluice.contrib.hooks.nginx:files",
    secrets="sluice.contrib.hooks.nginx:secrets",
    check="sluice.contrib.hooks.nginx:check",
)
