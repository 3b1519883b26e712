"""The status page, the exporter for Prometheus, and the verbs that look at a running Sluice."""

from __future__ import annotations

from sluice.parsers import clients_parser
from sluice.registry import Contribution, Program, Setting

CONTRIBUTION = Contribution(
    page="OPERATING.md#watching-it",
    settings={
        "status_allow": Setting(
            clients_parser("all", "private", "none"), "127.0.0.1 ::1", "networks whose clients may see the status page"
        )
    },
    verbs={name: f"sluice.contrib.page.{name}" for name in ("errors", "top", "metrics")},
    programs={name: Program(f"sluice.contrib.page.parts:{name}") for name in ("metrics", "page")},
    paths=(r"/status(?:/.*)?",),
    nginx="sluice.contrib.page.nginx:page_files",
    rejections="sluice.contrib.page.notifier:PageNotifier",
    announce="sluice.contrib.page.parts:announce",
)
